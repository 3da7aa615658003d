//! `mcm uninstall` on a real API server: what the manager has put on a cluster goes, in an order that locks nobody out.

use std::{process::Stdio, time::Duration};

use machine_controller_manager::api::kind::{ApiVersion, Kind};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::{
    fleet,
    support::{ManagerOptions, Rig, Rights, TestManager, cluster_object::text},
    versions::{qualified, serve_v1beta1},
};

async fn uninstall(arguments: &[String], answer: &str) -> (i32, String, String) {
    mcm("uninstall", arguments, answer).await
}

/// Runs a command; answers exit code, output and errors.
async fn mcm(command: &str, arguments: &[String], answer: &str) -> (i32, String, String) {
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcm"))
        .arg(command)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mcm starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    // Who is not asked need not read.
    let _ = stdin.write_all(answer.as_bytes()).await;
    drop(stdin);
    let run = child.wait_with_output().await.expect("mcm ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("mcm prints UTF-8");
    (run.status.code().unwrap_or(-1), text(run.stdout), text(run.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_the_manager_goes_and_the_objects_stay() {
    let Some(rig) = Rig::own("uninstall::everything_of_the_manager_goes").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("uninstall").await;
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    manager.register_webhooks(&rig, &namespace).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    fleet::running_machines(&namespace, 1, Duration::from_secs(60)).await;
    // Last, for kubectl shows what it finds in the newer version from then on.
    serve_v1beta1(&rig, &namespace, &manager).await;

    // The manager runs without leader election here; this is what others would see of it.
    let now = jiff::Timestamp::now();
    let lease = format!(
        "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: machine-controller}}, spec: {{holderIdentity: \
         somebody, leaseDurationSeconds: 3600, renewTime: \"{now:.6}\"}}}}"
    );
    namespace.apply(&lease).await.succeed();

    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    let mut arguments =
        vec![format!("--kubeconfig={}", kubeconfig.display()), format!("--namespace={}", namespace.name)];
    diagnoses(&rig, &arguments).await;
    let dry = [arguments.clone(), vec!["--dry-run".to_owned()]].concat();
    let (code, said, errors) = uninstall(&dry, "").await;
    assert_eq!(code, 0, "{errors}");
    for line in [
        "would delete APIService v1alpha1.views.machine.sapcloud.io",
        "would delete ValidatingWebhookConfiguration machine-controller-manager",
        "would stop serving v1beta1 of machines.machine.sapcloud.io",
        "would take the finalizer off MachineDeployment pool",
        "would take the finalizer off Node ",
        "1 machines have a VM",
    ] {
        assert!(said.contains(line), "{line:?} missing in:\n{said}");
    }
    let (code, _, errors) = uninstall(&arguments, "yes\n").await;
    assert!(code == 1 && errors.contains("nothing was done"), "{errors}");
    assert!(rig.kubectl(&["get", "validatingwebhookconfiguration", "machine-controller-manager"]).await.succeeded());

    // While a manager runs, what it would undo is left; what would depend on it is not.
    let (code, said, errors) = uninstall(&arguments, &format!("{}\n", namespace.name)).await;
    assert!(code == 1 && errors.contains("a manager is running"), "{said}{errors}");
    let left = rig.kubectl(&["get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o", "name"]).await;
    assert_eq!(left.succeed(), "");
    manager.terminate();
    namespace.kubectl(&["delete", "lease", "machine-controller"]).await.succeed();
    namespace.kubectl(&["get", &qualified(Kind::Machine, ApiVersion::V1alpha1)]).await.succeed();

    arguments.push("--yes".to_owned());
    let (code, said, errors) = uninstall(&arguments, "").await;
    assert_eq!(code, 0, "{said}{errors}");
    // kubectl remembers for some time that the newer version was served.
    let ours = Kind::ALL.map(|kind| qualified(kind, ApiVersion::V1alpha1));
    for resource in ours.iter().map(String::as_str).chain(["nodes", "secrets"]) {
        for object in namespace.list(resource).await {
            assert!(!object["metadata"]["finalizers"].to_string().contains("machine.sapcloud.io"), "{object}");
        }
    }
    let machines = namespace.list(&qualified(Kind::Machine, ApiVersion::V1alpha1)).await;
    assert!(!machines.is_empty(), "the objects stay");
    let definition = rig.kubectl(&["get", "crd", "machines.machine.sapcloud.io", "-o", "json"]).await.json();
    assert_eq!(text(&definition, "/spec/conversion/strategy"), "None");
    let secret = namespace.kubectl(&["get", "secret", "machine-controller-manager-certs", "--ignore-not-found"]).await;
    assert_eq!(secret.succeed(), "");
    let (code, said, _) = uninstall(&arguments, "").await;
    assert_eq!((code, said.as_str()), (0, "nothing of the manager is left\n"));
    arguments.pop();
    let (code, said, errors) = mcm("doctor", &arguments, "").await;
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("off     ValidatingWebhookConfiguration machine-controller-manager: is not there"), "{said}");
}

/// What the doctor says of a cluster that is well, and of one whose views nobody serves.
async fn diagnoses(rig: &Rig, arguments: &[String]) {
    let (code, said, errors) = mcm("doctor", arguments, "").await;
    assert_eq!(code, 0, "{said}{errors}");
    for line in [
        "fine    CustomResourceDefinition machines.machine.sapcloud.io: stored as v1alpha1",
        "fine    MutatingWebhookConfiguration machine-controller-manager: ",
        "off     APIService v1alpha1.views.machine.sapcloud.io: is not there",
        "off     Lease ",
        "machine-controller: held by somebody",
    ] {
        assert!(said.contains(line), "{line:?} missing in:\n{said}");
    }
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha1.views.machine.sapcloud.io"},
        "spec": {"group": "views.machine.sapcloud.io", "version": "v1alpha1", "groupPriorityMinimum": 100,
            "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": {"namespace": "default", "name": "nobody", "port": 443}},
    });
    rig.apply(&service.to_string()).await.succeed();
    let told = [arguments, &["--output=json".to_owned()]].concat();
    let (code, said, errors) = mcm("doctor", &told, "").await;
    assert_eq!(code, 1, "{said}{errors}");
    let answer: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let bad: Vec<&serde_json::Value> =
        answer["findings"].as_array().expect("a list").iter().filter(|finding| finding["health"] == "Bad").collect();
    let [views] = bad.as_slice() else { panic!("{said}") };
    assert_eq!(views["subject"], "APIService v1alpha1.views.machine.sapcloud.io");
    assert!(text(views, "/message").contains("no namespace of the cluster can be deleted"), "{views}");
}
