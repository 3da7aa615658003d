//! Maps errors of ECS and STS to machine codes.

use cloud_client::{Answer, Failure, FailureKind};
use machine_driver::{Code, ErrorCodes, Status};
use serde::Deserialize;

use crate::actions::{DRY_RUN, InstanceQuery};

/// The error code for an instance that does not exist.
pub const NO_INSTANCE: &str = "InvalidInstanceId.NotFound";
/// The error code for a client token that was used with other parameters before.
pub const TOKEN_MISMATCH: &str = "IdempotentParameterMismatch";
/// The error code for a region that does not exist.
pub const NO_REGION: &str = "InvalidRegionId.NotFound";
/// The error codes that mean lack of capacity for the Go driver.
const EXHAUSTED_AS_GO: &[&str] = &[
    "QuotaExceed.DiskCapacity",
    "QuotaExceed.ElasticQuota",
    "OperationDenied.CloudSSDNotSupported",
    "OperationDenied.NoStock",
    "OperationDenied.ZoneNotAllowed",
    "OperationDenied.ZoneSystemCategoryNotMatch",
    "Zone.NotOnSale",
    "Zone.NotOpen",
    "InvalidVpcZone.NotSupported",
    "InvalidResourceType.NotSupported",
    "InvalidInstanceType.ZoneNotSupported",
    "InvalidZoneId.NotSupportShareEncryptedImage",
    "ResourceNotAvailable",
];
/// Parts of other error codes that mean lack of capacity, or a used up quota.
const EXHAUSTED: &[&str] = &["QuotaExceed", "NoStock", "IpNotEnough", "IpAddressNotEnough"];
/// The beginnings of error codes for wrong credentials, also because the clock is wrong.
const UNAUTHENTICATED: &[&str] = &[
    "InvalidAccessKeyId",
    "InvalidAccessKeySecret",
    "InvalidSecurityToken",
    "MissingSecurityToken",
    "InvalidCredentials",
    "InvalidTimeStamp",
    "IllegalTimestamp",
    "SignatureDoesNotMatch",
    "IncompleteSignature",
    "InvalidSignature",
];
/// The beginnings of error codes for signatures. Their messages repeat the request, which contains the user data.
const OF_SIGNATURES: &[&str] = &["SignatureDoesNotMatch", "IncompleteSignature", "InvalidSignature"];
/// The beginnings of error codes for missing rights.
const DENIED: &[&str] = &["Forbidden", "NoPermission", "UnauthorizedOperation", "Unauthorized", "AccessDenied"];
/// The beginnings of error codes for an account or an instance that has to change first.
const PRECONDITIONS: &[&str] = &[
    "Account.",
    "InvalidAccountStatus",
    "DependencyViolation",
    "ChargeTypeViolation",
    "InvalidOperation.DeletionProtection",
    "OperationDenied.DeletionProtection",
    "RealNameAuthenticationError",
];
/// The beginnings of error codes that pass.
const TEMPORARY: &[&str] =
    &["ServiceUnavailable", "InternalError", "InternalFailure", "UnknownError", "SignatureNonceUsed"];
/// The beginnings of error codes for an instance that is changing, or a request with the same client token that is not done yet. They pass, but
/// not within one call.
const CHANGING: &[&str] =
    &["IncorrectInstanceStatus", "OperationConflict", "LastTokenProcessing", "IdempotentProcessing", "LockedOperation"];

/// The body of a failed request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorBody {
    code: String,
    message: Option<String>,
    request_id: Option<String>,
}

fn is_throttling(reason: &str) -> bool {
    reason.starts_with("Throttling") || reason == "RequestLimitExceeded"
}

