//! What is the same for each cloud: the whole life of a few machines, and a fleet while replies are lost and the manager is killed at random moments.
//!
//! A cloud implements [`Account`]. Its tests call [`a_life`] and [`a_fleet_with_faults`].

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        clouds::{NO_SIMULATION, chance, counted, killed},
        cluster_object::{condition, name, text},
        process::Process,
        wait::expect,
        wait_until,
    },
};

/// The name of the deployment, and of the pool of its Nodes.
const DEPLOYMENT: &str = "whole";
const TIMEOUT: Duration = Duration::from_secs(300);

/// The size of a machine. There is a class for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Small,
    Large,
}

impl Size {
    /// The name of the class.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// An account of a cloud, which is empty at first.
pub trait Account {
    /// The namespace of the machines.
    const NAMESPACE: &'static str;

    /// Starts the kubelets, so that every running VM has a Node.
    fn kubelets(&self, kubeconfig: &Path) -> Process;
    /// The Secret `cloud`.
    fn secret(&self) -> Value;
    /// The class of this size, with the Secret `cloud`.
    fn class(&self, size: Size) -> Value;
    /// The requests of the program until now.
    fn requests(&self) -> Vec<String>;
    /// The provider ids of all VMs, and the number of each kind of further resources.
    async fn inventory(&self) -> (BTreeSet<String>, Vec<usize>);
    /// The number of each kind of further resources of one machine.
    fn resources_of_one(&self) -> Vec<usize>;
    /// Checks the VMs, as the cloud has them, against the class of this size.
    async fn check(&self, machines: &[Value], size: Size);
    /// The provider id of a machine's Node, as the cloud's own controller manager writes it.
    fn node_id(&self, machine: &Value) -> String;
    /// Texts that no log may contain.
    fn secret_texts(&self) -> Vec<String>;
}

/// A cluster, an account, and the kubelets of its VMs.
pub struct Stage<A> {
    pub rig: Arc<Rig>,
    pub account: A,
    pub namespace: Namespace,
    _kubelets: Process,
}

impl<A: Account> Stage<A> {
    /// A cluster for this account. `None` if the test is skipped.
    pub async fn new(test: &str, account: A) -> Option<Self> {
        let rig = Rig::own(test).await?;
        rig.with_controller_manager().await;
        rig.install_crds().await;
        let kubelets = account.kubelets(rig.admin_kubeconfig());
        let namespace = rig.namespace_named(A::NAMESPACE).await;
        Some(Self { rig, account, namespace, _kubelets: kubelets })
    }

    async fn apply(&self, object: &Value) {
        self.namespace.apply(&object.to_string()).await.succeed();
    }

    /// Applies Secret, class and deployment.
    async fn apply_machines(&self, replicas: usize) {
        self.apply(&self.account.secret()).await;
        self.apply(&self.account.class(Size::Small)).await;
        let label = json!({"app": DEPLOYMENT});
        self.apply(&json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": DEPLOYMENT},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": label},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": label}, "spec": {
                    "class": {"kind": "MachineClass", "name": Size::Small.class()},
                    "nodeTemplate": {"metadata": {"labels": {"pool": DEPLOYMENT}}},
                }},
            },
        }))
        .await;
    }

    /// Waits until this number of machines runs, and the account has exactly their VMs and resources.
    async fn each_machine_has_its_vm(&self, count: usize, patience: Duration) -> Vec<Value> {
        let machines = running_machines(&self.namespace, count, patience).await;
        let wanted: BTreeSet<_> = machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
        let resources: Vec<usize> = self.account.resources_of_one().iter().map(|number| number * count).collect();
        wait_until("one VM for each machine", patience, || async {
            let found = self.account.inventory().await;
            let is_whole = found.0 == wanted && found.1 == resources;
            expect(is_whole, || format!("machines {wanted:?} with {resources:?}, found {found:?}"))
        })
        .await;
        machines
    }

    async fn roll_to(&self, size: Size, replicas: i64) {
        self.apply(&self.account.class(size)).await;
        let class = json!({"kind": "MachineClass", "name": size.class()});
        let change = json!({"spec": {"template": {"spec": {"class": class}}}}).to_string();
        let patch = ["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &change];
        self.namespace.kubectl(&patch).await.succeed();
        wait_until("the rollout", 2 * TIMEOUT, || async {
            rolled_out(&self.namespace.get("machinedeployment", DEPLOYMENT).await, replicas)
        })
        .await;
    }

    async fn nodes(&self) -> Vec<Value> {
        self.rig.list("nodes").await
    }

    async fn nodes_are_of_their_machines(&self, machines: &[Value]) {
        let nodes = self.nodes().await;
        assert_eq!(nodes.len(), machines.len());
        for machine in machines {
            let node =
                nodes.iter().find(|node| name(node) == text(machine, "/metadata/labels/node")).expect("its Node");
            assert_eq!(text(node, "/spec/providerID"), self.account.node_id(machine));
            assert_eq!(text(node, "/metadata/labels/pool"), DEPLOYMENT);
            assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
            assert_eq!(condition(node, "Ready"), "True");
        }
    }

    async fn delete_the_deployment(&self) {
        self.namespace.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
    }

    /// Waits until the machines are deleted. The account must be empty with the last machine. Then waits for the Nodes and our finalizers.
    async fn nothing_is_left(&self, patience: Duration) {
        for resource in ["machines", "machinesets", "machinedeployments"] {
            none_left(&self.namespace, resource, patience).await;
        }
        let (vms, resources) = self.account.inventory().await;
        assert!(vms.is_empty() && resources.iter().all(|number| *number == 0), "{vms:?} {resources:?}");
        wait_until("the last node to go", patience, || async {
            let nodes = self.nodes().await;
            expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
        })
        .await;
        self.namespace.kubectl(&["delete", "machineclass", "--all", "--timeout=60s"]).await.succeed();
        self.namespace.kubectl(&["delete", "secret", "cloud", "--timeout=60s"]).await.succeed();
    }
}

