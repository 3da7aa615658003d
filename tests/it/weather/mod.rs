//! Shared code of the weather tests: a manager with a controllable cloud, and the checks after the faults have ended.
//!
//! Healthy means: the requested machines run, each machine has one VM and each VM has a machine, no machine had a second VM ordered, and every machine
//! that does not run explains why.

mod api_server;
mod clock;
mod drain;
mod lists;
mod nodes;
mod provider;
mod stages;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use crate::{
    fleet::{self, describe, phase},
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{name, text},
        manager, ports,
        wait::expect,
        wait_until,
    },
};

/// Long enough for a busy machine with two cores.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The name of the deployment and of its class.
pub const FLEET: &str = "weather";
/// A cloud with latencies that make intermediate states visible to a test.
const CLOUD: &str = "\
seed: 11
latency:
  create: {constant: 100ms}
  boot: {constant: 100ms}
  ready: {constant: 50ms}
  delete: {constant: 100ms}
  api: {constant: 5ms}
nodes: {reregister: 1h}
";

/// The control plane that most of these tests share: they mostly wait, and each has its own namespace.
pub async fn sky(test: &str) -> Option<Arc<Rig>> {
    static SKY: OnceLock<Arc<Rig>> = OnceLock::new();
    static READY: OnceCell<()> = OnceCell::const_new();
    let rig = Rig::shared_in(&SKY, test).await?;
    let ready = async {
        rig.with_controller_manager().await;
        rig.install_crds().await;
    };
    READY.get_or_init(|| ready).await;
    Some(rig)
}

/// The flags that make a manager use a kubeconfig for both clusters.
pub fn through(kubeconfig: &Path) -> [String; 2] {
    ["control", "target"].map(|which| format!("--{which}-kubeconfig={}", kubeconfig.display()))
}

/// A manager with its own namespace and its own cloud.
pub struct Weather {
    pub rig: Arc<Rig>,
    pub namespace: Namespace,
    pub manager: TestManager,
    pub cloud: Cloud,
}

impl Weather {
    /// Starts a manager in a namespace of the shared control plane, with these additional flags and without machines.
    pub async fn begin(test: &str, flags: &[&str]) -> Option<Self> {
        let rig = sky(test).await?;
        Some(Self::over(rig, flags).await)
    }

    /// The same on a separate control plane, which a test may stop or restart.
    pub async fn alone(test: &str, flags: &[&str]) -> Option<Self> {
        let rig = Rig::own(test).await?;
        rig.install_crds().await;
        Some(Self::over(rig, flags).await)
    }

    /// Starts a manager in a namespace of this control plane.
    pub async fn over(rig: Arc<Rig>, flags: &[&str]) -> Self {
        Self::with_cloud(rig, CLOUD, flags).await
    }

