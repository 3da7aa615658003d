//! Tests of the body of a creation. Each row shows only what differs from a plain class. `driver_tests.rs` checks bodies against Google's discovery
//! document.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;

use super::*;

fn body(patch: Value) -> Value {
    let mut spec = json!({
        "region": "r", "zone": "z", "machineType": "t", "disks": [], "networkInterfaces": [],
        "scheduling": {"onHostMaintenance": "MIGRATE"}, "tags": ["a", "b"],
    });
    json_patch::merge(&mut spec, &patch);
    let spec: Spec = serde_json::from_value(spec).unwrap();
    let zone = Zone::of("p", "z").unwrap();
    instance(NewInstance { spec: &spec, zone: &zone, name: "m", user_data: b"#!/bin/sh" }).unwrap()
}

#[test]
fn a_plain_class_has_the_fields_of_the_go_driver() {
    let expected = json!({
        "name": "m", "machineType": "zones/z/machineTypes/t", "canIpForward": false, "deletionProtection": false, "disks": [],
        "networkInterfaces": [], "tags": {"items": ["a", "b"]},
        "scheduling": {"automaticRestart": false, "onHostMaintenance": "MIGRATE", "preemptible": false},
        "metadata": {"items": [{"key": "startup-script", "value": "#!/bin/sh"}]},
    });
    assert_eq!(body(json!({})), expected);
}

#[rstest]
#[case::g02_cloud_config("#cloud-config\nx: y", "user-data")]
#[case::g02_a_script("#!/bin/sh\n", "startup-script")]
#[case::g02_nothing("", "startup-script")]
fn user_data_has_its_key(#[case] user_data: &str, #[case] key: &str) {
    let spec = Spec {
        metadata: vec![crate::spec::MetadataEntry { key: "a".to_owned(), value: "b".to_owned() }],
        ..Spec::default()
    };
    let expected = [json!({"key": "a", "value": "b"}), json!({"key": key, "value": user_data})];
    assert_eq!(metadata(&spec, user_data), expected);
}

#[test]
fn user_data_that_is_no_text_is_refused() {
    let zone = Zone::of("p", "z").unwrap();
    let new = NewInstance { spec: &Spec::default(), zone: &zone, name: "m", user_data: b"\xff" };
    assert_eq!(instance(new).unwrap_err().code, Code::InvalidArgument);
}

#[rstest]
#[case::g07_auto_delete_is_the_default(
    json!({"boot": true, "image": "i", "sizeGb": 50, "type": "pd-ssd"}),
    json!({"autoDelete": true, "boot": true, "type": "PERSISTENT",
           "initializeParams": {"diskSizeGb": "50", "sourceImage": "i", "diskType": "zones/z/diskTypes/pd-ssd"}})
)]
#[case::a_disk_that_stays(
    json!({"autoDelete": false, "labels": {"l": "v"}, "provisionedIops": 3000, "provisionedThroughput": 140, "storagePool": "s"}),
    json!({"autoDelete": false, "boot": false, "type": "PERSISTENT",
           "initializeParams": {"labels": {"l": "v"}, "provisionedIops": "3000", "provisionedThroughput": "140", "storagePool": "s"}})
)]
#[case::an_encrypted_disk(
    json!({"encryption": {"kmsKeyName": "k", "kmsKeyServiceAccount": "a"}}),
    json!({"autoDelete": true, "boot": false, "type": "PERSISTENT", "initializeParams": {},
           "diskEncryptionKey": {"kmsKeyName": "k", "kmsKeyServiceAccount": "a"}})
)]
#[case::a_local_ssd(
    json!({"type": "SCRATCH", "interface": "NVME", "sizeGb": 375}),
    json!({"autoDelete": true, "type": "SCRATCH", "interface": "NVME",
           "initializeParams": {"diskType": "projects/p/zones/z/diskTypes/local-ssd"}})
)]
fn a_disk_is_sent(#[case] disk: Value, #[case] expected: Value) {
    assert_eq!(body(json!({"disks": [disk]}))["disks"], json!([expected]));
}

