//! The program creates servers of `OpenStack`: with kubectl, a real API server, `mcm serve`, the services themselves, and kubelets that query the
//! services with openstacksdk.
//!
//! `scripts/test-openstack` runs the services: `scripts/test-openstack cargo test --test it openstack`.

mod faults;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        clouds::{NO_SIMULATION, counted},
        cluster_object::{condition, items, name, text},
        openstack::{Project, TAGS},
        process::Process,
        wait::expect,
        wait_until,
    },
};

const NAMESPACE: &str = "openstack";
pub const DEPLOYMENT: &str = "whole";
const TIMEOUT: Duration = Duration::from_secs(300);

/// A cluster, a project, and the kubelets of its servers.
pub struct Stage {
    pub rig: Arc<Rig>,
    pub project: Project,
    pub namespace: Namespace,
    _kubelets: Process,
}

impl Stage {
    pub async fn new(test: &str) -> Option<Self> {
        let project = Project::new(test).await?;
        let rig = Rig::own(test).await?;
        rig.with_controller_manager().await;
        rig.install_crds().await;
        let kubelets = project.kubelets(rig.admin_kubeconfig());
        let namespace = rig.namespace_named(NAMESPACE).await;
        Some(Self { rig, project, namespace, _kubelets: kubelets })
    }

    pub async fn apply(&self, object: &Value) {
        self.namespace.apply(&object.to_string()).await.succeed();
    }

    /// Applies Secret, class and deployment.
    pub async fn apply_machines(&self, replicas: usize) {
        self.apply(&self.project.secret()).await;
        self.apply(&self.project.class("small", NAMESPACE, "small")).await;
        let label = json!({"app": DEPLOYMENT});
        self.apply(&json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": DEPLOYMENT},
            "spec": {
                "replicas": replicas, "selector": {"matchLabels": label},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": label}, "spec": {
                    "class": {"kind": "MachineClass", "name": "small"},
                    "nodeTemplate": {"metadata": {"labels": {"pool": DEPLOYMENT}}},
                }},
            },
        }))
        .await;
    }

    /// Waits until this number of machines runs and the project has exactly one server, port and volume for each of them.
    pub async fn each_machine_has_its_server(&self, count: usize, patience: Duration) -> Vec<Value> {
        let machines = running_machines(&self.namespace, count, patience).await;
        let id = |machine: &Value| text(machine, "/spec/providerID").to_owned();
        let wanted: BTreeSet<_> = machines.iter().map(|machine| (name(machine).to_owned(), id(machine))).collect();
        wait_until("one server for each machine", patience, || async {
            let inventory = self.project.inventory().await;
            let id = |server: &Value| format!("openstack:///{}/{}", self.project.region(), text(server, "/id"));
            let servers = inventory["servers"].as_array().into_iter().flatten();
            let found: BTreeSet<_> = servers.map(|server| (text(server, "/name").to_owned(), id(server))).collect();
            let whole = found == wanted && counts(&inventory) == [count; 3];
            expect(whole, || format!("machines {wanted:?}, servers {found:?}, {:?}", counts(&inventory)))
        })
        .await;
        machines
    }

    async fn nodes(&self) -> Vec<Value> {
        items(&self.rig.kubectl(&["get", "nodes", "-o", "json"]).await.json())
    }

    pub async fn delete_the_deployment(&self) {
        self.namespace.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
    }

    /// Waits until the machines are deleted. The project must be empty with the last machine. Then waits for the Nodes and our finalizers.
    pub async fn nothing_is_left(&self, patience: Duration) {
        for resource in ["machines", "machinesets", "machinedeployments"] {
            none_left(&self.namespace, resource, patience).await;
        }
        let left = self.project.inventory().await;
        assert_eq!(counts(&left), [0; 3], "{left}");
        wait_until("the last node to go", patience, || async {
            let nodes = self.nodes().await;
            expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
        })
        .await;
        self.namespace.kubectl(&["delete", "machineclass", "--all", "--timeout=60s"]).await.succeed();
        self.namespace.kubectl(&["delete", "secret", "cloud", "--timeout=60s"]).await.succeed();
    }
}

