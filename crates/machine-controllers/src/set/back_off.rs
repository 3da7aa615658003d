//! Delays the replacement of machines that never joined.
//!
//! Examples are a class with a wrong image, a network without a route, or a quota that removes VMs. Each new machine
//! then costs a VM for the whole creation timeout and fails like the one before. After [`TOLERATED`] consecutive new
//! machines that never joined, the replacement of such machines waits, longer each time. A machine that joins ends the
//! wait, and so does a change of replicas, template, class or Secret, which may be the cause. Growth and the
//! replacement of machines that have joined never wait.
//!
//! This file holds what is remembered from one pass to the next, and decides about the wait. The memory is not stored:
//! a new leader tolerates three machines again, which costs less than a write for each failed machine. Source:
//! decisions.md 46; the original replaces at once, forever. Pure.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    counts::{is_failed, is_terminating},
    observe::SetObservation,
};
use crate::{
    snapshots::{MachineSnapshot, SetSnapshot},
    views::ControlViews,
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use kube_values::field::cut;
use machine_api::v1alpha1::{MachineClass, MachinePhase, OperationType};

/// Number of consecutive new machines that may fail before replacements wait.
pub const TOLERATED: usize = 3;
/// The first wait, before jitter.
pub const FIRST: Duration = Duration::from_secs(30);
/// The longest wait, before jitter.
pub const LONGEST: Duration = Duration::from_secs(10 * 60);
/// Jitter in both directions, in thousandths: sets that share a broken class should not retry at the same time.
const JITTER: u32 = 100;
/// Maximum length of a text quoted from a machine, in characters.
const QUOTED: usize = 240;

/// A wait of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// Start of the wait.
    pub since: Timestamp,
    /// End of the wait, when the replacements are created.
    pub until: Timestamp,
    /// Number of machines that are not replaced before that.
    pub replacements: usize,
    /// Number of consecutive new machines that never joined.
    pub in_a_row: usize,
    /// The last of them with its message.
    pub last: String,
}

impl Hold {
    /// The message in the set's condition; it does not change during the wait.
    pub fn message(&self) -> String {
        let Self { until, in_a_row, last, .. } = self;
        let until = Timestamp::from_second(until.as_second()).unwrap_or(*until);
        format!(
            "{in_a_row} new machines in a row never joined; the last one was {last}. The next one is made at {until}, or as \
             soon as a machine joins or replicas, template, class or Secret change"
        )
    }

    /// The length of the wait.
    pub fn length(&self) -> Duration {
        Duration::try_from(self.until.duration_since(self.since)).unwrap_or_default()
    }

    /// The remaining time.
    pub fn left(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.until.duration_since(now)).unwrap_or_default()
    }
}

/// The memory about a set between passes. Losing it costs three machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackOff {
    /// Failed machines that were counted and still exist, by UID.
    counted: BTreeSet<String>,
    row: Option<Row>,
}

/// Consecutive new machines that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The hash of the possible causes when the first of them failed.
    given: u64,
    /// Machines that had joined by then, by UID.
    joined: BTreeSet<String>,
    count: usize,
    /// The number of waits so far.
    waits: u32,
    /// Start and end of the present wait.
    wait: Option<(Timestamp, Timestamp)>,
    /// The machines whose replacements wait, by UID.
    waiting: BTreeSet<String>,
    last: String,
}

impl BackOff {
    /// Observes the set; returns the wait if replacements are delayed by one. `given` hashes the possible causes
    /// ([`given`]); it is called only while machines fail.
    pub fn look(&mut self, seen: &SetObservation, given: impl FnOnce() -> u64) -> Option<Hold> {
        let lost: Vec<&MachineSnapshot> = seen.machines.iter().filter(|machine| never_joined(machine)).collect();
        let new: Vec<&MachineSnapshot> =
            lost.iter().copied().filter(|machine| !self.counted.contains(uid(machine))).collect();
        self.counted = lost.iter().map(|machine| uid(machine).to_owned()).collect();
        if self.row.is_none() && new.is_empty() {
            return None;
        }
        let given = given();
        let goes_on = |row: &Row| {
            row.given == given
                && !seen.machines.iter().any(|machine| has_joined(machine) && !row.joined.contains(uid(machine)))
        };
        self.row = self.row.take().filter(goes_on);
        if let Some(row) = &mut self.row {
            row.expire(seen.now);
        }
        if !new.is_empty() {
            let row = self.row.get_or_insert_with(|| Row::beginning(seen, given));
            row.add(&new, seen);
        }
        self.row.as_ref()?.hold(seen)
    }
}

