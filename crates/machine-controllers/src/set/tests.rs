//! The set controller against an API server: its writes, and how it handles refusals and outdated stores.

use machine_api::v1alpha1::Machine;
use machine_api::v1alpha1::MachineSet;
use std::{sync::Arc, time::Duration};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{testing::*, *};
use crate::{
    testing_api::{Fault, TestApi},
    views::BY_CONTROLLER,
};
use controller_runtime::{
    clock::{SharedClock, TokioClock},
    events::Pending,
    refusals::Refusals,
    snapshot::Whole,
};
use machine_api::v1alpha1::{MachinePhase, OperationType};
use mcm_metrics::Metrics;

const SET: &str = "machinesets/set";

struct Cluster {
    api: TestApi,
    views: ControlViews,
    sets: SetController,
    metrics: Metrics,
    events: mpsc::Receiver<Pending>,
}

impl Cluster {
    fn new(set: Option<Building<MachineSet>>, machines: Vec<Building<Machine>>) -> Self {
        Self::with(set, machines, |objects| objects)
    }

    /// The same, with a layer around the client for machines.
    fn with(
        set: Option<Building<MachineSet>>,
        machines: Vec<Building<Machine>>,
        through: impl FnOnce(Objects<MachineSnapshot>) -> Objects<MachineSnapshot>,
    ) -> Self {
        let clock: SharedClock = Arc::new(TokioClock::starting_at(now()));
        let api = TestApi::new(Arc::clone(&clock));
        let views = ControlViews::default();
        let gate = Gate::open_until(CancellationToken::new());
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let (sender, events) = mpsc::channel(100);
        let client = api.client();
        let sets = SetController::new(SetDeps {
            views: views.clone(),
            machines: through(Objects::new(client.clone(), gate.clone(), Some(views.machines.clone()), |_| {})),
            sets: Objects::new(client, gate.clone(), Some(views.sets.clone()), |_| {}),
            nodes: None,
            clock,
            gate,
            recorder: Recorder::new(COMPONENT, sender),
            name_seed: 1,
        })
        .counting_stale_machines(metrics.machine.stale_machines.clone())
        .showing_back_offs(metrics.machine.set_back_off.clone());
        let cluster = Self { api, views, sets, metrics, events };
        if let Some(set) = set {
            let stored = cluster.api.put(SET, serde_json::to_value(set.build()).unwrap());
            cluster.views.sets.apply(serde_json::from_value(stored).unwrap());
        }
        for machine in machines {
            let machine = machine.build();
            let path = format!("machines/{}", machine.metadata.name.as_deref().unwrap());
            let stored = cluster.api.put(&path, serde_json::to_value(machine).unwrap());
            cluster.views.machines.apply(serde_json::from_value(stored).unwrap());
        }
        cluster
    }

    async fn pass(&self) -> Outcome {
        self.sets.reconcile(ObjectKey::new("ns", "set")).await
    }

    /// Brings all changes to the stores, as a watch does.
    fn watch(&self) {
        for set in self.api.all("machinesets") {
            self.views.sets.apply(serde_json::from_value(set).unwrap());
        }
    }

    fn writes(&self, what: &str) -> usize {
        self.api.counts().get(what).copied().unwrap_or(0)
    }

    fn set(&self) -> Value {
        self.api.get(SET).unwrap()
    }

    /// The machines of the set in the store.
    fn shown(&self) -> Vec<MachineSnapshot> {
        self.views.machines.by_index(BY_CONTROLLER, self.set()["metadata"]["uid"].as_str().unwrap())
    }
}

#[tokio::test]
async fn s_ms_19_a_set_without_type_metadata_is_as_good_as_any() {
    let cluster = Cluster::new(Some(set(3)), vec![]);
    let seen = serde_json::to_value(&**cluster.views.sets.snapshot()[0].whole_object()).unwrap();
    assert!(seen.get("kind").is_none(), "the types carry none");
    cluster.pass().await;
    assert_eq!(cluster.api.all("machines").len(), 3);
}

#[tokio::test]
async fn s_ms_21_a_set_that_does_not_exist_is_a_success() {
    let cluster = Cluster::new(None, vec![]);
    assert_eq!(cluster.pass().await, Outcome::Settled);
    assert!(cluster.api.writes().is_empty());
}

