//! Errors in the forms of Azure: the HTTP answer to a refused request, and the error in an operation that has failed.

use serde_json::{Value, json};

use crate::{LOCATION, VM_SIZE};

/// An HTTP answer that refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Refusal {
    /// A refusal in the form of ARM: a code, such as `ResourceNotFound`, and words.
    pub fn new(status: u16, code: &str, message: &str) -> Self {
        Self::of(status, &json!({"code": code, "message": message}))
    }

    fn of(status: u16, error: &Value) -> Self {
        Self { status, headers: Vec::new(), body: json!({ "error": error }).to_string() }
    }

    /// The answer of a proxy before ARM, without a body of ARM.
    pub fn html(status: u16) -> Self {
        let body =
            format!("<html><head><title>{status}</title></head><body>The page cannot be displayed.</body></html>");
        Self { status, headers: vec![("content-type", "text/html".to_owned())], body }
    }

    fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The caller sends too many requests. It may try again after this number of seconds.
    pub fn throttled(seconds: u32) -> Self {
        let detail = json!({"operationGroup": "HighCostGet3Min", "startTime": "2026-01-07T03:14:15+00:00", "allowedRequestCount": 140});
        let error = json!({
            "code": "OperationNotAllowed", "message": "The server rejected the request because too many requests have been received for this subscription.",
            "details": [{"code": "TooManyRequests", "target": "HighCostGet3Min", "message": detail.to_string()}],
        });
        Self::of(429, &error).with_header("retry-after", &seconds.to_string())
    }

    /// The subscription has no quota for the VM. Azure says it with the request, not at the end of an operation.
    pub fn quota_exceeded() -> Self {
        Self::new(409, "OperationNotAllowed", QUOTA)
    }

    /// The size is not offered to the subscription.
    pub fn sku_not_available() -> Self {
        let message = format!(
            "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {VM_SIZE}' is currently not available in \
             location '{LOCATION}'. Please try another size or deploy to a different location or different zone. See \
             https://aka.ms/azureskunotavailable for details."
        );
        Self::new(409, "SkuNotAvailable", &message)
    }

    /// The caller lacks a right.
    pub fn forbidden() -> Self {
        let message = "The client 'c' with object id 'o' does not have authorization to perform action \
                       'Microsoft.Compute/virtualMachines/write' over scope '/subscriptions/s' or the scope is invalid. If access was recently \
                       granted, please refresh your credentials.";
        Self::new(403, "AuthorizationFailed", message)
    }

    /// The service is not available for a moment.
    pub fn unavailable() -> Self {
        Self::new(503, "ServiceUnavailable", "The service is unavailable now, please retry at a later time.")
    }

    /// The service has failed.
    pub fn internal() -> Self {
        Self::new(500, "InternalServerError", "Encountered internal server error.")
    }

    /// Another request changes the resource.
    pub fn conflict() -> Self {
        let message = "The request failed due to conflict with a concurrent request. To resolve it, please refer to \
                       https://aka.ms/activitylog to get more details on the conflicting requests.";
        Self::new(409, "Conflict", message)
    }

    /// A network interface that a failed creation of a VM still holds.
    pub fn nic_reserved() -> Self {
        let message = "Nic(s) in request is reserved for another Virtual Machine for 180 seconds. Please provide another nic(s) or retry \
                       after 180 seconds. To learn more about this nic reservation, see aka.ms/deletenic.";
        Self::new(400, "NicReservedForAnotherVm", message)
    }

    pub(crate) fn unauthenticated(code: &str, message: &str) -> Self {
        let header = format!(
            "Bearer authorization_uri=\"https://login.windows.net/{}\", error=\"invalid_token\"",
            crate::TENANT
        );
        Self::new(401, code, message).with_header("www-authenticate", &header)
    }

    /// An error of Entra. The number is the number of the error at AADSTS.
    pub(crate) fn entra(status: u16, error: &str, number: u32, words: &str) -> Self {
        let description = format!(
            "AADSTS{number}: {words} Trace ID: 5f3a1c2d-0000-4000-8000-000000000001 Correlation ID: 5f3a1c2d-0000-4000-8000-000000000002 \
             Timestamp: 2026-01-07 03:14:15Z"
        );
        let body = json!({
            "error": error, "error_description": description, "error_codes": [number], "timestamp": "2026-01-07 03:14:15Z",
            "trace_id": "5f3a1c2d-0000-4000-8000-000000000001", "correlation_id": "5f3a1c2d-0000-4000-8000-000000000002",
            "error_uri": format!("https://login.microsoftonline.com/error?code={number}"),
        });
        Self { status, headers: Vec::new(), body: body.to_string() }
    }

    pub(crate) fn no_group(group: &str) -> Self {
        Self::new(404, "ResourceGroupNotFound", &format!("Resource group '{group}' could not be found."))
    }

    /// A resource that does not exist. `kind` is its type with its provider.
    pub(crate) fn not_found(kind: &str, name: &str, group: &str) -> Self {
        let message = format!(
            "The Resource '{kind}/{name}' under resource group '{group}' was not found. For more details please go to \
             https://aka.ms/ARMResourceNotFoundFix"
        );
        Self::new(404, "ResourceNotFound", &message)
    }

    /// A value that Compute does not accept.
    pub(crate) fn invalid(target: &str, message: &str) -> Self {
        Self::of(400, &json!({"code": "InvalidParameter", "message": message, "target": target}))
    }

    /// A property that can't change once the VM exists.
    pub(crate) fn unchangeable(property: &str) -> Self {
        let message = format!("Changing property '{property}' is not allowed.");
        Self::of(409, &json!({"code": "PropertyChangeNotAllowed", "message": message, "target": property}))
    }

    /// A query of Resource Graph that it does not understand.
    pub(crate) fn invalid_query(words: &str) -> Self {
        let error = json!({
            "code": "BadRequest",
            "message": "Please provide below info when asking for support: timestamp = 2026-01-07T03:14:15.0000000Z, correlationId = \
                        5f3a1c2d-0000-4000-8000-000000000002.",
            "details": [
                {"code": "InvalidQuery", "message": "Query is invalid. Please refer to the documentation for the Azure Resource Graph service and fix \
                                                     the error before retrying."},
                {"code": "ParserFailure", "message": words},
            ],
        });
        Self::of(400, &error)
    }

    /// Its HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Its body.
    pub fn body(&self) -> String {
        self.body.clone()
    }

    /// Its own headers.
    pub fn headers(&self) -> &[(&'static str, String)] {
        &self.headers
    }
}