#[rstest]
#[case::of_a_subnetwork(
    json!({"subnetwork": "s"}),
    json!({"subnetwork": "regions/r/subnetworks/s", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]})
)]
#[case::without_an_external_address(
    json!({"network": "n", "subnetwork": "s", "disableExternalIP": true}),
    json!({"network": "projects/p/global/networks/n", "subnetwork": "regions/r/subnetworks/s"})
)]
#[case::dual_stack(
    json!({"subnetwork": "s", "disableExternalIP": true, "stackType": "IPV4_IPV6", "ipv6accessType": "INTERNAL", "ipCidrRange": "/24",
           "subnetworkRangeName": "pods"}),
    json!({"subnetwork": "regions/r/subnetworks/s", "stackType": "IPV4_IPV6",
           "aliasIpRanges": [{"ipCidrRange": "/24", "subnetworkRangeName": "pods"}]})
)]
#[case::an_external_ipv6_address(
    json!({"subnetwork": "s", "disableExternalIP": true, "stackType": "IPV4_IPV6", "ipv6accessType": "EXTERNAL"}),
    json!({"subnetwork": "regions/r/subnetworks/s", "stackType": "IPV4_IPV6",
           "ipv6AccessConfigs": [{"type": "DIRECT_IPV6", "networkTier": "PREMIUM"}]})
)]
#[case::ranges_without_ipv6_are_ignored(
    json!({"subnetwork": "s", "disableExternalIP": true, "stackType": "IPV4_ONLY", "ipCidrRange": "/24"}),
    json!({"subnetwork": "regions/r/subnetworks/s"})
)]
fn an_interface_is_sent(#[case] interface: Value, #[case] expected: Value) {
    assert_eq!(body(json!({"networkInterfaces": [interface]}))["networkInterfaces"], json!([expected]));
}

#[rstest]
#[case::preemptible(
    json!({"automaticRestart": true, "preemptible": true}),
    json!({"automaticRestart": true, "onHostMaintenance": "MIGRATE", "preemptible": true})
)]
#[case::spot(
    json!({"onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}),
    json!({"automaticRestart": false, "onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"})
)]
fn scheduling_is_sent(#[case] scheduling: Value, #[case] expected: Value) {
    assert_eq!(body(json!({"scheduling": scheduling}))["scheduling"], expected);
}

#[rstest]
#[case::labels("labels", json!({"labels": {"l": "v"}}), json!({"l": "v"}))]
#[case::a_description("description", json!({"description": "d"}), json!("d"))]
#[case::a_cpu("minCpuPlatform", json!({"minCpuPlatform": "Intel Ice Lake"}), json!("Intel Ice Lake"))]
#[case::forwarding("canIpForward", json!({"canIpForward": true}), json!(true))]
#[case::protection("deletionProtection", json!({"deletionProtection": true}), json!(true))]
#[case::accounts("serviceAccounts", json!({"serviceAccounts": [{"email": "e", "scopes": ["s"]}]}), json!([{"email": "e", "scopes": ["s"]}]))]
#[case::a_gpu(
    "guestAccelerators",
    json!({"gpu": {"acceleratorType": "nvidia-l4", "count": 2}}),
    json!([{"acceleratorType": "projects/p/zones/z/acceleratorTypes/nvidia-l4", "acceleratorCount": 2}])
)]
#[case::maintenance_of_a_gpu(
    "scheduling",
    json!({"gpu": {"acceleratorType": "nvidia-l4", "count": 2}}),
    json!({"automaticRestart": false, "onHostMaintenance": "TERMINATE", "preemptible": false})
)]
#[case::a_reservation(
    "reservationAffinity",
    json!({"reservationAffinity": {"consumeReservationType": "SPECIFIC_RESERVATION", "key": "k", "values": ["v"]}}),
    json!({"consumeReservationType": "SPECIFIC_RESERVATION", "key": "k", "values": ["v"]})
)]
#[case::shielded(
    "shieldedInstanceConfig",
    json!({"shieldedInstanceConfiguration": {"secureBoot": true}}),
    json!({"enableIntegrityMonitoring": false, "enableSecureBoot": true, "enableVtpm": false})
)]
#[case::nested_virtualization(
    "advancedMachineFeatures",
    json!({"advancedMachineFeatures": {"enableNestedVirtualization": true}}),
    json!({"enableNestedVirtualization": true})
)]
fn an_option_is_sent(#[case] field: &str, #[case] patch: Value, #[case] expected: Value) {
    assert_eq!(body(patch)[field], expected);
}
