//! Tests of the rules for Azure classes, as tables. Each row shows only what differs from a valid class.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use kube_values::json::Json;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn good() -> Value {
    json!({
        "location": "westeurope", "resourceGroup": "shoot", "tags": {"kubernetes.io-cluster-shoot": "1", "kubernetes.io-role-node": "1"},
        "subnetInfo": {"vnetName": "v", "subnetName": "s"},
        "properties": {
            "hardwareProfile": {"vmSize": "Standard_D2s_v3"},
            "storageProfile": {
                "imageReference": {"urn": "sap:gardenlinux:greatest:1592.1.0"},
                "osDisk": {"createOption": "FromImage", "diskSizeGB": 50},
            },
            "osProfile": {"adminUsername": "core"},
            "zone": 1,
        },
    })
}

fn properties(patch: Value) -> Value {
    json!({ "properties": patch })
}

fn storage(patch: Value) -> Value {
    properties(json!({ "storageProfile": patch }))
}

fn image(patch: Value) -> Value {
    storage(json!({ "imageReference": patch }))
}

fn os_disk(patch: Value) -> Value {
    storage(json!({ "osDisk": patch }))
}

/// A class with a data disk, which differs from a valid one.
fn data_disk(patch: Value) -> Value {
    let mut disk = json!({"lun": 0, "diskSizeGB": 10, "storageAccountType": "Premium_LRS"});
    json_patch::merge(&mut disk, &patch);
    storage(json!({"dataDisks": [disk]}))
}

fn luns(luns: &[i64]) -> Value {
    let disk = |lun| json!({"lun": lun, "diskSizeGB": 10, "storageAccountType": "Premium_LRS"});
    storage(json!({"dataDisks": luns.iter().map(disk).collect::<Vec<_>>()}))
}

const SET: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/availabilitySets/a";
const ONE_PLACE: &str = "providerSpec.properties.zone|.availabilitySet|.virtualMachineScaleSet: Forbidden: Only one of Zone, AvailabilitySet and VirtualMachineScaleSet can be set.";
const ONE_IMAGE: &str = "providerSpec.properties.storageProfile.imageReference.id|.urn|.communityGalleryImageID|.sharedGalleryImageID: Forbidden: must specify only one of image id, community gallery image id, shared gallery image id or an urn";