const QUOTA: &str = "Operation could not be completed as it results in exceeding approved standardDSv3Family Cores quota. Additional details - \
                     Deployment Model: Resource Manager, Location: westeurope, Current Limit: 10, Current Usage: 10, Additional Required: 2, \
                     (Minimum) New Limit Required: 12. Setup Alerts when Quota reaches threshold.";

/// The error of an operation that fails after it was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationError {
    value: Value,
    status: &'static str,
    with_disks: bool,
}

impl OperationError {
    /// An error with a code, such as `InternalExecutionError`.
    pub fn new(code: &str, message: &str) -> Self {
        Self { value: json!({"code": code, "message": message}), status: "Failed", with_disks: false }
    }

    /// An error whose code is in a detail only.
    #[must_use]
    pub fn nested(mut self, code: &str, message: &str) -> Self {
        if !self.value["details"].is_array() {
            self.value["details"] = json!([]);
        }
        if let Some(details) = self.value["details"].as_array_mut() {
            details.push(json!({"code": code, "message": message}));
        }
        self
    }

    /// An error with an inner error.
    #[must_use]
    pub fn inner(mut self, code: &str) -> Self {
        self.value["innererror"] = json!({"exceptiontype": code, "errordetail": "an inner error", "code": code});
        self
    }

    /// The creation of a VM fails when its disks exist already.
    #[must_use]
    pub fn with_disks(mut self) -> Self {
        self.with_disks = true;
        self
    }

    /// The operation ends `Canceled` instead of `Failed`.
    #[must_use]
    pub fn canceled(mut self) -> Self {
        self.status = "Canceled";
        self
    }

    /// The zone has no capacity for the size.
    pub fn zonal_allocation_failed() -> Self {
        Self::new(
            "ZonalAllocationFailed",
            "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone. Read more about improving likelihood \
             of allocation success at http://aka.ms/allocation-guidance",
        )
    }

    /// The region has no capacity for the size.
    pub fn allocation_failed() -> Self {
        Self::new(
            "AllocationFailed",
            "Allocation failed. We do not have sufficient capacity for the requested VM size in this region. Read more about improving likelihood \
             of allocation success at http://aka.ms/allocation-guidance",
        )
    }

    /// What the request asks for besides the size leaves no capacity.
    pub fn overconstrained() -> Self {
        Self::new(
            "OverconstrainedAllocationRequest",
            "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is too restrictive. Please remove \
             some constraints and try again. Constraints applied are: Networking Constraints (such as Accelerated Networking or IPv6), VM Size",
        )
    }

    /// The subscription has no quota for the VM.
    pub fn quota_exceeded() -> Self {
        Self::new("OperationNotAllowed", QUOTA)
    }

    /// The service has failed.
    pub fn internal() -> Self {
        Self::new("InternalExecutionError", "An internal execution error occurred. Please retry later.")
    }

    /// A later request took the place of this one.
    pub(crate) fn preempted() -> Self {
        Self::new(
            "OperationPreempted",
            "Operation execution has been preempted by a more recent operation. Error message: 'Operation preempted'.",
        )
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(crate) fn status(&self) -> &'static str {
        self.status
    }

    pub(crate) fn makes_disks(&self) -> bool {
        self.with_disks
    }

    /// The answer of a result that is asked for by its `Location`.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::of(409, &self.value)
    }
}
