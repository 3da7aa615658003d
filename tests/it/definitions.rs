//! The definitions of the kinds on a real API server: what the definitions refuse without webhooks, and what they tolerate.
//!
//! A rule in a definition must refuse new mistakes. It must not block changes of an object that was stored before the rule existed: neither of its
//! labels nor of its other fields. Only a real API server can show this.

use std::{sync::Arc, time::Duration};

use controller_runtime::server_version::minor_of;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use machine_api::crd::{CrdOptions, OldestServer};
use machine_controller_manager::cli::manifests::crds::crds_yaml;
use serde_json::{Value, json};

use crate::support::{Namespace, Rig, wait_until};

/// A mistake in one field. When the mistake is stored already, it must not block changes of other fields.
#[derive(Clone)]
struct Mistake {
    kind: &'static str,
    pointer: &'static str,
    /// The wrong value; null removes the field.
    value: Value,
    /// The field of the reported cause.
    field: &'static str,
    words: &'static str,
}

/// The resource of a kind, an object without mistakes, and two harmless changes of its specification. A stored mistake is tried with the change of
/// another field.
struct Sample {
    plural: &'static str,
    object: Value,
    changes: [Value; 2],
}

fn sample(kind: &str) -> Sample {
    let spec = json!({"class": {"kind": "MachineClass", "name": "c"}, "drainTimeout": "5m", "maxEvictRetries": 3});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
    let selector = json!({"matchLabels": {"a": "b"}});
    match kind {
        "Machine" => Sample {
            plural: "machines",
            object: json!({ "spec": spec }),
            changes: [json!({"spec": {"healthTimeout": "7m"}}), json!({"spec": {"creationTimeout": "7m"}})],
        },
        "MachineSet" => Sample {
            plural: "machinesets",
            object: json!({"spec": {"replicas": 1, "selector": selector, "template": template}}),
            changes: [json!({"spec": {"replicas": 4}}), json!({"spec": {"minReadySeconds": 7}})],
        },
        "MachineDeployment" => Sample {
            plural: "machinedeployments",
            object: json!({"spec": {
                "replicas": 1, "selector": selector, "template": template, "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"}},
            }}),
            changes: [json!({"spec": {"replicas": 4}}), json!({"spec": {"paused": true}})],
        },
        _ => Sample {
            plural: "machineclasses",
            object: json!({
                "provider": "virtual",
                "providerSpec": {"x": null, "y": [1]},
                "nodeTemplate": {
                    "capacity": {"cpu": 4, "gpu": "0", "memory": "16Gi"},
                    "instanceType": "t", "region": "r", "zone": "z", "extra": {"k": 1},
                },
            }),
            changes: [json!({"provider": "other"}), json!({"nodeTemplate": {"zone": "y"}})],
        },
    }
}

const MINIMUM: &str = "should be greater than or equal to 0";
const STRING: &str = "must be of type string";

/// Mistakes that an older manager without these rules could store.
fn mistakes() -> Vec<Mistake> {
    [mistakes_in_machines(), mistakes_in_sets(), mistakes_in_deployments(), mistakes_in_classes()].concat()
}

fn mistakes_in_machines() -> Vec<Mistake> {
    const DURATION: &str = "should match '^[+]?(0|";
    let case = |pointer, value, field, words| Mistake { kind: "Machine", pointer, value, field, words };
    vec![
        case("/spec/class/kind", json!("AWSMachineClass"), "spec.class.kind", "supported values: \"MachineClass\""),
        case("/spec/class/apiGroup", json!("x"), "spec.class.apiGroup", "\"machine.sapcloud.io\""),
        case("/spec/class/name", json!("A_b"), "spec.class.name", "a lowercase RFC 1123 subdomain"),
        case("/spec/class/name", json!(""), "spec.class.name", "Name is required"),
        case("/spec/class/name", Value::Null, "spec.class.name", "Name is required"),
        case("/spec/drainTimeout", json!("5 minutes"), "spec.drainTimeout", DURATION),
        case("/spec/drainTimeout", json!("-5m"), "spec.drainTimeout", DURATION),
        case("/spec/healthTimeout", json!("5"), "spec.healthTimeout", DURATION),
        case("/spec/creationTimeout", json!("1d"), "spec.creationTimeout", DURATION),
        case("/spec/inPlaceUpdateTimeout", json!("x"), "spec.inPlaceUpdateTimeout", DURATION),
        case("/spec/machinePreserveTimeout", json!(""), "spec.machinePreserveTimeout", DURATION),
        case("/spec/maxEvictRetries", json!(-1), "spec.maxEvictRetries", MINIMUM),
        case("/spec/nodeConditions", json!("A".repeat(16_385)), "spec.nodeConditions", " than 16384"),
        case("/spec/providerID", json!("x".repeat(65_537)), "spec.providerID", " than 65536"),
        case("/spec/nodeTemplate", taints(4_097), "spec.nodeTemplate.spec.taints", "must have at most 4096 items"),
        case(
            "/spec/nodeTemplate",
            json!({"metadata": {"labels": {"a": 1}}}),
            "spec.nodeTemplate.metadata.labels.a",
            STRING,
        ),
    ]
}

