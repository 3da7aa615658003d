//! Tests of the rules for EC2 classes, as tables. Each row shows only what differs from a valid class.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use kube_values::json::Json;

fn good() -> Value {
    json!({
        "ami": "ami-1", "region": "eu-west-1", "machineType": "m5.large", "iam": {"name": "nodes"},
        "blockDevices": [{"ebs": {"volumeSize": 50, "volumeType": "gp3"}}],
        "networkInterfaces": [{"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]}],
        "tags": {"kubernetes.io/cluster/c": "1", "kubernetes.io/role/node": "1"},
    })
}

fn device(name: &str) -> Value {
    json!({"deviceName": name, "ebs": {"volumeSize": 50, "volumeType": "gp3"}})
}

fn volume_with(fields: Value) -> Value {
    let mut ebs = json!({"volumeSize": 50, "volumeType": "gp3"});
    json_patch::merge(&mut ebs, &fields);
    json!({"blockDevices": [{ "ebs": ebs }]})
}

fn interface_with(fields: Value) -> Value {
    let mut interface = json!({"subnetID": "subnet-1", "securityGroupIDs": ["sg-1"]});
    json_patch::merge(&mut interface, &fields);
    json!({ "networkInterfaces": [interface] })
}

const ONE_ROOT: &str = "providerSpec.blockDevices: Required value: Only one device can be specified as root";

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::no_ami(json!({"ami": ""}), &["providerSpec.ami: Required value: AMI is required"])]
#[case::no_place(json!({"region": null, "machineType": null}), &["providerSpec.region: Required value: Region is required", "providerSpec.machineType: Required value: MachineType is required"])]
#[case::a_host_as_region(json!({"region": "evil.example.com/"}), &["providerSpec.region: Invalid value: \"evil.example.com/\": must consist of at most 40 lower case letters, digits and hyphens between them"])]
#[case::a11_two_profiles(json!({"iam": {"arn": "arn:x"}}), &["providerSpec.iam: Invalid value: {\"arn\":\"arn:x\",\"name\":\"nodes\"}: either IAM Name or ARN must be set"])]
#[case::no_profile(json!({"iam": null}), &["providerSpec.iam: Invalid value: {\"arn\":\"\",\"name\":\"\"}: either IAM Name or ARN must be set"])]
#[case::one_device_needs_no_name(json!({"blockDevices": [device("anything")]}), &[])]
#[case::a08_no_root(json!({"blockDevices": [device("/dev/sda"), device("/dev/xvdba")]}), &[ONE_ROOT])]
#[case::two_roots(json!({"blockDevices": [device("/root"), device("/root")]}), &[ONE_ROOT, "providerSpec.blockDevices: Required value: Device name '/root' duplicated 2 times, DeviceName must be unique"])]
#[case::a09_a_name_twice(json!({"blockDevices": [device("/root"), device("/dev/sdf"), device("/dev/sdf")]}), &["providerSpec.blockDevices: Required value: Device name '/dev/sdf' duplicated 2 times, DeviceName must be unique"])]
#[case::a_bad_name(json!({"blockDevices": [device("/root"), device("/dev/xvdd")]}), &["providerSpec.blockDevices[1].deviceName: Invalid value: \"/dev/xvdd\": Device name given: /dev/xvdd does not match the expected pattern (regex used for validation is '^/dev/(sd[a-z]|xvd[a-c][a-z]?)$')"])]
#[case::a_bad_volume(volume_with(json!({"volumeType": "ssd", "volumeSize": 0})), &["providerSpec.blockDevices[0].ebs.volumeType: Required value: Please mention a valid EBS volume type: [gp2 gp3 io1 st1 sc1 standard]", "providerSpec.blockDevices[0].ebs.volumeSize: Required value: Please mention a valid EBS volume size"])]
#[case::io1_needs_iops(volume_with(json!({"volumeType": "io1"})), &["providerSpec.blockDevices[0].ebs.iops: Required value: Please mention a valid EBS volume iops"])]
#[case::negative_iops(volume_with(json!({"iops": -1})), &["providerSpec.blockDevices[0].ebs.iops: Required value: Please mention a valid EBS volume iops"])]
#[case::no_throughput(volume_with(json!({"throughput": 0})), &["providerSpec.blockDevices[0].ebs.throughput: Invalid value: 0: Throughput should be a positive value"])]
#[case::preference_and_id(json!({"capacityReservation": {"capacityReservationPreference": "open", "capacityReservationId": "cr-1"}}), &["providerSpec.capacityReservation: Required value: CapacityReservationPreference cannot be set when also providing a CapacityReservationID or CapacityReservationResourceGroupArn"])]
#[case::id_and_group(json!({"capacityReservation": {"capacityReservationId": "cr-1", "capacityReservationResourceGroupArn": "arn:x"}}), &["providerSpec.capacityReservation: Required value: CapacityReservationResourceGroupArn or CapacityReservationId are optional but only one should be used"])]
#[case::a_preference(json!({"capacityReservation": {"capacityReservationPreference": "open"}}), &[])]
#[case::no_interface(json!({"networkInterfaces": []}), &["providerSpec.networkInterfaces.: Required value: Mention at least one NetworkInterface"])]
#[case::no_subnet(interface_with(json!({"subnetID": null, "securityGroupIDs": null})), &["providerSpec.networkInterfaces[0].subnetID: Required value: SubnetID is required", "providerSpec.networkInterfaces[0].securityGroupIDs: Required value: Mention at least one securityGroupID"])]
#[case::a_blank_group(interface_with(json!({"securityGroupIDs": ["sg-1", ""]})), &["providerSpec.networkInterfaces[0].securityGroupIDs: Required value: securityGroupIDs cannot be blank for networkInterface:0 securityGroupID:1"])]
#[case::an_unknown_interface(interface_with(json!({"interfaceType": "fast", "deviceIndex": -1})), &["providerSpec.networkInterfaces[0].interfaceType: Unsupported value: \"fast\": supported values: \"interface\", \"efa\", \"efa-only\"", "providerSpec.networkInterfaces[0].deviceIndex: Invalid value: -1: must be >= 0"])]
#[case::no_tags(json!({"tags": null}), &["providerSpec.tags.: Required value: Tag required of the form kubernetes.io/cluster/****", "providerSpec.tags.: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::an_empty_name(json!({"tags": {"kubernetes.io/role/node": null, "kubernetes.io/role/": "1"}}), &["providerSpec.tags.: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::one_tag_for_both(json!({"tags": {"kubernetes.io/role/node": null, "kubernetes.io/cluster/kubernetes.io/role/node": "1"}}), &["providerSpec.tags.: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::no_role(json!({"tags": {"kubernetes.io/role/node": null}}), &["providerSpec.tags.: Required value: Tag required of the form kubernetes.io/role/****"])]
#[case::a_market_nobody_knows(json!({"instanceMarketOptions": {"marketType": "flea"}}), &["providerSpec.instanceMarketOptions.marketType: Unsupported value: \"flea\": supported values: \"spot\", \"capacity-block\", \"interruptible-capacity-reservation\""])]
#[case::metadata(json!({"instanceMetadataOptions": {"httpTokens": "maybe", "httpPutResponseHopLimit": 65}}), &["providerSpec.instanceMetadata.httpPutResponseHopLimit: Invalid value: 65: Only values between 0 and 64, both included, are accepted", "providerSpec.instanceMetadata.httpTokens: Invalid value: \"***\": Accepted values: [required optional]"])]
#[case::cores_without_threads(json!({"cpuOptions": {"coreCount": 2}}), &["providerSpec.cpuOptions.threadsPerCore: Required value: ThreadsPerCore is required when CoreCount is set"])]
#[case::too_many_threads(json!({"cpuOptions": {"threadsPerCore": 3, "amdSevSnp": "on"}}), &["providerSpec.cpuOptions.coreCount: Required value: CoreCount is required when ThreadsPerCore is set", "providerSpec.cpuOptions.threadsPerCore: Invalid value: 3: ThreadsPerCore must be 1 or 2", "providerSpec.cpuOptions.amdSevSnp: Invalid value: \"on\": AmdSevSnp must be one of [enabled disabled]"])]
#[case::a_host_without_tenancy(json!({"placement": {"hostId": "h-1", "partitionNumber": 0}}), &["providerSpec.placement.hostId: Forbidden: hostId can only be set when tenancy is \"host\"", "providerSpec.placement.partitionNumber: Invalid value: 0: must be >= 1"])]
#[case::a_host(json!({"placement": {"hostId": "h-1", "tenancy": "host", "affinity": "host"}}), &[])]
#[case::an_unknown_tenancy(json!({"placement": {"tenancy": "shared"}}), &["providerSpec.placement.tenancy: Unsupported value: \"shared\": supported values: \"default\", \"dedicated\", \"host\""])]
#[case::wrong_types_are_the_schemas_business(json!({"ami": 5, "iam": "x", "blockDevices": "x", "tags": [], "networkInterfaces": [7]}), &[])]
fn a_class_is_checked(#[case] patch: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &patch);
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[rstest]
#[case("/dev/sda", true)]
#[case("/dev/xvda", true)]
#[case("/dev/xvdcz", true)]
#[case("/dev/xvdd", false)]
#[case("/dev/sda1", false)]
#[case("/root", false)]
fn names_of_data_devices(#[case] name: &str, #[case] expected: bool) {
    assert_eq!(is_data_device(name), expected);
}
