//! Maps errors of the services to machine codes (spec/providers §6.2, decisions.md 55). The texts are those of the real services.

use cloud_client::{Answer, Failure, FailureKind};
use machine_driver::{Code, Status};
use serde_json::Value;

use crate::keystone::Service;

/// The Go driver's code for a failure with this code. It has no codes for passing failures and for invalid classes.
pub fn as_go(code: Code) -> Code {
    match code {
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unavailable
        | Code::DeadlineExceeded => Code::Internal,
        _ => code,
    }
}

/// The error in an answer of a service.
#[derive(Debug, Default, PartialEq, Eq)]
struct ServiceError {
    /// The name of the error. Empty if the answer has none.
    reason: String,
    message: String,
    /// Whether the answer has the form of this service's "not found" errors. Proxies in front of the service use other forms.
    is_of_service: bool,
}

/// The texts that mean lack of capacity, in an answer or in the fault of a server.
const EXHAUSTED: [&str; 11] = [
    "no valid host was found",
    "exceeded maximum number of retries",
    "volumelimitexceeded",
    "exceedsavailablequota",
    "quotaexceeded",
    "quota exceeded",
    "overquota",
    "maximum number of ports exceeded",
    "maximum number of fixed ips",
    "no more ip addresses available",
    "no fixed ip addresses available",
];

/// Whether a text means lack of capacity.
pub fn tells_of_exhaustion(text: &str) -> bool {
    let text = text.to_lowercase();
    EXHAUSTED.iter().any(|part| text.contains(part))
}

/// The failure in an answer. `None` for a success.
pub fn failure(service: Service, what: &str, answer: &Answer) -> Option<Failure> {
    if answer.status.is_success() {
        return None;
    }
    let status = answer.status.as_u16();
    let error = service_error(service, answer);
    let code = code_of(service, status, &error);
    let trouble = match (status, code) {
        (429, _) => FailureKind::Throttled,
        (_, Code::Unavailable) => FailureKind::Temporary,
        _ => FailureKind::Permanent,
    };
    let named = if error.reason.is_empty() { String::new() } else { format!(" {}", error.reason) };
    let id = ["x-openstack-request-id", "x-compute-request-id"]
        .iter()
        .find_map(|name| answer.headers.get(*name)?.to_str().ok())
        .map(|id| format!(" ({id})"))
        .unwrap_or_default();
    let message = format!("{what}: {} answers {status}{named}: {}{id}", service.name(), error.message);
    Some(Failure { reason: error.reason, ..Failure::new(code, message, trouble) })
}

/// The failure of a list. The service does not know the list if it answers 404, for example because its URL in the catalogue is wrong: what the list
/// would contain may exist. Callers take `NotFound` for the end of a machine's server.
pub fn of_list(failure: Failure) -> Failure {
    if failure.status.code != Code::NotFound {
        return failure;
    }
    Failure { kind: FailureKind::Temporary, status: Status { code: Code::Unavailable, ..failure.status }, ..failure }
}

fn code_of(service: Service, status: u16, error: &ServiceError) -> Code {
    let text = format!("{} {}", error.reason, error.message);
    let may_be_a_limit = matches!(status, 403 | 409 | 413);
    match status {
        401 => Code::Unauthenticated,
        400..500 if tells_of_exhaustion(&text) || error.reason == "IpAddressGenerationFailure" => {
            Code::ResourceExhausted
        }
        _ if may_be_a_limit && text.to_lowercase().contains("quota") => Code::ResourceExhausted,
        413 => Code::ResourceExhausted,
        403 => Code::PermissionDenied,
        404 if service == Service::Identity => Code::FailedPrecondition,
        404 if error.is_of_service => Code::NotFound,
        // A 404 of a proxy means that the service is unreachable. The requested object may exist.
        404 | 408 | 429 | 500.. => Code::Unavailable,
        400 => Code::InvalidArgument,
        409 if ["in use", "is locked"].iter().any(|words| error.message.contains(words)) => Code::FailedPrecondition,
        409 | 412 => Code::Aborted,
        _ => Code::Internal,
    }
}

