//! Makes a `MachineClass` of a class of an old kind. Pure.
//!
//! No field is dropped. A field that the table of the kind does not have is carried to the same place as its neighbours, and noted. A field
//! whose name differs only in upper and lower case gets the right name, because the Go original read both.

use std::collections::BTreeMap;

use machine_api::names::{self, MACHINE_CLASS_KIND, annotation, finalizer};
use serde_json::{Map, Value, json};

use super::table::{OldKind, SECRET_FIELDS, Table};

/// The metadata that the new class takes over. The rest belongs to the API server.
const METADATA: [&str; 7] =
    ["name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences"];

/// The new class, and what is special about its making.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// The `MachineClass`, in v1alpha1.
    pub class: Value,
    /// The notes, in the order of the fields.
    pub notes: Vec<Note>,
}

/// Something that a user should look at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    /// The table of the kind does not have the field.
    #[error("{old} is no known field; it was carried to {new}: see whether the driver reads it")]
    Unknown {
        /// Its path in the old class.
        old: String,
        /// Its path in the new class.
        new: String,
    },
    /// The name of the field has other upper and lower case letters.
    #[error("{old} was renamed to {new}, which drivers read")]
    Spelling {
        /// Its path in the old class.
        old: String,
        /// Its path in the new class.
        new: String,
    },
    /// Two spellings of one field, which differ in upper and lower case letters. One value would be lost.
    #[error("{old} is another spelling of a field that the class has too; both would become {new}: remove one of them")]
    Twice {
        /// The path of the second one in the old class.
        old: String,
        /// The path of both in the new class.
        new: String,
    },
    /// The program that set the finalizer does not know the new class, so the finalizer would stay.
    #[error("the finalizer {name} was not copied, because its owner set it for the old class")]
    Finalizer {
        /// The finalizer.
        name: String,
    },
    /// The field is outside `spec` and has no place in a `MachineClass`.
    #[error("{old} has no place in a MachineClass: move it into spec, or remove it")]
    NoPlace {
        /// Its path in the old class.
        old: String,
    },
}

impl Note {
    /// Whether the class must not be written, because a field would be lost.
    pub const fn is_obstacle(&self) -> bool {
        matches!(self, Self::NoPlace { .. } | Self::Twice { .. })
    }
}

/// The known fields of a kind as a tree.
#[derive(Debug, Default)]
struct Known<'a> {
    /// The fields of an object.
    fields: BTreeMap<&'a str, Known<'a>>,
    /// The elements of a list.
    elements: Option<Box<Known<'a>>>,
    /// A map with free keys.
    is_free: bool,
}

impl<'a> Known<'a> {
    fn of(table: &'a Table) -> Self {
        let mut root = Self::default();
        let secrets =
            SECRET_FIELDS.iter().map(|field| [*field, "name"]).chain(SECRET_FIELDS.map(|field| [field, "namespace"]));
        secrets.for_each(|path| root.add(path.into_iter()));
        table.fields.iter().for_each(|field| root.add(field.path.split('.')));
        root
    }

    fn add(&mut self, path: impl Iterator<Item = &'a str>) {
        let mut place = self;
        for step in path {
            if step == "*" {
                place.is_free = true;
                return;
            }
            place = place.fields.entry(step.trim_end_matches("[]")).or_default();
            if step.ends_with("[]") {
                place = place.elements.get_or_insert_default();
            }
        }
    }

