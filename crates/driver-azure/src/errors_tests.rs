//! Tests of codes.

use cloud_client::http::{HeaderMap, HeaderValue, StatusCode};
use rstest::rstest;
use serde_json::json;

use super::*;

fn answer(status: u16, body: impl Into<String>) -> Answer {
    let status = StatusCode::from_u16(status).unwrap();
    Answer { status, headers: HeaderMap::new(), body: body.into().into() }
}

fn error(code: &str, message: &str) -> String {
    json!({"error": {"code": code, "message": message}}).to_string()
}

const NO_VM: &str = "The Resource 'Microsoft.Compute/virtualMachines/m' under resource group 'g' was not found.";

#[rstest]
#[case::a_missing_vm(404, error("ResourceNotFound", NO_VM), Code::NotFound, FailureKind::Permanent)]
#[case::a_missing_group(404, error("ResourceGroupNotFound", "x"), Code::NotFound, FailureKind::Permanent)]
#[case::a_missing_subscription(
    404,
    error("SubscriptionNotFound", "x"),
    Code::FailedPrecondition,
    FailureKind::Permanent
)]
#[case::another_404(404, error("InvalidResourceType", "x"), Code::FailedPrecondition, FailureKind::Permanent)]
#[case::a_404_of_a_proxy(404, "<html>not found</html>".to_owned(), Code::Unavailable, FailureKind::Permanent)]
#[case::an_empty_404(404, String::new(), Code::Unavailable, FailureKind::Permanent)]
#[case::no_capacity(409, error("SkuNotAvailable", "x"), Code::ResourceExhausted, FailureKind::Permanent)]
#[case::a_full_subnet(400, error("SubnetIsFull", "x"), Code::ResourceExhausted, FailureKind::Permanent)]
#[case::z06_a_quota(
    409,
    error("OperationNotAllowed", "exceeding approved standardDSv3 Cores Quota"),
    Code::ResourceExhausted,
    FailureKind::Permanent
)]
#[case::z06_no_quota(
    409,
    error("OperationNotAllowed", "quota is fine, nothing is exceeding"),
    Code::Internal,
    FailureKind::Permanent
)]
#[case::not_supported(
    400,
    error("BadRequest", "the size is NOT  supported here"),
    Code::ResourceExhausted,
    FailureKind::Permanent
)]
#[case::another_bad_request(
    400,
    error("BadRequest", "this is nothing that is supported"),
    Code::Internal,
    FailureKind::Permanent
)]
#[case::no_right(403, error("AuthorizationFailed", "x"), Code::PermissionDenied, FailureKind::Permanent)]
#[case::a_policy(403, error("RequestDisallowedByPolicy", "x"), Code::PermissionDenied, FailureKind::Permanent)]
#[case::a_token(401, error("ExpiredAuthenticationToken", "x"), Code::Unauthenticated, FailureKind::Permanent)]
#[case::entra(400, error("x", "AADSTS700016: no such application"), Code::Unauthenticated, FailureKind::Permanent)]
#[case::throttled(429, error("TooManyRequests", "x"), Code::Unavailable, FailureKind::Throttled)]
#[case::a_busy_resource(409, error("AnotherOperationInProgress", "x"), Code::Unavailable, FailureKind::Permanent)]
#[case::a_reserved_nic(400, error("NicReservedForAnotherVm", "x"), Code::Unavailable, FailureKind::Permanent)]
#[case::a_fault(500, error("InternalServerError", "x"), Code::Unavailable, FailureKind::Temporary)]
#[case::a_gateway(502, String::new(), Code::Unavailable, FailureKind::Temporary)]
#[case::a_parameter(400, error("InvalidParameter", "x"), Code::InvalidArgument, FailureKind::Permanent)]
#[case::an_image(404, error("ImageNotFound", "x"), Code::InvalidArgument, FailureKind::Permanent)]
#[case::it_exists(412, error("PreconditionFailed", "x"), Code::AlreadyExists, FailureKind::Permanent)]
#[case::anything_else(409, error("Conflict", "x"), Code::Internal, FailureKind::Permanent)]
fn an_answer_has_a_code(#[case] status: u16, #[case] body: String, #[case] code: Code, #[case] kind: FailureKind) {
    let failure = failure("virtualMachines.get", &answer(status, body));
    assert_eq!((failure.status.code, failure.kind), (code, kind), "{failure:?}");
    assert!(failure.status.message.starts_with("virtualMachines.get: "), "{failure:?}");
}

#[rstest]
#[case::a_detail(json!({"code": "DeploymentFailed", "message": "a", "details": [{"code": "Conflict", "message": "b"}, {"code": "AllocationFailed", "message": "c"}]}),
    "DeploymentFailed: a; Conflict: b; AllocationFailed: c")]
#[case::deep(json!({"code": "A", "details": [{"code": "B", "details": [{"code": "ZonalAllocationFailed"}]}]}), "A; B; ZonalAllocationFailed")]
#[case::an_inner_error(json!({"code": "A", "message": "a", "innererror": {"code": "B", "innererror": {"code": "QuotaExceeded"}}}), "A: a; B; QuotaExceeded")]
#[case::an_error_in_a_message(json!({"code": "A", "message": "{\"error\": {\"code\": \"AllocationFailed\", \"message\": \"no\"}}"}), "A; AllocationFailed: no")]
fn z05_all_codes_of_an_error_count(#[case] error: Value, #[case] text: &str) {
    let read = ArmError::of_body(&json!({ "error": error })).unwrap();
    assert_eq!((read.text().as_str(), read.machine_code(0)), (text, Code::ResourceExhausted));
    assert_eq!(ArmError::of_body(&error), Some(read), "some services write no `error` around it");
}

#[test]
fn errors_are_read_to_a_bounded_depth() {
    let mut error = json!({"code": "AllocationFailed"});
    for _ in 0..60 {
        error = json!({"code": "A", "details": vec![error.clone(); 2][..1].to_vec(), "innererror": "x"});
    }
    assert_eq!(ArmError::of_body(&error).unwrap().machine_code(0), Code::Internal);
    let wide = json!({"code": "A", "details": vec![json!({"code": "B", "message": "x"}); 5000]});
    assert!(ArmError::of_body(&wide).unwrap().text().len() < 100);
    for body in [json!(null), json!([]), json!("x"), json!({"error": "x"}), json!({"error": {"code": 5}})] {
        assert_eq!(ArmError::of_body(&body), None);
    }
}

#[test]
fn the_id_of_a_request_is_shown() {
    let mut answer = answer(409, error("Conflict", "x"));
    answer.headers.insert(api::REQUEST_ID, HeaderValue::from_static("5f3a-1"));
    assert_eq!(failure("get", &answer).status.message, "get: Conflict: x (request 5f3a-1)");
    answer.headers.insert(api::REQUEST_ID, HeaderValue::from_static("<b>"));
    assert_eq!(failure("get", &answer).status.message, "get: Conflict: x");
}

#[rstest]
#[case(Code::ResourceExhausted, Code::ResourceExhausted)]
#[case(Code::NotFound, Code::NotFound)]
#[case(Code::Unavailable, Code::Internal)]
#[case(Code::PermissionDenied, Code::Internal)]
fn the_go_driver_has_fewer_codes(#[case] fine: Code, #[case] go: Code) {
    assert_eq!(as_go(fine), go);
}
