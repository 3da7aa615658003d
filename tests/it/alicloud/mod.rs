//! The program creates instances of Alibaba Cloud: with kubectl, a real API server, `mcm serve`, the fake of Elastic Compute Service
//! (`tests/fakes/ecs`), and kubelets that query the fake with Alibaba Cloud's own client.

mod faults;

use std::{collections::BTreeSet, path::Path, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use fake_ecs::{
    ACCESS_KEY_SECRET, ACCOUNT_ID, Action, INSTANCE_TYPE, OTHER_INSTANCE_TYPE, REGION, Scheme, Timing, ZONE,
};
use serde_json::{Value, json};

use crate::{
    cloud::{Account, Size, Stage, a_life},
    support::{
        cluster_object::{name, text},
        ecs::{Ecs, TAGS},
        process::Process,
        scratch,
    },
};

/// How long things take: long enough that every state of an instance is seen.
const TIMING: Timing = Timing {
    pending: Duration::from_millis(1500),
    starting: Duration::from_secs(1),
    stopping: Duration::from_secs(1),
    visible_after: Duration::from_secs(1),
};

/// A cluster and an empty account.
async fn stage(test: &str) -> Option<Stage<Ecs>> {
    Stage::new(test, Ecs::start(test, TIMING).await?).await
}

impl Account for Ecs {
    const NAMESPACE: &'static str = "alicloud";

    fn kubelets(&self, kubeconfig: &Path) -> Process {
        self.start_kubelets(kubeconfig)
    }

    fn secret(&self) -> Value {
        Self::secret_of_account()
    }

    fn class(&self, size: Size) -> Value {
        Self::class_of(size.class(), Self::NAMESPACE, instance_type(size))
    }

    fn requests(&self) -> Vec<String> {
        self.own_requests()
    }

    async fn inventory(&self) -> (BTreeSet<String>, Vec<usize>) {
        let id = |instance: &Value| format!("{REGION}.{}", text(instance, "/InstanceId"));
        (self.fake.instances().iter().map(id).collect(), vec![self.fake.disks().len()])
    }

    fn resources_of_one(&self) -> Vec<usize> {
        vec![2]
    }

    async fn check(&self, machines: &[Value], size: Size) {
        instances_match_their_class(self, machines, instance_type(size));
    }

    /// As the machine has it.
    fn node_id(&self, machine: &Value) -> String {
        text(machine, "/spec/providerID").to_owned()
    }

    /// The secret of the access key, the user data as text and in Base64, and signatures.
    fn secret_texts(&self) -> Vec<String> {
        let user_data = BASE64_STANDARD.encode("#!/bin/sh\njoin --token ");
        [ACCESS_KEY_SECRET, "#!/bin/sh", &user_data[..24], "Signature="].map(str::to_owned).to_vec()
    }
}

const fn instance_type(size: Size) -> &'static str {
    match size {
        Size::Small => INSTANCE_TYPE,
        Size::Large => OTHER_INSTANCE_TYPE,
    }
}

/// The fake is as Alibaba Cloud's own client and its classes expect.
#[tokio::test(flavor = "multi_thread")]
async fn alibaba_clouds_own_client_uses_the_fake_with_each_signature() {
    let test = "alicloud::alibaba_clouds_own_client_uses_the_fake_with_each_signature";
    let Some(ecs) = Ecs::start(test, Timing::default()).await else { return };
    scratch::count_ran(test);
    let (seen, ()) = tokio::join!(ecs.oracle(), ecs.check_model());
    assert_eq!((&seen["created"], &seen["again"]), (&json!({"rpc": 1, "acs3": 1}), &json!(true)));
    assert_eq!(seen["mismatch"], json!([400, "IdempotentParameterMismatch"]));
    assert_eq!(seen["pages"], json!([10, 2]));
    assert_eq!(seen["found"], json!([["m-acs3", "Running", ZONE], ["m-rpc", "Running", ZONE]]));
    assert!(text(&seen, "/address").starts_with("10.250."), "{seen}");
    assert_eq!(seen["disks"], json!([["system", 50, true], ["data", 30, true]]));
    assert_eq!(seen["account"], ACCOUNT_ID);
    assert_eq!(seen["running"], json!([403, "IncorrectInstanceStatus"]));
    assert_eq!((&seen["left"], &seen["absent"]), (&json!(0), &json!([404, "InvalidInstanceId.NotFound"])));
    for stranger in ["stranger_rpc", "stranger_acs3"] {
        assert_eq!(seen[stranger], json!([400, "SignatureDoesNotMatch"]));
    }
    let by: BTreeSet<_> = ecs.fake.requests().into_iter().map(|call| call.scheme).collect();
    assert_eq!(by, BTreeSet::from([Scheme::Rpc, Scheme::Acs3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn y21_machines_become_instances_roll_shrink_and_go_again() {
    let Some(stage) = stage("alicloud::machines_become_instances_roll_shrink_and_go_again").await else { return };
    a_life(&stage, vec![format!("--provider-endpoint=Alicloud={}", stage.account.fake.url())]).await;
    each_was_created_once(&stage, 6);
}

/// Each name has had one instance.
fn each_was_created_once(stage: &Stage<Ecs>, count: usize) {
    let ever = stage.account.fake.created();
    assert_eq!((ever.len(), ever.iter().collect::<BTreeSet<_>>().len()), (count, count), "{ever:?}");
}

/// Checks the instances, as the fake has them, against the class.
fn instances_match_their_class(ecs: &Ecs, machines: &[Value], instance_type: &str) {
    let (instances, disks, requests) = (ecs.fake.instances(), ecs.fake.disks(), ecs.fake.requests());
    for machine in machines {
        let instance = instances.iter().find(|one| text(one, "/InstanceName") == name(machine)).expect("its instance");
        assert_eq!((text(instance, "/Status"), text(instance, "/InstanceType")), ("Running", instance_type));
        assert_eq!((text(instance, "/SpotStrategy"), &instance["IoOptimized"]), ("SpotAsPriceGo", &json!(true)));
        assert_eq!(instance["InternetMaxBandwidthOut"], 5);
        let tags = instance["Tags"]["Tag"].as_array().expect("a list");
        let tags: BTreeSet<_> = tags.iter().map(|tag| (text(tag, "/TagKey"), text(tag, "/TagValue"))).collect();
        assert_eq!(tags, BTreeSet::from([(TAGS[0], "1"), (TAGS[1], "1"), ("pool", "whole")]));
        let own: Vec<_> = disks.iter().filter(|disk| disk["InstanceId"] == instance["InstanceId"]).collect();
        let shown: Vec<_> = own.iter().map(|disk| (text(disk, "/Type"), &disk["Size"], &disk["Encrypted"])).collect();
        assert_eq!(shown, [("system", &json!(75), &json!(false)), ("data", &json!(30), &json!(true))]);
        assert_eq!(text(own[1], "/DiskName"), format!("{}-data-data-disk", name(machine)));
        let creation = requests.iter().find(|call| {
            call.action == Action::RunInstances
                && call.parameters.get("InstanceName").is_some_and(|own| own == name(machine))
        });
        let data = &creation.expect("its creation").parameters["UserData"];
        let script = String::from_utf8(BASE64_STANDARD.decode(data).expect("Base64")).expect("text");
        let filled = script.starts_with("#!/bin/sh\njoin --token ")
            && script.contains(&format!(" --name {}\n", name(machine)))
            && !script.contains("<<");
        assert!(filled, "{script}");
    }
}
