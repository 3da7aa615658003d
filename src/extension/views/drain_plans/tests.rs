use std::{sync::Mutex, time::Duration};

use rstest::rstest;
use serde_json::json;

use super::{
    super::testing::{self, Pods as Target, World},
    *,
};
use crate::extension::testing::whole;
use controller_runtime::{gate::Gate, tasks::TokioTasks};
use machine_controllers::{
    drain::{
        Drain, Drainer, Run,
        act::Evictor,
        observe::DrainLimits,
        order::{DrainFlow, DrainOrder, Force},
        step::DrainResult,
    },
    times::after,
};

fn world() -> World {
    let world = World::synced();
    world.add_machine(testing::machine(
        "m",
        json!({
            "metadata": { "labels": { "node": "n" } },
            "spec": { "providerID": "cloud:///m" },
            "status": { "currentStatus": { "phase": "Running" } },
        }),
    ));
    world.add_node("n", "m");
    world
}

fn view(world: &World) -> DrainPlanView {
    DrainPlanView::new(&world.sources).unwrap()
}

async fn plan(world: &World) -> Value {
    let view = view(world);
    testing::conforming(&view, &view.get("ns", "m", Freshness::Recent).await.unwrap().object)
}

async fn create(world: &World, spec: Value) -> Result<Value, ApiStatus> {
    let view = view(world);
    view.create("ns", json!({ "spec": spec })).await.map(|answer| testing::conforming(&view, &answer.object))
}

/// Kind and pods of each wave.
fn waves(plan: &Value) -> Vec<(String, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |wave: &Value| {
        let pods = wave["pods"].as_array().into_iter().flatten().map(|pod| text(&pod["name"])).collect();
        (text(&wave["kind"]), pods)
    };
    plan["status"]["waves"].as_array().into_iter().flatten().map(of).collect()
}

fn wave(kind: &str, pods: &[&str]) -> (String, Vec<String>) {
    (kind.to_owned(), pods.iter().map(|pod| (*pod).to_owned()).collect())
}

fn prioritised(priority: i32, claim: &str) -> Value {
    let mut patch = Target::using(&[claim]);
    patch["spec"]["priority"] = json!(priority);
    patch
}

#[tokio::test]
async fn plain_pods_are_evicted_together_and_pods_with_volumes_one_by_one_by_priority() {
    let world = world();
    world.pods.add_pod("web-1", "n", &json!({}));
    world.pods.add_pod("web-2", "n", &json!({}));
    world.pods.add_pod("low", "n", &prioritised(1, "a"));
    world.pods.add_pod("high", "n", &prioritised(9, "b"));
    world.pods.add_pod("elsewhere", "other", &json!({}));
    world.pods.add_pod(
        "agent",
        "n",
        &json!({ "metadata": { "ownerReferences": [testing::owner("DaemonSet", "agent")] } }),
    );
    world.pods.attach("pv-a", "n");
    world.pods.attach("pv-b", "n");
    let plan = plan(&world).await;
    let expected =
        [wave("EvictParallel", &["web-1", "web-2"]), wave("EvictSerial", &["high"]), wave("EvictSerial", &["low"])];
    assert_eq!(waves(&plan), expected, "{plan:#}");
    let status = &plan["status"];
    assert_eq!(status["totals"], json!({ "pods": 4, "withVolumes": 2, "ignored": 1, "blocked": 0 }));
    assert_eq!(status["ignored"], json!([{ "namespace": "apps", "name": "agent", "reason": "DaemonSet" }]));
    assert_eq!(
        (&status["mode"], &status["willForce"], &status["nodeName"]),
        (&json!("Normal"), &json!(false), &json!("n"))
    );
    let volume = &status["waves"][2]["pods"][0]["volumes"][0];
    assert_eq!(*volume, json!({ "pvc": "a", "pv": "pv-a", "volumeID": "handle-pv-a", "shared": false }));
    // Two times: the end of a pod, a detachment, and an attachment.
    assert_eq!(status["estimatedDuration"], "4m30s", "{plan:#}");
}

