//! Both versions of the kinds on a real API server that uses our converter.
//!
//! The API server compares the converter's answer with its request, prunes fields, keeps field owners, and caches per version. A test of the
//! converter alone cannot show this.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use machine_api::{
    admission::convert,
    crd::{CrdOptions, V1Beta1},
    kind::Kind,
    names::annotation,
    webhooks::{Client as WebhookClient, Webhook},
};
use machine_controller_manager::{
    cli::manifests::crds::crds_yaml,
    server::{
        Answer, Health, Reply, Reviewer, Server, ServerOptions,
        tls::{CertMode, CertificateManager, CertificateSettings, Target, plan::PlanSettings},
    },
};
use mcm_metrics::Metrics;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Namespace, Rig, wait_until};

/// The converter behind the server's listener.
struct OnlyConversion;

impl Reviewer for OnlyConversion {
    fn review(&self, webhook: Webhook, _: &dyn Fn() -> bool, body: &[u8]) -> Reply {
        if webhook != Webhook::Convert {
            return Answer { status: 404, body: Vec::new() }.into();
        }
        let answer = convert(body);
        Answer { status: answer.status, body: answer.body }.into()
    }
}

/// Serves `/convert` on loopback, keeps the definitions' `caBundle` current, and returns the base URL.
async fn serve(client: Client, stop: &CancellationToken) -> String {
    let started = tokio::time::Instant::now();
    let metrics = Metrics::new(Arc::new(move || started.elapsed())).expect("metrics");
    let health = Health::default();
    let names = ["127.0.0.1".to_owned()].into();
    let mode = CertMode::Dev { settings: PlanSettings::for_names(names), targets: Target::all("none", None) };
    let settings = CertificateSettings {
        mode,
        sni: Vec::new(),
        clock: Arc::new(jiff::Timestamp::now),
        entropy: Arc::new(rand::random),
    };
    let certificates = CertificateManager::new(Some(client), settings, &metrics, &health).expect("certificates");
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ServerOptions { secure: Some(loopback), plain: Vec::new(), ..ServerOptions::default() };
    let server = Server::bind(options, &certificates.handle(), &health, &metrics).await.expect("a free port");
    let address = server.secure_address().expect("a TLS listener");
    tokio::spawn(certificates.run(stop.clone()));
    tokio::spawn(server.run(Arc::new(OnlyConversion), stop.clone()));
    format!("https://{address}")
}

fn api(client: &Client, namespace: &Namespace, kind: Kind, version: &str) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "machine.sapcloud.io".to_owned(),
        version: version.to_owned(),
        api_version: format!("machine.sapcloud.io/{version}"),
        kind: kind.to_string(),
        plural: kind.plural().to_owned(),
    };
    Api::namespaced_with(client.clone(), &namespace.name, &resource)
}

/// The objects that the Go original wrote, without the fields that would prevent their creation.
fn originals(kind: Kind) -> Vec<Value> {
    let text = match kind {
        Kind::Machine => include_str!("../fixtures/go/machines.json"),
        Kind::MachineSet => include_str!("../fixtures/go/machinesets.json"),
        Kind::MachineDeployment => include_str!("../fixtures/go/machinedeployments.json"),
        Kind::MachineClass => include_str!("../fixtures/go/machineclasses.json"),
    };
    let mut list: Value = serde_json::from_str(text).expect("JSON");
    let mut objects = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    for metadata in objects.iter_mut().filter_map(|object| object["metadata"].as_object_mut()) {
        for set_by_the_server in
            ["uid", "resourceVersion", "creationTimestamp", "generation", "namespace", "ownerReferences"]
        {
            metadata.remove(set_by_the_server);
        }
    }
    objects
}

async fn store_originals(client: &Client, namespace: &Namespace) {
    for kind in Kind::ALL {
        let api = api(client, namespace, kind, "v1alpha1");
        for object in originals(kind) {
            let status = object["status"].clone();
            let object: DynamicObject = serde_json::from_value(object).expect("an object");
            let mut stored = api.create(&PostParams::default(), &object).await.expect("it can be stored");
            if !status.is_null() {
                stored.data["status"] = status;
                api.replace_status(&stored.name_any(), &PostParams::default(), &stored).await.expect("its status too");
            }
        }
    }
}

/// The object without the fields that every write changes.
fn content(object: &DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).expect("JSON");
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    value
}

