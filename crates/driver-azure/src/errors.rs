//! Maps errors of Azure Resource Manager and of its operations to machine codes (spec/providers §4.4).
//!
//! The code at the top of an error is often a general one, such as `DeploymentFailed` or `Conflict`. Therefore all codes in it count: the codes in
//! `details`, in `innererror`, and in an error that a message contains as JSON.

use cloud_client::{Answer, Failure, FailureKind};
use machine_driver::Code;
use serde_json::Value;

use crate::api;

/// The Go driver's code for a failure with this code: `ResourceExhausted` for lack of capacity, `NotFound` for a missing VM or image, `InvalidArgument`
/// for a class or a Secret that the driver itself refuses, and `Internal` otherwise.
pub fn as_go(code: Code) -> Code {
    match code {
        Code::ResourceExhausted | Code::NotFound | Code::Unimplemented => code,
        _ => Code::Internal,
    }
}

/// The codes that mean lack of capacity, or a used up quota.
const EXHAUSTED: [&str; 9] = [
    "AllocationFailed",
    "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest",
    "QuotaExceeded",
    "ResourceQuotaExceeded",
    "SkuNotAvailable",
    "SpotVMNotAvailable",
    "SubnetIsFull",
    "ZonalAllocationFailed",
];
/// The code whose message says whether a quota is used up.
const OPERATION_NOT_ALLOWED: &str = "OperationNotAllowed";
/// The code whose message says whether the size is not supported in the zone.
const BAD_REQUEST: &str = "BadRequest";
/// The codes for wrong or missing credentials.
const UNAUTHENTICATED: [&str; 5] = [
    "AuthenticationFailed",
    "ExpiredAuthenticationToken",
    "InvalidAuthenticationToken",
    "InvalidAuthenticationTokenTenant",
    "InvalidClientSecret",
];
/// The begin of the codes of Microsoft Entra.
const ENTRA: &str = "AADSTS";
/// The codes for a missing right.
const DENIED: [&str; 2] = ["AuthorizationFailed", "LinkedAuthorizationFailed"];
/// The codes of temporary faults, and of resources that another operation is changing.
const UNAVAILABLE: [&str; 9] = [
    "AnotherOperationInProgress",
    "CanceledAndSupersededDueToAnotherOperation",
    "InternalServerError",
    "NicReservedForAnotherVm",
    "OperationPreempted",
    "RetryableError",
    "ServerTimeout",
    "ServiceUnavailable",
    "TooManyRequests",
];
/// The codes for a class that Azure does not accept.
const INVALID: [&str; 3] = ["ImageNotFound", "InvalidParameter", "PropertyChangeNotAllowed"];
/// The codes that mean that a subscription does not exist, or that the credentials do not see it.
const NO_SUBSCRIPTION: [&str; 2] = ["InvalidSubscriptionId", "SubscriptionNotFound"];
/// The code for a missing resource group.
pub const NO_GROUP: &str = "ResourceGroupNotFound";
/// The codes for a missing resource of a resource group.
const NO_RESOURCE: [&str; 2] = ["NotFound", "ResourceNotFound"];
/// The code of a `PUT` with `If-None-Match: *` for a resource that exists.
pub const PRECONDITION_FAILED: &str = "PreconditionFailed";
/// The codes of a creation whose disk exists already, as the rest of an earlier creation.
const DISK_EXISTS: [&str; 3] = ["ConflictingUserInput", "DiskAlreadyExists", "ResourceExists"];
/// How deep errors are searched for codes.
const DEEPEST: usize = 6;
/// The most codes that are read of one error.
const MOST_CODES: usize = 32;

/// A code in an error with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    pub code: String,
    pub message: String,
}

impl ErrorEntry {
    fn is(&self, codes: &[&str]) -> bool {
        codes.iter().any(|code| self.code.eq_ignore_ascii_case(code))
    }

    fn is_exhausted(&self) -> bool {
        let message = || self.message.to_ascii_lowercase();
        self.is(&EXHAUSTED)
            || (self.is(&[OPERATION_NOT_ALLOWED])
                && message().split_once("exceeding").is_some_and(|(_, rest)| rest.contains("quota")))
            || (self.is(&[BAD_REQUEST]) && says_not_supported(&message()))
    }
}

/// Whether a message has the word `not`, white space, and `supported`.
fn says_not_supported(message: &str) -> bool {
    message.match_indices("not").any(|(at, _)| {
        let rest = &message[at + "not".len()..];
        let trimmed = rest.trim_start();
        trimmed.len() < rest.len() && trimmed.starts_with("supported")
    })
}

/// An error of Azure: all its codes, the outer ones first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmError {
    entries: Vec<ErrorEntry>,
}

impl ArmError {
    /// The error in the body of an answer: below `error`, or the body itself. `None` for another body, such as the page of a proxy.
    pub fn of_body(body: &Value) -> Option<Self> {
        let error = if body["error"].is_object() { &body["error"] } else { body };
        let mut entries = Vec::new();
        collect(error, 0, &mut entries);
        (!entries.is_empty()).then_some(Self { entries })
    }

