//! Reads the `providerSpec` of a class as a type of the driver.

use machine_api::v1alpha1::MachineClass;
use serde::de::DeserializeOwned;

use super::{Code, Status};

/// Decodes the `providerSpec` of a class. Unknown fields are ignored, because admission has warned about them.
///
/// # Errors
/// `InvalidArgument` with the path of the first field that can't be decoded.
pub fn provider_spec<T: DeserializeOwned>(class: &MachineClass) -> Result<T, Status> {
    serde_path_to_error::deserialize(&class.provider_spec).map_err(|error| {
        let path = match error.path().to_string() {
            path if path == "." => String::new(),
            path if path.starts_with('[') => path,
            path => format!(".{path}"),
        };
        Status::new(Code::InvalidArgument, format!("providerSpec{path}: {}", error.inner()))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        size: String,
        #[serde(default)]
        disks: Vec<Disk>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "camelCase")]
    struct Disk {
        size_gb: u32,
    }

    fn read(provider_spec: Value) -> Result<Spec, Status> {
        super::provider_spec(&MachineClass { provider_spec, ..MachineClass::default() })
    }

    #[test]
    fn fields_that_are_not_known_are_ignored() {
        let spec = read(json!({ "size": "small", "disks": [{ "sizeGb": 50 }], "later": true })).unwrap();
        assert_eq!(spec, Spec { size: "small".to_owned(), disks: vec![Disk { size_gb: 50 }] });
    }

    #[rstest]
    #[case::no_spec(json!(null), "providerSpec: invalid type: null")]
    #[case::a_field_is_missing(json!({}), "providerSpec: missing field `size`")]
    #[case::a_field_is_of_another_type(json!({ "size": 4 }), "providerSpec.size: invalid type: integer `4`")]
    #[case::deeper(json!({ "size": "s", "disks": [{ "sizeGb": "50" }] }), "providerSpec.disks[0].sizeGb: invalid type: string")]
    fn a_field_that_can_not_be_decoded_is_named(#[case] spec: Value, #[case] begins: &str) {
        let refused = read(spec).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with(begins), "{}", refused.message);
    }
}
