//! The errors of calls to a Kubernetes API, classified by what a controller must do.

use std::time::Duration;

use kube::{Resource, runtime::watcher};

/// A failed API call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 404 with a `Status` of reason `NotFound`: the object does not exist (any more).
    #[error("not found: {0}")]
    NotFound(String),
    /// 404 without such a `Status`, or with one about another object: the path is not served, or another server answered. It says
    /// nothing about the object (decisions.md 45).
    #[error("not served: {0}")]
    NotServed(String),
    /// 409 on a write: another client has changed the object; observe again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 409 on a create: an object of this name exists.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// 422: the API server or a webhook refuses the object. Also the result of a JSON patch whose `test` failed.
    #[error("invalid: {0}")]
    Invalid(String),
    /// 413: the API server, or a gateway before it, takes no request of this size. The same write is too large at each try.
    #[error("the request is too large: {0}")]
    TooLarge(String),
    /// 401 or 403: this process does not have the permission.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// 429 because of a disruption budget.
    #[error("refused by a disruption budget: {0}")]
    DisruptionBudget(String),
    /// 429 because of load. Try again, not earlier than after this time if the server named one.
    #[error("too many requests")]
    TooManyRequests(Option<Duration>),
    /// No answer in time. The request may have been carried out or not.
    #[error("no answer within {0:?}; the outcome is unknown")]
    TimedOut(Duration),
    /// 500: the server reports an error for this request. The request may have been carried out or not.
    #[error("the API server failed: {0}")]
    ServerFault(String),
    /// The connection failed, or the server could not answer (other 5xx).
    #[error("API server not available: {0}")]
    Unavailable(String),
    /// This process may not act: it does not hold the lease, or it is stopping.
    #[error("not acting: {0}")]
    NotLeading(String),
    /// The API server answered, and the answer is not of the expected form.
    #[error("unreadable answer of the API server: {0}")]
    Unreadable(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl ApiError {
    /// Whether the write may have been carried out although the call failed. Then read the object again before deciding about it.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Unavailable(_) | Self::ServerFault(_) | Self::NotServed(_))
    }

    /// Whether the API server itself gave the cause of the failure. An unreadable answer may be the page of a proxy. The request may still have been carried out: a webhook that the
    /// server can't reach, for example, is a server error.
    pub fn is_explained(&self) -> bool {
        matches!(self, Self::ServerFault(_)) || !(self.outcome_unknown() || matches!(self, Self::Unreadable(_)))
    }

    /// Whether the API server refuses the write itself: by missing rights, a quota, a policy, a webhook or its size. A retry fails too,
    /// until the configuration or the object is changed.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::Forbidden(_) | Self::TooLarge(_))
    }

    /// Whether the next try may succeed, because the API server, or what it depends on, may be away for a moment only.
    pub const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::TooManyRequests(_)
                | Self::TimedOut(_)
                | Self::Unavailable(_)
                | Self::ServerFault(_)
                | Self::NotServed(_)
        )
    }

    /// Whether the object does not exist. A deletion counts this as success.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

impl ApiError {
    /// Classifies the error of a call about one object. Only a 404 that names the kind and the object is about this object. Any
    /// other 404 comes from another server, so it says as little as no answer (decisions.md 45).
    pub fn about<K: Resource>(error: kube::Error, kind: &K::DynamicType, name: &str) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 && !names::<K>(&status, kind, name) => {
                let (kind, said) = (K::plural(kind), shortened(&status.message));
                Self::NotServed(format!("404 to a question about {kind} {name:?} that does not name it: {said}"))
            }
            other => Self::from(other),
        }
    }
}

/// Whether a 404 says that exactly this object does not exist.
fn names<K: Resource>(status: &kube::core::Status, kind: &K::DynamicType, name: &str) -> bool {
    let Some(details) = &status.details else { return false };
    let is_kind =
        details.kind.eq_ignore_ascii_case(&K::plural(kind)) || details.kind.eq_ignore_ascii_case(&K::kind(kind));
    let is_group = details.group.is_empty() || details.group == K::group(kind);
    status.reason == NOT_FOUND && is_kind && is_group && details.name == name
}

/// The reason of a `Status` for an object that does not exist.
const NOT_FOUND: &str = "NotFound";

/// Shortens an answer for an error message, because a proxy may send whole pages.
pub(super) fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= 200 { line.to_owned() } else { line.chars().take(200).chain(['…']).collect() }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => from_status(&status),
            kube::Error::SerdeError(error) => Self::Unreadable(error.to_string()),
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

/// Whether a write failed because the name belongs to another object now. API servers answer a patch with the UID of an old object
/// like this for built-in kinds, and with a conflict for custom kinds.
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
        413 => ApiError::TooLarge(shortened(&message)),
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

/// An error with its causes, outermost first. Libraries often hide the useful part in a source.
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

/// The TLS library's error for a client certificate that `openssl x509 -req` made without extensions.
const OLD_CERTIFICATE: &str = "UnsupportedCertVersion";
const OLD_CERTIFICATE_TEXT: &str = "the client certificate is one of X.509 version 1, which is not supported: issue it anew with \
    extensions, which makes it version 3 (`openssl x509 -req … -extfile FILE`, with extendedKeyUsage=clientAuth in the file)";

/// The text of an error, without the prefixes that kube adds to errors of the connection or of the API.
fn plain(error: &dyn std::error::Error) -> String {
    error.to_string().replace("ServiceError: ", "").replace("ApiError: ", "")
}

/// Answers of simulated API servers in tests.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use serde_json::{Value, json};

    /// The `Status` for an object that does not exist, in the form of an API server.
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
        ApiError::about::<Node>(refusal(404, &body), &(), "n")
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
        assert!(proves || matches!(error, ApiError::NotServed(_)) && error.outcome_unknown(), "{error:?}");
    }

    #[rstest]
    #[case::of_the_object("metadata.uid", true)]
    #[case::of_its_content("spec.podCIDR", false)]
    fn an_immutable_uid_means_that_another_object_has_the_name(#[case] field: &str, #[case] is_conflict: bool) {
        let cause = json!({ "reason": "FieldValueInvalid", "message": "field is immutable", "field": field });
        let body = json!({
            "kind": "Status", "status": "Failure", "reason": "Invalid", "message": "Node \"n\" is invalid",
            "details": { "name": "n", "kind": "Node", "causes": [cause] },
        });
        let error = ApiError::about::<Node>(refusal(422, &body), &(), "n");
        assert_eq!(matches!(error, ApiError::Conflict(_)), is_conflict, "{error:?}");
    }

    #[test]
    fn an_api_server_names_machines_with_their_group() {
        let status = testing::not_found_at("/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m");
        assert!(ApiError::about::<Machine>(refusal(404, &status), &(), "m").is_not_found());
        assert!(!ApiError::about::<Machine>(refusal(404, &status), &(), "other").is_not_found());
    }

    /// A write that is too large is too large at each try.
    #[rstest]
    #[case::by_an_api_server("Request entity too large: limit is 3145728", "RequestEntityTooLarge")]
    #[case::by_a_gateway("<html>\n413", "Failed to parse error data")]
    fn a_write_that_is_too_large_is_refused(#[case] message: &str, #[case] reason: &str) {
        let status = kube::core::Status::failure(message, reason).with_code(413);
        let error = ApiError::from(kube::Error::Api(status.boxed()));
        assert!(error.is_refusal() && error.is_explained() && !error.outcome_unknown(), "{error:?}");
        assert!(error.to_string().starts_with("the request is too large: "), "{error}");
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
