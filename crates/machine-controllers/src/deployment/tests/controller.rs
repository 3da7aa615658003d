//! Both controllers together against an API server: what they write, and what happens when answers are lost.

use std::{sync::Arc, time::Duration};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    deployment::{DeploymentController, DeploymentDeps, DeploymentSettings, testing::deployment},
    set::{SetController, SetDeps, testing::now},
    snapshots::{MachineSnapshot, SetSnapshot},
    testing_api::{Fault, TestApi},
    views::ControlViews,
};
use controller_runtime::{
    clock::{SharedClock, TokioClock},
    events::{Pending, Recorder},
    gate::{Destruction, Gate},
    key::ObjectKey,
    objects::Objects,
    queue::Outcome,
    snapshot::{Snapshot, Whole},
};
use machine_api::v1alpha1::{MachineDeployment, StrategyType};

struct Cluster {
    api: TestApi,
    views: ControlViews,
    gate: Gate,
    deployments: DeploymentController,
    sets: SetController,
    events: mpsc::Receiver<Pending>,
}

const MD: &str = "machinedeployments/md";

impl Cluster {
    fn new(deployment: &MachineDeployment) -> Self {
        let clock: SharedClock = Arc::new(TokioClock::starting_at(now()));
        let api = TestApi::new(Arc::clone(&clock));
        let views = ControlViews::default();
        let gate = Gate::open_until(CancellationToken::new());
        let client = api.client();
        let (sender, events) = mpsc::channel(1000);
        let recorder = Recorder::new("test", sender);
        let machines: Objects<MachineSnapshot> =
            Objects::new(client.clone(), gate.clone(), Some(views.machines.clone()), |_| {});
        let sets: Objects<SetSnapshot> = Objects::new(client.clone(), gate.clone(), Some(views.sets.clone()), |_| {});
        let deployments = DeploymentController::new(DeploymentDeps {
            views: views.clone(),
            deployments: Objects::new(client, gate.clone(), Some(views.deployments.clone()), |_| {}),
            sets: sets.clone(),
            machines: machines.clone(),
            nodes: None,
            node_store: None,
            clock: clock.clone(),
            gate: gate.clone(),
            recorder: recorder.clone(),
            settings: DeploymentSettings::default(),
        });
        let sets = SetController::new(SetDeps {
            views: views.clone(),
            machines,
            sets,
            nodes: None,
            clock,
            gate: gate.clone(),
            recorder,
            name_seed: 1,
        });
        let cluster = Self { api, views, gate, deployments, sets, events };
        let stored = cluster.api.put(MD, serde_json::to_value(deployment).unwrap());
        cluster.views.deployments.apply(serde_json::from_value(stored).unwrap());
        cluster
    }

    /// Changes the deployment, as a user does.
    fn change_deployment(&self, change: impl FnOnce(&mut Value)) {
        let stored = self.api.edit(MD, change);
        self.views.deployments.apply(serde_json::from_value(stored).unwrap());
    }

    /// Brings the changes to the stores that the watch would bring after a lost answer.
    fn watch(&self) {
        for machine in self.api.all("machines") {
            self.views.machines.apply(serde_json::from_value(machine).unwrap());
        }
        for set in self.api.all("machinesets") {
            self.views.sets.apply(serde_json::from_value(set).unwrap());
        }
    }

    /// One pass over every object; returns whether no object asks for another pass at once.
    async fn pass(&self) -> bool {
        let mut settled = true;
        let mut note = |outcome: Outcome| match outcome {
            Outcome::Settled => {}
            Outcome::LookAgain(after, _) => settled &= !after.is_zero(),
            Outcome::Retry(_) | Outcome::Refused(_) => settled = false,
        };
        note(self.deployments.reconcile(ObjectKey::new("ns", "md")).await);
        for set in self.views.sets.snapshot() {
            note(self.sets.reconcile(set.key()).await);
        }
        settled
    }

