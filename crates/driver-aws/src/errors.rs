//! Maps errors of EC2 and STS to machine codes (spec/providers §3.3).

use cloud_client::{Answer, Failure, FailureKind};
use machine_driver::{Code, ErrorCodes, Status};

use crate::{actions::InstanceQuery, xml::Xml};

/// The error code for an instance that does not exist.
pub const NO_INSTANCE: &str = "InvalidInstanceID.NotFound";
/// The error code for a client token that was used with other parameters before.
pub const TOKEN_MISMATCH: &str = "IdempotentParameterMismatch";
/// The error code for a client token whose instance is terminated.
pub const TOKEN_TERMINATED: &str = "IdempotentInstanceTerminated";

/// The error codes that mean lack of capacity for the Go driver.
const EXHAUSTED_AS_GO: &[&str] = &[
    "InsufficientCapacity",
    "InsufficientAddressCapacity",
    "InsufficientInstanceCapacity",
    "InsufficientVolumeCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "VolumeLimitExceeded",
    "MaxIOPSLimitExceeded",
    "RouteLimitExceeded",
    "Unsupported",
];
const EXHAUSTED: &[&str] = &[
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "ReservationCapacityExceeded",
    "InsufficientFreeAddressesInSubnet",
];
const UNAUTHENTICATED: &[&str] = &[
    "AuthFailure",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "ExpiredTokenException",
    "MissingAuthenticationToken",
    "UnrecognizedClientException",
    "InvalidIdentityToken",
    "RequestExpired",
];
const DENIED: &[&str] = &["UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "OptInRequired"];
const TEMPORARY: &[&str] = &["ServiceUnavailable", "InternalError", "InternalFailure", "Unavailable", "RequestTimeout"];
/// The codes for invalid requests that do not begin with `Invalid`. `NoSuchEntity` is the error for an unknown instance profile.
const INVALID: &[&str] = &["MissingParameter", "UnknownParameter", "NoSuchEntity"];

/// The state reasons of an instance whose launch failed for lack of capacity.
const EXHAUSTED_REASONS: &[&str] =
    &["Server.InsufficientInstanceCapacity", "Server.SpotInstanceTermination", "Client.VolumeLimitExceeded"];

fn is_throttling(reason: &str) -> bool {
    reason == "RequestLimitExceeded"
        || reason == "RequestThrottled"
        || reason == "SlowDown"
        || reason.starts_with("Throttling")
}

/// The failure with a code of the set. The codes of Go are `ResourceExhausted` for lack of capacity, and `Internal` for everything else.
pub fn coded(codes: ErrorCodes, mut failure: Failure) -> Failure {
    // A failure that the driver itself found keeps its code in both sets.
    let ours = failure.reason.is_empty()
        && matches!(failure.status.code, Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound);
    if codes == ErrorCodes::AsGo && !ours {
        failure.status.code = match failure.reason.as_str() {
            NO_INSTANCE => Code::NotFound,
            reason if EXHAUSTED_AS_GO.contains(&reason) => Code::ResourceExhausted,
            _ => Code::Internal,
        };
    }
    failure
}

/// The machine code for an error code of AWS.
fn code_of(reason: &str) -> Code {
    match reason {
        NO_INSTANCE => Code::NotFound,
        _ if EXHAUSTED_AS_GO.contains(&reason) => Code::ResourceExhausted,
        _ if EXHAUSTED.contains(&reason) => Code::ResourceExhausted,
        _ if UNAUTHENTICATED.contains(&reason) => Code::Unauthenticated,
        _ if DENIED.contains(&reason) => Code::PermissionDenied,
        _ if TEMPORARY.contains(&reason) || is_throttling(reason) => Code::Unavailable,
        _ if reason.starts_with("Invalid") || INVALID.contains(&reason) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// The machine code for an HTTP status without an error code of AWS, for example from a load balancer or a proxy.
fn code_of_status(status: u16) -> Code {
    match status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        // AWS names every error, also in a 404. Without a name a proxy has found no way to the service.
        404 | 429 | 500.. => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// Whether a failed request has certainly changed nothing at the cloud. It never left this process, or the cloud refused it.
pub fn has_done_nothing(failure: &Failure) -> bool {
    match failure.kind {
        FailureKind::Throttled | FailureKind::NotSent => true,
        FailureKind::Temporary => false,
        // An answer that can't be read is `Internal` without an error code.
        FailureKind::Permanent => !failure.reason.is_empty() || failure.status.code != Code::Internal,
    }
}

/// Whether a failed launch request has certainly launched nothing, and no earlier request with its token has.
pub fn has_launched_nothing(failure: &Failure) -> bool {
    failure.reason != TOKEN_MISMATCH && has_done_nothing(failure)
}

/// The machine code for a launch that ended with a terminated instance, by the state reason of the instance.
pub fn code_of_end(reason: &str) -> Code {
    if EXHAUSTED_REASONS.contains(&reason) { Code::ResourceExhausted } else { Code::Internal }
}

/// The failure of a list of instances. A list by tags or tokens is empty if there is no instance. An answer that an instance does not exist does not
/// belong to such a request, and callers take `NotFound` for the end of a machine's instance.
pub fn of_list(selection: InstanceQuery<'_>, failure: Failure) -> Failure {
    match selection {
        InstanceQuery::Named { .. } | InstanceQuery::Token(_) | InstanceQuery::Owned(_)
            if failure.status.code == Code::NotFound =>
        {
            Failure {
                kind: FailureKind::Temporary,
                status: Status { code: Code::Unavailable, ..failure.status },
                ..failure
            }
        }
        _ => failure,
    }
}

/// The failure in an answer. `None` for a success.
pub fn failure(service: &str, action: &str, answer: &Answer) -> Option<Failure> {
    if answer.status.is_success() {
        return None;
    }
    let status = answer.status.as_u16();
    let xml = Xml::parse(&answer.body);
    let error = xml.as_ref().and_then(|xml| xml.anywhere("Error"));
    // EC2 writes RequestID, STS RequestId.
    let id = xml.as_ref().and_then(|xml| ["RequestID", "RequestId"].iter().find_map(|name| xml.root().some_text(name)));
    let reason = error.map(|error| error.text("Code").to_owned()).unwrap_or_default();
    let said = error.map_or("the answer is no error of the service", |error| error.text("Message"));
    let named = if reason.is_empty() { String::new() } else { format!("api error {reason}: ") };
    let message = format!(
        "operation error {service}: {action}, https response error StatusCode: {status}, RequestID: {}, {named}{said}",
        id.unwrap_or_default()
    );
    let code = if reason.is_empty() { code_of_status(status) } else { code_of(&reason) };
    let kind = match status {
        _ if is_throttling(&reason) => FailureKind::Throttled,
        429 if reason.is_empty() => FailureKind::Throttled,
        // EC2 uses the statuses 500 and 503 for lack of capacity, too. That does not pass within seconds.
        _ if code == Code::ResourceExhausted => FailureKind::Permanent,
        500.. => FailureKind::Temporary,
        404 if reason.is_empty() => FailureKind::Temporary,
        _ if TEMPORARY.contains(&reason.as_str()) => FailureKind::Temporary,
        _ => FailureKind::Permanent,
    };
    Some(Failure { reason, ..Failure::new(code, message, kind) })
}

#[cfg(test)]
mod tests {
    use cloud_client::{
        Bytes,
        http::{HeaderMap, StatusCode},
    };
    use rstest::rstest;

    use super::*;
    use crate::actions::States;

    fn answer(status: u16, body: &str) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, headers: HeaderMap::new(), body: Bytes::copy_from_slice(body.as_bytes()) }
    }

    fn ec2(code: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>so it is</Message>\
             </Error></Errors><RequestID>r-1</RequestID></Response>"
        )
    }

    #[rstest]
    #[case(
        "InsufficientInstanceCapacity",
        500,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case("Unsupported", 400, Code::ResourceExhausted, Code::ResourceExhausted, FailureKind::Permanent)]
    #[case("SpotMaxPriceTooLow", 400, Code::ResourceExhausted, Code::Internal, FailureKind::Permanent)]
    #[case("InsufficientFreeAddressesInSubnet", 400, Code::ResourceExhausted, Code::Internal, FailureKind::Permanent)]
    #[case("AuthFailure", 401, Code::Unauthenticated, Code::Internal, FailureKind::Permanent)]
    #[case("UnauthorizedOperation", 403, Code::PermissionDenied, Code::Internal, FailureKind::Permanent)]
    #[case("RequestLimitExceeded", 503, Code::Unavailable, Code::Internal, FailureKind::Throttled)]
    #[case("ThrottlingException", 400, Code::Unavailable, Code::Internal, FailureKind::Throttled)]
    #[case("InternalError", 500, Code::Unavailable, Code::Internal, FailureKind::Temporary)]
    #[case("InvalidAMIID.NotFound", 400, Code::InvalidArgument, Code::Internal, FailureKind::Permanent)]
    #[case("InvalidParameterValue", 400, Code::InvalidArgument, Code::Internal, FailureKind::Permanent)]
    #[case("InvalidSubnet.Conflict", 400, Code::InvalidArgument, Code::Internal, FailureKind::Permanent)]
    #[case("VcpuLimitExceeded", 400, Code::ResourceExhausted, Code::ResourceExhausted, FailureKind::Permanent)]
    #[case("InvalidClientTokenId", 403, Code::Unauthenticated, Code::Internal, FailureKind::Permanent)]
    #[case("InvalidInstanceID.NotFound", 400, Code::NotFound, Code::NotFound, FailureKind::Permanent)]
    #[case("SomethingNew", 400, Code::Internal, Code::Internal, FailureKind::Permanent)]
    fn an_error_has_its_code(
        #[case] reason: &str,
        #[case] status: u16,
        #[case] fine: Code,
        #[case] as_go: Code,
        #[case] kind: FailureKind,
    ) {
        let failure = failure("EC2", "RunInstances", &answer(status, &ec2(reason))).unwrap();
        assert_eq!((failure.status.code, failure.kind, failure.reason.as_str()), (fine, kind, reason));
        assert_eq!(coded(ErrorCodes::AsGo, failure.clone()).status.code, as_go);
        assert_eq!(
            failure.status.message,
            format!(
                "operation error EC2: RunInstances, https response error StatusCode: {status}, RequestID: r-1, api error {reason}: so it is"
            )
        );
    }

    #[rstest]
    #[case::by_name(InstanceQuery::Named { machine: "m", states: States::Live }, Code::Unavailable)]
    #[case::by_token(InstanceQuery::Token("t"), Code::Unavailable)]
    #[case::by_id(InstanceQuery::Id("i-1"), Code::NotFound)]
    fn only_an_instance_can_be_missing(#[case] selection: InstanceQuery<'_>, #[case] expected: Code) {
        assert_eq!(of_list(selection, Failure::permanent(Code::NotFound, "no")).status.code, expected);
    }

    #[test]
    fn in_strict_mode_a_missing_answer_is_internal_and_a_refusal_of_the_driver_itself_is_not() {
        let code = |code| coded(ErrorCodes::AsGo, Failure::new(code, "", FailureKind::Permanent)).status.code;
        assert_eq!(code(Code::Unavailable), Code::Internal);
        assert_eq!(code(Code::DeadlineExceeded), Code::Internal);
        assert_eq!(code(Code::InvalidArgument), Code::InvalidArgument);
    }

    #[rstest]
    #[case::of_an_identity_service(
        "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error><RequestId>r</RequestId></ErrorResponse>",
        403,
        "AccessDenied",
        Code::PermissionDenied
    )]
    #[case::errors_in_an_error_response(
        "<ErrorResponse><Errors><Error><Code>AccessDenied</Code><Message>no</Message></Error></Errors></ErrorResponse>",
        403,
        "AccessDenied",
        Code::PermissionDenied
    )]
    #[case::of_a_load_balancer("<html>503</html>", 503, "", Code::Unavailable)]
    #[case::of_a_proxy_without_a_route("<html>no route</html>", 404, "", Code::Unavailable)]
    #[case::no_xml("{\"message\": 1}", 403, "", Code::PermissionDenied)]
    #[case::nothing("", 400, "", Code::Internal)]
    fn an_error_is_found_in_every_envelope(
        #[case] body: &str,
        #[case] status: u16,
        #[case] reason: &str,
        #[case] code: Code,
    ) {
        let failure = failure("STS", "AssumeRole", &answer(status, body)).unwrap();
        assert_eq!((failure.reason.as_str(), failure.status.code), (reason, code));
    }
}
