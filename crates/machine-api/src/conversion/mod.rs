//! Conversion between v1alpha1 and v1beta1, without loss in either direction (spec/api-and-admission §8).
//!
//! Works on JSON, because it must be total: whatever the loose schema could ever store converts, nonsense included. A
//! failure here would break every read of that object in the other version. The objects on the way share what they have in
//! common ([`Json`]), so that labels or a driver's configuration are in memory once.
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

use std::borrow::Cow;

use serde_json::Value;

use self::residue::{Omission, Residue};
use crate::{
    kind::{ApiVersion, Kind},
    names::{self, annotation},
};
use kube_values::json::{Json, Members};

type Object<'a> = Members<'a>;

/// The most that conversion puts into an annotation, and reads from one, in bytes; all annotations of an object together
/// may have 256 KiB.
pub const MAX_RESIDUE_BYTES: usize = 32 * 1024;

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
pub struct Converted<T> {
    /// The object in the wanted version.
    pub object: T,
    /// What was lost on the way; almost always nothing.
    pub losses: Vec<Loss>,
}

/// How data of the other version got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The annotation was not written by this program, or was edited; or it is longer than any that is written, and stays.
    UnreadableResidue,
    /// The annotation would have been too large, or the object has no place for it.
    OmittedResidue,
}

/// Converts an object of ours to `desired`, a `group/version`. Fails only for unknown kinds and versions.
pub fn convert(object: &Value, desired: &str) -> Result<Value, ConversionError> {
    convert_counting_losses(object, desired).map(|converted| converted.object)
}

/// As [`convert`], and says what was lost.
pub fn convert_counting_losses(object: &Value, desired: &str) -> Result<Converted<Value>, ConversionError> {
    let Converted { object, losses } = convert_json(Json::from(object), desired)?;
    Ok(Converted { object: object.to_value(), losses })
}

/// As [`convert_counting_losses`], of an object as it was read.
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
    // What the wanted version carries is made anew below.
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

/// What an object carries of the other version.
enum Carried {
    Nothing,
    Residue(Residue<'static>),
    /// Something that this program never wrote.
    Unreadable,
}

/// Takes what an object of this version carries of the other one. An annotation that is longer than any that is ever written
/// is not read; it stays, as any other annotation does.
fn take_residue(object: &mut Object<'_>, version: ApiVersion) -> Carried {
    let name = residue_annotation(version);
    let text = annotations(object).and_then(|annotations| annotations.get(name)?.as_str());
    if text.is_some_and(|text| text.len() > MAX_RESIDUE_BYTES) {
        return Carried::Unreadable;
    }
    let Some(text) = remove_annotation(object, name) else { return Carried::Nothing };
    Residue::parse(&text).map_or(Carried::Unreadable, Carried::Residue)
}

/// Maps the fields that both versions can express and leaves out the rest. What is mapped back says of what it was made, its
/// `origin`, and shares with that what is the same.
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

/// The object without what means nothing: null, which is the same as absent, and empty metadata. A driver's
/// configuration is not ours to tidy.
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

/// The value without nulls in objects; nothing if it has none.
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

/// Takes an annotation off; the text is empty if it was no string.
fn remove_annotation<'a>(object: &mut Object<'a>, name: &str) -> Option<Cow<'a, str>> {
    annotations(object)?.get(name)?;
    let removed = nested(nested(object, "metadata")?, "annotations")?.remove(name)?;
    forget_empty_metadata(object);
    Some(if let Json::Text(text) = removed { text } else { Cow::Borrowed("") })
}

/// Puts an annotation on; false if the object's metadata has no place for it.
fn put_annotation(object: &mut Object<'_>, name: &'static str, text: String) -> bool {
    let Some(metadata) = object.get_or_insert_object("metadata").as_object_mut() else { return false };
    let Some(annotations) = metadata.get_or_insert_object("annotations").as_object_mut() else { return false };
    annotations.insert(name, text);
    true
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
fn rename(object: &mut Object<'_>, from: &str, to: &'static str) {
    let value = object.remove(from);
    object.remove(to);
    if let Some(value) = value {
        object.insert(to, value);
    }
}

/// The fields of a nested object, if it is one.
fn nested<'o, 'a>(object: &'o mut Object<'a>, name: &str) -> Option<&'o mut Object<'a>> {
    object.get_mut(name)?.as_object_mut()
}

/// An object of these fields.
fn object_of<'a, const N: usize>(fields: [(&'static str, Json<'a>); N]) -> Json<'a> {
    Json::Object(fields.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
