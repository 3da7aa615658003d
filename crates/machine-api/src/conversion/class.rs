//! `MachineClass`: moves the payload between the top level and `spec`.

use super::Object;
use kube_values::json::Json;

/// The names in v1alpha1, and in `spec` of v1beta1.
const PAYLOAD: [(&str, &str); 5] = [
    ("provider", "provider"),
    ("providerSpec", "providerSpec"),
    ("secretRef", "userDataSecretRef"),
    ("credentialsSecretRef", "credentialsSecretRef"),
    ("nodeTemplate", "nodeTemplate"),
];

/// The fields that both versions have beside the payload.
const FRAME: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

pub(super) fn up(class: &mut Object<'_>) {
    let mut spec = Object::default();
    for (older, newer) in PAYLOAD {
        if let Some(value) = class.remove(older) {
            spec.insert(newer, value);
        }
    }
    class.retain(|name, _| FRAME.contains(&name));
    if !spec.is_empty() {
        class.insert("spec", spec);
    }
}

pub(super) fn down(class: &mut Object<'_>) {
    let spec = class.remove("spec");
    class.retain(|name, _| FRAME.contains(&name));
    let Some(Json::Object(mut spec)) = spec else { return };
    for (older, newer) in PAYLOAD {
        if let Some(value) = spec.remove(newer) {
            class.insert(older, value);
        }
    }
}