/// Reads the error in an answer. Nova and Cinder write `{"itemNotFound": {"message": …}}`, Neutron writes `{"NeutronError": {"type": …}}`,
/// Keystone writes `{"error": {"title": …}}`, and Glance writes plain text.
fn service_error(service: Service, answer: &Answer) -> ServiceError {
    let Ok(Value::Object(body)) = serde_json::from_slice(&answer.body) else {
        let text = String::from_utf8_lossy(&answer.body);
        let message = match service {
            Service::Image => in_one_line(&text),
            _ => "the answer is no error of the service".to_owned(),
        };
        return ServiceError { message, ..ServiceError::default() };
    };
    let Some((name, error)) = body.into_iter().next() else { return ServiceError::default() };
    let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
    let message = match &error {
        // Some errors of Neutron consist of a text only.
        Value::String(message) => message,
        _ => text("message"),
    };
    let reason = match name.as_str() {
        "NeutronError" => text("type"),
        "error" => text("title"),
        name => name,
    };
    let is_of_service = match service {
        Service::Compute | Service::Volume => name == "itemNotFound",
        Service::Network => name == "NeutronError",
        Service::Identity | Service::Image => false,
    };
    ServiceError { reason: reason.to_owned(), message: in_one_line(message), is_of_service }
}

/// The longest message, in bytes. Longer messages are cut.
const LONGEST: usize = 500;
/// The longest word in a message. Longer words are replaced, because Nova repeats invalid user data in its message. A part of user data would
/// not be recognised as a secret and redacted.
const LONGEST_WORD: usize = 100;

