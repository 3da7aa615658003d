//! Maps errors of Google's APIs and of operations to machine codes (spec/providers §5.3).

use cloud_client::{Answer, Failure, FailureKind};
use machine_driver::{Code, Status};
use serde::Deserialize;

use crate::resources::ErrorEntry;

/// The Go driver's code for a failure with this code: it keeps `ResourceExhausted` for lack of capacity, and `NotFound` for a missing instance.
pub fn as_go(code: Code) -> Code {
    match code {
        Code::ResourceExhausted | Code::NotFound | Code::Unimplemented => code,
        _ => Code::Internal,
    }
}

/// The error reason for a name that another instance has.
pub const ALREADY_EXISTS: &str = "alreadyExists";
/// The same as the error code of an operation.
const OPERATION_ALREADY_EXISTS: &str = "RESOURCE_ALREADY_EXISTS";
/// The error code of an operation on an instance that does not exist.
const OPERATION_NOT_FOUND: &str = "RESOURCE_NOT_FOUND";
/// The part of a message that Go takes for lack of capacity, for example for an unknown machine type of a zone.
const NOT_IN_ZONE: &str = "does not exist in zone";
/// The part of the message of an unsupported operation that means lack of capacity.
const NOT_AVAILABLE: &str = "not available in zone";
/// The reasons that mean a used up quota.
const QUOTA: [&str; 2] = ["quotaExceeded", "limitExceeded"];
/// The reasons that mean too many requests.
const THROTTLED: [&str; 3] = ["rateLimitExceeded", "userRateLimitExceeded", "concurrentLimitExceeded"];
/// The status of Google's APIs for a name that another resource has. Some answers have it instead of a reason.
const STATUS_ALREADY_EXISTS: &str = "ALREADY_EXISTS";
/// The reason of an answer with status 410: what the request names existed, and does not exist any more.
const GONE: &str = "gone";
/// The reason for a field with a wrong value.
const INVALID: &str = "invalid";
/// The reason for a resource that another operation is changing.
const NOT_READY: &str = "resourceNotReady";

/// The body of a failed request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    error: Option<ApiError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiError {
    message: String,
    errors: Vec<ApiErrorEntry>,
    status: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ApiErrorEntry {
    reason: String,
}

/// The failure in an answer. `None` for a success. `what` names the request for users.
pub fn failure(what: &str, answer: &Answer) -> Option<Failure> {
    if answer.status.is_success() {
        return None;
    }
    let status = answer.status.as_u16();
    let body: ErrorBody = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(error) = body.error else {
        let message = format!("{what}: status {status}, and the answer is no error of Google's APIs");
        let code = code_without_error(status);
        return Some(Failure::new(code, message, kind(status, code)));
    };
    let given = error.errors.into_iter().next().map(|entry| entry.reason).unwrap_or_default();
    let reason = match (status, given.as_str(), error.status.as_str()) {
        (410, ..) => GONE.to_owned(),
        (409, "", STATUS_ALREADY_EXISTS) => ALREADY_EXISTS.to_owned(),
        _ => given,
    };
    let code = code_of(status, &reason, &error.message);
    let kind = if THROTTLED.contains(&reason.as_str()) { FailureKind::Throttled } else { kind(status, code) };
    let shown = if reason.is_empty() { String::new() } else { format!(", {reason}") };
    let message = format!("{what}: googleapi: Error {status}: {}{shown}", error.message.trim());
    Some(Failure { reason, ..Failure::new(code, message, kind) })
}

const fn kind(status: u16, code: Code) -> FailureKind {
    match (status, code) {
        (429, _) => FailureKind::Throttled,
        // The caller tries again later: within one call the state of the resource does not change.
        (400, _) => FailureKind::Permanent,
        (_, Code::Unavailable) => FailureKind::Temporary,
        _ => FailureKind::Permanent,
    }
}