#[rstest]
#[case::one_after_the_other(json!({ "disruptionsAllowed": 1 }), "Normal", 0, false)]
#[case::none_for_good(json!({ "disruptionsAllowed": 0, "currentHealthy": 1 }), "Normal", 2, false)]
#[case::never(json!({ "disruptionsAllowed": 0 }), "Normal", 2, true)]
#[tokio::test]
async fn xa_152_a_budget_allows_evictions_or_is_named(
    #[case] status: Value,
    #[case] mode: &str,
    #[case] blocked: usize,
    #[case] misconfigured: bool,
) {
    let world = world();
    for name in ["web-1", "web-2"] {
        world.pods.add_pod(name, "n", &json!({ "metadata": { "labels": { "app": "web" } } }));
    }
    world.pods.add_budget("web", "web", &status);
    let plan = plan(&world).await;
    let status = &plan["status"];
    assert_eq!(
        (status["mode"].as_str(), status["blocked"].as_array().map(Vec::len)),
        (Some(mode), Some(blocked)),
        "{plan:#}"
    );
    assert_eq!(status["willForce"], json!(blocked > 0));
    if blocked == 0 {
        assert_eq!(waves(&plan), [wave("EvictParallel", &["web-1"]), wave("EvictParallel", &["web-2"])]);
        assert_eq!(status["waves"][0]["pods"][0]["disruptionBudgets"], json!(["apps/web"]));
    } else {
        let first = &status["blocked"][0];
        assert_eq!((&first["budget"]["name"], &first["misconfigured"]), (&json!("web"), &json!(misconfigured)));
        assert!(first["forcedAfter"].is_string(), "{first}");
        assert_eq!(status["estimatedDuration"], "2h0m0s", "until pods are deleted by force");
    }
}

/// A pod with this status, behind a budget that needs two healthy pods and has none to spare.
#[rstest]
#[case::it_is_guarded(json!({}), 1, 1)]
#[case::it_does_not_run_yet(json!({ "phase": "Pending" }), 1, 0)]
#[case::it_is_done(json!({ "phase": "Succeeded" }), 1, 0)]
#[case::it_is_not_ready_and_pods_are_missing(json!({ "conditions": [] }), 1, 1)]
#[case::it_is_not_ready_and_none_is_missing(json!({ "conditions": [] }), 2, 0)]
#[tokio::test]
async fn xa_152_a_budget_guards_only_the_pods_that_the_api_server_asks_it_about(
    #[case] status: Value,
    #[case] healthy: i32,
    #[case] blocked: usize,
) {
    let world = world();
    let patch = json!({ "metadata": { "labels": { "app": "web" } }, "status": status });
    world.pods.add_pod("web", "n", &patch);
    let budget = json!({ "disruptionsAllowed": 0, "currentHealthy": healthy, "desiredHealthy": 2, "expectedPods": 3 });
    world.pods.add_budget("web", "web", &budget);
    let plan = plan(&world).await;
    assert_eq!(plan["status"]["blocked"].as_array().map(Vec::len), Some(blocked), "{plan:#}");
    assert_eq!(plan["status"]["willForce"], json!(blocked > 0), "{plan:#}");
    assert_eq!(waves(&plan).len(), 1 - blocked, "{plan:#}");
}

#[tokio::test]
async fn a_forced_drain_deletes_all_at_once() {
    let world = world();
    world.pods.add_pod("web", "n", &json!({}));
    world.pods.add_pod("db", "n", &Target::using(&["a"]));
    let plan = create(&world, json!({ "machineName": "m", "force": true })).await.unwrap();
    assert_eq!(waves(&plan).len(), 1, "{plan:#}");
    assert_eq!((&plan["status"]["mode"], &plan["status"]["willForce"]), (&json!("Force"), &json!(true)));
    assert_eq!(plan["status"]["waves"][0]["kind"], "Delete");
    assert_eq!(plan["status"]["waves"][0]["pods"][0]["gracePeriod"], "0s", "no time to end");
    assert_eq!(plan["metadata"]["name"], "m");
}

