//! Errors in the form of Alibaba Cloud: an HTTP status, and a body with a code, a message and the id of the request.

use serde_json::json;

/// The host that errors name.
const HOST: &str = "ecs.eu-central-1.aliyuncs.com";
/// The codes of a creation that fails for lack of capacity or quota. Alibaba Cloud advises to use another client token after them.
const OF_CAPACITY: [&str; 4] =
    ["OperationDenied.NoStock", "InvalidResourceType.NotSupported", "Zone.NotOnSale", "QuotaExceed."];

/// An HTTP answer that refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    code: String,
    message: String,
}

impl Refusal {
    /// A refusal with a code such as `InvalidInstanceId.NotFound`.
    pub fn new(status: u16, code: &str, message: &str) -> Self {
        Self { status, code: code.to_owned(), message: message.to_owned() }
    }

    /// A page of a proxy, instead of an answer of the service.
    pub fn page(status: u16) -> Self {
        Self::new(status, "", "<html><head><title>Not Found</title></head><body>nginx</body></html>")
    }

    /// The zone has no more instances of the type.
    pub fn no_stock() -> Self {
        let message = "The resource is out of stock in the specified zone. Please try other types, or choose other regions and zones.";
        Self::new(403, "OperationDenied.NoStock", message)
    }

    /// The zone does not offer the type.
    pub fn not_supported() -> Self {
        Self::new(
            403,
            "InvalidResourceType.NotSupported",
            "This resource type is not supported; please try other resource types.",
        )
    }

    /// The account may have no more instances.
    pub fn quota_exceeded() -> Self {
        let message = "The maximum number of Pay-as-you-go instances is exceeded.";
        Self::new(403, "QuotaExceed.AfterpayInstance", message)
    }

    /// The caller sends too many requests.
    pub fn throttled() -> Self {
        Self::new(400, "Throttling.User", "Request was denied due to user flow control.")
    }

    /// The caller lacks a right.
    pub fn forbidden() -> Self {
        let message = "User not authorized to operate on the specified resource, or this API doesn't support RAM.";
        Self::new(403, "Forbidden.RAM", message)
    }

    /// The service has failed.
    pub fn internal() -> Self {
        Self::new(500, "InternalError", "The request processing has failed due to some unknown error.")
    }

    /// The service is not available for a moment.
    pub fn unavailable() -> Self {
        Self::new(503, "ServiceUnavailable", "The request has failed due to a temporary failure of the server.")
    }

    /// An earlier request with the same client token is not finished.
    pub fn processing() -> Self {
        let message = "The previous idempotent request(s) is still processing.";
        Self::new(403, "IdempotentProcessing", message)
    }

    /// The request was a rehearsal, and would succeed.
    pub(crate) fn dry_run() -> Self {
        Self::invalid("DryRunOperation", "Request validation has been passed with DryRun flag set.")
    }

    /// A parameter has a value that the account can't fulfil.
    pub(crate) fn invalid(code: &str, message: &str) -> Self {
        Self::new(400, code, message)
    }

    /// A parameter names a resource that does not exist. `parameter` is as in `InstanceId`.
    pub(crate) fn not_found(parameter: &str) -> Self {
        let message = format!("The specified {parameter} does not exist.");
        Self::new(404, &format!("Invalid{parameter}.NotFound"), &message)
    }

    /// The resource can't do this in its state.
    pub(crate) fn incorrect_status(code: &str) -> Self {
        Self::new(403, code, "The current status of the resource does not support this operation.")
    }

    /// Whether it says that there is no capacity or quota.
    pub(crate) fn is_of_capacity(&self) -> bool {
        OF_CAPACITY.iter().any(|code| self.code.starts_with(code))
    }

    /// Its HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Its code. Empty for a page of a proxy.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The type of its body.
    pub fn content_type(&self) -> &'static str {
        if self.code.is_empty() { "text/html" } else { "application/json;charset=utf-8" }
    }

    /// Its body. `request` is the id of the request.
    pub fn body(&self, request: &str) -> String {
        if self.code.is_empty() {
            return self.message.clone();
        }
        json!({
            "RequestId": request, "HostId": HOST, "Code": self.code, "Message": self.message,
            "Recommend": format!("https://api.alibabacloud.com/troubleshoot?q={}&product=Ecs&requestId={request}", self.code),
        })
        .to_string()
    }
}
