//! Tests of the rules for GCE classes, as tables. Each row shows only what differs from a valid class.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::json;

use super::*;

fn good() -> Value {
    json!({
        "region": "europe-west1", "zone": "europe-west1-b", "machineType": "n2-standard-2",
        "disks": [{"boot": true, "image": "projects/p/global/images/i", "sizeGb": 50, "type": "pd-balanced"}],
        "networkInterfaces": [{"subnetwork": "nodes"}],
        "scheduling": {"onHostMaintenance": "MIGRATE"},
        "tags": ["kubernetes-io-cluster-shoot", "kubernetes-io-role-node"],
    })
}

fn disk(fields: Value) -> Value {
    json!({ "disks": [fields] })
}

fn interface(fields: Value) -> Value {
    let mut interface = json!({"subnetwork": "nodes"});
    json_patch::merge(&mut interface, &fields);
    json!({ "networkInterfaces": [interface] })
}

const TAGS: &str = "providerSpec.tags: Required value: tags must contain entries starting with kubernetes-io-cluster- and kubernetes-io-role-";

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::no_disk(json!({"disks": []}), &["providerSpec.disks: Required value: at least one disk is required"])]
#[case::no_list_of_disks(json!({"disks": null}), &["providerSpec.disks: Required value: at least one disk is required"])]
#[case::a_local_disk(disk(json!({"type": "SCRATCH", "interface": "NVME"})), &[])]
#[case::a_local_disk_without_interface(disk(json!({"type": "SCRATCH"})), &["providerSpec.disks[0].interface: Unsupported value: \"\": supported values: \"NVME\", \"SCSI\""])]
#[case::an_interface_of_another_disk(disk(json!({"type": "pd-ssd", "interface": "IDE"})), &[])]
#[case::no_image(disk(json!({"boot": true})), &["providerSpec.disks[0].image: Required value: image is required for boot disk"])]
#[case::no_key(disk(json!({"encryption": {"kmsKeyName": " "}})), &["providerSpec.disks[0].encryption.kmsKeyName: Required value: kmsKeyName is required to be specified"])]
#[case::a_blank_account(disk(json!({"encryption": {"kmsKeyName": "k", "kmsKeyServiceAccount": " "}})), &["providerSpec.disks[0].encryption.kmsKeyServiceAccount: Invalid value: \" \": kmsKeyServiceAccount should either be explicitly specified without spaces or left un-specified to default to the Compute Service Agent"])]
#[case::a_key(disk(json!({"encryption": {"kmsKeyName": "k", "kmsKeyServiceAccount": ""}})), &[])]
#[case::no_zone(json!({"machineType": null, "region": "", "zone": null}), &["providerSpec.machineType: Required value: machineType is required", "providerSpec.region: Required value: region is required", "providerSpec.zone: Required value: zone is required"])]
#[case::a_path_as_zone(json!({"zone": "z/../../x"}), &["providerSpec.zone: Invalid value: \"z/../../x\": must consist of at most 63 lower case letters, digits and hyphens, and begin with a letter"])]
#[case::no_interface(json!({"networkInterfaces": []}), &["providerSpec.networkInterfaces: Required value: at least one network interface is required"])]
#[case::no_network(interface(json!({"subnetwork": null})), &["providerSpec.networkInterfaces[0]: Required value: either network or subnetwork or both is required"])]
#[case::a_network(interface(json!({"subnetwork": null, "network": "n"})), &[])]
#[case::stack_type(interface(json!({"stackType": "IPV6"})), &["providerSpec.networkInterfaces[0].stackType: Invalid value: \"IPV6\": StackType must be either IPV4_IPV6 or IPV4_ONLY"])]
#[case::access_type(interface(json!({"ipv6accessType": "ALL"})), &["providerSpec.networkInterfaces[0].ipv6accessType: Invalid value: \"ALL\": IPv6 AccessType must be either EXTERNAL or INTERNAL"])]
#[case::dual_stack(interface(json!({"stackType": "IPV4_IPV6", "ipv6accessType": "EXTERNAL", "ipCidrRange": "/24"})), &[])]
#[case::an_address(interface(json!({"ipCidrRange": "10.0.0.0/24"})), &["providerSpec.networkInterfaces[0].ipCidrRange: Invalid value: \"10.0.0.0/24\": CIDR range must start with '/'"])]
#[case::no_number(interface(json!({"ipCidrRange": "/x"})), &["providerSpec.networkInterfaces[0].ipCidrRange: Invalid value: \"/x\": invalid CIDR mask size: x"])]
#[case::too_large(interface(json!({"ipCidrRange": "/33"})), &["providerSpec.networkInterfaces[0].ipCidrRange: Invalid value: \"/33\": CIDR mask size must be between 0 and 32"])]
#[case::user_data(json!({"metadata": [{"key": "a", "value": "b"}, {"key": "user-data", "value": "x"}]}), &["providerSpec.metadata[1].key: Forbidden: user-data key is forbidden in metadata"])]
#[case::no_policy(json!({"scheduling": null}), &["providerSpec.scheduling.onHostMaintenance: Unsupported value: \"\": supported values: \"MIGRATE\", \"TERMINATE\""])]
#[case::an_unknown_policy(json!({"scheduling": {"onHostMaintenance": "REBOOT"}}), &["providerSpec.scheduling.onHostMaintenance: Unsupported value: \"REBOOT\": supported values: \"MIGRATE\", \"TERMINATE\""])]
#[case::g10_a_gpu_can_not_migrate(json!({"gpu": {"acceleratorType": "nvidia-l4", "count": 1}}), &["providerSpec.scheduling.onHostMaintenance: Invalid value: \"MIGRATE\": liveMigration is not allowed for VMs with gpu attached, use \"TERMINATE\" instead"])]
#[case::a_gpu(json!({"gpu": {"acceleratorType": "nvidia-l4", "count": 1}, "scheduling": {"onHostMaintenance": "TERMINATE"}}), &[])]
#[case::half_a_gpu(json!({"gpu": {}, "scheduling": {"onHostMaintenance": "TERMINATE"}}), &["providerSpec.gpu.acceleratorType: Required value: accelerator type needs to be provided", "providerSpec.gpu.count: Invalid value: 0: gpu count must be > 0"])]
#[case::spot(json!({"scheduling": {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}}), &[])]
#[case::an_unknown_model(json!({"scheduling": {"provisioningModel": "CHEAP", "instanceTerminationAction": "SLEEP"}}), &["providerSpec.scheduling.provisioningModel: Unsupported value: \"CHEAP\": supported values: \"SPOT\", \"STANDARD\"", "providerSpec.scheduling.instanceTerminationAction: Unsupported value: \"SLEEP\": supported values: \"DELETE\", \"STOP\""])]
#[case::an_unknown_reservation(json!({"reservationAffinity": {"consumeReservationType": "MINE"}}), &["providerSpec.reservationAffinity.consumeReservationType: Unsupported value: \"MINE\": supported values: \"ANY_RESERVATION\", \"NO_RESERVATION\", \"SPECIFIC_RESERVATION\""])]
#[case::no_tags(json!({"tags": null}), &[TAGS])]
#[case::g08_no_cluster(json!({"tags": ["kubernetes-io-role-node", "x"]}), &[TAGS])]
#[case::an_empty_name(json!({"tags": ["kubernetes-io-cluster-", "kubernetes-io-role-node"]}), &[TAGS])]
#[case::wrong_types_are_the_schemas_business(json!({"disks": "x", "zone": 5, "tags": {}, "gpu": 7, "metadata": [1], "networkInterfaces": [7]}), &[])]
fn a_class_is_checked(#[case] patch: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &patch);
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

const RESTARTS: &str = "providerSpec.scheduling.automaticRestart: GCE refuses it for preemptible and spot instances";
const MIGRATES: &str = "providerSpec.scheduling.onHostMaintenance: GCE refuses it for preemptible and spot instances, use \"TERMINATE\" instead";

#[rstest]
#[case::of_another_entry(json!([{"key": "a", "value": "startup-script"}]), &[])]
#[case::of_a_script(
    json!([{"key": "a", "value": "b"}, {"key": "startup-script", "value": "x"}]),
    &["providerSpec.metadata[1].key: no instance is created with it unless the user data begins with #cloud-config"]
)]
fn metadata_that_takes_the_place_of_user_data_is_warned_about(#[case] metadata: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &json!({"metadata": metadata}));
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    assert!(!found.denies());
    assert_eq!(found.warnings().collect::<Vec<_>>(), expected);
}

#[rstest]
#[case::a_usual_instance(json!({"automaticRestart": true}), &[])]
#[case::a_preemptible_instance(json!({"automaticRestart": true, "preemptible": true}), &[RESTARTS, MIGRATES])]
#[case::a_spot_instance(json!({"provisioningModel": "SPOT"}), &[MIGRATES])]
#[case::a_good_spot_instance(json!({"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE"}), &[])]
fn fields_that_gce_refuses_together_are_warned_about(#[case] scheduling: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &json!({"scheduling": scheduling}));
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    assert!(!found.denies());
    assert_eq!(found.warnings().collect::<Vec<_>>(), expected);
}
