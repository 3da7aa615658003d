//! `mcm migrate-storage` on a real API server: to v1beta1, with an interruption, and back.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    time::Duration,
};

use machine_api::kind::{ApiVersion, Kind};

use serde_json::{Value, json};

use crate::{
    protocol::post,
    support::{
        Namespace, Rig, Rights,
        manager::{ManagerOptions, TestManager},
        ports::free_port,
        secure::SecureConnection,
        wait::expect,
        wait_until,
    },
    versions::{POOL, qualified, serve_v1beta1},
};

const MCM: &str = env!("CARGO_BIN_EXE_mcm");
/// Enough machines to interrupt a run at 10 objects per second in the middle.
const MACHINES: usize = 60;

/// Runs the command to its end; returns exit code, output and errors.
async fn migrate(arguments: &[&str]) -> (i32, String, String) {
    let mut command = tokio::process::Command::new(MCM);
    let run = command.arg("migrate-storage").args(arguments).output().await.expect("mcm runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("mcm prints UTF-8");
    (run.status.code().unwrap_or(-1), text(run.stdout), text(run.stderr))
}

async fn make_machines(namespace: &Namespace, count: usize) {
    let machine = |number: usize| {
        format!(
            "---\napiVersion: machine.sapcloud.io/v1alpha1\nkind: Machine\nmetadata: {{name: m-{number}}}\n\
             spec: {{class: {{kind: MachineClass, name: c}}, nodeConditions: \"A,B\", drainTimeout: 5m}}\n"
        )
    };
    let all: String = (0..count).map(machine).collect();
    namespace.kubectl(&["get", "machines"]).await.succeed();
    namespace.apply(&all).await.succeed();
}

async fn stored_versions(rig: &Rig, kind: Kind) -> Value {
    let name = format!("{}.machine.sapcloud.io", kind.plural());
    rig.get("crd", &name).await["status"]["storedVersions"].take()
}

/// The visible content of the machines, without the fields that conversion and storage may change.
async fn content(namespace: &Namespace) -> Vec<Value> {
    let mut machines = namespace.list(&qualified(Kind::Machine, ApiVersion::V1alpha1)).await;
    for machine in &mut machines {
        for field in ["resourceVersion", "managedFields"] {
            machine["metadata"].as_object_mut().expect("metadata").remove(field);
        }
    }
    machines
}

/// Without its converter, an object is readable only in the version in which it is stored.
async fn is_stored_as(namespace: &Namespace, stored: ApiVersion, other: ApiVersion) {
    for machine in ["m-0", "m-3"] {
        namespace.kubectl(&["get", &qualified(Kind::Machine, stored), machine]).await.succeed();
        let failed = namespace.kubectl(&["get", &qualified(Kind::Machine, other), machine]).await.fail();
        assert!(failed.contains("conversion webhook"), "{failed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_migrates_to_v1beta1_with_an_interruption_and_back() {
    let Some(rig) = Rig::own("storage_migration::storage_migrates").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("migration").await;
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    make_machines(&namespace, MACHINES).await;
    let before = content(&namespace).await;

    // The target version is not served yet: the command is refused, names every definition, and changes nothing.
    let (code, _, errors) = migrate(&["--to=v1beta1", &kubeconfig]).await;
    assert_eq!(code, 1, "{errors}");
    assert_eq!(errors.lines().filter(|line| line.contains("--serve v1beta1")).count(), 4, "{errors}");
    let (code, said, errors) = migrate(&["--to=v1alpha1", &kubeconfig]).await;
    assert_eq!((code, said.matches("stored as v1alpha1 already").count()), (0, 4), "{said}{errors}");

    let options = ManagerOptions { flags: vec!["--controllers=none".to_owned()], ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    let (code, said, _) = migrate(&["--to=v1beta1", "--dry-run", &kubeconfig]).await;
    assert_eq!((code, said.matches("would make v1beta1 the storage version").count()), (0, 4), "{said}");
    assert_eq!(stored_versions(&rig, Kind::Machine).await, serde_json::json!(["v1alpha1"]));

    interrupted(&kubeconfig).await;
    assert_eq!(stored_versions(&rig, Kind::Machine).await, serde_json::json!(["v1alpha1", "v1beta1"]));
    assert_eq!(content(&namespace).await, before);

    let (code, said, errors) = migrate(&["--to=v1beta1", "--settle=3", "-ojson", &kubeconfig]).await;
    assert_eq!(code, 0, "{errors}");
    let reports: Vec<Value> = serde_json::from_str(&said).expect("JSON");
    let machines = reports.iter().find(|report| report["resource"] == "machines").expect("machines");
    assert_eq!((&machines["outcome"], &machines["objects"]), (&"migrated".into(), &MACHINES.into()));
    let rewritten = machines["rewritten"].as_u64().expect("a number");
    assert!((1..60).contains(&rewritten), "the rest of the interrupted run: {machines}");
    for kind in Kind::ALL {
        assert_eq!(stored_versions(&rig, kind).await, serde_json::json!(["v1beta1"]), "{kind}");
    }
    assert_eq!(content(&namespace).await, before);
    manager.kill();
    is_stored_as(&namespace, ApiVersion::V1beta1, ApiVersion::V1alpha1).await;

    manager.restart();
    manager.wait_until_ready().await;
    wait_until("v1alpha1 to be readable again", Duration::from_secs(60), || async {
        let answer = namespace.kubectl(&["get", &qualified(Kind::Machine, ApiVersion::V1alpha1)]).await;
        expect(answer.succeeded(), || answer.stderr.clone())
    })
    .await;
    let (code, said, errors) = migrate(&["--to=v1alpha1", "--settle=3", &kubeconfig]).await;
    assert_eq!(code, 0, "{errors}");
    assert!(said.contains("machines: all 60 objects are stored as v1alpha1; 60 were rewritten in 2 passes"), "{said}");
    for kind in Kind::ALL {
        assert_eq!(stored_versions(&rig, kind).await, serde_json::json!(["v1alpha1"]), "{kind}");
    }
    assert_eq!(content(&namespace).await, before);
    manager.kill();
    is_stored_as(&namespace, ApiVersion::V1alpha1, ApiVersion::V1beta1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_reads_stored_objects_without_a_converter() {
    let Some(rig) = Rig::own("storage_migration::without_a_converter").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("beta").await;
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    make_machines(&namespace, 4).await;
    let serving = ManagerOptions { flags: vec!["--controllers=none".to_owned()], ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &serving).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    let (code, _, errors) = migrate(&["--to=v1beta1", "--settle=1", &kubeconfig]).await;
    assert_eq!(code, 0, "{errors}");

    // The webhook server restarts on another port, where the API server does not find it. No object is converted, and the caches still fill.
    let converter = manager.secure_port;
    manager.kill();
    manager.secure_port = free_port();
    manager.restart_with(&[&format!("--secure-port={}", manager.secure_port)]);
    manager.wait_until_ready().await;
    wait_until("the caches to be complete", Duration::from_secs(30), || async {
        let said = deletion_of_class_c(manager.secure_port, &namespace.name).await;
        expect(said.contains("4 machines"), || said.clone())
    })
    .await;
    is_stored_as(&namespace, ApiVersion::V1beta1, ApiVersion::V1alpha1).await;

    // The controllers also work on the stored version.
    manager.kill();
    let flags = vec![format!("--secure-port={converter}")];
    let mut working =
        TestManager::start(&rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    wait_until("the converter to be found again", Duration::from_secs(60), || async {
        let answer = namespace.kubectl(&["get", &qualified(Kind::Machine, ApiVersion::V1alpha1)]).await;
        expect(answer.succeeded(), || answer.stderr.clone())
    })
    .await;
    namespace.apply(POOL).await.succeed();
    wait_until("six machines to run", Duration::from_secs(60), || async {
        let machines = namespace.list(&qualified(Kind::Machine, ApiVersion::V1beta1)).await;
        let running = machines.iter().filter(|machine| machine["status"]["phase"] == "Running").count();
        expect(running == 6, || format!("{running} of {}", machines.len()))
    })
    .await;
    assert_eq!(working.terminate(), 0);
}

/// A restart of the manager only delays the migration; the objects stay correct.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_waits_for_a_converter_that_is_unavailable_for_seconds() {
    let Some(rig) = Rig::own("storage_migration::an_unavailable_converter").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("away").await;
    let kubeconfig = rig.manager_kubeconfig(&namespace, Rights::Everything).await;
    make_machines(&namespace, 20).await;
    let options = ManagerOptions { flags: vec!["--controllers=none".to_owned()], ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    serve_v1beta1(&rig, &namespace, &manager).await;
    // So slow that the converter stops before the last object is rewritten, also on a busy host.
    let arguments = [
        "migrate-storage",
        "--to=v1beta1",
        "--settle=2",
        "--rate=2",
        &format!("--kubeconfig={}", kubeconfig.display()),
    ]
    .map(str::to_owned);
    let (switched, switch) = tokio::sync::oneshot::channel();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child =
            Command::new(MCM).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("mcm starts");
        let (mut errors, mut switched) = (String::new(), Some(switched));
        for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
            let line = line.expect("text");
            if line.ends_with("knows the storage version")
                && let Some(switched) = switched.take()
            {
                switched.send(()).expect("the test waits");
            }
            errors.push_str(&line);
            errors.push('\n');
        }
        (child.wait().expect("it ends").code(), errors)
    });
    switch.await.expect("the storage version is switched");
    manager.kill();
    // Reads a single object, the last one in order. The API server answers lists from objects that it converted before.
    wait_until("conversions to fail", Duration::from_secs(30), || async {
        let answer = namespace.kubectl(&["get", &qualified(Kind::Machine, ApiVersion::V1beta1), "m-9"]).await;
        expect(!answer.succeeded(), || answer.stdout.clone())
    })
    .await;
    // Longer than the settling time, so that rewrites need the converter while it is unavailable.
    tokio::time::sleep(Duration::from_secs(4)).await;
    manager.restart();
    let (code, errors) = ended.await.expect("no panic");
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(stored_versions(&rig, Kind::Machine).await, json!(["v1beta1"]));
}

/// The webhook's answer to a deletion of class `c`.
async fn deletion_of_class_c(port: u16, namespace: &str) -> String {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "DELETE", "namespace": namespace, "name": "c", "userInfo": {"username": "alice"},
            "kind": {"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": "MachineClass"}, "object": null,
            "oldObject": {"metadata": {"name": "c", "namespace": namespace, "finalizers": ["x/y"]}},
        },
    });
    let mut connection = SecureConnection::open(port).await;
    connection.exchange(&post("/validate", review.to_string().as_bytes()), Duration::from_secs(5)).await
}

/// Starts a slow migration and stops it with SIGINT in the middle of the machines.
async fn interrupted(kubeconfig: &str) {
    let arguments = ["migrate-storage", "--to=v1beta1", "--settle=3", "--rate=10", kubeconfig].map(str::to_owned);
    let ended = tokio::task::spawn_blocking(move || {
        let mut child =
            Command::new(MCM).args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("mcm starts");
        let mut errors = String::new();
        for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
            let line = line.expect("text");
            if line.starts_with("machines: pass 1: ") {
                assert!(line.contains(" of 60 objects"), "caught in the middle: {line}");
                let pid = child.id().to_string();
                assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
            }
            errors.push_str(&line);
            errors.push('\n');
        }
        (child.wait().expect("it ends").code(), errors)
    });
    let (code, errors) = ended.await.expect("no panic");
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("run the same command again to go on"), "{errors}");
}
