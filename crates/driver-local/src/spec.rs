//! The `providerSpec` of a class as the driver reads it (spec/providers §8).

use kube_values::field::Findings;
use machine_driver::{Code, MachineClass, Status, provider_spec};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{CLASSES, LOCAL};

/// The part of a `providerSpec` that says where the pods are. Nothing else is needed to find, list and delete them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Place {
    /// The namespace of the pods. If it is empty, the namespace of the machine is used.
    pub namespace: String,
}

impl Place {
    /// Reads the place of a class. Other fields are not looked at, so that a class that was broken later stops no deletion.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, and for a namespace of another type.
    pub fn read(class: &MachineClass) -> Result<Self, Status> {
        part(class)
    }
}

/// What a `providerSpec` says about the content of the pods.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The image of the container.
    pub image: String,
    /// The Calico pool of IPv4 addresses, or empty.
    pub ip_pool_name_v4: String,
    /// The Calico pool of IPv6 addresses, or empty.
    pub ip_pool_name_v6: String,
}

impl Spec {
    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, for fields of other types, and with all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        let spec = part(class)?;
        let mut found = Findings::new();
        CLASSES.validate(class, &mut found);
        if found.denies() {
            let message = format!("error while validating ProviderSpec: {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }
}

/// Reads some fields of a class.
fn part<T: DeserializeOwned>(class: &MachineClass) -> Result<T, Status> {
    if class.provider != LOCAL {
        let message = format!("requested for Provider '{}', we only support '{LOCAL}'", class.provider);
        return Err(Status::new(Code::InvalidArgument, message));
    }
    // A list would be read as the fields in their order.
    if !class.provider_spec.is_object() {
        return Err(Status::new(Code::InvalidArgument, "providerSpec: must be an object"));
    }
    let as_read = MachineClass { provider_spec: CLASSES.as_go_reads(class), ..MachineClass::default() };
    provider_spec(&as_read)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]
    #[rstest]
    #[case::c_01_another_provider("Local", json!({}), "requested for Provider 'Local', we only support 'local'")]
    #[case::c_03_a_list("local", json!([]), "providerSpec: must be an object")]
    #[case::nothing("local", json!(null), "providerSpec: must be an object")]
    #[case::another_type("local", json!({"image": 4}), "providerSpec.image: invalid type: integer `4`")]
    #[case::no_image("local", json!({}), "error while validating ProviderSpec: providerSpec.image: Required value: image is required")]
    fn a_class_is_refused(#[case] provider: &str, #[case] provider_spec: Value, #[case] begins: &str) {
        let class = MachineClass { provider: provider.to_owned(), provider_spec, ..MachineClass::default() };
        let refused = Spec::checked(&class).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with(begins), "{}", refused.message);
    }

    #[test]
    fn only_a_broken_namespace_hides_the_place() {
        let place = |provider_spec: Value| {
            Place::read(&MachineClass { provider: LOCAL.to_owned(), provider_spec, ..MachineClass::default() })
        };
        assert_eq!(place(json!({"Namespace": "ns", "image": 4, "ipPoolNameV4": []})).unwrap().namespace, "ns");
        assert_eq!(place(json!({"namespace": 4})).unwrap_err().code, Code::InvalidArgument);
    }
}
