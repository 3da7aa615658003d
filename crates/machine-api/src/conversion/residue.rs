//! The data of one version that the other version can't represent, stored in an annotation.
//!
//! A residue is a list of edits. The edits turn the object that was mapped back into the original object. Each edit also stores the mapped value of
//! its place. If the mapping gives another value later, a user has edited the field in the other version, and **that change wins**: the edit is
//! dropped. Lists with a type or a name as key are edited per entry.
//!
//! Users can change a residue like any annotation. So a residue belongs to an object by its name, never changes the identity of the object, and has
//! only data that the version with the annotation can't represent: an edit that changes visible data is dropped. So a residue can't change what
//! admission has checked.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};

use super::Object;
use crate::names::{annotation, label};
use kube_values::json::Json;

/// The edits of one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Residue<'a> {
    /// The name of the object of this residue.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(borrow)]
    edits: Vec<Edit<'a>>,
}

/// A place, its original value, and its mapped value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Edit<'a> {
    at: Vec<Step>,
    /// The original value. `None` if the field was absent.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    put: Option<Json<'a>>,
    /// The mapped value. `None` if the mapping gives no value.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    was: Option<Json<'a>>,
}

/// One step into an object or a keyed list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
enum Step {
    /// A field.
    Field(String),
    /// The entry of a list with this type.
    Type {
        /// The type.
        #[serde(rename = "type")]
        key: String,
    },
    /// The entry of a list with this name.
    Name {
        /// The name.
        #[serde(rename = "name")]
        key: String,
    },
}

impl Residue<'_> {
    /// The residue that turns `mapped` into `original`. `None` if they are equal. If it is too long, the edits of conditions are left out.
    pub fn between(mapped: &Object<'_>, original: &Object<'_>, max_bytes: usize) -> Option<Omission> {
        let mut collected = Collected { max_bytes, ..Collected::default() };
        compare_fields(mapped, original, &mut Place::default(), &mut |at, put, was| {
            collected.add(&at.steps, put, was);
        });
        collected.into_text(name_of(original))
    }

    /// Reads an annotation. `None` if it is no residue.
    pub fn parse(text: &str) -> Option<Residue<'static>> {
        let Residue { name, edits } = serde_json::from_str::<Residue<'_>>(text).ok()?;
        Some(Residue { name, edits: edits.into_iter().map(Edit::into_owned).collect() })
    }
}

impl<'a> Residue<'a> {
    /// Restores the data of `source` that the mapping dropped, unless a user has changed it since. Returns the restored object, and the same object
    /// mapped back to the version of `source`. `map` maps the source. `shown` maps an object back to the version of the source. No edit may change
    /// the object that is mapped back.
    ///
    /// All edits are written at once. If some of them are visible in the object that is mapped back, the object is made again without these edits. If
    /// edits are still visible, it is made without any edit. So the cost is not the number of edits times the size of the object.
    pub fn apply(
        mut self,
        source: &Object<'a>,
        map: impl Fn() -> Object<'a>,
        shown: impl Fn(Object<'a>) -> Object<'a>,
    ) -> (Object<'a>, Object<'a>) {
        let mapped = map();
        let plain = shown(mapped.clone());
        if self.name != name_of(&mapped) {
            return (mapped, plain);
        }
        let before = Places::of_differences(&plain, source);
        let mut lists = Lists::default();
        self.edits.retain(|edit| edit.is_allowed() && edit.guard_holds(&mapped, &mut lists));
        let mut restored = mapped;
        for _ in 0..2 {
            if self.edits.is_empty() {
                break;
            }
            write_all(&self.edits, &mut restored, &lists);
            let back = shown(restored.clone());
            let visible = Regions::of_new_differences(&back, source, &before);
            if visible.is_empty() {
                return (restored, back);
            }
            self.edits.retain(|edit| !visible.overlap(&edit.at));
            restored = map();
        }
        (restored, plain)
    }
}

/// The result of [`Residue::between`].
#[derive(Debug, PartialEq)]
pub(super) enum Omission {
    /// The text of the annotation.
    Carried(String),
    /// The text is too long.
    TooLong,
}

/// The edits that were found. Edits over the limit are counted but not copied.
#[derive(Default)]
struct Collected<'a> {
    max_bytes: usize,
    edits: Vec<Edit<'a>>,
    edits_bytes: usize,
    conditions: Vec<Edit<'a>>,
    conditions_bytes: usize,
}

