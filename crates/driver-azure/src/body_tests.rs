//! Tests of bodies. The driver's tests send each of them to the fake, which checks them against the models of Microsoft's own clients.

use rstest::rstest;

use super::*;
use crate::test_rig::{class, with_properties};

fn home() -> Home {
    let group = Group { subscription: "s".to_owned(), name: "g".to_owned() };
    Home { group, cloud: api::Cloud::Public, location: "westeurope".to_owned() }
}

fn vm(patch: Value, plan: Option<&Plan>) -> Value {
    let spec = Spec::checked(&class(patch)).unwrap();
    let new =
        NewVm { spec: &spec, home: &home(), name: "m", user_data: b"data", plan, public_key: Some("ssh-ed25519 x") };
    virtual_machine(new)
}

#[test]
fn a_vm_has_the_fields_of_its_class() {
    let body = vm(json!({}), None);
    let properties = &body["properties"];
    assert_eq!(body["zones"], json!(["1"]));
    assert_eq!(properties["hardwareProfile"]["vmSize"], fake_azure::VM_SIZE);
    let image = &properties["storageProfile"]["imageReference"];
    assert_eq!(*image, json!({"publisher": "sap", "offer": "gardenlinux", "sku": "greatest", "version": "1592.1.0"}));
    let disk = json!({"name": "m-os-disk", "caching": "None", "createOption": "FromImage", "diskSizeGB": 50, "deleteOption": "Delete",
                      "managedDisk": {"storageAccountType": "Premium_LRS"}});
    assert_eq!(properties["storageProfile"]["osDisk"], disk);
    assert_eq!(properties["osProfile"]["customData"], "ZGF0YQ==");
    let nic = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/networkInterfaces/m-nic";
    assert_eq!(properties["networkProfile"]["networkInterfaces"][0]["id"], nic);
    let absent = ["diagnosticsProfile", "securityProfile", "capacityReservation", "priority", "availabilitySet"];
    assert!(absent.iter().all(|field| properties.get(*field).is_none()), "{properties}");
    assert!(body.get("identity").is_none() && body.get("plan").is_none());
}

#[rstest]
#[case::caching(json!({"storageProfile": {"osDisk": {"caching": ""}}}), "/properties/storageProfile/osDisk/caching", Value::Null)]
#[case::controller(json!({"storageProfile": {"diskControllerType": "SCSI"}}), "/properties/storageProfile/diskControllerType", json!("SCSI"))]
#[case::set(json!({"zone": null, "availabilitySet": {"id": "/a/b"}}), "/properties/availabilitySet", json!({"id": "/a/b"}))]
#[case::no_zone(json!({"zone": null, "availabilitySet": {"id": "/a/b"}}), "/zones", Value::Null)]
#[case::old_set(json!({"zone": null, "machineSet": {"id": "/a/b", "kind": "vmo"}}), "/properties/virtualMachineScaleSet", json!({"id": "/a/b"}))]
#[case::identity(json!({"identityID": "/a/b"}), "/identity", json!({"type": "UserAssigned", "userAssignedIdentities": {"/a/b": {}}}))]
#[case::diagnostics(json!({"diagnosticsProfile": {"enabled": true}}), "/properties/diagnosticsProfile", json!({"bootDiagnostics": {"enabled": true}}))]
#[case::security(json!({"securityProfile": {"securityType": "TrustedLaunch", "uefiSettings": {"vtpmEnabled": false}}}),
    "/properties/securityProfile", json!({"securityType": "TrustedLaunch", "uefiSettings": {"vTpmEnabled": false}}))]
#[case::spot(json!({"priority": "Spot", "billingProfile": {"maxPrice": 0.25}}), "/properties/billingProfile/maxPrice", json!(0.25))]
#[case::key(json!({"osProfile": {"linuxConfiguration": {"ssh": {"publicKeys": {"path": "/p"}}}}}), "/properties/osProfile/linuxConfiguration/ssh/publicKeys/0/path", json!("/p"))]
fn an_option_is_sent(#[case] patch: Value, #[case] path: &str, #[case] expected: Value) {
    let body = vm(with_properties(patch), None);
    assert_eq!(body.pointer(path).cloned().unwrap_or_default(), expected, "{body}");
}

#[test]
fn a_new_ssh_key_has_the_form_of_openssh() {
    // RFC 8032, 7.1, test 1; the text is what ssh-keygen prints for it.
    let public = [
        0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e, 0xe1,
        0x72, 0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a,
    ];
    assert_eq!(ssh_key(&public), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea");
    assert_ne!(throw_away_key().unwrap(), throw_away_key().unwrap());
}
