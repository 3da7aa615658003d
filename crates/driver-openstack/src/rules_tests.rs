//! Tests of the rules for `OpenStack` classes, as tables. Each row shows only what differs from a valid class.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use machine_driver::MachineClass;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{CLASSES, OPENSTACK};

fn good() -> Value {
    json!({
        "apiVersion": "openstack.machine.gardener.cloud/v1alpha1",
        "kind": "MachineProviderConfig",
        "spec": {
            "imageID": "i", "region": "r", "availabilityZone": "z", "flavorName": "f", "keyName": "k",
            "networkID": "n", "podNetworkCIDRs": ["100.64.0.0/10"],
            "tags": {"kubernetes.io-cluster-c": "1", "kubernetes.io-role-node": "1"},
        },
    })
}

const NO_IMAGE: &str = "providerSpec.spec.imageName: Required value: ImageName is required if no ImageID is given";

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::no_image(json!({"imageID": ""}), &[NO_IMAGE])]
#[case::an_image_by_name(json!({"imageID": null, "imageName": "linux"}), &[])]
#[case::nowhere(json!({"region": null, "availabilityZone": ""}), &["providerSpec.spec.region: Required value: Region is required", "providerSpec.spec.availabilityZone: Required value: AvailabilityZone name is required"])]
#[case::of_nothing(json!({"flavorName": null, "keyName": ""}), &["providerSpec.spec.flavorName: Required value: Flavor is required", "providerSpec.spec.keyName: Required value: KeyName is required"])]
#[case::a_path_as_region(json!({"region": "a/b"}), &["providerSpec.spec.region: Invalid value: \"a/b\": must not contain a slash"])]
#[case::two_ways_to_networks(json!({"networks": [{"id": "n"}]}), &["providerSpec.spec.networks: Forbidden: \"networks\" list should not be specified along with \"providerConfig.Spec.NetworkID\""])]
#[case::no_network(json!({"networkID": null}), &["providerSpec.spec.networks: Forbidden: both \"networks\" and \"networkID\" should not be empty"])]
#[case::networks(json!({"networkID": null, "networks": [{"id": "a", "podNetwork": true}, {"name": "b"}]}), &[])]
#[case::a_nameless_network(json!({"networkID": null, "networks": [{}]}), &["providerSpec.spec.networks[0]: Required value: at least one of network \"id\" or \"name\" is required"])]
#[case::a_network_named_twice(json!({"networkID": null, "networks": [{"id": "a", "name": "b"}]}), &["providerSpec.spec.networks[0]: Forbidden: simultaneous use of network \"id\" and \"name\" is forbidden"])]
#[case::pods_of_no_network(json!({"podNetworkCIDRs": null, "networkID": null, "networks": [{"id": "a", "podNetwork": true}]}), &["providerSpec.spec.networks[0].podNetwork: Forbidden: \"podNetwork\" switch should not be used in absence of \"spec.podNetworkCidr\"", "providerSpec.spec.podNetworkCIDRs: Required value: PodNetworkCIDRs is required"])]
#[case::the_older_spelling(json!({"podNetworkCIDRs": null, "podNetworkCidr": "10.0.0.0/8"}), &[])]
#[case::no_cidr(json!({"podNetworkCIDRs": ["10.0.0.0/33", "x", "fd00::/8"]}), &["providerSpec.spec.podNetworkCIDRs[0]: Invalid value: \"10.0.0.0/33\": must be an address and the length of its prefix, such as 100.64.0.0/10", "providerSpec.spec.podNetworkCIDRs[1]: Invalid value: \"x\": must be an address and the length of its prefix, such as 100.64.0.0/10"])]
#[case::a_disk_of_less_than_nothing(json!({"rootDiskSize": -1}), &["providerSpec.spec.rootDiskSize: Invalid value: -1: RootDiskSize can not be negative"])]
#[case::an_empty_name(json!({"tags": {"kubernetes.io-cluster-c": null, "kubernetes.io-cluster-": "1"}}), &["providerSpec.spec.tags: Required value: Tag required of the form kubernetes.io-cluster-****"])]
#[case::nobodys(json!({"tags": {"kubernetes.io-cluster-c": null, "kubernetes.io-role-node": null}}), &["providerSpec.spec.tags: Required value: Tag required of the form kubernetes.io-cluster-****", "providerSpec.spec.tags: Required value: Tag required of the form kubernetes.io-role-****"])]
#[case::a_wrong_type_is_reported_elsewhere(json!({"region": 4, "tags": 4, "networkID": 4, "podNetworkCIDRs": 4}), &[])]
fn a_class_breaks_rules(#[case] patch: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &json!({"spec": patch}));
    let class = MachineClass { provider: OPENSTACK.to_owned(), provider_spec: spec, ..MachineClass::default() };
    let mut found = Findings::new();
    CLASSES.validate(&class, &mut found);
    let told: Vec<String> = found.errors().map(ToString::to_string).collect();
    assert_eq!(told, expected);
}

#[rstest]
#[case("10.1.2.3/8", "10.0.0.0/8")]
#[case("10.1.2.3", "10.1.2.3/32")]
#[case("fd00:1::1/16", "fd00::/16")]
#[case("0.0.0.0/0", "1.2.3.4/0")]
fn cidrs_of_one_network_are_equal(#[case] one: &str, #[case] other: &str) {
    assert!(network_of(one).is_some());
    assert_eq!(network_of(one), network_of(other));
}
