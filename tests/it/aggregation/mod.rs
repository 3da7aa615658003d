//! The views through an aggregating API server, with kubectl as the client. The ids come from the specification.

mod drains;
mod kubectl;
mod plans;
mod plugin;
mod views;

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::support::{
    ManagerOptions, Rig, Rights, TestManager,
    aggregation::{available, register_views},
    kubectl::Answer,
    manager::mcm,
    rig::Namespace,
    wait_until,
};

const GROUP: &str = "views.machine.sapcloud.io";
const GROUP_VERSION: &str = "/apis/views.machine.sapcloud.io/v1alpha1";

/// An API server that forwards requests for views to a manager.
pub struct World {
    pub rig: Arc<Rig>,
    pub namespace: Namespace,
    pub manager: TestManager,
}

impl World {
    pub async fn begin(test: &str, flags: &[&str]) -> Option<Self> {
        Some(Self::on(Rig::aggregating(test).await?, flags).await)
    }

    async fn on(rig: Arc<Rig>, flags: &[&str]) -> Self {
        rig.install_crds().await;
        let namespace = rig.namespace("views").await;
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let options = ManagerOptions { rights: Rights::Generated, flags, ..ManagerOptions::default() };
        let manager = TestManager::start(&rig, &namespace, &options).await;
        register_views(&rig, &namespace, &manager).await;
        Self { rig, namespace, manager }
    }

    async fn raw(&self, path: &str) -> Answer {
        self.rig.kubectl(&["get", "--raw", path]).await
    }

    pub fn path(&self, rest: &str) -> String {
        format!("{GROUP_VERSION}/namespaces/{}/{rest}", self.namespace.name)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_138_xa_140_the_registration_is_available_and_discovered() {
    let Some(world) = World::begin("aggregation::available_and_discovered", &[]).await else { return };
    assert_eq!(available(&world.rig).await["reason"], "Passed");
    let list = world.raw(GROUP_VERSION).await.json();
    assert_eq!(
        (&list["kind"], &list["groupVersion"]),
        (&Value::from("APIResourceList"), &Value::from(&GROUP_VERSION[6..]))
    );
    for resource in list["resources"].as_array().expect("a list") {
        for verb in resource["verbs"].as_array().expect("verbs") {
            assert!(["get", "list", "create"].iter().any(|allowed| verb == allowed), "{resource}");
        }
    }
    wait_until("the group to be in aggregated discovery", Duration::from_secs(30), || async {
        let all = world.rig.kubectl(&["get", "--raw", "/apis"]).await.stdout;
        if all.contains(GROUP) { Ok(()) } else { Err(all) }
    })
    .await;
    // The registration contains only our own certificate authority.
    let object = world.rig.get("apiservice", "v1alpha1.views.machine.sapcloud.io").await;
    assert!(object["spec"]["caBundle"].as_str().is_some_and(|bundle| !bundle.is_empty()), "{object}");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_142_xa_144_the_callers_own_rights_count() {
    let Some(world) = World::begin("aggregation::own_rights", &[]).await else { return };
    let place = world.path("machineoutlooks");
    let refused = world.rig.kubectl_as_alice(&["get", "--raw", &place]).await;
    assert!(refused.stderr.contains("alice") && refused.stderr.contains(GROUP), "XA-142: {}", refused.stderr);
    let refused = world.rig.kubectl(&["get", "--raw", &place, "--as=carol"]).await;
    assert!(refused.stderr.contains("carol"), "XA-144: {}", refused.stderr);
    let can =
        world.rig.kubectl(&["auth", "can-i", "list", "machineoutlooks.views.machine.sapcloud.io", "--as=carol"]).await;
    assert_eq!(can.stdout.trim(), "no");
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_143_xa_169_headers_of_clients_are_no_identity_and_no_address() {
    let Some(rig) = Rig::aggregating("aggregation::headers_of_clients").await else { return };
    let log = rig.folder.join("audit.log");
    let world = World::on(rig, &[&format!("--audit-log-path={}", log.display())]).await;
    let request = || {
        http::Request::get(world.path("machineoutlooks"))
            .header("x-remote-user", "root")
            .header("x-remote-group", "system:masters")
            .header("x-forwarded-for", "9.9.9.9")
            .body(Vec::new())
            .expect("a request")
    };
    let refused = world.rig.client_of_alice().await.request_text(request()).await.expect_err("alice may not");
    assert!(refused.to_string().contains("alice"), "XA-143: {refused}");
    // The API server refuses alice itself. The request that reaches the manager comes from the administrator.
    let _ = world.rig.client().await.request_text(request()).await;
    wait_until("the request to be in the audit log", Duration::from_secs(10), || async {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut ours = events.filter(|event| event["objectRef"]["resource"] == "machineoutlooks");
        match ours.find(|event| event["user"]["username"] == "admin") {
            None => Err(text),
            Some(event) => {
                let sources = event["sourceIPs"].to_string();
                assert!(!sources.contains("9.9.9.9"), "XA-169: {event}");
                assert!(event["annotations"].to_string().contains("9.9.9.9"), "XA-169: {event}");
                Ok(())
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xa_153_xa_154_namespaces_are_deleted_while_the_manager_runs_and_stall_without_it() {
    let Some(mut world) = World::begin("aggregation::namespaces_stall", &[]).await else { return };
    world.rig.with_controller_manager().await;
    let rig = Arc::clone(&world.rig);
    let gone = async |name: &str, timeout: u64| {
        wait_until(&format!("namespace {name} to be gone"), Duration::from_secs(timeout), || async {
            let answer = rig.kubectl(&["get", "namespace", name]).await;
            if answer.stderr.contains("NotFound") { Ok(()) } else { Err(answer.stdout) }
        })
        .await;
    };
    let one = rig.namespace("gone").await;
    rig.kubectl(&["delete", "namespace", &one.name, "--wait=false"]).await.succeed();
    gone(&one.name, 60).await;

    world.manager.kill();
    let answer = world.raw(GROUP_VERSION).await;
    let texts = ["error trying to reach service", "service unavailable", "unable to handle the request"];
    assert!(texts.iter().any(|text| answer.stderr.contains(text)), "{}", answer.stderr);
    wait_until("the registration to be unavailable", Duration::from_secs(60), || async {
        let condition = available(&rig).await;
        if condition["reason"] == "FailedDiscoveryCheck" { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
    let two = rig.namespace("stalled").await;
    rig.kubectl(&["delete", "namespace", &two.name, "--wait=false"]).await.succeed();
    wait_until("the namespace to say why it stays", Duration::from_secs(60), || async {
        let text = rig.kubectl(&["get", "namespace", &two.name, "-o", "yaml"]).await.stdout;
        if text.contains("NamespaceDeletionDiscoveryFailure") { Ok(()) } else { Err(text) }
    })
    .await;
    // The first step of `mcm uninstall` unblocks the cluster.
    let kubeconfig = rig.manager_kubeconfig(&world.namespace, Rights::Everything).await.display().to_string();
    let said = mcm(&["uninstall", "--kubeconfig", &kubeconfig, "--namespace", &world.namespace.name, "--dry-run"]);
    assert!(said.starts_with("would delete APIService v1alpha1.views.machine.sapcloud.io"), "{said}");
    rig.kubectl(&["delete", "apiservice", "v1alpha1.views.machine.sapcloud.io"]).await.succeed();
    gone(&two.name, 60).await;
}
