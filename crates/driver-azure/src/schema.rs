//! The JSON Schema of a `providerSpec` for Azure (spec/providers §4.1): fields and their types. The rules say what a field may contain beyond its type.

use serde_json::{Value, json};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for Azure",
        "type": "object",
        "properties": {
            "apiVersion": text,
            "kind": text,
            "location": {"type": "string", "x-node-template": "region"},
            "resourceGroup": text,
            "tags": {"type": "object", "additionalProperties": text},
            "cloudConfiguration": {"type": "object", "properties": {"name": text}},
            "subnetInfo": {
                "type": "object",
                "properties": {"vnetName": text, "vnetResourceGroup": text, "subnetName": text},
            },
            "properties": properties(),
        },
    })
}

fn properties() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let flag = json!({"type": "boolean"});
    let id = json!({"type": "object", "properties": {"id": text}});
    json!({
        "type": "object",
        "properties": {
            "hardwareProfile": {
                "type": "object",
                "properties": {"vmSize": {"type": "string", "x-node-template": "instanceType"}},
            },
            "storageProfile": storage_profile(),
            "osProfile": {
                "type": "object",
                "properties": {
                    "computerName": text,
                    "adminUsername": text,
                    "adminPassword": text,
                    "customData": text,
                    "linuxConfiguration": {
                        "type": "object",
                        "properties": {
                            "disablePasswordAuthentication": flag,
                            "ssh": {
                                "type": "object",
                                "properties": {
                                    "publicKeys": {"type": "object", "properties": {"path": text, "keyData": text}},
                                },
                            },
                        },
                    },
                },
            },
            "networkProfile": {
                "type": "object",
                "properties": {
                    "networkInterfaces": {"type": "object", "properties": {"id": text, "properties": {"type": "object"}}},
                    "acceleratedNetworking": flag,
                    "ipv6": flag,
                },
            },
            "zone": number,
            "availabilitySet": id,
            "virtualMachineScaleSet": id,
            "machineSet": {"type": "object", "properties": {"id": text, "kind": text}},
            "identityID": text,
            "diagnosticsProfile": {"type": "object", "properties": {"enabled": flag, "storageURI": text}},
            "securityProfile": {
                "type": "object",
                "properties": {
                    "securityType": text,
                    "uefiSettings": {
                        "type": "object",
                        "properties": {"vtpmEnabled": flag, "secureBootEnabled": flag},
                    },
                },
            },
            "capacityReservation": {"type": "object", "properties": {"capacityReservationGroupID": text}},
            "priority": text,
            "evictionPolicy": text,
            "billingProfile": {"type": "object", "properties": {"maxPrice": {"type": "number", "description": "US dollars an hour"}}},
        },
    })
}

fn storage_profile() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let gibibytes = json!({"type": "integer", "description": "GiB"});
    let image = json!({
        "type": "object",
        "properties": {
            "id": text,
            "urn": text,
            "communityGalleryImageID": text,
            "sharedGalleryImageID": text,
            "skipMarketplaceAgreement": {"type": "boolean"},
        },
    });
    json!({
        "type": "object",
        "properties": {
            "imageReference": image,
            "diskControllerType": text,
            "osDisk": {
                "type": "object",
                "properties": {
                    "name": text,
                    "caching": text,
                    "createOption": text,
                    "diskSizeGB": gibibytes,
                    "managedDisk": {
                        "type": "object",
                        "properties": {
                            "id": text,
                            "storageAccountType": text,
                            "securityProfile": {"type": "object", "properties": {"securityEncryptionType": text}},
                        },
                    },
                },
            },
            "dataDisks": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": text,
                        "lun": number,
                        "caching": text,
                        "storageAccountType": text,
                        "diskSizeGB": gibibytes,
                        "imageRef": image,
                    },
                },
            },
        },
    })
}
