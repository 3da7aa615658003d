//! The guard against an API server.

use machine_api::v1alpha1::MachineSet;
use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{decide::Effect, observe::GuardedSet, *};
use crate::{
    deployment::testing::{deployment, machines_of, set_of_class},
    set::testing::{Building, controller_reference, machine, now, set},
    testing_api::{Fault, TestApi},
};
use controller_runtime::{
    clock::{SharedClock, TokioClock},
    events::{Pending, Recorder},
    gate::Gate,
    key::ObjectKey,
    snapshot::{Snapshot, Whole},
    store::Change,
};
use machine_api::{
    names::{annotation, label},
    v1alpha1::StrategyType,
};

const MD: &str = "machinedeployments/md";
const MARGINS: Margins = Margins { up: 2, down: 1 };

struct Cluster {
    api: TestApi,
    views: ControlViews,
    guard: OvershootController,
    events: mpsc::Receiver<Pending>,
}

impl Cluster {
    /// The deployment and its sets, each with its number of machines.
    fn new(deployment: &DeploymentSnapshot, sets: &[(MachineSet, usize)]) -> Self {
        let clock: SharedClock = Arc::new(TokioClock::starting_at(now()));
        let api = TestApi::new(Arc::clone(&clock));
        let views = ControlViews::default();
        let gate = Gate::open_until(CancellationToken::new());
        let (sender, events) = mpsc::channel(100);
        let client = api.client();
        let guard = OvershootController::new(OvershootDeps {
            views: views.clone(),
            sets: Objects::new(client.clone(), gate.clone(), Some(views.sets.clone()), |_| {}),
            deployments: Objects::new(client, gate, Some(views.deployments.clone()), |_| {}),
            clock,
            recorder: Recorder::new(COMPONENT, sender),
            margins: MARGINS,
            period: Duration::from_secs(60),
        });
        let cluster = Self { api, views, guard, events };
        let stored = cluster.api.put(MD, serde_json::to_value(deployment).unwrap());
        cluster.views.deployments.apply(serde_json::from_value(stored).unwrap());
        for (set, machines) in sets {
            let path = format!("machinesets/{}", set.metadata.name.as_deref().unwrap());
            let stored = cluster.api.put(&path, serde_json::to_value(set).unwrap());
            cluster.views.sets.apply(serde_json::from_value(stored).unwrap());
            cluster.hold(set, *machines);
        }
        cluster
    }

    /// Gives the set this number of machines.
    fn hold(&self, set: &MachineSet, machines: usize) {
        let stored = self.views.sets.get(&ObjectKey::of(set)).unwrap();
        let set = stored.whole_object();
        for known in self.views.machines.by_index(crate::views::BY_CONTROLLER, stored.uid()) {
            self.views.machines.delete(known.whole_object());
        }
        for machine in machines_of(set, machines, machines) {
            self.views.machines.apply(machine.to_object());
        }
    }

    fn change_deployment(&self, change: impl FnOnce(&mut Value)) {
        let stored = self.api.edit(MD, change);
        self.views.deployments.apply(serde_json::from_value(stored).unwrap());
    }

    fn change_set(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let stored = self.api.edit(&format!("machinesets/{name}"), change);
        self.views.sets.apply(serde_json::from_value(stored).unwrap());
    }

    async fn run(&self) -> Outcome {
        self.guard.reconcile(routing::key_of("ns")).await
    }

    fn frozen_sets(&self) -> Vec<String> {
        self.api.all("machinesets").iter().filter(|set| is_frozen(set, "machineSetCondition")).map(name_of).collect()
    }

    fn deployment(&self) -> Value {
        self.api.get(MD).unwrap()
    }

