//! The JSON Schema of a `providerSpec` for machines as pods (spec/providers §8): fields and their types.

use serde_json::{Value, json};

/// The schema.
pub fn provider_spec() -> Value {
    let text = json!({"type": "string"});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "providerSpec of a MachineClass for machines as pods",
        "type": "object",
        "properties": {
            "apiVersion": text,
            "namespace": {"type": "string", "description": "namespace of the pods"},
            "image": {"type": "string", "description": "image of the container `node`"},
            "ipPoolNameV4": {"type": "string", "description": "IPPool of Calico for IPv4 addresses"},
            "ipPoolNameV6": {"type": "string", "description": "IPPool of Calico for IPv6 addresses"},
        },
    })
}