impl Row {
    fn beginning(seen: &SetObservation, given: u64) -> Self {
        let joined = seen.machines.iter().filter(|machine| has_joined(machine));
        Self {
            given,
            joined: joined.map(|machine| uid(machine).to_owned()).collect(),
            count: 0,
            waits: 0,
            wait: None,
            waiting: BTreeSet::new(),
            last: String::new(),
        }
    }

    /// Ends a wait that is over, or that a step of the clock has moved far into the future.
    fn expire(&mut self, now: Timestamp) {
        let may_last = SignedDuration::try_from(LONGEST * 2).unwrap_or(SignedDuration::MAX);
        if self.wait.is_some_and(|(_, until)| until <= now || until.duration_since(now) > may_last) {
            self.wait = None;
            self.waiting.clear();
        }
    }

    fn add(&mut self, new: &[&MachineSnapshot], seen: &SetObservation) {
        self.count += new.len();
        if let Some(last) = new.iter().max_by_key(|machine| machine.name()) {
            self.last = quote(last);
        }
        if self.count < TOLERATED {
            return;
        }
        if self.wait.is_none() {
            let length = SignedDuration::try_from(wait(self.waits, seen.name_seed)).unwrap_or_default();
            self.wait = Some((seen.now, seen.now.checked_add(length).unwrap_or(Timestamp::MAX)));
            self.waits = self.waits.saturating_add(1);
        }
        self.waiting.extend(new.iter().map(|machine| uid(machine).to_owned()));
    }

    fn hold(&self, seen: &SetObservation) -> Option<Hold> {
        let (since, until) = self.wait?;
        let staying = || seen.machines.iter().filter(|machine| !is_terminating(machine));
        // A machine that still exists, for example a preserved one, leaves no room for a replacement.
        let there = staying().filter(|machine| self.waiting.contains(uid(machine))).count();
        let replacements = self.waiting.len().saturating_sub(there);
        (replacements > 0 && is_short(&seen.set, staying())).then(|| Hold {
            since,
            until,
            replacements,
            in_a_row: self.count,
            last: self.last.clone(),
        })
    }
}

/// Whether the set lacks machines. Machines that it has not adopted yet do not count.
fn is_short<'a>(set: &SetSnapshot, staying: impl Iterator<Item = &'a MachineSnapshot>) -> bool {
    let is_own = |machine: &&MachineSnapshot| machine.controller().is_some_and(|owner| owner.uid == set.uid());
    usize::try_from(set.replicas()).is_ok_and(|wanted| staying.filter(is_own).count() < wanted)
}

/// The length of the next wait after this number of waits.
fn wait(waits: u32, seed: u64) -> Duration {
    let length = FIRST.saturating_mul(2_u32.saturating_pow(waits)).min(LONGEST);
    let drawn = u32::try_from(seed % u64::from(2 * JITTER + 1)).unwrap_or(JITTER);
    length * (1000 - JITTER + drawn) / 1000
}

/// Whether the machine is Failed and has never joined. The type of its last operation stays Create when its creation
/// fails.
pub fn never_joined(machine: &MachineSnapshot) -> bool {
    is_failed(machine) && machine.last_operation().operation == OperationType::Create
}

/// Whether the machine has joined.
fn has_joined(machine: &MachineSnapshot) -> bool {
    matches!(machine.phase(), MachinePhase::Running | MachinePhase::Unknown)
}

fn uid(machine: &MachineSnapshot) -> &str {
    machine.uid()
}

/// A machine's name with its last message, on one line.
fn quote(machine: &MachineSnapshot) -> String {
    let name = machine.name();
    let said = cut(machine.last_operation().description.clone(), QUOTED);
    let said = said.trim_end_matches('.');
    if said.is_empty() { name.to_owned() } else { format!("{name} ({said})") }
}