impl<'a> Collected<'a> {
    fn add(&mut self, at: &[Step], put: Option<&Json<'a>>, was: Option<&Json<'a>>) {
        if !is_allowed(at) {
            return;
        }
        let (edits, bytes) = if is_about_conditions(at) {
            (&mut self.conditions, &mut self.conditions_bytes)
        } else {
            (&mut self.edits, &mut self.edits_bytes)
        };
        for part in [put, was].into_iter().flatten() {
            *bytes = bytes.saturating_add(part.text_length_up_to(self.max_bytes));
        }
        *bytes = at.iter().fold(*bytes, |bytes, step| bytes.saturating_add(step.text().len() + 2));
        if *bytes <= self.max_bytes {
            edits.push(Edit { at: at.to_vec(), put: put.cloned(), was: was.cloned() });
        }
    }

    fn into_text(self, name: String) -> Option<Omission> {
        if self.edits_bytes == 0 && self.conditions_bytes == 0 {
            return None;
        }
        if self.edits_bytes > self.max_bytes {
            return Some(Omission::TooLong);
        }
        let without_conditions = self.edits.len();
        let mut residue = Residue { name, edits: self.edits };
        let fitting = |residue: &Residue<'_>| {
            let text = serde_json::to_string(residue).ok()?;
            (text.len() <= self.max_bytes && !residue.edits.is_empty()).then_some(text)
        };
        let mut carried = None;
        if self.conditions_bytes <= self.max_bytes {
            residue.edits.extend(self.conditions);
            carried = fitting(&residue);
            residue.edits.truncate(without_conditions);
        }
        let carried = carried.or_else(|| fitting(&residue));
        Some(carried.map_or(Omission::TooLong, Omission::Carried))
    }
}

fn name_of(object: &Object<'_>) -> String {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Json::as_str);
    name.unwrap_or_default().to_owned()
}

/// A place during a comparison, with the hash of each of its prefixes.
#[derive(Default)]
struct Place {
    steps: Vec<Step>,
    hashes: Vec<u64>,
}

impl Place {
    fn push(&mut self, step: Step) {
        self.hashes.push(hash_below(self.hash(), &step));
        self.steps.push(step);
    }

    fn pop(&mut self) {
        self.hashes.pop();
        self.steps.pop();
    }

    /// The field that is the key of the list at this place.
    fn key_field(&self) -> Option<&'static str> {
        if let Some(Step::Field(list_name)) = self.steps.last() { key_field(list_name) } else { None }
    }

    fn hash(&self) -> u64 {
        self.hashes.last().copied().unwrap_or_default()
    }
}

/// The hash of a place below another place. The hash has a random key, so that users can't make two places collide.
fn hash_below<T: Hash>(place: u64, step: &T) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one((place, step))
}

/// The hashes of all prefixes of a place, the shortest first.
fn prefixes<T: Hash>(at: &[T]) -> impl Iterator<Item = u64> {
    at.iter().scan(0, |hash, step| {
        *hash = hash_below(*hash, step);
        Some(*hash)
    })
}

/// Called for each place where two objects differ, with the place, the original value, and the mapped value.
type Report<'t, 'a> = dyn FnMut(&Place, Option<&Json<'a>>, Option<&Json<'a>>) + 't;

/// Compares two values and visits every part only once. Objects and keyed lists are entered without comparing them as a whole first. Parts that both
/// values share are skipped.
fn compare<'a>(mapped: Option<&Json<'a>>, original: Option<&Json<'a>>, at: &mut Place, report: &mut Report<'_, 'a>) {
    match (mapped, original) {
        (Some(Json::Object(mapped)), Some(Json::Object(original))) => compare_fields(mapped, original, at, report),
        (Some(Json::List(left)), Some(Json::List(right))) if Arc::ptr_eq(left, right) => {}
        (Some(Json::List(left)), Some(Json::List(right))) => match at.key_field() {
            Some(field) if have_the_same_keys(left, right, field) => {
                for (left, right) in left.iter().zip(right.iter()) {
                    at.push(Step::keyed(field, left.get(field).and_then(Json::as_str).unwrap_or_default()));
                    compare(Some(left), Some(right), at, report);
                    at.pop();
                }
            }
            _ if left == right => {}
            _ => report(at, original, mapped),
        },
        (mapped, original) if mapped == original => {}
        (mapped, original) => report(at, original, mapped),
    }
}

