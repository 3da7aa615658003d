use serde_json::json;

use super::{
    super::testing::{self, World},
    *,
};
use crate::extension::testing::cells;

fn failing(code: &str, class: &str, seconds_ago: i64, message: &str) -> Value {
    json!({
        "spec": { "class": { "name": class } },
        "status": {
            "currentStatus": { "phase": "CrashLoopBackOff" },
            "lastOperation": { "state": "Failed", "type": "Create", "errorCode": code, "description": message,
                               "lastUpdateTime": testing::ago(seconds_ago) },
        },
    })
}

async fn summary(world: &World) -> Value {
    let view = FleetView::new(&world.sources);
    testing::conforming(&view, &view.get("ns", "ns", Freshness::Any).await.unwrap().object)
}

#[tokio::test(start_paused = true)]
async fn machines_are_counted_by_phase_and_stage() {
    let world = World::synced();
    let joined =
        json!({ "metadata": { "labels": { "node": "n" } }, "status": { "currentStatus": { "phase": "Running" } } });
    world.add_machine(testing::machine("a", joined));
    world.add_machine(testing::machine("b", json!({})));
    world.add_machine(testing::machine("c", failing("ResourceExhausted", "c", 60, "none left")));
    world.add_node("n", "a");
    let seen = summary(&world).await;
    assert_eq!(
        seen["machines"],
        json!({
            "total": 3, "byPhase": { "Running": 1, "Creating": 1, "CrashLoopBackOff": 1 },
            "byStage": { "Run": 1, "Create": 2 }, "notReadyNodes": 1, "withoutNode": 2,
        })
    );
    assert_eq!(seen["frozen"], json!({ "value": false }));
    let row = FleetView::new(&world.sources).summary().await.unwrap();
    assert_eq!(cells(&row), json!(["ns", 3, 1, 0, 0, 0, null, false]), "zero is shown as a number");
}

#[tokio::test(start_paused = true)]
async fn failures_are_grouped_by_code_the_most_frequent_first() {
    let world = World::synced();
    world.add_machine(testing::machine("a", failing("Internal", "c", 10, "x")));
    world.add_machine(testing::machine("b", failing("ResourceExhausted", "c", 60, "old")));
    world.add_machine(testing::machine("d", failing("ResourceExhausted", "other", 30, &"new".repeat(100))));
    let failures = summary(&world).await["failures"].clone();
    assert_eq!(failures[0]["errorCode"], "ResourceExhausted");
    assert_eq!((failures[0]["count"].as_i64(), &failures[0]["since"]), (Some(2), &testing::ago(60)));
    assert_eq!(failures[0]["classes"], json!(["c", "other"]));
    let message = failures[0]["lastMessage"].as_str().unwrap();
    assert!(message.starts_with("newnew") && message.len() == 200, "{message}");
    assert_eq!(failures[1]["errorCode"], "Internal");
}

#[tokio::test(start_paused = true)]
async fn capacity_is_that_of_classes_and_nodes() {
    let world = World::synced();
    world.add_class("c", json!({
        "metadata": { "resourceVersion": "2" },
        "nodeTemplate": { "capacity": { "cpu": "2", "memory": "4Gi" }, "instanceType": "t", "region": "r", "zone": "z" },
    }));
    world.add_deployment("d", 3);
    let mut joined = testing::machine("a", json!({ "metadata": { "labels": { "node": "n" } } }));
    world.add_machine(joined.clone());
    joined.metadata.name = Some("b".to_owned());
    joined.metadata.uid = Some("b".to_owned());
    world.add_machine(joined);
    world.add_node("n", "a");
    let seen = summary(&world).await;
    assert_eq!(seen["capacity"]["declared"], json!({ "cpu": "6", "memory": "12Gi" }));
    assert_eq!(seen["capacity"]["nodes"], json!({ "cpu": "4", "memory": "8Gi" }));
    assert_eq!(seen["deployments"][0]["zone"], json!(["z"]));
    assert_eq!(seen["deployments"][0]["progressing"], "Unknown");
}

#[tokio::test(start_paused = true)]
async fn there_is_one_summary_and_it_has_the_namespace_s_name() {
    let world = World::synced();
    let view = FleetView::new(&world.sources);
    assert_eq!(view.list(None, Freshness::Any).await.unwrap().rows.len(), 1);
    assert_eq!(view.list(Some("other"), Freshness::Any).await.unwrap().rows.len(), 0);
    assert_eq!(view.get("ns", "other", Freshness::Any).await.unwrap_err().code, 404);
    let cold = FleetView::new(&World::cold().sources);
    assert_eq!(cold.get("ns", "ns", Freshness::Any).await.unwrap_err().code, 503);
}
