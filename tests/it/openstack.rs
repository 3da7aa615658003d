//! The program makes servers of `OpenStack`: kubectl, a real API server, `mcm serve`, the services themselves, kubelets that ask them with
//! openstacksdk.
//!
//! `scripts/test-openstack` runs the services: `scripts/test-openstack cargo test --test it openstack`.

use std::{collections::BTreeSet, env, fs, path::PathBuf, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        cluster_object::{condition, items, name, text},
        process::Process,
        scratch,
        wait::expect,
        wait_until,
    },
};

const PATIENCE: Duration = Duration::from_secs(240);
const PYTHON: &str = "venv/bin/python";
const TAGS: [&str; 2] = ["kubernetes.io-cluster-whole-program", "kubernetes.io-role-node"];

/// A cluster, the services and the servers' kubelets.
struct Stage {
    rig: Arc<Rig>,
    folder: PathBuf,
    namespace: Namespace,
    _kubelets: Process,
}

impl Stage {
    async fn new(test: &str) -> Option<Self> {
        let Some(folder) = env::var_os("MCM_TEST_OPENSTACK").map(PathBuf::from) else {
            scratch::count_skipped(
                test,
                "there is no OpenStack to test with: scripts/test-openstack cargo test --test it openstack",
            );
            return None;
        };
        let rig = Rig::own(test).await?;
        rig.with_controller_manager().await;
        rig.install_crds().await;
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/kubelets").to_owned();
        let endpoint = format!("{}:machines", folder.display());
        let kubeconfig = rig.admin_kubeconfig().display().to_string();
        let arguments = ["-B".to_owned(), program, "openstack".to_owned(), endpoint, kubeconfig];
        let kubelets = Process::start(&scratch::subfolder("openstack"), "kubelets", &python(&folder), &arguments);
        let namespace = rig.namespace_named("openstack").await;
        Some(Self { rig, folder, namespace, _kubelets: kubelets })
    }

    fn made(&self, file: &str) -> Value {
        let text = fs::read(self.folder.join(file)).expect("the services have been started");
        serde_json::from_slice(&text).expect("it is JSON")
    }

    async fn apply(&self, object: &Value) {
        self.namespace.apply(&object.to_string()).await.succeed();
    }

    async fn apply_class(&self, class: &str, flavor: &str) {
        let machines = &self.made("made.json")["machines"];
        self.apply(&json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": class},
            "provider": "OpenStack",
            "providerSpec": {
                "apiVersion": "openstack.machine.gardener.cloud/v1alpha1", "kind": "MachineProviderConfig",
                "spec": {
                    "region": "RegionOne", "availabilityZone": "nova", "flavorName": flavor, "imageName": "linux", "keyName": "machines",
                    "networkID": machines["network"], "subnetIDs": [machines["subnet"]], "securityGroups": ["machines"],
                    "podNetworkCIDRs": ["100.64.0.0/12"], "rootDiskSize": 2, "rootDiskType": "standard",
                    "tags": {TAGS[0]: "1", TAGS[1]: "1"},
                },
            },
            "secretRef": {"name": "cloud", "namespace": "openstack"},
        }))
        .await;
    }

    /// Servers, ports and volumes of the project, asked with openstacksdk.
    async fn inventory(&self) -> Value {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openstack/ask.py");
        let mut command = Command::new(python(&self.folder));
        let run = command.arg("-B").arg(program).arg(&self.folder).args(["machines", "inventory"]).output().await;
        let run = run.expect("Python runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        serde_json::from_slice(&run.stdout).expect("it prints JSON")
    }

    /// Waits until there are so many machines, and one server, port and volume for each of them.
    async fn each_machine_has_its_server(&self, count: usize) -> Vec<Value> {
        let machines = running_machines(&self.namespace, count, PATIENCE).await;
        let wanted: BTreeSet<_> = machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
        wait_until("one server for each machine", PATIENCE, || async {
            let inventory = self.inventory().await;
            let servers = inventory["servers"].as_array().cloned().unwrap_or_default();
            let ids: BTreeSet<_> =
                servers.iter().map(|one| format!("openstack:///RegionOne/{}", text(one, "/id"))).collect();
            let whole = ids == wanted && counts(&inventory) == [count; 3];
            expect(whole, || format!("machines of {wanted:?}, servers {ids:?}, {:?}", counts(&inventory)))
        })
        .await;
        machines
    }

    async fn nodes(&self) -> Vec<Value> {
        items(&self.rig.kubectl(&["get", "nodes", "-o", "json"]).await.json())
    }
}

