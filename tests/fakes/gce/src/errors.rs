//! Errors in the forms of Google: the HTTP answer to a refused request, and the errors in an operation that has failed.

use serde_json::{Value, json};

use crate::{REGION, ZONE};

/// An HTTP answer that refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    body: Value,
}

impl Refusal {
    /// A refusal in the common form: one error with a reason, such as `notFound`.
    pub fn new(status: u16, reason: &str, message: &str) -> Self {
        let domain = if reason.ends_with("Exceeded") { "usageLimits" } else { "global" };
        let error = json!({"message": message, "domain": domain, "reason": reason});
        Self { status, body: json!({"error": {"code": status, "message": message, "errors": [error]}}) }
    }

    /// The project has no quota for another instance.
    pub fn quota_exceeded() -> Self {
        Self::new(403, "quotaExceeded", &format!("Quota 'INSTANCES' exceeded.  Limit: 24.0 in region {REGION}."))
    }

    /// The caller sends too many requests.
    pub fn rate_limited() -> Self {
        let message = "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com' for \
                       consumer 'project_number:123456789012'.";
        let mut refusal = Self::new(403, "rateLimitExceeded", message);
        refusal.body["error"]["status"] = json!("RESOURCE_EXHAUSTED");
        refusal.body["error"]["details"] = json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com",
            "metadata": {"service": "compute.googleapis.com", "quota_location": "global"},
        }]);
        refusal
    }

    /// The caller lacks a right.
    pub fn forbidden() -> Self {
        let message =
            format!("Required 'compute.instances.create' permission for 'projects/p/zones/{ZONE}/instances/i'");
        Self::new(403, "forbidden", &message)
    }

    /// The service is not available for a moment.
    pub fn unavailable() -> Self {
        Self::new(
            503,
            "backendError",
            "Visibility check was unavailable. Please retry the request and contact support if the problem persists",
        )
    }

    /// The credentials are not accepted.
    pub(crate) fn unauthenticated() -> Self {
        let message = "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid \
                       authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.";
        let error = json!({
            "message": "Invalid Credentials", "domain": "global", "reason": "authError", "location": "Authorization", "locationType": "header",
        });
        let body = json!({"error": {"code": 401, "message": message, "errors": [error], "status": "UNAUTHENTICATED"}});
        Self { status: 401, body }
    }

    /// An error of a token endpoint (RFC 6749).
    pub(crate) fn oauth(error: &str, description: &str) -> Self {
        Self { status: 400, body: json!({"error": error, "error_description": description}) }
    }

    pub(crate) fn not_found(resource: &str) -> Self {
        Self::new(404, "notFound", &format!("The resource '{resource}' was not found"))
    }

    pub(crate) fn already_exists(resource: &str) -> Self {
        Self::new(409, "alreadyExists", &format!("The resource '{resource}' already exists"))
    }

    pub(crate) fn not_ready(resource: &str) -> Self {
        Self::new(400, "resourceNotReady", &format!("The resource '{resource}' is not ready"))
    }

    /// A field of the request has a value that the project can't fulfil.
    pub(crate) fn invalid(field: &str, value: &str, detail: &str) -> Self {
        Self::new(400, "invalid", &format!("Invalid value for field '{field}': '{value}'. {detail}"))
    }

    /// Its HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Its body, as JSON.
    pub fn body(&self) -> String {
        self.body.to_string()
    }
}

/// An error of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationError {
    code: String,
    message: String,
    status: (u16, &'static str),
}

impl OperationError {
    /// An error with a code such as `RESOURCE_NOT_READY`.
    pub fn new(code: &str, message: &str) -> Self {
        Self { code: code.to_owned(), message: message.to_owned(), status: (400, "BAD REQUEST") }
    }

    /// The zone has no capacity for the machine type.
    pub fn zone_exhausted() -> Self {
        let message = format!(
            "The zone 'projects/{}/zones/{ZONE}' does not have enough resources available to fulfill the request.  '(resource type:compute)'.",
            crate::PROJECT
        );
        Self {
            status: (503, "SERVICE UNAVAILABLE"),
            ..Self::new("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", &message)
        }
    }

    /// The project has no quota for the instance.
    pub fn quota_exceeded() -> Self {
        let message = format!("Quota 'CPUS' exceeded.  Limit: 72.0 in region {REGION}.");
        Self { status: (403, "FORBIDDEN"), ..Self::new("QUOTA_EXCEEDED", &message) }
    }

    /// The service has failed.
    pub fn internal() -> Self {
        let message =
            "Internal error. Please try again or contact Google Support. (Code: '63A1F2B4C9D07.A1B2C3D.E4F5A6B7')";
        Self { status: (503, "SERVICE UNAVAILABLE"), ..Self::new("INTERNAL_ERROR", message) }
    }

    /// The resource was deleted while it was created.
    pub(crate) fn canceled() -> Self {
        Self {
            status: (409, "CONFLICT"),
            ..Self::new("OPERATION_CANCELED_BY_USER", "Operation was canceled by user ''.")
        }
    }

    /// The fields of an operation that failed with these errors.
    pub(crate) fn fields(errors: &[Self]) -> Vec<(&'static str, Value)> {
        let Some(first) = errors.first() else { return Vec::new() };
        let all: Vec<_> = errors.iter().map(|error| json!({"code": error.code, "message": error.message})).collect();
        let (status, words) = first.status;
        vec![
            ("error", json!({"errors": all})),
            ("httpErrorStatusCode", json!(status)),
            ("httpErrorMessage", json!(words)),
        ]
    }
}
