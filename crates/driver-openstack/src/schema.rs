//! The JSON Schema of a `providerSpec` for `OpenStack` (spec/providers §6.1): fields and their types.

use serde_json::{Value, json};

use crate::{API_VERSION, KIND};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let flag = json!({"type": "boolean"});
    let network = json!({
        "type": "object",
        "properties": {"id": text, "name": text, "podNetwork": flag},
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for OpenStack",
        "type": "object",
        "required": ["apiVersion", "kind", "spec"],
        "properties": {
            "apiVersion": {"type": "string", "const": API_VERSION},
            "kind": {"type": "string", "const": KIND},
            "spec": {
                "type": "object",
                "properties": {
                    "imageID": text,
                    "imageName": text,
                    "region": {"type": "string", "x-node-template": "region"},
                    "availabilityZone": {"type": "string", "x-node-template": "zone"},
                    "flavorName": {"type": "string", "x-node-template": "instanceType"},
                    "keyName": text,
                    "securityGroups": texts,
                    "tags": {"type": "object", "additionalProperties": text},
                    "networkID": text,
                    "networks": {"type": "array", "items": network},
                    "subnetID": text,
                    "subnetIDs": texts,
                    "podNetworkCidr": text,
                    "podNetworkCIDRs": texts,
                    "rootDiskSize": {"type": "integer", "description": "GiB"},
                    "rootDiskType": text,
                    "useConfigDrive": flag,
                    "serverGroupID": text,
                },
            },
        },
    })
}
