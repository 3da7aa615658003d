use serde_json::json;

use super::{
    super::testing::{self, World},
    *,
};

const HASH: &str = "machine-template-hash";

fn template(class: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": "d" } },
        "spec": { "class": { "kind": "MachineClass", "name": class } },
    })
}

fn deployment_spec(replicas: i32) -> Value {
    json!({
        "replicas": replicas,
        "selector": { "matchLabels": { "app": "d" } },
        "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
        "template": template("c"),
    })
}

/// A deployment of three running machines.
fn world() -> World {
    let world = World::synced();
    world.add_class("new", json!({}));
    let annotations = json!({ "deployment.kubernetes.io/revision": "1" });
    let finalizers = json!(["machine.sapcloud.io/machine-controller-manager"]);
    world.put_deployment(
        "d",
        &json!({ "metadata": { "annotations": annotations, "finalizers": finalizers }, "spec": deployment_spec(3) }),
    );
    let mut of_set = template("c");
    of_set["metadata"]["labels"][HASH] = json!("1");
    let labels = json!({ "app": "d", HASH: "1" });
    world.put_set(
        "d-1",
        &json!({
            "metadata": { "labels": labels, "annotations": annotations, "finalizers": finalizers,
                          "ownerReferences": [testing::owner("MachineDeployment", "d")] },
            "spec": { "replicas": 3, "selector": { "matchLabels": labels }, "template": of_set },
            "status": { "replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1 },
        }),
    );
    for name in ["a", "b", "c"] {
        world.add_machine(testing::machine(
            name,
            json!({
                "metadata": { "labels": { "app": "d", HASH: "1", "node": name },
                              "ownerReferences": [testing::owner("MachineSet", "d-1")] },
                "spec": { "providerID": format!("cloud:///{name}") },
                "status": { "currentStatus": { "phase": "Running", "lastUpdateTime": testing::ago(60) } },
            }),
        ));
        world.add_node(name, name);
    }
    world
}

async fn create(world: &World, spec: Value) -> Result<Value, ApiStatus> {
    let review = json!({ "metadata": { "name": "what-if" }, "spec": spec });
    RolloutPlanView::new(&world.sources).create("ns", review).await.map(|answer| answer.object)
}

#[tokio::test]
async fn another_class_in_the_template_replaces_all_machines() {
    let world = world();
    let spec = json!({ "machineDeploymentName": "d", "proposed": { "template": template("new") } });
    let plan = create(&world, spec.clone()).await.unwrap();
    let status = &plan["status"];
    assert_eq!(status["admission"], json!({ "allowed": true }), "{plan:#}");
    assert_eq!(
        (
            status["changesTemplate"].as_bool(),
            status["toReplace"].as_array().map(Vec::len),
            status["toCreate"].as_i64()
        ),
        (Some(true), Some(3), Some(3)),
        "{plan:#}"
    );
    assert_eq!((status["toKeep"].as_i64(), status["minAvailable"].as_i64()), (Some(0), Some(3)));
    assert_eq!(status["toReplace"][0]["reason"], "OldTemplate");
    assert_eq!(
        (status["toReplace"][2]["order"].as_i64(), &status["newMachineSet"]["exists"]),
        (Some(3), &json!(false))
    );
    assert_eq!((&status["maxSurge"], &status["maxUnavailable"]), (&json!(1), &json!(0)));
    assert_eq!(status.get("stuck"), None, "{plan:#}");
    assert_eq!(plan["metadata"]["name"], "what-if");
    assert_eq!(world.sources.views.sets.len(), 1, "nothing is stored");

    let mut again = create(&world, spec).await.unwrap()["status"].clone();
    let mut first = status.clone();
    again["observedAt"].take();
    first["observedAt"].take();
    assert_eq!(first.to_string(), again.to_string(), "xa_148: byte by byte");
}

#[tokio::test]
async fn what_is_left_of_a_finished_rollout_is_nothing() {
    let plan = RolloutPlanView::new(&world().sources).get("ns", "d", Freshness::Recent).await.unwrap().object;
    let status = &plan["status"];
    assert_eq!(
        (&status["steps"], &status["toKeep"], &status["changesTemplate"]),
        (&json!([]), &json!(3), &json!(false))
    );
    assert_eq!(status["newMachineSet"], json!({ "name": "d-1", "exists": true }));
    assert_eq!(status["newHash"], "1");
}

#[tokio::test]
async fn fewer_machines_are_a_matter_of_scale() {
    let plan = create(&world(), json!({ "machineDeploymentName": "d", "proposed": { "replicas": 1 } })).await.unwrap();
    let reasons: Vec<&str> =
        plan["status"]["toReplace"].as_array().unwrap().iter().filter_map(|one| one["reason"].as_str()).collect();
    assert_eq!((reasons, plan["status"]["toKeep"].as_i64()), (vec!["Scale", "Scale"], Some(1)), "{plan:#}");
}

#[tokio::test]
async fn what_admission_denies_is_an_answer() {
    let spec = json!({ "machineDeploymentName": "d", "proposed": { "replicas": -1 } });
    let plan = create(&world(), spec).await.unwrap();
    let admission = &plan["status"]["admission"];
    assert_eq!(admission["allowed"], false);
    assert_eq!(admission["errors"][0]["field"], "spec.replicas", "{plan:#}");
    assert_eq!(plan["status"]["steps"], json!([]));
}

#[tokio::test]
async fn a_review_that_can_t_be_used_is_refused() {
    for (spec, code) in [
        (json!({}), 422),
        (json!({ "machineDeploymentName": "nobody" }), 422),
        (json!({ "machineDeploymentName": "d", "maxSteps": 1001 }), 422),
        (json!({ "machineDeploymentName": "d", "maxSteps": 0 }), 422),
        (json!({ "machineDeploymentName": "d", "assume": { "drainDuration": "-1s" } }), 422),
        (json!({ "machineDeploymentName": "d", "assume": { "failEvery": -1 } }), 422),
        (json!({ "machineDeploymentName": 7 }), 400),
        (json!([]), 400),
    ] {
        assert_eq!(create(&world(), spec.clone()).await.unwrap_err().code, code, "{spec}");
    }
    let view = RolloutPlanView::new(&world().sources);
    assert_eq!(view.get("ns", "nobody", Freshness::Recent).await.unwrap_err().code, 404);
}

#[tokio::test]
async fn a_class_s_content_replaces_nothing_and_is_not_repeated() {
    let class = json!({ "name": "c", "providerSpec": { "password": "hunter2" } });
    let plan = create(&world(), json!({ "machineDeploymentName": "d", "proposedClass": class })).await.unwrap();
    assert!(!plan.to_string().contains("hunter2"), "{plan:#}");
    assert_eq!(plan["spec"]["proposedClass"], json!({ "name": "c" }));
    assert_eq!(plan["status"]["toReplace"], json!([]));
    let warning = plan["status"]["admission"]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("replaces no machine"), "{warning}");
}

#[tokio::test]
async fn updates_in_place_are_not_foretold() {
    let strategy = json!({ "type": "InPlaceUpdate", "inPlaceUpdate": { "maxSurge": 1, "maxUnavailable": 0, "orchestrationType": "Auto" } });
    let proposed = json!({ "template": template("new"), "strategy": strategy });
    let plan = create(&world(), json!({ "machineDeploymentName": "d", "proposed": proposed })).await.unwrap();
    assert_eq!(plan["status"]["stuck"]["reason"], "InPlaceUpdate", "{plan:#}");
}

#[tokio::test(start_paused = true)]
async fn a_third_plan_waits_and_is_sent_away() {
    let world = world();
    let view = RolloutPlanView::new(&world.sources);
    let turns = (view.turns.take().await.unwrap(), view.turns.take().await.unwrap());
    let refused = view.get("ns", "d", Freshness::Recent).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after), (429, Some(2)));
    drop(turns);
    assert!(view.turns.take().await.is_ok());
}
