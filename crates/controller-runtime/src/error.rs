//! What a call to a Kubernetes API can end with, as facts a controller can act on.

use std::time::Duration;

use kube::{Resource, runtime::watcher};

/// A failed API call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 404 with a `Status` of reason `NotFound`: the object does not exist (any more).
    #[error("not found: {0}")]
    NotFound(String),
    /// 404 without such a `Status`: the path is not served, or something between us and the API server answered. It says
    /// nothing about any object (decisions.md 45).
    #[error("not served: {0}")]
    NotServed(String),
    /// 409 on a write: somebody changed the object meanwhile; observe again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 409 on a create: the name is taken.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// 422: the API server or a webhook refuses the object; also a JSON patch whose `test` failed.
    #[error("invalid: {0}")]
    Invalid(String),
    /// 401 or 403: we may not do this.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// 429 because of a disruption budget.
    #[error("refused by a disruption budget: {0}")]
    DisruptionBudget(String),
    /// 429 for load; try again, at the earliest after this time where the server said so.
    #[error("too many requests")]
    TooManyRequests(Option<Duration>),
    /// No answer in time: what was asked may have happened or not.
    #[error("no answer within {0:?}; the outcome is unknown")]
    TimedOut(Duration),
    /// 500: the server failed at this very request and says why. Whether it was done is not known.
    #[error("the API server failed: {0}")]
    ServerFault(String),
    /// The connection failed or the server could not answer (other 5xx).
    #[error("API server not available: {0}")]
    Unavailable(String),
    /// This process may not act: it does not hold the lease, or it is stopping.
    #[error("not acting: {0}")]
    NotLeading(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl ApiError {
    /// Whether the write may have happened although the call failed. Then the object must be read again before anything
    /// is decided about it.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Unavailable(_) | Self::ServerFault(_) | Self::NotServed(_))
    }

    /// Whether the API server says itself why the call failed, be it that it may have done what was asked: a webhook that it
    /// can't reach, for one, is a fault of the server.
    pub fn is_explained(&self) -> bool {
        matches!(self, Self::ServerFault(_)) || !self.outcome_unknown()
    }

    /// Whether the API server refuses the write itself: by missing rights, a quota, a policy or a webhook. It refuses it again
    /// until somebody has changed something.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::Forbidden(_))
    }

    /// Whether the object is gone, which a deletion takes for success.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

impl ApiError {
    /// What a failed call about one object means. Only a 404 that names kind and object is about that object; any other 404
    /// comes from somebody who does not know it, and then the API server counts as unavailable (decisions.md 45).
    pub fn about<K: Resource<DynamicType = ()>>(error: kube::Error, name: &str) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 && !names::<K>(&status, name) => {
                let (kind, said) = (K::plural(&()), shortened(&status.message));
                Self::Unavailable(format!("404 to a question about {kind} {name:?} that does not name it: {said}"))
            }
            other => Self::from(other),
        }
    }
}

/// Whether a 404 says of this very object that it does not exist.
fn names<K: Resource<DynamicType = ()>>(status: &kube::core::Status, name: &str) -> bool {
    let Some(details) = &status.details else { return false };
    let is_kind =
        details.kind.eq_ignore_ascii_case(&K::plural(&())) || details.kind.eq_ignore_ascii_case(&K::kind(&()));
    let is_group = details.group.is_empty() || details.group == K::group(&());
    status.reason == NOT_FOUND && is_kind && is_group && details.name == name
}

/// The reason of a `Status` that says that an object does not exist.
const NOT_FOUND: &str = "NotFound";

/// As much of an answer as an error may quote: what is between us and the API server may send whole pages.
pub(super) fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= 200 { line.to_owned() } else { line.chars().take(200).chain(['…']).collect() }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => from_status(&status),
            kube::Error::SerdeError(error) => Self::Other(format!("unreadable answer of the API server: {error}")),
            other => Self::Unavailable(chain(&other)),
        }
    }
}

impl From<watcher::Error> for ApiError {
    fn from(error: watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => error.into(),
            watcher::Error::WatchError(status) => from_status(&status),
            watcher::Error::NoResourceVersion => Self::Other(error.to_string()),
        }
    }
}

/// Whether a write was refused because the name belongs to another object now: patches of built-in kinds that carry the UID of the
/// object that was read are answered so, where those of custom kinds meet a conflict.
fn is_about_another_object(status: &kube::core::Status) -> bool {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|cause| cause.field == "metadata.uid")
}

fn from_status(status: &kube::core::Status) -> ApiError {
    let message = status.message.clone();
    match status.code {
        404 if status.reason == NOT_FOUND => ApiError::NotFound(message),
        404 => ApiError::NotServed(shortened(&message)),
        409 if status.reason == "AlreadyExists" => ApiError::AlreadyExists(message),
        409 => ApiError::Conflict(message),
        422 if is_about_another_object(status) => ApiError::Conflict(message),
        400 | 422 => ApiError::Invalid(message),
        401 | 403 => ApiError::Forbidden(message),
        429 => {
            let details = status.details.as_ref();
            let by_budget =
                details.is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "DisruptionBudget"));
            if by_budget {
                ApiError::DisruptionBudget(message)
            } else {
                let seconds = details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
                ApiError::TooManyRequests(seconds.map(|seconds| Duration::from_secs(u64::from(seconds))))
            }
        }
        500 => ApiError::ServerFault(message),
        501..=599 => ApiError::Unavailable(message),
        _ => ApiError::Other(message),
    }
}

