//! Errors as `Status` objects.
//!
//! Source: spec/extension-apiserver §2.8. The messages are the same as a kube-apiserver's if clients depend on them.

use serde_json::{Value, json};

/// The error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Reason in `CamelCase`, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// Path of the field; empty if the cause concerns no field.
    pub field: String,
}

impl Cause {
    fn of(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self { reason, message, field: field.into() }
    }

    /// A required field is missing.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let colon = if detail.is_empty() { "" } else { ": " };
        Self::of("FieldValueRequired", field, format!("Required value{colon}{detail}"))
    }

    /// The value of a field is invalid.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::of("FieldValueInvalid", field, format!("Invalid value: {}: {detail}", brief(value)))
    }

    /// The value of a field has the wrong type.
    pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::of("FieldValueTypeInvalid", field, format!("Invalid value: {}: {detail}", brief(value)))
    }

    /// The value of a field is not one of the supported values.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[Value]) -> Self {
        let known = supported.iter().map(Value::to_string).collect::<Vec<_>>().join(", ");
        Self::of(
            "FieldValueNotSupported",
            field,
            format!("Unsupported value: {}: supported values: {known}", brief(value)),
        )
    }

    /// The field, or its value, is forbidden here.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::of("FieldValueForbidden", field, format!("Forbidden: {detail}"))
    }

    /// A list contains a value twice.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::of("FieldValueDuplicate", field, format!("Duplicate value: {}", brief(value)))
    }

    /// A list or text is too long.
    pub fn too_long(field: impl Into<String>, detail: &str) -> Self {
        Self::of("FieldValueTooLong", field, format!("Too long: {detail}"))
    }

    /// A list or object has more entries than allowed.
    pub fn too_many(field: impl Into<String>, entries: u64, most: u64) -> Self {
        let noun = if most == 1 { "item" } else { "items" };
        Self::of("FieldValueTooMany", field, format!("Too many: {entries}: must have at most {most} {noun}"))
    }

    fn line(&self) -> String {
        if self.field.is_empty() { self.message.clone() } else { format!("{}: {}", self.field, self.message) }
    }

    fn to_json(&self) -> Value {
        let mut cause = json!({"reason": self.reason, "message": self.message});
        if !self.field.is_empty() {
            cause["field"] = json!(self.field);
        }
        cause
    }
}

/// A short form of a value for messages, without the contents of objects and lists.
fn brief(value: &Value) -> String {
    match value {
        Value::Object(_) => "\"object\"".to_owned(),
        Value::Array(_) => "\"array\"".to_owned(),
        Value::String(text) if text.len() > 256 => format!("{:?}", text.chars().take(256).collect::<String>()),
        other => other.to_string(),
    }
}

/// The form of the response to a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A `Status` object.
    Status,
    /// A line of text, for paths where clients expect no object.
    Text,
}

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiStatus {
    /// The HTTP status.
    pub code: u16,
    /// Reason in `CamelCase`; may be empty.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
    /// `details` without `causes` and `retryAfterSeconds`.
    pub details: Option<Box<Value>>,
    /// The errors of single fields.
    pub causes: Vec<Cause>,
    /// Seconds until the client may try again; written as `retryAfterSeconds` and as a header.
    pub retry_after: Option<u32>,
    /// The form of the response.
    pub form: Form,
    /// A new continue token, for a list whose own continue token has expired.
    pub continue_token: Option<String>,
    /// Texts of `Warning` headers.
    pub warnings: Vec<String>,
}

impl std::fmt::Display for ApiStatus {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for ApiStatus {}

/// The name with its group, such as `things.example.com`, or `configmaps` in the core group.
pub fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

fn object_details(name: &str, group: &str, kind: &str) -> Value {
    let mut details = json!({"name": name, "kind": kind});
    if !group.is_empty() {
        details["group"] = json!(group);
    }
    details
}

impl ApiStatus {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            causes: Vec::new(),
            retry_after: None,
            form: Form::Status,
            continue_token: None,
            warnings: Vec::new(),
        }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403 for an object.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = qualified(resource, group);
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        Self::new(403, "Forbidden", format!("{what}{named} is forbidden: {why}"))
            .with_details(object_details(name, group, resource))
    }

    /// 404 for an object.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", qualified(resource, group)))
            .with_details(object_details(name, group, resource))
    }

    /// 404 for a path.
    pub fn page_not_found() -> Self {
        Self { form: Form::Text, ..Self::new(404, "NotFound", "404 page not found") }
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        Self::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(json!({}))
    }

    /// 406.
    pub fn not_acceptable(accepted: &str) -> Self {
        Self::new(406, "NotAcceptable", format!("only the following media types are accepted: {accepted}"))
    }

    /// 409 for a name that is in use.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", qualified(resource, group)))
            .with_details(object_details(name, group, resource))
    }

    /// 409 for a write whose precondition does not hold.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = qualified(resource, group);
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {what} {name:?}: {why}"))
            .with_details(object_details(name, group, resource))
    }

    /// 409 for a write that is based on an older version of the object.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    /// 410.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
    }

    /// 415.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 422 with the errors of the fields.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let lines: Vec<_> = causes.iter().map(Cause::line).collect();
        let all = if let [one] = lines.as_slice() { one.clone() } else { format!("[{}]", lines.join(", ")) };
        let what = qualified(kind, group);
        Self { causes, ..Self::new(422, "Invalid", format!("{what} {name:?} is invalid: {all}")) }
            .with_details(object_details(name, group, kind))
    }

    /// 500.
    pub fn internal(why: impl std::fmt::Display) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {why}"))
    }

    /// The same error with these details.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    /// The same error with one more cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.causes.push(Cause { reason, message: message.into(), field: String::new() });
        self
    }

    /// The same error with these warnings before its own.
    #[must_use]
    pub fn warned(mut self, warnings: &[String]) -> Self {
        self.warnings.splice(0..0, warnings.iter().cloned());
        self
    }

    /// The same error with the advice to try again after this number of seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The `Status` object.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = json!(token);
        }
        let mut details = self.details.as_deref().cloned();
        if !self.causes.is_empty() {
            let causes: Vec<_> = self.causes.iter().map(Cause::to_json).collect();
            details.get_or_insert_with(|| json!({}))["causes"] = json!(causes);
        }
        if let Some(seconds) = self.retry_after {
            details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = json!(seconds);
        }
        if let Some(details) = details {
            status["details"] = details;
        }
        status
    }
}

/// The `Status` of a completed deletion.
pub fn deleted(group: &str, resource: &str, name: &str, uid: &Value) -> Value {
    let mut details = object_details(name, group, resource);
    details["uid"] = uid.clone();
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_wrong_fields_are_listed_and_each_is_a_cause() {
        let causes = vec![
            Cause::required("spec.color", ""),
            Cause::not_supported("spec.size", &json!("xl"), &[json!("s"), json!("m")]),
        ];
        let status = ApiStatus::invalid("example.com", "Thing", "a", causes);
        assert_eq!(
            status.message,
            "Thing.example.com \"a\" is invalid: [spec.color: Required value, spec.size: Unsupported value: \"xl\": \
             supported values: \"s\", \"m\"]"
        );
        let json = status.to_json();
        assert_eq!(json["details"]["causes"][1]["reason"], "FieldValueNotSupported");
        assert_eq!(json["details"]["kind"], "Thing");
    }

    #[test]
    fn core_resources_have_no_group_in_message_and_details() {
        let status = ApiStatus::not_found("", "configmaps", "x").to_json();
        assert_eq!(status["message"], "configmaps \"x\" not found");
        assert_eq!(status["details"].get("group"), None);
    }
}
