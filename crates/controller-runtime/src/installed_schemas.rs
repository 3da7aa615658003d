//! What the installed definitions keep of the fields that this program writes.
//!
//! An API server drops fields that the schema of a definition lacks. The object then never gets what a controller decided, so that each
//! pass would send the same write again. Such fields are removed from writes, and a write without any other field is not sent
//! (spec/packaging §8.2 PK-121). New objects are not changed: they contain only fields that their owner has, or that every schema has.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use machine_api::{
    crd::{is_kept, missing_fields, remove_unknown, written_schema},
    kind::Kind,
};
use serde_json::Value;

use super::{lock, objects::Patch};

/// The installed schemas that lack fields of this program. Cheap to clone; all clones have the same content.
#[derive(Clone, Debug, Default)]
pub struct InstalledSchemas(Arc<Mutex<BTreeMap<Kind, Installed>>>);

#[derive(Debug)]
struct Installed {
    /// The definition that was compared.
    compared: Identity,
    /// The schema of the version that is written. `None` if it lacks nothing.
    incomplete: Option<Arc<Value>>,
}

/// Object and generation of a definition. A definition that was deleted and made again has the generation of the first one.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    uid: Option<String>,
    generation: Option<i64>,
}

/// What is left of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Something to write.
    Something,
    /// Nothing: the API server would drop all of it.
    Nothing,
}

impl InstalledSchemas {
    /// Takes the definition of a kind. Returns the fields of this program that it lacks, if it is another definition than before.
    pub fn learn(&self, kind: Kind, definition: &Value) -> Option<Vec<String>> {
        let metadata = &definition["metadata"];
        let compared =
            Identity { uid: metadata["uid"].as_str().map(str::to_owned), generation: metadata["generation"].as_i64() };
        let mut known = lock(&self.0);
        if known.get(&kind).is_some_and(|known| compared.generation.is_some() && known.compared == compared) {
            return None;
        }
        let missing = missing_fields(kind, definition);
        let schema = (!missing.is_empty()).then(|| written_schema(definition).cloned()).flatten();
        known.insert(kind, Installed { compared, incomplete: schema.map(Arc::new) });
        Some(missing)
    }

    /// Removes from a patch of this kind (`Machine`, …) what the API server would drop.
    pub fn remove_unknown(&self, kind: &str, patch: &mut Patch) -> Left {
        let schema = {
            let known = lock(&self.0);
            let found = known.iter().find(|(known, _)| known.as_str() == kind);
            found.and_then(|(_, installed)| installed.incomplete.clone())
        };
        schema.map_or(Left::Something, |schema| without_unknown(patch, &schema))
    }
}

/// Removes from a patch what this schema lacks. A patch that had no content before is left as it is.
fn without_unknown(patch: &mut Patch, schema: &Value) -> Left {
    let had_content = has_content(patch);
    match patch {
        Patch::Merge(change) => {
            remove_unknown(change, schema);
            if let Value::Object(fields) = change {
                // A subresource without a field that is left is no change.
                fields.retain(|name, below| {
                    name == "metadata" || below.as_object().is_none_or(|below| !below.is_empty())
                });
            }
        }
        Patch::Json(operations) => {
            operations.retain(|operation| operation["path"].as_str().is_none_or(|path| is_kept(path, schema)));
        }
    }
    if had_content && !has_content(patch) { Left::Nothing } else { Left::Something }
}

/// Whether a patch changes anything. Identity and version of the object only guard a patch.
fn has_content(patch: &Patch) -> bool {
    match patch {
        Patch::Merge(Value::Object(fields)) => fields.iter().any(|(name, below)| match (name.as_str(), below) {
            ("metadata", Value::Object(metadata)) => {
                metadata.keys().any(|field| !["uid", "resourceVersion"].contains(&field.as_str()))
            }
            _ => true,
        }),
        Patch::Merge(_) => true,
        Patch::Json(operations) => operations.iter().any(|operation| operation["op"] != "test"),
    }
}

#[cfg(test)]
mod tests {
    use machine_api::crd::{CrdOptions, definitions};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// The definition of machines, without the conditions of this program.
    fn older(generation: i64) -> Value {
        let all = definitions(&CrdOptions::default());
        let mut machines = all.into_iter().find(|definition| definition["spec"]["names"]["kind"] == "Machine").unwrap();
        machines["metadata"]["generation"] = generation.into();
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        machines.pointer_mut(status).unwrap().as_object_mut().unwrap().remove("machineConditions").unwrap();
        machines
    }

