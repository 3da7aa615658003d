use std::sync::Arc;

use rstest::rstest;
use serde_json::json;

use super::*;
use machine_api::v1alpha1::MachineSet;

const HOUR: u64 = 3600;
/// Maximum number of writes of an object per hour, its events and accepted writes included.
const MOST: usize = 30;

fn key() -> ObjectKey {
    ObjectKey::new("ns", "set")
}

fn about(key: &ObjectKey) -> About<'_> {
    About { kind: "MachineSet", key }
}

fn refusal() -> ApiError {
    ApiError::Forbidden("exceeded quota".to_owned())
}

/// Passes that try these writes, one after the other. Each write that is sent is refused.
#[derive(Default)]
struct Passes {
    ledger: Ledger,
    sent: Vec<u64>,
}

impl Passes {
    fn run(&mut self, at: u64, writes: &[Value]) {
        let (key, now) = (key(), Duration::from_secs(at));
        for write in writes {
            let content = WriteContent::Change(write);
            if let Some(error) = self.ledger.standing(about(&key), content, now) {
                assert_eq!(error, refusal());
            } else {
                self.sent.push(at);
                self.ledger.learn(about(&key), content, Some(&refusal()), now);
            }
        }
    }

    /// The maximum number of writes in an hour.
    fn most(&self) -> usize {
        let in_hour = |from: &u64| self.sent.iter().filter(|at| (*from..from + HOUR).contains(at)).count();
        self.sent.iter().map(in_hour).max().unwrap_or(0)
    }
}

#[test]
fn a_refused_write_is_sent_again_after_growing_pauses() {
    let mut passes = Passes::default();
    for at in 0..6 * HOUR {
        passes.run(at, &[json!({ "a": 1 })]);
    }
    assert_eq!(passes.sent[..8], [0, 1, 6, 31, 156, 441, 726, 1011]);
    assert_eq!(passes.most(), 17);
}

#[rstest]
#[case::every_5_s(5, 1)]
#[case::every_minute(60, 1)]
#[case::two_writes(5, 2)]
#[case::four_writes(5, 4)]
#[case::seven_writes(5, 7)]
fn writes_of_passes_are_bounded_for_any_number_of_passes_and_writes(#[case] every: u64, #[case] writes: usize) {
    let writes: Vec<Value> = (0..writes).map(|number| json!({ "a": number })).collect();
    let mut passes = Passes::default();
    for at in (0..6 * HOUR).step_by(usize::try_from(every).unwrap()) {
        passes.run(at, &writes);
    }
    let most = passes.most();
    assert!(most <= MOST, "{most}: {:?}", passes.sent);
    let pauses = passes.sent.windows(2).map(|two| two[1] - two[0]);
    assert!(pauses.max().unwrap() <= 300 * u64::try_from(writes.len()).unwrap(), "{:?}", passes.sent);
}

#[test]
fn a_write_whose_content_changes_each_time_counts_as_one() {
    let mut passes = Passes::default();
    for at in (0..6 * HOUR).step_by(5) {
        passes.run(at, &[json!({ "a": at })]);
    }
    let most = passes.most();
    assert!(most <= MOST, "{most}: {:?}", passes.sent);
}

#[test]
fn an_object_that_changes_all_the_time_does_not_remove_the_pauses() {
    let mut passes = Passes::default();
    for at in (0..6 * HOUR).step_by(5) {
        passes.run(at, &[json!({ "a": 1 }), json!({ "a": 2 })]);
        if at % 60 == 0 {
            passes.ledger.changed(about(&key()), Duration::from_secs(at));
        }
    }
    let most = passes.most();
    assert!(most <= MOST, "{most}: {:?}", passes.sent);
}