    fn events(&mut self) -> Vec<String> {
        let mut reasons = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            reasons.push(event.note.reason.to_owned());
        }
        reasons
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Label and condition must agree; a difference fails the test.
fn is_frozen(object: &Value, conditions: &str) -> bool {
    let by_label = object["metadata"]["labels"][label::FREEZE] == "True";
    let conditions = object["status"][conditions].as_array();
    let by_condition = conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Frozen"));
    assert_eq!(by_label, by_condition, "{object:#}");
    by_label
}

fn period() -> Outcome {
    Outcome::LookAgain(Duration::from_secs(60), "the period of the overshoot guard")
}

#[tokio::test]
async fn s_safe_03_too_many_machines_freeze_set_and_deployment_s_safe_04_and_fewer_thaw_them() {
    let set = set_of_class("md-new", "new", 3, 0);
    let mut cluster = Cluster::new(&deployment(3, 1, 0).snapshot(), &[(set.clone(), 6)]);
    assert_eq!(cluster.run().await, period());
    assert_eq!(cluster.frozen_sets(), ["md-new"]);
    assert!(is_frozen(&cluster.deployment(), "conditions"));
    let condition = &cluster.deployment()["status"]["conditions"][0];
    assert_eq!(condition["reason"], "OverShootingReplicaCount");
    assert_eq!(
        condition["message"],
        "The number of machines backing MachineSet: md-new is 6 >= 6 which is the Max-ScaleUp-Limit"
    );
    assert_eq!(cluster.events(), ["FrozeMachineSet"]);

    let writes = cluster.api.counts();
    cluster.run().await;
    assert_eq!(cluster.api.counts(), writes, "a frozen set is left alone");

    cluster.hold(&set, 5);
    cluster.run().await;
    assert_eq!(cluster.frozen_sets(), Vec::<String>::new());
    assert!(!is_frozen(&cluster.deployment(), "conditions"));
    assert_eq!(cluster.events(), ["UnfrozeMachineSet"]);
}

#[tokio::test]
async fn s_safe_05_a_deployment_follows_its_frozen_set_s_safe_06_and_its_thawed_one() {
    let set = Building(set_of_class("md-new", "new", 3, 0)).label(label::FREEZE, "True").build();
    let cluster = Cluster::new(&deployment(3, 1, 0).snapshot(), &[(set, 6)]);
    cluster.run().await;
    let stored = cluster.deployment();
    assert!(is_frozen(&stored, "conditions"));
    assert_eq!(stored["status"]["conditions"][0]["reason"], "MachineDeploymentStateSync");

    cluster.change_set("md-new", |set| {
        set["metadata"]["labels"][label::FREEZE].take();
        set["metadata"]["labels"].as_object_mut().unwrap().remove(label::FREEZE);
    });
    for machine in cluster.views.machines.snapshot() {
        cluster.views.machines.delete(machine.whole_object());
    }
    cluster.run().await;
    assert!(!is_frozen(&cluster.deployment(), "conditions"));
}

#[tokio::test]
async fn s_safe_07_a_wish_to_thaw_is_obeyed_and_taken_off() {
    let set = set_of_class("md-new", "new", 3, 0);
    let cluster = Cluster::new(&deployment(3, 1, 0).snapshot(), &[(set, 6)]);
    cluster.run().await;
    cluster.change_deployment(|stored| stored["metadata"]["annotations"][annotation::UNFREEZE] = json!("True"));
    // Nothing is lost halfway: the request stays until the sets are unfrozen.
    cluster.api.fail_next("PATCH machinesets", Fault::REFUSE);
    cluster.api.fail_next("PATCH machinedeployments/status", Fault::REFUSE);
    assert!(matches!(cluster.run().await, Outcome::Refused(_)));
    assert!(cluster.deployment()["metadata"]["annotations"][annotation::UNFREEZE].is_string());
    assert!(matches!(cluster.run().await, Outcome::LookAgain(..)));
    assert_eq!(cluster.frozen_sets(), Vec::<String>::new());
    assert!(!is_frozen(&cluster.deployment(), "conditions"));
    assert!(cluster.deployment()["metadata"]["annotations"][annotation::UNFREEZE].is_null());
    // There are still too many.
    cluster.run().await;
    assert_eq!(cluster.frozen_sets(), ["md-new"]);

    cluster.change_set("md-new", |stored| stored["metadata"]["annotations"][annotation::UNFREEZE] = json!("1"));
    cluster.run().await;
    assert_eq!(cluster.frozen_sets(), Vec::<String>::new());
    assert!(cluster.api.all("machinesets")[0]["metadata"]["annotations"][annotation::UNFREEZE].is_null());
}

fn foreign(name: &str, replicas: i32) -> MachineSet {
    Building(set_of_class(name, "new", replicas, 0)).no_owner().build()
}

#[tokio::test]
async fn s_safe_09_a_recreate_deployment_and_s_safe_10_two_full_sets_are_dealt_with_in_one_run() {
    let recreating = deployment(3, 1, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::Recreate).snapshot();
    let sets = [(set_of_class("md-new", "new", 3, 0), 5), (foreign("lone", 2), 6), (foreign("calm", 2), 5)];
    let cluster = Cluster::new(&recreating, &sets);
    // A failure with one set does not stop the other.
    cluster.api.fail_next("PATCH machinesets/status", Fault::REFUSE);
    assert!(matches!(cluster.run().await, Outcome::Refused(text) if text.contains("exceeded quota")));
    assert_eq!(cluster.frozen_sets().len(), 1);
    cluster.run().await;
    assert_eq!(cluster.frozen_sets(), ["lone", "md-new"]);
}

fn turns(sets: Vec<(MachineSet, i64, i64)>) -> Vec<&'static str> {
    let sets = sets.into_iter().map(|(set, machines, staying)| GuardedSet { set: set.into(), machines, staying });
    let seen = OvershootObservation {
        sets: sets.collect(),
        deployments: vec![deployment(3, 1, 0).snapshot()],
        ..OvershootObservation::of(MARGINS, now())
    };
    decide::decide(&seen).iter().map(Effect::rule).collect()
}