/// A hash of everything that could make new machines of a set fail: replicas, template, the class, and the data of its
/// Secrets. The data of Secrets can't be recovered from it.
pub fn given(views: &ControlViews, set: &SetSnapshot) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.replicas().hash(&mut hasher);
    serde_json::to_string(set.template()).unwrap_or_default().hash(&mut hasher);
    let namespace = set.namespace().to_owned();
    let class = views.classes.get(&ObjectKey::new(namespace.clone(), set.template().spec.class.name.clone()));
    if let Some(class) = class {
        (&class.metadata.uid, class.metadata.generation).hash(&mut hasher);
        for key in secrets_of(&class, &namespace) {
            if let Some(secret) = views.secrets.get(&key) {
                secret.metadata.uid.hash(&mut hasher);
                for (name, value) in secret.data.iter().flatten() {
                    (name, &value.0).hash(&mut hasher);
                }
            }
        }
    }
    hasher.finish()
}

fn secrets_of(class: &MachineClass, namespace: &str) -> Vec<ObjectKey> {
    let references = [&class.secret_ref, &class.credentials_secret_ref].into_iter().flatten();
    references
        .map(|reference| {
            let of = if reference.namespace.is_empty() { namespace } else { &reference.namespace };
            ObjectKey::new(of, reference.name.clone())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, api::core::v1::Secret};
    use rstest::rstest;

    use super::*;
    use crate::set::testing::{Building, at, failed, machine, meta, running, seeing, set};
    use machine_api::v1alpha1::Machine;
    use machine_api::v1alpha1::{OperationState, SecretReference};

    /// A machine that failed during its creation.
    fn lost(name: &str) -> Building<Machine> {
        failed(name).with(|machine| {
            machine.status.last_operation.operation = OperationType::Create;
            machine.status.last_operation.state = OperationState::Failed;
            machine.status.last_operation.description = "no capacity.".to_owned();
        })
    }

    /// An observation at this second.
    fn look(back_off: &mut BackOff, seconds: i64, machines: Vec<Building<Machine>>) -> Option<Hold> {
        look_given(back_off, seconds, machines, 1)
    }

    fn look_given(back_off: &mut BackOff, seconds: i64, machines: Vec<Building<Machine>>, given: u64) -> Option<Hold> {
        let mut seen = seeing(set(2).build(), machines.into_iter().map(Building::build));
        seen.now = at(seconds);
        // The middle of the range means no jitter.
        seen.name_seed = u64::from(JITTER);
        back_off.look(&seen, || given)
    }

    /// Machines fail one after the other, an hour apart, each gone a second later. Returns the waits in seconds.
    fn waits(count: i64) -> Vec<u64> {
        let mut back_off = BackOff::default();
        let mut waits = Vec::new();
        for number in 0..count {
            let failed = lost(&format!("m{number}"));
            // Late enough for every wait to be over.
            look(&mut back_off, number * 3600, vec![failed]);
            waits.extend(look(&mut back_off, number * 3600 + 1, vec![]).map(|hold| hold.length().as_secs()));
        }
        waits
    }

    #[test]
    fn the_third_in_a_row_waits_and_each_wait_is_twice_as_long_up_to_ten_minutes() {
        assert!(waits(2).is_empty());
        assert_eq!(waits(9), [30, 60, 120, 240, 480, 600, 600]);
    }

    #[rstest]
    #[case::least(0, 27)]
    #[case::most(200, 33)]
    fn waits_differ_by_a_tenth(#[case] seed: u64, #[case] seconds: u64) {
        assert_eq!(wait(0, seed).as_secs(), seconds);
        assert!(wait(u32::MAX, seed) <= LONGEST * 11 / 10);
    }

    /// Three machines have failed and are gone.
    fn held() -> BackOff {
        let mut back_off = BackOff::default();
        assert_eq!(look(&mut back_off, 0, vec![lost("a"), lost("b"), lost("c")]), None, "they are still there");
        let hold = look(&mut back_off, 1, vec![]).unwrap();
        assert_eq!((hold.replacements, hold.in_a_row), (3, 3));
        back_off
    }

    #[rstest]
    #[case::nothing_has_changed(10, vec![], 1, true)]
    #[case::its_time_is_over(30, vec![], 1, false)]
    #[case::a_machine_has_joined(10, vec![running("d")], 1, false)]
    #[case::something_was_changed(10, vec![], 2, false)]
    #[case::the_clock_went_back_by_hours(-7200, vec![], 1, false)]
    fn a_wait_ends(
        #[case] seconds: i64,
        #[case] machines: Vec<Building<Machine>>,
        #[case] given: u64,
        #[case] lasts: bool,
    ) {
        assert_eq!(look_given(&mut held(), seconds, machines, given).is_some(), lasts);
    }

    #[test]
    fn the_end_of_a_wait_begins_a_new_row() {
        let mut back_off = held();
        look(&mut back_off, 10, vec![running("d")]);
        assert_eq!(look(&mut back_off, 20, vec![running("d"), lost("e"), lost("f")]), None);
        assert_eq!(look(&mut back_off, 21, vec![running("d")]), None);
        // d had joined before, so the count goes on.
        look(&mut back_off, 30, vec![running("d"), lost("g")]);
        assert_eq!(look(&mut back_off, 31, vec![running("d")]).map(|hold| hold.replacements), Some(1));
    }

    #[test]
    fn a_machine_that_served_is_no_reason_to_wait() {
        let mut back_off = BackOff::default();
        let died =
            |name| failed(name).with(|machine| machine.status.last_operation.operation = OperationType::HealthCheck);
        look(&mut back_off, 0, vec![died("a"), died("b"), died("c"), died("d")]);
        assert_eq!(look(&mut back_off, 1, vec![]), None);
        assert_eq!(back_off, BackOff::default());
    }

    #[test]
    fn a_machine_is_counted_once_and_one_that_is_kept_leaves_no_room() {
        let mut back_off = BackOff::default();
        for second in 0..9 {
            assert_eq!(look(&mut back_off, second, vec![lost("a"), lost("b")]), None);
        }
        look(&mut back_off, 10, vec![lost("a"), lost("b"), lost("c"), lost("d").preserved_until(600)]);
        let hold = look(&mut back_off, 11, vec![lost("d").preserved_until(600)]).unwrap();
        assert_eq!((hold.in_a_row, hold.replacements), (4, 1));
    }

    #[rstest]
    #[case::it_has_all(machine("e"), false)]
    #[case::one_is_about_to_go(machine("e").deleting(), true)]
    #[case::one_is_not_its_own(machine("e").no_owner(), true)]
    fn nothing_waits_in_a_set_that_lacks_no_machine(#[case] other: Building<Machine>, #[case] waits: bool) {
        assert_eq!(look(&mut held(), 10, vec![machine("d"), other]).is_some(), waits);
    }

    #[test]
    fn its_words_stay_while_it_lasts() {
        let mut back_off = held();
        let words = |hold: Option<Hold>| hold.unwrap().message();
        let first = words(look(&mut back_off, 5, vec![]));
        assert_eq!(
            first,
            "3 new machines in a row never joined; the last one was c (no capacity). The next one is made at \
             2027-01-15T08:00:30Z, or as soon as a machine joins or replicas, template, class or Secret change"
        );
        assert_eq!(words(look(&mut back_off, 25, vec![])), first);
    }

    #[test]
    fn replicas_template_class_and_secret_may_be_wrong() {
        let views = ControlViews::default();
        let class = |generation: i64| {
            let mut class = MachineClass { metadata: meta("class"), ..MachineClass::default() };
            class.metadata.generation = Some(generation);
            class.secret_ref = Some(SecretReference { name: "s".to_owned(), namespace: String::new() });
            class
        };
        let secret = |value: &str, version: &str| {
            let mut secret = Secret { metadata: meta("s"), ..Secret::default() };
            secret.metadata.resource_version = Some(version.to_owned());
            secret.data = Some([("key".to_owned(), ByteString(value.as_bytes().to_vec()))].into());
            secret
        };
        let mut built = set(1).snapshot();
        built.to_mut().spec.template.spec.class.name = "class".to_owned();
        let mut known = vec![given(&views, &built)];
        let mut differs = |views: &ControlViews, set: &SetSnapshot| {
            let now = given(views, set);
            let differs = !known.contains(&now);
            known.push(now);
            differs
        };
        views.classes.apply(class(1));
        assert!(differs(&views, &built), "the class is there");
        views.secrets.apply(secret("a", "10"));
        assert!(differs(&views, &built), "its Secret is there");
        views.secrets.apply(secret("b", "11"));
        assert!(differs(&views, &built), "the Secret says something else");
        views.secrets.apply(secret("b", "12"));
        assert!(!differs(&views, &built), "it has another version alone");
        let mut changed = class(2);
        changed.metadata.resource_version = Some("13".to_owned());
        views.classes.apply(changed);
        assert!(differs(&views, &built), "the class has changed");
        built.to_mut().spec.replicas = 2;
        assert!(differs(&views, &built), "the size has changed");
        built.to_mut().spec.template.spec.class.name = "other".to_owned();
        assert!(differs(&views, &built), "the template has changed");
    }
}