#[rstest]
#[case::the_same(WriteContent::Change(&json!({ "a": 1 })), WriteContent::Change(&json!({ "a": 1 })), true)]
#[case::another_value(WriteContent::Change(&json!({ "a": 1 })), WriteContent::Change(&json!({ "a": 2 })), false)]
#[case::another_text(WriteContent::Change(&json!({ "a": "x" })), WriteContent::Change(&json!({ "a": "y" })), false)]
#[case::another_field(WriteContent::Change(&json!({ "a": 1 })), WriteContent::Change(&json!({ "b": 1 })), false)]
#[case::of_the_status(WriteContent::Change(&json!({ "a": 1 })), WriteContent::Status(&json!({ "a": 1 })), false)]
#[case::its_end(WriteContent::Change(&json!({ "a": 1 })), WriteContent::Deletion, false)]
#[case::another_version(
    WriteContent::Change(&json!({ "metadata": { "resourceVersion": "1" }, "a": 1 })),
    WriteContent::Change(&json!({ "metadata": { "resourceVersion": "2" }, "a": 1 })),
    true
)]
#[case::another_version_to_test(
    WriteContent::Change(&json!([{ "op": "test", "path": "/metadata/resourceVersion", "value": "1" }, { "op": "add", "path": "/a" }])),
    WriteContent::Change(&json!([{ "op": "test", "path": "/metadata/resourceVersion", "value": "2" }, { "op": "add", "path": "/a" }])),
    true
)]
#[case::another_label(
    WriteContent::Change(&json!({ "metadata": { "labels": { "name": "1" } } })),
    WriteContent::Change(&json!({ "metadata": { "labels": { "name": "2" } } })),
    false
)]
#[case::another_name(
    WriteContent::New(&json!({ "metadata": { "name": "md-abcde" }, "spec": { "name": "c" } })),
    WriteContent::New(&json!({ "metadata": { "name": "md-fghij" }, "spec": { "name": "c" } })),
    true
)]
#[case::another_class(
    WriteContent::New(&json!({ "metadata": { "name": "md-abcde" }, "spec": { "name": "c" } })),
    WriteContent::New(&json!({ "metadata": { "name": "md-abcde" }, "spec": { "name": "d" } })),
    false
)]
#[case::another_time(
    WriteContent::Status(&json!({ "at": "2027-01-15T08:00:00Z" })),
    WriteContent::Status(&json!({ "at": "2027-01-16T09:10:11.123456Z" })),
    true
)]
#[case::another_time_in_a_text(
    WriteContent::Status(&json!({ "text": "To be made at 2027-01-15T08:00:00Z, or later" })),
    WriteContent::Status(&json!({ "text": "To be made at 2027-01-15T08:00:01Z, or later" })),
    true
)]
#[case::another_text_with_a_time(
    WriteContent::Status(&json!({ "text": "made at 2027-01-15T08:00:00Z" })),
    WriteContent::Status(&json!({ "text": "Told at 2027-01-15T08:00:00Z" })),
    false
)]
fn a_write_is_the_same_as_another(
    #[case] one: WriteContent<'_>,
    #[case] other: WriteContent<'_>,
    #[case] is_same: bool,
) {
    assert_eq!(one.number() == other.number(), is_same);
}

/// Whether a write is delayed this many seconds after it got this result.
fn is_held_back(error: Option<&ApiError>, content: WriteContent<'_>, after: u64) -> bool {
    let (key, mut ledger) = (key(), Ledger::default());
    ledger.learn(about(&key), content, error, Duration::ZERO);
    ledger.standing(about(&key), content, Duration::from_secs(after)).is_some()
}

#[rstest]
#[case::refused_by_a_quota(Some(refusal()), 0, true)]
#[case::refused_by_admission(Some(ApiError::Invalid(String::new())), 0, true)]
#[case::after_the_pause(Some(refusal()), 1, false)]
#[case::a_conflict(Some(ApiError::Conflict(String::new())), 0, false)]
#[case::a_fault_of_the_server(Some(ApiError::ServerFault(String::new())), 0, false)]
#[case::no_answer(Some(ApiError::TimedOut(Duration::ZERO)), 0, false)]
#[case::away(Some(ApiError::Unavailable(String::new())), 0, false)]
#[case::busy(Some(ApiError::TooManyRequests(None)), 0, false)]
#[case::granted(None, 0, false)]
fn only_a_refusal_holds_a_write_back(#[case] error: Option<ApiError>, #[case] after: u64, #[case] holds: bool) {
    assert_eq!(is_held_back(error.as_ref(), WriteContent::Change(&json!({ "a": 1 })), after), holds);
}

