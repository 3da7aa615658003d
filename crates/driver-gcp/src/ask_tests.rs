//! Tests of the check of a class by GCE.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use fake_gce::{Method, Refusal};
use kube_values::field::Finding;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::test_rig::Rig;

fn texts(found: &Findings) -> Vec<String> {
    found.iter().map(Finding::warning).collect()
}

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::an_image_of_a_family(json!({"disks": [{"boot": true, "image": "https://www.googleapis.com/compute/v1/projects/shoot-project/global/images/family/gardenlinux"}]}), &[])]
#[case::no_machine_type(json!({"machineType": "n9-none"}), &["providerSpec.machineType"])]
#[case::no_image(json!({"disks": [{"boot": true, "image": "projects/shoot-project/global/images/none", "type": "pd-none"}]}), &["providerSpec.disks[0].type", "providerSpec.disks[0].image"])]
#[case::no_network(json!({"networkInterfaces": [{"network": "none", "subnetwork": "nowhere"}]}), &["providerSpec.networkInterfaces[0].network", "providerSpec.networkInterfaces[0].subnetwork"])]
#[case::no_gpu(json!({"gpu": {"acceleratorType": "none", "count": 1}, "scheduling": {"onHostMaintenance": "TERMINATE"}}), &["providerSpec.gpu.acceleratorType"])]
#[case::a_name_of_another_form(json!({"networkInterfaces": [{"subnetwork": "../../x"}]}), &[])]
#[tokio::test]
async fn what_a_class_names_is_looked_up(#[case] patch: Value, #[case] expected: &[&str]) {
    let rig = Rig::new().await.with(patch);
    let found = rig.ask().await.unwrap();
    let paths: Vec<_> = found.errors().map(|error| error.path.to_string()).collect();
    assert_eq!(paths, expected);
    assert_eq!(rig.gce.inserted().len(), 0, "nothing is created");
}

#[tokio::test]
async fn a_resource_that_may_not_be_read_is_a_warning() {
    let rig = Rig::new().await;
    rig.gce.refuse(Method::GetSubnetwork, Refusal::forbidden(), 1);
    let found = rig.ask().await.unwrap();
    assert!(!found.denies());
    let texts = texts(&found);
    assert!(texts.len() == 1 && texts[0].contains("could not be looked up"), "{texts:?}");
}