    /// An error with one code.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { entries: vec![ErrorEntry { code: code.into(), message: message.into() }] }
    }

    /// The outermost code.
    pub fn code(&self) -> &str {
        self.entries.first().map(|entry| entry.code.as_str()).unwrap_or_default()
    }

    fn any(&self, codes: &[&str]) -> bool {
        self.entries.iter().any(|entry| entry.is(codes))
    }

    /// The machine code. `status` is the HTTP status, or 0 for the error of an operation.
    pub fn machine_code(&self, status: u16) -> Code {
        let is_of_entra = |entry: &ErrorEntry| entry.code.starts_with(ENTRA) || entry.message.starts_with(ENTRA);
        if self.entries.iter().any(ErrorEntry::is_exhausted) {
            Code::ResourceExhausted
        } else if status == 401 || self.any(&UNAUTHENTICATED) || self.entries.iter().any(is_of_entra) {
            Code::Unauthenticated
        } else if status == 403 || self.any(&DENIED) {
            Code::PermissionDenied
        } else if self.any(&NO_SUBSCRIPTION) {
            Code::FailedPrecondition
        } else if matches!(status, 408 | 429 | 500..) || self.any(&UNAVAILABLE) {
            Code::Unavailable
        } else if self.any(&INVALID) {
            Code::InvalidArgument
        } else if status == 404 && (self.any(&[NO_GROUP]) || self.any(&NO_RESOURCE)) {
            Code::NotFound
        } else if status == 404 {
            Code::FailedPrecondition
        } else if status == 412 || self.any(&[PRECONDITION_FAILED]) {
            Code::AlreadyExists
        } else {
            Code::Internal
        }
    }

    /// The text for users: each code with its message. A message that contains the next one is shown without its code again.
    pub fn text(&self) -> String {
        let mut texts: Vec<String> = Vec::new();
        for ErrorEntry { code, message } in &self.entries {
            let text = if message.is_empty() { code.clone() } else { format!("{code}: {message}") };
            if !texts.iter().any(|known| known.contains(&text)) {
                texts.push(text);
            }
        }
        texts.join("; ")
    }

    /// The failure of an operation.
    pub fn failed(&self, what: &str) -> Failure {
        self.with_status(what, 0)
    }

    fn with_status(&self, what: &str, status: u16) -> Failure {
        let code = self.machine_code(status);
        let kind = kind(status, code);
        Failure { reason: self.code().to_owned(), ..Failure::new(code, format!("{what}: {}", self.text()), kind) }
    }

    /// Whether it says that a disk of the VM exists already.
    pub fn is_disk_in_the_way(reason: &str, message: &str) -> bool {
        DISK_EXISTS.iter().any(|code| reason.eq_ignore_ascii_case(code))
            || (message.contains("already exists") && message.to_ascii_lowercase().contains("disk"))
    }
}

/// Collects the codes of an error.
fn collect(error: &Value, depth: usize, entries: &mut Vec<ErrorEntry>) {
    if depth > DEEPEST || entries.len() >= MOST_CODES {
        return;
    }
    let message = error["message"].as_str().unwrap_or_default().trim();
    // Some services put the JSON of another service's error into their message.
    let inner: Option<Value> = message.starts_with('{').then(|| serde_json::from_str(message).ok()).flatten();
    if let Some(code) = error["code"].as_str().filter(|code| !code.is_empty()) {
        let message = if inner.is_some() { "" } else { message };
        entries.push(ErrorEntry { code: code.to_owned(), message: message.to_owned() });
    }
    if let Some(inner) = &inner {
        collect(if inner["error"].is_object() { &inner["error"] } else { inner }, depth + 1, entries);
    }
    for detail in error["details"].as_array().into_iter().flatten() {
        collect(detail, depth + 1, entries);
    }
    for inner in [&error["innererror"], &error["innerError"]] {
        collect(inner, depth + 1, entries);
    }
}

const fn kind(status: u16, code: Code) -> FailureKind {
    match (status, code) {
        (429, _) => FailureKind::Throttled,
        (408 | 500.., Code::Unavailable) => FailureKind::Temporary,
        // The caller tries again later: within one call the state of the resource does not change.
        _ => FailureKind::Permanent,
    }
}

/// The failure in an answer that is no success. `what` names the request for users.
pub fn failure(what: &str, answer: &Answer) -> Failure {
    let status = answer.status.as_u16();
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut failure = if let Some(error) = ArmError::of_body(&body) {
        error.with_status(what, status)
    } else {
        let code = code_without_error(status);
        let message = format!("{what}: status {status}, and the answer is no error of Azure");
        Failure::new(code, message, kind(status, code))
    };
    if let Some(id) = answer.headers.get(api::REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| is_request_id(id))
    {
        failure.status.message = format!("{} (request {id})", failure.status.message);
    }
    failure
}

fn is_request_id(id: &str) -> bool {
    (1..=80).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b':')
}

/// The code for an answer of a proxy or a load balancer.
const fn code_without_error(status: u16) -> Code {
    match status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        // Azure describes every error, also in a 404. Without a description a proxy has found no way to the service.
        404 | 408 | 429 | 500.. => Code::Unavailable,
        _ => Code::Internal,
    }
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;