fn taints(number: usize) -> Value {
    let taints: Vec<_> = (0..number).map(|n| json!({"key": format!("k{n}"), "effect": "NoSchedule"})).collect();
    json!({"spec": {"taints": taints}})
}

fn mistakes_in_sets() -> Vec<Mistake> {
    const EMPTY_FOR_SET: &str = "empty selector is invalid for machine set";
    let case = |pointer, value, field, words| Mistake { kind: "MachineSet", pointer, value, field, words };
    vec![
        case("/spec/selector", Value::Null, "spec.selector", "must be specified"),
        case("/spec/selector", json!({}), "spec.selector", EMPTY_FOR_SET),
        case("/spec/selector", json!({"matchLabels": {}}), "spec.selector", EMPTY_FOR_SET),
        case(
            "/spec/template/spec/providerID",
            json!("x"),
            "spec.template.spec.providerID",
            "may not be set in a template",
        ),
        case("/spec/template/spec/class/kind", json!("X"), "spec.template.spec.class.kind", "\"MachineClass\""),
        case("/spec/template/metadata/labels/q", json!(5), "spec.template.metadata.labels.q", STRING),
        case("/spec/template/metadata/labels/q", json!("x".repeat(64)), "spec.template.metadata.labels.q", " than 63"),
        case("/spec/template/metadata/finalizers", json!([1]), "spec.template.metadata.finalizers[0]", STRING),
        case("/spec/autoPreserveFailedMachineMax", json!(-1), "spec.autoPreserveFailedMachineMax", MINIMUM),
    ]
}

fn mistakes_in_deployments() -> Vec<Mistake> {
    const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%'";
    const SURGE: &str = "spec.strategy.rollingUpdate.maxSurge";
    const UNAVAILABLE: &str = "spec.strategy.rollingUpdate.maxUnavailable";
    let case = |pointer, value, field, words| Mistake { kind: "MachineDeployment", pointer, value, field, words };
    vec![
        case("/spec/selector", json!({}), "spec.selector", "empty selector is invalid for machine deployment"),
        case(
            "/spec/progressDeadlineSeconds",
            json!(0),
            "spec.progressDeadlineSeconds",
            "must be greater than minReadySeconds",
        ),
        case(
            "/spec/minReadySeconds",
            json!(600),
            "spec.progressDeadlineSeconds",
            "must be greater than minReadySeconds",
        ),
        case("/spec/strategy/type", json!("Canary"), "spec.strategy.type", "supported values: \"\", \"Recreate\""),
        case("/spec/strategy/rollingUpdate/maxSurge", json!("x"), SURGE, PERCENT),
        case("/spec/strategy/rollingUpdate/maxSurge", json!(-1), SURGE, "must be greater than or equal to 0"),
        case("/spec/strategy/rollingUpdate/maxUnavailable", json!("-5%"), UNAVAILABLE, PERCENT),
        case(
            "/spec/strategy",
            json!({"type": "InPlaceUpdate", "inPlaceUpdate": {"orchestrationType": "auto"}}),
            "spec.strategy.inPlaceUpdate.orchestrationType",
            "supported values: \"Auto\", \"Manual\"",
        ),
        case("/spec/revisionHistoryLimit", json!(-1), "spec.revisionHistoryLimit", MINIMUM),
        case("/spec/rollbackTo", json!({"revision": -1}), "spec.rollbackTo.revision", MINIMUM),
    ]
}

