//! Golden test of whole answers of all views about one small world: objects, tables, metadata, selectors and pages.

use std::sync::atomic::{AtomicU64, Ordering};

use http::Method;
use serde_json::{Value, json};

use super::{
    provider_machines::tests::Provider,
    testing::{Pods, World, ago, machine, owner},
    *,
};
use crate::extension::{pages::Pages, testing::ask};
use kube_protocol::negotiate::Shape;

const NOW: &str = "2027-01-15T08:00:07Z";

fn template(class: &str) -> Value {
    json!({ "metadata": { "labels": { "app": "d" } }, "spec": { "class": { "kind": "MachineClass", "name": class } } })
}

/// Machines in many states, with and without a deployment. VMs without machines. Pods with budgets and volumes.
fn world() -> World {
    let vms = [("a", "a"), ("b", "b"), ("b2", "b"), ("x", "gone"), ("c", "c"), ("u", "")];
    let world = Provider::listing(&vms).world();
    let amounts =
        json!({ "capacity": { "cpu": "2", "memory": "4Gi" }, "instanceType": "t", "region": "r", "zone": "z" });
    world.add_class("c", json!({ "metadata": { "resourceVersion": "2" }, "nodeTemplate": amounts }));
    world.add_class("new", json!({}));
    world.add_class("strange", json!({ "provider": "nowhere" }));
    let finalizers = json!(["machine.sapcloud.io/machine-controller-manager"]);
    let revision = json!({ "deployment.kubernetes.io/revision": "1" });
    let labels = json!({ "app": "d", "machine-template-hash": "1" });
    world.put_deployment(
        "d",
        &json!({
            "metadata": { "annotations": revision, "finalizers": finalizers },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "d" } }, "template": template("c"),
                "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } } },
        }),
    );
    let mut of_set = template("c");
    of_set["metadata"]["labels"] = labels.clone();
    world.put_set(
        "d-1",
        &json!({
            "metadata": { "labels": labels, "annotations": revision, "finalizers": finalizers,
                          "ownerReferences": [owner("MachineDeployment", "d")] },
            "spec": { "replicas": 3, "selector": { "matchLabels": labels }, "template": of_set },
            "status": { "replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "observedGeneration": 1 },
        }),
    );
    let running = |name: &str| {
        json!({
            "metadata": { "labels": { "app": "d", "machine-template-hash": "1", "node": name },
                          "ownerReferences": [owner("MachineSet", "d-1")] },
            "spec": { "providerID": format!("cloud:///{name}") },
            "status": { "currentStatus": { "phase": "Running", "lastUpdateTime": ago(60) } },
        })
    };
    for name in ["b", "a", "c"] {
        world.add_machine(machine(name, running(name)));
        world.set_ready(name, name);
    }
    let failure = json!({ "state": "Failed", "type": "Create", "errorCode": "ResourceExhausted", "description": "none left",
                          "lastUpdateTime": ago(30) });
    let others = [
        ("young", json!({})),
        (
            "joining",
            json!({ "metadata": { "labels": { "node": "j" } }, "spec": { "providerID": "cloud:///j" },
                    "status": { "currentStatus": { "phase": "Pending", "lastUpdateTime": ago(60) } } }),
        ),
        ("deleted", json!({ "metadata": { "deletionTimestamp": ago(60) } })),
        (
            "failing",
            json!({ "status": { "currentStatus": { "phase": "CrashLoopBackOff" }, "lastOperation": failure } }),
        ),
        (
            "lost",
            json!({ "spec": { "providerID": "cloud:///lost" },
                    "status": { "currentStatus": { "phase": "Running", "lastUpdateTime": ago(90) } } }),
        ),
        ("odd", json!({ "spec": { "class": { "name": "strange" }, "providerID": "cloud:///odd" } })),
        ("classless", json!({ "spec": { "class": { "name": "nowhere" } } })),
    ];
    for (name, patch) in others {
        world.add_machine(machine(name, patch));
    }
    for name in ["web-1", "web-2"] {
        world.pods.add_pod(name, "a", &json!({ "metadata": { "labels": { "app": "web" } } }));
    }
    world.pods.add_pod("db", "a", &Pods::using(&["data"]));
    let agent = json!({ "metadata": { "ownerReferences": [owner("DaemonSet", "agent")] } });
    world.pods.add_pod("agent", "a", &agent);
    world.pods.add_budget("web", "web", &json!({ "disruptionsAllowed": 0, "currentHealthy": 1 }));
    world.pods.attach("pv-data", "a");
    world
}

