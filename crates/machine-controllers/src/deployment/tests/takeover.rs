//! Takes over a fleet of the Go original without a rollout; only statuses change.
//!
//! Scenario S-HASH-12, decisions.md 3. The objects are in `tests/fixtures/go`.

use std::sync::Arc;

use rstest::rstest;
use serde::de::DeserializeOwned;

use crate::{
    deployment::{
        decide::decide,
        observe::DeploymentObservation,
        patches,
        plan::Effect,
        status::{Report, decide_status},
    },
    set::{self, observe::SetObservation, testing::now},
    snapshots::NodeSnapshot,
    views::{ControlViews, node_store},
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Store};

fn load<S: Snapshot<Object: DeserializeOwned>>(store: &Store<S>, kind: &str) {
    let path = format!("{}/../../tests/fixtures/go/{kind}.json", env!("CARGO_MANIFEST_DIR"));
    let list: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for item in list["items"].as_array().unwrap() {
        store.apply(serde_json::from_value(item.clone()).unwrap());
    }
}

fn fleet() -> (ControlViews, Arc<Store<NodeSnapshot>>) {
    let views = ControlViews::default();
    let nodes = node_store();
    load(&views.machines, "machines");
    load(&views.sets, "machinesets");
    load(&views.deployments, "machinedeployments");
    load(&nodes, "nodes");
    (views, nodes)
}

#[rstest]
#[case::rolled_once("rolling")]
#[case::paused_in_the_middle_of_a_rollout("half")]
#[case::recreated("recreate")]
#[case::waiting_for_an_update_in_place("inplace")]
#[case::scaled("surge")]
fn s_hash_12_a_deployment_of_the_original_is_left_as_it_is(#[case] name: &str) {
    let (views, nodes) = fleet();
    let key = ObjectKey::new("default", name);
    let seen = DeploymentObservation::look_up(&views, Some(&nodes), &key, now()).unwrap();
    assert_eq!(decide(&seen).steps, []);
    for step in decide_status(&seen, &Report::default()).steps {
        assert!(matches!(step.effect, Effect::WriteStatus(_) | Effect::Tell(_)), "{:?}", step.effect);
    }
}

#[test]
fn s_hash_12_the_sets_of_the_original_are_left_as_they_are() {
    let (views, nodes) = fleet();
    let sets = views.sets.snapshot();
    assert_eq!(sets.len(), 9);
    for set in sets {
        let seen = SetObservation::look_up(&views, Some(&nodes), &set.key(), now()).unwrap();
        assert_eq!(set::decide::decide(&seen), set::plan::Plan::default());
    }
}

#[test]
fn nothing_but_the_selector_is_new_in_the_statuses_of_a_fleet_at_rest() {
    let (views, nodes) = fleet();
    for name in ["rolling", "recreate", "surge"] {
        let key = ObjectKey::new("default", name);
        let seen = DeploymentObservation::look_up(&views, Some(&nodes), &key, now()).unwrap();
        let [step] = decide_status(&seen, &Report::default()).steps.try_into().unwrap();
        let Some((_, controller_runtime::objects::Patch::Merge(patch))) =
            patches::of_deployment(&step.effect, &seen.deployment)
        else {
            panic!("no merge patch")
        };
        assert_eq!(patch["status"], serde_json::json!({ "selector": format!("pool={name}") }));
    }
}
