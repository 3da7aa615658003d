//! Why a call failed, and whether the same request may succeed later.

use std::time::Duration;

use http::{HeaderMap, header};
use machine_driver::{Code, Status};

use crate::transport::NoAnswer;

/// What stands in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The cloud has refused it because there were too many. It has done nothing.
    Throttled,
    /// It has never arrived.
    NotSent,
    /// A fault of the moment. Whether the cloud has done what was asked is unknown.
    Passing,
    /// Another try gets the same answer.
    Lasting,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What the core hears.
    pub status: Status,
    /// The cloud's own word for it; empty where there is none.
    pub reason: String,
    /// Whether another try may succeed.
    pub trouble: Trouble,
    /// How long the cloud asks to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure that lasts.
    pub fn lasting(code: Code, message: impl Into<String>) -> Self {
        Self::new(code, message, Trouble::Lasting)
    }

    /// A failure of this kind, without a word of the cloud.
    pub fn new(code: Code, message: impl Into<String>, trouble: Trouble) -> Self {
        Self { status: Status::new(code, message), reason: String::new(), trouble, retry_after: None }
    }

    /// What a missing answer means; `what` names the request for users.
    pub fn without_answer(what: &str, why: &NoAnswer) -> Self {
        match why {
            NoAnswer::NotSent(cause) => Self::new(Code::Unavailable, format!("{what}: {cause}"), Trouble::NotSent),
            NoAnswer::Lost(cause) => Self::new(Code::Unavailable, format!("{what}: {cause}"), Trouble::Passing),
            NoAnswer::TooLong => Self::lasting(Code::Internal, format!("{what}: the answer is too long")),
            NoAnswer::Unusable(cause) => Self::lasting(Code::FailedPrecondition, format!("{what}: {cause}")),
        }
    }

    /// The same failure with what its answer says of the time until the next try.
    #[must_use]
    pub fn asking_to_wait(self, headers: &HeaderMap) -> Self {
        // The form with a date is not used by clouds.
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self { retry_after: seconds.map(Duration::from_secs), ..self }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.status
    }
}
