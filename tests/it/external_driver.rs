//! The driver in Python of `examples/python-driver` serves a rollout: from `kubectl apply` to Nodes, with a kill of the driver in the middle of a
//! rollout, and back to an empty cluster. It runs once as a program that the manager starts, and once on a socket, started by the test. The test
//! plays the kubelets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    fleet::{self, none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, TestManager, assets, cluster_object::text, process::Process,
        scratch::count_skipped, wait::expect, wait_until,
    },
};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/python-driver/driver.py");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/driver-external/proto");
const MACHINES: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(120);
const SECRET: &str = "never-to-be-logged";

/// A Python with the packages that the driver needs.
fn python(test: &str) -> Option<PathBuf> {
    let python = assets::printed_by("test-python", "needs a Python with grpcio and grpcio-tools (scripts/test-python)");
    python.map_err(|why| count_skipped(test, &why)).ok()
}

/// The driver with a cloud in this folder, as a program without arguments.
fn program(python: &Path, source: &Path, folder: &Path) -> PathBuf {
    let program = folder.join("files-driver");
    let script = format!(
        "#!/bin/sh\necho $$ > '{}'\nexport MCM_DRIVER_PROTO='{PROTO}'\nexec '{}' '{}' --cloud '{}' \"$@\"\n",
        pid_file(folder).display(),
        python.display(),
        source.display(),
        cloud(folder).display()
    );
    fs::write(&program, script).expect("the rig's folder is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own file");
    program
}

fn pid_file(folder: &Path) -> PathBuf {
    folder.join("files-driver.number")
}

fn cloud(folder: &Path) -> PathBuf {
    folder.join("files-cloud")
}

/// The sizes of the existing VMs, by the names of their machines.
fn vms(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(cloud(folder).join("shoot-a")).into_iter().flatten().flatten();
    // A file that disappears during the listing is a deleted VM.
    files
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?)))
        .collect()
}

/// A manager whose driver for the provider `files` is the Python driver.
struct Scene {
    rig: Arc<Rig>,
    namespace: Namespace,
    manager: TestManager,
    kubelets: tokio::task::JoinHandle<()>,
}

impl Scene {
    async fn start(rig: Arc<Rig>, namespace: Namespace, flag: String) -> Self {
        let options = ManagerOptions { flags: vec![flag], ..ManagerOptions::default() };
        let manager = TestManager::start(&rig, &namespace, &options).await;
        let kubelets = tokio::spawn(play_kubelets(Arc::clone(&rig)));
        let scene = Self { rig, namespace, manager, kubelets };
        scene.until_up(1).await;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "files" },
            "stringData": { "userData": "#!/bin/sh", "token": SECRET },
        });
        scene.apply(&secret).await;
        for size in ["small", "large"] {
            scene.apply(&class(&scene.namespace.name, size)).await;
        }
        scene.apply(&deployment("small")).await;
        running_machines(&scene.namespace, MACHINES, TIMEOUT).await;
        scene
    }

    async fn apply(&self, object: &Value) {
        self.namespace.apply(&object.to_string()).await.succeed();
    }

    /// Waits until the metric says that the driver is up (1) or not (0).
    async fn until_up(&self, value: u8) {
        let line = format!("mcm_driver_up{{driver=\"files\"}} {value}");
        wait_until(&line, TIMEOUT, || async {
            let metrics = self.manager.http_get("/metrics").await;
            expect(metrics.contains(&line), || self.manager.log())
        })
        .await;
    }

    /// Waits until both classes have an event with this reason.
    async fn wait_for_event_on_classes(&self, reason: &str) {
        wait_until(reason, TIMEOUT, || async {
            let events = self.namespace.list("events").await;
            let about = |event: &&Value| {
                text(event, "/reason") == reason && text(event, "/involvedObject/kind") == "MachineClass"
            };
            let classes = events.iter().filter(about).map(|event| text(event, "/involvedObject/name"));
            let classes: BTreeSet<&str> = classes.collect();
            expect(classes == BTreeSet::from(["large", "small"]), || format!("{classes:?}\n{}", self.manager.log()))
        })
        .await;
    }

    /// Starts a rollout to large VMs and waits until the first large VM exists.
    async fn start_rollout(&self) {
        self.apply(&deployment("large")).await;
        wait_until("the first large VM", TIMEOUT, || async {
            let vms = vms(&self.rig.folder);
            expect(vms.values().any(|size| size == "large"), || format!("{vms:?}"))
        })
        .await;
    }

    /// Waits for the end of the rollout: the driver's folder has one VM per machine.
    async fn finish_rollout(&self) {
        wait_until("the rollout", TIMEOUT, || async {
            rolled_out(&self.namespace.get("machinedeployment", "fleet").await, 3)?;
            let (vms, machines) = (vms(&self.rig.folder), self.namespace.list("machines").await);
            let names: BTreeSet<&str> = machines.iter().map(|machine| text(machine, "/metadata/name")).collect();
            let are_equal = vms.keys().map(String::as_str).collect::<BTreeSet<_>>() == names;
            expect(are_equal && vms.len() == MACHINES && vms.values().all(|size| size == "large"), || {
                format!("{vms:?} of {names:?}")
            })
        })
        .await;
    }

    /// Deletes the fleet. Nothing is left at the provider, and no log contains the Secret's value.
    async fn end(self) {
        self.namespace.kubectl(&["delete", "machinedeployment", "fleet", "--wait=false"]).await.succeed();
        none_left(&self.namespace, "machines", TIMEOUT).await;
        assert_eq!(vms(&self.rig.folder), BTreeMap::new(), "nothing is left at the provider");
        self.kubelets.abort();
        assert!(!self.manager.log().contains(SECRET), "a secret is in the log");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_in_python_serves_a_rollout_and_may_be_killed() {
    const TEST: &str = "external_driver::a_driver_in_python_serves_a_rollout_and_may_be_killed";
    let Some(python) = python(TEST) else { return };
    let Some(rig) = Rig::own(TEST).await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("files").await;
    let exec = format!("--driver-exec=files={}", program(&python, Path::new(DRIVER), &rig.folder).display());
    let scene = Scene::start(rig, namespace, exec).await;
    scene.start_rollout().await;
    let pid = fs::read_to_string(pid_file(&scene.rig.folder)).expect("the driver has begun");
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().expect("kill runs").success());
    scene.finish_rollout().await;
    assert_ne!(fs::read_to_string(pid_file(&scene.rig.folder)).expect("the driver has begun again"), pid);
    scene.end().await;
}

