//! What the definitions of the last release accept is accepted by today's (spec/packaging §8.2 PK-114).
//!
//! Schemas that differ only in their texts accept the same objects. For all others, generated objects that the release accepts are given to
//! today's schema. `tests/fixtures/releases` has the definitions of each release.

use std::{collections::BTreeMap, fs, path::PathBuf};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::{compile::structural, rules, validate};
use kube_protocol::negotiate;

/// Objects per schema that differs.
const GENERATED: u32 = 10_000;
/// Texts that patterns and rules of our schemas may accept or refuse.
const TEXTS: [&str; 12] =
    ["", "a", "A", "name-1", "5m", "1h30m0s", "-1s", "10%", "a/b", "example.com/key", "True", "2026-01-01T00:00:00Z"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &std::path::Path) -> Value {
    negotiate::yaml(&fs::read(path).unwrap()).unwrap()
}

/// The schemas of the definitions in a folder, by kind and version.
fn schemas(folder: &std::path::Path) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("machine.sapcloud.io_") {
            continue;
        }
        let definition = read(&path);
        for version in definition["spec"]["versions"].as_array().unwrap() {
            let name = format!("{} {}", definition["spec"]["names"]["kind"], version["name"]);
            found.insert(name.replace('"', ""), version["schema"]["openAPIV3Schema"].clone());
        }
    }
    found
}

/// Today's schemas beside the schemas of the last release.
fn compared() -> Vec<(String, Value, Value)> {
    let releases = root().join("tests/fixtures/releases");
    let mut versions: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(releases)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name.split('.').map(|part| part.parse().unwrap()).collect(), path)
        })
        .collect();
    versions.sort();
    let before = schemas(&versions.last().unwrap().1.join("crds"));
    let mut now = schemas(&root().join("crds"));
    assert_eq!(before.len(), 8, "four kinds in two versions");
    before
        .into_iter()
        .map(|(name, before)| {
            let now = now.remove(&name).unwrap_or_else(|| panic!("{name} is not defined any more"));
            (name, before, now)
        })
        .collect()
}

/// A schema without the texts that decide nothing.
fn without_texts(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut kept = Map::new();
            for (name, below) in fields {
                let is_text =
                    ["description", "message", "messageExpression", "reason", "fieldPath"].contains(&name.as_str());
                // A property may have such a name; then its value is a schema.
                if !(is_text && below.is_string()) {
                    kept.insert(name.clone(), without_texts(below));
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(without_texts).collect(),
        other => other.clone(),
    }
}

/// A compiled schema.
struct Judge(super::Schema);

impl Judge {
    fn of(schema: &Value) -> Self {
        Self(structural(schema, "").unwrap_or_else(|causes| panic!("{causes:?}")))
    }

    fn complaint(&self, object: &Value) -> Option<String> {
        let mut found = Vec::new();
        validate::check(object, None, &self.0, "", &mut found);
        if found.is_empty() {
            found = rules::check(object, None, &self.0);
        }
        (!found.is_empty()).then(|| format!("{found:?}"))
    }
}

/// A value that a schema may accept. Sometimes it doesn't.
fn drawn(schema: &Value, random: &mut ChaCha8Rng) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        return words[random.random_range(0..words.len())].clone();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return if random.random_bool(0.5) { json!(random.random_range(0..4)) } else { json!(text(random)) };
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") => json!(text(random)),
        Some("integer") => {
            let least = schema["minimum"].as_i64().unwrap_or(-1);
            let most = schema["maximum"].as_i64().unwrap_or(1000);
            let edges = [least, least + 1, 5.clamp(least, most), most];
            json!(edges[random.random_range(0..edges.len())])
        }
        Some("number") => json!(0.5),
        Some("boolean") => json!(random.random_bool(0.5)),
        Some("array") => {
            let length = random.random_range(0..3);
            (0..length).map(|_| drawn(&schema["items"], random)).collect()
        }
        _ => Value::Object(drawn_fields(schema, random)),
    }
}

