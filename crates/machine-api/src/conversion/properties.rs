//! Round trips of arbitrary objects, also of invalid ones.
//!
//! The tests change a valid object with every field at random places: they remove fields, replace them by other types, add fields with names that
//! only one version has, and duplicate entries of lists. Every result must convert, must convert back to the same object, and must be the same after
//! three conversions as after one.

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

use super::*;
use crate::names::{API_VERSION_V1ALPHA1 as ALPHA, API_VERSION_V1BETA1 as BETA};

/// Names that at least one version has.
const NAMES: [&str; 40] = [
    "class",
    "classRef",
    "providerID",
    "nodeTemplate",
    "lifecycle",
    "drainTimeout",
    "machinePreserveTimeout",
    "preserveTimeout",
    "disableHealthTimeout",
    "healthCheck",
    "maxEvictRetries",
    "nodeConditions",
    "unhealthyNodeConditions",
    "conditions",
    "machineConditions",
    "machineSetCondition",
    "currentStatus",
    "phase",
    "phaseUpdateTime",
    "lastUpdateTime",
    "lastOperation",
    "operation",
    "description",
    "message",
    "nextStep",
    "nodeRef",
    "observedGeneration",
    "machineClass",
    "rollbackTo",
    "revision",
    "strategy",
    "type",
    "spec",
    "status",
    "provider",
    "secretRef",
    "userDataSecretRef",
    "metadata",
    "failedMachines",
    "reason",
];

/// Values of every type, and texts that a mapping looks for.
fn weird() -> Vec<Value> {
    vec![
        Value::Null,
        json!(""),
        json!("garbage"),
        json!("5m"),
        json!("-5m"),
        json!("A,,B"),
        json!("Initiate node drain"),
        json!("Delete Volume Attachments, then Initiate VM deletion"),
        json!("InitiateDrain"),
        json!("Delete"),
        json!("Disabled"),
        json!("1970-01-01T00:00:00Z"),
        json!("no reason: at all"),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(true),
        json!({}),
        json!({"type": ""}),
        json!({"revision": 0}),
        json!({"name": "x", "lastUpdateTime": "y"}),
        json!([]),
        json!([""]),
        json!(["A", "B,C", 5]),
        json!([{"type": "A"}, {"type": "A", "status": "True"}, 7, null, {"status": "x"}]),
    ]
}

#[derive(Clone, Debug)]
enum Change {
    Remove,
    Replace(Index),
    Add(Index, Index),
    Double,
}

fn changes() -> impl Strategy<Value = Vec<(Index, Change)>> {
    let change = prop_oneof![
        Just(Change::Remove),
        any::<Index>().prop_map(Change::Replace),
        (any::<Index>(), any::<Index>()).prop_map(|(name, value)| Change::Add(name, value)),
        Just(Change::Double),
    ];
    proptest::collection::vec((any::<Index>(), change), 0..8)
}

/// All places below `spec`, `status` and the other payload. Metadata has other changes.
fn places(value: &Value, pointer: &str, found: &mut Vec<String>) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    let children: Vec<_> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (escaped(name), value)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        let place = format!("{pointer}/{name}");
        if matches!(place.as_str(), "/apiVersion" | "/kind" | "/metadata") {
            continue;
        }
        found.push(place.clone());
        places(child, &place, found);
    }
}

fn apply(object: &mut Value, place: Index, change: &Change) {
    let mut found = vec![String::new()];
    places(object, "", &mut found);
    let pointer = place.get(&found).clone();
    let (parent, last) = pointer.rsplit_once('/').unwrap_or(("", ""));
    let name = last.replace("~1", "/").replace("~0", "~");
    match change {
        Change::Remove => match object.pointer_mut(parent) {
            Some(Value::Object(map)) if !name.is_empty() => drop(map.remove(&name)),
            Some(Value::Array(list)) => drop(list.remove(name.parse().unwrap())),
            _ => {}
        },
        Change::Replace(value) if !pointer.is_empty() => {
            *object.pointer_mut(&pointer).unwrap() = value.get(&weird()).clone();
        }
        Change::Add(name, value) => {
            let name = *name.get(&NAMES);
            if let Some(Value::Object(map)) = object.pointer_mut(&pointer)
                && !(pointer.is_empty() && name == "metadata")
            {
                map.insert(name.to_owned(), value.get(&weird()).clone());
            }
        }
        Change::Double => {
            if let Some(Value::Array(list)) = object.pointer_mut(&pointer)
                && let Some(first) = list.first().cloned()
            {
                list.push(first);
            }
        }
        Change::Replace(_) => {}
    }
}