/// The driver runs on a socket, started by the test. It is stopped until it counts as down, and then another version starts.
#[tokio::test(flavor = "multi_thread")]
async fn e05_a_driver_that_is_down_on_a_socket_is_reported_and_other_drivers_continue() {
    const TEST: &str = "external_driver::e05_a_driver_that_is_down_on_a_socket_is_reported_and_other_drivers_continue";
    let Some(python) = python(TEST) else { return };
    let Some(rig) = Rig::own(TEST).await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("files").await;
    let run = rig.folder.join("run");
    fs::create_dir(&run).expect("the rig's folder is writable");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).expect("our own folder");
    let socket = run.join("files.sock");
    let start = |source: &Path| {
        let program = program(&python, source, &rig.folder);
        Process::start(&rig.folder, "files-driver", &program, &["--socket".to_owned(), socket.display().to_string()])
    };
    let mut driver = start(Path::new(DRIVER));
    let flag = format!("--external-driver=files=unix://{}", socket.display());
    let scene = Scene::start(Arc::clone(&rig), namespace, flag).await;
    let namespace = &scene.namespace;
    scene.manager.register_webhooks(&rig, namespace).await;
    let mut zoned = class(&namespace.name, "zoned");
    zoned["providerSpec"]["zone"] = json!(5);
    let judged = |class: Value| async move {
        namespace.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &class.to_string()).await
    };
    judged(zoned.clone()).await.succeed();

    scene.start_rollout().await;
    driver.kill();
    scene.wait_for_event_on_classes("DriverDown").await;
    scene.until_up(0).await;
    let log = scene.manager.log();
    assert!(log.contains("the external driver is down"), "{log}");
    assert_eq!(scene.manager.http("/healthz").await.0, 200);
    namespace.apply(&fleet::manifests(&namespace.name, "others", 1, "virtual")).await.succeed();
    wait_until("a machine of another driver", TIMEOUT, || async {
        rolled_out(&namespace.get("machinedeployment", "others").await, 1)
    })
    .await;

    // The next version of the driver accepts one more field.
    let source = fs::read_to_string(DRIVER).expect("the example is there");
    let newer =
        source.replace(r#""size": {"type": "string"}"#, r#""size": {"type": "string"}, "zone": {"type": "string"}"#);
    assert_ne!(newer, source);
    let file = rig.folder.join("newer-driver.py");
    fs::write(&file, newer).expect("the rig's folder is writable");
    driver = start(&file);
    scene.wait_for_event_on_classes("DriverUp").await;
    scene.until_up(1).await;
    let refused = judged(zoned).await;
    assert!(refused.stderr.contains("providerSpec.zone"), "{}{}", refused.stdout, refused.stderr);
    namespace.kubectl(&["delete", "machinedeployment", "others", "--wait=false"]).await.succeed();
    wait_until("the machine of the other driver to go", TIMEOUT, || async {
        let left = namespace
            .list("machines")
            .await
            .iter()
            .filter(|machine| text(machine, "/spec/class/name") == "virtual")
            .count();
        expect(left == 0, || left.to_string())
    })
    .await;
    scene.finish_rollout().await;
    scene.end().await;
    drop(driver);
}

/// Registers a ready Node for each VM.
async fn play_kubelets(rig: Arc<Rig>) {
    loop {
        for name in vms(&rig.folder).keys() {
            if rig.kubectl(&["get", "node", name]).await.succeeded() {
                continue;
            }
            let node = json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
                "spec": { "providerID": format!("files:///shoot-a/{name}") },
            });
            let _ = rig.apply(&node.to_string()).await;
            let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] } });
            let _ = rig
                .kubectl(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &ready.to_string()])
                .await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn class(namespace: &str, size: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass",
        "metadata": { "name": size },
        "provider": "files",
        "providerSpec": { "cluster": "shoot-a", "size": size },
        "secretRef": { "name": "files", "namespace": namespace },
    })
}

fn deployment(class: &str) -> Value {
    json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment",
        "metadata": { "name": "fleet" },
        "spec": {
            "replicas": MACHINES,
            "selector": { "matchLabels": { "fleet": "fleet" } },
            "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": {
                "metadata": { "labels": { "fleet": "fleet" } },
                "spec": { "class": { "kind": "MachineClass", "name": class } },
            },
        },
    })
}
