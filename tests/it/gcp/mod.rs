//! The program creates instances of Compute Engine: with kubectl, a real API server, `mcm serve`, the fake of Compute Engine
//! (`tests/fakes/gce`), and kubelets that query the fake with Google's own client.

mod faults;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fake_gce::{MACHINE_TYPE, OTHER_MACHINE_TYPE, PROJECT, Timing, ZONE};
use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        clouds::{NO_SIMULATION, counted},
        cluster_object::{condition, items, name, text},
        gce::{Gce, TAGS, insert_body},
        process::Process,
        scratch,
        wait::expect,
        wait_until,
    },
};

const NAMESPACE: &str = "gcp";
pub const DEPLOYMENT: &str = "whole";
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long things take: long enough that every state of an instance is seen.
const TIMING: Timing = Timing {
    operation: Duration::from_millis(1500),
    wait: Duration::from_secs(1),
    visible_after: Duration::from_secs(1),
};

/// A cluster, a project, and the kubelets of its instances.
pub struct Stage {
    pub rig: Arc<Rig>,
    pub gce: Gce,
    pub namespace: Namespace,
    _kubelets: Process,
}

impl Stage {
    pub async fn new(test: &str) -> Option<Self> {
        let gce = Gce::start(test, TIMING).await?;
        let rig = Rig::own(test).await?;
        rig.with_controller_manager().await;
        rig.install_crds().await;
        let kubelets = gce.kubelets(rig.admin_kubeconfig());
        let namespace = rig.namespace_named(NAMESPACE).await;
        Some(Self { rig, gce, namespace, _kubelets: kubelets })
    }

    pub async fn apply(&self, object: &Value) {
        self.namespace.apply(&object.to_string()).await.succeed();
    }

