//! Checks of a cluster before work begins, with errors that name the problem and the remedy.
//!
//! The checks only return errors; the caller decides what to do. An unreachable API server ends the start. Missing kinds and
//! missing permissions are reported, and the process waits for them (decisions.md 31).

use std::{fmt, time::Duration};

use k8s_openapi::{
    api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
    apimachinery::pkg::apis::meta::v1::APIResourceList,
};
use tokio::time::Instant;

use super::{
    clients::{Cluster, Purpose},
    error::{ApiError, chain},
    objects::{ApiServer, ObjectApi, call},
};
use machine_api::names;

/// How long an API server may give no healthy answer at the start, and the pause between tries (spec/deployment-and-set §1.2).
const REACHABLE_WITHIN: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Why a cluster can't be used (yet).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    /// The API server did not answer, or is not healthy.
    #[error(
        "the API server of cluster {cluster} is not healthy: {cause} (asked for {within:?}); check address and \
         certificate authority in the kubeconfig, the network, and the server itself"
    )]
    Unreachable {
        /// The cluster, such as `control`.
        cluster: String,
        /// The last answer or error.
        cause: String,
        /// How long the API server was asked.
        within: Duration,
    },
    /// The API server does not accept the credentials.
    #[error(
        "the API server of cluster {cluster} does not accept our credentials: {cause}; renew the token or certificate \
         in the kubeconfig"
    )]
    Unauthorized {
        /// The cluster.
        cluster: String,
        /// The answer of the API server.
        cause: String,
    },
    /// Kinds are not served.
    #[error(
        "cluster {cluster} does not serve {}; install the CRDs: `mcm manifests crds | kubectl apply -f -`",
        missing.join(", ")
    )]
    MissingKinds {
        /// The cluster.
        cluster: String,
        /// `plural.group` of each missing kind.
        missing: Vec<String>,
    },
    /// Permissions are missing.
    #[error("forbidden in cluster {cluster}: {}; grant it, see `mcm manifests rbac`", join(missing))]
    Forbidden {
        /// The cluster.
        cluster: String,
        /// The missing permissions.
        missing: Vec<Permission>,
    },
    /// A check could not be made.
    #[error("cannot ask the API server of cluster {cluster} for {what}: {error}")]
    Unanswered {
        /// The cluster.
        cluster: String,
        /// The subject of the check.
        what: &'static str,
        /// The error.
        error: ApiError,
    },
}

fn join(permissions: &[Permission]) -> String {
    permissions.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A permission that the process needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The verb, such as `patch`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural, with the subresource after a slash.
    pub resource: &'static str,
    /// The namespace; `None` for the whole cluster.
    pub namespace: Option<String>,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the whole cluster"),
        }
    }
}

/// Checks one cluster.
#[derive(Clone)]
pub struct Preflight {
    cluster: String,
    client: kube::Client,
}

impl Preflight {
    /// Checks a cluster; `name` is `control` or `target`.
    pub fn of(name: &str, cluster: &Cluster) -> Self {
        Self::new(format!("{name} ({})", cluster.host()), cluster.client(Purpose::Discovery))
    }

    /// Checks through a client without a rate limit.
    pub fn new(cluster: impl Into<String>, client: kube::Client) -> Self {
        Self { cluster: cluster.into(), client }
    }

