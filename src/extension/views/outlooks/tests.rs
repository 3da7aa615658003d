use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::{
    super::testing::{self, World},
    *,
};
use crate::extension::{
    blocking::AT_ONCE,
    rows::{rendered, selected},
    testing::whole,
};
use kube_protocol::{
    selectors::{FieldSelector, LabelSelector},
    table::Form,
};
use kube_values::duration::GoDuration;
use machine_api::v1alpha1::Machine;

fn machine(patch: Value) -> Machine {
    testing::machine("m", patch)
}

async fn outlook(world: &World, name: &str) -> Value {
    let view = OutlookView::new(&world.sources);
    testing::conforming(&view, &view.get("ns", name, Freshness::Recent).await.unwrap().object)
}

fn in_phase(phase: &str, seconds_ago: i64) -> Value {
    json!({
        "metadata": { "labels": { "node": "n" }, "annotations": { "machinepriority.machine.sapcloud.io": "3" } },
        "spec": { "providerID": "cloud:///m" },
        "status": { "currentStatus": { "phase": phase, "lastUpdateTime": testing::ago(seconds_ago) } },
    })
}

#[rstest]
#[case::a_new_machine(json!({}), "Create", "GetVmStatus", &["creation"])]
#[case::pending(in_phase("Pending", 60), "Join", "", &["creation"])]
#[case::failed(in_phase("Failed", 60), "Fail", "", &[])]
#[case::deleted(
    json!({ "metadata": { "deletionTimestamp": testing::ago(60) } }), "GetVmStatus", "PatchMachineStatus", &["drain"])]
#[case::preserved(
    json!({ "metadata": { "labels": { "node": "n" } },
            "status": { "currentStatus": { "phase": "Failed", "preserveExpiryTime": testing::ago(-600) } } }),
    "Preserved", "", &["preserve"])]
#[tokio::test(start_paused = true)]
async fn a_machine_has_stage_effect_and_deadlines(
    #[case] patch: Value,
    #[case] stage: &str,
    #[case] next: &str,
    #[case] deadlines: &[&str],
) {
    let world = World::synced();
    world.add_machine(machine(patch));
    let seen = outlook(&world, "m").await;
    let names: Vec<&str> =
        seen["deadlines"].as_array().into_iter().flatten().filter_map(|deadline| deadline["name"].as_str()).collect();
    assert_eq!((seen["stage"].as_str(), names.as_slice()), (Some(stage), deadlines), "{seen:#}");
    if !next.is_empty() {
        assert_eq!(seen["nextEffects"][0]["effect"], next, "{seen:#}");
    }
    assert_eq!(seen["metadata"]["uid"], "m-uid");
    assert_eq!(seen["apiVersion"], "views.machine.sapcloud.io/v1alpha1");
    assert_eq!(seen["status"]["computedBy"], "standby");
}

#[tokio::test(start_paused = true)]
async fn a_machine_of_a_missing_class_names_the_reason_of_its_wait() {
    let world = World::synced();
    world.add_machine(machine(json!({ "spec": { "class": { "name": "nowhere" } } })));
    let seen = outlook(&world, "m").await;
    let blocker = &seen["blockers"][0];
    assert_eq!(blocker["reason"], "ClassNotUsable", "{seen:#}");
    assert!(blocker["message"].as_str().unwrap().contains("MachineClass \"nowhere\" not found"), "{blocker}");
    assert!(blocker["resolvedBy"].as_str().unwrap().starts_with("an attempt succeeds"), "{blocker}");
    assert_eq!(blocker["since"], testing::ago(120), "as old as the machine");
}

#[tokio::test(start_paused = true)]
async fn a_standby_counts_from_the_machine_s_own_times_and_time_goes_on() {
    let world = World::synced();
    world.add_machine(machine(in_phase("Pending", 60)));
    let first = outlook(&world, "m").await["deadlines"][0].clone();
    assert_eq!(first["remaining"], "18m0s", "twenty minutes from the creation two minutes ago");
    tokio::time::advance(Duration::from_secs(30)).await;
    let second = outlook(&world, "m").await["deadlines"][0].clone();
    assert_eq!((second["remaining"].as_str(), &second["at"]), (Some("17m30s"), &first["at"]));
}

