//! `mcm uninstall` on a real API server: everything that the manager has installed is removed, in an order that never locks the cluster.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use machine_api::kind::{ApiVersion, Kind};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        cluster_object::text,
        manager::{mcm as printed, run},
    },
    versions::{qualified, serve_v1beta1},
};

async fn uninstall(arguments: &[String], answer: &str) -> (i32, String, String) {
    mcm("uninstall", arguments, answer).await
}

/// Runs a command; returns exit code, output and errors.
async fn mcm(command: &str, arguments: &[String], answer: &str) -> (i32, String, String) {
    run([&[command.to_owned()][..], arguments].concat(), answer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_the_manager_is_removed_and_the_objects_stay() {
    let Some(rig) = Rig::own("uninstall::everything_of_the_manager_is_removed").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("uninstall").await;
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    manager.register_webhooks(&rig, &namespace).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    fleet::running_machines(&namespace, 1, Duration::from_secs(60)).await;
    // This is the last step, because from then on kubectl shows objects in the newer version.
    serve_v1beta1(&rig, &namespace, &manager).await;

    // The manager runs without leader election in this test. This task renews the Lease that a leader would renew.
    let leader = renew_lease(&rig, &namespace).await;

    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    let mut arguments =
        vec![format!("--kubeconfig={}", kubeconfig.display()), format!("--namespace={}", namespace.name)];
    check_doctor(&rig, &namespace.name, &arguments).await;
    let dry = [arguments.clone(), vec!["--dry-run".to_owned()]].concat();
    let (code, said, errors) = uninstall(&dry, "").await;
    assert_eq!(code, 0, "{errors}");
    for line in [
        "would delete APIService v1alpha1.views.machine.sapcloud.io",
        "would delete ValidatingWebhookConfiguration machine-controller-manager",
        "would stop serving v1beta1 of machines.machine.sapcloud.io",
        "would remove the finalizer from MachineDeployment pool",
        "would remove the finalizer from Node ",
        "1 machines have a VM",
    ] {
        assert!(said.contains(line), "{line:?} missing in:\n{said}");
    }
    let (code, _, errors) = uninstall(&arguments, "yes\n").await;
    assert!(code == 1 && errors.contains("nothing was done"), "{errors}");
    assert!(rig.kubectl(&["get", "validatingwebhookconfiguration", "machine-controller-manager"]).await.succeeded());

    // While a manager runs, the command keeps the objects that the manager would restore, and removes the objects that depend on the manager.
    let (code, said, errors) = uninstall(&arguments, &format!("{}\n", namespace.name)).await;
    assert!(
        code == 1 && errors.contains("a manager is running (somebody renews Lease machine-controller)"),
        "{said}{errors}"
    );
    let left = rig.kubectl(&["get", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-o", "name"]).await;
    assert_eq!(left.succeed(), "");
    let forced = [arguments.clone(), vec!["--yes".to_owned(), "--force".to_owned()]].concat();
    let (code, _, errors) = uninstall(&forced, "").await;
    assert!(code == 1 && errors.contains("somebody renews Lease machine-controller"), "{errors}");
    manager.terminate();
    leader.abort();
    namespace.kubectl(&["get", &qualified(Kind::Machine, ApiVersion::V1alpha1)]).await.succeed();

    // A crashed leader leaves its name in the Lease. Only the user can know that it does not return.
    arguments.push("--yes".to_owned());
    let (code, _, errors) = uninstall(&arguments, "").await;
    assert!(code == 1 && errors.contains("did not renew it") && errors.contains("--force"), "{errors}");
    let (code, said, errors) = uninstall(&forced, "").await;
    assert_eq!(code, 0, "{said}{errors}");
    // kubectl caches for some time that the newer version is served.
    let ours = Kind::ALL.map(|kind| qualified(kind, ApiVersion::V1alpha1));
    for resource in ours.iter().map(String::as_str).chain(["nodes", "secrets"]) {
        for object in namespace.list(resource).await {
            assert!(!object["metadata"]["finalizers"].to_string().contains("machine.sapcloud.io"), "{object}");
        }
    }
    let machines = namespace.list(&qualified(Kind::Machine, ApiVersion::V1alpha1)).await;
    assert!(!machines.is_empty(), "the objects remain");
    let definition = rig.get("crd", "machines.machine.sapcloud.io").await;
    assert_eq!(text(&definition, "/spec/conversion/strategy"), "None");
    let secret = namespace.kubectl(&["get", "secret", "machine-controller-manager-certs", "--ignore-not-found"]).await;
    assert_eq!(secret.succeed(), "");
    let (code, said, _) = uninstall(&arguments, "").await;
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("nothing is left that this command removes\n"), "{said}");
    assert!(said.contains(&format!("left: Lease {}/machine-controller\n", namespace.name)), "{said}");
    namespace.kubectl(&["delete", "lease", "machine-controller"]).await.succeed();
    arguments.pop();
    let (code, said, errors) = mcm("doctor", &arguments, "").await;
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("off     ValidatingWebhookConfiguration machine-controller-manager: is not there"), "{said}");
}

/// A holder of a Lease whose clock is years behind, and which continues to renew the Lease.
pub async fn renew_lease(rig: &Rig, namespace: &Namespace) -> JoinHandle<()> {
    let leases: Api<Lease> = Api::namespaced(rig.client().await, &namespace.name);
    let lease = move |second: u32| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "machine-controller"},
            "spec": {
                "holderIdentity": "somebody", "leaseDurationSeconds": 1,
                "renewTime": format!("2019-01-01T00:{:02}:{:02}.000000Z", second / 60 % 60, second % 60),
            },
        })
    };
    namespace.apply(&lease(0).to_string()).await.succeed();
    tokio::spawn(async move {
        for second in 1.. {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // The next renewal replaces a lost one.
            let renewed = Patch::Merge(json!({"spec": lease(second)["spec"]}));
            let _ = leases.patch("machine-controller", &PatchParams::default(), &renewed).await;
        }
    })
}