#[rstest]
#[case::a_good_class(json!({}), &[])]
#[case::no_location(json!({"location": " "}), &["providerSpec.location: Required value: must provide a location"])]
#[case::a_path_as_location(json!({"location": "a/b"}), &["providerSpec.location: Invalid value: \"a/b\": must consist of at most 90 letters, digits and spaces"])]
#[case::no_group(json!({"resourceGroup": null}), &["providerSpec.resourceGroup: Required value: must provide a resourceGroup"])]
#[case::a_path_as_group(json!({"resourceGroup": "../x"}), &["providerSpec.resourceGroup: Invalid value: \"../x\": must consist of at most 90 letters, digits and the characters -._()"])]
#[case::no_network(json!({"subnetInfo": null}), &["providerSpec.subnetInfo.vnetName: Required value: must provide vnetName", "providerSpec.subnetInfo.subnetName: Required value: must provide subnetName"])]
#[case::a_path_as_network(json!({"subnetInfo": {"vnetResourceGroup": "a?b"}}), &["providerSpec.subnetInfo.vnetResourceGroup: Invalid value: \"a?b\": must consist of at most 90 letters, digits and the characters -._()"])]
#[case::an_unknown_cloud(json!({"cloudConfiguration": {"name": "AzureGermany"}}), &["providerSpec.cloudConfiguration.name: Unsupported value: \"AzureGermany\": supported values: \"AzureChina\", \"AzureGovernment\", \"AzurePublic\""])]
#[case::a_cloud(json!({"cloudConfiguration": {"name": "AzureChina"}}), &[])]
#[case::no_size(properties(json!({"hardwareProfile": null})), &["providerSpec.properties.hardwareProfile.vmSize: Required value: must provide vmSize"])]
#[case::no_user(properties(json!({"osProfile": {"adminUsername": ""}})), &["providerSpec.properties.osProfile.adminUsername: Required value: adminUsername must be provided"])]
#[case::no_create_option(os_disk(json!({"createOption": null})), &["providerSpec.properties.storageProfile.osDisk.createOption: Required value: must provide createOption"])]
#[case::no_disk_size(os_disk(json!({"diskSizeGB": 0})), &["providerSpec.properties.storageProfile.osDisk.diskSizeGB: Invalid value: 0: OSDisk size must be positive and greater than 0"])]
#[case::caching(os_disk(json!({"caching": "Some"})), &["providerSpec.properties.storageProfile.osDisk.caching: Unsupported value: \"Some\": supported values: \"None\", \"ReadOnly\", \"ReadWrite\""])]
#[case::encryption(os_disk(json!({"managedDisk": {"securityProfile": {"securityEncryptionType": "x"}}})), &["providerSpec.properties.storageProfile.osDisk.managedDisk.securityProfile.securityEncryptionType: Unsupported value: \"x\": supported values: \"DiskWithVMGuestState\", \"NonPersistedTPM\", \"VMGuestStateOnly\""])]
#[case::controller(storage(json!({"diskControllerType": "IDE"})), &["providerSpec.properties.storageProfile.diskControllerType: Unsupported value: \"IDE\": supported values: \"NVMe\", \"SCSI\""])]
#[case::a_data_disk(data_disk(json!({"name": "d", "caching": "None"})), &[])]
#[case::no_lun(data_disk(json!({"lun": null})), &["providerSpec.properties.storageProfile.dataDisks[0].lun: Required value: lun must be a positive number"])]
#[case::a_negative_lun(data_disk(json!({"lun": -1})), &["providerSpec.properties.storageProfile.dataDisks[0].lun: Invalid value: -1: lun must be a positive number"])]
#[case::z09_one_lun_twice(luns(&[1, 1]), &["providerSpec.properties.storageProfile.dataDisks: Invalid value: 1: DataDisk Lun '1' duplicated 2 times, Lun must be unique"])]
#[case::luns(luns(&[0, 1]), &[])]
#[case::no_data_disk_size(data_disk(json!({"diskSizeGB": null})), &["providerSpec.properties.storageProfile.dataDisks[0].diskSizeGB: Invalid value: 0: DataDisk size must be positive and greater than 0"])]
#[case::no_account(data_disk(json!({"storageAccountType": ""})), &["providerSpec.properties.storageProfile.dataDisks[0].storageAccountType: Required value: must provide storageAccountType"])]
#[case::a_path_as_name(data_disk(json!({"name": "a/b"})), &["providerSpec.properties.storageProfile.dataDisks[0].name: Invalid value: \"a/b\": must consist of at most 90 letters, digits and the characters -._()"])]
#[case::an_image_of_a_disk(data_disk(json!({"imageRef": {"id": "/subscriptions/s/resourceGroups/g/providers/p/images/i"}})), &[])]
#[case::no_image_of_a_disk(data_disk(json!({"imageRef": {}})), &["providerSpec.properties.storageProfile.dataDisks[0].imageRef.id|.urn|.communityGalleryImageID|.sharedGalleryImageID: Forbidden: must specify only one of image id, community gallery image id, shared gallery image id or an urn"])]
#[case::no_image(image(json!({"urn": null})), &[ONE_IMAGE])]
#[case::two_images(image(json!({"communityGalleryImageID": "/CommunityGalleries/x"})), &[ONE_IMAGE])]
#[case::a_short_urn(image(json!({"urn": "a:b:c"})), &["providerSpec.properties.storageProfile.imageReference.urn: Invalid value: \"a:b:c\": invalid urn format, urn should be of the format publisher:offer:sku:version"])]
#[case::an_urn_with_a_blank_part(image(json!({"urn": "a::c: "})), &["providerSpec.properties.storageProfile.imageReference.urn: Invalid value: \"a::c: \": urn must have offer", "providerSpec.properties.storageProfile.imageReference.urn: Invalid value: \"a::c: \": urn must have version"])]
#[case::an_urn_with_a_path(image(json!({"urn": "a/..:b:c:d"})), &["providerSpec.properties.storageProfile.imageReference.urn: Invalid value: \"a/..:b:c:d\": the publisher must consist of at most 90 letters, digits and the characters -._()"])]
#[case::an_image_without_a_path(image(json!({"urn": null, "id": "i"})), &["providerSpec.properties.storageProfile.imageReference.id: Invalid value: \"i\": invalid Azure resource ID: i"])]
#[case::z07_a_zone_and_a_set(properties(json!({"availabilitySet": {"id": SET}})), &[ONE_PLACE])]
#[case::z07_neither(properties(json!({"zone": null})), &[ONE_PLACE])]
#[case::a_set(properties(json!({"zone": null, "availabilitySet": {"id": SET}})), &[])]
#[case::an_old_set(properties(json!({"zone": null, "machineSet": {"id": SET, "kind": "availabilityset"}})), &[])]
#[case::an_old_set_and_a_zone(properties(json!({"machineSet": {"id": SET, "kind": "vmo"}})), &[ONE_PLACE])]
#[case::an_old_set_of_another_kind(properties(json!({"machineSet": {"id": SET, "kind": "x"}})), &["providerSpec.properties.machineSet.kind: Invalid value: \"x\": must provide one of availabilityset, vmo"])]
#[case::a_set_without_a_path(properties(json!({"zone": null, "virtualMachineScaleSet": {"id": "x"}})), &["providerSpec.properties.virtualMachineScaleSet.id: Invalid value: \"x\": invalid Azure resource ID: x"])]
#[case::an_identity_without_a_path(properties(json!({"identityID": "x"})), &["providerSpec.properties.identityID: Invalid value: \"x\": invalid Azure resource ID: x"])]
#[case::security(properties(json!({"securityProfile": {"securityType": "x"}})), &["providerSpec.properties.securityProfile.securityType: Unsupported value: \"x\": supported values: \"ConfidentialVM\", \"TrustedLaunch\""])]
#[case::a_reservation(properties(json!({"capacityReservation": {"capacityReservationGroupID": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/capacityreservationgroups/c"}})), &[])]
#[case::another_reservation(properties(json!({"capacityReservation": {"capacityReservationGroupID": SET}})), &["providerSpec.properties.capacityReservation.capacityReservationGroupID: Invalid value: \"/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/availabilitySets/a\": provided resource ID must be of type 'CapacityReservationGroups', got 'availabilitySets'"])]
#[case::a_reservation_without_a_path(properties(json!({"capacityReservation": {"capacityReservationGroupID": "c"}})), &["providerSpec.properties.capacityReservation.capacityReservationGroupID: Invalid value: \"c\": invalid Azure resource ID: c"])]
#[case::priority(properties(json!({"priority": "Low"})), &["providerSpec.properties.priority: Unsupported value: \"Low\": supported values: \"Regular\", \"Spot\""])]
#[case::eviction(properties(json!({"priority": "Spot", "evictionPolicy": "Keep"})), &["providerSpec.properties.evictionPolicy: Unsupported value: \"Keep\": supported values: \"Deallocate\", \"Delete\""])]
#[case::no_tags(json!({"tags": null}), &["providerSpec.tags: Required value: Tags starting with 'kubernetes.io-cluster-' and 'kubernetes.io-role-' must be set"])]
#[case::no_cluster(json!({"tags": {"kubernetes.io-cluster-shoot": null, "x-kubernetes.io-cluster-a": "1"}}), &["providerSpec.tags: Required value: Tag starting with kubernetes.io-cluster- must be set"])]
#[case::no_role(json!({"tags": {"kubernetes.io-role-node": null, "kubernetes.io-role-": "1"}}), &["providerSpec.tags: Required value: Tag starting with kubernetes.io-role- must be set"])]
#[case::wrong_types_are_the_schemas_business(json!({"location": 5, "resourceGroup": [], "tags": [], "subnetInfo": {"vnetName": 1, "subnetName": 1}}), &[])]
fn a_class_is_checked(#[case] patch: Value, #[case] expected: &[&str]) {
    let mut spec = good();
    json_patch::merge(&mut spec, &patch);
    let mut found = Findings::new();
    provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), &mut found);
    assert_eq!(found.errors().map(ToString::to_string).collect::<Vec<_>>(), expected);
}

#[test]
fn the_owner_is_named_by_keys_that_begin_with_the_texts() {
    let owner = |keys: &[&str]| owner_tags(keys.iter().copied()).map(|tags| tags.to_string());
    let both = ["kubernetes.io-role-node", "x", "kubernetes.io-cluster-a"];
    assert_eq!(owner(&both).as_deref(), Some("kubernetes.io-cluster-a kubernetes.io-role-node"));
    assert_eq!(owner(&["x-kubernetes.io-cluster-a", "kubernetes.io-role-node"]), None);
}