    /// Waits up to ten seconds until `/healthz` is healthy: tries at once, then each second.
    pub async fn reachable(&self) -> Result<(), PreflightError> {
        let until = Instant::now() + REACHABLE_WITHIN;
        let mut cause = "no answer".to_owned();
        loop {
            match tokio::time::timeout_at(until, self.healthz()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Health::Unauthorized(cause))) => {
                    return Err(PreflightError::Unauthorized { cluster: self.cluster.clone(), cause });
                }
                Ok(Err(Health::Unhealthy(text))) => cause = text,
                Err(_) => {}
            }
            if Instant::now() + RETRY_EVERY > until {
                let cluster = self.cluster.clone();
                return Err(PreflightError::Unreachable { cluster, cause, within: REACHABLE_WITHIN });
            }
            tracing::warn!(cluster = self.cluster, error = cause, "API server not reachable yet");
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Asks `/healthz` once.
    async fn healthz(&self) -> Result<(), Health> {
        let request = http::Request::get("/healthz")
            .body(kube::client::Body::empty())
            .map_err(|error| Health::Unhealthy(error.to_string()))?;
        let answer = self.client.send(request).await.map_err(|error| Health::Unhealthy(chain(&error)))?;
        match answer.status().as_u16() {
            // 403: this process may not read /healthz, but the server answers.
            200 | 403 => Ok(()),
            401 => Err(Health::Unauthorized("401 Unauthorized".to_owned())),
            _ => Err(Health::Unhealthy(format!("/healthz answers {}", answer.status()))),
        }
    }

    /// Whether the API server is healthy now. The safety controller asks this.
    pub async fn is_healthy(&self) -> bool {
        self.healthz().await.is_ok()
    }

    /// Checks that the API server serves these kinds, given as plurals of one group and version.
    pub async fn serves(&self, group: &str, version: &str, plurals: &[&str]) -> Result<(), PreflightError> {
        let served = self.served(group, version).await?;
        let missing: Vec<String> = plurals
            .iter()
            .filter(|plural| !served.iter().any(|served| served == *plural))
            .map(|plural| format!("{plural}.{group}/{version}"))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(PreflightError::MissingKinds { cluster: self.cluster.clone(), missing })
    }

    /// Checks that all four kinds of machine objects are served.
    pub async fn serves_machine_kinds(&self) -> Result<(), PreflightError> {
        let kinds = ["machineclasses", "machinedeployments", "machines", "machinesets"];
        self.serves(names::GROUP, names::V1ALPHA1, &kinds).await
    }

    /// The plurals of the kinds in a group and version; empty when the group is unknown.
    pub async fn served(&self, group: &str, version: &str) -> Result<Vec<String>, PreflightError> {
        let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        match self.get::<APIResourceList>(&path).await {
            Ok(list) => Ok(list.resources.into_iter().map(|resource| resource.name).collect()),
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => Ok(Vec::new()),
            Err(error) => Err(self.unanswered("the kinds it serves", error)),
        }
    }

    /// Checks that this process has all these permissions.
    pub async fn allowed(&self, wanted: &[Permission]) -> Result<(), PreflightError> {
        let mut missing = Vec::new();
        for permission in wanted {
            if !self.is_allowed(permission).await.map_err(|error| self.unanswered("our permissions", error))? {
                missing.push(permission.clone());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(PreflightError::Forbidden { cluster: self.cluster.clone(), missing })
    }

    async fn is_allowed(&self, permission: &Permission) -> Result<bool, ApiError> {
        let (resource, subresource) = permission
            .resource
            .split_once('/')
            .map_or((permission.resource, None), |(resource, subresource)| (resource, Some(subresource.to_owned())));
        let attributes = ResourceAttributes {
            verb: Some(permission.verb.to_owned()),
            group: Some(permission.group.to_owned()),
            resource: Some(resource.to_owned()),
            subresource,
            namespace: permission.namespace.clone(),
            ..ResourceAttributes::default()
        };
        is_allowed(&self.client, attributes).await
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(|error| ApiError::Other(format!("request for {path}: {error}")))?;
        call(self.client.request::<T>(request)).await
    }

    fn unanswered(&self, what: &'static str, error: ApiError) -> PreflightError {
        PreflightError::Unanswered { cluster: self.cluster.clone(), what, error }
    }
}

/// Whether the user of this client may do this.
///
/// # Errors
/// When the API server does not answer.
pub async fn is_allowed(client: &kube::Client, attributes: ResourceAttributes) -> Result<bool, ApiError> {
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), non_resource_attributes: None };
    let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
    let answer = ApiServer::<SelfSubjectAccessReview>::of_kind(client.clone(), ()).create(&review).await?;
    Ok(answer.status.as_ref().is_some_and(|status| status.allowed))
}

