//! The program creates instances of EC2: with kubectl, a real API server, `mcm serve`, moto with its checks on, and kubelets that query moto with
//! boto3.
//!
//! The manifests come from the design notes. Their keys, subnet and security group belong to another account. The tests replace them with values of
//! the account in moto.

mod driver;
mod faults;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    refusals::Seed,
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        clouds::{NO_SIMULATION, counted},
        cluster_object::{condition, name, text},
        moto::{self, Moto, PROFILE, ROOT_DEVICE, Types},
        wait::expect,
        wait_until,
    },
};

const NAMESPACE: &str = "shoot--i034796--tre";
pub const DEPLOYMENT: &str = "shoot--i034796--tre-worker-q3rb4-z1";
pub const CLASS: &str = "shoot--i034796--tre-worker-q3rb4-z1-30c4a";
const NEW_CLASS: &str = "shoot--i034796--tre-worker-q3rb4-z1-77777";
const KEY_PAIR: &str = "shoot--i544024--hana-test-ssh-publickey";
const TIMEOUT: Duration = Duration::from_secs(300);

/// A cluster, a cloud and a namespace with machines.
pub struct Stage {
    pub rig: Arc<Rig>,
    pub moto: Moto,
    pub namespace: Namespace,
    _kubelets: crate::support::process::Process,
}

impl Stage {
    pub async fn new(test: &str) -> Option<Self> {
        let moto = Moto::start(test, Types::Any).await?;
        let rig = Rig::own(test).await?;
        rig.with_controller_manager().await;
        rig.install_crds().await;
        let kubelets = moto.kubelets(rig.admin_kubeconfig());
        let namespace = rig.namespace_named(NAMESPACE).await;
        Some(Self { rig, moto, namespace, _kubelets: kubelets })
    }

    pub async fn apply_secrets_and_class(&self) {
        let secrets = include_str!("../../manifests/secrets.yaml");
        let keys = &self.moto.manager;
        let secrets = secrets.replace("not-a-key", &keys.id).replace("not-a-secret", &keys.secret);
        self.namespace.apply(&secrets).await.succeed();
        self.namespace.apply(&self.class(CLASS).to_string()).await.succeed();
    }

    fn class(&self, name: &str) -> Value {
        let mut class = Seed::Class.object();
        class["metadata"]["name"] = json!(name);
        let interface = &mut class["providerSpec"]["networkInterfaces"][0];
        interface["subnetID"] = json!(self.moto.subnet);
        interface["securityGroupIDs"] = json!([self.moto.group]);
        class
    }

    async fn instances(&self) -> Vec<Value> {
        self.moto.inventory().await["instances"].as_array().cloned().unwrap_or_default()
    }

    async fn scale(&self, replicas: usize) {
        let replicas = format!("--replicas={replicas}");
        self.namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, &replicas]).await.succeed();
    }

    /// Waits until the account has exactly one instance per machine, and no other network interface or volume.
    async fn each_machine_has_its_instance(&self, count: usize) -> Vec<Value> {
        let machines = running_machines(&self.namespace, count, TIMEOUT).await;
        let wanted: BTreeSet<_> = machines.iter().map(|machine| id_of(text(machine, "/spec/providerID"))).collect();
        wait_until("one instance for each machine", TIMEOUT, || async {
            let inventory = self.moto.inventory().await;
            let found = inventory["instances"].as_array().cloned().unwrap_or_default();
            let ids: BTreeSet<_> = found.iter().map(|instance| text(instance, "/InstanceId").to_owned()).collect();
            let number = |what: &str| inventory[what].as_array().map_or(0, Vec::len);
            let whole = ids == wanted && (number("interfaces"), number("volumes")) == (count, count);
            expect(whole, || format!("machines of {wanted:?}; {}", summary(&inventory)))
        })
        .await;
        machines
    }

    /// Waits until the account has no instance, network interface or volume, and the cluster has no Node.
    pub async fn account_and_cluster_are_empty(&self) {
        wait_until("an empty account", TIMEOUT, || async {
            let inventory = self.moto.inventory().await;
            let left =
                ["instances", "interfaces", "volumes"].map(|what| inventory[what].as_array().map_or(0, Vec::len));
            expect(left == [0, 0, 0], || summary(&inventory))
        })
        .await;
        wait_until("the last node to go", TIMEOUT, || async {
            let nodes = self.nodes().await;
            expect(nodes.is_empty(), || format!("{:?}", nodes.iter().map(name).collect::<Vec<_>>()))
        })
        .await;
    }

    async fn nodes(&self) -> Vec<Value> {
        self.rig.list("nodes").await
    }

    async fn delete_everything(&self) {
        self.namespace.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
        for resource in ["machines", "machinesets", "machinedeployments"] {
            none_left(&self.namespace, resource, TIMEOUT).await;
        }
        self.account_and_cluster_are_empty().await;
        self.namespace.kubectl(&["delete", "machineclass", "--all", "--timeout=300s"]).await.succeed();
    }
}