fn compare_fields<'a>(mapped: &Object<'a>, original: &Object<'a>, at: &mut Place, report: &mut Report<'_, 'a>) {
    if mapped.is_shared_with(original) {
        return;
    }
    let pairs = mapped.beside(original).map(|(name, mapped, original)| (name, Some(mapped), original));
    let new = original.beside(mapped).filter(|(_, _, mapped)| mapped.is_none());
    for (name, mapped, original) in pairs.chain(new.map(|(name, original, _)| (name, None, Some(original)))) {
        let is_leaf = |value: Option<&Json<'_>>| !matches!(value, Some(Json::Object(_) | Json::List(_)));
        if is_leaf(mapped) && is_leaf(original) && mapped == original {
            continue;
        }
        at.push(Step::Field(name.to_owned()));
        compare(mapped, original, at, report);
        at.pop();
    }
}

/// The key field of the entries of a list, by the name of the list.
fn key_field(list_name: &str) -> Option<&'static str> {
    match list_name {
        "conditions" | "nodeConditions" | "machineConditions" | "machineSetCondition" => Some("type"),
        "failedMachines" => Some("name"),
        _ => None,
    }
}

/// Whether two lists have the same keys in the same order, without duplicates.
fn have_the_same_keys(left: &[Json<'_>], right: &[Json<'_>], key_field: &str) -> bool {
    fn key<'l>(entry: &'l Json<'_>, key_field: &str) -> Option<&'l str> {
        entry.get(key_field)?.as_str()
    }
    if left.len() != right.len() {
        return false;
    }
    let mut keys = Vec::with_capacity(left.len());
    for (left, right) in left.iter().zip(right) {
        match (key(left, key_field), key(right, key_field)) {
            (Some(own), Some(other)) if own == other => keys.push(own),
            _ => return false,
        }
    }
    keys.sort_unstable();
    keys.is_sorted_by(|one, next| one < next)
}

/// Places in an object, stored as hashes.
#[derive(Debug, Default)]
struct Places(HashSet<u64>);

impl Places {
    /// The places where two objects differ.
    fn of_differences(shown: &Object<'_>, source: &Object<'_>) -> Self {
        let mut places = Self::default();
        compare_fields(shown, source, &mut Place::default(), &mut |at, _, _| {
            places.0.insert(at.hash());
        });
        places
    }

    /// Whether the place is one of these places, or below one.
    fn cover(&self, at: &Place) -> bool {
        at.hashes.iter().any(|beginning| self.0.contains(beginning))
    }
}

/// Regions of an object. The two versions have a region at different places, and it has the same name here for both.
#[derive(Debug, Default)]
struct Regions {
    /// The regions themselves.
    whole: HashSet<u64>,
    /// The places above the regions.
    around: HashSet<u64>,
}

