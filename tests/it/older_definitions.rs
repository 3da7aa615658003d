//! Definitions that are older than the program: it works, `mcm doctor` names what they lack, and nothing is written that they would drop.

use std::time::Duration;

use machine_controller_manager::cli::documents::{parse_documents, to_yaml};
use serde_json::Value;

use crate::{
    fleet,
    support::{ManagerOptions, Rig, TestManager, cluster_object::text, manager::mcm, wait::expect, wait_until},
};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The fields of v1alpha1 that the older definitions lack, with the plural of their kind.
const LACKING: [(&str, &str); 2] = [("machines", "machineConditions"), ("machinedeployments", "selector")];

/// Today's definitions, without some fields of the status.
fn older() -> String {
    let documents = parse_documents("crds", &mcm(&["manifests", "crds"])).expect("mcm prints YAML");
    let mut all: Vec<Value> = documents.into_iter().map(|document| document.value).collect();
    for (plural, field) in LACKING {
        let definition = all.iter_mut().find(|definition| text(definition, "/spec/names/plural") == plural);
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        let fields = definition.and_then(|definition| definition.pointer_mut(status)?.as_object_mut());
        assert!(fields.expect("a status").remove(field).is_some(), "{plural} have status.{field}");
    }
    to_yaml(&all).expect("YAML")
}

/// A deployment of one machine whose class does not exist.
fn waiting(namespace: &str) -> String {
    let mut all: Value = serde_json::from_str(&fleet::manifests(namespace, "late", 1, "absent")).expect("JSON");
    all["items"][1]["metadata"]["name"] = "other".into();
    all.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_121_with_older_definitions_it_works_and_writes_no_field_that_they_drop() {
    let why = "the development server has no audit log";
    let Some(rig) = Rig::audited("older_definitions::pk_121", why).await else { return };
    rig.apply(&older()).await.succeed();
    rig.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]).await.succeed();
    let namespace = rig.namespace("older").await;
    let manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    wait_until("the log to name what is missing", TIMEOUT, || async {
        let log = manager.log();
        let named = LACKING.iter().all(|(_, field)| log.contains(&format!("v1alpha1: status.{field}")));
        expect(named, || log)
    })
    .await;
    // A machine whose class is missing has a condition, which these definitions drop.
    namespace.apply(&waiting(&namespace.name)).await.succeed();
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    wait_until("a running machine and a waiting one", TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        let running = machines.iter().filter(|machine| fleet::phase(machine) == "Running").count();
        expect(machines.len() == 2 && running == 1, || machines.iter().map(fleet::describe).collect())
    })
    .await;
    let kubeconfig = format!("--kubeconfig={}", rig.admin_kubeconfig().display());
    let mut doctor = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcm"));
    let doctor =
        doctor.args(["doctor", &kubeconfig, "--namespace", &namespace.name]).output().await.expect("it starts");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    for (plural, field) in LACKING {
        let line = said
            .lines()
            .find(|line| line.contains(&format!("{plural}.machine.sapcloud.io")) && line.starts_with("BAD"));
        assert!(line.is_some_and(|line| line.contains(&format!("status.{field}"))), "{said}");
    }
    // A deletion asks the driver of the class.
    namespace.apply(&fleet::manifests(&namespace.name, "late", 0, "absent")).await.succeed();
    namespace.kubectl(&["delete", "machinedeployment", "pool", "late", "--wait=false"]).await.succeed();
    fleet::none_left(&namespace, "machines", TIMEOUT).await;

    let written: Vec<Value> = rig
        .audit_of("mcm-under-test")
        .into_iter()
        .filter(|entry| {
            text(entry, "/objectRef/apiGroup") == "machine.sapcloud.io" && entry["requestObject"].is_object()
        })
        .collect();
    assert!(written.iter().any(|entry| text(entry, "/objectRef/subresource") == "status"), "statuses are written");
    for (plural, field) in LACKING {
        let of_kind = written.iter().filter(|entry| text(entry, "/objectRef/resource") == plural);
        let dropped: Vec<_> = of_kind.filter(|entry| !entry["requestObject"]["status"][field].is_null()).collect();
        assert!(dropped.is_empty(), "status.{field} of {plural} is dropped by the API server: {dropped:#?}");
    }
}