#[tokio::test]
async fn longer_limits_never_make_a_drain_shorter() {
    let world = world();
    world.pods.add_pod("db", "n", &Target::using(&["a"]));
    world.pods.attach("pv-a", "n");
    let mut last = Duration::ZERO;
    for minutes in [1, 2, 4] {
        let spec = json!({ "nodeName": "n", "pvDetachTimeout": format!("{minutes}m"), "pvReattachTimeout": "1m" });
        let plan = create(&world, spec).await.unwrap();
        let took: GoDuration = plan["status"]["estimatedDuration"].as_str().unwrap().parse().unwrap();
        assert!(took.to_std() >= last, "{plan:#}");
        assert_eq!(plan["status"]["machineName"], "m", "the node's machine is found");
        last = took.to_std();
    }
    assert!(last > Duration::from_secs(120));
}

#[tokio::test]
async fn a_machine_without_a_node_is_skipped() {
    let world = world();
    world.add_machine(testing::machine("young", json!({})));
    let Answer { object, warnings } = view(&world).get("ns", "young", Freshness::Recent).await.unwrap();
    let plan = whole(&object);
    assert_eq!(warnings, ["nothing would be drained: the machine has no Node yet"]);
    assert_eq!(plan["status"]["mode"], "Skipped");
    assert_eq!(plan["status"]["skippedBecause"], "the machine has no Node yet");
    for (phase, why) in [("Pending", "the machine has no Node yet"), ("Running", "the machine's Node is gone")] {
        let patch = json!({
            "metadata": { "labels": { "node": "expected" } }, "status": { "currentStatus": { "phase": phase } },
        });
        world.add_machine(testing::machine(phase, patch));
        let plan = whole(&view(&world).get("ns", phase, Freshness::Recent).await.unwrap().object);
        assert_eq!(plan["status"]["skippedBecause"], why);
    }
    let plan = create(&world, json!({ "nodeName": "nowhere" })).await.unwrap();
    assert_eq!(plan["status"]["skippedBecause"], "there is no Node nowhere");
}

#[tokio::test]
async fn a_review_that_can_t_be_used_is_refused() {
    let world = world();
    for (spec, code) in [
        (json!({}), 422),
        (json!({ "machineName": "m", "nodeName": "n" }), 422),
        (json!({ "machineName": "nobody" }), 422),
        (json!({ "machineName": "m", "drainTimeout": "-1s" }), 422),
        (json!({ "machineName": "m", "maxEvictRetries": -1 }), 422),
        (json!({ "machineName": "m", "force": "please" }), 400),
    ] {
        assert_eq!(create(&world, spec.clone()).await.unwrap_err().code, code, "{spec}");
    }
    assert_eq!(view(&world).get("ns", "nobody", Freshness::Recent).await.unwrap_err().code, 404);
    let unreadable = create(&world, json!({ "machineName": "m", "drainTimeout": "soon" })).await.unwrap_err();
    assert!(unreadable.message.contains("can't be read: spec.drainTimeout: duration \"soon\""), "{unreadable}");
}

#[test]
fn a_plan_needs_the_right_on_the_machine() {
    let world = world();
    let rights = |spec: Value| {
        let review = json!({ "spec": spec });
        let asked = view(&world).source_rights(Question::Create { namespace: "ns", review: &review });
        (asked[0].verb, asked[0].name.clone())
    };
    assert_eq!(rights(json!({ "machineName": "x" })), (Verb::Get, Some("x".to_owned())));
    assert_eq!(rights(json!({ "nodeName": "n" })), (Verb::Get, Some("m".to_owned())));
    assert_eq!(rights(json!({ "nodeName": "strange" })), (Verb::List, None));
}