/// Three machines are created with the generated rights and with webhooks, get another class, shrink to one, and are deleted. `flags` are further flags
/// of the manager.
pub async fn a_life<A: Account>(stage: &Stage<A>, mut flags: Vec<String>) {
    // The highest verbosity, to check that no secret is logged.
    flags.push("-v=10".to_owned());
    let options = ManagerOptions { simulation: NO_SIMULATION.to_owned(), flags, rights: Rights::Generated };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    manager.register_webhooks(&stage.rig, &stage.namespace).await;
    stage.apply_machines(3).await;
    let machines = stage.each_machine_has_its_vm(3, TIMEOUT).await;
    println!("requests until 3 machines run: {}", counted(&stage.account.requests()));
    println!("driver calls until then:\n{}", driver_calls(&manager).await);
    stage.account.check(&machines, Size::Small).await;
    stage.nodes_are_of_their_machines(&machines).await;

    stage.roll_to(Size::Large, 3).await;
    let machines = stage.each_machine_has_its_vm(3, TIMEOUT).await;
    stage.account.check(&machines, Size::Large).await;
    stage.namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=1"]).await.succeed();
    stage.each_machine_has_its_vm(1, TIMEOUT).await;

    stage.delete_the_deployment().await;
    stage.nothing_is_left(TIMEOUT).await;
    println!("requests for 6 machines until all are gone: {}", counted(&stage.account.requests()));
    println!("driver calls until then:\n{}", driver_calls(&manager).await);
    let log = manager.log();
    assert!(log.contains("CreateMachine") || log.contains("create"), "something is logged");
    for secret in stage.account.secret_texts() {
        let line = log.lines().find(|line| line.contains(&secret));
        assert!(line.is_none(), "a secret is in the log: {line:?}");
    }
    assert_eq!(manager.terminate(), 0, "{log}");
}

/// The number of calls of each driver method, by success and code.
async fn driver_calls(manager: &TestManager) -> String {
    let metrics = manager.http_get("/metrics").await;
    let is_count = |line: &&str| {
        line.starts_with("mcm_cloud_api_driver_request_duration_seconds_count")
            || line.starts_with("mcm_cloud_api_driver_requests_failed_total")
    };
    metrics.lines().filter(is_count).collect::<Vec<_>>().join("\n")
}

/// The moments at which the faults of a fleet change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    Creations,
    Deletions,
}

/// This number of machines is created and deleted while requests have faults and the manager is killed at random moments. Each machine has one VM, and
/// nothing is left. `flags` are further flags of the manager; `add_faults` replaces the faults.
pub async fn a_fleet_with_faults<A: Account>(
    stage: &Stage<A>,
    machines: usize,
    flags: Vec<String>,
    add_faults: impl Fn(During),
) {
    let timeout = Duration::from_secs(300 + 12 * machines as u64);
    let kills = (machines / 8).clamp(3, 10);
    let mut chance = chance();
    let options = ManagerOptions { simulation: NO_SIMULATION.to_owned(), flags, ..ManagerOptions::default() };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;

    add_faults(During::Creations);
    stage.apply_machines(machines).await;
    killed(&mut manager, kills, &mut chance).await;
    stage.each_machine_has_its_vm(machines, timeout).await;
    println!("{machines} machines run, {kills} kills: {}", counted(&stage.account.requests()));

    add_faults(During::Deletions);
    stage.delete_the_deployment().await;
    killed(&mut manager, kills, &mut chance).await;
    stage.nothing_is_left(timeout).await;
    println!("{machines} machines are gone, {kills} more kills: {}", counted(&stage.account.requests()));
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}