/// A machine without a manager.
fn machine(finalizers: &Value, labels: &Value) -> String {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "finalizers": finalizers, "labels": labels},
        "spec": {"class": {"kind": "MachineClass", "name": "c"}},
    })
    .to_string()
}

const MACHINE_FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";

/// An incomplete uninstallation would be worse than none.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_before_anything_is_done() {
    let Some(rig) = Rig::own("uninstall::a_missing_right").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("rights").await;
    namespace.apply(&machine(&json!([MACHINE_FINALIZER]), &json!({}))).await.succeed();
    rig.apply(&printed(&["manifests", "webhooks", "--namespace", &namespace.name])).await.succeed();
    let may = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, \
               rules: [{apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch, create, delete]}]}";
    rig.apply(may).await.succeed();
    rig.kubectl(&["create", "clusterrolebinding", "reader", "--clusterrole=reader", "--user=alice"]).await.succeed();
    let kubeconfig = format!("--kubeconfig={}", rig.folder.join("alice.kubeconfig").display());
    let arguments = [kubeconfig, format!("--namespace={}", namespace.name), "--yes".to_owned()];
    let (code, said, errors) = uninstall(&arguments, "").await;
    assert_eq!(code, 1, "{said}{errors}");
    let named = format!("machines in namespace {}", namespace.name);
    assert!(errors.contains("may not: ") && errors.contains("nothing was done"), "{errors}");
    assert!(errors.contains(&named), "{errors}");
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        rig.kubectl(&["get", kind, "machine-controller-manager"]).await.succeed();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_the_manager_of_another_namespace_stay() {
    let why = "the development server has no ValidatingAdmissionPolicies";
    let Some(rig) = Rig::own_real("uninstall::objects_of_another_manager", why).await else { return };
    rig.install_crds().await;
    let (right, wrong) = (rig.namespace("right").await, rig.namespace("wrong").await);
    let node = "{apiVersion: v1, kind: Node, metadata: {name: NAME, finalizers: [node.machine.sapcloud.io/machine-controller]}}";
    for name in ["ours", "theirs"] {
        rig.apply(&node.replace("NAME", name)).await.succeed();
    }
    right.apply(&machine(&json!([MACHINE_FINALIZER]), &json!({"node": "ours"}))).await.succeed();
    wrong.apply(&machine(&json!([]), &json!({}))).await.succeed();
    for part in ["rbac", "webhooks", "policies"] {
        rig.apply(&printed(&["manifests", part, "--namespace", &right.name])).await.succeed();
    }
    let registrations = || async {
        let kinds = "validatingwebhookconfiguration,mutatingwebhookconfiguration,validatingadmissionpolicy,\
                     validatingadmissionpolicybinding";
        let all = ["get", kinds, "-l", "app.kubernetes.io/name=machine-controller-manager", "-o", "name"];
        rig.kubectl(&all).await.succeed().lines().count()
    };
    assert_eq!(registrations().await, 8);
    let kubeconfig = rig.manager_kubeconfig(&right, Rights::Everything).await;
    let of = |namespace: &Namespace, more: &[&str]| {
        let mut arguments = vec![format!("--kubeconfig={}", kubeconfig.display()), "--yes".to_owned()];
        arguments.push(format!("--namespace={}", namespace.name));
        arguments.extend(more.iter().map(|&word| word.to_owned()));
        arguments
    };

    // The wrong namespace by mistake.
    let (code, said, errors) = uninstall(&of(&wrong, &[]), "").await;
    let named = format!("it calls a Service of namespace {}", right.name);
    assert!(
        code == 1 && errors.contains("nothing of a manager is in namespace") && errors.contains(&named),
        "{said}{errors}"
    );

    // A namespace with finalizers to remove. Its Nodes are in another cluster, which the user did not name.
    let patch = json!({"metadata": {"finalizers": [MACHINE_FINALIZER], "labels": {"node": "elsewhere"}}}).to_string();
    wrong.kubectl(&["patch", "machine", "m", "--type=merge", "-p", &patch]).await.succeed();
    let (code, said, errors) = uninstall(&of(&wrong, &[]), "").await;
    assert!(code == 1 && errors.contains("--target-kubeconfig FILE"), "{said}{errors}");
    assert!(wrong.get("machine", "m").await["metadata"]["finalizers"].is_array());
    let (code, said, errors) = uninstall(&of(&wrong, &["--target-kubeconfig=none"]), "").await;
    assert_eq!(code, 0, "{said}{errors}");
    assert!(said.contains("done: remove the finalizer from Machine m"), "{said}");
    assert!(said.contains("left: ValidatingWebhookConfiguration machine-controller-manager: it calls"), "{said}");
    assert!(said.contains("left: ValidatingAdmissionPolicy machine-controller-manager-static: it is of"), "{said}");
    assert_eq!(registrations().await, 8);

    // The right namespace: the policies are removed with the webhooks, the finalizer of one Node is removed, and the output names the remaining
    // objects.
    let (code, said, errors) = uninstall(&of(&right, &[]), "").await;
    assert_eq!(code, 0, "{said}{errors}");
    assert_eq!(registrations().await, 0);
    let finalizers =
        async |node: &str| rig.kubectl(&["get", "node", node, "-o", "jsonpath={.metadata.finalizers}"]).await.succeed();
    assert_eq!(finalizers("ours").await, "");
    assert!(finalizers("theirs").await.contains("machine-controller"));
    for line in ["left: the finalizer of Nodes that no machine", "left: ServiceAccount ", "left: ClusterRoleBinding "] {
        assert!(said.contains(line), "{line:?} missing in:\n{said}");
    }
}

/// The output of the doctor for a healthy cluster, and for a cluster whose views have no server.
async fn check_doctor(rig: &Rig, namespace: &str, arguments: &[String]) {
    let (code, said, errors) = mcm("doctor", arguments, "").await;
    assert_eq!(code, 1, "the clock of the leader is years behind: {said}{errors}");
    for line in [
        "BAD     Clock of somebody: it is ",
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
            "service": {"namespace": namespace, "name": "nobody", "port": 443}},
    });
    rig.apply(&service.to_string()).await.succeed();
    let with_json = [arguments, &["--output=json".to_owned()]].concat();
    let (code, said, errors) = mcm("doctor", &with_json, "").await;
    assert_eq!(code, 1, "{said}{errors}");
    let answer: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let bad: Vec<&serde_json::Value> =
        answer["findings"].as_array().expect("a list").iter().filter(|finding| finding["health"] == "Bad").collect();
    let [views, clock] = bad.as_slice() else { panic!("{said}") };
    assert_eq!(clock["subject"], "Clock of somebody");
    assert_eq!(views["subject"], "APIService v1alpha1.views.machine.sapcloud.io");
    assert!(text(views, "/message").contains("no namespace of the cluster can be deleted"), "{views}");
}