fn in_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let word = if word.len() > LONGEST_WORD { "…" } else { word };
        if line.len() + word.len() > LONGEST {
            line.push_str(" …");
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

#[cfg(test)]
mod tests {
    use cloud_client::{
        Bytes,
        http::{HeaderMap, StatusCode},
    };
    use rstest::rstest;

    use super::*;

    fn read(service: Service, status: u16, body: &str) -> Failure {
        let status = StatusCode::from_u16(status).unwrap();
        let headers: HeaderMap =
            [("x-openstack-request-id".parse().unwrap(), "req-1".parse().unwrap())].into_iter().collect();
        failure(service, "asking", &Answer { status, headers, body: Bytes::copy_from_slice(body.as_bytes()) }).unwrap()
    }

    use Code::*;
    use Service::*;

    /// The bodies come from the real services.
    #[rstest]
    #[case::no_server(
        Compute,
        404,
        r#"{"itemNotFound": {"code": 404, "message": "Instance 1 could not be found."}}"#,
        NotFound
    )]
    #[case::no_port(
        Network,
        404,
        r#"{"NeutronError": {"type": "PortNotFound", "message": "Port 1 could not be found.", "detail": ""}}"#,
        NotFound
    )]
    #[case::a_page_of_a_proxy(Compute, 404, "<html>404</html>", Unavailable)]
    #[case::json_of_a_proxy(Compute, 404, r#"{"errors": []}"#, Unavailable)]
    #[case::no_image(
        Compute,
        400,
        r#"{"badRequest": {"code": 400, "message": "Can not find requested image"}}"#,
        InvalidArgument
    )]
    #[case::servers_over_quota(Compute, 403, r#"{"forbidden": {"code": 403, "message": "Quota exceeded for instances: Requested 1, but already used 1 of 1 instances"}}"#, ResourceExhausted)]
    #[case::ports_over_quota_in_nova(
        Compute,
        403,
        r#"{"forbidden": {"code": 403, "message": "Maximum number of ports exceeded"}}"#,
        ResourceExhausted
    )]
    #[case::ports_over_quota(Network, 409, r#"{"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port'].", "detail": ""}}"#, ResourceExhausted)]
    #[case::no_address(Network, 409, r#"{"NeutronError": {"type": "IpAddressGenerationFailure", "message": "No more IP addresses available on network 1.", "detail": ""}}"#, ResourceExhausted)]
    #[case::volumes_over_quota(Volume, 413, r#"{"overLimit": {"code": 413, "message": "VolumeLimitExceeded: Maximum number of volumes allowed (1) exceeded for quota 'volumes'.", "retryAfter": "0"}}"#, ResourceExhausted)]
    #[case::forbidden(Compute, 403, r#"{"forbidden": {"code": 403, "message": "Policy doesn't allow os_compute_api:os-flavor-manage:create to be performed."}}"#, PermissionDenied)]
    #[case::a_port_in_use(
        Compute,
        409,
        r#"{"conflictingRequest": {"code": 409, "message": "Port 1 is still in use."}}"#,
        FailedPrecondition
    )]
    #[case::locked(
        Compute,
        409,
        r#"{"conflictingRequest": {"code": 409, "message": "Instance 1 is locked"}}"#,
        FailedPrecondition
    )]
    #[case::busy(Compute, 409, r#"{"conflictingRequest": {"code": 409, "message": "Cannot 'delete' instance 1 while it is in task_state spawning"}}"#, Aborted)]
    #[case::an_older_revision(Network, 412, r#"{"NeutronError": {"type": "RevisionNumberConstraintFailed", "message": "Constrained to 1, but current revision is 2", "detail": ""}}"#, Aborted)]
    #[case::a_wrong_password(Identity, 401, r#"{"error": {"code": 401, "message": "The request you have made requires authentication.", "title": "Unauthorized"}}"#, Unauthenticated)]
    #[case::text_of_glance(Image, 401, "401 Unauthorized\n\nThis server could not verify", Unauthenticated)]
    #[case::no_keystone(Identity, 404, "<html>", FailedPrecondition)]
    #[case::too_many(Compute, 429, "slow down", Unavailable)]
    #[case::a_fault(
        Compute,
        500,
        r#"{"computeFault": {"code": 500, "message": "Unexpected API Error."}}"#,
        Unavailable
    )]
    fn an_error_has_its_code(#[case] service: Service, #[case] status: u16, #[case] body: &str, #[case] code: Code) {
        let failure = read(service, status, body);
        assert_eq!(failure.status.code, code, "{}", failure.status.message);
        let expected = match code {
            Unavailable if status == 429 => FailureKind::Throttled,
            Unavailable => FailureKind::Temporary,
            _ => FailureKind::Permanent,
        };
        assert_eq!(failure.kind, expected);
    }

    #[rstest]
    #[case(NotFound, Unavailable)]
    #[case(PermissionDenied, PermissionDenied)]
    fn a_list_that_is_not_found_is_no_empty_list(#[case] code: Code, #[case] expected: Code) {
        assert_eq!(of_list(Failure::permanent(code, "no")).status.code, expected);
    }

    #[test]
    fn the_text_of_the_service_is_kept() {
        let failure = read(
            Network,
            409,
            r#"{"NeutronError": {"type": "OverQuota", "message": "Quota exceeded\nfor ports.", "detail": ""}}"#,
        );
        assert_eq!(failure.reason, "OverQuota");
        assert_eq!(failure.status.message, "asking: neutron answers 409 OverQuota: Quota exceeded for ports. (req-1)");
        assert_eq!(
            read(Image, 401, "401 Unauthorized\n\nno").status.message,
            "asking: glance answers 401: 401 Unauthorized no (req-1)"
        );
    }

    #[test]
    fn c_14_user_data_is_not_repeated() {
        let body = format!(
            r#"{{"badRequest": {{"code": 400, "message": "user_data: '{}' is too long"}}}}"#,
            "QUJD".repeat(20_000)
        );
        let message = read(Compute, 400, &body).status.message;
        assert_eq!(message, "asking: nova answers 400 badRequest: user_data: … is too long (req-1)");
    }

    #[rstest]
    #[case("No valid host was found. ", true)]
    #[case(
        "Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance 1.",
        true
    )]
    #[case(
        "Build of instance 1 aborted: VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota.",
        true
    )]
    #[case("Build of instance 1 aborted: Failed to allocate the network(s), not rescheduling.", false)]
    fn a_fault_tells_of_exhaustion(#[case] fault: &str, #[case] expected: bool) {
        assert_eq!(tells_of_exhaustion(fault), expected);
    }
}