impl Regions {
    /// The regions where an object differs from its source, without the places where it differed before.
    fn of_new_differences(shown: &Object<'_>, source: &Object<'_>, before: &Places) -> Self {
        let mut regions = Self::default();
        compare_fields(shown, source, &mut Place::default(), &mut |at, _, _| {
            if !before.cover(at) {
                let region = region(&at.steps);
                regions.around.extend(prefixes(&region));
                regions.whole.extend(prefixes(&region).last());
            }
        });
        regions
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    /// Whether a place is in one of these regions, or above one.
    fn overlap(&self, at: &[Step]) -> bool {
        let region = region(at);
        prefixes(&region).last().is_none_or(|whole| self.around.contains(&whole))
            || prefixes(&region).any(|prefix| self.whole.contains(&prefix))
    }
}

/// The region of a place, with the same name in both versions. Parts that are mapped together are one region. If a region is larger than necessary,
/// the only cost is that more edits are dropped.
fn region(at: &[Step]) -> Vec<&str> {
    let words: Vec<&str> = at.iter().take(4).map(Step::name).collect();
    match words.as_slice() {
        ["metadata", "labels", label::NODE, ..] | ["status", "nodeRef", ..] => vec!["node"],
        ["metadata", "annotations", annotation::ROLLBACK_TO, ..] | ["spec", "rollbackTo", ..] => vec!["rollback"],
        ["metadata", map, key, ..] => vec!["metadata", map, key],
        ["spec", "template", "spec"] => vec!["template"],
        ["spec", "template", "spec", field, ..] => vec!["template", machine_field(field)],
        ["spec", field, below @ ..] => match (machine_field(field), below.first()) {
            // The machine specification of a template is its own region.
            ("template", Some(part)) => vec!["template", part],
            (field, _) => vec![class_field(field)],
        },
        ["status", field, ..] => vec!["status", status_field(field)],
        [field, ..] => vec![class_field(field)],
        [] => Vec::new(),
    }
}

/// The region of a field of the machine specification: the class, or the fields that v1beta1 has in `lifecycle`.
fn machine_field(field: &str) -> &str {
    match field {
        "class" | "classRef" => "class",
        "lifecycle"
        | "drainTimeout"
        | "creationTimeout"
        | "healthTimeout"
        | "inPlaceUpdateTimeout"
        | "machinePreserveTimeout"
        | "disableHealthTimeout"
        | "maxEvictRetries"
        | "nodeConditions" => "lifecycle",
        other => other,
    }
}

/// The region of a field of a class, which v1beta1 has in `spec`.
fn class_field(field: &str) -> &str {
    if field == "userDataSecretRef" { "secretRef" } else { field }
}

/// The region of a field of a status: its name in v1alpha1, or the name of its part.
fn status_field(field: &str) -> &str {
    match field {
        "conditions" | "nodeConditions" | "machineConditions" | "machineSetCondition" => "conditions",
        "operation" | "lastOperation" => "lastOperation",
        "currentStatus" | "phase" | "phaseUpdateTime" | "lastUpdateTime" | "timeoutActive" | "preserveExpiryTime" => {
            "currentStatus"
        }
        other => other,
    }
}

/// The indexes of the entries of keyed lists. Each list is searched only once.
#[derive(Debug, Default)]
struct Lists(HashMap<u64, HashMap<String, usize>>);

impl Lists {
    /// The index of an entry, or of the first entry with the same key.
    fn place(&mut self, list: u64, step: &Step, value: &Json<'_>) -> Option<usize> {
        let key_field = step.key_field()?;
        let elements = value.as_array()?;
        let places = self.0.entry(hash_below(list, &key_field)).or_insert_with(|| {
            let mut places = HashMap::new();
            for (index, entry) in elements.iter().enumerate() {
                if let Some(key) = entry.get(key_field).and_then(Json::as_str) {
                    places.entry(key.to_owned()).or_insert(index);
                }
            }
            places
        });
        places.get(step.text()).copied()
    }

    /// The index of an entry that was searched before.
    fn known(&self, list: u64, step: &Step) -> Option<usize> {
        let places = self.0.get(&hash_below(list, &step.key_field()?))?;
        places.get(step.text()).copied()
    }
}

impl Step {
    fn keyed(key_field: &str, key: &str) -> Self {
        let key = key.to_owned();
        if key_field == "type" { Self::Type { key } } else { Self::Name { key } }
    }

    fn text(&self) -> &str {
        match self {
            Self::Field(name) => name,
            Self::Type { key } | Self::Name { key } => key,
        }
    }

    /// The text, cut to the longest key of Kubernetes, so that a longer text is not read again for each place below it.
    fn name(&self) -> &str {
        const LONGEST_KEY: usize = 317;
        self.text().get(..LONGEST_KEY).unwrap_or(self.text())
    }

    /// The key field of the entry. `None` for a step into an object.
    fn key_field(&self) -> Option<&'static str> {
        match self {
            Self::Field(_) => None,
            Self::Type { .. } => Some("type"),
            Self::Name { .. } => Some("name"),
        }
    }

    fn is_field(&self, wanted: &[&str]) -> bool {
        matches!(self, Self::Field(name) if wanted.contains(&name.as_str()))
    }
}

/// Metadata may change only in labels and annotations. An API server would refuse other changes.
fn is_allowed(at: &[Step]) -> bool {
    match at {
        [] => false,
        [first, ..] if first.is_field(&["apiVersion", "kind"]) => false,
        [first, rest @ ..] if first.is_field(&["metadata"]) => {
            rest.first().is_some_and(|second| second.is_field(&["labels", "annotations"]))
        }
        _ => true,
    }
}