/// The numbers of servers, ports and volumes.
fn counts(inventory: &Value) -> [usize; 3] {
    ["servers", "ports", "volumes"].map(|what| inventory[what].as_array().expect("a list").len())
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_servers_roll_shrink_and_go_again() {
    let Some(stage) = Stage::new("openstack::machines_become_servers_roll_shrink_and_go_again").await else { return };
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        // The highest verbosity, to check that no secret is logged.
        flags: vec!["-v=10".to_owned()],
        rights: Rights::Generated,
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    manager.register_webhooks(&stage.rig, &stage.namespace).await;
    stage.apply_machines(3).await;
    let machines = stage.each_machine_has_its_server(3, TIMEOUT).await;
    println!("requests until 3 machines run: {}", counted(&stage.project.requests()));
    println!("driver calls until then:\n{}", driver_calls(&manager).await);
    servers_match_their_class(&stage, &machines, "small").await;
    nodes_are_of_their_machines(&stage, &machines).await;

    stage.apply(&stage.project.class("large", NAMESPACE, "large")).await;
    let change =
        json!({"spec": {"template": {"spec": {"class": {"kind": "MachineClass", "name": "large"}}}}}).to_string();
    stage.namespace.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &change]).await.succeed();
    wait_until("the rollout", 2 * TIMEOUT, || async {
        rolled_out(&stage.namespace.get("machinedeployment", DEPLOYMENT).await, 3)
    })
    .await;
    let machines = stage.each_machine_has_its_server(3, TIMEOUT).await;
    servers_match_their_class(&stage, &machines, "large").await;
    stage.namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=1"]).await.succeed();
    stage.each_machine_has_its_server(1, TIMEOUT).await;

    stage.delete_the_deployment().await;
    stage.nothing_is_left(TIMEOUT).await;
    println!("requests for 6 machines until all are gone: {}", counted(&stage.project.requests()));
    println!("driver calls until then:\n{}", driver_calls(&manager).await);
    let log = manager.log();
    for secret in stage.project.secret_words() {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "the log contains a secret: {line:?}");
    }
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
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

/// Checks that servers, ports and volumes match the class.
async fn servers_match_their_class(stage: &Stage, machines: &[Value], flavor: &str) {
    let inventory = stage.project.inventory().await;
    let tags = json!({TAGS[0]: "1", TAGS[1]: "1"});
    let (subnet, group) = stage.project.subnet_and_group();
    for machine in machines {
        let id = id_of(machine);
        let one = |what: &str, pointer: &str| {
            let mut all = inventory[what].as_array().into_iter().flatten();
            all.find(|one| text(one, pointer) == id).unwrap_or_else(|| panic!("{what} of {id}: {inventory}"))
        };
        let server = stage.project.get("compute", &format!("/servers/{id}")).await["server"].take();
        assert_eq!((text(&server, "/name"), text(&server, "/status")), (name(machine), "ACTIVE"));
        assert_eq!(server["metadata"], tags);
        assert_eq!(text(&server, "/key_name"), "machines");
        let flavor_id = text(&server, "/flavor/id");
        let found = stage.project.get("compute", &format!("/flavors/{flavor_id}")).await;
        assert_eq!(text(&found, "/flavor/name"), flavor);
        let user_data = text(&server, "/OS-EXT-SRV-ATTR:user_data");
        let user_data = String::from_utf8(BASE64_STANDARD.decode(user_data).expect("base 64")).expect("a text");
        let filled = user_data.starts_with("#!/bin/sh\njoin --token ")
            && user_data.contains(&format!(" --name {}\n", name(machine)))
            && !user_data.contains("<<");
        assert!(filled, "{user_data}");

        let port = one("ports", "/device_id");
        assert_eq!(text(port, "/name"), name(machine));
        assert_eq!(text(port, "/fixed_ips/0/subnet_id"), subnet);
        assert_eq!(port["security_group_ids"], json!([group]));
        assert_eq!(text(port, "/allowed_address_pairs/0/ip_address"), "100.64.0.0/12");
        let on_port: BTreeSet<_> = port["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(on_port, BTreeSet::from(TAGS));
        let volume = one("volumes", "/attachments/0/server_id");
        assert_eq!(
            (text(volume, "/name"), text(volume, "/status"), &volume["size"], text(volume, "/volume_type")),
            (name(machine), "in-use", &json!(2), "standard")
        );
        let mut metadata = volume["metadata"].clone();
        if let Some(keys) = metadata.as_object_mut() {
            keys.remove("machine-controller-manager-made-for");
        }
        assert_eq!(metadata, tags);
    }
}

/// A Node has the id of its server as the cloud controller manager of `OpenStack` writes it: without the region.
async fn nodes_are_of_their_machines(stage: &Stage, machines: &[Value]) {
    let nodes = stage.nodes().await;
    assert_eq!(nodes.len(), machines.len());
    for machine in machines {
        let node = nodes.iter().find(|node| name(node) == name(machine)).expect("its node");
        assert_eq!(text(node, "/spec/providerID"), format!("openstack:///{}", id_of(machine)));
        assert_eq!(text(machine, "/metadata/labels/node"), name(node));
        assert_eq!(text(node, "/metadata/labels/pool"), DEPLOYMENT);
        assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
        assert_eq!(condition(node, "Ready"), "True");
    }
}

/// The server's id.
fn id_of(machine: &Value) -> &str {
    text(machine, "/spec/providerID").rsplit('/').next().unwrap_or_default()
}