    /// New machines become Running, deleted ones disappear; returns whether anything changed.
    fn machines_move(&self) -> bool {
        let mut moved = false;
        for machine in self.api.all("machines") {
            let name = machine["metadata"]["name"].as_str().unwrap();
            if machine["metadata"]["deletionTimestamp"].is_string() {
                let gone = self.api.set(&format!("machines/{name}"), "/metadata/finalizers", json!([]));
                self.views.machines.delete(&serde_json::from_value(gone).unwrap());
                moved = true;
            } else if machine["status"]["currentStatus"]["phase"] != "Running" {
                let status = json!({ "currentStatus": { "phase": "Running" } });
                let runs = self.api.set(&format!("machines/{name}"), "/status", status);
                self.views.machines.apply(serde_json::from_value(runs).unwrap());
                moved = true;
            }
        }
        for set in self.views.sets.snapshot() {
            if self.api.all("machinesets").iter().all(|known| known["metadata"]["name"] != set.name()) {
                self.views.sets.delete(set.whole_object());
                moved = true;
            }
        }
        moved
    }

    async fn settle(&self) {
        for _ in 0..200 {
            let settled = self.pass().await;
            if !self.machines_move() && settled {
                tokio::time::sleep(Duration::from_secs(2)).await;
                if self.pass().await {
                    return;
                }
            }
        }
        panic!("no rest: {:#?}", self.api.counts());
    }

    fn deployment(&self) -> Value {
        self.api.get(MD).unwrap()
    }

    fn status(&self) -> Value {
        self.deployment()["status"].take()
    }