    /// Applies Secret, class and deployment.
    pub async fn apply_machines(&self, replicas: usize) {
        self.apply(&self.gce.secret()).await;
        self.apply(&Gce::class("small", NAMESPACE, MACHINE_TYPE)).await;
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

    /// Waits until this number of machines runs and the project has exactly one instance with its two disks for each of them.
    pub async fn each_machine_has_its_instance(&self, count: usize, patience: Duration) -> Vec<Value> {
        let machines = running_machines(&self.namespace, count, patience).await;
        let wanted: BTreeSet<_> = machines.iter().map(|machine| text(machine, "/spec/providerID").to_owned()).collect();
        wait_until("one instance for each machine", patience, || async {
            let instances = self.gce.fake.instances();
            let found: BTreeSet<_> = instances
                .iter()
                .map(|instance| format!("gce:///{PROJECT}/{ZONE}/{}", text(instance, "/name")))
                .collect();
            let whole = found == wanted && self.gce.counts() == [count, 2 * count];
            expect(whole, || format!("machines {wanted:?}, instances {found:?}, {:?}", self.gce.counts()))
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
        assert_eq!(self.gce.counts(), [0; 2], "{:?}", self.gce.fake.instances());
        wait_until("the last node to go", patience, || async {
            let nodes = self.nodes().await;
            expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
        })
        .await;
        self.namespace.kubectl(&["delete", "machineclass", "--all", "--timeout=60s"]).await.succeed();
        self.namespace.kubectl(&["delete", "secret", "cloud", "--timeout=60s"]).await.succeed();
    }
}

/// The fake is as Google's own client and its discovery documents expect.
#[tokio::test(flavor = "multi_thread")]
async fn googles_own_client_uses_the_fake_with_each_kind_of_credentials() {
    let test = "gcp::googles_own_client_uses_the_fake_with_each_kind_of_credentials";
    let Some(gce) = Gce::start(test, Timing::default()).await else { return };
    scratch::count_ran(test);
    let body = insert_body();
    let (seen, ()) = tokio::join!(gce.oracle(&body), gce.check_model());
    let names = ["m-exchanged", "m-external", "m-signed"];
    assert_eq!(seen["created"], json!({"signed": "DONE", "exchanged": "DONE", "external": "DONE"}));
    assert_eq!((&seen["listed"], &seen["disks"]), (&json!(names), &json!(names)));
    assert_eq!((text(&seen, "/status"), text(&seen, "/address").starts_with("10.250.")), ("RUNNING", true));
    assert_eq!((&seen["again"], &seen["absent"]), (&json!([409, "alreadyExists"]), &json!([404, "notFound"])));
    assert_eq!((&seen["deleted"], &seen["left"]), (&json!(["DONE", "DONE", "DONE"]), &json!([])));
    assert_eq!(seen["anonymous"], json!([401, "authError"]));
    let by: BTreeSet<_> = gce.fake.requests().into_iter().map(|call| call.by).collect();
    for endpoint in ["oauth", "sts", "iam"] {
        assert!(by.contains(endpoint), "no request with a token of {endpoint}: {by:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_instances_roll_shrink_and_go_again() {
    let Some(stage) = Stage::new("gcp::machines_become_instances_roll_shrink_and_go_again").await else { return };
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        // The highest verbosity, to check that no secret is logged.
        flags: vec![format!("--provider-endpoint=GCP={}", stage.gce.fake.url()), "-v=10".to_owned()],
        rights: Rights::Generated,
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    manager.register_webhooks(&stage.rig, &stage.namespace).await;
    stage.apply_machines(3).await;
    let machines = stage.each_machine_has_its_instance(3, TIMEOUT).await;
    println!("requests until 3 machines run: {}", counted(&stage.gce.requests()));
    instances_match_their_class(&stage, &machines, MACHINE_TYPE);
    nodes_are_of_their_machines(&stage, &machines).await;

    stage.apply(&Gce::class("large", NAMESPACE, OTHER_MACHINE_TYPE)).await;
    let change =
        json!({"spec": {"template": {"spec": {"class": {"kind": "MachineClass", "name": "large"}}}}}).to_string();
    stage.namespace.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &change]).await.succeed();
    wait_until("the rollout", 2 * TIMEOUT, || async {
        rolled_out(&stage.namespace.get("machinedeployment", DEPLOYMENT).await, 3)
    })
    .await;
    let machines = stage.each_machine_has_its_instance(3, TIMEOUT).await;
    instances_match_their_class(&stage, &machines, OTHER_MACHINE_TYPE);
    stage.namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=1"]).await.succeed();
    stage.each_machine_has_its_instance(1, TIMEOUT).await;

    stage.delete_the_deployment().await;
    stage.nothing_is_left(TIMEOUT).await;
    println!("requests for 6 machines until all are gone: {}", counted(&stage.gce.requests()));
    let ever = stage.gce.fake.inserted();
    assert_eq!((ever.len(), ever.iter().collect::<BTreeSet<_>>().len()), (6, 6), "{ever:?}");
    no_secret_is_logged(&manager.log(), &stage);
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Checks the instances, as the fake has them, against the class.
fn instances_match_their_class(stage: &Stage, machines: &[Value], machine_type: &str) {
    let (instances, disks) = (stage.gce.fake.instances(), stage.gce.fake.disks());
    for machine in machines {
        let one = |all: &[Value], wanted: &str| {
            let found = all.iter().find(|one| text(one, "/name") == wanted);
            found.cloned().unwrap_or_else(|| panic!("{wanted} is not in {all:?}"))
        };
        let instance = one(&instances, name(machine));
        assert_eq!(text(&instance, "/status"), "RUNNING");
        assert!(text(&instance, "/machineType").ends_with(&format!("/machineTypes/{machine_type}")), "{instance}");
        assert_eq!(instance["tags"]["items"], json!([TAGS[0], TAGS[1], "nodes"]));
        assert_eq!((&instance["labels"], &instance["canIpForward"]), (&json!({"pool": "whole"}), &json!(true)));
        assert_eq!(
            instance["networkInterfaces"][0].get("accessConfigs"),
            None,
            "disableExternalIP is true in the class"
        );
        let metadata = instance["metadata"]["items"].as_array().expect("a list");
        let value =
            |key: &str| metadata.iter().find(|item| item["key"] == key).map(|item| text(item, "/value").to_owned());
        assert_eq!(value("serial-port-enable").as_deref(), Some("1"));
        let script = value("startup-script").expect("user data that is a script");
        let filled = script.starts_with("#!/bin/sh\njoin --token ")
            && script.contains(&format!(" --name {}\n", name(machine)))
            && !script.contains("<<");
        assert!(filled, "{script}");
        let (boot, data) = (one(&disks, name(machine)), one(&disks, &format!("{}-1", name(machine))));
        assert_eq!((&boot["sizeGb"], &boot["labels"]), (&json!("50"), &json!({"pool": "whole"})));
        assert!(text(&boot, "/type").ends_with("/pd-ssd") && text(&data, "/type").ends_with("/pd-balanced"));
    }
}

/// A Node has the id of its instance as the cloud controller manager of Google writes it: with two slashes.
async fn nodes_are_of_their_machines(stage: &Stage, machines: &[Value]) {
    let nodes = stage.nodes().await;
    assert_eq!(nodes.len(), machines.len());
    for machine in machines {
        let node = nodes.iter().find(|node| name(node) == name(machine)).expect("its node");
        let instance = format!("{PROJECT}/{ZONE}/{}", name(machine));
        assert_eq!(text(machine, "/spec/providerID"), format!("gce:///{instance}"));
        assert_eq!(text(node, "/spec/providerID"), format!("gce://{instance}"));
        assert_eq!(text(machine, "/metadata/labels/node"), name(node));
        assert_eq!(text(node, "/metadata/labels/pool"), DEPLOYMENT);
        assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
        assert_eq!(condition(node, "Ready"), "True");
    }
}

/// Neither a line of the private key, nor the user data, nor a signed token.
fn no_secret_is_logged(log: &str, stage: &Stage) {
    assert!(log.contains("CreateMachine") || log.contains("create"), "something is logged");
    let file: Value = serde_json::from_str(&stage.gce.fake.service_account()).expect("a key file");
    let of_key = text(&file, "/private_key").lines().nth(3).expect("a key has lines");
    // The last word is how every header of a token begins: {"alg":"RS256", or {"typ":.
    for secret in [of_key, "#!/bin/sh", "eyJhbGciOiJSUzI1NiI", "eyJ0eXAiOiJKV1Qi"] {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "a secret is in the log: {line:?}");
    }
}