#[tokio::test]
async fn both_versions_are_the_same_objects() {
    let Some(rig) = Rig::own("conversion::both_versions_are_the_same_objects").await else { return };
    rig.install_crds().await;
    let client = rig.client().await;
    let namespace = rig.namespace("conversion").await;
    store_originals(&client, &namespace).await;

    let stop = CancellationToken::new();
    let url = serve(client.clone(), &stop).await;
    let served = CrdOptions { v1beta1: V1Beta1::Served(WebhookClient::Url(url)), ..CrdOptions::default() };
    rig.apply(&crds_yaml(&served)).await.succeed();
    for kind in Kind::ALL {
        wait_until(&format!("{kind} to be served in v1beta1"), Duration::from_secs(60), || async {
            let list = api(&client, &namespace, kind, "v1beta1").list(&ListParams::default()).await;
            match list {
                Ok(list) if list.items.len() == originals(kind).len() => Ok(()),
                Ok(list) => Err(format!("{} objects", list.items.len())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    writing_an_object_back_changes_nothing(&client, &namespace).await;
    an_edit_in_one_version_is_visible_in_the_other(&client, &namespace).await;
    fields_of_one_version_only_are_kept(&client, &namespace).await;
    an_apply_owns_its_fields(&client, &namespace).await;
    stop.cancel();
}

async fn writing_an_object_back_changes_nothing(client: &Client, namespace: &Namespace) {
    for kind in Kind::ALL {
        let (alpha, beta) = (api(client, namespace, kind, "v1alpha1"), api(client, namespace, kind, "v1beta1"));
        for object in beta.list(&ListParams::default()).await.expect("a list") {
            let name = object.name_any();
            let before = content(&alpha.get(&name).await.expect("it exists"));
            // In this client the items of a list have no API version of their own.
            let object = beta.get(&name).await.expect("it exists in v1beta1");
            beta.replace(&name, &PostParams::default(), &object).await.expect("it can be written in v1beta1");
            assert_eq!(content(&alpha.get(&name).await.expect("it exists")), before);
        }
    }
}

async fn an_edit_in_one_version_is_visible_in_the_other(client: &Client, namespace: &Namespace) {
    let kind = Kind::MachineDeployment;
    let (alpha, beta) = (api(client, namespace, kind, "v1alpha1"), api(client, namespace, kind, "v1beta1"));
    let change = json!({"spec": {"template": {"spec": {"lifecycle": {"drainTimeout": "7m"}}}}});
    beta.patch("rolling", &PatchParams::default(), &Patch::Merge(&change)).await.expect("a patch");
    let stored = alpha.get("rolling").await.expect("it exists");
    assert_eq!(stored.data["spec"]["template"]["spec"]["drainTimeout"], "7m");
    let wrong = json!({"spec": {"strategy": {"type": ""}}});
    let refused = beta.patch("rolling", &PatchParams::default(), &Patch::Merge(&wrong)).await.unwrap_err().to_string();
    assert!(refused.contains("spec.strategy.type"), "{refused}");
}

async fn fields_of_one_version_only_are_kept(client: &Client, namespace: &Namespace) {
    let (alpha, beta) =
        (api(client, namespace, Kind::Machine, "v1alpha1"), api(client, namespace, Kind::Machine, "v1beta1"));
    let name = alpha.list(&ListParams::default()).await.expect("a list").items.remove(0).name_any();
    let operation = json!({"type": "Delete", "state": "Processing", "message": "m", "nextStep": "InitiateDrain"});
    let change = json!({"status": {"observedGeneration": 2, "operation": operation}});
    beta.patch_status(&name, &PatchParams::default(), &Patch::Merge(&change)).await.expect("a patch");
    let stored = alpha.get(&name).await.expect("it exists");
    assert_eq!(stored.data["status"]["lastOperation"]["description"], "m. Initiate node drain");
    assert!(stored.annotations().contains_key(annotation::CONVERSION_V1BETA1));
    let shown = beta.get(&name).await.expect("it exists");
    assert_eq!(shown.data["status"]["operation"]["message"], "m");
    assert_eq!(shown.data["status"]["observedGeneration"], 2);
    assert!(!shown.annotations().contains_key(annotation::CONVERSION_V1BETA1));
}

async fn an_apply_owns_its_fields(client: &Client, namespace: &Namespace) {
    let kind = Kind::MachineDeployment;
    let (alpha, beta) = (api(client, namespace, kind, "v1alpha1"), api(client, namespace, kind, "v1beta1"));
    let with_lifecycle = |lifecycle: Value| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1beta1",
            "kind": "MachineDeployment",
            "metadata": {"name": "applied"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"type": "Recreate"},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"classRef": {"kind": "MachineClass", "name": "c"}, "lifecycle": lifecycle},
                },
            },
        })
    };
    let apply = PatchParams::apply("test");
    let first = with_lifecycle(json!({"healthCheck": "Disabled", "unhealthyNodeConditions": ["A", "B"]}));
    beta.patch("applied", &apply, &Patch::Apply(&first)).await.expect("an apply");
    let stored = alpha.get("applied").await.expect("it exists");
    assert_eq!(stored.data["spec"]["replicas"], 0);
    assert_eq!(stored.data["spec"]["template"]["spec"]["disableHealthTimeout"], true);
    assert_eq!(stored.data["spec"]["template"]["spec"]["nodeConditions"], "A,B");
    let second = with_lifecycle(json!({"unhealthyNodeConditions": ["A"]}));
    beta.patch("applied", &apply, &Patch::Apply(&second)).await.expect("an apply");
    let class = json!({"kind": "MachineClass", "name": "c"});
    let stored = alpha.get("applied").await.expect("it exists");
    assert_eq!(stored.data["spec"]["template"]["spec"], json!({"class": class, "nodeConditions": "A"}));
}