    /// The name of a field as the table spells it.
    fn spelling(&self, name: &str) -> Option<&'a str> {
        self.fields
            .keys()
            .copied()
            .find(|known| *known == name)
            .or_else(|| self.fields.keys().copied().find(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// A place in both classes.
#[derive(Clone)]
struct Path {
    old: String,
    new: String,
}

impl Path {
    fn field(&self, old: &str, new: &str) -> Self {
        Self { old: format!("{}.{old}", self.old), new: format!("{}.{new}", self.new) }
    }

    fn element(&self, index: usize) -> Self {
        Self { old: format!("{}[{index}]", self.old), new: format!("{}[{index}]", self.new) }
    }
}

/// Makes the `MachineClass` of a class of this kind.
pub fn convert(kind: OldKind, old: &Value) -> Converted {
    let (table, mut notes) = (kind.table(), Vec::new());
    let known = Known::of(table);
    let mut carried = Map::new();
    let mut secrets = Map::new();
    let spec_path = Path { old: "spec".to_owned(), new: table.place.join(".") };
    for (name, value) in old.get("spec").and_then(Value::as_object).into_iter().flatten() {
        let name_of_secret = SECRET_FIELDS.into_iter().find(|field| known.spelling(name) == Some(*field));
        let (target, path) = match name_of_secret {
            Some(_) => (&mut secrets, Path { new: String::new(), ..spec_path.clone() }),
            None => (&mut carried, spec_path.clone()),
        };
        // The API server would drop a second spelling outside `providerSpec`.
        if let Some(right) = name_of_secret.filter(|right| name != right && !value.is_null())
            && !old["spec"][right].is_null()
        {
            notes.push(Note::Twice { old: format!("spec.{name}"), new: right.to_owned() });
            continue;
        }
        carry(name, value, &known, &old["spec"], &path, target, &mut notes);
    }
    for (name, value) in old.as_object().into_iter().flatten() {
        let is_known = ["apiVersion", "kind", "metadata", "spec"].contains(&name.as_str());
        if !is_known && !is_empty(value) {
            notes.push(Note::NoPlace { old: name.clone() });
        }
    }
    let (metadata, others) = metadata(&old["metadata"]);
    notes.extend(others.into_iter().map(|name| Note::Finalizer { name }));
    let mut class = json!({
        "apiVersion": names::API_VERSION_V1ALPHA1, "kind": MACHINE_CLASS_KIND, "metadata": metadata,
        "provider": table.provider,
    });
    let mut place = &mut class;
    for (depth, step) in table.place.iter().enumerate() {
        place = &mut place[*step];
        *place = json!({});
        for (name, value) in table.constants.iter().filter(|_| depth == 0) {
            place[*name] = Value::from(*value);
        }
    }
    if let Some(fields) = place.as_object_mut() {
        fields.extend(carried);
    }
    if let Some(fields) = class.as_object_mut() {
        fields.extend(secrets);
    }
    Converted { class, notes }
}

/// Carries a field of an object into the new object. `null` means absent, as in Go.
fn carry(
    name: &str,
    value: &Value,
    known: &Known<'_>,
    neighbours: &Value,
    path: &Path,
    target: &mut Map<String, Value>,
    notes: &mut Vec<Note>,
) {
    if value.is_null() {
        return;
    }
    let path = |new: &str| {
        let mut path = path.field(name, new);
        path.new = path.new.trim_start_matches('.').to_owned();
        path
    };
    let is_absent = |field: &str| neighbours.get(field).is_none_or(Value::is_null);
    let spelling = known.spelling(name).filter(|right| *right == name || is_absent(right));
    let Some((right, below)) = spelling.and_then(|right| known.fields.get_key_value(right)) else {
        let Path { old, new } = path(name);
        notes.push(Note::Unknown { old, new });
        target.insert(name.to_owned(), value.clone());
        return;
    };
    let place = path(right);
    if target.contains_key(*right) {
        let Path { old, new } = place;
        notes.push(Note::Twice { old, new });
        return;
    }
    if *right != name {
        notes.push(Note::Spelling { old: place.old.clone(), new: place.new.clone() });
    }
    target.insert((*right).to_owned(), inside(value, below, &place, notes));
}

/// The value with everything below it. A value of another form than the table says is carried as it is: the rules of admission judge it.
fn inside(value: &Value, known: &Known<'_>, path: &Path, notes: &mut Vec<Note>) -> Value {
    match (value, &known.elements) {
        (Value::Object(fields), _) if !known.is_free && !known.fields.is_empty() => {
            let mut target = Map::new();
            for (name, below) in fields {
                carry(name, below, known, value, path, &mut target, notes);
            }
            Value::Object(target)
        }
        (Value::Array(elements), Some(known)) => {
            let elements = elements.iter().enumerate();
            elements.map(|(index, element)| inside(element, known, &path.element(index), notes)).collect()
        }
        _ => value.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// The metadata of the new class, and the finalizers of other programs, which it does not get. kubectl's record of the last applied manifest
/// describes an object of the old kind, so it is left out.
fn metadata(old: &Value) -> (Value, Vec<String>) {
    let mut new = Map::new();
    for name in METADATA {
        if let Some(value) = old.get(name).filter(|value| !is_empty(value)) {
            new.insert(name.to_owned(), value.clone());
        }
    }
    if let Some(annotations) = new.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(annotation::KUBECTL_LAST_APPLIED);
        annotations.remove(annotation::MIGRATED);
        if annotations.is_empty() {
            new.remove("annotations");
        }
    }
    let mut others = Vec::new();
    if let Some(finalizers) = new.get_mut("finalizers").and_then(Value::as_array_mut) {
        others.extend(
            finalizers.iter().filter_map(Value::as_str).filter(|name| *name != finalizer::MACHINE).map(str::to_owned),
        );
        finalizers.retain(|name| *name == finalizer::MACHINE);
        if finalizers.is_empty() {
            new.remove("finalizers");
        }
    }
    (Value::Object(new), others)
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