    /// The same with this simulation.
    pub async fn with_cloud(rig: Arc<Rig>, simulation: &str, flags: &[&str]) -> Self {
        let namespace = rig.namespace("weather").await;
        let port = ports::free_port();
        // Each manager stores its own VMs. Without a state file, a cloud would adopt the VMs of all simulated Nodes.
        let state = rig.folder.join(format!("{}.vms.json", namespace.name));
        let mut all = vec![
            format!("--simulation-admin=127.0.0.1:{port}"),
            format!("--simulation-state=json:{}", state.display()),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let options = ManagerOptions { simulation: simulation.to_owned(), flags: all, ..ManagerOptions::default() };
        let manager = TestManager::start(&rig, &namespace, &options).await;
        let cloud = Cloud { port };
        wait_until("the cloud to live", TIMEOUT, || cloud.lives()).await;
        Self { rig, namespace, manager, cloud }
    }

    /// Sets the desired number of machines.
    pub async fn want(&self, replicas: u32) {
        self.namespace.apply(&fleet::manifests(&self.namespace.name, FLEET, replicas, FLEET)).await.succeed();
    }

    /// Waits until this number of machines runs and everything is healthy; returns the machines.
    pub async fn wait_until_healthy(&self, replicas: usize) -> Vec<Value> {
        let machines = fleet::running_machines(&self.namespace, replicas, TIMEOUT).await;
        wait_until("every VM to have its machine, and every machine its VM", TIMEOUT, || async {
            let machines = self.namespace.list("machines").await;
            let wanted: BTreeSet<String> = machines.iter().map(|m| text(m, "/spec/providerID").to_owned()).collect();
            let vms: BTreeSet<String> =
                self.cloud.vms().await.iter().map(|vm| text(vm, "/providerID").to_owned()).collect();
            expect(wanted == vms && wanted.len() == replicas, || format!("machines have {wanted:#?}\nVMs {vms:#?}"))
        })
        .await;
        self.no_machine_had_two_vms().await;
        machines
    }

    /// Checks that no machine ever had a second VM ordered.
    pub async fn no_machine_had_two_vms(&self) {
        for (machine, vms) in self.cloud.happened("ordered").await {
            assert_eq!(vms.len(), 1, "several VMs were ordered for machine {machine}: {vms:?}");
        }
    }

    /// Waits until every machine that does not run explains why.
    pub async fn wait_until_explained(&self) {
        wait_until("every machine that does not run to explain why", TIMEOUT, || async {
            let machines = self.namespace.list("machines").await;
            let unexplained: Vec<String> = machines
                .iter()
                .filter(|machine| phase(machine) != "Running" && explanation(machine).is_empty())
                .map(describe)
                .collect();
            expect(unexplained.is_empty(), || unexplained.join("\n"))
        })
        .await;
    }

    /// Waits for a machine for which the condition holds, and returns the first one.
    pub async fn wait_for_machine(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, TIMEOUT, || async {
            let machines = self.namespace.list("machines").await;
            let found = machines.iter().find(|machine| holds(machine)).cloned();
            found.ok_or_else(|| machines.iter().map(|machine| machine["status"].to_string() + "\n").collect())
        })
        .await
    }

