//! What an error of EC2 or STS means (spec/providers §3.3).

use cloud_client::{Answer, Failure, Trouble};
use machine_driver::Code;

use crate::xml::Xml;

/// How fine codes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorCodes {
    /// A code for each kind of failure.
    #[default]
    Fine,
    /// Those of the Go driver: `ResourceExhausted` for lack of capacity, `Internal` for all else.
    AsGo,
}

/// An instance does not exist.
pub const NO_INSTANCE: &str = "InvalidInstanceID.NotFound";
/// A client token was used with other parameters.
pub const TOKEN_MISMATCH: &str = "IdempotentParameterMismatch";
/// The instance that a client token made is terminated.
pub const TOKEN_TERMINATED: &str = "IdempotentInstanceTerminated";

/// Lack of capacity, as the Go driver knows it.
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
const PASSING: &[&str] = &["ServiceUnavailable", "InternalError", "InternalFailure", "Unavailable", "RequestTimeout"];
const INVALID: &[&str] = &[
    "InvalidSubnetID.NotFound",
    "InvalidGroup.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidBlockDeviceMapping",
    "InvalidSnapshot.NotFound",
    "MissingParameter",
];

/// What stands in the stead of a code in the reason of an instance's end: the launch has failed for lack of capacity.
const EXHAUSTED_REASONS: &[&str] =
    &["Server.InsufficientInstanceCapacity", "Server.SpotInstanceTermination", "Client.VolumeLimitExceeded"];

fn is_throttling(reason: &str) -> bool {
    reason == "RequestLimitExceeded"
        || reason == "RequestThrottled"
        || reason == "SlowDown"
        || reason.starts_with("Throttling")
}

/// The code of an error with this name.
fn code_of(reason: &str, codes: ErrorCodes) -> Code {
    if reason == NO_INSTANCE {
        return Code::NotFound;
    }
    if EXHAUSTED_AS_GO.contains(&reason) {
        return Code::ResourceExhausted;
    }
    if codes == ErrorCodes::AsGo {
        return Code::Internal;
    }
    match reason {
        _ if EXHAUSTED.contains(&reason) => Code::ResourceExhausted,
        _ if UNAUTHENTICATED.contains(&reason) => Code::Unauthenticated,
        _ if DENIED.contains(&reason) => Code::PermissionDenied,
        _ if PASSING.contains(&reason) || is_throttling(reason) => Code::Unavailable,
        _ if INVALID.contains(&reason) => Code::InvalidArgument,
        _ if ["InvalidAMIID.", "InvalidParameter", "InvalidInstanceID.Malformed"]
            .iter()
            .any(|begin| reason.starts_with(begin)) =>
        {
            Code::InvalidArgument
        }
        _ => Code::Internal,
    }
}

/// The code of an answer that does not name its error: it may be a load balancer's or a proxy's.
fn code_of_status(status: u16, codes: ErrorCodes) -> Code {
    match status {
        _ if codes == ErrorCodes::AsGo => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        429 | 500.. => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// The code of a launch that ended in a terminated instance, by the reason that the instance gives.
pub fn code_of_end(reason: &str) -> Code {
    if EXHAUSTED_REASONS.contains(&reason) { Code::ResourceExhausted } else { Code::Internal }
}

/// The failure that an answer tells; `None` when it tells of a success.
pub fn failure(service: &str, action: &str, answer: &Answer, codes: ErrorCodes) -> Option<Failure> {
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
    let code = if reason.is_empty() { code_of_status(status, codes) } else { code_of(&reason, codes) };
    let trouble = match status {
        _ if is_throttling(&reason) => Trouble::Throttled,
        429 if reason.is_empty() => Trouble::Throttled,
        // EC2 says lack of capacity with status 500 and 503, too; that does not pass within seconds.
        _ if code == Code::ResourceExhausted => Trouble::Lasting,
        500.. => Trouble::Passing,
        _ if PASSING.contains(&reason.as_str()) => Trouble::Passing,
        _ => Trouble::Lasting,
    };
    Some(Failure { reason, ..Failure::new(code, message, trouble) })
}

#[cfg(test)]
mod tests {
    use cloud_client::{
        Bytes,
        http::{HeaderMap, StatusCode},
    };
    use rstest::rstest;

    use super::*;

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
    #[case("InsufficientInstanceCapacity", 500, Code::ResourceExhausted, Code::ResourceExhausted, Trouble::Lasting)]
    #[case("Unsupported", 400, Code::ResourceExhausted, Code::ResourceExhausted, Trouble::Lasting)]
    #[case("SpotMaxPriceTooLow", 400, Code::ResourceExhausted, Code::Internal, Trouble::Lasting)]
    #[case("InsufficientFreeAddressesInSubnet", 400, Code::ResourceExhausted, Code::Internal, Trouble::Lasting)]
    #[case("AuthFailure", 401, Code::Unauthenticated, Code::Internal, Trouble::Lasting)]
    #[case("UnauthorizedOperation", 403, Code::PermissionDenied, Code::Internal, Trouble::Lasting)]
    #[case("RequestLimitExceeded", 503, Code::Unavailable, Code::Internal, Trouble::Throttled)]
    #[case("ThrottlingException", 400, Code::Unavailable, Code::Internal, Trouble::Throttled)]
    #[case("InternalError", 500, Code::Unavailable, Code::Internal, Trouble::Passing)]
    #[case("InvalidAMIID.NotFound", 400, Code::InvalidArgument, Code::Internal, Trouble::Lasting)]
    #[case("InvalidParameterValue", 400, Code::InvalidArgument, Code::Internal, Trouble::Lasting)]
    #[case("InvalidInstanceID.NotFound", 400, Code::NotFound, Code::NotFound, Trouble::Lasting)]
    #[case("SomethingNew", 400, Code::Internal, Code::Internal, Trouble::Lasting)]
    fn an_error_has_its_code(
        #[case] reason: &str,
        #[case] status: u16,
        #[case] fine: Code,
        #[case] as_go: Code,
        #[case] trouble: Trouble,
    ) {
        let told = |codes| failure("EC2", "RunInstances", &answer(status, &ec2(reason)), codes).unwrap();
        let failure = told(ErrorCodes::Fine);
        assert_eq!((failure.status.code, failure.trouble, failure.reason.as_str()), (fine, trouble, reason));
        assert_eq!(told(ErrorCodes::AsGo).status.code, as_go);
        assert_eq!(
            failure.status.message,
            format!(
                "operation error EC2: RunInstances, https response error StatusCode: {status}, RequestID: r-1, api error {reason}: so it is"
            )
        );
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
    #[case::no_xml("{\"message\": 1}", 403, "", Code::PermissionDenied)]
    #[case::nothing("", 400, "", Code::Internal)]
    fn an_error_is_found_in_every_envelope(
        #[case] body: &str,
        #[case] status: u16,
        #[case] reason: &str,
        #[case] code: Code,
    ) {
        let failure = failure("STS", "AssumeRole", &answer(status, body), ErrorCodes::Fine).unwrap();
        assert_eq!((failure.reason.as_str(), failure.status.code), (reason, code));
    }
}
