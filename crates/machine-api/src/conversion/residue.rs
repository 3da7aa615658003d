//! What one version says and the other cannot, carried in an annotation.
//!
//! A residue is the list of edits that turn "the mapped-back object" into the original. Each edit remembers what the
//! mapping gave at its place; when it gives something else later, somebody edited the field in the other version, and
//! **the edit wins**: that part of the residue is dropped. Lists keyed by type or name are edited per entry.
//!
//! A residue can be tampered with like any annotation, so that it is bound to the object's name, never touches
//! identity, and only holds what the version it is carried in cannot show: an edit that changes what is shown there is
//! dropped. Therefore nobody can change by it what admission has looked at.

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
    /// Name of the object it was made for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(borrow)]
    edits: Vec<Edit<'a>>,
}

/// One place, what it held originally, and what the mapping makes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Edit<'a> {
    at: Vec<Step>,
    /// The original value; absent means that the field was absent.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    put: Option<Json<'a>>,
    /// The mapped value; absent means that the mapping gives none.
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
    /// The text of what has to be done to `mapped` to get `original`, if there is anything to do. Conditions go first when
    /// it is too long.
    pub fn between(mapped: &Object<'_>, original: &Object<'_>, max_bytes: usize) -> Option<Omission> {
        let mut collected = Collected { max_bytes, ..Collected::default() };
        compare_fields(mapped, original, &mut Place::default(), &mut |at, put, was| {
            collected.add(&at.steps, put, was);
        });
        collected.into_text(name_of(original))
    }

    /// Reads an annotation; `None` if it holds no residue.
    pub fn parse(text: &str) -> Option<Residue<'static>> {
        let Residue { name, edits } = serde_json::from_str::<Residue<'_>>(text).ok()?;
        Some(Residue { name, edits: edits.into_iter().map(Edit::into_owned).collect() })
    }
}

impl<'a> Residue<'a> {
    /// Restores what the mapping lost of `source`, as far as nobody changed it since; answers the result and what it shows
    /// of itself. `map` makes the mapped object, `shown` maps an object back to the source's version; no edit may make it
    /// say there what the source does not say.
    ///
    /// All edits are written at once. If some of them show, the whole is made anew without those whose places show; if that
    /// still shows, without any. So the cost does not grow with the number of edits times the size of the object.
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
            let told = shown(restored.clone());
            let showing = Regions::of_new_differences(&told, source, &before);
            if showing.is_empty() {
                return (restored, told);
            }
            self.edits.retain(|edit| !showing.overlap(&edit.at));
            restored = map();
        }
        (restored, plain)
    }
}

/// What [`Residue::between`] found.
#[derive(Debug, PartialEq)]
pub(super) enum Omission {
    /// The text of the annotation.
    Carried(String),
    /// There is something to carry, but it is too long.
    TooLong,
}

/// Edits as they are found. What is longer than an annotation is not even copied.
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

/// A place while two objects are compared, with the hash of each of its beginnings.
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

    /// The field that tells the entries of the list at this place apart.
    fn key_field(&self) -> Option<&'static str> {
        if let Some(Step::Field(list_name)) = self.steps.last() { key_field(list_name) } else { None }
    }

    fn hash(&self) -> u64 {
        self.hashes.last().copied().unwrap_or_default()
    }
}

/// Hash of a place below another one. Keyed, so that nobody can make two places look the same.
fn hash_below<T: Hash>(place: u64, step: &T) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one((place, step))
}

/// Hashes of all beginnings of a place, the shortest first.
fn prefixes<T: Hash>(at: &[T]) -> impl Iterator<Item = u64> {
    at.iter().scan(0, |hash, step| {
        *hash = hash_below(*hash, step);
        Some(*hash)
    })
}

/// Told of each place where two objects differ: the place, the original value, the mapped one.
type Tell<'t, 'a> = dyn FnMut(&Place, Option<&Json<'a>>, Option<&Json<'a>>) + 't;

/// Every value is looked at once: what has members is entered, not compared as a whole first, and what both share is not
/// looked at.
fn compare<'a>(mapped: Option<&Json<'a>>, original: Option<&Json<'a>>, at: &mut Place, tell: &mut Tell<'_, 'a>) {
    match (mapped, original) {
        (Some(Json::Object(mapped)), Some(Json::Object(original))) => compare_fields(mapped, original, at, tell),
        (Some(Json::List(left)), Some(Json::List(right))) if Arc::ptr_eq(left, right) => {}
        (Some(Json::List(left)), Some(Json::List(right))) => match at.key_field() {
            Some(field) if have_the_same_keys(left, right, field) => {
                for (left, right) in left.iter().zip(right.iter()) {
                    at.push(Step::keyed(field, left.get(field).and_then(Json::as_str).unwrap_or_default()));
                    compare(Some(left), Some(right), at, tell);
                    at.pop();
                }
            }
            _ if left == right => {}
            _ => tell(at, original, mapped),
        },
        (mapped, original) if mapped == original => {}
        (mapped, original) => tell(at, original, mapped),
    }
}