#[tokio::test]
async fn s_ms_26_a_refused_deletion_is_an_error_and_changes_nothing() {
    let cluster = Cluster::new(Some(set(0)), vec![running("a")]);
    cluster.api.fail_next("DELETE machines", Fault::REFUSE);
    let outcome = cluster.pass().await;
    assert!(matches!(&outcome, Outcome::Refused(text) if text.contains("exceeded quota")), "{outcome:?}");
    let machine = cluster.api.all("machines").remove(0);
    assert_eq!(machine["status"]["currentStatus"]["phase"], "Running");
    assert!(machine["metadata"]["deletionTimestamp"].is_null());
    let condition = &cluster.set()["status"]["machineSetCondition"][0];
    assert_eq!((&condition["reason"], &condition["status"]), (&json!("FailedDelete"), &json!("True")));
    assert!(condition["message"].as_str().unwrap().starts_with("Error deleting: "));
}

#[tokio::test]
async fn s_ms_27_failed_machines_are_deleted_together() {
    let cluster = Cluster::new(Some(set(2)), vec![failed("a"), failed("b")]);
    assert!(matches!(cluster.pass().await, Outcome::Settled | Outcome::LookAgain(..)));
    assert_eq!(cluster.writes("DELETE machines"), 2);
}

#[rstest]
#[case::the_answers_show_them(0, (3, 3))]
#[case::the_answers_are_lost_too(3, (1, 0))]
#[tokio::test]
async fn s_ms_37_machines_that_the_watch_has_not_shown_are_not_made_again(
    #[case] lost: usize,
    #[case] after_one_pass: (usize, usize),
) {
    let cluster = Cluster::new(Some(set(3)), vec![]);
    for _ in 0..lost {
        cluster.api.fail_next("POST machines", Fault::LoseAnswer);
    }
    // In this test no watch delivers machines.
    let there_and_shown = || (cluster.api.all("machines").len(), cluster.shown().len());
    cluster.pass().await;
    assert_eq!(there_and_shown(), after_one_pass);
    for _ in 0..5 {
        cluster.pass().await;
    }
    assert_eq!((there_and_shown(), cluster.writes("POST machines")), ((3, 3), 3));
}

#[rstest]
#[case::the_answer_is_lost(Fault::LoseAnswer)]
#[case::the_request_is_lost(Fault::LoseRequest)]
#[tokio::test]
async fn a_deletion_without_answer_is_looked_after_before_anything_else_is_decided(#[case] fault: Fault) {
    let cluster = Cluster::new(Some(set(1)), vec![running("a").created_at(-9), running("b").created_at(-8)]);
    cluster.api.fail_next("DELETE machines", fault);
    assert!(matches!(cluster.pass().await, Outcome::Retry(_)));
    // The store must not show a machine as available that is being deleted.
    let deleting = |machines: Vec<MachineSnapshot>| machines.iter().filter(|machine| machine.is_deleting()).count();
    cluster.pass().await;
    assert_eq!(deleting(cluster.shown()), 1);
    assert_eq!(
        cluster.api.all("machines").iter().filter(|m| m["metadata"]["deletionTimestamp"].is_string()).count(),
        1
    );
}

#[rstest]
#[case::somebody_wants_to_keep_it(failed("a"), 1, json!({ "node.machine.sapcloud.io/preserve": "now" }))]
#[case::somebody_gives_it_a_priority(running("a").created_at(-9), 1, json!({ "machinepriority.machine.sapcloud.io": "5" }))]
#[tokio::test]
async fn a_machine_that_has_changed_since_it_was_chosen_is_chosen_again(
    #[case] machine: Building<Machine>,
    #[case] wanted: i32,
    #[case] annotations: Value,
) {
    let others = if machine.0.status.current_status.phase == MachinePhase::Failed {
        vec![]
    } else {
        vec![running("b").created_at(-8)]
    };
    let cluster = Cluster::new(Some(set(wanted)), std::iter::once(machine).chain(others).collect());
    // The watch has not delivered the change yet.
    cluster.api.edit("machines/a", |stored| {
        stored["metadata"]["annotations"] = annotations;
    });
    let outcome = cluster.pass().await;
    assert!(matches!(outcome, Outcome::Retry(_)), "{outcome:?}");
    assert!(cluster.set()["status"]["machineSetCondition"].is_null(), "a change by somebody else is no failure");
    cluster.pass().await;
    let stored = cluster.api.all("machines");
    let of_a = stored.iter().find(|machine| machine["metadata"]["name"] == "a");
    assert!(of_a.is_some_and(|machine| machine["metadata"]["deletionTimestamp"].is_null()), "{of_a:?}");
}

