//! The stored version of a machine kind, according to the discovery of the API server, which all clients may read.
//!
//! Watches read that version. For any other version the API server asks the webhook of this process for a conversion, and a process
//! that needs its own webhook to fill its stores may never become ready (spec/api-and-admission §8.6). While the version is
//! unknown, v1alpha1 is read, which is always served.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use tokio::time::Instant;

use super::{definitions::hollow_in, error::ApiError, objects::call};
use machine_api::{
    kind::{ApiVersion, Kind},
    names,
};

/// The watched version of the machine kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadVersion {
    /// The stored version, from discovery. No store then needs the conversion webhook.
    #[default]
    Stored,
    /// Always this one.
    Fixed(ApiVersion),
}

impl std::str::FromStr for ReadVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, ApiVersion::from_name(text)) {
            ("stored", _) => Ok(Self::Stored),
            (_, Some(version)) => Ok(Self::Fixed(version)),
            (other, None) => Err(format!("unknown version {other:?}: want \"stored\", \"v1alpha1\" or \"v1beta1\"")),
        }
    }
}

/// Interval of discovery. The stored version changes once in the life of a cluster, and until the change is noticed the other
/// version can still be read.
const INTERVAL: Duration = Duration::from_secs(30);
/// How long to wait for the first answer, and the pause between tries.
const FIRST_WITHIN: Duration = Duration::from_secs(5);
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// The storage version hash in discovery of a kind that is stored as v1beta1: the first eight bytes of the SHA-256 of
/// `group/version/Kind`, in base64, as API servers compute it since 1.15.
const STORED_AS_V1BETA1: [(Kind, &str); 4] = [
    (Kind::Machine, "k79vme4o3o0="),
    (Kind::MachineSet, "lJV6FTHH4JE="),
    (Kind::MachineDeployment, "6eozpXd6YF8="),
    (Kind::MachineClass, "EAQGx+KL1DI="),
];

/// The version to read, from the discovery of v1alpha1. If the stored version is not served, discovery has no hash.
fn version_to_read(kind: Kind, served: &APIResourceList) -> ApiVersion {
    let resource = served.resources.iter().find(|resource| resource.name == kind.plural());
    let hash = resource.and_then(|resource| resource.storage_version_hash.as_deref());
    let is_beta = hash.is_some_and(|hash| STORED_AS_V1BETA1.contains(&(kind, hash)));
    if is_beta { ApiVersion::V1beta1 } else { ApiVersion::V1alpha1 }
}

/// Finds the versions to read. Cheap to clone.
#[derive(Clone)]
pub struct StorageVersions {
    client: kube::Client,
    read: ReadVersion,
}

impl StorageVersions {
    /// Asks through a client without a rate limit.
    pub fn new(client: kube::Client, read: ReadVersion) -> Self {
        Self { client, read }
    }

