//! Why a call failed, and whether the same request may succeed later.

use std::time::Duration;

use http::{HeaderMap, header};
use machine_driver::{Code, Status};

use crate::transport::NoAnswer;

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The cloud refused the request because there were too many requests. The request had no effect.
    Throttled,
    /// The request did not reach the cloud.
    NotSent,
    /// A temporary fault. It is unknown whether the cloud carried out the request.
    Temporary,
    /// A retry gets the same answer.
    Permanent,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The status for the machine controller.
    pub status: Status,
    /// The error code of the cloud. Empty if the answer has no code.
    pub reason: String,
    /// Whether a retry may succeed.
    pub kind: FailureKind,
    /// How long the cloud asks the client to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A permanent failure.
    pub fn permanent(code: Code, message: impl Into<String>) -> Self {
        Self::new(code, message, FailureKind::Permanent)
    }

    /// A failure of this kind, without an error code of the cloud.
    pub fn new(code: Code, message: impl Into<String>, kind: FailureKind) -> Self {
        Self { status: Status::new(code, message), reason: String::new(), kind, retry_after: None }
    }

    /// The failure for a missing answer. `what` names the request for users.
    pub fn without_answer(what: &str, why: &NoAnswer) -> Self {
        match why {
            NoAnswer::NotSent(cause) => Self::new(Code::Unavailable, format!("{what}: {cause}"), FailureKind::NotSent),
            NoAnswer::Lost(cause) => Self::new(Code::Unavailable, format!("{what}: {cause}"), FailureKind::Temporary),
            NoAnswer::TooLong => Self::permanent(Code::Internal, format!("{what}: the answer is too long")),
            NoAnswer::Unusable(cause) => Self::permanent(Code::FailedPrecondition, format!("{what}: {cause}")),
        }
    }

    /// Adds the `Retry-After` of the answer.
    #[must_use]
    pub fn asking_to_wait(self, headers: &HeaderMap) -> Self {
        // Clouds do not use the form with a date.
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self { retry_after: seconds.map(Duration::from_secs), ..self }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.status
    }
}
