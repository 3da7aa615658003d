//! Conversion between v1alpha1 and v1beta1, without loss in either direction (spec/api-and-admission §8).
//!
//! Works on JSON, because it must be total: whatever the loose schema could ever store converts, nonsense included. A
//! failure here would break every read of that object in the other version.
//!
//! The fields are mapped by simple functions ([`machine`], [`scaling`], [`class`]) that say what they can and leave out
//! the rest. What they left out is found by mapping the result back, and carried in an annotation ([`residue`]), so that
//! no mapping has to remember what it lost.

mod class;
mod conditions;
mod machine;
mod operation;
mod residue;
mod scaling;

use serde_json::{Map, Value};

use self::residue::Residue;
use crate::api::{
    kind::{ApiVersion, Kind},
    names::{self, annotation},
};

type Object = Map<String, Value>;

/// The most that conversion puts into an annotation; all annotations of an object together may have 256 KiB.
const MAX_RESIDUE_BYTES: usize = 32 * 1024;

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// It is a list, a string or the like.
    #[error("not a JSON object")]
    NotAnObject,
    /// Its version or kind is none of ours.
    #[error(
        "{kind:?} of version {api_version:?} is not known; expected one of the kinds of machine.sapcloud.io/v1alpha1 or v1beta1"
    )]
    UnknownKind {
        /// Its `apiVersion`; empty if it has none.
        api_version: String,
        /// Its `kind`; empty if it has none.
        kind: String,
    },
    /// The wanted version does not exist.
    #[error("version {0:?} is not known; expected machine.sapcloud.io/v1alpha1 or machine.sapcloud.io/v1beta1")]
    UnknownVersion(String),
}

/// A converted object and what its reader may want to count.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The object in the wanted version.
    pub object: Value,
    /// What was lost on the way; almost always nothing.
    pub losses: Vec<Loss>,
}

/// How data of the other version got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The annotation was not written by this program, or was edited.
    UnreadableResidue,
    /// The annotation would have been too large, or the object has no place for it.
    OmittedResidue,
}

/// Converts an object of ours to `desired`, a `group/version`. Fails only for unknown kinds and versions.
pub fn convert(object: &Value, desired: &str) -> Result<Value, ConversionError> {
    convert_counting_losses(object, desired).map(|converted| converted.object)
}

/// As [`convert`], and says what was lost.
pub fn convert_counting_losses(object: &Value, desired: &str) -> Result<Converted, ConversionError> {
    let to = parse_version(desired).ok_or_else(|| ConversionError::UnknownVersion(desired.to_owned()))?;
    let fields = object.as_object().ok_or(ConversionError::NotAnObject)?;
    let word = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let (Some(from), Some(kind)) = (parse_version(word("apiVersion")), Kind::from_name(word("kind"))) else {
        return Err(ConversionError::UnknownKind {
            api_version: word("apiVersion").to_owned(),
            kind: word("kind").to_owned(),
        });
    };
    if from == to {
        return Ok(Converted { object: object.clone(), losses: Vec::new() });
    }
    Ok(convert_fields(kind, fields, from, to))
}

fn convert_fields(kind: Kind, fields: &Object, from: ApiVersion, to: ApiVersion) -> Converted {
    let mut losses = Vec::new();
    let mut source = canonical(kind, fields);
    let carried = remove_annotation(&mut source, residue_annotation(from));
    remove_annotation(&mut source, residue_annotation(to));
    if (kind, from) == (Kind::Machine, ApiVersion::V1beta1) {
        machine::mirror_node_label(&mut source);
    }

    let mut target = map_fields(kind, source.clone(), to);
    if let Some(text) = carried {
        match Residue::parse(&text) {
            Some(residue) => target = residue.apply(target, &source, |object| map_fields(kind, object, from)),
            None => losses.push(Loss::UnreadableResidue),
        }
    }

    let back = map_fields(kind, target.clone(), from);
    if let Some(residue) = Residue::between(&back, &source)
        && !residue.fits(MAX_RESIDUE_BYTES).is_some_and(|text| annotate(&mut target, to, text))
    {
        losses.push(Loss::OmittedResidue);
    }
    Converted { object: Value::Object(target), losses }
}