fn code_of(status: u16, reason: &str, message: &str) -> Code {
    match (status, reason) {
        (401, _) => Code::Unauthenticated,
        _ if QUOTA.contains(&reason) => Code::ResourceExhausted,
        _ if THROTTLED.contains(&reason) => Code::Unavailable,
        (400..500, _) if message.contains(NOT_IN_ZONE) => Code::ResourceExhausted,
        (403, _) => Code::PermissionDenied,
        (404 | 410, _) => Code::NotFound,
        (409, ALREADY_EXISTS) => Code::AlreadyExists,
        (400, NOT_READY) | (408 | 429 | 500.., _) => Code::Unavailable,
        (409, _) => Code::Aborted,
        (412, _) => Code::FailedPrecondition,
        (400, _) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// The code for an answer of a proxy or a load balancer.
const fn code_without_error(status: u16) -> Code {
    match status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        // Google's APIs describe every error, also in a 404. Without a description a proxy has found no way to the service.
        404 | 408 | 429 | 500.. => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// The failure of a request for a resource, such as `instances/m-1`. A 404 proves that this resource does not exist only if it names it. Otherwise
/// the project or the zone does not exist, or these credentials do not see it. A 410 is about the resource itself.
pub fn of_resource(failure: Failure, resource: &str) -> Failure {
    let names_it = || failure.reason == GONE || failure.status.message.contains(&format!("/{resource}'"));
    if failure.status.code == Code::NotFound && !names_it() {
        return Failure { status: Status { code: Code::FailedPrecondition, ..failure.status }, ..failure };
    }
    failure
}

/// Whether GCE refuses a request because its zone does not exist.
pub fn is_unknown_zone(failure: &Failure) -> bool {
    let says = |part: &str| failure.status.message.contains(part);
    failure.reason == INVALID && says("field 'zone'") && says("Unknown zone")
}

/// How messages name the metadata of an instance.
const METADATA_FIELD: &str = "field 'resource.metadata";

/// A message about a creation without the value of the metadata, which contains a part of the user data. GCE shortens the value, so that a search for
/// the user data does not find it.
pub fn without_metadata(message: &str) -> String {
    let Some(field) = message.find(METADATA_FIELD) else { return message.to_owned() };
    let value = message[field + METADATA_FIELD.len()..].find('\'').map(|end| field + METADATA_FIELD.len() + end + 1);
    let value = value.unwrap_or(message.len());
    // The value ends with the last quote. What follows is shown only if it is the next sentence, and not a part of an open value.
    let detail = message[value..].rsplit_once("'. ").map(|(_, detail)| format!(". {detail}")).unwrap_or_default();
    format!("{}: (not shown){detail}", &message[..value])
}

/// The status of a failed operation. `None` for a success. All entries count, and their messages are joined.
pub fn of_operation(entries: &[ErrorEntry]) -> Option<Status> {
    if entries.is_empty() {
        return None;
    }
    let codes = || entries.iter().map(|entry| entry.code.as_str());
    let code = if entries.iter().any(is_exhausted) {
        Code::ResourceExhausted
    } else if codes().any(|code| code == OPERATION_ALREADY_EXISTS) {
        Code::AlreadyExists
    } else if codes().any(|code| code == OPERATION_NOT_FOUND) {
        Code::NotFound
    } else {
        Code::Internal
    };
    let messages: Vec<&str> = entries.iter().map(|entry| entry.message.trim()).collect();
    Some(Status::new(code, messages.join("; ")))
}

fn is_exhausted(entry: &ErrorEntry) -> bool {
    entry.code.contains("RESOURCE_POOL_EXHAUSTED")
        || entry.code.contains("IP_SPACE_EXHAUSTED")
        || entry.code.contains("QUOTA")
        || (entry.code == "UNSUPPORTED_OPERATION" && entry.message.contains(NOT_AVAILABLE))
        || entry.message.contains(NOT_IN_ZONE)
}

#[cfg(test)]
mod tests {
    use cloud_client::http::{HeaderMap, StatusCode};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn answer(status: u16, body: impl Into<String>) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, headers: HeaderMap::new(), body: body.into().into() }
    }

    fn google(status: u16, reason: &str, message: &str) -> Answer {
        let errors = json!([{"domain": "global", "reason": reason, "message": message}]);
        answer(status, json!({"error": {"code": status, "message": message, "errors": errors}}).to_string())
    }

    #[rstest]
    #[case::bad_token(401, "authError", "no", Code::Unauthenticated, FailureKind::Permanent)]
    #[case::no_right(403, "forbidden", "no", Code::PermissionDenied, FailureKind::Permanent)]
    #[case::a_quota(403, "quotaExceeded", "no", Code::ResourceExhausted, FailureKind::Permanent)]
    #[case::too_many_requests(403, "rateLimitExceeded", "no", Code::Unavailable, FailureKind::Throttled)]
    #[case::too_many_requests_of_today(429, "", "no", Code::Unavailable, FailureKind::Throttled)]
    #[case::no_instance(404, "notFound", "no", Code::NotFound, FailureKind::Permanent)]
    #[case::the_name_is_taken(409, "alreadyExists", "no", Code::AlreadyExists, FailureKind::Permanent)]
    #[case::another_conflict(409, "resourceInUse", "no", Code::Aborted, FailureKind::Permanent)]
    #[case::an_invalid_field(400, "invalid", "no", Code::InvalidArgument, FailureKind::Permanent)]
    #[case::another_operation_runs(400, "resourceNotReady", "no", Code::Unavailable, FailureKind::Permanent)]
    #[case::no_machine_type(
        400,
        "invalid",
        "type x does not exist in zone z",
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::a_condition(412, "conditionNotMet", "no", Code::FailedPrecondition, FailureKind::Permanent)]
    #[case::an_outage(503, "backendError", "no", Code::Unavailable, FailureKind::Temporary)]
    fn an_error_has_its_code(
        #[case] status: u16,
        #[case] reason: &str,
        #[case] message: &str,
        #[case] code: Code,
        #[case] kind: FailureKind,
    ) {
        let failure = failure("w", &google(status, reason, message)).unwrap();
        assert_eq!((failure.status.code, failure.kind, failure.reason.as_str()), (code, kind, reason));
        let shown = if reason.is_empty() { String::new() } else { format!(", {reason}") };
        assert_eq!(failure.status.message, format!("w: googleapi: Error {status}: {message}{shown}"));
    }

    #[rstest]
    #[case::of_a_proxy(404, Code::Unavailable)]
    #[case::of_a_load_balancer(502, Code::Unavailable)]
    #[case::of_a_gate(403, Code::PermissionDenied)]
    #[case::another(418, Code::Internal)]
    fn an_answer_without_an_error_proves_nothing(#[case] status: u16, #[case] code: Code) {
        for body in ["<html>", "{}", ""] {
            assert_eq!(failure("w", &answer(status, body)).unwrap().status.code, code);
        }
        assert_eq!(failure("w", &answer(200, "")), None);
    }

    #[rstest]
    #[case::the_instance("The resource 'projects/p/zones/z/instances/m' was not found", Code::NotFound)]
    #[case::the_project("The resource 'projects/p' was not found", Code::FailedPrecondition)]
    #[case::another_instance("The resource 'projects/p/zones/z/instances/m-2' was not found", Code::FailedPrecondition)]
    fn a_404_proves_what_it_names(#[case] message: &str, #[case] code: Code) {
        let failure = failure("w", &google(404, "notFound", message)).unwrap();
        assert_eq!(of_resource(failure, "instances/m").status.code, code);
    }

    #[test]
    fn a_410_proves_that_the_resource_is_gone() {
        let failure = failure("w", &google(410, "deleted", "no")).unwrap();
        assert_eq!(of_resource(failure, "operations/o").status.code, Code::NotFound);
    }

    #[test]
    fn a_taken_name_is_known_by_the_status_if_the_answer_has_no_reason() {
        let body = json!({"error": {"code": 409, "message": "no", "status": "ALREADY_EXISTS"}}).to_string();
        let failure = failure("w", &answer(409, body)).unwrap();
        assert_eq!((failure.status.code, failure.reason.as_str()), (Code::AlreadyExists, ALREADY_EXISTS));
    }

    #[rstest]
    #[case::another_field(
        "Invalid value for field 'zone': 'z'. Unknown zone.",
        "Invalid value for field 'zone': 'z'. Unknown zone."
    )]
    #[case::a_value(
        "field 'resource.metadata': '{ \"value\": \"#!/bi...'. Metadata has duplicate keys., invalid",
        "field 'resource.metadata': (not shown). Metadata has duplicate keys., invalid"
    )]
    #[case::an_item(
        "field 'resource.metadata.items[0].value': 'it's secret'. Too long.",
        "field 'resource.metadata.items[0].value': (not shown). Too long."
    )]
    #[case::an_open_value("field 'resource.metadata': 'a 'b' secret", "field 'resource.metadata': (not shown)")]
    #[case::cut_off("field 'resource.metadata", "field 'resource.metadata: (not shown)")]
    fn the_value_of_metadata_is_not_shown(#[case] message: &str, #[case] shown: &str) {
        assert_eq!(without_metadata(message), shown);
    }

    fn entry(code: &str, message: &str) -> ErrorEntry {
        ErrorEntry { code: code.to_owned(), message: message.to_owned() }
    }

    #[rstest]
    #[case::g03_no_capacity(&[("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "full"), ("STOCKOUT", "now")], Code::ResourceExhausted)]
    #[case::no_capacity(&[("RESOURCE_POOL_EXHAUSTED", "full")], Code::ResourceExhausted)]
    #[case::no_addresses(&[("IP_SPACE_EXHAUSTED_WITH_DETAILS", "full")], Code::ResourceExhausted)]
    #[case::a_quota(&[("QUOTA_EXCEEDED", "CPUS")], Code::ResourceExhausted)]
    #[case::not_the_last_entry(&[("QUOTA_EXCEEDED", "CPUS"), ("OTHER", "x")], Code::ResourceExhausted)]
    #[case::not_in_the_zone(&[("UNSUPPORTED_OPERATION", "c4 is not available in zone z")], Code::ResourceExhausted)]
    #[case::unsupported(&[("UNSUPPORTED_OPERATION", "no")], Code::Internal)]
    #[case::the_name_is_taken(&[("RESOURCE_ALREADY_EXISTS", "m")], Code::AlreadyExists)]
    #[case::gone(&[("RESOURCE_NOT_FOUND", "m")], Code::NotFound)]
    #[case::something_else(&[("INTERNAL_ERROR", "sorry")], Code::Internal)]
    fn a_failed_operation_has_its_code(#[case] entries: &[(&str, &str)], #[case] code: Code) {
        let all: Vec<_> = entries.iter().map(|(code, message)| entry(code, message)).collect();
        let status = of_operation(&all).unwrap();
        let joined: Vec<&str> = entries.iter().map(|(_, message)| *message).collect();
        assert_eq!((status.code, status.message), (code, joined.join("; ")));
        assert_eq!(of_operation(&[]), None);
    }

    #[rstest]
    #[case(Code::PermissionDenied, Code::Internal)]
    #[case(Code::Unavailable, Code::Internal)]
    #[case(Code::ResourceExhausted, Code::ResourceExhausted)]
    #[case(Code::NotFound, Code::NotFound)]
    fn in_strict_mode_only_two_codes_stay(#[case] code: Code, #[case] expected: Code) {
        assert_eq!(as_go(code), expected);
    }
}
