//! `MachineClass`: the payload moves from the top level into `spec`.

use serde_json::Value;

use super::Object;

/// Names in v1alpha1 and in `spec` of v1beta1.
const PAYLOAD: [(&str, &str); 5] = [
    ("provider", "provider"),
    ("providerSpec", "providerSpec"),
    ("secretRef", "userDataSecretRef"),
    ("credentialsSecretRef", "credentialsSecretRef"),
    ("nodeTemplate", "nodeTemplate"),
];

/// What both versions have beside the payload.
const FRAME: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

pub(super) fn up(class: &mut Object) {
    let mut spec = Object::new();
    for (older, newer) in PAYLOAD {
        if let Some(value) = class.remove(older) {
            spec.insert(newer.to_owned(), value);
        }
    }
    class.retain(|name, _| FRAME.contains(&name.as_str()));
    if !spec.is_empty() {
        class.insert("spec".to_owned(), Value::Object(spec));
    }
}

pub(super) fn down(class: &mut Object) {
    let spec = class.remove("spec");
    class.retain(|name, _| FRAME.contains(&name.as_str()));
    let Some(Value::Object(mut spec)) = spec else { return };
    for (older, newer) in PAYLOAD {
        if let Some(value) = spec.remove(newer) {
            class.insert(older.to_owned(), value);
        }
    }
}