    fn events(&mut self) -> Vec<String> {
        let mut reasons = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            reasons.push(format!("{}: {}", event.note.reason, event.note.message));
        }
        reasons
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_machines_cost_little_more_than_their_creation() {
    let mut cluster = Cluster::new(&deployment(1000, 1, 0).build());
    cluster.settle().await;
    let writes = cluster.api.counts();
    assert_eq!(writes["POST machines"], 1000);
    let others: usize = writes.iter().filter(|(what, _)| *what != "POST machines").map(|(_, count)| count).sum();
    assert!(others <= 50, "{writes:?}");
    let status = cluster.status();
    assert_eq!((&status["availableReplicas"], &status["updatedReplicas"]), (&json!(1000), &json!(1000)));
    assert_eq!(status["conditions"][1]["reason"], "NewMachineSetAvailable");
    assert_eq!(cluster.events().len(), 1);

    cluster.change_deployment(|deployment| deployment["spec"]["replicas"] = 0.into());
    cluster.settle().await;
    assert_eq!(cluster.api.counts()["DELETE machines"], 1000);
    assert_eq!(cluster.gate.passed()[&(Destruction::Machine, "replicas/surplus")], 1000);
    assert_eq!(cluster.status()["replicas"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn s_hash_12_a_rollout_leaves_the_objects_as_the_original_would() {
    let mut cluster = Cluster::new(&deployment(4, 1, 0).build());
    cluster.settle().await;
    cluster.change_deployment(|deployment| deployment["spec"]["template"]["spec"]["class"]["name"] = "other".into());
    cluster.settle().await;
    let sets = cluster.api.all("machinesets");
    assert_eq!(sets.len(), 2);
    for set in &sets {
        let annotations = &set["metadata"]["annotations"];
        let is_new = set["spec"]["template"]["spec"]["class"]["name"] == "other";
        assert_eq!(set["spec"]["replicas"], if is_new { 4 } else { 0 });
        assert_eq!(annotations["deployment.kubernetes.io/revision"], if is_new { "2" } else { "1" });
        assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "4");
        assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "5");
        assert_eq!(set["status"]["observedGeneration"], set["metadata"]["generation"]);
    }
    assert_eq!(cluster.deployment()["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let events = cluster.events();
    assert!(events.iter().any(|event| event.starts_with("ScalingMachineSet: Scaled down machine set")), "{events:?}");
}

#[rstest]
#[case::s_ms_28_the_answer_is_lost("POST machines", Fault::LoseAnswer)]
#[case::the_request_is_lost("POST machines", Fault::LoseRequest)]
#[case::the_answer_about_the_set_is_lost("POST machinesets", Fault::LoseAnswer)]
#[case::a_status_is_lost("PATCH machinesets/status", Fault::LoseAnswer)]
#[case::the_status_of_the_deployment_is_lost("PATCH machinedeployments/status", Fault::LoseRequest)]
#[tokio::test(start_paused = true)]
async fn nothing_is_made_twice_when_calls_get_lost(#[case] what: &str, #[case] fault: Fault) {
    let mut cluster = Cluster::new(&deployment(3, 1, 0).build());
    for _ in 0..3 {
        cluster.api.fail_next(what, fault);
    }
    for _ in 0..20 {
        cluster.pass().await;
        if what.contains("status") {
            cluster.watch();
        }
    }
    cluster.settle().await;
    assert_eq!((cluster.api.all("machines").len(), cluster.api.all("machinesets").len()), (3, 1));
    assert_eq!(cluster.gate.passed().len(), 0);
    let events = cluster.events();
    assert!(events.iter().all(|event| event.starts_with("ScalingMachineSet")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_set_whose_creation_got_no_answer_takes_room_although_the_template_has_changed_since() {
    // Seed 15500: two new sets both used the surge, because neither knew of the other.
    let cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.settle().await;
    let wants = |class: &str| {
        cluster.change_deployment(|stored| stored["spec"]["template"]["spec"]["class"]["name"] = class.into());
    };
    wants("second");
    cluster.api.fail_next("POST machinesets", Fault::LoseAnswer);
    cluster.deployments.reconcile(ObjectKey::new("ns", "md")).await;
    wants("third");
    for _ in 0..3 {
        cluster.deployments.reconcile(ObjectKey::new("ns", "md")).await;
        let wanted =
            cluster.api.all("machinesets").iter().filter_map(|set| set["spec"]["replicas"].as_i64()).sum::<i64>();
        assert!(wanted <= 4, "{wanted} machines are wanted, one more than 3 is allowed");
    }
    cluster.settle().await;
    // The second set lacked its machine when it was shrunk. The new set grows only after the controller has observed
    // that size.
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    cluster.settle().await;
    assert_eq!(cluster.api.all("machines").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_was_sized_without_an_answer_is_read_before_a_new_one_is_made() {
    // Seed 213408: an old set whose growth was not observed and the new set were both filled.
    let recreated = deployment(0, 0, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::Recreate);
    let cluster = Cluster::new(&recreated.build());
    cluster.settle().await;
    cluster.change_deployment(|stored| stored["spec"]["replicas"] = 3.into());
    cluster.api.fail_next("PATCH machinesets", Fault::LoseAnswer);
    cluster.deployments.reconcile(ObjectKey::new("ns", "md")).await;
    cluster.change_deployment(|stored| stored["spec"]["template"]["spec"]["class"]["name"] = "second".into());
    cluster.deployments.reconcile(ObjectKey::new("ns", "md")).await;
    let sets = cluster.api.all("machinesets");
    let wanted: i64 = sets.iter().filter_map(|set| set["spec"]["replicas"].as_i64()).sum();
    assert!(wanted <= 3, "{wanted} machines are wanted, 3 are allowed: {sets:#?}");
}

#[rstest]
#[case::a_refusal(Fault::REFUSE)]
#[case::a_webhook_that_the_server_cannot_reach(Fault::FAIL)]
#[tokio::test(start_paused = true)]
async fn s_ms_29_and_30_the_reason_for_a_missing_machine_is_reported_and_removed(#[case] fault: Fault) {
    let mut cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.api.fail_next("POST machines", fault);
    cluster.pass().await;
    let set = cluster.api.all("machinesets").remove(0);
    assert_eq!(set["status"]["machineSetCondition"][0]["reason"], "FailedCreate");
    assert_eq!(cluster.api.counts()["POST machines"], 1);
    assert!(cluster.events().iter().any(|event| event.starts_with("FailedCreate: Error creating: ")));
    cluster.settle().await;
    let set = cluster.api.all("machinesets").remove(0);
    assert_eq!(set["status"]["machineSetCondition"], Value::Null);
    assert_eq!(set["status"]["readyReplicas"], 3);
}

#[rstest]
#[case::a_refusal(Fault::REFUSE, "exceeded quota")]
#[case::a_webhook_that_the_server_cannot_reach(Fault::FAIL, "failed calling webhook")]
#[tokio::test(start_paused = true)]
async fn the_reason_for_a_missing_set_is_reported_and_removed(#[case] fault: Fault, #[case] says: &str) {
    let cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.api.fail_next("POST machinesets", fault);
    cluster.pass().await;
    let told = cluster.deployment()["status"]["conditions"].to_string();
    assert!(told.contains(says), "{told}");
    cluster.settle().await;
    let told = cluster.deployment()["status"]["conditions"].to_string();
    assert!(!told.contains(says), "{told}");
}

/// Cases in which a deployment cannot be reconciled: a right is missing, or a policy refuses.
#[rstest]
#[case::of_the_set("PATCH machinesets", "machinedeployment")]
#[case::of_its_status("PATCH machinedeployments/status", "status of machinedeployment")]
#[tokio::test(start_paused = true)]
async fn a_repeatedly_refused_write_is_reported_once(#[case] write: &str, #[case] named: &str) {
    let mut cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.settle().await;
    cluster.events();
    cluster.change_deployment(|stored| stored["spec"]["replicas"] = 4.into());
    let mut told = Vec::new();
    for pass in 0..5 {
        cluster.api.fail_next(write, Fault::REFUSE);
        let outcome = cluster.deployments.reconcile(ObjectKey::new("ns", "md")).await;
        assert!(matches!(&outcome, Outcome::Refused(text) if text.starts_with(named)), "{outcome:?} in pass {pass}");
        told.extend(cluster.events().into_iter().filter(|event| event.starts_with("WriteRefused: ")));
        assert_eq!(told.len(), usize::from(pass > 0), "{told:?} after pass {pass}");
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert!(told[0].contains("exceeded quota"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn s_md_04_a_deleted_deployment_takes_everything_along() {
    let cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.settle().await;
    cluster.api.delete(MD);
    cluster.views.deployments.apply(serde_json::from_value(cluster.deployment()).unwrap());
    for _ in 0..6 {
        cluster.pass().await;
        cluster.machines_move();
    }
    assert_eq!(cluster.api.all("machines"), Vec::<Value>::new());
    assert_eq!(cluster.api.all("machinesets"), Vec::<Value>::new());
    assert_eq!(cluster.api.get(MD), None);
}

#[tokio::test(start_paused = true)]
async fn s_own_10_a_machine_that_does_not_fit_any_more_is_released_and_replaced() {
    let cluster = Cluster::new(&deployment(2, 1, 0).build());
    cluster.settle().await;
    let name = cluster.api.all("machines")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let changed = cluster.api.edit(&format!("machines/{name}"), |machine| {
        machine["metadata"]["labels"]["set"] = "y".into();
    });
    cluster.views.machines.apply(serde_json::from_value(changed).unwrap());
    cluster.settle().await;
    let machines = cluster.api.all("machines");
    assert_eq!(machines.len(), 3);
    let released = machines.iter().find(|machine| machine["metadata"]["name"] == name.as_str()).unwrap();
    assert_eq!(released["metadata"]["ownerReferences"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn s_roll_28_a_conflict_while_an_old_set_shrinks_is_an_error_and_tried_again() {
    let cluster = Cluster::new(&deployment(3, 1, 0).build());
    cluster.settle().await;
    cluster.change_deployment(|deployment| deployment["spec"]["template"]["spec"]["class"]["name"] = "other".into());
    // Right before the old set shrinks, another client changes it, and the watch is late.
    let key = ObjectKey::new("ns", "md");
    let is_old = |set: &Value| set["spec"]["template"]["spec"]["class"]["name"] != "other";
    let old_set = || cluster.api.all("machinesets").into_iter().find(is_old).unwrap();
    let name = old_set()["metadata"]["name"].as_str().unwrap().to_owned();
    for _ in 0..3 {
        cluster.pass().await;
    }
    cluster.machines_move();
    cluster.api.edit(&format!("machinesets/{name}"), |set| {
        set["metadata"]["annotations"]["example.com/touched"] = "yes".into();
    });
    let outcome = cluster.deployments.reconcile(key.clone()).await;
    assert!(matches!(&outcome, Outcome::Retry(error) if error.contains("conflict")), "{outcome:?}");
    assert_eq!(old_set()["spec"]["replicas"], 3);
    cluster.watch();
    cluster.deployments.reconcile(key).await;
    assert_eq!(old_set()["spec"]["replicas"], 2);
}

#[tokio::test(start_paused = true)]
async fn s_rb_01_the_set_of_the_previous_revision_becomes_the_newest() {
    let mut cluster = Cluster::new(&deployment(2, 1, 0).build());
    cluster.settle().await;
    cluster.change_deployment(|deployment| deployment["spec"]["template"]["spec"]["class"]["name"] = "other".into());
    cluster.settle().await;
    cluster.change_deployment(|deployment| deployment["spec"]["rollbackTo"] = json!({}));
    // The pass that restores the template is followed by the passes that its write wakes.
    for _ in 0..3 {
        cluster.settle().await;
    }
    let deployment = cluster.deployment();
    assert_eq!(deployment["spec"].get("rollbackTo"), None);
    assert_eq!(deployment["spec"]["template"]["spec"]["class"]["name"], "new");
    assert_eq!(deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    let sets = cluster.api.all("machinesets");
    let first = sets.iter().find(|set| set["spec"]["template"]["spec"]["class"]["name"] == "new").unwrap();
    assert_eq!((sets.len(), &first["spec"]["replicas"]), (2, &json!(2)));
    let annotations = &first["metadata"]["annotations"];
    assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
    assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
    let events = cluster.events();
    assert!(
        events.contains(&"DeploymentRollback: Rolled back deployment \"md\" to revision 1".to_owned()),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn s_inpl_24_an_in_place_deployment_without_nodes_reports_it_and_keeps_its_machines() {
    use crate::deployment::testing::in_place;
    use machine_api::v1alpha1::OrchestrationType::Auto;
    let mut cluster = Cluster::new(&deployment(2, 1, 0).build());
    cluster.settle().await;
    let strategy = serde_json::to_value(in_place(0, 1, Auto)).unwrap();
    cluster.change_deployment(|deployment| {
        deployment["spec"]["strategy"] = strategy;
        deployment["spec"]["template"]["spec"]["class"]["name"] = "other".into();
    });
    cluster.settle().await;
    assert_eq!((cluster.api.all("machines").len(), cluster.api.all("machinesets").len()), (2, 1));
    assert_eq!(cluster.gate.passed().len(), 0);
    assert!(cluster.status()["conditions"].to_string().contains("StrategyNotSupported"));
    assert!(cluster.events().iter().any(|event| event.starts_with("StrategyNotSupported")));
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_fits_is_adopted_and_not_replaced() {
    let cluster = Cluster::new(&deployment(2, 1, 0).build());
    cluster.settle().await;
    let name = cluster.api.all("machines")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let orphan = cluster.api.edit(&format!("machines/{name}"), |machine| {
        machine["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "u"}]);
    });
    cluster.views.machines.apply(serde_json::from_value(orphan).unwrap());
    cluster.settle().await;
    let machines = cluster.api.all("machines");
    assert_eq!(machines.len(), 2);
    let adopted = machines.iter().find(|machine| machine["metadata"]["name"] == name.as_str()).unwrap();
    assert_eq!(adopted["metadata"]["ownerReferences"][0]["kind"], "Other");
    assert_eq!(adopted["metadata"]["ownerReferences"][1]["kind"], "MachineSet");
    assert_eq!(cluster.api.counts()["POST machines"], 2);
}