/// An API server that allows one eviction of the app `web` at a time. Pods are gone after their grace period.
fn api_server(pods: &Arc<Target>, evicted: &Arc<Mutex<Vec<String>>>) -> kube::Client {
    let (pods, evicted) = (Arc::clone(pods), Arc::clone(evicted));
    let held = Arc::new(Mutex::new(0));
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let name = request.uri().path().trim_end_matches("/eviction").rsplit('/').next().unwrap_or_default().to_owned();
        let (pods, evicted, held) = (Arc::clone(&pods), Arc::clone(&evicted), Arc::clone(&held));
        async move {
            let is_covered = name.starts_with("web");
            let refused = is_covered && *held.lock().unwrap() > 0;
            let (code, body) = if refused {
                let causes = json!([{ "reason": "DisruptionBudget", "message": "not now" }]);
                (
                    429,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
                              "reason": "TooManyRequests", "message": "not now", "details": { "causes": causes } }),
                )
            } else {
                evicted.lock().unwrap().push(name.clone());
                *held.lock().unwrap() += i32::from(is_covered);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    pods.remove(&name);
                    tokio::time::sleep(Duration::from_secs(30)).await;
                    *held.lock().unwrap() -= i32::from(is_covered);
                });
                (201, json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }))
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(code).body(body).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// The pods in the order in which a real drain evicts them.
async fn evicted_by_a_drain(world: &World) -> Vec<String> {
    let evicted = Arc::<Mutex<Vec<String>>>::default();
    let client = api_server(&world.pods, &evicted);
    let gate = Gate::open_until(tokio_util::sync::CancellationToken::new());
    let drainer = Drainer::new(
        Arc::<Target>::clone(&world.pods),
        Evictor::new(client, gate, 50),
        Arc::new(TokioTasks),
        Duration::from_secs(5),
    );
    let node = world.nodes.get(&ObjectKey::cluster_scoped("n")).unwrap();
    let now = || world.sources.clock.now();
    let deadline = after(now(), Duration::from_secs(7200));
    let flow = DrainFlow::Deletion;
    let node_uid = node.uid().to_owned();
    let mut run = Run::new(DrainOrder { node: "n".to_owned(), node_uid, flow, force: Force::No, deadline });
    loop {
        let drain = Drain {
            node_name: "n",
            node: Some(&node),
            limits: DrainLimits {
                force: Force::No,
                deadline,
                timeout: Duration::from_secs(7200),
                retries: 360,
                detach: Duration::from_secs(120),
                reattach: Duration::from_secs(90),
                parallel: 20,
            },
            driver: None,
            now: now(),
            wake: Arc::new(|| {}),
        };
        match drainer.step(&drain, &mut run) {
            DrainResult::Running { wake, .. } => tokio::time::sleep(wake).await,
            DrainResult::Drained => return evicted.lock().unwrap().clone(),
            DrainResult::Failed(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_follows_its_plan() {
    let world = world();
    for name in ["web-1", "web-2", "web-3"] {
        world.pods.add_pod(name, "n", &json!({ "metadata": { "labels": { "app": "web" } } }));
    }
    world.pods.add_pod("plain", "n", &json!({}));
    for (name, priority) in [("db-low", 1), ("db-high", 9), ("db-mid", 5)] {
        world.pods.add_pod(name, "n", &prioritised(priority, name));
    }
    world.pods.add_budget("web", "web", &json!({ "disruptionsAllowed": 1, "expectedPods": 3, "currentHealthy": 3 }));
    let planned = waves(&plan(&world).await);
    let of = |prefix: &str, names: &[String]| -> Vec<String> {
        names.iter().filter(|name| name.starts_with(prefix)).cloned().collect()
    };
    let planned: Vec<String> = planned.into_iter().flat_map(|(_, pods)| pods).collect();
    let done = evicted_by_a_drain(&world).await;
    assert_eq!(done.len(), 7, "{done:?}");
    for group in ["web", "db", "plain"] {
        assert_eq!(of(group, &planned), of(group, &done), "planned {planned:?}, done {done:?}");
    }
}
