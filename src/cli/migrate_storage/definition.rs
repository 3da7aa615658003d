//! The versions in a definition, and what a migration has to do.
//!
//! Pure functions from a stored `CustomResourceDefinition` to the remaining step, or to the patch for it.
//! Source: spec/api-and-admission §8.6.

pub use controller_runtime::definitions::name_of;
use machine_api::kind::ApiVersion;
use serde_json::{Value, json};

/// The next step of a migration for one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// None: all objects are stored in the version, and the definition shows this.
    Done,
    /// Rewrite the objects. New writes are stored in the version, but older objects may not be.
    Rewrite,
    /// Switch the storage version, because the definition names another one.
    Switch,
}

/// Why a migration can't begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The version is not in the definition.
    #[error("{definition}: defines no {version}; apply the output of `mcm manifests crds --serve v1beta1` first")]
    NotDefined {
        /// Name of the definition.
        definition: String,
        /// The version.
        version: &'static str,
    },
    /// One of the versions is not served.
    #[error("{definition}: {version} is not served; apply the output of `mcm manifests crds --serve v1beta1` first")]
    NotServed {
        /// Name of the definition.
        definition: String,
        /// The version.
        version: &'static str,
    },
    /// There is no conversion webhook.
    #[error(
        "{definition}: has no conversion webhook, and without one objects would be read wrongly; apply the output of \
         `mcm manifests crds --serve v1beta1` and keep `mcm serve` running"
    )]
    NoConverter {
        /// Name of the definition.
        definition: String,
    },
}

/// The next step until all objects of the definition's kind are stored as `to`.
pub fn next_step(definition: &Value, to: ApiVersion) -> Result<Step, Obstacle> {
    let name = || definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if place(definition, to).is_none() {
        return Err(Obstacle::NotDefined { definition: name(), version: to.as_str() });
    }
    let stores = is(definition, to, "storage");
    if stores && definition["status"]["storedVersions"] == json!([to.as_str()]) {
        return Ok(Step::Done);
    }
    // Until the last object is rewritten, reads of objects in the other version need the conversion webhook.
    if definition["spec"]["conversion"]["strategy"] != "Webhook" {
        return Err(Obstacle::NoConverter { definition: name() });
    }
    for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
        if !is(definition, version, "served") {
            return Err(Obstacle::NotServed { definition: name(), version: version.as_str() });
        }
    }
    Ok(if stores { Step::Rewrite } else { Step::Switch })
}

/// The JSON patch that makes `to` the storage version of a definition. It fails when the order of the versions has changed.
pub fn switch_patch(definition: &Value, to: ApiVersion) -> Vec<Value> {
    let mut patch = Vec::new();
    for (place, version) in versions(definition).iter().enumerate() {
        let stores = version["name"] == to.as_str();
        patch.push(json!({"op": "test", "path": format!("/spec/versions/{place}/name"), "value": version["name"]}));
        patch.push(json!({"op": "replace", "path": format!("/spec/versions/{place}/storage"), "value": stores}));
    }
    patch
}

/// The JSON patch of the status that records that all objects are stored as `to`. It fails when the storage version or the recorded
/// versions have changed since `definition` was read.
pub fn stored_versions_patch(definition: &Value, to: ApiVersion) -> Option<Vec<Value>> {
    let place = place(definition, to)?;
    Some(vec![
        json!({"op": "test", "path": format!("/spec/versions/{place}/name"), "value": to.as_str()}),
        json!({"op": "test", "path": format!("/spec/versions/{place}/storage"), "value": true}),
        json!({"op": "test", "path": "/status/storedVersions", "value": definition["status"]["storedVersions"]}),
        json!({"op": "replace", "path": "/status/storedVersions", "value": [to.as_str()]}),
    ])
}

/// Whether this flag of a version is set.
pub fn is(definition: &Value, version: ApiVersion, flag: &str) -> bool {
    place(definition, version).is_some_and(|place| versions(definition)[place][flag] == true)
}

/// Index of a version in the definition.
pub fn place(definition: &Value, version: ApiVersion) -> Option<usize> {
    versions(definition).iter().position(|entry| entry["name"] == version.as_str())
}

