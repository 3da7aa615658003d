//! The JSON Schema of a `providerSpec` for Alibaba Cloud: fields and their types. The rules say what a field may contain beyond its type.
//!
//! Source: the type of the `providerSpec` in machine-controller-manager-provider-alicloud.

use serde_json::{Value, json};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer"});
    let flag = json!({"type": "boolean"});
    let gib = json!({"type": "integer", "description": "GiB"});
    let data_disk = json!({
        "type": "object",
        "properties": {
            "name": text,
            "category": text,
            "description": text,
            "encrypted": flag,
            "deleteWithInstance": flag,
            "size": gib,
        },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for Alibaba Cloud",
        "type": "object",
        "properties": {
            "apiVersion": text,
            "kind": text,
            "imageID": text,
            "instanceType": {"type": "string", "x-node-template": "instanceType"},
            "region": {"type": "string", "x-node-template": "region"},
            "zoneID": {"type": "string", "x-node-template": "zone"},
            "securityGroupID": text,
            "vSwitchID": text,
            "privateIPAddress": text,
            "systemDisk": {"type": "object", "properties": {"category": text, "size": gib}},
            "dataDisks": {"type": "array", "items": data_disk},
            "instanceChargeType": text,
            "internetChargeType": text,
            "internetMaxBandwidthIn": {"type": "integer", "description": "Mbit/s"},
            "internetMaxBandwidthOut": number,
            "spotStrategy": text,
            "IoOptimized": text,
            "tags": {"type": "object", "additionalProperties": text},
            "keyPairName": text,
        },
    })
}
