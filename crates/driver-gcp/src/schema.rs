//! The JSON Schema of a `providerSpec` for GCE (spec/providers §5.1): fields and their types. The rules say what a field may contain beyond its type.

use serde_json::{Value, json};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let flag = json!({"type": "boolean"});
    let texts = json!({"type": "array", "items": text});
    let labels = json!({"type": "object", "additionalProperties": text});
    let disk = json!({
        "type": "object",
        "properties": {
            "autoDelete": flag,
            "boot": flag,
            "sizeGb": {"type": "integer", "description": "GiB"},
            "type": text,
            "interface": text,
            "image": text,
            "labels": labels,
            "encryption": {
                "type": "object",
                "properties": {"kmsKeyName": text, "kmsKeyServiceAccount": text},
            },
            "provisionedIops": number,
            "provisionedThroughput": {"type": "integer", "description": "MiB/s"},
            "storagePool": text,
        },
    });
    let network_interface = json!({
        "type": "object",
        "properties": {
            "network": text,
            "subnetwork": text,
            "disableExternalIP": flag,
            "stackType": text,
            "ipv6accessType": text,
            "ipCidrRange": text,
            "subnetworkRangeName": text,
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for GCP",
        "type": "object",
        "properties": {
            "apiVersion": text,
            "kind": text,
            "region": {"type": "string", "x-node-template": "region"},
            "zone": {"type": "string", "x-node-template": "zone"},
            "machineType": {"type": "string", "x-node-template": "instanceType"},
            "canIpForward": flag,
            "deletionProtection": flag,
            "description": text,
            "labels": labels,
            "tags": texts,
            "metadata": {
                "type": "array",
                "items": {"type": "object", "properties": {"key": text, "value": text}},
            },
            "minCpuPlatform": text,
            "disks": {"type": "array", "items": disk},
            "gpu": {"type": "object", "properties": {"acceleratorType": text, "count": number}},
            "networkInterfaces": {"type": "array", "items": network_interface},
            "scheduling": {
                "type": "object",
                "properties": {
                    "automaticRestart": flag,
                    "onHostMaintenance": text,
                    "preemptible": flag,
                    "provisioningModel": text,
                    "instanceTerminationAction": text,
                },
            },
            "reservationAffinity": {
                "type": "object",
                "properties": {"consumeReservationType": text, "key": text, "values": texts},
            },
            "serviceAccounts": {
                "type": "array",
                "items": {"type": "object", "properties": {"email": text, "scopes": texts}},
            },
            "shieldedInstanceConfiguration": {
                "type": "object",
                "properties": {"integrityMonitoring": flag, "secureBoot": flag, "vtpm": flag},
            },
            "advancedMachineFeatures": {
                "type": "object",
                "properties": {"enableNestedVirtualization": flag},
            },
        },
    })
}
