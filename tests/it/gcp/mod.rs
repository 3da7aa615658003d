//! The program creates instances of Compute Engine: with kubectl, a real API server, `mcm serve`, the fake of Compute Engine
//! (`tests/fakes/gce`), and kubelets that query the fake with Google's own client.

mod faults;

use std::{collections::BTreeSet, path::Path, time::Duration};

use fake_gce::{MACHINE_TYPE, OTHER_MACHINE_TYPE, PROJECT, Timing, ZONE};
use serde_json::{Value, json};

use crate::{
    cloud::{Account, Size, Stage, a_life},
    support::{
        cluster_object::{name, text},
        gce::{Gce, TAGS, insert_body},
        process::Process,
        scratch,
    },
};

/// How long things take: long enough that every state of an instance is seen.
const TIMING: Timing = Timing {
    operation: Duration::from_millis(1500),
    wait: Duration::from_secs(1),
    visible_after: Duration::from_secs(1),
};

/// A cluster and an empty project.
async fn stage(test: &str) -> Option<Stage<Gce>> {
    Stage::new(test, Gce::start(test, TIMING).await?).await
}

impl Account for Gce {
    const NAMESPACE: &'static str = "gcp";

    fn kubelets(&self, kubeconfig: &Path) -> Process {
        self.start_kubelets(kubeconfig)
    }

    fn secret(&self) -> Value {
        self.secret_of_account()
    }

    fn class(&self, size: Size) -> Value {
        Self::class_of(size.class(), Self::NAMESPACE, machine_type(size))
    }

    fn requests(&self) -> Vec<String> {
        self.own_requests()
    }

    async fn inventory(&self) -> (BTreeSet<String>, Vec<usize>) {
        let id = |instance: &Value| format!("gce:///{PROJECT}/{ZONE}/{}", text(instance, "/name"));
        (self.fake.instances().iter().map(id).collect(), vec![self.fake.disks().len()])
    }

    fn resources_of_one(&self) -> Vec<usize> {
        vec![2]
    }

    async fn check(&self, machines: &[Value], size: Size) {
        instances_match_their_class(self, machines, machine_type(size));
    }

    /// With two slashes.
    fn node_id(&self, machine: &Value) -> String {
        format!("gce://{PROJECT}/{ZONE}/{}", name(machine))
    }

    /// A line of the private key, the user data, and signed tokens.
    fn secret_texts(&self) -> Vec<String> {
        let file: Value = serde_json::from_str(&self.fake.service_account()).expect("a key file");
        let of_key = text(&file, "/private_key").lines().nth(3).expect("a key has lines");
        // The last words are how the headers of tokens begin: {"alg":"RS256", and {"typ":.
        [of_key, "#!/bin/sh", "eyJhbGciOiJSUzI1NiI", "eyJ0eXAiOiJKV1Qi"].map(str::to_owned).to_vec()
    }
}

const fn machine_type(size: Size) -> &'static str {
    match size {
        Size::Small => MACHINE_TYPE,
        Size::Large => OTHER_MACHINE_TYPE,
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
    let Some(stage) = stage("gcp::machines_become_instances_roll_shrink_and_go_again").await else { return };
    a_life(&stage, vec![format!("--provider-endpoint=GCP={}", stage.account.fake.url())]).await;
    each_was_inserted_once(&stage, 6);
}

/// Each name has had one instance.
fn each_was_inserted_once(stage: &Stage<Gce>, count: usize) {
    let ever = stage.account.fake.inserted();
    assert_eq!((ever.len(), ever.iter().collect::<BTreeSet<_>>().len()), (count, count), "{ever:?}");
}

/// Checks the instances, as the fake has them, against the class.
fn instances_match_their_class(gce: &Gce, machines: &[Value], machine_type: &str) {
    let (instances, disks) = (gce.fake.instances(), gce.fake.disks());
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