#[test]
fn a_json_patch_that_may_have_come_late_is_sent_once_more_at_once() {
    let (key, mut ledger, patch) = (key(), Ledger::default(), json!([{ "op": "test" }]));
    let (content, late) =
        (WriteContent::Change(&patch), ApiError::Invalid("the server rejected our request".to_owned()));
    ledger.learn(about(&key), content, Some(&late), Duration::ZERO);
    assert_eq!(ledger.standing(about(&key), content, Duration::ZERO), None);
    ledger.learn(about(&key), content, Some(&late), Duration::ZERO);
    assert_eq!(ledger.standing(about(&key), content, Duration::ZERO), Some(late));
    assert!(is_held_back(Some(&refusal()), content, 0), "403 is a refusal");
}

fn set(change: impl FnOnce(&mut MachineSet)) -> Arc<MachineSet> {
    let mut set = MachineSet::default();
    set.metadata.name = Some("set".to_owned());
    set.metadata.namespace = Some("ns".to_owned());
    set.metadata.generation = Some(1);
    change(&mut set);
    Arc::new(set)
}

#[rstest]
#[case::its_specification(|set: &mut MachineSet| set.metadata.generation = Some(2), false)]
#[case::a_label(|set: &mut MachineSet| set.metadata.labels = Some([("a".to_owned(), String::new())].into()), false)]
#[case::another_of_its_name(|set: &mut MachineSet| set.metadata.uid = Some("new".to_owned()), false)]
#[case::its_status(|set: &mut MachineSet| set.status.replicas = 3, true)]
#[case::its_version(|set: &mut MachineSet| set.metadata.resource_version = Some("9".to_owned()), true)]
fn a_change_of_the_object_makes_its_writes_due(#[case] change: fn(&mut MachineSet), #[case] holds: bool) {
    let (key, mut ledger, patch) = (key(), Ledger::default(), json!({ "a": 1 }));
    for _ in 0..9 {
        ledger.learn(about(&key), WriteContent::Change(&patch), Some(&refusal()), Duration::ZERO);
    }
    let now = Duration::from_secs(2);
    ledger.see(&Change { old: Some(set(|_| {})), new: Some(set(change)) }, now);
    assert_eq!(ledger.standing(about(&key), WriteContent::Change(&patch), now).is_some(), holds);
    ledger.see(&Change { old: Some(set(|_| {})), new: None }, now);
    assert!(!ledger.knows(about(&key)), "it is gone");
}

#[test]
fn an_accepted_write_is_forgotten_and_makes_the_others_due() {
    let (key, mut ledger, one, other) = (key(), Ledger::default(), json!({ "a": 1 }), json!({ "a": 2 }));
    for patch in [&one, &other, &one, &other] {
        ledger.learn(about(&key), WriteContent::Change(patch), Some(&refusal()), Duration::ZERO);
    }
    assert!(ledger.standing(about(&key), WriteContent::Change(&other), Duration::ZERO).is_some());
    ledger.learn(about(&key), WriteContent::Change(&one), None, Duration::ZERO);
    assert_eq!(ledger.standing(about(&key), WriteContent::Change(&other), Duration::ZERO), None);
    ledger.learn(about(&key), WriteContent::Change(&other), None, Duration::ZERO);
    assert!(!ledger.knows(about(&key)));
}

#[test]
fn objects_without_recent_writes_are_forgotten() {
    let (mut ledger, patch) = (Ledger::default(), json!({}));
    for number in 0..100 {
        let key = ObjectKey::new("ns", format!("set-{number}"));
        ledger.learn(about(&key), WriteContent::Change(&patch), Some(&refusal()), Duration::from_secs(number * 60));
    }
    let known = ledger.objects["MachineSet"].len();
    assert!(known <= 20, "{known}");
}
