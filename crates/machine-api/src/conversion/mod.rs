//! Conversion between v1alpha1 and v1beta1, without loss in either direction (spec/api-and-admission §8).
//!
//! Works on JSON, because every stored object must convert: also an invalid object that an older, looser schema accepted. A failure would break every
//! read of that object in the other version. The objects of a conversion share equal parts ([`Json`]), so that labels or the configuration of a
//! driver are in memory only once.
//!
//! Simple functions ([`machine`], [`scaling`], [`class`]) map the fields that both versions have and drop the rest. The dropped fields are found by
//! mapping the result back and comparing, and are stored in an annotation ([`residue`]). So no mapping has to record what it drops.

mod class;
mod conditions;
mod machine;
mod operation;
mod residue;
mod scaling;

use std::borrow::Cow;

use serde_json::Value;

use self::residue::{Omission, Residue};
use crate::{
    kind::{ApiVersion, Kind},
    names::{self, annotation},
};
use kube_values::json::{Json, Members};

type Object<'a> = Members<'a>;

/// The longest annotation that conversion writes or reads, in bytes. All annotations of an object together may have 256 KiB.
pub const MAX_RESIDUE_BYTES: usize = 32 * 1024;

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The value is a list, a string or another type.
    #[error("not a JSON object")]
    NotAnObject,
    /// The version or the kind is unknown.
    #[error(
        "{kind:?} of version {api_version:?} is not known; expected one of the kinds of machine.sapcloud.io/v1alpha1 or v1beta1"
    )]
    UnknownKind {
        /// The `apiVersion`. Empty if absent.
        api_version: String,
        /// The `kind`. Empty if absent.
        kind: String,
    },
    /// The requested version does not exist.
    #[error("version {0:?} is not known; expected machine.sapcloud.io/v1alpha1 or machine.sapcloud.io/v1beta1")]
    UnknownVersion(String),
}

/// A converted object, and its losses.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted<T> {
    /// The object in the requested version.
    pub object: T,
    /// The losses. Almost always empty.
    pub losses: Vec<Loss>,
}

/// How data of the other version was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The annotation was not written by this program, or was edited, or is longer than the limit. An annotation over the limit stays.
    UnreadableResidue,
    /// The annotation would have been too long, or the object has no place for it.
    OmittedResidue,
}

/// Converts an object of our kinds to `desired`, a `group/version`. Fails only for unknown kinds and versions.
pub fn convert(object: &Value, desired: &str) -> Result<Value, ConversionError> {
    convert_counting_losses(object, desired).map(|converted| converted.object)
}

/// Does what [`convert`] does, and returns the losses.
pub fn convert_counting_losses(object: &Value, desired: &str) -> Result<Converted<Value>, ConversionError> {
    let Converted { object, losses } = convert_json(Json::from(object), desired)?;
    Ok(Converted { object: object.to_value(), losses })
}

/// Does what [`convert_counting_losses`] does, for parsed JSON.
pub fn convert_json<'a>(object: Json<'a>, desired: &str) -> Result<Converted<Json<'a>>, ConversionError> {
    let to = parse_version(desired).ok_or_else(|| ConversionError::UnknownVersion(desired.to_owned()))?;
    let Json::Object(fields) = object else { return Err(ConversionError::NotAnObject) };
    let word = |name: &str| fields.get(name).and_then(Json::as_str).unwrap_or_default();
    let (Some(from), Some(kind)) = (parse_version(word("apiVersion")), Kind::from_name(word("kind"))) else {
        return Err(ConversionError::UnknownKind {
            api_version: word("apiVersion").to_owned(),
            kind: word("kind").to_owned(),
        });
    };
    if from == to {
        return Ok(Converted { object: Json::Object(fields), losses: Vec::new() });
    }
    Ok(convert_fields(kind, fields, from, to))
}