fn mistakes_in_classes() -> Vec<Mistake> {
    const QUANTITY: &str = "should match '^\\+?([0-9]+";
    let case = |pointer, value, field, words| Mistake { kind: "MachineClass", pointer, value, field, words };
    vec![
        case(
            "/nodeTemplate/capacity/gpu",
            Value::Null,
            "nodeTemplate.capacity[gpu]",
            "should mandatorily have CPU, GPU and Memory",
        ),
        case("/nodeTemplate/capacity/cpu", json!(-1), "nodeTemplate.capacity.cpu", MINIMUM),
        case("/nodeTemplate/capacity/memory", json!("8Gib"), "nodeTemplate.capacity.memory", QUANTITY),
        case("/nodeTemplate/capacity/memory", json!("1e1.5"), "nodeTemplate.capacity.memory", QUANTITY),
        case("/secretRef", json!({"name": "x".repeat(254)}), "secretRef.name", " than 253"),
        case("/nodeTemplate/virtualCapacity", json!({"hana": "-1"}), "nodeTemplate.virtualCapacity.hana", QUANTITY),
    ]
}

impl Mistake {
    /// The sample object with the mistake.
    fn object(&self, name: &str) -> DynamicObject {
        let mut object = named(self.kind, name, sample(self.kind).object);
        let (parent, key) = self.pointer.rsplit_once('/').expect("a pointer has a slash");
        let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is an object");
        if self.value.is_null() {
            parent.remove(key);
        } else {
            parent.insert(key.to_owned(), self.value.clone());
        }
        serde_json::from_value(object).expect("an object")
    }

    /// A harmless change of another field than the mistake's.
    fn other_change(&self) -> Value {
        let [first, second] = sample(self.kind).changes;
        let concerns = |change: &Value| change.pointer(self.pointer).is_some();
        if concerns(&first) { second } else { first }
    }

    fn text(&self) -> String {
        let value: String = self.value.to_string().chars().take(100).collect();
        format!("{} {} = {value}", self.kind, self.pointer)
    }
}

fn named(kind: &str, name: &str, mut object: Value) -> Value {
    object["apiVersion"] = json!("machine.sapcloud.io/v1alpha1");
    object["kind"] = json!(kind);
    object["metadata"] = json!({ "name": name });
    object
}

fn api(client: &Client, namespace: &Namespace, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "machine.sapcloud.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "machine.sapcloud.io/v1alpha1".to_owned(),
        kind: kind.to_owned(),
        plural: sample(kind).plural.to_owned(),
    };
    Api::namespaced_with(client.clone(), &namespace.name, &resource)
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