#[tokio::test]
async fn s_msst_06_a_status_that_met_a_change_is_written_at_the_second_try() {
    let cluster = Cluster::new(Some(set(1)), vec![]);
    cluster.api.edit("machinesets/set", |stored| {
        stored["metadata"]["annotations"]["by"] = json!("somebody else");
    });
    cluster.api.fail_next("POST machines", Fault::REFUSE);
    assert!(matches!(cluster.pass().await, Outcome::Refused(_)));
    assert!(cluster.set()["status"]["machineSetCondition"].is_null());
    cluster.watch();
    cluster.api.fail_next("POST machines", Fault::REFUSE);
    cluster.pass().await;
    let stored = cluster.set();
    assert_eq!(stored["status"]["machineSetCondition"][0]["reason"], "FailedCreate");
    assert_eq!(stored["metadata"]["annotations"]["by"], "somebody else");
}

#[tokio::test]
async fn s_own_13_an_orphan_that_vanishes_is_no_error() {
    let cluster = Cluster::new(Some(set(1)), vec![running("a").no_owner()]);
    cluster.api.remove("machines/a");
    assert_eq!(cluster.pass().await, Outcome::LookAgain(Duration::ZERO, "machines were adopted"));
    cluster.pass().await;
    let machines = cluster.api.all("machines");
    assert_eq!(machines.len(), 1);
    assert_ne!(machines[0]["metadata"]["name"], "a");
}

#[tokio::test]
async fn s_own_14_machines_of_others_are_not_seen() {
    let other = controller_reference("MachineSet", "other", "uid-other");
    let foreign = running("a").with(|machine| machine.metadata.owner_references = Some(vec![other]));
    let cluster = Cluster::new(Some(set(0)), vec![foreign, running("b").no_owner().with(|m| m.metadata.labels = None)]);
    let seen = SetObservation::look_up(&cluster.views, None, &ObjectKey::new("ns", "set"), now()).unwrap();
    assert!(seen.machines.is_empty() && seen.claimed().is_empty());
    cluster.pass().await;
    assert_eq!(cluster.writes("DELETE machines") + cluster.writes("PATCH machines"), 0);
}

#[rstest]
#[case::s_met_05_after_a_health_check(failed("a"), OperationType::HealthCheck, 1)]
#[case::not_after_a_creation(failed("a"), OperationType::Create, 0)]
#[case::not_a_healthy_one(running("a"), OperationType::HealthCheck, 0)]
#[tokio::test]
async fn stale_machines_are_counted(
    #[case] machine: Building<Machine>,
    #[case] operation: OperationType,
    #[case] expected: u32,
) {
    let machine = machine.with(|machine| machine.status.last_operation.operation = operation);
    let cluster = Cluster::new(Some(set(0)), vec![machine]);
    cluster.pass().await;
    assert_eq!(cluster.writes("DELETE machines"), 1);
    let text = cluster.metrics.render().unwrap();
    let shown = text.lines().any(|line| line == format!("mcm_machine_stale_machines_total {expected}"));
    assert!(shown || expected == 0 && !text.contains("mcm_machine_stale_machines_total 1"), "{text}");
}

#[tokio::test]
async fn a_refused_annotation_costs_no_machine() {
    let set = set(1).with(|set| set.spec.auto_preserve_failed_machine_max = 1);
    let cluster = Cluster::new(Some(set), vec![failed("a")]);
    cluster.api.fail_next("PATCH machines", Fault::REFUSE);
    assert!(matches!(cluster.pass().await, Outcome::Refused(_)));
    cluster.pass().await;
    assert_eq!(cluster.writes("DELETE machines"), 0);
    let machine = cluster.api.all("machines").remove(0);
    assert_eq!(machine["status"]["currentStatus"]["phase"], serde_json::to_value(MachinePhase::Failed).unwrap());
    assert_eq!(machine["metadata"]["annotations"]["node.machine.sapcloud.io/preserve"], "auto-preserved");
}

