//! The driver for EC2 against moto: the checks of spec/providers §11.2. moto does not simulate client tokens, lack of capacity, throttling and lost
//! replies. These are tested against a fake in `crates/driver-aws` and through the fault proxy in [`crate::aws`].

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use driver_aws::{AWS, AwsDriver, AwsOptions};
use fault_proxy::FaultProxy;
use machine_driver::{
    Code, CreatedVm, DeletedVm, Driver, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext,
    SecretData, Status, VmIdentity, contract,
};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::{
    cluster_object::text,
    moto::{self, IMAGE, Keys, Moto, PROFILE, ROOT_DEVICE, Types},
    scratch,
};

const ROLE: &str = "kubernetes.io/role/node";
const REGION: &str = "eu-west-1";

/// A class and its machines. The cluster belongs to this test alone.
struct Cluster {
    moto: &'static Moto,
    driver: AwsDriver,
    name: &'static str,
    spec: Value,
    keys: Keys,
}

impl Cluster {
    /// Starts on the moto process that these tests share. Returns `None` without moto; the skipped test is reported and counted.
    async fn new(test: &'static str, change: Value) -> Option<Self> {
        static SHARED: OnceCell<Option<Moto>> = OnceCell::const_new();
        let name = format!("aws::driver::{test}");
        moto::python(&name).await?;
        let moto = SHARED.get_or_init(|| Moto::start(&name, Types::Offered)).await.as_ref()?;
        scratch::count_ran(&name);
        Some(Self::on(moto, test, &change))
    }

    fn on(moto: &'static Moto, name: &'static str, change: &Value) -> Self {
        let mut spec = json!({
            "ami": IMAGE, "region": REGION, "machineType": "m5.large", "iam": {"name": PROFILE},
            "blockDevices": [{"ebs": {"volumeSize": 50, "volumeType": "gp3"}}],
            "networkInterfaces": [{"subnetID": moto.subnet, "securityGroupIDs": [moto.group]}],
            "tags": {format!("kubernetes.io/cluster/{name}"): "1", ROLE: "1"},
        });
        json_patch::merge(&mut spec, change);
        Self { moto, driver: driver(&moto.url), name, spec, keys: moto.manager.clone() }
    }

    fn class(&self) -> Arc<MachineClass> {
        let class = MachineClass { provider: AWS.to_owned(), provider_spec: self.spec.clone(), ..Default::default() };
        Arc::new(class)
    }

    fn secret(&self) -> SecretData {
        let mut secret = SecretData::default();
        let values =
            [("accessKeyID", &*self.keys.id), ("secretAccessKey", &*self.keys.secret), ("userData", "#!/bin/sh\n")];
        for (key, value) in values {
            secret.set(key, value.as_bytes().to_vec());
        }
        secret
    }