/// Installs definitions and waits until the API server enforces them, which takes some seconds after the write.
async fn install(rig: &Arc<Rig>, client: &Client, namespace: &Namespace, servers: OldestServer) {
    let definitions = crds_yaml(&CrdOptions { servers, ..CrdOptions::default() });
    rig.apply(&definitions).await.succeed();
    for kind in ["Machine", "MachineSet", "MachineDeployment", "MachineClass"] {
        let probe = mistakes().into_iter().find(|mistake| mistake.kind == kind).expect("a mistake per kind");
        let wanted = servers == OldestServer::Ratcheting;
        wait_until(&format!("the definition of {kind}"), Duration::from_secs(60), || async {
            let answer = api(client, namespace, kind).create(&dry_run(), &probe.object("probe")).await;
            let refuses = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422);
            if refuses == wanted && (refuses || answer.is_ok()) { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_new_mistake_is_refused_and_a_stored_one_is_tolerated() {
    let Some(rig) = Rig::own("definitions::a_new_mistake_is_refused_and_a_stored_one_is_tolerated").await else {
        return;
    };
    let client = rig.client().await;
    let namespace = rig.namespace("definitions").await;
    install(&rig, &client, &namespace, OldestServer::NotRatcheting).await;
    for (number, mistake) in mistakes().iter().enumerate() {
        let stored = api(&client, &namespace, mistake.kind)
            .create(&PostParams::default(), &mistake.object(&format!("stored-{number}")))
            .await;
        assert!(stored.is_ok(), "{} can't be stored: {stored:?}", mistake.text());
    }

    let write_status = async |number: usize, mistake: &Mistake, params: PatchParams| {
        let api = api(&client, &namespace, mistake.kind);
        let status = a_status(mistake.kind)?;
        Some(api.patch_status(&format!("stored-{number}"), &params, &Patch::Merge(&status)).await)
    };
    for (number, mistake) in mistakes().iter().enumerate() {
        let written = write_status(number, mistake, PatchParams { dry_run: true, ..PatchParams::default() }).await;
        assert!(!matches!(written, Some(Err(_))), "{}: {written:?}", mistake.text());
    }

    install(&rig, &client, &namespace, OldestServer::Ratcheting).await;
    let minor = minor_of(&client.apiserver_version().await.expect("a version").minor).expect("a number");
    for kind in ["Machine", "MachineSet", "MachineDeployment", "MachineClass"] {
        let good = serde_json::from_value(named(kind, "good", sample(kind).object)).expect("an object");
        let answer = api(&client, &namespace, kind).create(&dry_run(), &good).await;
        assert!(answer.is_ok(), "{kind} without mistakes: {answer:?}");
    }
    let mut blocked = Vec::new();
    for (number, mistake) in mistakes().iter().enumerate() {
        let api = api(&client, &namespace, mistake.kind);
        refused(&api, mistake).await;
        let name = format!("stored-{number}");
        let metadata = |finalizers: Value| json!({"metadata": {"labels": {"x": "y"}, "finalizers": finalizers}});
        for change in [metadata(json!(["example.com/x"])), mistake.other_change(), metadata(Value::Null)] {
            let answer = api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await;
            assert!(answer.is_ok(), "a stored mistake, {}, blocks {change}: {answer:?}", mistake.text());
        }
        if let Some(Err(error)) = write_status(number, mistake, PatchParams::default()).await {
            blocked.push(format!("{}: {error}", mistake.text()));
        }
    }
    // Before 1.33 a server checks the whole object in writes of the status, though not each kind of rule. Its definitions are the first ones of this test.
    assert_eq!(blocked.is_empty(), minor >= 33, "writes of a status that stored mistakes block: {blocked:#?}");
}

/// A status that a controller writes for a kind. A class has no status in v1alpha1.
fn a_status(kind: &str) -> Option<Value> {
    match kind {
        "Machine" => Some(json!({"status": {"currentStatus": {"phase": "Running"}}})),
        "MachineSet" | "MachineDeployment" => Some(json!({"status": {"replicas": 1}})),
        _ => None,
    }
}

async fn refused(api: &Api<DynamicObject>, mistake: &Mistake) {
    let answer = api.create(&dry_run(), &mistake.object("new")).await;
    let Err(kube::Error::Api(status)) = &answer else { panic!("{} is let through: {answer:?}", mistake.text()) };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    assert!(
        causes.iter().any(|cause| cause.field == mistake.field && cause.message.contains(mistake.words)),
        "{}: {causes:?}",
        mistake.text()
    );
}

#[tokio::test]
async fn a_set_without_replicas_can_be_scaled() {
    let Some(rig) = Rig::shared("definitions::a_set_without_replicas_can_be_scaled").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("scaled").await;
    let mut set = named("MachineSet", "set", sample("MachineSet").object);
    set["spec"].as_object_mut().expect("an object").remove("replicas");
    namespace.apply(&set.to_string()).await.succeed();
    namespace
        .kubectl(&[
            "patch",
            "machineset",
            "set",
            "--subresource=status",
            "--type=merge",
            "-p",
            r#"{"status": {"selector": "a=b"}}"#,
        ])
        .await
        .succeed();
    let scale = namespace.kubectl(&["get", "machineset", "set", "--subresource=scale", "-o", "json"]).await.json();
    assert_eq!(scale["status"]["selector"], "a=b");
    namespace.kubectl(&["scale", "machineset", "set", "--replicas=2"]).await.succeed();
    assert_eq!(namespace.get("machineset", "set").await["spec"]["replicas"], 2);
}

#[tokio::test]
async fn kubectl_explains_and_lists_the_kinds() {
    let Some(rig) = Rig::shared("definitions::kubectl_explains_and_lists_the_kinds").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("explained").await;
    let explained = rig.kubectl(&["explain", "machine.spec"]).await.succeed();
    assert!(explained.contains("drainTimeout\t<string>"), "{explained}");
    namespace.apply(&named("Machine", "m", sample("Machine").object).to_string()).await.succeed();
    let listed = namespace.kubectl(&["get", "mcm"]).await.succeed();
    assert!(listed.contains("machine.machine.sapcloud.io/m"), "{listed}");
    let table = namespace.kubectl(&["get", "mc", "-o", "wide"]).await.succeed();
    let heads: Vec<_> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(heads, ["NAME", "STATUS", "AGE", "NODE", "PROVIDERID"]);
}
