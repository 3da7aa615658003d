//! `mcm support-bundle` against clusters that are broken, large, and full of secrets.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use machine_api::v1alpha1::Machine;
use serde_json::{Value, json};

use crate::support::{Namespace, Rig, cluster_object::text, manager, scratch};

/// A text that must be in no file.
const CANARY: &str = "canary-c0ffee-4711";
/// The longest time and the largest file for a thousand machines.
const LONGEST: Duration = Duration::from_secs(60);
const LARGEST: u64 = 50 << 20;

/// The exit code and the output of the command.
async fn made(kubeconfig: &Path, namespace: &str, further: &[&str]) -> (i32, String) {
    let (kubeconfig, namespace) =
        (format!("--kubeconfig={}", kubeconfig.display()), format!("--namespace={namespace}"));
    let arguments = [&["support-bundle", &kubeconfig, &namespace][..], further].concat();
    let (code, output, errors) = manager::run(arguments, "").await;
    (code, output + &errors)
}

/// All files of an archive: path below its folder, and content.
fn unpacked(archive: &Path) -> Vec<(String, String)> {
    let folder = scratch::subfolder("bundle");
    let run = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(&folder).output().expect("tar runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let mut files = Vec::new();
    let mut folders = vec![folder.clone()];
    while let Some(place) = folders.pop() {
        for entry in std::fs::read_dir(place).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(&folder).expect("below").components().skip(1).collect::<PathBuf>();
            files.push((below.display().to_string(), std::fs::read_to_string(&path).expect("UTF-8")));
        }
    }
    files
}

fn file<'a>(files: &'a [(String, String)], path: &str) -> &'a str {
    let found = files.iter().find(|(known, _)| known == path);
    let paths: Vec<&String> = files.iter().map(|(path, _)| path).collect();
    &found.unwrap_or_else(|| panic!("no {path} in {paths:?}")).1
}

fn index(files: &[(String, String)]) -> Value {
    serde_json::from_str(file(files, "index.json")).expect("it is JSON")
}

/// The reason of a gap.
fn gap<'a>(index: &'a Value, what: &str) -> &'a str {
    let gaps = index["gaps"].as_array().expect("a list");
    let found = gaps.iter().find(|gap| text(gap, "/what") == what);
    text(found.unwrap_or_else(|| panic!("no gap {what} in {index:#}")), "/why")
}