#[tokio::test(start_paused = true)]
async fn the_owners_are_those_of_the_uid() {
    let world = World::synced();
    world.add_set("s", 3, Some("d"));
    world.add_deployment("d", 4);
    world.add_machine(machine(json!({ "metadata": { "ownerReferences": [testing::owner("MachineSet", "s")] } })));
    let expected = json!([
        { "kind": "MachineSet", "name": "s", "desired": 3 },
        { "kind": "MachineDeployment", "name": "d", "desired": 4 },
    ]);
    assert_eq!(outlook(&world, "m").await["owners"], expected);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_answered_from_a_cold_cache_and_lists_have_their_namespace_alone() {
    let world = World::cold();
    let view = OutlookView::new(&world.sources);
    let refused = view.list(None, Freshness::Any).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after), (503, Some(1)));

    let world = World::synced();
    world.add_machine(machine(json!({})));
    let view = OutlookView::new(&world.sources);
    assert_eq!(view.list(Some("other"), Freshness::Recent).await.unwrap().rows.len(), 0);
    assert_eq!(view.list(None, Freshness::Recent).await.unwrap().rows.len(), 1);
    assert_eq!(view.get("other", "m", Freshness::Recent).await.unwrap_err().code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_machine_behind_a_budget_names_it() {
    let message = "being deleted since 2027-01-15T08:00:00Z; waiting for PodDisruptionBudget ns/web to allow the eviction of pod \
                ns/web-1, since 2027-01-15T08:00:10Z; asked again every 20s";
    let patch = json!({
        "metadata": { "deletionTimestamp": testing::ago(60), "labels": { "node": "n" } },
        "status": {
            "currentStatus": { "phase": "Terminating" },
            "lastOperation": { "description": "1 of 2 pods left. Initiate node drain", "type": "Delete" },
            "machineConditions": [{
                "type": "Progressing", "status": "True", "reason": "DrainBlocked", "message": message,
                "lastTransitionTime": testing::ago(50),
            }],
        },
    });
    let world = World::synced();
    world.add_machine(machine(patch));
    world.add_node("n", "m");
    let seen = outlook(&world, "m").await;
    assert_eq!(seen["stage"], "Drain");
    assert_eq!(seen["blockers"][0]["reason"], "DrainBlocked");
    assert_eq!(seen["deadlines"][0]["name"], "drain");
    assert_eq!(seen["deadlines"][0]["at"], testing::ago(60 - 2 * 3600));
}

#[tokio::test]
async fn a_long_list_is_complete() {
    let world = World::synced();
    for number in 0..=3 * AT_ONCE {
        world.add_machine(testing::machine(&format!("m-{number:04}"), json!({})));
    }
    let rows = OutlookView::new(&world.sources).list(Some("ns"), Freshness::Recent).await.unwrap().rows;
    let objects = rendered(&rows, Form::Objects, testing::dawn()).await.unwrap();
    let names: Vec<&str> = objects.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), 3 * AT_ONCE + 1);
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len(), "each once");
    assert!(objects.iter().all(|object| object["stage"] == "Create"));
}

#[tokio::test(start_paused = true)]
async fn a_later_page_shows_the_moment_of_the_first() {
    let world = World::synced();
    world.add_set("s", 3, Some("d"));
    world.add_deployment("d", 4);
    let owned = json!({ "metadata": { "ownerReferences": [testing::owner("MachineSet", "s")] } });
    for name in ["m-1", "m-2"] {
        world.add_machine(testing::machine(name, owned.clone()));
    }
    let view = OutlookView::new(&world.sources);
    let then = outlook(&world, "m-2").await;
    let rows = view.list(Some("ns"), Freshness::Recent).await.unwrap().rows;
    // All objects change that the row was made from.
    tokio::time::advance(Duration::from_secs(30)).await;
    world.sources.views.machines.apply(testing::machine(
        "m-2",
        json!({ "metadata": { "resourceVersion": "9" }, "status": { "currentStatus": { "phase": "Running" } } }),
    ));
    world.add_class("c", json!({ "metadata": { "resourceVersion": "9" }, "provider": "another" }));
    world.put_set("s", &json!({ "metadata": { "resourceVersion": "9" }, "spec": { "replicas": 7 } }));
    assert_eq!(whole(&rows[1]), then);
    let now = outlook(&world, "m-2").await;
    assert_eq!((&now["phase"], &now["owners"]), (&json!("Running"), &Value::Null), "{now:#}");
}

#[rstest]
#[case::all("", "", &["deleted", "joining", "new"])]
#[case::by_stage("stage=Join", "", &["joining"])]
#[case::by_phase("phase!=Pending", "", &["deleted", "new"])]
#[case::of_a_deletion("stage=GetVmStatus", "", &["deleted"])]
#[case::by_label("", "node=n", &["joining"])]
#[case::by_name("metadata.name=new", "", &["new"])]
#[tokio::test(start_paused = true)]
async fn selectors_select_by_labels_and_fields(#[case] fields: &str, #[case] labels: &str, #[case] expected: &[&str]) {
    let world = World::synced();
    world.add_machine(testing::machine("new", json!({})));
    world.add_machine(testing::machine("joining", in_phase("Pending", 60)));
    world.add_machine(testing::machine("deleted", json!({ "metadata": { "deletionTimestamp": testing::ago(60) } })));
    let view = OutlookView::new(&world.sources);
    let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
    let rows = view.list(None, Freshness::Recent).await.unwrap().rows;
    let rows = selected(rows, &labels, &fields).await.unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.metadata().name).collect();
    assert_eq!(names, expected);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_another_process_is_shown_unchanged_and_not_parsed() {
    let message =
        "being deleted since 2027-01-15T08:00:00Z; waiting for its node to be drained: no; ends when pigs fly";
    let patch = json!({
        "metadata": { "deletionTimestamp": testing::ago(60), "labels": { "node": "n" } },
        "status": {
            "currentStatus": { "phase": "Terminating" },
            "lastOperation": { "description": "Initiate node drain", "type": "Delete" },
            "machineConditions": [{
                "type": "Progressing", "status": "True", "reason": "DrainFailed", "message": message,
                "lastTransitionTime": testing::ago(50),
            }],
        },
    });
    let world = World::synced();
    world.add_machine(machine(patch));
    world.add_node("n", "m");
    let blocker = outlook(&world, "m").await["blockers"][0].clone();
    let expected = json!({ "reason": "DrainFailed", "message": message, "since": testing::ago(50) });
    assert_eq!(blocker, expected);
}

#[test]
fn the_cells_of_deadline_and_next_effect() {
    let deadline = |name, second: i64| DeadlineView {
        name,
        at: testing::ago(-second).as_str().unwrap().to_owned(),
        remaining: GoDuration::from_secs(second),
        on_expiry: "",
    };
    let outlook =
        MachineOutlook { deadlines: vec![deadline("health", 2), deadline("creation", 1)], ..MachineOutlook::default() };
    assert_eq!(deadline_cell(&outlook), "creation in 1s");
    assert_eq!(next_cell(&outlook), Value::Null);
}