    /// The first version to read. Waits while the CRD makes objects unreadable, and a few seconds for an API server that does not
    /// answer yet.
    pub async fn first(&self, kind: Kind) -> ApiVersion {
        self.readable(kind).await;
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
            let settled = matches!(error, ApiError::Forbidden(_) | ApiError::NotFound(_) | ApiError::NotServed(_));
            if settled || Instant::now() + RETRY_EVERY > until {
                let version = ApiVersion::default();
                tracing::info!(
                    %kind, %error, %version,
                    "the stored version is not known; this one is watched until it is"
                );
                return version;
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Waits until another version than `known` is to be read.
    pub async fn other_than(&self, kind: Kind, known: ApiVersion) -> ApiVersion {
        if let ReadVersion::Fixed(_) = self.read {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(INTERVAL).await;
            // Without an answer the known version stays.
            if let Ok(version) = self.ask(kind).await
                && version != known
            {
                self.readable(kind).await;
                tracing::info!(%kind, %version, "the storage version has changed; it is watched from now on");
                return version;
            }
        }
    }

    /// Waits while the CRD makes objects lose fields: no store is better than one with such objects.
    async fn readable(&self, kind: Kind) {
        while let Ok(Ok(Some(why))) = tokio::time::timeout(FIRST_WITHIN, hollow_in(&self.client, kind)).await {
            tracing::error!(%kind, error = %why, "not watched");
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn ask(&self, kind: Kind) -> Result<ApiVersion, ApiError> {
        let request = http::Request::get(format!("/apis/{}", names::API_VERSION_V1ALPHA1))
            .header(http::header::ACCEPT, "application/json")
            .body(Vec::new())
            .map_err(|error| ApiError::Other(error.to_string()))?;
        let served = call(self.client.request::<APIResourceList>(request)).await?;
        Ok(version_to_read(kind, &served))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use base64::{Engine, engine::general_purpose::STANDARD};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn served(hashes: &[(&str, &str)]) -> Value {
        let resource = |(name, hash): &(&str, &str)| json!({"name": name, "singularName": "", "namespaced": true, "kind": "K", "verbs": [], "storageVersionHash": hash});
        let resources: Vec<Value> = hashes.iter().map(resource).collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": names::API_VERSION_V1ALPHA1, "resources": resources})
    }

    #[rstest]
    #[case::v1alpha1(served(&[("machines", "bwy2GBGvXBU=")]), ApiVersion::V1alpha1)]
    #[case::v1beta1(served(&[("machines", "k79vme4o3o0=")]), ApiVersion::V1beta1)]
    #[case::another_kind_is(served(&[("machinesets", "lJV6FTHH4JE="), ("machines", "bwy2GBGvXBU=")]), ApiVersion::V1alpha1)]
    #[case::of_another_kind(served(&[("machines", "lJV6FTHH4JE=")]), ApiVersion::V1alpha1)]
    #[case::what_is_stored_is_not_served(served(&[("machines", "")]), ApiVersion::V1alpha1)]
    #[case::none_at_all(served(&[]), ApiVersion::V1alpha1)]
    fn the_stored_version_is_read(#[case] served: Value, #[case] expected: ApiVersion) {
        let served: APIResourceList = serde_json::from_value(served).unwrap();
        assert_eq!(version_to_read(Kind::Machine, &served), expected);
    }

    #[test]
    fn the_hashes_are_those_that_api_servers_make() {
        let rustls::SupportedCipherSuite::Tls13(suite) = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256
        else {
            panic!("not of TLS 1.3");
        };
        let hash = |text: &str| STANDARD.encode(&suite.common.hash_provider.hash(text.as_bytes()).as_ref()[..8]);
        // Every API server shows this hash for Deployments.
        assert_eq!(hash("apps/v1/Deployment"), "8aSe+NMegvE=");
        for (kind, expected) in STORED_AS_V1BETA1 {
            assert_eq!(hash(&format!("{}/{kind}", names::API_VERSION_V1BETA1)), expected);
        }
    }

    /// A client of a server that gives these answers in turn, and then the last one for ever.
    fn client(answers: Vec<(u16, Value)>) -> (kube::Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let looks = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            if request.uri().path().contains("customresourcedefinitions") {
                return std::future::ready(definition(&looks));
            }
            let number = counter.fetch_add(1, Ordering::Relaxed).min(answers.len() - 1);
            let (status, body) = &answers[number];
            let answer =
                http::Response::builder().status(*status).body(kube::client::Body::from(body.to_string().into_bytes()));
            std::future::ready(answer)
        });
        (kube::Client::new(service, "default"), asked)
    }

    fn stored(beta: bool) -> (u16, Value) {
        (200, served(&[("machines", if beta { "k79vme4o3o0=" } else { "bwy2GBGvXBU=" })]))
    }

    /// A CRD that has no converter at first, and then has it again.
    fn definition(looks: &AtomicUsize) -> http::Result<http::Response<kube::client::Body>> {
        let strategy = if looks.fetch_add(1, Ordering::Relaxed) == 0 { "None" } else { "Webhook" };
        let names = json!({"kind": "K", "plural": "ks"});
        let body = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "ks.g"},
            "spec": {
                "group": "g", "scope": "Namespaced", "names": names, "versions": [], "conversion": {"strategy": strategy},
            },
            "status": {"storedVersions": ["v1beta1", "v1alpha1"]},
        });
        http::Response::builder().status(200).body(kube::client::Body::from(body.to_string().into_bytes()))
    }

    #[rstest]
    #[case::as_it_is_stored(ReadVersion::Stored)]
    #[case::in_a_version_that_a_flag_names(ReadVersion::Fixed(ApiVersion::V1beta1))]
    #[tokio::test(start_paused = true)]
    async fn a_kind_is_not_watched_while_its_definition_spoils_it(#[case] read: ReadVersion) {
        let (client, _) = client(vec![stored(true)]);
        let began = Instant::now();
        assert_eq!(StorageVersions::new(client, read).first(Kind::Machine).await, ApiVersion::V1beta1);
        assert_eq!(began.elapsed(), INTERVAL);
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
    #[case::without_permission_v1alpha1_is_read(vec![failure(403, "Forbidden")], ApiVersion::V1alpha1, 1)]
    #[case::without_kinds_too(vec![failure(404, "NotFound")], ApiVersion::V1alpha1, 1)]
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
    async fn a_change_of_the_stored_version_is_noticed_and_a_failed_request_is_no_change() {
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