    fn machine(&self, name: &str) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.uid = Some(format!("{}-{name}", self.name));
        machine
    }

    fn request(&self, machine: Machine) -> MachineRequest {
        MachineRequest { machine: Arc::new(machine), class: self.class(), secret: self.secret() }
    }

    fn cx() -> OpContext {
        OpContext::within(Duration::from_secs(300))
    }

    async fn create(&self, machine: &str) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&Self::cx(), self.request(self.machine(machine))).await
    }

    async fn status(&self, machine: &str) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&Self::cx(), self.request(self.machine(machine))).await
    }

    async fn initialize(&self, machine: &str) -> Result<VmIdentity, Status> {
        self.driver.initialize_machine(&Self::cx(), self.request(self.machine(machine))).await
    }

    async fn delete(&self, machine: &str, provider_id: &str) -> Result<DeletedVm, Status> {
        let mut machine = self.machine(machine);
        provider_id.clone_into(&mut machine.spec.provider_id);
        self.driver.delete_machine(&Self::cx(), self.request(machine)).await
    }

    async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        self.driver.list_machines(&Self::cx(), ListRequest { class: self.class(), secret: self.secret() }).await
    }

    /// The driver's list, as pairs of machine and instance.
    async fn listed(&self) -> BTreeSet<(String, String)> {
        let listed = self.list().await.expect("a list");
        listed.into_iter().map(|vm| (vm.machine_name, id_of(&vm.provider_id))).collect()
    }

    /// The live instances with a name, as boto3 shows them.
    async fn instances(&self, machine: &str) -> Vec<Value> {
        let all = self.moto.inventory().await;
        let ours = |instance: &&Value| {
            let tags = tags_of(instance);
            tags.contains(&format!("kubernetes.io/cluster/{}=1", self.name))
                && tags.contains(&format!("Name={machine}"))
        };
        all["instances"].as_array().into_iter().flatten().filter(ours).cloned().collect()
    }

    /// Instances that something else creates with several requests. They have the tags of this cluster and of a machine's name.
    async fn copies(&self, machine: &str, requests: usize, each: usize) -> Vec<String> {
        let tags = json!({"Name": machine, format!("kubernetes.io/cluster/{}", self.name): "1", ROLE: "1"});
        self.foreign(requests, each, &tags).await
    }

    async fn foreign(&self, requests: usize, each: usize, tags: &Value) -> Vec<String> {
        let (requests, each, tags) = (requests.to_string(), each.to_string(), tags.to_string());
        let made = self.moto.aws(&["copies", IMAGE, "m5.large", &self.moto.subnet, &requests, &each, &tags]).await;
        made.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

fn driver(endpoint: &str) -> AwsDriver {
    AwsDriver::new(AwsOptions { ec2_endpoint: Some(endpoint.to_owned()), ..AwsOptions::default() })
}

fn id_of(provider_id: &str) -> String {
    provider_id.rsplit('/').next().unwrap_or_default().to_owned()
}

fn tags_of(resource: &Value) -> BTreeSet<String> {
    let tags = resource["Tags"].as_array().into_iter().flatten();
    tags.map(|tag| format!("{}={}", text(tag, "/Key"), text(tag, "/Value"))).collect()
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.expect_err("a refusal");
    (status.code, status.message)
}

#[tokio::test]
async fn the_contract_of_drivers_holds() {
    let Some(mut cluster) = Cluster::new("contract", json!({})).await else { return };
    // moto does not support client tokens.
    let proxy = FaultProxy::before(&cluster.moto.url).await.expect("a port");
    proxy.keep_to_tokens("ClientToken");
    cluster.driver = driver(proxy.url());
    contract::holds_for(&cluster.driver, MachineClass::clone(&cluster.class()), cluster.secret()).await;
}

#[tokio::test]
async fn a_01_a_02_a_07_a_31_a_creation_makes_one_instance_as_the_class_says() {
    let change = json!({
        "tags": {"Name": "foo", "team": "x"},
        "blockDevices": [{"ebs": {"volumeSize": 63, "volumeType": "gp3", "encrypted": true}}],
        "instanceMetadataOptions": {"httpTokens": "required", "httpPutResponseHopLimit": 2},
    });
    let Some(cluster) = Cluster::new("a_01", change).await else { return };
    let made = cluster.create("m-1").await.expect("an instance").vm;
    let instances = cluster.instances("m-1").await;
    assert_eq!(instances.len(), 1, "{instances:?}");
    let (instance, id) = (&instances[0], text(&instances[0], "/InstanceId"));
    assert_eq!(made.provider_id, format!("aws:///{REGION}/{id}"));
    assert_eq!(made.node_name, text(instance, "/PrivateDnsName"));
    let expected = ["Name=m-1", "kubernetes.io/cluster/a_01=1", "kubernetes.io/role/node=1", "team=x"];
    assert_eq!(tags_of(instance), expected.map(str::to_owned).into());
    assert_eq!(text(instance, "/ImageId"), IMAGE);
    assert_eq!(text(instance, "/MetadataOptions/HttpTokens"), "required");
    assert!(text(instance, "/IamInstanceProfile/Arn").ends_with(PROFILE), "{instance}");
    let interface = &instance["NetworkInterfaces"][0];
    assert_eq!(
        (text(interface, "/SubnetId"), text(interface, "/Groups/0/GroupId")),
        (&*cluster.moto.subnet, &*cluster.moto.group)
    );
    assert_eq!(text(instance, "/BlockDeviceMappings/0/DeviceName"), ROOT_DEVICE);
    let inventory = cluster.moto.inventory().await;
    let volumes = inventory["volumes"].as_array().expect("volumes");
    let volume = volumes.iter().find(|volume| text(volume, "/Attachments/0/InstanceId") == id).expect("a volume");
    assert_eq!((&volume["Size"], text(volume, "/VolumeType"), &volume["Encrypted"]), (&json!(63), "gp3", &json!(true)));
    assert_eq!(tags_of(volume), expected.map(str::to_owned).into());
    assert_eq!(cluster.moto.aws(&["user-data", id]).await, "#!/bin/sh\n");
}

#[tokio::test]
async fn a_04_an_instance_of_another_cluster_is_not_touched() {
    let Some(cluster) = Cluster::new("a_04", json!({})).await else { return };
    let foreign = cluster.foreign(1, 1, &json!({"Name": "m-1", "kubernetes.io/cluster/another": "1", ROLE: "1"})).await;
    let made = cluster.create("m-1").await.expect("an instance of its own").vm;
    assert_ne!(id_of(&made.provider_id), foreign[0]);
    cluster.delete("m-1", "").await.expect("only ours goes");
    assert_eq!(cluster.instances("m-1").await, Vec::<Value>::new());
    let all = cluster.moto.inventory().await;
    assert!(all["instances"].to_string().contains(&foreign[0]), "the foreign instance is gone");
}

#[tokio::test]
async fn a_05_a_missing_image_is_reported_with_the_error_of_ec2() {
    let Some(cluster) = Cluster::new("a_05", json!({"ami": "ami-0123456789abcdef0"})).await else { return };
    let (code, message) = code(cluster.create("m-1").await);
    assert_eq!(code, Code::InvalidArgument, "{message}");
    assert!(message.contains("InvalidAMIID.NotFound") && message.contains("ami-0123456789abcdef0"), "{message}");
}

#[tokio::test]
async fn a_launch_with_a_missing_subnet_or_type_is_refused_and_leaves_nothing() {
    let Some(cluster) = Cluster::new("refused", json!({})).await else { return };
    let interface = json!({"subnetID": "subnet-0abc", "securityGroupIDs": [cluster.moto.group]});
    let wrong = Cluster::on(cluster.moto, "refused", &json!({"networkInterfaces": [interface]}));
    let (refused, message) = code(wrong.create("m-1").await);
    assert_eq!(refused, Code::InvalidArgument, "{message}");
    assert!(message.contains("InvalidSubnetID.NotFound"), "{message}");
    let gone = Cluster::on(cluster.moto, "refused", &json!({"machineType": "p2.xlarge"}));
    let (_, message) = code(gone.create("m-1").await);
    assert!(message.contains("InvalidInstanceType.NotFound"), "{message}");
    assert_eq!(cluster.instances("m-1").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_14_wrong_credentials_are_reported() {
    let Some(mut cluster) = Cluster::new("a_14", json!({})).await else { return };
    let right = cluster.keys.clone();
    for keys in
        [Keys { id: "AKIAIOSFODNN7EXAMPLE".to_owned(), ..right.clone() }, Keys { secret: "wrong".to_owned(), ..right }]
    {
        cluster.keys = keys;
        let (code, message) = code(cluster.status("m-1").await);
        assert_eq!(code, Code::Unauthenticated, "{message}");
        assert!(message.contains("AuthFailure"), "{message}");
    }
}

#[tokio::test]
async fn c_12_a_rotated_secret_signs_the_next_request() {
    let Some(mut cluster) = Cluster::new("c_12", json!({})).await else { return };
    let policy = moto::policy();
    cluster.keys = cluster.moto.user("before", &policy).await;
    let before = cluster.keys.clone();
    assert_eq!(cluster.listed().await, BTreeSet::new());
    cluster.keys = cluster.moto.user("after", &policy).await;
    assert_eq!(cluster.listed().await, BTreeSet::new());
    assert_eq!(cluster.moto.actions_of(&before), ["DescribeInstances"]);
    assert_eq!(cluster.moto.actions_of(&cluster.keys), ["DescribeInstances"]);
}

#[tokio::test]
async fn the_policy_of_the_documents_is_enough_and_every_action_of_it_is_needed() {
    let change = json!({
        "srcAndDstChecksEnabled": false,
        "networkInterfaces": [{"subnetID": null, "securityGroupIDs": null, "ipv6PrefixCount": 1}],
    });
    let Some(mut cluster) = Cluster::new("policy", change).await else { return };
    cluster.spec["networkInterfaces"][0]["subnetID"] = json!(cluster.moto.subnet);
    cluster.spec["networkInterfaces"][0]["securityGroupIDs"] = json!([cluster.moto.group]);
    life(&cluster, "whole").await.expect("the policy is enough");

    let policy = moto::policy();
    let mut needed = 0;
    for action in actions_of(&policy) {
        let mut without = policy.clone();
        for statement in without["Statement"].as_array_mut().expect("statements") {
            let left: Vec<Value> =
                as_list(&statement["Action"]).into_iter().filter(|other| *other != action).map(Value::from).collect();
            // moto treats a statement without actions as a statement about all actions.
            statement["Action"] = if left.is_empty() { json!("none:None") } else { json!(left) };
        }
        cluster.keys = cluster.moto.user(&format!("without-{}", action.replace(':', "-")), &without).await;
        let machine = action.replace(':', "-").to_lowercase();
        let outcome = life(&cluster, &machine).await;
        // moto does not check the first two, which belong to RunInstances. The other actions are needed for checks of classes.
        let beside = ["CreateTags", "PassRole", "DescribeSubnets", "DescribeSecurityGroups", "DescribeKeyPairs"];
        if beside.iter().any(|name| action.ends_with(name)) {
            outcome.expect("a life without this action");
            continue;
        }
        let status = outcome.expect_err("a right that nothing needs");
        assert_eq!(status.code, Code::PermissionDenied, "{action}: {}", status.message);
        assert!(status.message.contains(&action), "{action} is not named: {}", status.message);
        needed += 1;
    }
    assert_eq!(needed, 6);
}

/// The life of a machine with every setting that a class supports.
async fn life(cluster: &Cluster, machine: &str) -> Result<(), Status> {
    cluster.create(machine).await?;
    let initialized = cluster.initialize(machine).await;
    // A refused initialisation is reported as the reason why the instance is not initialised.
    initialized.map_err(|status| {
        let denied = status.message.contains("AccessDenied");
        if denied { Status::new(Code::PermissionDenied, status.message) } else { status }
    })?;
    cluster.delete(machine, "").await.map(drop)
}

fn actions_of(policy: &Value) -> Vec<String> {
    policy["Statement"].as_array().into_iter().flatten().flat_map(|statement| as_list(&statement["Action"])).collect()
}

fn as_list(value: &Value) -> Vec<String> {
    let texts = value.as_array().map_or_else(|| vec![value], |list| list.iter().collect());
    texts.into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_16_checks_of_source_and_destination_are_switched_off() {
    let Some(cluster) = Cluster::new("a_16", json!({"srcAndDstChecksEnabled": false})).await else { return };
    let made = cluster.create("m-1").await.expect("an instance").vm;
    let uninitialized = cluster.status("m-1").await.expect_err("it still checks");
    assert_eq!(uninitialized.code, Code::Uninitialized, "{}", uninitialized.message);
    let known = uninitialized.partial.expect("what is known of it");
    assert_eq!((&known.provider_id, &known.node_name), (&made.provider_id, &made.node_name));
    cluster.initialize("m-1").await.expect("it is initialised");
    cluster.status("m-1").await.expect("it checks nothing any more");
    let instance = cluster.instances("m-1").await.remove(0);
    assert_eq!(instance["NetworkInterfaces"][0]["SourceDestCheck"], json!(false));
}

#[tokio::test]
async fn a_19_a_23_two_instances_of_one_machine_are_reported_and_both_are_deleted() {
    let Some(cluster) = Cluster::new("a_19", json!({})).await else { return };
    let ids = cluster.copies("m-1", 1, 2).await;
    for (code, message) in [code(cluster.status("m-1").await), code(cluster.create("m-1").await)] {
        assert_eq!(code, Code::OutOfRange);
        assert!(ids.iter().all(|id| message.contains(id.as_str())), "{message}");
    }
    cluster.delete("m-1", "").await.expect("both go");
    assert_eq!(cluster.instances("m-1").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_22_an_instance_that_is_gone_is_deleted() {
    let Some(cluster) = Cluster::new("a_22", json!({})).await else { return };
    let made = cluster.create("m-1").await.expect("an instance").vm;
    cluster.moto.aws(&["terminate", &id_of(&made.provider_id)]).await;
    assert_eq!(code(cluster.status("m-1").await).0, Code::NotFound);
    cluster.delete("m-1", "").await.expect("nothing is left");
    cluster.delete("m-1", &format!("aws:///{REGION}/i-0123456789abcdef0")).await.expect("an unknown id");
}

#[tokio::test]
async fn c_05_an_orphan_is_deleted_by_its_id_with_unfilled_user_data() {
    let Some(cluster) = Cluster::new("c_05", json!({})).await else { return };
    let ids = cluster.copies("m-1", 1, 2).await;
    let mut request = cluster.request(Machine::default());
    request.secret.set("userData", b"join <<MACHINE_NAME>> <<BOOTSTRAP_TOKEN>>".to_vec());
    let list = ListRequest { class: cluster.class(), secret: request.secret.clone() };
    let orphan = cluster.driver.list_machines(&Cluster::cx(), list).await.expect("a list").remove(0);
    let mut machine = Machine::default();
    machine.metadata.name = Some(orphan.machine_name);
    machine.spec.provider_id.clone_from(&orphan.provider_id);
    request.machine = Arc::new(machine);
    cluster.driver.delete_machine(&Cluster::cx(), request).await.expect("it goes");
    let left: Vec<_> = ids.into_iter().filter(|id| *id != id_of(&orphan.provider_id)).collect();
    let found = cluster.instances("m-1").await;
    let found: Vec<_> = found.iter().map(|instance| text(instance, "/InstanceId")).collect();
    assert_eq!(found, left, "the other one stays");
}

#[tokio::test]
async fn a_26_an_annotation_places_the_instance() {
    let Some(cluster) = Cluster::new("a_26", json!({})).await else { return };
    let mut machine = cluster.machine("m-1");
    let annotations = &mut machine.spec.node_template.metadata.annotations;
    annotations
        .get_or_insert_default()
        .insert("machine.sapcloud.io/awsPlacement".to_owned(), r#"{"Tenancy":"dedicated"}"#.to_owned());
    cluster.driver.create_machine(&Cluster::cx(), cluster.request(machine)).await.expect("an instance");
    // moto accepts the tenancy but never shows it.
    let placed = |form: &&String| form.contains("Action=RunInstances") && form.contains("Placement.Tenancy=dedicated");
    assert_eq!(cluster.moto.forms_of(&cluster.keys).iter().filter(placed).count(), 1);
}

#[tokio::test]
async fn a_28_lists_contain_stopped_instances_but_no_terminated_ones() {
    let Some(cluster) = Cluster::new("a_28", json!({})).await else { return };
    let [stopped, runs, ended] = ["stopped", "runs", "ended"];
    let mut expected = BTreeSet::new();
    for machine in [stopped, runs, ended] {
        expected.insert((machine.to_owned(), cluster.copies(machine, 1, 1).await.remove(0)));
    }
    assert_eq!(cluster.listed().await, expected);
    let id = |machine: &str| expected.iter().find(|(name, _)| name == machine).expect("it was made").1.clone();
    cluster.moto.aws(&["stop", &id(stopped)]).await;
    cluster.moto.aws(&["terminate", &id(ended)]).await;
    let left: BTreeSet<_> = expected.iter().filter(|(name, _)| name != ended).cloned().collect();
    assert_eq!(cluster.listed().await, left);
    // An instance without the tag of the cluster belongs to no cluster.
    cluster.moto.aws(&["untag", &id(runs), "kubernetes.io/cluster/a_28"]).await;
    assert_eq!(cluster.listed().await, [(stopped.to_owned(), id(stopped))].into());
}

#[tokio::test]
async fn a_29_a_list_of_1200_instances_has_all_of_them() {
    let name = "aws::driver::a_29";
    // In the shared moto process, the lists of other tests would become long, too.
    let Some(moto) = Moto::start(name, Types::Offered).await else { return };
    scratch::count_ran(name);
    let cluster = Cluster::on(Box::leak(Box::new(moto)), "a_29", &json!({}));
    // moto pages by launches, not by instances: the first page has 500 launches, and the second page has the last one.
    let mut made: BTreeSet<_> = cluster.copies("m", 500, 1).await.into_iter().collect();
    made.extend(cluster.copies("m", 1, 700).await);
    let listed: Vec<String> = cluster.list().await.expect("a list").iter().map(|vm| id_of(&vm.provider_id)).collect();
    assert_eq!(listed.len(), 1200);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), made);
    assert!(cluster.moto.actions_of(&cluster.keys).len() >= 2, "it takes more pages than one");
}