fn convert_fields(kind: Kind, fields: Object<'_>, from: ApiVersion, to: ApiVersion) -> Converted<Json<'_>> {
    let mut losses = Vec::new();
    let mut source = canonical(kind, fields);
    let carried = take_residue(&mut source, from);
    // The residue of the target version is computed again below.
    take_residue(&mut source, to);
    if (kind, from) == (Kind::Machine, ApiVersion::V1beta1) {
        machine::mirror_node_label(&mut source);
    }

    if matches!(carried, Carried::Unreadable) {
        losses.push(Loss::UnreadableResidue);
    }
    let map = || map_fields(kind, source.clone(), to, None);
    let shown = |object| map_fields(kind, object, from, Some(&source));
    let (mut target, back) = match carried {
        Carried::Residue(residue) => residue.apply(&source, map, shown),
        Carried::Nothing | Carried::Unreadable => {
            let target = map();
            (target.clone(), shown(target))
        }
    };
    let is_kept = match Residue::between(&back, &source, MAX_RESIDUE_BYTES) {
        None => true,
        Some(Omission::Carried(text)) => put_annotation(&mut target, residue_annotation(to), text),
        Some(Omission::TooLong) => false,
    };
    if !is_kept {
        losses.push(Loss::OmittedResidue);
    }
    Converted { object: Json::Object(target), losses }
}

/// The residue in the annotation of an object.
enum Carried {
    Nothing,
    Residue(Residue<'static>),
    /// A text that this program did not write.
    Unreadable,
}

/// Removes the residue of this version from an object. An annotation that is longer than the limit is not read and stays, like any other annotation.
fn take_residue(object: &mut Object<'_>, version: ApiVersion) -> Carried {
    let name = residue_annotation(version);
    let text = annotations(object).and_then(|annotations| annotations.get(name)?.as_str());
    if text.is_some_and(|text| text.len() > MAX_RESIDUE_BYTES) {
        return Carried::Unreadable;
    }
    let Some(text) = remove_annotation(object, name) else { return Carried::Nothing };
    Residue::parse(&text).map_or(Carried::Unreadable, Carried::Residue)
}

/// Maps the fields that both versions have and drops the rest. An object that is mapped back names its `origin`, and shares equal parts with it.
fn map_fields<'a>(kind: Kind, mut object: Object<'a>, to: ApiVersion, origin: Option<&Object<'a>>) -> Object<'a> {
    object.insert("apiVersion", api_version(to));
    match (kind, to) {
        (Kind::Machine, ApiVersion::V1beta1) => machine::up(&mut object),
        (Kind::Machine, ApiVersion::V1alpha1) => machine::down(&mut object),
        (Kind::MachineSet, ApiVersion::V1beta1) => scaling::set_up(&mut object),
        (Kind::MachineSet, ApiVersion::V1alpha1) => scaling::set_down(&mut object, origin),
        (Kind::MachineDeployment, ApiVersion::V1beta1) => scaling::deployment_up(&mut object),
        (Kind::MachineDeployment, ApiVersion::V1alpha1) => scaling::deployment_down(&mut object, origin),
        (Kind::MachineClass, ApiVersion::V1beta1) => class::up(&mut object),
        (Kind::MachineClass, ApiVersion::V1alpha1) => class::down(&mut object),
    }
    object
}

/// The object without parts that have no meaning: nulls, which mean the same as absent fields, and empty metadata. The configuration of a driver is
/// not changed.
fn canonical(kind: Kind, mut object: Object<'_>) -> Object<'_> {
    object.retain(|_, value| !value.is_null());
    let is_class = kind == Kind::MachineClass;
    let in_class = is_class.then(|| object.remove("providerSpec")).flatten();
    let in_spec = is_class.then(|| nested(&mut object, "spec")?.remove("providerSpec")).flatten();
    object.change(tidied);
    if let Some(configuration) = in_class {
        object.insert("providerSpec", configuration);
    }
    if let (Some(configuration), Some(spec)) = (in_spec.filter(|it| !it.is_null()), nested(&mut object, "spec")) {
        spec.insert("providerSpec", configuration);
    }
    forget_empty_metadata(&mut object);
    object
}

/// The value without nulls in objects. `None` if it has no nulls.
fn tidied<'a>(value: &Json<'a>) -> Option<Json<'a>> {
    match value {
        Json::Object(fields) => {
            let mut tidy = fields.clone();
            tidy.retain(|_, value| !value.is_null());
            tidy.change(tidied);
            (!tidy.is_shared_with(fields)).then_some(Json::Object(tidy))
        }
        Json::List(list) => {
            let mut tidy = None;
            for (place, element) in list.iter().enumerate() {
                if let Some(changed) = tidied(element) {
                    tidy.get_or_insert_with(|| list.to_vec())[place] = changed;
                }
            }
            tidy.map(|elements| elements.into_iter().collect())
        }
        _ => None,
    }
}

fn forget_empty_metadata(object: &mut Object<'_>) {
    let is_empty = |value: Option<&Json<'_>>| value.and_then(Json::as_object).is_some_and(Members::is_empty);
    if is_empty(object.get("metadata").and_then(|metadata| metadata.get("annotations")))
        && let Some(metadata) = nested(object, "metadata")
    {
        metadata.remove("annotations");
    }
    if is_empty(object.get("metadata")) {
        object.remove("metadata");
    }
}

fn annotations<'o, 'a>(object: &'o Object<'a>) -> Option<&'o Object<'a>> {
    object.get("metadata")?.get("annotations")?.as_object()
}

/// Removes an annotation and returns its text. The text is empty if the value was no string.
fn remove_annotation<'a>(object: &mut Object<'a>, name: &str) -> Option<Cow<'a, str>> {
    annotations(object)?.get(name)?;
    let removed = nested(nested(object, "metadata")?, "annotations")?.remove(name)?;
    forget_empty_metadata(object);
    Some(if let Json::Text(text) = removed { text } else { Cow::Borrowed("") })
}

/// Adds an annotation. `false` if the metadata of the object has no place for it.
fn put_annotation(object: &mut Object<'_>, name: &'static str, text: String) -> bool {
    let Some(metadata) = object.get_or_insert_object("metadata").as_object_mut() else { return false };
    let Some(annotations) = metadata.get_or_insert_object("annotations").as_object_mut() else { return false };
    annotations.insert(name, text);
    true
}

/// The version in a `group/version` with our group.
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

/// The annotation with the residue of an object of this version. Its name contains the version of the data.
const fn residue_annotation(version: ApiVersion) -> &'static str {
    match version {
        ApiVersion::V1alpha1 => annotation::CONVERSION_V1BETA1,
        ApiVersion::V1beta1 => annotation::CONVERSION_V1ALPHA1,
    }
}

/// Moves a field to another name. A field that already has the new name does not belong to this version and is replaced.
fn rename(object: &mut Object<'_>, from: &str, to: &'static str) {
    let value = object.remove(from);
    object.remove(to);
    if let Some(value) = value {
        object.insert(to, value);
    }
}

/// The fields of a nested object, if there is one.
fn nested<'o, 'a>(object: &'o mut Object<'a>, name: &str) -> Option<&'o mut Object<'a>> {
    object.get_mut(name)?.as_object_mut()
}

/// An object with these fields.
fn object_of<'a, const N: usize>(fields: [(&'static str, Json<'a>); N]) -> Json<'a> {
    Json::Object(fields.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