/// The machine code for an error code of Alibaba Cloud.
fn code_of(reason: &str) -> Code {
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| reason.starts_with(beginning));
    match reason {
        NO_INSTANCE => Code::NotFound,
        _ if EXHAUSTED_AS_GO.contains(&reason) => Code::ResourceExhausted,
        _ if is_throttling(reason) || begins(TEMPORARY) || begins(CHANGING) => Code::Unavailable,
        _ if EXHAUSTED.iter().any(|part| reason.contains(part)) => Code::ResourceExhausted,
        _ if begins(UNAUTHENTICATED) => Code::Unauthenticated,
        _ if begins(PRECONDITIONS) => Code::FailedPrecondition,
        _ if begins(DENIED) => Code::PermissionDenied,
        _ if begins(&["Invalid", "Missing", "Illegal", "Malformed"]) => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// The machine code for an HTTP status without an error code of Alibaba Cloud, for example from a load balancer or a proxy.
const fn code_of_status(status: u16) -> Code {
    match status {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        // Alibaba Cloud names every error, also in a 404. Without a name a proxy has found no way to the service.
        404 | 408 | 429 | 500.. => Code::Unavailable,
        _ => Code::Internal,
    }
}

/// The failure in an answer. `None` for a success.
pub fn failure(action: &str, answer: &Answer) -> Option<Failure> {
    if answer.status.is_success() {
        return None;
    }
    let status = answer.status.as_u16();
    let ErrorBody { code: reason, message, request_id } = serde_json::from_slice(&answer.body).unwrap_or_default();
    if reason.is_empty() {
        let message = format!("{action}: status {status}, and the answer is no error of Alibaba Cloud");
        let code = code_of_status(status);
        let kind = match code {
            _ if status == 429 => FailureKind::Throttled,
            Code::Unavailable => FailureKind::Temporary,
            _ => FailureKind::Permanent,
        };
        return Some(Failure::new(code, message, kind));
    }
    let of_signature = OF_SIGNATURES.iter().any(|beginning| reason.starts_with(beginning));
    let said = if of_signature {
        "the signature of the request is wrong, so the secret of the access key is".to_owned()
    } else {
        message.unwrap_or_default()
    };
    let id = request_id.unwrap_or_default();
    let message = format!("{action}: status {status}, RequestId: {id}, {reason}: {}", said.trim());
    let code = code_of(&reason);
    let kind = match status {
        _ if is_throttling(&reason) => FailureKind::Throttled,
        _ if reason == DRY_RUN || code == Code::ResourceExhausted => FailureKind::Permanent,
        _ if TEMPORARY.iter().any(|beginning| reason.starts_with(beginning)) => FailureKind::Temporary,
        500.. => FailureKind::Temporary,
        _ => FailureKind::Permanent,
    };
    Some(Failure { reason, ..Failure::new(code, message, kind) })
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

/// Whether a failed request has certainly changed nothing at the cloud. It never left this process, or the cloud refused it.
pub fn has_done_nothing(failure: &Failure) -> bool {
    let is_being_done = || CHANGING.iter().any(|beginning| failure.reason.starts_with(beginning));
    match failure.kind {
        FailureKind::Throttled | FailureKind::NotSent => true,
        FailureKind::Temporary => false,
        // An answer that can't be read is `Internal` without an error code.
        FailureKind::Permanent if failure.reason.is_empty() => failure.status.code != Code::Internal,
        FailureKind::Permanent => failure.reason != TOKEN_MISMATCH && !is_being_done(),
    }
}

/// Whether ECS itself has refused a request, and has done nothing. It may answer the same client token with the same refusal again.
pub fn is_refusal(failure: &Failure) -> bool {
    failure.kind == FailureKind::Permanent && !failure.reason.is_empty() && has_done_nothing(failure)
}

/// The failure of a list of instances. A list by names or tags is empty if there is no instance. An answer that an instance does not exist does not
/// belong to such a request, and callers take `NotFound` for the end of a machine's instance.
pub fn of_list(selection: InstanceQuery<'_>, failure: Failure) -> Failure {
    match selection {
        InstanceQuery::Named(_) | InstanceQuery::Tagged(_) if failure.status.code == Code::NotFound => Failure {
            kind: FailureKind::Temporary,
            status: Status { code: Code::Unavailable, ..failure.status },
            ..failure
        },
        _ => failure,
    }
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

    fn ecs(status: u16, code: &str) -> Answer {
        let body = json!({"RequestId": "r-1", "HostId": "ecs.cn-x.aliyuncs.com", "Code": code, "Message": "so it is"});
        answer(status, body.to_string())
    }

    #[rstest]
    #[case::y04_a_disk_quota(
        "QuotaExceed.DiskCapacity",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_a_cpu_quota(
        "QuotaExceed.ElasticQuota",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_ssd(
        "OperationDenied.CloudSSDNotSupported",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_stock(
        "OperationDenied.NoStock",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_zone(
        "OperationDenied.ZoneNotAllowed",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_category(
        "OperationDenied.ZoneSystemCategoryNotMatch",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_not_sold(
        "Zone.NotOnSale",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_not_open("Zone.NotOpen", 403, Code::ResourceExhausted, Code::ResourceExhausted, FailureKind::Permanent)]
    #[case::y04_not_in_the_network(
        "InvalidVpcZone.NotSupported",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_resource(
        "InvalidResourceType.NotSupported",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_type(
        "InvalidInstanceType.ZoneNotSupported",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_shared_image(
        "InvalidZoneId.NotSupportShareEncryptedImage",
        403,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_no_resource_now(
        "ResourceNotAvailable",
        404,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y04_another_quota(
        "QuotaExceeded.InstanceType",
        403,
        Code::ResourceExhausted,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::y04_no_addresses(
        "InvalidVSwitchId.IpNotEnough",
        403,
        Code::ResourceExhausted,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::y04_an_exhausted_service(
        "OperationDenied.NoStock",
        503,
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        FailureKind::Permanent
    )]
    #[case::y09_an_unknown_key(
        "InvalidAccessKeyId.NotFound",
        404,
        Code::Unauthenticated,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::y09_an_old_token(
        "InvalidSecurityToken.Expired",
        400,
        Code::Unauthenticated,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::y09_a_wrong_clock(
        "InvalidTimeStamp.Expired",
        400,
        Code::Unauthenticated,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::no_right("Forbidden.RAM", 403, Code::PermissionDenied, Code::Internal, FailureKind::Permanent)]
    #[case::no_money(
        "InvalidAccountStatus.NotEnoughBalance",
        403,
        Code::FailedPrecondition,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::y15_throttled("Throttling.User", 400, Code::Unavailable, Code::Internal, FailureKind::Throttled)]
    #[case::an_outage("ServiceUnavailable", 503, Code::Unavailable, Code::Internal, FailureKind::Temporary)]
    #[case::an_error_of_the_service("InternalError", 500, Code::Unavailable, Code::Internal, FailureKind::Temporary)]
    #[case::a_changing_instance(
        "IncorrectInstanceStatus.Initializing",
        403,
        Code::Unavailable,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::no_image("InvalidImageId.NotFound", 404, Code::InvalidArgument, Code::Internal, FailureKind::Permanent)]
    #[case::a_missing_parameter("MissingParameter", 400, Code::InvalidArgument, Code::Internal, FailureKind::Permanent)]
    #[case::no_instance("InvalidInstanceId.NotFound", 404, Code::NotFound, Code::NotFound, FailureKind::Permanent)]
    #[case::an_old_token_of_a_client(
        "IdempotentParameterMismatch",
        400,
        Code::Internal,
        Code::Internal,
        FailureKind::Permanent
    )]
    #[case::something_new("SomethingNew", 400, Code::Internal, Code::Internal, FailureKind::Permanent)]
    fn an_error_has_its_code(
        #[case] reason: &str,
        #[case] status: u16,
        #[case] fine: Code,
        #[case] as_go: Code,
        #[case] kind: FailureKind,
    ) {
        let failure = failure("RunInstances", &ecs(status, reason)).unwrap();
        assert_eq!((failure.status.code, failure.kind, failure.reason.as_str()), (fine, kind, reason));
        assert_eq!(coded(ErrorCodes::AsGo, failure.clone()).status.code, as_go);
        let expected = format!("RunInstances: status {status}, RequestId: r-1, {reason}: so it is");
        assert_eq!(failure.status.message, expected);
    }

    #[test]
    fn y09_the_message_about_a_signature_is_not_shown() {
        let message = "server string to sign is: POST UserData=c2VjcmV0";
        for reason in ["SignatureDoesNotMatch", "IncompleteSignature"] {
            let body = json!({"Code": reason, "Message": message}).to_string();
            let failure = failure("RunInstances", &answer(400, body)).unwrap();
            assert_eq!(failure.status.code, Code::Unauthenticated);
            assert!(!failure.status.message.contains("UserData"), "{}", failure.status.message);
        }
    }

    #[rstest]
    #[case::of_a_proxy(404, Code::Unavailable)]
    #[case::of_a_load_balancer(502, Code::Unavailable)]
    #[case::of_a_gate(403, Code::PermissionDenied)]
    #[case::another(418, Code::Internal)]
    fn y14_an_answer_without_an_error_proves_nothing(#[case] status: u16, #[case] code: Code) {
        for body in ["<html>", "{}", "", "[1", "{\"Code\": null}", "{\"Code\": 404}"] {
            assert_eq!(failure("w", &answer(status, body)).unwrap().status.code, code);
        }
        assert_eq!(failure("w", &answer(200, "")), None);
    }

    #[rstest]
    #[case::by_name(InstanceQuery::Named("m"), Code::Unavailable)]
    #[case::by_id(InstanceQuery::Id("i-1"), Code::NotFound)]
    fn only_an_instance_can_be_missing(#[case] selection: InstanceQuery<'_>, #[case] expected: Code) {
        assert_eq!(of_list(selection, Failure::permanent(Code::NotFound, "no")).status.code, expected);
    }

    #[rstest]
    #[case::a_refusal(failure("w", &ecs(403, "OperationDenied.NoStock")), true)]
    #[case::throttled(failure("w", &ecs(400, "Throttling")), true)]
    #[case::a_used_token(failure("w", &ecs(400, TOKEN_MISMATCH)), false)]
    #[case::a_token_in_use(failure("w", &ecs(400, "LastTokenProcessing")), false)]
    #[case::an_error_of_the_service(failure("w", &ecs(500, "InternalError")), false)]
    #[case::of_a_proxy(failure("w", &answer(502, "")), false)]
    #[case::unreadable(Some(Failure::permanent(Code::Internal, "the answer can't be read")), false)]
    fn a_refused_request_has_done_nothing(#[case] failure: Option<Failure>, #[case] expected: bool) {
        let failure = failure.unwrap();
        assert_eq!(has_done_nothing(&failure), expected);
        assert_eq!(is_refusal(&failure), expected && failure.kind == FailureKind::Permanent);
    }
}