fn id_of(provider_id: &str) -> String {
    provider_id.rsplit('/').next().unwrap_or_default().to_owned()
}

/// A short summary of an inventory.
fn summary(inventory: &Value) -> String {
    let of = |what: &str, id: &str| {
        let all = inventory[what].as_array().into_iter().flatten();
        all.map(|one| text(one, id).to_owned()).collect::<Vec<_>>()
    };
    format!(
        "instances {:?}, interfaces {:?}, volumes {:?}",
        of("instances", "/InstanceId"),
        of("interfaces", "/NetworkInterfaceId"),
        of("volumes", "/VolumeId")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manifests_of_the_design_notes_become_instances_and_are_deleted_again() {
    let Some(stage) = Stage::new("aws::the_manifests_of_the_design_notes_become_instances").await else { return };
    let endpoint = format!("--provider-endpoint=AWS={}", stage.moto.url);
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        // The highest verbosity, to check that no secret is logged.
        flags: vec![endpoint, "-v=10".to_owned()],
        rights: Rights::Generated,
    };
    let mut manager = TestManager::start(&stage.rig, &stage.namespace, &options).await;
    manager.register_webhooks(&stage.rig, &stage.namespace).await;
    stage.apply_secrets_and_class().await;
    let mut deployment = Seed::Deployment.object();
    deployment["spec"]["replicas"] = json!(3);
    stage.namespace.apply(&deployment.to_string()).await.succeed();

    let machines = stage.each_machine_has_its_instance(3).await;
    let user_data = instances_match_their_class(&stage, &machines).await;
    nodes_are_of_their_machines(&stage, &machines).await;
    let requested = stage.moto.actions_of(&stage.moto.manager);
    println!("requests to EC2 until 3 machines run: {}", counted(&requested));

    roll_to_another_type(&stage).await;
    stage.scale(1).await;
    stage.each_machine_has_its_instance(1).await;
    stage.delete_everything().await;
    let requested = stage.moto.actions_of(&stage.moto.manager);
    println!("requests to EC2 for 6 machines until all are gone: {}", counted(&requested));

    c_14_no_secret_is_logged(&manager.log(), &stage, &user_data);
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
}

/// Checks the instances against the class, as boto3 shows them, and returns their user data.
async fn instances_match_their_class(stage: &Stage, machines: &[Value]) -> Vec<String> {
    let inventory = stage.moto.inventory().await;
    let class = stage.class(CLASS);
    let mut all_user_data = Vec::new();
    for machine in machines {
        let (id, machine) = (id_of(text(machine, "/spec/providerID")), name(machine));
        let one = |what: &str, pointer: &str| {
            let mut all = inventory[what].as_array().into_iter().flatten();
            all.find(|one| text(one, pointer) == id).cloned().unwrap_or_else(|| panic!("{what} of {id}: {inventory}"))
        };
        let instance = one("instances", "/InstanceId");
        let mut tags = class["providerSpec"]["tags"].clone();
        tags["Name"] = json!(machine);
        assert_eq!(tags_of(&instance), tags);
        for (pointer, expected) in [
            ("/State/Name", "running"),
            ("/ImageId", moto::IMAGE),
            ("/InstanceType", "p2.xlarge"),
            ("/KeyName", KEY_PAIR),
            ("/RootDeviceName", ROOT_DEVICE),
            ("/BlockDeviceMappings/0/DeviceName", ROOT_DEVICE),
        ] {
            assert_eq!(text(&instance, pointer), expected, "{pointer}");
        }
        assert!(text(&instance, "/IamInstanceProfile/Arn").ends_with(PROFILE), "{instance}");
        let volume = one("volumes", "/Attachments/0/InstanceId");
        assert_eq!(
            (&volume["Size"], text(&volume, "/VolumeType"), &volume["Encrypted"]),
            (&json!(50), "gp3", &json!(true))
        );
        assert_eq!(tags_of(&volume), tags);
        let interface = one("interfaces", "/Attachment/InstanceId");
        assert_eq!(text(&interface, "/SubnetId"), stage.moto.subnet);
        assert_eq!(text(&interface, "/Groups/0/GroupId"), stage.moto.group);
        assert_eq!(interface["SourceDestCheck"], json!(false), "srcAndDstChecksEnabled is false in the class");
        let user_data = stage.moto.aws(&["user-data", &id]).await;
        let user_data = user_data.as_str().expect("a text").to_owned();
        let wanted =
            user_data.starts_with("#!/bin/sh\njoin --token ") && user_data.contains(&format!(" --name {machine}"));
        assert!(wanted && !user_data.contains("<<"), "{user_data}");
        all_user_data.push(user_data);
    }
    all_user_data
}

fn tags_of(resource: &Value) -> Value {
    let tags = resource["Tags"].as_array().into_iter().flatten();
    Value::Object(tags.map(|tag| (text(tag, "/Key").to_owned(), tag["Value"].clone())).collect())
}

/// A Node has the private DNS name of its instance, and its provider id as AWS's own controller writes it: with the zone.
async fn nodes_are_of_their_machines(stage: &Stage, machines: &[Value]) {
    let (nodes, instances) = (stage.nodes().await, stage.instances().await);
    assert_eq!(nodes.len(), machines.len());
    for machine in machines {
        let id = id_of(text(machine, "/spec/providerID"));
        assert_eq!(text(machine, "/spec/providerID"), format!("aws:///eu-west-1/{id}"));
        let instance = instances.iter().find(|instance| text(instance, "/InstanceId") == id).expect("its instance");
        let node = nodes.iter().find(|node| name(node) == text(instance, "/PrivateDnsName")).expect("its node");
        assert_eq!(text(node, "/spec/providerID"), format!("aws:///eu-west-1c/{id}"));
        assert_eq!(text(machine, "/metadata/labels/node"), name(node));
        assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
        assert_eq!(text(node, "/metadata/labels/worker.gardener.cloud~1pool"), "worker-q3rb4");
        assert_eq!(condition(node, "Ready"), "True");
    }
}

async fn roll_to_another_type(stage: &Stage) {
    let mut class = stage.class(NEW_CLASS);
    class["providerSpec"]["machineType"] = json!("m5.large");
    class["nodeTemplate"]["instanceType"] = json!("m5.large");
    stage.namespace.apply(&class.to_string()).await.succeed();
    let class = json!({ "kind": "MachineClass", "name": NEW_CLASS });
    let change = json!({ "spec": { "template": { "spec": { "class": class } } } }).to_string();
    stage.namespace.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &change]).await.succeed();
    wait_until("the rollout", 2 * TIMEOUT, || async {
        rolled_out(&stage.namespace.get("machinedeployment", DEPLOYMENT).await, 3)
    })
    .await;
    stage.each_machine_has_its_instance(3).await;
    for instance in stage.instances().await {
        assert_eq!(text(&instance, "/InstanceType"), "m5.large");
    }
}

fn c_14_no_secret_is_logged(log: &str, stage: &Stage, user_data: &[String]) {
    assert!(log.contains("CreateMachine") || log.contains("create"), "something is logged");
    let tokens =
        user_data.iter().filter_map(|text| text.split_whitespace().skip_while(|word| *word != "--token").nth(1));
    for secret in
        tokens.map(|token| token.split_once('.').expect("a token").1).chain([&*stage.moto.manager.secret, "#!/bin/sh"])
    {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "a secret is in the log: {line:?}");
    }
}
