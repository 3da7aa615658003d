//! The rig itself: it starts, separates tests and leaves nothing behind.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use controller_runtime::{error::ApiError, server_version::CONTROL};
use kube::api::{Api, Patch, PatchParams};
use machine_api::v1alpha1::Machine;
use serde_json::json;

use crate::{
    guard,
    support::{Rig, backend::Backend, process::Process, scratch, wait_until},
};

#[tokio::test]
async fn the_api_server_answers_kubectl() {
    let Some(rig) = Rig::shared("rig::the_api_server_answers_kubectl").await else { return };
    let version = rig.kubectl(&["version", "-o", "json"]).await.json();
    assert_eq!(version["serverVersion"]["major"], "1");
}

/// The scripts print the versions that can be built. `scripts/test-kubernetes` runs the tests with each.
#[tokio::test]
async fn the_api_server_has_the_version_that_was_asked_for() {
    let Some(rig) = Rig::shared("rig::the_api_server_has_the_version_that_was_asked_for").await else { return };
    if rig.backend() == Backend::Real && std::env::var_os("KUBEBUILDER_ASSETS").is_none() {
        let version = rig.kubectl(&["version", "-o", "json"]).await.json();
        let wanted = std::env::var("MCM_TEST_KUBERNETES").unwrap_or_else(|_| "1.36".to_owned());
        let minor = version["serverVersion"]["minor"].as_str().unwrap_or_default().trim_end_matches('+').to_owned();
        assert_eq!(format!("1.{minor}"), wanted, "{version}");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/test-assets");
    let printed = std::process::Command::new(script).arg("--versions").output().expect("the script starts");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let minors: Vec<u32> = printed.lines().filter_map(|line| line.strip_prefix("1.")?.parse().ok()).collect();
    for minor in CONTROL.from..=CONTROL.to {
        assert!(minors.contains(&minor), "scripts/test-assets can't build 1.{minor}, which is supported: {printed}");
    }
    let unknown = std::process::Command::new(script).env("MCM_TEST_KUBERNETES", "1.9").output().expect("it starts");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && said.contains("MCM_TEST_KUBERNETES=1.9 is unknown"), "{said}");
}

#[tokio::test]
async fn a_client_of_our_library_reaches_it() {
    let Some(rig) = Rig::shared("rig::a_client_of_our_library_reaches_it").await else { return };
    let version = rig.client().await.apiserver_version().await.expect("the API server answers");
    assert_eq!(version.major, "1");
}

/// A driver may return a state of any size, and the state is written into the status.
#[tokio::test]
async fn a_status_that_is_too_large_is_refused_as_too_large() {
    let Some(rig) = Rig::shared("rig::a_status_that_is_too_large_is_refused_as_too_large").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("large").await;
    let class = json!({"kind": "MachineClass", "name": "c"});
    let machine = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"}, "spec": {"class": class},
    });
    namespace.apply(&machine.to_string()).await.succeed();
    let machines: Api<Machine> = Api::namespaced(rig.client().await, &namespace.name);
    // Only a little too large: an API server that leaves most of a body unread ends the connection, which may hide its answer.
    let status = json!({"status": {"lastKnownState": "s".repeat(3 << 20)}});
    let refused = machines.patch_status("m", &PatchParams::default(), &Patch::Merge(&status)).await;
    let error = ApiError::from(refused.expect_err("an API server reads 3 MiB"));
    assert!(matches!(&error, ApiError::TooLarge(_)) && error.is_refusal(), "{error:?}");
}

#[tokio::test]
async fn namespaces_keep_tests_apart() {
    let Some(rig) = Rig::shared("rig::namespaces_keep_tests_apart").await else { return };
    let (mine, yours) = (rig.namespace("apart").await, rig.namespace("apart").await);
    assert_ne!(mine.name, yours.name);
    mine.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: mine}}").await.succeed();
    assert_eq!(mine.get("configmap", "mine").await["metadata"]["namespace"], mine.name.as_str());
    assert!(yours.list("configmaps").await.is_empty());
}