/// A `/healthz` result other than "ok".
enum Health {
    Unauthorized(String),
    Unhealthy(String),
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use kube::client::Body;

    use super::*;

    /// A server whose answers depend on the path and on the number of earlier requests.
    fn server(answer: impl Fn(&str, usize) -> (u16, String) + Send + Sync + 'static) -> Preflight {
        let (answer, asked) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (answer, asked) = (Arc::clone(&answer), asked.fetch_add(1, Ordering::SeqCst));
            async move {
                let (code, body) = answer(request.uri().path(), asked);
                let answer = http::Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap();
                Ok::<_, kube::Error>(answer)
            }
        });
        Preflight::new("control", kube::Client::new(service, "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_up_in_time_is_waited_for() {
        let began = Instant::now();
        let check = server(|_, asked| (if asked < 4 { 500 } else { 200 }, "ok".to_owned()));
        assert_eq!(check.reachable().await, Ok(()));
        assert_eq!(began.elapsed(), Duration::from_secs(4));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unhealthy_server_is_an_error_after_ten_seconds() {
        let began = Instant::now();
        let error = server(|_, _| (500, "etcd".to_owned())).reachable().await.unwrap_err().to_string();
        assert!(error.contains("cluster control") && error.contains("500") && error.contains("kubeconfig"), "{error}");
        assert!(began.elapsed() <= REACHABLE_WITHIN);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_an_error_at_once() {
        let error = server(|_, _| (401, String::new())).reachable().await.unwrap_err();
        assert!(matches!(error, PreflightError::Unauthorized { .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_forbidden_healthz_shows_that_the_server_is_reachable() {
        assert_eq!(server(|_, _| (403, String::new())).reachable().await, Ok(()));
    }

    const NOT_FOUND: &str = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404,"message":"no"}"#;

    #[tokio::test]
    async fn mc_008_s_cli_09_each_missing_kind_is_named_with_the_remedy() {
        let error = server(|_, _| (404, NOT_FOUND.to_owned())).serves_machine_kinds().await.unwrap_err().to_string();
        for word in ["machineclasses.", "machines.machine.sapcloud.io/v1alpha1", "mcm manifests crds | kubectl apply"] {
            assert!(error.contains(word), "{word:?} missing in {error:?}");
        }
        let some = r#"{"groupVersion":"machine.sapcloud.io/v1alpha1","resources":[
            {"name":"machines","singularName":"","namespaced":true,"kind":"Machine","verbs":[]},
            {"name":"machinesets","singularName":"","namespaced":true,"kind":"MachineSet","verbs":[]},
            {"name":"machineclasses","singularName":"","namespaced":true,"kind":"MachineClass","verbs":[]}]}"#;
        let error = server(|_, _| (200, some.to_owned())).serves_machine_kinds().await.unwrap_err();
        let missing = vec!["machinedeployments.machine.sapcloud.io/v1alpha1".to_owned()];
        assert_eq!(error, PreflightError::MissingKinds { cluster: "control".to_owned(), missing });
    }

    #[tokio::test]
    async fn a_missing_permission_is_named_by_verb_and_resource() {
        let check = server(|_, asked| (201, format!(r#"{{"spec":{{}},"status":{{"allowed":{}}}}}"#, asked == 0)));
        let permission =
            |verb, resource| Permission { verb, group: names::GROUP, resource, namespace: Some("shoot".to_owned()) };
        let wanted = [permission("list", "machines"), permission("patch", "machines/status")];
        let error = check.allowed(&wanted).await.unwrap_err().to_string();
        assert!(error.contains("patch machines/status.machine.sapcloud.io in namespace shoot"), "{error}");
        assert!(!error.contains("list machines"), "{error}");
    }
}
