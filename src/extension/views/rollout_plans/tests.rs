use serde_json::json;

use super::{
    super::testing::{self, World},
    *,
};
use crate::extension::{
    rows::Row,
    testing::{cells, whole},
};
use kube_values::duration::GoDuration;
use machine_simulation::forecast::Assumptions;

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
    let view = RolloutPlanView::new(&world.sources);
    view.create("ns", review).await.map(|answer| testing::conforming(&view, &answer.object))
}

/// The cell with the reason why a rollout does not end.
fn stuck(plan: &Arc<dyn Row>) -> Value {
    cells(plan)[9].take()
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
async fn a_finished_rollout_has_no_steps_left() {
    let plan = whole(&RolloutPlanView::new(&world().sources).get("ns", "d", Freshness::Recent).await.unwrap().object);
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
async fn a_denied_proposal_gets_an_answer() {
    let world = world();
    let spec = json!({ "machineDeploymentName": "d", "proposed": { "replicas": -1 } });
    let plan = create(&world, spec).await.unwrap();
    let admission = &plan["status"]["admission"];
    assert_eq!(admission["allowed"], false);
    assert_eq!(admission["errors"][0]["field"], "spec.replicas", "{plan:#}");
    assert_eq!(plan["status"]["steps"], json!([]));
    let review = json!({ "spec": { "machineDeploymentName": "d", "proposed": { "replicas": -1 } } });
    let Answer { object, warnings } = RolloutPlanView::new(&world.sources).create("ns", review).await.unwrap();
    assert_eq!(stuck(&object), "Denied");
    let expected = "would be denied: spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(warnings, [expected], "a warning too");
}

#[tokio::test]
async fn a_deployment_that_is_being_deleted_has_no_rollout() {
    let world = world();
    let finalizers = json!(["machine.sapcloud.io/machine-controller-manager"]);
    let metadata = json!({ "deletionTimestamp": testing::ago(5), "finalizers": finalizers, "resourceVersion": "2" });
    world.put_deployment("d", &json!({ "metadata": metadata, "spec": deployment_spec(3) }));
    let answer = RolloutPlanView::new(&world.sources).get("ns", "d", Freshness::Recent).await.unwrap();
    let plan = whole(&answer.object);
    assert_eq!(stuck(&answer.object), "BeingDeleted", "{plan:#}");
    assert_eq!((&plan["status"]["steps"], &plan["status"]["toReplace"]), (&json!([]), &json!([])));
}

#[tokio::test]
async fn a_plan_that_ends_early_is_marked() {
    let world = world();
    let spec = json!({ "machineDeploymentName": "d", "maxSteps": 1, "proposed": { "template": template("new") } });
    let answer = RolloutPlanView::new(&world.sources).create("ns", json!({ "spec": spec })).await.unwrap();
    let plan = whole(&answer.object);
    let (status, why) = (&plan["status"], "the rollout has more steps than 1 (spec.maxSteps, at most 1000)");
    assert_eq!((&status["truncated"], &status["truncatedBecause"]), (&json!(true), &json!(why)));
    assert_eq!(answer.warnings, [format!("the plan ends early: {why}")]);
    assert_eq!(stuck(&answer.object), "Truncated");

    let answer = RolloutPlanView::new(&world.sources).get("ns", "d", Freshness::Recent).await.unwrap();
    let plan = whole(&answer.object);
    assert_eq!((&plan["status"]["truncated"], plan["status"].get("truncatedBecause")), (&json!(false), None));
    assert_eq!(stuck(&answer.object), Value::Null);
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
async fn findings_about_a_stored_class_do_not_contain_its_values() {
    let world = world();
    let template = json!({ "capacity": { "cpu": "Hunter 2" }, "instanceType": "t", "region": "r", "zone": "z" });
    let stored = json!({ "metadata": { "resourceVersion": "2" }, "nodeTemplate": template });
    world.add_class("c", stored);
    let class = json!({ "name": "c", "providerSpec": { "region": "far" } });
    let plan = create(&world, json!({ "machineDeploymentName": "d", "proposedClass": class })).await.unwrap();
    let warnings = plan["status"]["admission"]["warnings"].to_string();
    assert!(warnings.contains("existing problem: proposedClass.nodeTemplate.capacity"), "{warnings}");
    assert!(!plan.to_string().contains("Hunter"), "{plan:#}");
}

#[tokio::test]
async fn updates_in_place_are_planned() {
    let world = healthy_world();
    let plan = create(&world, in_place("Auto")).await.unwrap();
    let status = &plan["status"];
    let order: Vec<&str> =
        status["toUpdate"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!((order.len(), status.get("stuck")), (3, None), "{plan:#}");
    assert_eq!((&status["toUpdate"][2]["order"], &status["toUpdate"][0]["machineSet"]), (&json!(3), &json!("d-1")));
    assert_eq!((&status["toReplace"], &status["toKeep"]), (&json!([]), &json!(3)), "{plan:#}");
    assert_eq!((&status["minAvailable"], &status["peakMachines"]), (&json!(2), &json!(3)), "one at a time: {plan:#}");
    let took: GoDuration = status["estimatedDuration"].as_str().unwrap().parse().unwrap();
    assert!(took.to_std() >= 3 * (Assumptions::usual().drain + Assumptions::usual().update), "{took}");
}

/// The same world with Nodes that are Ready.
fn healthy_world() -> World {
    let world = world();
    for name in ["a", "b", "c"] {
        world.set_ready(name, name);
    }
    world
}

fn in_place(orchestration: &str) -> Value {
    let limits = json!({ "maxSurge": 0, "maxUnavailable": 1, "orchestrationType": orchestration });
    let strategy = json!({ "type": "InPlaceUpdate", "inPlaceUpdate": limits });
    json!({ "machineDeploymentName": "d", "proposed": { "template": template("new"), "strategy": strategy } })
}

#[tokio::test]
async fn with_manual_orchestration_the_plan_waits_for_the_user() {
    let plan = create(&healthy_world(), in_place("Manual")).await.unwrap();
    let stuck = &plan["status"]["stuck"];
    assert_eq!(stuck["reason"], "AwaitsSelection", "{plan:#}");
    let message = stuck["message"].as_str().unwrap();
    assert!(message.contains("node.machine.sapcloud.io/selected-for-update"), "{message}");
    assert_eq!(plan["status"].get("toUpdate"), None, "{plan:#}");
}

/// A deployment that is too large to be simulated in the time of a plan.
fn huge_world() -> World {
    let world = world();
    for number in 0..10_000 {
        let name = format!("more-{number}");
        let patch = json!({
            "metadata": { "labels": { "app": "d", HASH: "1" }, "ownerReferences": [testing::owner("MachineSet", "d-1")] },
            "spec": { "providerID": format!("cloud:///{name}") },
            "status": { "currentStatus": { "phase": "Running", "lastUpdateTime": testing::ago(60) } },
        });
        world.add_machine(testing::machine(&name, patch));
    }
    world
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn th_29_plans_of_a_huge_fleet_do_not_block_the_process() {
    let world = huge_world();
    let view = Arc::new(RolloutPlanView::new(&world.sources));
    let spec = |steps: i64| {
        json!({ "metadata": {}, "spec": {
            "machineDeploymentName": "d", "maxSteps": steps, "proposed": { "template": template("new"), "replicas": 10_003 },
        } })
    };
    let refused = view.create("ns", spec(1_000_000_000)).await.unwrap_err();
    assert!(matches!(refused.code, 400 | 422), "{refused:?}");
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let (view, spec) = (Arc::clone(&view), spec(1000));
            tokio::spawn(async move { view.create("ns", spec).await })
        })
        .collect();
    // Other tasks of the process must make progress meanwhile.
    let others = tokio::spawn(async {
        let mut waits = Vec::new();
        for _ in 0..100 {
            let began = std::time::Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
            waits.push(began.elapsed());
        }
        waits.sort();
        waits[90]
    });
    let (mut answered, mut refused) = (0, 0);
    for answer in futures::future::join_all(asked).await {
        match answer.unwrap() {
            Ok(answer) => {
                let status = &whole(&answer.object)["status"];
                let why = status["truncatedBecause"].as_str().unwrap_or_default();
                assert_eq!(status["truncated"], json!(why.contains("within 2s")), "{why}");
                answered += 1;
            }
            Err(status) if status.code == 429 => refused += 1,
            Err(status) => panic!("{status:?}"),
        }
    }
    assert!(answered >= 2 && refused > 0 && answered + refused == 50, "{answered} answered, {refused} refused");
    let usual = others.await.unwrap();
    assert!(usual < Duration::from_millis(500), "others waited {usual:?} for ten milliseconds");
}

#[tokio::test(start_paused = true)]
async fn a_third_plan_waits_and_is_refused() {
    let world = world();
    let view = RolloutPlanView::new(&world.sources);
    let permits = (view.limiter.acquire().await.unwrap(), view.limiter.acquire().await.unwrap());
    let refused = view.get("ns", "d", Freshness::Recent).await.unwrap_err();
    assert_eq!((refused.code, refused.retry_after), (429, Some(2)));
    drop(permits);
    assert!(view.limiter.acquire().await.is_ok());
}
