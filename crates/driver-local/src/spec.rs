//! The `providerSpec` of a class as the driver reads it (spec/providers §8).

use kube_values::field::Findings;
use machine_api::validation::as_go_reads;
use machine_driver::{ClassRules, Code, MachineClass, Status, provider_spec};
use serde::Deserialize;

use crate::{LOCAL, LocalClasses, SCHEMA};

/// The `providerSpec` of a class.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The namespace of the pods. If it is empty, the namespace of the machine is used.
    pub namespace: String,
    /// The image of the container.
    pub image: String,
    /// The Calico pool of IPv4 addresses, or empty.
    pub ip_pool_name_v4: String,
    /// The Calico pool of IPv6 addresses, or empty.
    pub ip_pool_name_v6: String,
}

impl Spec {
    /// Reads the spec of a class. The rules are checked by [`Self::checked`] only, so that a class that was broken later stops no deletion.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, and for fields of other types.
    pub fn read(class: &MachineClass) -> Result<Self, Status> {
        if class.provider != LOCAL {
            let message = format!("requested for Provider '{}', we only support '{LOCAL}'", class.provider);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        // A list would be read as the fields in their order.
        if !class.provider_spec.is_object() {
            return Err(Status::new(Code::InvalidArgument, "providerSpec: must be an object"));
        }
        let as_read =
            MachineClass { provider_spec: as_go_reads(&SCHEMA, &class.provider_spec), ..MachineClass::default() };
        provider_spec(&as_read)
    }

    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// The errors of [`Self::read`], and `InvalidArgument` with all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        let spec = Self::read(class)?;
        let mut found = Findings::new();
        LocalClasses.validate(class, &mut found);
        if found.denies() {
            let message = format!("error while validating ProviderSpec: {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }
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
}