fn drawn_fields(schema: &Value, random: &mut ChaCha8Rng) -> Map<String, Value> {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut fields = Map::new();
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        if required.iter().any(|required| required == name) || random.random_bool(0.4) {
            fields.insert(name.clone(), drawn(below, random));
        }
    }
    if schema["additionalProperties"].is_object() {
        for _ in 0..random.random_range(0..3) {
            fields.insert(text(random).to_owned(), drawn(&schema["additionalProperties"], random));
        }
    }
    fields
}

fn text(random: &mut ChaCha8Rng) -> &'static str {
    TEXTS[random.random_range(0..TEXTS.len())]
}

/// An object that `before` accepts and `now` refuses, among `count` objects that `before` accepts, with the complaint.
fn newly_refused(before: &Value, now: &Value, count: u32) -> Option<(Value, String)> {
    let (old, new) = (Judge::of(before), Judge::of(now));
    let mut random = ChaCha8Rng::seed_from_u64(114);
    let (mut accepted, mut tries) = (0, 0);
    while accepted < count && tries < 100 * count {
        tries += 1;
        let object = Value::Object(drawn_fields(before, &mut random));
        if old.complaint(&object).is_none() {
            accepted += 1;
            if let Some(complaint) = new.complaint(&object) {
                return Some((object, complaint));
            }
        }
    }
    assert!(accepted > count / 10, "only {accepted} of {tries} generated objects are valid");
    None
}

#[test]
fn pk_114_what_the_last_release_accepted_is_accepted() {
    for (name, before, now) in compared() {
        if without_texts(&before) == without_texts(&now) {
            continue;
        }
        if let Some((object, complaint)) = newly_refused(&before, &now, GENERATED) {
            panic!(
                "{name}: the last release accepts this object, and this program refuses it: {complaint}\n{object:#}"
            );
        }
    }
}

#[test]
fn pk_114_objects_of_the_fixtures_are_valid_for_both() {
    let all = compared();
    let mut judged = 0;
    for file in ["machineclasses", "machinedeployments", "machines", "machinesets"] {
        let list = read(&root().join(format!("tests/fixtures/go/{file}.json")));
        for object in list["items"].as_array().unwrap() {
            let name = format!("{} v1alpha1", object["kind"].as_str().unwrap());
            let (_, before, now) = all.iter().find(|(known, _, _)| *known == name).unwrap();
            for schema in [before, now] {
                assert_eq!(Judge::of(schema).complaint(object), None, "{name} {}", object["metadata"]["name"]);
            }
            judged += 1;
        }
    }
    assert!(judged > 30, "{judged}");
}

#[rstest::rstest]
#[case::a_bound(json!({"maximum": 999}), "/properties/spec/properties/replicas")]
#[case::a_field_is_demanded(json!({"required": ["name"]}), "/properties/spec")]
#[case::a_word_is_gone(json!({"enum": ["Recreate"]}), "/properties/spec/properties/type")]
#[case::a_rule(json!({"x-kubernetes-validations": [{"rule": "!has(self.name) || self.name != 'a'"}]}), "/properties/spec")]
#[case::a_pattern(json!({"pattern": "^[a-z]*$"}), "/properties/spec/properties/name")]
fn a_stricter_schema_is_found(#[case] stricter: Value, #[case] place: &str) {
    let before = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer", "minimum": 0},
        "name": {"type": "string"},
        "type": {"type": "string", "enum": ["Recreate", "RollingUpdate"]},
    }}}});
    let mut now = before.clone();
    let node = now.pointer_mut(place).unwrap().as_object_mut().unwrap();
    node.extend(stricter.as_object().unwrap().clone());
    assert_ne!(without_texts(&before), without_texts(&now));
    assert!(newly_refused(&before, &now, 1000).is_some());
    assert!(newly_refused(&now, &before, 100).is_none(), "a wider schema refuses nothing");
}

#[test]
fn texts_alone_make_no_difference() {
    let schema = |text: &str| {
        json!({"description": text, "properties": {"description": {"type": "string", "description": text}},
            "x-kubernetes-validations": [{"rule": "true", "message": text}]})
    };
    assert_eq!(without_texts(&schema("a")), without_texts(&schema("b")));
    assert!(without_texts(&schema("a"))["properties"]["description"]["type"] == "string");
}