    fn conditions() -> Value {
        json!([{"type": "Progressing", "status": "False"}])
    }

    #[rstest]
    #[case::only_unknown(
        Patch::Merge(json!({"status": {"machineConditions": conditions()}})), Patch::Merge(json!({})), Left::Nothing)]
    #[case::only_unknown_and_guarded(
        Patch::Merge(json!({"metadata": {"resourceVersion": "7"}, "status": {"machineConditions": conditions()}})),
        Patch::Merge(json!({"metadata": {"resourceVersion": "7"}})), Left::Nothing)]
    #[case::both(
        Patch::Merge(json!({"status": {"machineConditions": conditions(), "lastKnownState": "s"}})),
        Patch::Merge(json!({"status": {"lastKnownState": "s"}})), Left::Something)]
    #[case::metadata(
        Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})), Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})),
        Left::Something)]
    #[case::a_part_is_emptied(Patch::Merge(json!({"spec": null})), Patch::Merge(json!({"spec": null})), Left::Something)]
    #[case::operations(
        Patch::Json(vec![json!({"op": "test", "path": "/metadata/uid", "value": "u"}),
            json!({"op": "add", "path": "/status/machineConditions/-", "value": {}})]),
        Patch::Json(vec![json!({"op": "test", "path": "/metadata/uid", "value": "u"})]), Left::Nothing)]
    fn pk_121_a_patch_keeps_what_the_schema_has(#[case] mut patch: Patch, #[case] expected: Patch, #[case] left: Left) {
        let schemas = InstalledSchemas::default();
        let missing = schemas.learn(Kind::Machine, &older(1)).expect("it is new");
        assert_eq!(missing, ["v1alpha1: status.machineConditions"]);
        assert_eq!((schemas.remove_unknown("Machine", &mut patch), &patch), (left, &expected));
    }

    #[test]
    fn pk_121_a_definition_that_was_made_again_is_compared_although_its_generation_is_the_same() {
        let of = |mut definition: Value, uid: &str| {
            definition["metadata"]["uid"] = uid.into();
            definition
        };
        let mut complete = older(1);
        let all = definitions(&CrdOptions::default());
        complete["spec"] =
            all.into_iter().find(|known| known["spec"]["names"]["kind"] == "Machine").unwrap()["spec"].clone();
        let schemas = InstalledSchemas::default();
        assert_eq!(schemas.learn(Kind::Machine, &of(complete, "first")), Some(vec![]));
        let again = of(older(1), "second");
        assert_eq!(schemas.learn(Kind::Machine, &again), Some(vec!["v1alpha1: status.machineConditions".to_owned()]));
        assert_eq!(schemas.learn(Kind::Machine, &again), None);
        let mut patch = Patch::Merge(json!({"status": {"machineConditions": conditions()}}));
        assert_eq!(schemas.remove_unknown("Machine", &mut patch), Left::Nothing);
    }

    #[test]
    fn a_definition_is_compared_once_and_a_complete_one_keeps_everything() {
        let schemas = InstalledSchemas::default();
        let write = || Patch::Merge(json!({"status": {"machineConditions": conditions()}}));
        let mut patch = write();
        assert_eq!(schemas.remove_unknown("Machine", &mut patch), Left::Something, "nothing is known yet");
        assert!(schemas.learn(Kind::Machine, &older(1)).is_some() && schemas.learn(Kind::Machine, &older(1)).is_none());
        assert_eq!(schemas.remove_unknown("MachineSet", &mut patch), Left::Something);
        assert_eq!(schemas.remove_unknown("Machine", &mut patch), Left::Nothing);
        let mut complete = definitions(&CrdOptions::default()).remove(0);
        let kind = Kind::ALL.into_iter().find(|kind| complete["spec"]["names"]["kind"] == kind.as_str()).unwrap();
        complete["metadata"]["generation"] = 2.into();
        assert_eq!(schemas.learn(kind, &complete), Some(vec![]));
        let mut patch = write();
        assert_eq!(schemas.remove_unknown(kind.as_str(), &mut patch), Left::Something);
        assert_eq!(patch, write());
    }
}