#[tokio::test]
async fn a_machine_whose_patch_is_refused_holds_up_no_other() {
    let kind_of_another_time =
        |machine: Building<Machine>| machine.with(|m| m.spec.class.kind = "AWSMachineClass".to_owned());
    let machines = vec![kind_of_another_time(running("a")), kind_of_another_time(running("b"))];
    let cluster = Cluster::new(Some(set(3)), machines);
    cluster.api.fail_next("PATCH machines", Fault::REFUSE);
    let outcome = cluster.pass().await;
    assert!(matches!(&outcome, Outcome::Refused(text) if text.contains("exceeded quota")), "{outcome:?}");
    assert_eq!((cluster.writes("PATCH machines"), cluster.writes("POST machines")), (2, 1));
}

#[tokio::test]
async fn a_lasting_refusal_is_written_and_reported_once() {
    let mut cluster = Cluster::new(Some(set(3)), vec![]);
    for _ in 0..20 {
        cluster.api.fail_next("POST machines", Fault::REFUSE);
        assert!(matches!(cluster.pass().await, Outcome::Refused(_)));
    }
    assert_eq!((cluster.writes("POST machines"), cluster.writes("PATCH machinesets/status")), (20, 1));
    let mut told = 0;
    while cluster.events.try_recv().is_ok() {
        told += 1;
    }
    assert_eq!(told, 1);
    cluster.pass().await;
    assert!(cluster.set()["status"]["machineSetCondition"].is_null());
}

#[tokio::test]
async fn replacements_of_machines_that_never_join_wait_and_say_so() {
    let cluster = Cluster::new(Some(set(1)), vec![]);
    // The first two are replaced at once, the third waits.
    for number in 1..=3 {
        cluster.pass().await;
        assert_eq!(cluster.writes("POST machines"), number);
        let name = cluster.api.all("machines")[0]["metadata"]["name"].as_str().unwrap().to_owned();
        let lost = cluster.api.edit(&format!("machines/{name}"), |machine| {
            machine["status"] = json!({
                "currentStatus": { "phase": "Failed" }, "lastOperation": { "type": "Create", "state": "Failed" },
            });
        });
        cluster.views.machines.apply(serde_json::from_value(lost).unwrap());
        cluster.pass().await;
        let gone = cluster.api.remove(&format!("machines/{name}"));
        cluster.views.machines.delete(&serde_json::from_value(gone).unwrap());
    }
    let outcome = cluster.pass().await;
    assert!(matches!(outcome, Outcome::LookAgain(..)), "{outcome:?}");
    assert_eq!(cluster.writes("POST machines"), 3);
    let condition = cluster.set()["status"]["machineSetCondition"][0].clone();
    assert_eq!(condition["reason"], "MachinesNeverJoined");
    let shown = |cluster: &Cluster| cluster.metrics.render().unwrap().contains("mcm_machine_set_backoff_seconds{");
    assert!(shown(&cluster));
    // A user wants another size, so the wait ends.
    let changed = cluster.api.edit("machinesets/set", |set| {
        set["spec"]["replicas"] = json!(2);
    });
    cluster.views.sets.apply(serde_json::from_value(changed).unwrap());
    cluster.pass().await;
    assert_eq!(cluster.writes("POST machines"), 5);
    assert!(cluster.set()["status"]["machineSetCondition"].is_null());
    assert!(!shown(&cluster));
}

/// Each pass draws another name, and every change of a machine wakes its set.
#[tokio::test(start_paused = true)]
async fn machines_that_are_refused_for_hours_cost_few_tries() {
    let cluster = Cluster::with(Some(set(3)), vec![], |machines| machines.with_refusals(&Refusals::default()));
    for hour in 0..3 {
        let before = cluster.writes("POST machines");
        for _ in 0..720 {
            cluster.api.fail_next("POST machines", Fault::REFUSE);
            assert!(matches!(cluster.pass().await, Outcome::Refused(_)));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let tries = cluster.writes("POST machines") - before;
        assert!((10..=20).contains(&tries), "{tries} tries in hour {}", hour + 1);
    }
    assert_eq!(cluster.writes("PATCH machinesets/status"), 1);
}