#[tokio::test]
async fn what_tests_read_is_what_kubectl_prints() {
    let Some(rig) = Rig::shared("rig::what_tests_read_is_what_kubectl_prints").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("read").await;
    let class = json!({"kind": "MachineClass", "name": "c"});
    namespace.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {key: value}}").await.succeed();
    let machine = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"}, "spec": {"class": class},
    });
    namespace.apply(&machine.to_string()).await.succeed();
    for resource in
        ["configmaps", "cm", "machine", "mc", "machines.machine.sapcloud.io", "machines.v1alpha1.machine.sapcloud.io"]
    {
        let printed = namespace.kubectl(&["get", resource, "-o", "json"]).await.json();
        let read = namespace.list(resource).await;
        assert_eq!(printed["items"], json!(read), "{resource}");
        let printed = namespace.kubectl(&["get", resource, "m", "-o", "json"]).await.json();
        assert_eq!(printed, namespace.get(resource, "m").await, "{resource}");
        assert_eq!((read.len(), read[0]["metadata"]["managedFields"].is_null()), (1, true), "{resource}");
    }
    let printed = rig.kubectl(&["get", "clusterrole", "cluster-admin", "-o", "json"]).await.json();
    assert_eq!(printed, rig.get("clusterrole", "cluster-admin").await);
}

#[tokio::test]
async fn a_namespace_is_deleted_by_the_controller_manager() {
    let Some(rig) = Rig::shared("rig::a_namespace_is_deleted_by_the_controller_manager").await else { return };
    rig.with_controller_manager().await;
    let namespace = rig.namespace("deleted").await;
    rig.kubectl(&["delete", "namespace", &namespace.name, "--wait=false"]).await.succeed();
    wait_until("the namespace to go", Duration::from_secs(60), || async {
        let answer = rig.kubectl(&["get", "namespace", &namespace.name]).await;
        if answer.stderr.contains("NotFound") { Ok(()) } else { Err(answer.stdout) }
    })
    .await;
}

#[tokio::test]
async fn a_budget_refuses_evictions_without_any_kubelet() {
    let Some(rig) = Rig::shared("rig::a_budget_refuses_evictions_without_any_kubelet").await else { return };
    rig.with_controller_manager().await;
    let namespace = rig.namespace("budget").await;
    guard::a_pod_on(&namespace, "no-such-node").await;
    let eviction = rig.folder.join("eviction.json");
    let body = r#"{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "guarded"}}"#;
    std::fs::write(&eviction, body).expect("the rig's folder is writable");
    let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", namespace.name, guard::NAME);
    let evict = ["create", "--raw", path.as_str(), "-f", eviction.to_str().expect("UTF-8")];
    let refusal = rig.kubectl(&evict).await.fail();
    assert!(refusal.contains("disruption budget"), "{refusal}");
    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    rig.kubectl(&evict).await.succeed();
    assert!(namespace.list("pods").await.is_empty());
}

#[test]
fn a_process_ends_when_its_handle_is_dropped() {
    let folder = scratch::subfolder("rope");
    let process = Process::start(&folder, "sleep", Path::new("/bin/sleep"), &["1000".to_owned()]);
    let proc_entry = format!("/proc/{}/cmdline", process.pid());
    // The shell writes the pid after its fork. The program replaces the shell a moment later.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(&proc_entry).expect("it runs").starts_with("/bin/sleep\0") {
        assert!(Instant::now() < deadline, "the program does not start");
        std::thread::yield_now();
    }
    drop(process);
    assert!(std::fs::read_to_string(&proc_entry).unwrap_or_default().is_empty());
}

#[test]
fn a_process_reports_its_end() {
    let folder = scratch::subfolder("end");
    let arguments = ["-c".to_owned(), "echo done; exit 7".to_owned()];
    let mut process = Process::start(&folder, "sh", Path::new("/bin/sh"), &arguments);
    assert_eq!(process.wait(Duration::from_secs(10)), 7);
    assert_eq!(process.log(), "done\n");
    let mut sleep = Process::start(&folder, "sleep", Path::new("/bin/sleep"), &["1000".to_owned()]);
    sleep.signal("TERM");
    assert_eq!(sleep.wait(Duration::from_secs(10)), 128 + 15);
}