/// Maps the fields that both versions can express and leaves out the rest.
fn map_fields(kind: Kind, mut object: Object, to: ApiVersion) -> Object {
    object.insert("apiVersion".to_owned(), Value::from(api_version(to)));
    match (kind, to) {
        (Kind::Machine, ApiVersion::V1beta1) => machine::up(&mut object),
        (Kind::Machine, ApiVersion::V1alpha1) => machine::down(&mut object),
        (Kind::MachineSet, ApiVersion::V1beta1) => scaling::set_up(&mut object),
        (Kind::MachineSet, ApiVersion::V1alpha1) => scaling::set_down(&mut object),
        (Kind::MachineDeployment, ApiVersion::V1beta1) => scaling::deployment_up(&mut object),
        (Kind::MachineDeployment, ApiVersion::V1alpha1) => scaling::deployment_down(&mut object),
        (Kind::MachineClass, ApiVersion::V1beta1) => class::up(&mut object),
        (Kind::MachineClass, ApiVersion::V1alpha1) => class::down(&mut object),
    }
    object
}

/// The object without what means nothing: null, which is the same as absent, and empty metadata. A driver's
/// configuration is not ours to tidy.
fn canonical(kind: Kind, fields: &Object) -> Object {
    let mut object = Object::new();
    for (name, value) in fields {
        let opaque = kind == Kind::MachineClass && name == "providerSpec";
        let class_spec = kind == Kind::MachineClass && name == "spec";
        match value {
            Value::Null => continue,
            value if opaque => object.insert(name.clone(), value.clone()),
            Value::Object(spec) if class_spec => {
                let mut tidy = without_nulls(spec);
                if let Some(configuration) = spec.get("providerSpec").filter(|value| !value.is_null()) {
                    tidy.insert("providerSpec".to_owned(), configuration.clone());
                }
                object.insert(name.clone(), Value::Object(tidy))
            }
            value => object.insert(name.clone(), tidied(value)),
        };
    }
    forget_empty_metadata(&mut object);
    object
}

fn without_nulls(map: &Object) -> Object {
    map.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), tidied(value))).collect()
}

fn tidied(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(without_nulls(map)),
        Value::Array(list) => list.iter().map(tidied).collect(),
        other => other.clone(),
    }
}

fn forget_empty_metadata(object: &mut Object) {
    let is_empty = |value: Option<&Value>| value.and_then(Value::as_object).is_some_and(Map::is_empty);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && is_empty(metadata.get("annotations"))
    {
        metadata.remove("annotations");
    }
    if is_empty(object.get("metadata")) {
        object.remove("metadata");
    }
}

fn annotations(object: &mut Object) -> Option<&mut Object> {
    object.get_mut("metadata")?.get_mut("annotations")?.as_object_mut()
}

/// Takes an annotation off; the text is empty if it was no string.
fn remove_annotation(object: &mut Object, name: &str) -> Option<String> {
    let removed = annotations(object)?.remove(name)?;
    forget_empty_metadata(object);
    Some(removed.as_str().unwrap_or_default().to_owned())
}

/// Puts an annotation on; false if the object's metadata has no place for it.
fn put_annotation(object: &mut Object, name: &str, text: String) -> bool {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Object::new()));
    let Some(metadata) = metadata.as_object_mut() else { return false };
    let annotations = metadata.entry("annotations").or_insert_with(|| Value::Object(Object::new()));
    let Some(annotations) = annotations.as_object_mut() else { return false };
    annotations.insert(name.to_owned(), Value::String(text));
    true
}

fn annotate(object: &mut Object, version: ApiVersion, text: String) -> bool {
    put_annotation(object, residue_annotation(version), text)
}

/// The version in a `group/version` of ours.
fn parse_version(api_version: &str) -> Option<ApiVersion> {
    let (group, version) = api_version.split_once('/')?;
    if group == names::GROUP { ApiVersion::from_name(version) } else { None }
}

const fn api_version(version: ApiVersion) -> &'static str {
    match version {
        ApiVersion::V1alpha1 => names::API_VERSION_V1ALPHA1,
        ApiVersion::V1beta1 => names::API_VERSION_V1BETA1,
    }
}

/// The annotation that an object of this version carries; named after the version whose data it holds.
const fn residue_annotation(version: ApiVersion) -> &'static str {
    match version {
        ApiVersion::V1alpha1 => annotation::CONVERSION_V1BETA1,
        ApiVersion::V1beta1 => annotation::CONVERSION_V1ALPHA1,
    }
}

/// Moves a field to another name. What already was there is not of this version and gives way.
fn rename(object: &mut Object, from: &str, to: &str) {
    let value = object.remove(from);
    object.remove(to);
    if let Some(value) = value {
        object.insert(to.to_owned(), value);
    }
}

/// The fields of a nested object, if it is one.
fn nested<'a>(object: &'a mut Object, name: &str) -> Option<&'a mut Object> {
    object.get_mut(name)?.as_object_mut()
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
