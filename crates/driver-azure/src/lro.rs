//! Long-running operations of Azure Resource Manager: decides what follows from an answer. Pure functions.
//!
//! Azure answers a change before it is carried out. The header `Azure-AsyncOperation` names a URL with the state of the operation, and the header
//! `Location` a URL that answers 202 while the operation runs. An answer without either tells the state of the resource itself.

use std::time::Duration;

use cloud_client::{
    Answer,
    http::{HeaderMap, Uri, header},
};
use serde_json::Value;

use crate::{api, errors::ArmError, resources};

/// An answer that is a success.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    /// The URL with the state of the operation.
    pub operation: Option<String>,
    /// The URL that answers 202 while the operation runs.
    pub location: Option<String>,
    /// When Azure wants to be asked next.
    pub retry_after: Option<Duration>,
    /// The body. `Null` if it is empty.
    pub body: Value,
}

impl Reply {
    /// The answer. `None` if its body is no JSON.
    pub fn of(answer: &Answer) -> Option<Self> {
        let body = if answer.body.iter().all(u8::is_ascii_whitespace) {
            Value::Null
        } else {
            serde_json::from_slice(&answer.body).ok()?
        };
        let text = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Some(Self {
            status: answer.status.as_u16(),
            operation: text(api::ASYNC_OPERATION),
            location: text(header::LOCATION.as_str()),
            retry_after: retry_after(&answer.headers),
            body,
        })
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A creation or an update. The resource exists at the end.
    Write,
    /// A deletion.
    Delete,
}

/// Where the state of an operation is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// At a URL with the state of the operation.
    Operation(Uri),
    /// At a URL that answers 202 while the operation runs.
    Location(Uri),
    /// At the resource that is changed.
    Resource,
}

/// The next step of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The change has been carried out.
    Done,
    /// The change is not finished. Azure is asked again after a pause.
    Wait(Follow),
    /// The change has failed.
    Failed(ArmError),
}

/// A state that will not change any more.
enum Ended {
    Succeeded,
    Failed,
}

fn ended(state: &str) -> Option<Ended> {
    if state.eq_ignore_ascii_case("Succeeded") {
        Some(Ended::Succeeded)
    } else if ["Failed", "Canceled", "Cancelled"].iter().any(|failed| state.eq_ignore_ascii_case(failed)) {
        Some(Ended::Failed)
    } else {
        None
    }
}

/// The step after the answer to the request itself. `followed` returns a URL of the answer if requests may be sent to it.
pub fn begun(change: Change, reply: &Reply, followed: impl Fn(&str) -> Option<Uri>) -> Step {
    if reply.status == 204 {
        return Step::Done;
    }
    if let Some(url) = &reply.operation {
        return Step::Wait(followed(url).map_or(Follow::Resource, Follow::Operation));
    }
    if let Some(url) = reply.location.as_ref().filter(|_| reply.status == 202) {
        return Step::Wait(followed(url).map_or(Follow::Resource, Follow::Location));
    }
    match (change, reply.status) {
        (_, 202) => Step::Wait(Follow::Resource),
        (Change::Delete, _) => Step::Done,
        (Change::Write, _) => of_resource(change, Some(&reply.body)),
    }
}

/// The step after the answer of the URL with the state of an operation. `None` is an answer that the operation is not known.
pub fn of_operation(url: Uri, reply: Option<&Reply>) -> Step {
    let Some(reply) = reply else { return Step::Wait(Follow::Resource) };
    let state = resources::text(&reply.body["status"]);
    match ended(state) {
        Some(Ended::Succeeded) => Step::Done,
        Some(Ended::Failed) => Step::Failed(error_of(&reply.body["error"], state)),
        // An answer without a state does not tell whether the operation runs.
        None if state.is_empty() && reply.status != 202 => Step::Wait(Follow::Resource),
        None => Step::Wait(Follow::Operation(url)),
    }
}

/// The step after the answer of the URL that answers 202 while an operation runs. `None` is an answer that the operation is not known.
pub fn of_location(change: Change, url: Uri, reply: Option<&Reply>) -> Step {
    match reply {
        None => Step::Wait(Follow::Resource),
        Some(reply) if reply.status == 202 => Step::Wait(Follow::Location(url)),
        Some(reply) if change == Change::Write => of_resource(change, Some(&reply.body)),
        Some(_) => Step::Done,
    }
}

/// The step after an answer with the resource itself. `None` is an answer that there is none.
pub fn of_resource(change: Change, body: Option<&Value>) -> Step {
    match (change, body) {
        (Change::Delete, None) => Step::Done,
        (Change::Delete, Some(_)) => Step::Wait(Follow::Resource),
        (Change::Write, None) => {
            Step::Failed(ArmError::new("OperationPreempted", "the resource was deleted meanwhile"))
        }
        (Change::Write, Some(body)) => {
            let state = resources::state(body);
            match ended(state) {
                Some(Ended::Failed) => Step::Failed(error_of(&Value::Null, state)),
                Some(Ended::Succeeded) => Step::Done,
                None if state.is_empty() => Step::Done,
                None => Step::Wait(Follow::Resource),
            }
        }
    }
}

/// The error of an operation. Azure may leave it out.
fn error_of(error: &Value, state: &str) -> ArmError {
    ArmError::of_body(error).unwrap_or_else(|| ArmError::new(state, "Azure gives no reason"))
}

/// The shortest and the longest pause that Azure may ask for.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);
/// The longest pause without a request of Azure.
const LONGEST_OWN: Duration = Duration::from_secs(10);

/// The pause before the next look, after this number of looks.
pub fn pause(retry_after: Option<Duration>, looks: u32) -> Duration {
    let own = Duration::from_secs(1).saturating_mul(1 << looks.min(5)).min(LONGEST_OWN);
    retry_after.map_or(own, |asked| asked.clamp(SHORTEST, LONGEST))
}

#[cfg(test)]
#[path = "lro_tests.rs"]
mod tests;