fn objects() -> impl Strategy<Value = Value> {
    let alpha = include_str!("../../../../tests/fixtures/every-field-v1alpha1.yaml");
    let beta = include_str!("../../../../tests/fixtures/every-field-v1beta1.yaml");
    let whole: Vec<Value> =
        [alpha, beta].into_iter().flat_map(|text| serde_saphyr::from_multiple::<Value>(text).unwrap()).collect();
    let rollback = proptest::sample::select(vec!["", "0", "7", "-1", "007", "soon"]);
    (proptest::sample::select(whole), changes(), rollback, any::<bool>()).prop_map(
        |(mut object, changes, rollback, joined)| {
            for (place, change) in &changes {
                apply(&mut object, *place, change);
            }
            if !rollback.is_empty() {
                object["metadata"]["annotations"][annotation::ROLLBACK_TO] = json!(rollback);
            }
            if !joined && let Some(labels) = object["metadata"].get_mut("labels").and_then(Value::as_object_mut) {
                labels.remove("node");
            }
            object
        },
    )
}

fn other(object: &Value) -> &'static str {
    if object["apiVersion"] == BETA { ALPHA } else { BETA }
}

fn hop(object: &Value) -> Value {
    convert(object, other(object)).unwrap()
}

/// The object that a round trip must return: everything but nulls and a node reference that contradicts the label.
fn promised(object: &Value) -> Value {
    let kind = Kind::from_name(object["kind"].as_str().unwrap()).unwrap();
    let mut fields = canonical(kind, Json::from(object).as_object().unwrap().clone());
    if kind == Kind::Machine && object["apiVersion"] == BETA {
        machine::mirror_node_label(&mut fields);
    }
    Json::Object(fields).to_value()
}

/// The object without the residue.
fn shown(object: Value) -> Value {
    let Json::Object(mut fields) = Json::from(&object) else { return object };
    remove_annotation(&mut fields, annotation::CONVERSION_V1ALPHA1);
    remove_annotation(&mut fields, annotation::CONVERSION_V1BETA1);
    Json::Object(fields).to_value()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_round_trip_loses_nothing(object in objects()) {
        prop_assert_eq!(hop(&hop(&object)), promised(&object));
    }

    #[test]
    fn three_conversions_give_the_same_as_one(object in objects()) {
        let there = hop(&object);
        prop_assert_eq!(hop(&hop(&there)), there);
    }

    /// Any edit between two conversions wins over the residue: the other version gets the edited object.
    #[test]
    fn an_edit_between_two_conversions_wins(object in objects(), edits in changes()) {
        let mut there = hop(&object);
        for (place, change) in &edits {
            apply(&mut there, *place, change);
        }
        prop_assert_eq!(shown(hop(&hop(&there))), shown(promised(&there)));
    }

    #[test]
    fn identity_is_copied(object in objects()) {
        let there = hop(&object);
        for name in ["name", "namespace", "finalizers", "labels"] {
            prop_assert_eq!(&there["metadata"][name], &object["metadata"][name]);
        }
        prop_assert_eq!(&there["kind"], &object["kind"]);
    }

    /// A residue of another object, or any other text, never makes a conversion fail.
    #[test]
    fn foreign_residues_do_no_harm(object in objects(), donor in objects(), text in "\\PC{0,40}", copied in any::<bool>()) {
        let mut there = hop(&object);
        let given = hop(&donor);
        let name = if there["apiVersion"] == BETA { annotation::CONVERSION_V1ALPHA1 } else { annotation::CONVERSION_V1BETA1 };
        let residue = if copied { given["metadata"]["annotations"][name].clone() } else { json!(text) };
        if residue.is_string() {
            there["metadata"]["annotations"][name] = residue;
        }
        let back = hop(&there);
        prop_assert_eq!(hop(&hop(&back)), back);
    }
}
