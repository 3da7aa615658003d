//! The JSON Schema of a `providerSpec` for EC2 (spec/providers §3.1): fields and their types.
//!
//! What a field may hold beyond its type is said by the rules, with one exception: without block devices the original
//! accepts a class and then fails every creation, so that new classes must name one.

use serde_json::{Value, json};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let flag = json!({"type": "boolean"});
    let texts = json!({"type": "array", "items": text});
    let ebs = json!({
        "type": "object",
        "properties": {
            "volumeType": text,
            "volumeSize": {"type": "integer", "description": "GiB"},
            "iops": number,
            "throughput": {"type": "integer", "description": "MiB/s"},
            "encrypted": flag,
            "deleteOnTermination": flag,
            "snapshotID": text,
            "kmsKeyID": text,
        },
    });
    let block_device = json!({
        "type": "object",
        "properties": {"deviceName": text, "ebs": ebs, "noDevice": text, "virtualName": text},
    });
    let network_interface = json!({
        "type": "object",
        "properties": {
            "subnetID": text,
            "securityGroupIDs": texts,
            "associatePublicIPAddress": flag,
            "deleteOnTermination": flag,
            "description": text,
            "deviceIndex": number,
            "networkCardIndex": number,
            "interfaceType": text,
            "ipv6AddressCount": number,
            "primaryIpv6": flag,
            "ipv6PrefixCount": number,
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for AWS",
        "type": "object",
        "required": ["blockDevices"],
        "properties": {
            "apiVersion": text,
            "kind": text,
            "ami": text,
            "region": {"type": "string", "x-node-template": "region"},
            "machineType": {"type": "string", "x-node-template": "instanceType"},
            "iam": {"type": "object", "properties": {"name": text, "arn": text}},
            "blockDevices": {"type": "array", "minItems": 1, "items": block_device},
            "networkInterfaces": {"type": "array", "items": network_interface},
            "tags": {"type": "object", "additionalProperties": text},
            "keyName": text,
            "srcAndDstChecksEnabled": flag,
            "capacityReservation": {
                "type": "object",
                "properties": {
                    "capacityReservationPreference": text,
                    "capacityReservationId": text,
                    "capacityReservationResourceGroupArn": text,
                },
            },
            "instanceMarketOptions": {"type": "object", "properties": {"marketType": text}},
            "spotPrice": text,
            "instanceMetadataOptions": {
                "type": "object",
                "properties": {
                    "httpEndpoint": text,
                    "httpTokens": text,
                    "httpPutResponseHopLimit": number,
                    "httpProtocolIpv6": text,
                },
            },
            "cpuOptions": {
                "type": "object",
                "properties": {"coreCount": number, "threadsPerCore": number, "amdSevSnp": text},
            },
            "placement": {
                "type": "object",
                "properties": {
                    "groupId": text,
                    "tenancy": text,
                    "hostId": text,
                    "partitionNumber": number,
                    "affinity": text,
                },
            },
            "ebsOptimized": flag,
            "monitoring": flag,
        },
    })
}
