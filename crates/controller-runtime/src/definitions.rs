//! Whether the CRDs of the machine kinds let stored objects be read without loss.
//!
//! When a CRD is applied again, the conversion webhook can disappear from it while objects are still stored as v1beta1. The API
//! server then only relabels them and drops each field that v1alpha1 names differently: classes have no provider, deployments have
//! no class. Such objects must not be acted on.

use std::time::Duration;

use futures::{Stream, StreamExt, stream::select_all};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::Value;

use super::{error::ApiError, objects::call};
use machine_api::{
    kind::Kind,
    names::{GROUP, V1ALPHA1},
};

/// Why objects of a CRD can't be read as v1alpha1, if so: some may be stored in another version, and no webhook converts them.
pub fn hollow(definition: &Value) -> Option<String> {
    if definition["spec"]["conversion"]["strategy"] == "Webhook" {
        return None;
    }
    let stored = definition["status"]["storedVersions"].as_array()?;
    let others: Vec<&str> = stored.iter().filter_map(Value::as_str).filter(|version| *version != V1ALPHA1).collect();
    (!others.is_empty()).then(|| {
        format!(
            "objects may be stored as {} and nothing converts them, so that they read as if most of their fields were empty. \
             Each object that anybody writes now loses these fields for good: apply the output of `mcm manifests crds --serve \
             v1beta1` at once, and before v1beta1 is switched off run `mcm migrate-storage --to v1alpha1`",
            others.join(" and ")
        )
    })
}

/// Whether objects of a CRD may be stored in a version that it does not serve, or does not convert ([`hollow`]). The policy of
/// `mcm manifests storage-guard` keeps a CRD from becoming like that.
pub fn leaves_stored_version_unserved(definition: &Value) -> bool {
    let versions = definition["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_served = |name: &Value| versions.iter().any(|version| version["name"] == *name && version["served"] == true);
    let stored = definition["status"]["storedVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
    hollow(definition).is_some() || !stored.iter().all(is_served)
}

/// Yields an item whenever one of the CRDs may have changed and the API server lets this process watch it. Each is watched by its
/// name, so that permissions can be limited to these names. After an error, the watch waits for `pause_after(error)`.
pub fn changes(
    client: &kube::Client,
    pause_after: fn(&watcher::Error) -> Duration,
) -> impl Stream<Item = ()> + Send + use<> {
    let definitions: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
    let of = |kind: Kind| {
        let named = watcher::Config::default().fields(&format!("metadata.name={}", name_of(kind)));
        let events = watcher(definitions.clone(), named).default_backoff();
        let named_changes = events.filter_map(move |event| {
            let pause = event.as_ref().err().map(pause_after);
            async move {
                let Some(pause) = pause else { return Some(()) };
                tokio::time::sleep(pause).await;
                None
            }
        });
        named_changes.boxed()
    };
    select_all(Kind::ALL.map(of))
}

/// The name of the CRD of a kind.
pub fn name_of(kind: Kind) -> String {
    format!("{}.{GROUP}", kind.plural())
}

/// The CRD of a kind in a cluster.
///
/// # Errors
/// When the CRD can't be read. Some installations may not read CRDs.
pub async fn definition_in(client: &kube::Client, kind: Kind) -> Result<Value, ApiError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = name_of(kind);
    let definition = call(definitions.get(&name)).await?;
    serde_json::to_value(definition).map_err(|error| ApiError::Other(error.to_string()))
}

/// [`hollow`] for the CRD in a cluster.
///
/// # Errors
/// Those of [`definition_in`].
pub async fn hollow_in(client: &kube::Client, kind: Kind) -> Result<Option<String>, ApiError> {
    Ok(hollow(&definition_in(client, kind).await?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::never_migrated("None", &["v1alpha1"], false)]
    #[case::both_with_a_converter("Webhook", &["v1beta1", "v1alpha1"], false)]
    #[case::migrated_with_a_converter("Webhook", &["v1beta1"], false)]
    #[case::the_default_definition_was_applied_again("None", &["v1beta1", "v1alpha1"], true)]
    #[case::migrated_and_without_a_converter("None", &["v1beta1"], true)]
    fn pk_038_objects_stored_in_another_version_need_a_converter(
        #[case] strategy: &str,
        #[case] stored: &[&str],
        #[case] expected: bool,
    ) {
        let definition = json!({"spec": {"conversion": {"strategy": strategy}}, "status": {"storedVersions": stored}});
        let found = hollow(&definition);
        assert_eq!(found.is_some(), expected, "{found:?}");
        assert!(found.is_none_or(|text| text.contains("stored as v1beta1") && text.contains("at once")));
    }

    #[rstest]
    #[case::never_migrated("None", &["v1alpha1"], &["v1alpha1"], false)]
    #[case::both_served("Webhook", &["v1alpha1", "v1beta1"], &["v1beta1", "v1alpha1"], false)]
    #[case::not_converted("None", &["v1alpha1", "v1beta1"], &["v1beta1", "v1alpha1"], true)]
    #[case::not_served("Webhook", &["v1alpha1"], &["v1beta1", "v1alpha1"], true)]
    #[case::not_made_yet("None", &["v1alpha1"], &[], false)]
    fn pk_038_a_stored_version_must_be_served_and_converted(
        #[case] strategy: &str,
        #[case] served: &[&str],
        #[case] stored: &[&str],
        #[case] expected: bool,
    ) {
        let versions: Vec<Value> = ["v1alpha1", "v1beta1"]
            .into_iter()
            .map(|name| json!({"name": name, "served": served.contains(&name)}))
            .collect();
        let definition = json!({"spec": {"conversion": {"strategy": strategy}, "versions": versions},
            "status": {"storedVersions": stored}});
        assert_eq!(leaves_stored_version_unserved(&definition), expected);
    }
}