/// An error with its causes, outermost first; libraries tend to hide the telling part in a source.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = plain(error);
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = plain(cause);
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    if text.contains(OLD_CERTIFICATE) { OLD_CERTIFICATE_TEXT.to_owned() } else { text }
}

/// What the TLS library says of a client certificate that `openssl x509 -req` made without extensions.
const OLD_CERTIFICATE: &str = "UnsupportedCertVersion";
const OLD_CERTIFICATE_TEXT: &str = "the client certificate is one of X.509 version 1, which is not supported: issue it anew with \
    extensions, which makes it version 3 (`openssl x509 -req … -extfile FILE`, with extendedKeyUsage=clientAuth in the file)";

/// What an error says, without the words that kube puts before any error of the connection or of the API.
fn plain(error: &dyn std::error::Error) -> String {
    error.to_string().replace("ServiceError: ", "").replace("ApiError: ", "")
}

/// How the fake API servers of tests say that something does not exist.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use serde_json::{Value, json};

    /// The `Status` about the object at a path, as an API server answers it.
    pub fn not_found_at(path: &str) -> Value {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group = if parts.first() == Some(&"apis") { parts[1] } else { "" };
        parts.drain(..if group.is_empty() { 2 } else { 3 });
        if parts.first() == Some(&"namespaces") && parts.len() > 2 {
            parts.drain(..2);
        }
        let (kind, name) = (parts[0], parts.get(1).copied().unwrap_or_default());
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
            "message": format!("{kind} {name:?} not found"), "details": { "name": name, "group": group, "kind": kind },
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use machine_api::v1alpha1::Machine;

    fn refusal(code: u16, body: &Value) -> kube::Error {
        let status: kube::core::Status = serde_json::from_value(body.clone()).unwrap();
        kube::Error::Api(status.with_code(code).boxed())
    }

    fn nodes(reason: &str, details: &Value) -> ApiError {
        let body =
            json!({ "kind": "Status", "status": "Failure", "reason": reason, "message": "no", "details": details });
        ApiError::about::<Node>(refusal(404, &body), "n")
    }

    #[test]
    fn an_old_client_certificate_is_named_as_the_cause() {
        let of_tls = "invalid peer certificate: Other(OtherError(UnsupportedCertVersion))";
        let error = ApiError::from(kube::Error::Service(std::io::Error::other(of_tls).into()));
        let ApiError::Unavailable(text) = error else { panic!("{error:?}") };
        assert!(text.contains("X.509 version 1") && text.contains("-extfile"), "{text}");
    }

    #[rstest]
    #[case::named(nodes("NotFound", &json!({ "kind": "nodes", "name": "n" })), true)]
    #[case::named_by_its_kind(nodes("NotFound", &json!({ "kind": "Node", "name": "n" })), true)]
    #[case::another_object(nodes("NotFound", &json!({ "kind": "nodes", "name": "o" })), false)]
    #[case::another_kind(nodes("NotFound", &json!({ "kind": "pods", "name": "n" })), false)]
    #[case::another_group(nodes("NotFound", &json!({ "kind": "nodes", "name": "n", "group": "x.io" })), false)]
    #[case::no_object(nodes("NotFound", &json!({})), false)]
    #[case::no_details(nodes("NotFound", &Value::Null), false)]
    #[case::another_reason(nodes("Failed to parse error data", &json!({ "kind": "nodes", "name": "n" })), false)]
    fn only_a_404_that_names_kind_and_object_proves_that_it_is_gone(#[case] error: ApiError, #[case] proves: bool) {
        assert_eq!(error.is_not_found(), proves, "{error}");
        assert!(proves || matches!(error, ApiError::Unavailable(_)) && error.outcome_unknown(), "{error:?}");
    }

    #[rstest]
    #[case::of_the_object("metadata.uid", true)]
    #[case::of_its_content("spec.podCIDR", false)]
    fn an_immutable_uid_says_that_the_name_is_of_another_object(#[case] field: &str, #[case] is_conflict: bool) {
        let cause = json!({ "reason": "FieldValueInvalid", "message": "field is immutable", "field": field });
        let body = json!({
            "kind": "Status", "status": "Failure", "reason": "Invalid", "message": "Node \"n\" is invalid",
            "details": { "name": "n", "kind": "Node", "causes": [cause] },
        });
        let error = ApiError::about::<Node>(refusal(422, &body), "n");
        assert_eq!(matches!(error, ApiError::Conflict(_)), is_conflict, "{error:?}");
    }

    #[test]
    fn an_api_server_names_machines_with_their_group() {
        let status = testing::not_found_at("/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m");
        assert!(ApiError::about::<Machine>(refusal(404, &status), "m").is_not_found());
        assert!(!ApiError::about::<Machine>(refusal(404, &status), "other").is_not_found());
    }

    #[test]
    fn a_page_of_a_gateway_is_quoted_in_short() {
        let page = format!("default backend - 404 {}\n<html>", "x".repeat(10_000));
        let status = kube::core::Status::failure(&page, "Failed to parse error data").with_code(404);
        let error = ApiError::from(kube::Error::Api(status.boxed()));
        assert!(matches!(&error, ApiError::NotServed(_)) && error.outcome_unknown(), "{error:?}");
        assert!(error.to_string().len() < 300, "{error}");
    }
}
