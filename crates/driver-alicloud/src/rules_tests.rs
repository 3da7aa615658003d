//! Tests of the rules for classes of Alibaba Cloud, as tables. Each row shows only what differs from a valid class.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use kube_values::json::Json;
use rstest::rstest;

use super::*;

fn good() -> Value {
    json!({
        "imageID": "m-1", "instanceType": "ecs.g7.large", "region": "cn-shanghai", "zoneID": "cn-shanghai-e", "securityGroupID": "sg-1",
        "vSwitchID": "vsw-1", "systemDisk": {"category": "cloud_essd", "size": 75}, "keyPairName": "key",
        "dataDisks": [{"name": "d1", "category": "cloud_essd", "size": 20}], "spotStrategy": "NoSpot", "instanceChargeType": "PostPaid",
        "internetChargeType": "PayByTraffic", "internetMaxBandwidthIn": 5, "internetMaxBandwidthOut": 0,
        "tags": {"kubernetes.io/cluster/shoot": "1", "kubernetes.io/role/node": "1"},
    })
}

fn found(patch: Value) -> Findings {
    let mut spec = good();
    json_patch::merge(&mut spec, &patch);
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    found
}

#[rstest]
#[case::y18_a_good_class(json!({}), &[])]
#[case::no_image(json!({"imageID": ""}), &["providerSpec.imageID: Required value: ImageID is required"])]
#[case::no_region(json!({"region": null}), &["providerSpec.region: Required value: Region is required"])]
#[case::a_host_as_region(json!({"region": "evil.example/"}), &["providerSpec.region: Invalid value: \"evil.example/\": must consist of at most 63 lower case letters, digits and hyphens, and begin with a letter"])]
#[case::no_type(json!({"instanceType": null}), &["providerSpec.instanceType: Required value: InstanceType is required"])]
#[case::no_switch(json!({"vSwitchID": null}), &["providerSpec.vSwitchID: Required value: VSwitchID is required"])]
#[case::no_key_pair(json!({"keyPairName": null}), &["providerSpec.keyPairName: Required value: KeyPairName is required"])]
#[case::the_switch_names_the_zone(json!({"zoneID": null}), &[])]
#[case::an_empty_disk(json!({"dataDisks": [{}]}), &["providerSpec.dataDisks[0].name: Required value: Data Disk name is required", "providerSpec.dataDisks[0].size: Required value: Data Disk size must be positive", "providerSpec.dataDisks[0].category: Required value: Data Disk category is required"])]
#[case::two_disks_of_a_name(json!({"dataDisks": [{"name": "d", "category": "c", "size": 1}, {"name": "d", "category": "c", "size": 1}]}), &["providerSpec.dataDisks: Invalid value: \"d\": Data Disk Name 'd' duplicated 2 times, Name must be unique"])]
#[case::no_disks(json!({"dataDisks": null, "systemDisk": null}), &[])]
#[case::no_tags(json!({"tags": null}), &["providerSpec.tags.kubernetes.io/cluster/: Required value: Tag required of the form kubernetes.io/cluster/****", "providerSpec.tags.kubernetes.io/role/: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::no_role(json!({"tags": {"kubernetes.io/role/node": null}}), &["providerSpec.tags.kubernetes.io/role/: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::an_empty_cluster(json!({"tags": {"kubernetes.io/cluster/shoot": null, "kubernetes.io/cluster/": "1"}}), &["providerSpec.tags.kubernetes.io/cluster/: Required value: Tag required of the form kubernetes.io/cluster/****"])]
#[case::wrong_types_are_the_schemas_business(json!({"dataDisks": "x", "region": 5, "tags": [], "imageID": {}, "systemDisk": 7, "spotStrategy": 1}), &[])]
fn a_class_is_checked(#[case] patch: Value, #[case] expected: &[&str]) {
    assert_eq!(found(patch).errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[rstest]
#[case::nothing(json!({}), &[])]
#[case::no_group(json!({"securityGroupID": null}), &["providerSpec.securityGroupID: ECS creates no instance without a security group"])]
#[case::spot(json!({"spotStrategy": "SpotAsPriceGo"}), &[])]
#[case::an_unknown_word(json!({"spotStrategy": "Cheap"}), &["providerSpec.spotStrategy: ECS knows NoSpot, SpotAsPriceGo, SpotWithPriceLimit"])]
#[case::a_subscription(json!({"instanceChargeType": "PrePaid"}), &["providerSpec.instanceChargeType: ECS releases no subscription before its end, so machines of this class can't be deleted"])]
#[case::too_fast(json!({"internetMaxBandwidthIn": 0, "internetMaxBandwidthOut": 101}), &["providerSpec.internetMaxBandwidthIn: ECS allows 1 to 100 Mbit/s", "providerSpec.internetMaxBandwidthOut: ECS allows 0 to 100 Mbit/s"])]
#[case::no_size(json!({"systemDisk": {"size": null}}), &["providerSpec.systemDisk.size: ECS refuses a disk without a size"])]
#[case::one_address(json!({"privateIPAddress": "10.0.0.9"}), &["providerSpec.privateIPAddress: only one machine of the class can have this address"])]
fn y18_what_ecs_refuses_is_warned_about(#[case] patch: Value, #[case] expected: &[&str]) {
    let found = found(patch);
    assert!(!found.denies());
    assert_eq!(found.warnings().collect::<Vec<_>>(), expected);
}
