//! Patches that add or remove one finalizer and leave other finalizers alone.

use controller_runtime::objects::Patch;
use kube::ResourceExt;
use serde_json::json;

/// Adds a finalizer after the finalizers of the observed version. The patch fails if the object has another version.
pub fn with<K: ResourceExt>(object: &K, name: &str) -> Patch {
    let mut all = object.finalizers().to_vec();
    all.push(name.to_owned());
    Patch::Merge(json!({ "metadata": { "finalizers": all } })).guarded_by(object.resource_version().as_deref())
}

/// Removes a finalizer from its place in the list; `None` when it is not there.
pub fn without(finalizers: &[String], name: &str) -> Option<Patch> {
    let place = finalizers.iter().position(|finalizer| finalizer == name)?;
    let path = format!("/metadata/finalizers/{place}");
    Some(Patch::Json(vec![
        json!({ "op": "test", "path": path, "value": name }),
        json!({ "op": "remove", "path": path }),
    ]))
}

#[cfg(test)]
mod tests {
    use machine_api::{names::finalizer, v1alpha1::MachineClass};

    use super::*;

    #[test]
    fn mc_264_a_foreign_finalizer_survives_ours_being_put_on() {
        let mut class = MachineClass::default();
        class.metadata.finalizers = Some(vec!["other".to_owned()]);
        class.metadata.resource_version = Some("7".to_owned());
        let Patch::Merge(patch) = with(&class, finalizer::MACHINE) else { panic!("no merge patch") };
        assert_eq!(patch["metadata"]["finalizers"], json!(["other", finalizer::MACHINE]));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
    }
}
