//! `mcm convert`: converts objects in a file to another version, without a cluster.

use std::fmt;

use serde_json::Value;

use super::documents::{
    Document, DocumentError, Format, ObjectRef, WriteError, list_items, parse_documents, write_documents,
};
use machine_api::{
    conversion::{ConversionError, convert},
    names,
};

/// Why a text could not be converted. The command then writes nothing.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The text is neither YAML nor JSON.
    #[error(transparent)]
    Unreadable(#[from] DocumentError),
    /// The version does not exist.
    #[error("version {0:?} is not known; use v1alpha1 or v1beta1")]
    UnknownVersion(String),
    /// The objects that could not be converted.
    #[error("{}", Lines(.0))]
    Objects(Vec<ObjectError>),
    /// The result could not be written.
    #[error("the result {0}")]
    Unwritable(#[from] WriteError),
}

/// Why an object could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {reason}")]
pub struct ObjectError {
    /// Source, document, and kind and name if they are known.
    pub object: String,
    /// The fault of the object.
    pub reason: ConversionError,
}

struct Lines<'a>(&'a [ObjectError]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if number > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

/// Converts every object of our kinds in a text to `to`, which is a version (`v1beta1`) or a group and version. Lists stay lists.
/// Objects of other groups, such as Secrets, stay unchanged.
pub fn convert_documents(source_name: &str, input: &str, to: &str, format: Format) -> Result<String, ConvertError> {
    let to = desired_version(to)?;
    let mut converted = Vec::new();
    let mut errors = Vec::new();
    for document in parse_documents(source_name, input)? {
        match convert_document(&document, to) {
            Ok(value) => converted.push(value),
            Err(mut more) => errors.append(&mut more),
        }
    }
    if errors.is_empty() { Ok(write_documents(&converted, format)?) } else { Err(ConvertError::Objects(errors)) }
}

fn desired_version(to: &str) -> Result<&'static str, ConvertError> {
    match to {
        names::V1ALPHA1 | names::API_VERSION_V1ALPHA1 => Ok(names::API_VERSION_V1ALPHA1),
        names::V1BETA1 | names::API_VERSION_V1BETA1 => Ok(names::API_VERSION_V1BETA1),
        other => Err(ConvertError::UnknownVersion(other.to_owned())),
    }
}

fn convert_document(document: &Document, to: &str) -> Result<Value, Vec<ObjectError>> {
    let mut objects = Vec::new();
    let mut errors = Vec::new();
    for object in document.objects() {
        match convert_object(document, object, to) {
            Ok(value) => objects.push(value),
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut value = document.value.clone();
    if list_items(&value).is_none() {
        return Ok(objects.pop().unwrap_or(value));
    }
    if group(&value) == Some(names::GROUP) {
        value["apiVersion"] = to.into();
    }
    value["items"] = Value::Array(objects);
    Ok(value)
}

fn convert_object(document: &Document, object: ObjectRef<'_>, to: &str) -> Result<Value, ObjectError> {
    if group(object.value).is_some_and(|group| group != names::GROUP) {
        return Ok(object.value.clone());
    }
    convert(object.value, to).map_err(|reason| ObjectError { object: document.describe(object), reason })
}

/// The group of an object that has version and kind; empty for the core group.
fn group(value: &Value) -> Option<&str> {
    value.get("kind")?.as_str()?;
    let api_version = value.get("apiVersion")?.as_str()?;
    Some(api_version.split_once('/').map_or("", |(group, _)| group))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const POOL: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: s}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: c}
provider: virtual
providerSpec: {}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: Machine
metadata: {name: m}
spec:
  class: {kind: MachineClass, name: c}
  drainTimeout: 5m
";

    #[test]
    fn a_file_is_converted_and_back() {
        let beta = convert_documents("pool.yaml", POOL, "v1beta1", Format::Yaml).unwrap();
        let values: Vec<_> =
            parse_documents("beta", &beta).unwrap().into_iter().map(|document| document.value).collect();
        assert_eq!(values[0], json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}));
        assert_eq!(values[1]["spec"], json!({"provider": "virtual", "providerSpec": {}}));
        assert_eq!(
            values[2]["spec"],
            json!({"classRef": {"kind": "MachineClass", "name": "c"}, "lifecycle": {"drainTimeout": "5m"}})
        );
        let alpha = convert_documents("beta", &beta, "machine.sapcloud.io/v1alpha1", Format::Yaml).unwrap();
        assert_eq!(parse_documents("x", &alpha).unwrap(), parse_documents("x", POOL).unwrap());
    }

    #[rstest]
    #[case::a_plain_list("v1", "List", "v1")]
    #[case::a_typed_list("machine.sapcloud.io/v1alpha1", "MachineList", "machine.sapcloud.io/v1beta1")]
    fn the_items_of_a_list_are_converted(#[case] api_version: &str, #[case] kind: &str, #[case] expected: &str) {
        let machine =
            json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "m"}});
        let list = json!({"apiVersion": api_version, "kind": kind, "items": [machine]}).to_string();
        let text = convert_documents("stdin", &list, "v1beta1", Format::Json).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["apiVersion"], expected);
        assert_eq!(read["items"][0]["apiVersion"], "machine.sapcloud.io/v1beta1");
    }

    #[test]
    fn several_documents_become_one_json_list() {
        let text = convert_documents("pool.yaml", POOL, "v1beta1", Format::Json).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["kind"], read["items"].as_array().unwrap().len()), (&json!("List"), 3));
    }

    #[test]
    fn every_object_that_fails_is_named() {
        let text =
            "apiVersion: machine.sapcloud.io/v2\nkind: Machine\nmetadata: {name: m, namespace: shoot}\n---\nname: x\n";
        let error = convert_documents("pool.yaml", text, "v1beta1", Format::Yaml).unwrap_err().to_string();
        let lines: Vec<_> = error.lines().collect();
        assert!(lines[0].starts_with("pool.yaml: document 0: Machine \"shoot/m\": \"Machine\" of version"), "{error}");
        assert!(lines[1].starts_with("pool.yaml: document 1: "), "{error}");
    }

    #[rstest]
    #[case::no_yaml("a: [", "v1beta1", "f: document 0: is no YAML")]
    #[case::no_version(POOL, "v2", "version \"v2\" is not known; use v1alpha1 or v1beta1")]
    fn bad_input_is_refused(#[case] text: &str, #[case] to: &str, #[case] words: &str) {
        let error = convert_documents("f", text, to, Format::Yaml).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}