fn versions(definition: &Value) -> &[Value] {
    definition["spec"]["versions"].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use machine_api::kind::ApiVersion::{V1alpha1, V1beta1};

    fn a_definition(storage: &str, stored: &[&str]) -> Value {
        let version = |name: &str| json!({"name": name, "served": true, "storage": name == storage});
        json!({
            "metadata": {"name": "machines.machine.sapcloud.io"},
            "spec": {"versions": [version("v1alpha1"), version("v1beta1")], "conversion": {"strategy": "Webhook"}},
            "status": {"storedVersions": stored},
        })
    }

    #[rstest]
    #[case::never_migrated("v1alpha1", &["v1alpha1"], V1beta1, Step::Switch)]
    #[case::switched_and_interrupted("v1beta1", &["v1alpha1", "v1beta1"], V1beta1, Step::Rewrite)]
    #[case::migrated("v1beta1", &["v1beta1"], V1beta1, Step::Done)]
    #[case::switched_back_by_a_manifest("v1alpha1", &["v1beta1", "v1alpha1"], V1beta1, Step::Switch)]
    #[case::the_way_back("v1beta1", &["v1beta1"], V1alpha1, Step::Switch)]
    #[case::the_way_back_interrupted("v1alpha1", &["v1beta1", "v1alpha1"], V1alpha1, Step::Rewrite)]
    #[case::nothing_to_go_back_from("v1alpha1", &["v1alpha1"], V1alpha1, Step::Done)]
    #[case::a_false_stored_version_is_ignored("v1alpha1", &["v1beta1"], V1beta1, Step::Switch)]
    fn the_next_step(#[case] storage: &str, #[case] stored: &[&str], #[case] to: ApiVersion, #[case] expected: Step) {
        assert_eq!(next_step(&a_definition(storage, stored), to), Ok(expected));
    }

    #[rstest]
    #[case::beta_is_not_served("/spec/versions/1/served", json!(false), "v1beta1 is not served")]
    #[case::no_conversion_webhook("/spec/conversion/strategy", json!("None"), "has no conversion webhook")]
    #[case::beta_is_unknown("/spec/versions/1/name", json!("v2"), "defines no v1beta1")]
    fn obstacles_are_named_before_anything_is_changed(#[case] place: &str, #[case] value: Value, #[case] words: &str) {
        let mut definition = a_definition("v1alpha1", &["v1alpha1"]);
        *definition.pointer_mut(place).unwrap() = value;
        let obstacle = next_step(&definition, V1beta1).unwrap_err().to_string();
        assert!(obstacle.starts_with("machines.machine.sapcloud.io: ") && obstacle.contains(words), "{obstacle}");
    }

    fn patched(definition: &Value, patch: Vec<Value>) -> Result<Value, json_patch::PatchError> {
        let mut changed = definition.clone();
        let patch: json_patch::Patch = serde_json::from_value(Value::Array(patch)).unwrap();
        json_patch::patch(&mut changed, &patch)?;
        Ok(changed)
    }

    #[test]
    fn exactly_one_version_stores_after_a_switch() {
        let before = a_definition("v1alpha1", &["v1alpha1"]);
        let after = patched(&before, switch_patch(&before, V1beta1)).unwrap();
        assert_eq!(after["spec"], a_definition("v1beta1", &[])["spec"]);
        let mut reordered = before.clone();
        reordered["spec"]["versions"].as_array_mut().unwrap().reverse();
        assert!(patched(&reordered, switch_patch(&before, V1beta1)).is_err(), "the versions have moved");
    }

    #[test]
    fn the_stored_versions_are_only_recorded_in_an_unchanged_definition() {
        let read = a_definition("v1beta1", &["v1alpha1", "v1beta1"]);
        let patch = stored_versions_patch(&read, V1beta1).unwrap();
        assert_eq!(patched(&read, patch.clone()).unwrap(), a_definition("v1beta1", &["v1beta1"]));
        assert!(patched(&a_definition("v1alpha1", &["v1alpha1", "v1beta1"]), patch.clone()).is_err());
        assert!(patched(&a_definition("v1beta1", &["v1beta1", "v1alpha1"]), patch).is_err());
    }
}