#[rstest]
#[case::a_rollout_with_slow_drains_is_none_of_our_business(&[("md-old", 3, 0), ("md-new", 4, 4)], &[])]
#[case::the_sum_over_the_sets_counts(&[("md-old", 3, 3), ("md-new", 3, 3)], &["overshooting/freeze"; 2])]
#[case::terminating_machines_of_one_set_count(&[("md-new", 6, 3)], &["overshooting/freeze"])]
fn sums_are_checked(#[case] sets: &[(&str, i64, i64)], #[case] expected: &[&str]) {
    let sets = sets.iter().map(|(name, machines, staying)| (set_of_class(name, "new", 3, 0), *machines, *staying));
    let found = turns(sets.collect());
    assert_eq!(found.iter().filter(|rule| !rule.ends_with("-deployment")).copied().collect::<Vec<_>>(), expected);
    assert_eq!(found.len() > expected.len(), !expected.is_empty(), "the deployment goes with its sets: {found:?}");
}

#[test]
fn a_set_that_is_being_deleted_is_left_alone() {
    let set = Building(set_of_class("md-new", "new", 3, 0)).deleting().build();
    assert_eq!(turns(vec![(set, 9, 9)]), Vec::<&str>::new());
}

#[test]
fn s_evt_28_a_new_machine_wakes_the_guard() {
    let added = Change { old: None, new: Some(machine("m").snapshot()) };
    assert_eq!(routing::after_machine(&added)[0].key, routing::key_of("ns"));
    let changed = Change { old: added.new.clone(), new: added.new.clone() };
    assert_eq!(routing::after_machine(&changed), []);
}

#[test]
fn a_wish_to_thaw_wakes_the_guard_once() {
    let before = set(1).snapshot();
    let after = set(1).annotation(annotation::UNFREEZE, "True").snapshot();
    let change = Change { old: Some(before), new: Some(after.clone()) };
    assert_eq!(routing::after_set(&change).len(), 1);
    assert_eq!(routing::after_set(&Change { old: Some(after.clone()), new: Some(after) }), []);
}

#[tokio::test]
async fn machines_count_by_the_uid_of_their_owner() {
    let set = set_of_class("md-new", "new", 3, 0);
    let cluster = Cluster::new(&deployment(3, 1, 0).snapshot(), &[(set.clone(), 4)]);
    for machine in machines_of(&set, 9, 9).into_iter().skip(4) {
        let mut namesake = machine.to_object();
        namesake.metadata.owner_references = Some(vec![controller_reference("MachineSet", "md-new", "uid-earlier")]);
        cluster.views.machines.apply(namesake);
    }
    cluster.run().await;
    assert_eq!(cluster.frozen_sets(), Vec::<String>::new());
}