fn compare_fields<'a>(mapped: &Object<'a>, original: &Object<'a>, at: &mut Place, tell: &mut Tell<'_, 'a>) {
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
        compare(mapped, original, at, tell);
        at.pop();
    }
}

/// The field by which the entries of a list are told apart, by the name of the list.
fn key_field(list_name: &str) -> Option<&'static str> {
    match list_name {
        "conditions" | "nodeConditions" | "machineConditions" | "machineSetCondition" => Some("type"),
        "failedMachines" => Some("name"),
        _ => None,
    }
}

/// Whether the entries of two lists have the same keys in the same order, each once.
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

/// Places in an object, remembered by their hashes.
#[derive(Debug, Default)]
struct Places(HashSet<u64>);

impl Places {
    /// Where two objects differ.
    fn of_differences(shown: &Object<'_>, source: &Object<'_>) -> Self {
        let mut places = Self::default();
        compare_fields(shown, source, &mut Place::default(), &mut |at, _, _| {
            places.0.insert(at.hash());
        });
        places
    }

    /// Whether the place is one of these, or below one.
    fn cover(&self, at: &Place) -> bool {
        at.hashes.iter().any(|beginning| self.0.contains(beginning))
    }
}

/// Regions of an object that the two versions place differently, by a name that both have in common.
#[derive(Debug, Default)]
struct Regions {
    /// The regions themselves.
    whole: HashSet<u64>,
    /// All that lies around them.
    around: HashSet<u64>,
}

impl Regions {
    /// Where an object shows what its source does not say, beyond the places where it did before.
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

    /// Whether a place is in one of these regions, or around one.
    fn overlap(&self, at: &[Step]) -> bool {
        let region = region(at);
        prefixes(&region).last().is_none_or(|whole| self.around.contains(&whole))
            || prefixes(&region).any(|prefix| self.whole.contains(&prefix))
    }
}

/// The part of an object that a place belongs to, named alike in both versions: what is mapped together is one part.
/// Naming a part too large costs no more than edits that need not have gone.
fn region(at: &[Step]) -> Vec<&str> {
    let words: Vec<&str> = at.iter().take(4).map(Step::name).collect();
    match words.as_slice() {
        ["metadata", "labels", label::NODE, ..] | ["status", "nodeRef", ..] => vec!["node"],
        ["metadata", "annotations", annotation::ROLLBACK_TO, ..] | ["spec", "rollbackTo", ..] => vec!["rollback"],
        ["metadata", map, key, ..] => vec!["metadata", map, key],
        ["spec", "template", "spec"] => vec!["template"],
        ["spec", "template", "spec", field, ..] => vec!["template", machine_field(field)],
        ["spec", field, below @ ..] => match (machine_field(field), below.first()) {
            // A template is its metadata and the machine specification, which is another region.
            ("template", Some(part)) => vec!["template", part],
            (field, _) => vec![class_field(field)],
        },
        ["status", field, ..] => vec!["status", status_field(field)],
        [field, ..] => vec![class_field(field)],
        [] => Vec::new(),
    }
}

/// Fields of a machine specification that v1beta1 has in `lifecycle`, and the class.
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

/// Fields of a class, which v1beta1 has in `spec`.
fn class_field(field: &str) -> &str {
    if field == "userDataSecretRef" { "secretRef" } else { field }
}

/// Fields of a status under their names in v1alpha1, or of the part that they belong to.
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

/// Where the entries of keyed lists stand, looked up once per list.
#[derive(Debug, Default)]
struct Lists(HashMap<u64, HashMap<String, usize>>);

impl Lists {
    /// The place of an entry; of several the first.
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

    /// The place of an entry that was looked up before.
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

    /// The text, cut to the longest key that Kubernetes knows, so that a longer one is not read for each place below it.
    fn name(&self) -> &str {
        const LONGEST_KEY: usize = 317;
        self.text().get(..LONGEST_KEY).unwrap_or(self.text())
    }

    /// The field of an entry that must say this; none for a step into an object.
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

/// Of metadata only labels and annotations may change; an API server would refuse the rest.
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

    /// Whether the mapping still gives what it gave. Where the surroundings are gone, nothing is restored.
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

    /// Writes the edit of a list's entry. Lists of other entries are edited whole, so that no single entry is ever taken out.
    fn write(&self, object: &mut Object<'a>, lists: &Lists) {
        let (Some((keyed, parents)), Some(put)) = (self.at.split_last(), &self.put) else { return };
        let place = prefixes(parents).last().unwrap_or_default();
        let entry = at_mut(object, parents, lists).and_then(|list| below_mut(list, keyed, place, lists));
        if let Some(entry) = entry {
            *entry = put.clone();
        }
    }
}

/// The name of a field, and what it is to be; nothing where it goes.
type FieldEdit<'a> = (Cow<'a, str>, Option<Json<'a>>);

/// Writes edits into an object for which their guards held; one may have changed the surroundings of another, and then
/// that is not written. Those of one object's fields are written together.
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

/// The value at a place that is not the object itself.
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