fn python(folder: &std::path::Path) -> PathBuf {
    folder.parent().expect("it is in the cache").join(PYTHON)
}

fn counts(inventory: &Value) -> [usize; 3] {
    ["servers", "ports", "volumes"].map(|what| inventory[what].as_array().map_or(0, Vec::len))
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_servers_roll_shrink_and_go_again() {
    let Some(stage) = Stage::new("openstack::machines_become_servers_roll_shrink_and_go_again").await else { return };
    let options = ManagerOptions {
        simulation: "seed: 1\n".to_owned(),
        flags: vec!["-v=10".to_owned()],
        rights: Rights::Generated,
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    manager.register_webhooks(&stage.rig, &stage.namespace).await;
    let login = &stage.made("clouds.yaml")["clouds"]["appcred"]["auth"];
    let user_data = "#!/bin/sh\njoin --token <<BOOTSTRAP_TOKEN>> --name <<MACHINE_NAME>>\n";
    stage
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud"}, "stringData": {
            "authURL": login["auth_url"], "domainName": "Default", "tenantName": "machines", "userData": user_data,
            "applicationCredentialID": login["application_credential_id"],
            "applicationCredentialSecret": login["application_credential_secret"],
        }}))
        .await;
    stage.apply_class("small", "small").await;
    let label = json!({"app": "whole"});
    stage
        .apply(&json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": "whole"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": label},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": label}, "spec": {
                    "class": {"kind": "MachineClass", "name": "small"},
                    "nodeTemplate": {"metadata": {"labels": {"pool": "whole"}}},
                }},
            },
        }))
        .await;

    let machines = stage.each_machine_has_its_server(3).await;
    servers_and_nodes_are_of_their_machines(&stage, &machines).await;

    stage.apply_class("large", "large").await;
    let change =
        json!({"spec": {"template": {"spec": {"class": {"kind": "MachineClass", "name": "large"}}}}}).to_string();
    stage.namespace.kubectl(&["patch", "machinedeployment", "whole", "--type=merge", "-p", &change]).await.succeed();
    wait_until("the rollout", 2 * PATIENCE, || async {
        rolled_out(&stage.namespace.get("machinedeployment", "whole").await, 3)
    })
    .await;
    stage.each_machine_has_its_server(3).await;
    stage.namespace.kubectl(&["scale", "machinedeployment", "whole", "--replicas=1"]).await.succeed();
    stage.each_machine_has_its_server(1).await;

    stage.namespace.kubectl(&["delete", "machinedeployment", "whole", "--wait=false"]).await.succeed();
    for resource in ["machines", "machinesets", "machinedeployments"] {
        none_left(&stage.namespace, resource, PATIENCE).await;
    }
    let left = stage.inventory().await;
    assert_eq!(counts(&left), [0; 3], "{left}");
    wait_until("the last node to go", PATIENCE, || async {
        let nodes = stage.nodes().await;
        expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
    })
    .await;
    let log = manager.log();
    for secret in ["#!/bin/sh", "x-auth-token"] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Servers have the class's metadata and their machine's name; Nodes the id as `OpenStack`'s own controller writes it.
async fn servers_and_nodes_are_of_their_machines(stage: &Stage, machines: &[Value]) {
    let (inventory, nodes) = (stage.inventory().await, stage.nodes().await);
    assert_eq!(nodes.len(), machines.len());
    for machine in machines {
        let id = text(machine, "/spec/providerID").rsplit('/').next().expect("an id");
        let servers = inventory["servers"].as_array().expect("a list");
        let server = servers.iter().find(|server| text(server, "/id") == id).expect("its server");
        assert_eq!(text(server, "/name"), name(machine));
        assert_eq!(server["metadata"], json!({TAGS[0]: "1", TAGS[1]: "1"}));
        let ports = inventory["ports"].as_array().expect("a list");
        let port = ports.iter().find(|port| text(port, "/device_id") == id).expect("its port");
        assert_eq!(text(port, "/allowed_address_pairs/0/ip_address"), "100.64.0.0/12");
        let node = nodes.iter().find(|node| name(node) == name(machine)).expect("its node");
        assert_eq!(text(node, "/spec/providerID"), format!("openstack:///{id}"));
        assert_eq!((text(node, "/metadata/labels/pool"), condition(node, "Ready")), ("whole", "True"));
        assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
    }
}
