//! Scenarios of spec/machine-controller §17.10 on the pure step.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use rstest::rstest;

use crate::drain::{
    budgets::BudgetState,
    observe::{DrainLimits, DrainObservation, NodePresence, PodFacts},
    order::Force,
    pods::PodClass,
    progress::{PodAnswer, Progress, Unnamed},
    step::{DrainResult, DrainStep, How, drain_step, learn},
    volumes::VolumePlace,
    waiting::Waiting,
};
use controller_runtime::key::ObjectKey;

/// A node that is being drained, with a clock of its own.
struct World {
    seen: DrainObservation,
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn pod(name: &str) -> PodFacts {
    PodFacts {
        key: ObjectKey::new("ns", name),
        uid: name.to_owned(),
        class: PodClass::Plain,
        priority: 0,
        grace: Duration::from_secs(30),
        deleting_since: None,
        budget: BudgetState::None,
        volumes: Vec::new(),
    }
}

fn with_volume(name: &str, priority: i32, pv: &str) -> PodFacts {
    PodFacts { class: PodClass::WithVolumes, priority, volumes: vec![pv.to_owned()], ..pod(name) }
}

impl World {
    fn with(pods: Vec<PodFacts>) -> Self {
        let volumes: BTreeMap<String, VolumePlace> = pods
            .iter()
            .flat_map(|pod| pod.volumes.clone())
            .map(|pv| (pv, VolumePlace { here: true, elsewhere: false, wanted: true }))
            .collect();
        Self {
            seen: DrainObservation {
                now: at(0),
                limits: DrainLimits {
                    force: Force::No,
                    deadline: at(7200),
                    timeout: Duration::from_secs(7200),
                    retries: 360,
                    detach: Duration::from_secs(120),
                    reattach: Duration::from_secs(90),
                    parallel: 20,
                },
                node: NodePresence::Present,
                pods,
                volumes,
                left_attached: Vec::new(),
                progress: Progress::default(),
            },
        }
    }

    fn after(&mut self, seconds: i64) -> &mut Self {
        self.seen.now = self.seen.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        self
    }

    fn step(&mut self, answer: &PodAnswer) -> DrainStep {
        let step = drain_step(&self.seen);
        self.seen.progress = step.progress.clone();
        let seen = self.seen.clone();
        for action in &step.actions {
            learn(&mut self.seen.progress, &seen, action, answer.clone(), seen.now);
        }
        step
    }

    fn gone(&mut self, name: &str) -> &mut Self {
        self.seen.pods.retain(|pod| pod.key.name != name);
        self
    }