/// The queries for lists of each view.
const READS: [(&str, &[&str]); 5] = [
    (
        "providermachines",
        &[
            "",
            "labelSelector=views.machine.sapcloud.io/state%3DOwned",
            "fieldSelector=state%3DOrphan",
            "fieldSelector=state!%3DOwned,class.name%3Dc",
            "fieldSelector=machineRef.name%3Da",
            "fieldSelector=machineRef.name%3D",
            "fieldSelector=providerID%3Dcloud:///x",
            "fieldSelector=metadata.name%3Dlost.missing",
            "fieldSelector=nodeRef.name%3Da",
            "limit=3",
        ],
    ),
    (
        "machineoutlooks",
        &[
            "",
            "labelSelector=app%3Dd",
            "labelSelector=!app&fieldSelector=phase%3D",
            "fieldSelector=stage%3DJoin",
            "fieldSelector=phase!%3DRunning",
            "fieldSelector=metadata.namespace%3Dns,metadata.name!%3Da",
            "limit=4",
            "limit=2&fieldSelector=phase%3DRunning",
        ],
    ),
    ("fleetsummaries", &["", "limit=1", "fieldSelector=metadata.name%3Dother"]),
    ("rolloutplans", &[""]),
    ("drainplans", &[""]),
];

const OBJECTS: [(&str, &[&str]); 5] = [
    ("providermachines", &["lost.missing", "nobody"]),
    ("machineoutlooks", &["a", "deleted", "nobody"]),
    ("fleetsummaries", &["ns", "other"]),
    ("rolloutplans", &["d", "nobody"]),
    ("drainplans", &["a", "young", "nobody"]),
];

fn reviews() -> Vec<(&'static str, Value)> {
    let replace = json!({ "machineDeploymentName": "d", "proposed": { "template": template("new") } });
    let strategy =
        json!({ "type": "InPlaceUpdate", "inPlaceUpdate": { "maxUnavailable": 1, "orchestrationType": "Auto" } });
    vec![
        ("rolloutplans", replace),
        ("rolloutplans", json!({ "machineDeploymentName": "d", "proposed": { "replicas": -1 } })),
        (
            "rolloutplans",
            json!({ "machineDeploymentName": "d", "proposed": { "template": template("new"), "strategy": strategy } }),
        ),
        (
            "rolloutplans",
            json!({ "machineDeploymentName": "d", "maxSteps": 1, "proposed": { "template": template("new") } }),
        ),
        ("drainplans", json!({ "nodeName": "a", "force": true })),
        ("drainplans", json!({ "nodeName": "nowhere" })),
        ("drainplans", json!({})),
    ]
}

/// `UPDATE_VIEWS=1 cargo test` writes the file.
#[tokio::test(start_paused = true)]
async fn all_answers_equal_the_golden_file() {
    let world = world();
    let all = views(&world.sources);
    let next = AtomicU64::new(1);
    let pages = Pages::new(move || u128::from(next.fetch_add(1, Ordering::Relaxed)));
    let view = |plural: &str| all.iter().find(|view| view.resource().plural == plural).unwrap();
    let cells = (Shape::Table("v1beta1"), "includeObject=None");
    let [whole, metadata, refused] = ["Object", "Metadata", "Everything"]
        .map(|include| (Shape::Table("v1"), format!("includeObject={include}").leak() as &str));
    let (object, list) = ((Shape::PartialObject, ""), (Shape::PartialList, ""));
    let lists = [(Shape::Object, ""), whole, metadata, list, object, refused];
    let objects = [(Shape::Object, ""), cells, metadata, list, object, refused];
    let mut text = String::new();
    let mut note = |question: String, (code, body, warnings): (u16, Value, Vec<String>)| {
        text.extend([question, format!("\n  {code} {warnings:?}\n  {body}\n")]);
    };
    for (plural, queries) in READS {
        let path = format!("/namespaces/ns/{plural}");
        for (number, query) in queries.iter().enumerate() {
            let shapes = if number == 0 { lists.to_vec() } else { vec![cells] };
            for (shape, include) in shapes {
                let mut query = format!("{include}&{query}");
                loop {
                    let asked = (Method::GET, path.as_str(), query.as_str());
                    let answer = ask(view(plural), &pages, shape, asked, "", NOW).await;
                    let next = answer.1["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
                    note(format!("GET {path}?{query} as {shape:?}"), answer);
                    if next.is_empty() {
                        break;
                    }
                    let selectors = query.split('&').filter(|part| !part.starts_with("continue"));
                    query = format!("{}&continue={next}", selectors.collect::<Vec<_>>().join("&"));
                }
            }
        }
    }
    for (plural, names) in OBJECTS {
        for (number, name) in names.iter().enumerate() {
            let path = format!("/namespaces/ns/{plural}/{name}");
            let shapes = if number == 0 { objects.to_vec() } else { vec![cells] };
            for (shape, query) in shapes {
                let answer = ask(view(plural), &pages, shape, (Method::GET, &path, query), "", NOW).await;
                note(format!("GET {path}?{query} as {shape:?}"), answer);
            }
        }
    }
    for (plural, spec) in reviews() {
        let path = format!("/namespaces/ns/{plural}");
        for (shape, query) in [(Shape::Object, ""), cells] {
            let review = json!({ "metadata": { "name": "what-if" }, "spec": spec }).to_string();
            let answer = ask(view(plural), &pages, shape, (Method::POST, &path, query), &review, NOW).await;
            note(format!("POST {path}?{query} as {shape:?} {spec}"), answer);
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/extension/views/answers.txt");
    if std::env::var_os("UPDATE_VIEWS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    for (found, expected) in text.lines().zip(written.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(text.lines().count(), written.lines().count());
}
