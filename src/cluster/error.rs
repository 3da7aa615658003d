//! What a call to a Kubernetes API can end with, as facts a controller can act on.

use std::time::Duration;

/// A failed API call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// 404: the object does not exist (any more).
    #[error("not found: {0}")]
    NotFound(String),
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
        matches!(self, Self::TimedOut(_) | Self::Unavailable(_) | Self::ServerFault(_))
    }

    /// Whether the object is gone, which a deletion takes for success.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
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

fn from_status(status: &kube::core::Status) -> ApiError {
    let message = status.message.clone();
    match status.code {
        404 => ApiError::NotFound(message),
        409 if status.reason == "AlreadyExists" => ApiError::AlreadyExists(message),
        409 => ApiError::Conflict(message),
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
    text
}

/// What an error says, without the words that kube puts before any error of the connection or of the API.
fn plain(error: &dyn std::error::Error) -> String {
    error.to_string().replace("ServiceError: ", "").replace("ApiError: ", "")
}