    /// Sets the condition `Ready` of the Nodes, as the node lifecycle controller would.
    pub async fn set_nodes_ready(&self, nodes: &[&str], ready: &str) {
        let client = self.rig.client().await;
        let api = kube::Api::<k8s_openapi::api::core::v1::Node>::all(client);
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let reason = if ready == "True" { "KubeletReady" } else { "NodeStatusUnknown" };
        let condition = json!({"type": "Ready", "status": ready, "reason": reason, "message": "set by the test",
            "lastHeartbeatTime": now, "lastTransitionTime": now});
        let patch = kube::api::Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        for node in nodes {
            let parameters = kube::api::PatchParams::default();
            let patched: kube::Result<_> = api.patch_status(node, &parameters, &patch).await;
            // The Node of a machine that was replaced meanwhile needs no update.
            assert!(!matches!(&patched, Err(error) if !is_not_found(error)), "{patched:?}");
        }
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The time that a machine may be stuck without an explanation. The controller writes one after a minute.
const EXPLAINED_AFTER: Duration = Duration::from_secs(80);

/// Detects machines that are stuck without an explanation.
#[derive(Default)]
pub struct StuckMachines(Mutex<BTreeMap<String, (String, Instant)>>);

impl StuckMachines {
    /// Checks all machines once; panics when a machine is stuck without an explanation.
    pub fn look(&self, machines: &[Value]) {
        let mut known = self.0.lock().expect("no holder of the lock panics, except for a stuck machine");
        let present: BTreeSet<&str> = machines.iter().map(|machine| text(machine, "/metadata/uid")).collect();
        known.retain(|uid, _| present.contains(uid.as_str()));
        for machine in machines {
            let version = text(machine, "/metadata/resourceVersion").to_owned();
            let entry = known.entry(text(machine, "/metadata/uid").to_owned());
            let (last, since) = entry.or_insert_with(|| (version.clone(), Instant::now()));
            if *last != version {
                (*last, *since) = (version, Instant::now());
            }
            let is_there = phase(machine) == "Running" && machine["metadata"]["deletionTimestamp"].is_null();
            assert!(
                is_there || since.elapsed() < EXPLAINED_AFTER || !explanation(machine).is_empty(),
                "stuck without a reason: {}",
                describe(machine)
            );
        }
    }
}

/// The message of a machine's condition; empty without the condition.
pub fn explanation(machine: &Value) -> String {
    let conditions =
        machine.pointer("/status/machineConditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let progress = conditions.iter().find(|condition| text(condition, "/type") == "Progressing");
    progress.map(|condition| text(condition, "/message").to_owned()).unwrap_or_default()
}

/// The name of a machine's Node.
pub fn node_of(machine: &Value) -> &str {
    text(machine, "/metadata/labels/node")
}

/// A client of the cloud's administration endpoint.
pub struct Cloud {
    port: u16,
}

impl Cloud {
    /// The cloud whose administration endpoint listens on this port of loopback.
    pub fn at(port: u16) -> Self {
        Self { port }
    }

    /// Whether the cloud answers.
    pub async fn lives(&self) -> Result<(), String> {
        self.ask("GET", "/vms", "").await.map(drop)
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Result<String, String> {
        match manager::request(self.port, method, path, body).await {
            Ok((status, body)) if status < 300 => Ok(body),
            Ok((status, body)) => Err(format!("{method} {path}: {status} {body}")),
            Err(error) => Err(format!("{method} {path}: {error}")),
        }
    }

    async fn must(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(method, path, &body).await.unwrap_or_else(|error| panic!("{error}"));
        serde_json::from_str(&answer).unwrap_or(Value::String(answer))
    }

    /// Sets the rules by which calls fail from now on.
    pub async fn fails(&self, rules: Value) {
        self.must("PUT", "/failures", &rules).await;
    }

    /// From now on no call fails.
    pub async fn is_well(&self) {
        self.fails(json!([])).await;
    }

    /// Applies an action to the VM of a machine.
    pub async fn does(&self, machine: &str, action: &str) {
        self.must("POST", &format!("/vms/{machine}/{action}"), &Value::Null).await;
    }

    /// Creates a VM without a machine, as if ten minutes ago; returns its identity.
    pub async fn create_orphan(&self, namespace: &str, name: &str) -> String {
        let order = json!({"namespace": namespace, "name": name, "class": FLEET, "age": "10m"});
        text(&self.must("POST", "/orphans", &order).await, "/providerID").to_owned()
    }

    /// The VMs that exist.
    pub async fn vms(&self) -> Vec<Value> {
        let answer = self.must("GET", "/vms", &Value::Null).await;
        answer["vms"].as_array().cloned().unwrap_or_default()
    }

    /// The VMs with an event of this kind, by `namespace/name` of their machines.
    pub async fn happened(&self, what: &str) -> BTreeMap<String, BTreeSet<String>> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in self.events_of(what).await {
            let vm = text(&event, "/id").to_owned();
            found.entry(text(&event, "/machine").to_owned()).or_default().insert(vm);
        }
        found
    }

    /// All events of one kind since the start of the cloud.
    pub async fn events_of(&self, what: &str) -> Vec<Value> {
        let mut answer = self.must("GET", "/events", &Value::Null).await;
        let Value::Array(all) = answer["events"].take() else { return Vec::new() };
        all.into_iter().filter(|event| event["what"] == what).collect()
    }

    /// The text of the simulation's metrics.
    pub async fn metrics(&self) -> String {
        self.ask("GET", "/metrics", "").await.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Names of machines.
pub fn names(machines: &[Value]) -> BTreeSet<String> {
    machines.iter().map(|machine| name(machine).to_owned()).collect()
}
