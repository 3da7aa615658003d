//! Which version of a machine kind the API server stores, as its definition says.
//!
//! Watches read that version: any other is converted for them by our own webhook, and a process that needs itself to fill its
//! caches may never come up (spec/api-and-admission §8.6). Who may not read definitions, or finds none, reads v1alpha1, which
//! is always served.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::{error::ApiError, objects::CALL_TIMEOUT};
use crate::{
    api::{
        kind::{ApiVersion, Kind},
        names,
    },
    settings::ReadVersion,
};

/// How often a definition is looked at again: storage moves once in a cluster's life, and until it is noticed the other
/// version can be read as well.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long the first answer is waited for, and the pause between questions.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A definition as far as versions go; its schemas are skipped while it is read.
#[derive(Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Deserialize)]
struct DefinitionSpec {
    versions: Vec<DefinitionVersion>,
}

#[derive(Deserialize)]
struct DefinitionVersion {
    name: String,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
}

/// The version to read: the stored one if it is served and ours, else v1alpha1.
fn version_to_read(definition: &Definition) -> ApiVersion {
    let mut versions = definition.spec.versions.iter();
    let stored = versions.find(|version| version.storage && version.served);
    stored.and_then(|version| ApiVersion::from_name(&version.name)).unwrap_or_default()
}

/// Finds out which versions are to be read. Cheap to clone.
#[derive(Clone)]
pub struct StorageVersions {
    client: kube::Client,
    read: ReadVersion,
}

impl StorageVersions {
    /// Asks through a client that is not throttled.
    pub fn new(client: kube::Client, read: ReadVersion) -> Self {
        Self { client, read }
    }

    /// The version to begin with; waits a few seconds for an API server that does not answer yet.
    pub async fn first(&self, kind: Kind) -> ApiVersion {
        if let ReadVersion::Fixed(version) = self.read {
            return version;
        }
        let until = Instant::now() + FIRST_WITHIN;
        loop {
            let error = match tokio::time::timeout_at(until, self.ask(kind)).await {
                Ok(Ok(version)) => return version,
                Ok(Err(error)) => error,
                Err(_) => ApiError::TimedOut(FIRST_WITHIN),
            };
            let settled = matches!(error, ApiError::Forbidden(_) | ApiError::NotFound(_));
            if settled || Instant::now() + ASK_EVERY > until {
                let version = ApiVersion::default();
                tracing::info!(%kind, %error, "the definition can't be read: {version} is watched until it can");
                return version;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Waits until another version than this one is to be read.
    pub async fn other_than(&self, kind: Kind, known: ApiVersion) -> ApiVersion {
        if let ReadVersion::Fixed(_) = self.read {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            // Without an answer the version that was read so far goes on being right.
            if let Ok(version) = self.ask(kind).await
                && version != known
            {
                tracing::info!(%kind, from = %known, to = %version, "the storage version has changed; it is watched from now on");
                return version;
            }
        }
    }

    async fn ask(&self, kind: Kind) -> Result<ApiVersion, ApiError> {
        let plural = kind.plural();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{}", names::GROUP);
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Vec::new())
            .map_err(|error| ApiError::Other(error.to_string()))?;
        tokio::time::timeout(CALL_TIMEOUT, self.client.request::<Definition>(request))
            .await
            .map_err(|_| ApiError::TimedOut(CALL_TIMEOUT))?
            .map(|definition| version_to_read(&definition))
            .map_err(ApiError::from)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn version(name: &str, served: bool, storage: bool) -> Value {
        json!({"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}})
    }

    #[rstest]
    #[case::the_first_release(json!([version("v1alpha1", true, true), version("v1beta1", false, false)]), ApiVersion::V1alpha1)]
    #[case::both_are_served(json!([version("v1alpha1", true, true), version("v1beta1", true, false)]), ApiVersion::V1alpha1)]
    #[case::v1beta1_is_stored(json!([version("v1alpha1", true, false), version("v1beta1", true, true)]), ApiVersion::V1beta1)]
    #[case::what_is_stored_is_not_served(json!([version("v1alpha1", true, false), version("v1beta1", false, true)]), ApiVersion::V1alpha1)]
    #[case::a_version_that_is_not_ours(json!([version("v1alpha1", true, false), version("v7", true, true)]), ApiVersion::V1alpha1)]
    #[case::none_at_all(json!([]), ApiVersion::V1alpha1)]
    fn the_stored_version_is_read(#[case] versions: Value, #[case] expected: ApiVersion) {
        let definition: Definition = serde_json::from_value(json!({"spec": {"versions": versions}})).unwrap();
        assert_eq!(version_to_read(&definition), expected);
    }

    /// A client of a server that gives these answers one after the other, the last one for ever.
    fn client(answers: Vec<(u16, Value)>) -> (kube::Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let number = counter.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            let (status, body) = &answers[number];
            let answer =
                http::Response::builder().status(*status).body(kube::client::Body::from(body.to_string().into_bytes()));
            std::future::ready(answer)
        });
        (kube::Client::new(service, "default"), asked)
    }

    fn stored(beta: bool) -> (u16, Value) {
        let versions = json!([version("v1alpha1", true, !beta), version("v1beta1", true, beta)]);
        (200, json!({"spec": {"versions": versions}}))
    }

    fn failure(code: u16, reason: &str) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}),
        )
    }

    #[rstest]
    #[case::at_once(vec![stored(true)], ApiVersion::V1beta1, 1)]
    #[case::after_a_restart_of_the_server(vec![failure(503, "ServiceUnavailable"), stored(true)], ApiVersion::V1beta1, 2)]
    #[case::who_may_not_ask_reads_v1alpha1(vec![failure(403, "Forbidden")], ApiVersion::V1alpha1, 1)]
    #[case::without_a_definition_too(vec![failure(404, "NotFound")], ApiVersion::V1alpha1, 1)]
    #[case::a_server_that_never_answers(vec![failure(503, "ServiceUnavailable")], ApiVersion::V1alpha1, 5)]
    #[tokio::test(start_paused = true)]
    async fn the_first_version(
        #[case] answers: Vec<(u16, Value)>,
        #[case] expected: ApiVersion,
        #[case] questions: usize,
    ) {
        let (client, asked) = client(answers);
        let versions = StorageVersions::new(client, ReadVersion::Stored);
        assert_eq!(versions.first(Kind::Machine).await, expected);
        assert_eq!(asked.load(Ordering::Relaxed), questions);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_storage_is_noticed_and_silence_is_none() {
        let (client, _) = client(vec![stored(false), failure(503, "ServiceUnavailable"), stored(false), stored(true)]);
        let versions = StorageVersions::new(client, ReadVersion::Stored);
        assert_eq!(versions.first(Kind::Machine).await, ApiVersion::V1alpha1);
        assert_eq!(versions.other_than(Kind::Machine, ApiVersion::V1alpha1).await, ApiVersion::V1beta1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_version_is_not_asked_for() {
        let (client, asked) = client(vec![stored(false)]);
        let versions = StorageVersions::new(client, ReadVersion::Fixed(ApiVersion::V1beta1));
        assert_eq!(versions.first(Kind::Machine).await, ApiVersion::V1beta1);
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, versions.other_than(Kind::Machine, ApiVersion::V1beta1)).await.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }
}