/// A class with its Secret, a machine and a Node, and the canary in each place that must not be read by others.
async fn canaries(rig: &Arc<Rig>, namespace: &Namespace) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "stringData": {"userData": format!("#cloud-config\npassword: data-{CANARY}\n"), "token": format!("token-{CANARY}")}});
    namespace.apply(&secret.to_string()).await.succeed();
    let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
        "metadata": {"name": "c", "annotations": {"example.com/note": format!("note-{CANARY}")}},
        "provider": "virtual", "providerSpec": {"credential": format!("spec-{CANARY}")},
        "secretRef": {"name": "s", "namespace": namespace.name}});
    // Client-side apply stores the whole manifest in an annotation.
    let path = rig.folder.join("canary-class.json");
    std::fs::write(&path, class.to_string()).expect("the rig's folder is writable");
    namespace.kubectl(&["apply", "-f", &path.display().to_string()]).await.succeed();
    let machine = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "pool-x1", "labels": {"node": "node-x1"}},
        "spec": {"class": {"kind": "MachineClass", "name": "c"}, "providerID": "virtual:///pool-x1"}});
    namespace.apply(&machine.to_string()).await.succeed();
    let description = format!("the cloud refused spec-{CANARY} for token-{CANARY} at 10.4.5.6:443");
    let status = json!({"status": {"lastOperation": {"description": description}, "lastKnownState": format!("state-{CANARY}"),
        "currentStatus": {"phase": "Pending"}}});
    let patch = ["patch", "machine", "pool-x1", "--subresource=status", "--type=merge", "-p", &status.to_string()];
    namespace.kubectl(&patch).await.succeed();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-x1"}});
    rig.apply(&node.to_string()).await.succeed();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.4.5.7"}]}}).to_string();
    rig.kubectl(&["patch", "node", "node-x1", "--subresource=status", "--type=merge", "-p", &status]).await.succeed();
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "mcm-dead", "labels": {"app.kubernetes.io/name": "machine-controller-manager"}},
        "spec": {"nodeName": "node-x1", "containers": [{"name": "m", "image": "example.com/mcm:1",
            "args": ["serve", "--namespace=x"], "env": [{"name": "TOKEN", "value": format!("env-{CANARY}")}]}]}});
    namespace.apply(&pod.to_string()).await.succeed();
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "pool-x1.1"},
        "involvedObject": {"kind": "Machine", "name": "pool-x1", "namespace": namespace.name}, "type": "Warning",
        "reason": "CreateFailed", "message": format!("refused env-{CANARY}"), "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z"});
    namespace.apply(&event.to_string()).await.succeed();
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_102_pk_107_a_bundle_of_a_broken_cluster_names_its_gaps_and_has_no_secret() {
    let Some(rig) = Rig::own("support_bundle::pk_107_broken").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("broken").await;
    canaries(&rig, &namespace).await;
    // The group of the views has no server.
    let views = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha1.views.machine.sapcloud.io"},
        "spec": {"group": "views.machine.sapcloud.io", "version": "v1alpha1", "groupPriorityMinimum": 100,
            "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": {"namespace": namespace.name, "name": "nobody", "port": 443}}});
    rig.apply(&views.to_string()).await.succeed();
    let archive = rig.folder.join("all.tar.gz");
    let began = Instant::now();
    let to_archive = format!("--file={}", archive.display());
    let (code, said) = made(rig.admin_kubeconfig(), &namespace.name, &[&to_archive]).await;
    assert_eq!(code, 0, "{said}");
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    let files = unpacked(&archive);
    for (path, content) in &files {
        assert!(!content.contains(CANARY), "{path}: {content}");
        assert!(!content.contains("10.4.5."), "{path}: {content}");
    }
    let index = index(&files);
    assert!(!gap(&index, "views/machineoutlooks.json").is_empty());
    assert!(!gap(&index, "replicas/mcm-dead/log.txt").is_empty(), "no kubelet answers");
    assert!(!gap(&index, "replicas/mcm-dead/metrics.txt").is_empty());
    let machines = file(&files, "objects/machines.json");
    assert!(machines.contains("the cloud refused [secret] for [secret] at [address]"), "{machines}");
    let class = file(&files, "objects/machineclasses.json");
    assert!(class.contains("\"credential\": \"<") && class.contains("last-applied-configuration"), "{class}");
    let secrets = file(&files, "objects/secrets.json");
    assert!(secrets.contains("\"userData\": \"<") && secrets.contains(" bytes>"), "{secrets}");
    assert!(file(&files, "replicas/pods.json").contains("--namespace=x"));
    assert!(file(&files, "doctor.json").contains("CustomResourceDefinition machines"));
    let events = index["files"].as_array().expect("a list").iter().find(|file| file["path"] == "objects/events.json");
    assert_eq!(events.expect("events")["from"], "2026-01-01T00:00:00Z");

    let pseudonyms = rig.folder.join("pseudonyms.tar.gz");
    let to_archive = format!("--file={}", pseudonyms.display());
    let flags = [to_archive.as_str(), "--pseudonyms", "--keep-addresses"];
    let (code, said) = made(rig.admin_kubeconfig(), &namespace.name, &flags).await;
    assert_eq!(code, 0, "{said}");
    let files = unpacked(&pseudonyms);
    for (path, content) in &files {
        for name in ["pool-x1", "node-x1", CANARY] {
            assert!(!content.contains(name) && !path.contains(name), "{name} in {path}: {content}");
        }
    }
    assert!(file(&files, "target/nodes.json").contains("10.4.5.7"));

    // The preview writes no file.
    let before = std::fs::read_dir(&rig.folder).expect("a folder").count();
    let (code, said) = made(rig.admin_kubeconfig(), &namespace.name, &["--list"]).await;
    assert!(code == 0 && said.contains("  objects/machines.json\n"), "{said}");
    assert!(said.contains("   missing  views/machineoutlooks.json: "), "{said}");
    assert_eq!(std::fs::read_dir(&rig.folder).expect("a folder").count(), before);

    with_few_rights(&rig, &namespace).await;
    without_an_api_server(&rig, &namespace).await;
}