fn is_about_conditions(at: &[Step]) -> bool {
    matches!(at, [status, list, ..] if status.is_field(&["status"])
        && list.is_field(&["conditions", "machineConditions", "machineSetCondition"]))
}

impl<'a> Edit<'a> {
    fn into_owned(self) -> Edit<'static> {
        let Self { at, put, was } = self;
        Edit { at, put: put.map(Json::into_owned), was: was.map(Json::into_owned) }
    }

    fn is_allowed(&self) -> bool {
        is_allowed(&self.at)
    }

    /// Whether the mapping still gives the stored value. `false` if the parents of the place no longer exist.
    fn guard_holds(&self, mapped: &Object<'_>, lists: &mut Lists) -> bool {
        let (Some((Step::Field(first), below)), was) = (self.at.split_first(), self.was.as_ref()) else { return false };
        let Some((last, parents)) = below.split_last() else { return mapped.get(first) == was };
        let Some(mut value) = mapped.get(first) else { return false };
        let mut places = prefixes(&self.at);
        for step in parents {
            let place = places.next().unwrap_or_default();
            let next = match step {
                Step::Field(name) => value.get(name),
                keyed => entry(value, keyed, place, lists),
            };
            let Some(next) = next else { return false };
            value = next;
        }
        let place = places.next().unwrap_or_default();
        match last {
            Step::Field(name) => value.as_object().is_some_and(|fields| fields.get(name) == was),
            keyed => value.is_array() && entry(value, keyed, place, lists) == was,
        }
    }

    /// Writes the edit of an entry of a list. Lists with different entries are edited as a whole, so that no single entry is removed.
    fn write(&self, object: &mut Object<'a>, lists: &Lists) {
        let (Some((keyed, parents)), Some(put)) = (self.at.split_last(), &self.put) else { return };
        let place = prefixes(parents).last().unwrap_or_default();
        let entry = at_mut(object, parents, lists).and_then(|list| below_mut(list, keyed, place, lists));
        if let Some(entry) = entry {
            *entry = put.clone();
        }
    }
}

/// The name of a field and its new value. `None` removes the field.
type FieldEdit<'a> = (Cow<'a, str>, Option<Json<'a>>);

/// Writes the edits whose guards hold. If an edit has removed the parents of another edit, the other edit is not written. All edits of the fields of
/// one object are written together.
fn write_all<'a>(edits: &[Edit<'a>], object: &mut Object<'a>, lists: &Lists) {
    let mut of_fields: BTreeMap<&[Step], Vec<FieldEdit<'a>>> = BTreeMap::new();
    for edit in edits {
        match edit.at.split_last() {
            Some((Step::Field(name), parents)) => {
                of_fields.entry(parents).or_default().push((Cow::Owned(name.clone()), edit.put.clone()));
            }
            Some(_) => edit.write(object, lists),
            None => {}
        }
    }
    for (parents, edits) in of_fields {
        let fields = if parents.is_empty() {
            Some(&mut *object)
        } else {
            at_mut(object, parents, lists).and_then(Json::as_object_mut)
        };
        if let Some(fields) = fields {
            fields.edit(edits);
        }
    }
}

/// The value at a place below the object.
fn at_mut<'o, 'a>(object: &'o mut Object<'a>, at: &[Step], lists: &Lists) -> Option<&'o mut Json<'a>> {
    let (Step::Field(first), below) = at.split_first()? else { return None };
    let mut value = object.get_mut(first)?;
    for (step, place) in below.iter().zip(prefixes(at)) {
        value = below_mut(value, step, place, lists)?;
    }
    Some(value)
}

fn entry<'o, 'a>(list: &'o Json<'a>, keyed: &Step, place: u64, lists: &mut Lists) -> Option<&'o Json<'a>> {
    let index = lists.place(place, keyed, list)?;
    list.as_array()?.get(index)
}

fn below_mut<'o, 'a>(value: &'o mut Json<'a>, step: &Step, place: u64, lists: &Lists) -> Option<&'o mut Json<'a>> {
    match step {
        Step::Field(name) => value.as_object_mut()?.get_mut(name),
        keyed => {
            let entry = value.as_array_mut()?.get_mut(lists.known(place, keyed)?)?;
            let still_it = entry.get(keyed.key_field()?)?.as_str() == Some(keyed.text());
            still_it.then_some(entry)
        }
    }
}