    fn place(&mut self, pv: &str, here: bool, elsewhere: bool) -> &mut Self {
        let unwanted = VolumePlace { here, elsewhere, wanted: false };
        let place = self.seen.volumes.entry(pv.to_owned()).or_insert(unwanted);
        (place.here, place.elsewhere) = (here, elsewhere);
        self
    }
}

fn done(step: &DrainStep) -> Vec<(&str, How)> {
    step.actions.iter().map(|action| (action.key.name.as_str(), action.how)).collect()
}

#[test]
fn mc_197_a_node_without_pods_is_drained_at_once() {
    assert_eq!(World::with(Vec::new()).step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_195_daemon_sets_and_mirrors_stay() {
    let mut world = World::with(vec![
        PodFacts { class: PodClass::DaemonSet, ..pod("d") },
        PodFacts { class: PodClass::Mirror, ..pod("m") },
        pod("a"),
    ]);
    assert_eq!(done(&world.step(&PodAnswer::Accepted)), [("a", How::Evict)]);
    assert_eq!(world.gone("a").step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_198_a_refused_eviction_is_repeated_every_twenty_seconds() {
    let mut world = World::with(vec![PodFacts { budget: BudgetState::One("ns/web".to_owned()), ..pod("a") }]);
    assert_eq!(done(&world.step(&PodAnswer::Refused)), [("a", How::Evict)]);
    let waiting = world.after(10).step(&PodAnswer::Refused);
    assert!(done(&waiting).is_empty());
    let DrainResult::Running { progress, blocked_by, wake, .. } = waiting.result else { panic!("not running") };
    assert_eq!(progress, "1 of 1 pods left, 1 blocked by PodDisruptionBudget ns/web.");
    assert_eq!((blocked_by.as_deref(), wake), (Some("ns/web"), Duration::from_secs(10)));
    assert_eq!(done(&world.after(10).step(&PodAnswer::Accepted)), [("a", How::Evict)]);
}

#[test]
fn mc_199_a_budget_that_will_never_allow_it_fails_the_attempt_and_names_itself() {
    let mut world = World::with(vec![PodFacts { budget: BudgetState::Misconfigured("ns/web".to_owned()), ..pod("a") }]);
    world.step(&PodAnswer::Refused);
    let DrainResult::Failed(error) = world.step(&PodAnswer::Refused).result else { panic!("not failed") };
    assert!(error.text.contains("pod disruption budget ns/web is misconfigured"), "{error:?}");
}

#[test]
fn mc_201_after_its_refusals_a_pod_is_deleted_with_its_own_grace() {
    let mut world = World::with(vec![pod("a")]);
    world.seen.limits.retries = 2;
    world.step(&PodAnswer::Refused);
    world.after(20).step(&PodAnswer::Refused);
    assert_eq!(done(&world.after(20).step(&PodAnswer::Accepted)), [("a", How::Delete)]);
}

#[test]
fn mc_202_mc_289_without_retries_pods_are_deleted_in_one_round() {
    let mut world = World::with(vec![pod("a"), with_volume("db", 0, "pv-1")]);
    world.seen.limits.retries = 0;
    assert_eq!(done(&world.step(&PodAnswer::Accepted)), [("a", How::Delete), ("db", How::Delete)]);
}

#[test]
fn mc_203_a_busy_server_does_not_count_as_refusal() {
    let mut world = World::with(vec![pod("a")]);
    world.seen.limits.retries = 1;
    world.step(&PodAnswer::Busy(Duration::from_secs(3)));
    assert!(done(&world.after(2).step(&PodAnswer::Accepted)).is_empty());
    assert_eq!(done(&world.after(1).step(&PodAnswer::Accepted)), [("a", How::Evict)]);
}

#[test]
fn mc_204_one_pod_that_fails_does_not_stop_the_others() {
    let mut world = World::with(vec![pod("a"), pod("b")]);
    world.seen.limits.parallel = 1;
    world.step(&PodAnswer::Failed("two budgets".to_owned()));
    assert_eq!(done(&world.step(&PodAnswer::Accepted)), [("b", How::Evict)]);
    assert!(matches!(world.gone("b").step(&PodAnswer::Accepted).result, DrainResult::Failed(_)));
}

#[rstest]
#[case::mc_205_a_long_grace_is_bounded_by_the_timeout(3600, 1200, 1230)]
#[case::mc_207_a_pod_that_never_goes(30, 7200, 60)]
fn the_wait_for_a_pod_ends(#[case] grace: u64, #[case] timeout: u64, #[case] limit: i64) {
    let mut world = World::with(vec![PodFacts { grace: Duration::from_secs(grace), ..pod("a") }]);
    world.seen.limits.timeout = Duration::from_secs(timeout);
    world.step(&PodAnswer::Accepted);
    assert!(matches!(world.after(limit).step(&PodAnswer::Accepted).result, DrainResult::Running { .. }));
    assert!(matches!(world.after(1).step(&PodAnswer::Accepted).result, DrainResult::Failed(_)));
}

#[test]
fn mc_206_a_pod_of_the_same_name_with_another_uid_is_another_pod() {
    let mut world = World::with(vec![pod("a")]);
    world.step(&PodAnswer::Accepted);
    world.seen.pods = vec![PodFacts { uid: "other".to_owned(), ..pod("a") }];
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_208_mc_209_pods_with_volumes_go_one_by_one_highest_priority_first() {
    let mut world = World::with(vec![
        with_volume("low", 0, "pv-1"),
        with_volume("high", 100, "pv-2"),
        with_volume("mid", 10, "pv-3"),
    ]);
    let mut order = Vec::new();
    for _ in 0..3 {
        let step = world.step(&PodAnswer::Accepted);
        assert_eq!(step.actions.len(), 1);
        let (name, pv) = (
            step.actions[0].key.name.clone(),
            world.seen.pods.iter().find(|pod| pod.key == step.actions[0].key).unwrap().volumes[0].clone(),
        );
        assert!(world.step(&PodAnswer::Accepted).actions.is_empty(), "one at a time");
        world.gone(&name).place(&pv, false, true);
        order.push(name);
    }
    assert_eq!(order, ["high", "mid", "low"]);
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_210_the_next_pod_waits_until_the_volume_is_attached_elsewhere() {
    let mut world = World::with(vec![with_volume("a", 1, "pv-1"), with_volume("b", 0, "pv-2")]);
    world.step(&PodAnswer::Accepted);
    assert!(done(&world.gone("a").after(40).step(&PodAnswer::Accepted)).is_empty());
    assert!(done(&world.place("pv-1", false, false).step(&PodAnswer::Accepted)).is_empty());
    let moved = world.after(20).place("pv-1", false, true).step(&PodAnswer::Accepted);
    assert_eq!(done(&moved), [("b", How::Evict)]);
}

#[rstest]
#[case::mc_211_a_volume_that_is_wanted_but_never_attached(true, 90)]
#[case::mc_212_a_volume_that_nobody_wants(false, 10)]
fn reattachment_is_waited_for(#[case] wanted: bool, #[case] seconds: i64) {
    let mut world = World::with(vec![with_volume("a", 1, "pv-1")]);
    world.step(&PodAnswer::Accepted);
    world.gone("a").place("pv-1", false, false);
    world.seen.volumes.get_mut("pv-1").unwrap().wanted = wanted;
    world.step(&PodAnswer::Accepted);
    assert!(matches!(world.after(seconds - 1).step(&PodAnswer::Accepted).result, DrainResult::Running { .. }));
    assert_eq!(world.after(1).step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_213_mc_214_a_volume_that_does_not_detach_fails_this_attempt_and_the_next() {
    let mut world = World::with(vec![with_volume("a", 1, "pv-1")]);
    world.step(&PodAnswer::Accepted);
    world.gone("a").after(121).step(&PodAnswer::Accepted);
    assert!(matches!(world.step(&PodAnswer::Accepted).result, DrainResult::Failed(_)));
    world.seen.progress = world.seen.progress.next_attempt();
    let DrainResult::Failed(error) = world.step(&PodAnswer::Accepted).result else { panic!("forgotten") };
    assert_eq!(error.text, "volumes still attached to the node: pv-1");
    world.place("pv-1", false, false);
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn m_43_volumes_that_were_attached_before_this_process_began_are_waited_for() {
    let mut world = World::with(Vec::new());
    world.seen.left_attached = vec!["pv-1".to_owned()];
    world.place("pv-1", true, false);
    let DrainResult::Failed(error) = world.step(&PodAnswer::Accepted).result else { panic!("not waited for") };
    assert_eq!(error.text, "volumes still attached to the node: pv-1");
    world.seen.progress = world.seen.progress.next_attempt();
    world.seen.left_attached.clear();
    world.place("pv-1", false, false);
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn by_force_nothing_that_is_left_attached_is_waited_for() {
    let mut world = World::with(Vec::new());
    world.seen.limits.force = Force::Yes;
    world.seen.left_attached = vec!["pv-1".to_owned()];
    world.place("pv-1", true, false);
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_215_the_deadline_fails_the_attempt_and_names_the_pending_pods() {
    let mut world = World::with(vec![with_volume("a", 2, "pv-1"), with_volume("b", 1, "pv-2")]);
    world.seen.limits.deadline = at(60);
    world.step(&PodAnswer::Accepted);
    let DrainResult::Failed(error) = world.after(60).step(&PodAnswer::Accepted).result else { panic!("not failed") };
    assert_eq!(error.text, "deadline passed with 2 pods pending: ns/a, ns/b");
}

#[test]
fn mc_216_a_node_that_vanishes_ends_the_drain() {
    let mut world = World::with(vec![with_volume("a", 2, "pv-1"), pod("b")]);
    world.step(&PodAnswer::Accepted);
    world.seen.node = NodePresence::Gone;
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_224_by_force_all_pods_are_deleted_at_once_and_not_waited_for() {
    let mut world = World::with((0..30).map(|number| pod(&format!("p-{number:02}"))).collect());
    world.seen.limits.force = Force::Yes;
    world.seen.limits.parallel = 50;
    let step = world.step(&PodAnswer::Accepted);
    assert_eq!(step.actions.len(), 30);
    assert!(step.actions.iter().all(|action| action.how == How::DeleteNow));
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_226_a_pod_that_comes_later_is_not_part_of_the_attempt() {
    let mut world = World::with(vec![pod("a")]);
    world.step(&PodAnswer::Accepted);
    world.seen.pods = vec![pod("late")];
    assert_eq!(world.step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn mc_220_a_pod_whose_volume_is_not_known_is_only_waited_for_itself() {
    let mut world = World::with(vec![PodFacts { volumes: Vec::new(), ..with_volume("a", 0, "pv-1") }]);
    world.step(&PodAnswer::Accepted);
    assert_eq!(world.gone("a").step(&PodAnswer::Accepted).result, DrainResult::Drained);
}

#[test]
fn a_pod_that_waits_for_its_turn_does_not_make_the_drain_look_again_at_once() {
    let mut world = World::with(vec![with_volume("a", 1, "pv-1"), with_volume("b", 0, "pv-2")]);
    world.step(&PodAnswer::Accepted);
    let DrainResult::Running { wake, .. } = world.step(&PodAnswer::Accepted).result else { panic!("not running") };
    assert_eq!(wake, Duration::from_secs(5));
}

#[test]
fn mc_290_a_short_drain_with_a_volume_ends_in_its_time() {
    let mut world = World::with(vec![with_volume("a", 0, "pv-1")]);
    world.seen.limits.retries = 0;
    world.seen.limits.timeout = Duration::from_secs(10);
    world.seen.limits.deadline = at(10);
    assert_eq!(done(&world.step(&PodAnswer::Accepted)), [("a", How::Delete)]);
    let DrainResult::Failed(error) = world.after(10).step(&PodAnswer::Accepted).result else { panic!("goes on") };
    assert_eq!(error.text, "deadline passed with 1 pods pending: ns/a");
}

#[test]
fn mc_204_a_pod_with_two_budgets_is_reported_with_both() {
    let budget = BudgetState::Several(vec!["ns/a".to_owned(), "ns/b".to_owned()]);
    let mut world = World::with(vec![PodFacts { budget: budget.clone(), ..pod("a") }]);
    world.step(&PodAnswer::Failed("500".to_owned()));
    let DrainResult::Failed(error) = world.step(&PodAnswer::Accepted).result else { panic!("not failed") };
    assert!(error.text.contains("PodDisruptionBudgets ns/a and ns/b"), "{error:?}");
    let mut world = World::with(vec![PodFacts { budget, ..with_volume("db", 0, "pv-1") }]);
    world.seen.limits.retries = 2;
    world.step(&PodAnswer::Failed("500".to_owned()));
    world.after(20).step(&PodAnswer::Failed("500".to_owned()));
    let deleted = world.after(20).step(&PodAnswer::Accepted);
    assert_eq!(done(&deleted), [("db", How::Delete)], "with a volume it is retried, then deleted");
}

/// A step whose requests have no answer yet.
fn asked(world: &mut World) -> DrainStep {
    let step = drain_step(&world.seen);
    world.seen.progress = step.progress.clone();
    step
}

#[test]
fn a_pod_is_not_asked_twice_while_an_answer_is_out() {
    let mut world = World::with(vec![pod("a"), with_volume("db", 0, "pv-1"), with_volume("db-2", 0, "pv-2")]);
    assert_eq!(done(&asked(&mut world)), [("a", How::Evict), ("db", How::Evict)]);
    let DrainResult::Running { wake, .. } = asked(world.after(1)).result else { panic!("not running") };
    assert!(asked(&mut world).actions.is_empty());
    assert_eq!(wake, Duration::from_secs(5), "the answer wakes");
}

#[test]
fn no_more_pods_are_asked_at_once_than_allowed() {
    let mut world = World::with((0..5).map(|number| pod(&format!("p-{number}"))).collect());
    world.seen.limits.parallel = 2;
    assert_eq!(asked(&mut world).actions.len(), 2);
    let DrainResult::Running { wake, .. } = asked(&mut world).result else { panic!("not running") };
    assert!(asked(&mut world).actions.is_empty());
    assert_eq!(wake, Duration::from_secs(5));
}

#[test]
fn an_attempt_does_not_fail_while_an_answer_is_out() {
    let mut world = World::with(vec![pod("a")]);
    world.seen.limits.deadline = at(10);
    asked(&mut world);
    assert!(matches!(asked(world.after(11)).result, DrainResult::Running { .. }));
}

#[test]
fn pods_are_listed_only_when_their_volumes_have_names() {
    let mut world = World::with(vec![with_volume("a", 0, "pv-1")]);
    let unnamed = Unnamed { since: at(0), handle: "vol-1".to_owned(), failures: 0, next_try: None };
    world.seen.progress.unnamed.insert("pv-1".to_owned(), unnamed);
    let DrainResult::Running { waiting, .. } = asked(&mut world).result else { panic!("not running") };
    assert_eq!(waiting, Some(Waiting::VolumeNames));
    world.seen.progress.unnamed.clear();
    assert_eq!(done(&asked(&mut world)), [("a", How::Evict)]);
}

fn waits(step: &DrainStep) -> String {
    match &step.result {
        DrainResult::Running { waiting: Some(waiting), .. } => waiting.text(),
        other => panic!("waits for nobody: {other:?}"),
    }
}

#[test]
fn the_report_about_a_refusing_budget_stays_the_same() {
    let budget = BudgetState::One("ns/web".to_owned());
    let mut world = World::with(vec![PodFacts { budget, ..pod("a") }]);
    world.step(&PodAnswer::Refused);
    let blocked = waits(&world.step(&PodAnswer::Accepted));
    assert_eq!(
        blocked,
        "PodDisruptionBudget ns/web to allow the eviction of pod ns/a, since 2027-01-15T08:00:00Z, asked again every 20s"
    );
    world.after(30).step(&PodAnswer::Refused);
    assert_eq!(waits(&world.step(&PodAnswer::Accepted)), blocked);
}

#[test]
fn pods_and_volumes_are_reported_by_name_and_time() {
    let mut world = World::with(vec![with_volume("db", 0, "pv-1")]);
    world.step(&PodAnswer::Accepted);
    let told = waits(&world.step(&PodAnswer::Accepted));
    assert_eq!(told, "pod ns/db to terminate, since 2027-01-15T08:00:00Z, until 2027-01-15T08:02:30Z");
    let told = waits(&world.after(30).gone("db").step(&PodAnswer::Accepted));
    assert_eq!(
        told,
        "the VolumeAttachment of PersistentVolume pv-1 (pod ns/db) to be detached from the node, since \
         2027-01-15T08:00:00Z, until 2027-01-15T08:02:00Z"
    );
    let told = waits(&world.place("pv-1", false, false).step(&PodAnswer::Accepted));
    assert!(
        told.starts_with(
            "PersistentVolume pv-1 (pod ns/db) to be attached to another node, since 2027-01-15T08:00:30Z"
        ),
        "{told}"
    );
}