async fn with_few_rights(rig: &Arc<Rig>, namespace: &Namespace) {
    let role = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: few}, rules: [{apiGroups: \
                [machine.sapcloud.io], resources: [machines], verbs: [get, list]}]}";
    rig.apply(role).await.succeed();
    rig.kubectl(&["create", "clusterrolebinding", "few", "--clusterrole=few", "--user=alice"]).await.succeed();
    let archive = rig.folder.join("few.tar.gz");
    let alice = rig.folder.join("alice.kubeconfig");
    let to_archive = format!("--file={}", archive.display());
    let (code, said) = made(&alice, &namespace.name, &[&to_archive]).await;
    assert_eq!(code, 0, "{said}");
    let files = unpacked(&archive);
    let index = index(&files);
    for (what, right) in [
        ("objects/machineclasses.json", "list machineclasses.machine.sapcloud.io"),
        ("objects/secrets.json", "get secrets"),
        ("target/nodes.json", "list nodes"),
        ("replicas/pods.json", "list pods"),
        ("objects/leases.json", "list leases.coordination.k8s.io"),
    ] {
        let why = gap(&index, what);
        assert!(why.contains(&format!("lacks the right to {right}")), "{what}: {why}");
        assert!(said.contains(&format!("missing: {what}: ")), "{said}");
    }
    assert!(file(&files, "objects/machines.json").contains("pool-x1"));
    // What is not known can't be found in texts of other programs. The index says so.
    assert!(gap(&index, "redaction").contains("were not searched"));
}

async fn without_an_api_server(rig: &Arc<Rig>, namespace: &Namespace) {
    rig.stop_api_server();
    let archive = rig.folder.join("none.tar.gz");
    let to_archive = format!("--file={}", archive.display());
    let (code, said) = made(rig.admin_kubeconfig(), &namespace.name, &[&to_archive]).await;
    assert_eq!(code, 0, "{said}");
    let index = index(&unpacked(&archive));
    assert!(!gap(&index, "objects/machines.json").is_empty() && !gap(&index, "version.json").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_107_a_bundle_of_a_thousand_machines_is_made_in_time_and_is_small() {
    let Some(rig) = Rig::own("support_bundle::pk_107_large").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("large").await;
    let machines: Api<DynamicObject> =
        Api::namespaced_with(rig.client().await, &namespace.name, &ApiResource::erase::<Machine>(&()));
    let make = |number: u32| {
        let machines = machines.clone();
        async move {
            let name = format!("pool-{number:04}");
            let machine: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
                "metadata": {"name": name, "labels": {"node": format!("node-{number:04}")}},
                "spec": {"class": {"kind": "MachineClass", "name": "c"}},
            }))
            .expect("a machine");
            machines.create(&PostParams::default(), &machine).await.expect("it is created");
            let condition = json!({"type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": format!("kubelet {number} is posting ready status"),
                "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z"});
            let status =
                Patch::Merge(json!({"status": {"currentStatus": {"phase": "Running"}, "conditions": [condition],
                "lastOperation": {"description": format!("Machine {name} successfully joined the cluster")}}}));
            machines.patch_status(&name, &PatchParams::default(), &status).await.expect("its status is written");
        }
    };
    stream::iter(0..1000).map(make).buffer_unordered(16).collect::<Vec<()>>().await;
    let archive = rig.folder.join("large.tar.gz");
    let began = Instant::now();
    let to_archive = format!("--file={}", archive.display());
    let flags = [to_archive.as_str(), "--pseudonyms"];
    let (code, said) = made(rig.admin_kubeconfig(), &namespace.name, &flags).await;
    assert_eq!(code, 0, "{said}");
    let (took, size) = (began.elapsed(), std::fs::metadata(&archive).expect("it is there").len());
    assert!(took < LONGEST && size < LARGEST, "{took:?}, {size} bytes");
    let files = unpacked(&archive);
    let stored: Value = serde_json::from_str(file(&files, "objects/machines.json")).expect("it is JSON");
    assert_eq!(stored.as_array().map(Vec::len), Some(1000));
    assert!(index(&files)["gaps"].as_array().expect("a list").iter().all(|gap| gap["what"] != "objects/machines.json"));
}
