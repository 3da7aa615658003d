//! A connection to a driver that may lead through a proxy: every answer that is no gRPC becomes the failure `Unavailable`.
//!
//! A proxy gives such an answer when it has no route to the driver or refuses a request. The driver has decided nothing then. tonic maps the HTTP
//! status of such an answer to a code of gRPC, or decodes the page as a message, and both would be taken for an answer of the driver.

use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE},
    transport::Channel,
};
use tower::util::MapResponse;

/// The beginning of the content type of every answer of gRPC.
const GRPC: &str = "application/grpc";
/// The header with the code of an answer.
const GRPC_STATUS: &str = "grpc-status";

/// A connection that lets only gRPC through.
pub type GrpcOnly = MapResponse<Channel, fn(Response<Body>) -> Response<Body>>;

/// The connection over this channel.
pub fn over(channel: Channel) -> GrpcOnly {
    MapResponse::new(channel, checked)
}

/// The answer itself, or a failure in place of an answer that is no gRPC.
fn checked(answer: Response<Body>) -> Response<Body> {
    match why_no_grpc(answer.status(), answer.headers()) {
        None => answer,
        Some(why) => Status::unavailable(why).into_http(),
    }
}

/// Why an answer with this status and these headers is no gRPC, for users. `None` for gRPC.
fn why_no_grpc(status: StatusCode, headers: &HeaderMap) -> Option<String> {
    let content_type = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    // A server that sends a code of gRPC speaks gRPC, whatever the content type is.
    if content_type.as_ref().is_some_and(|name| name.starts_with(GRPC)) || headers.contains_key(GRPC_STATUS) {
        return None;
    }
    let content_type = content_type.map_or_else(|| "no content type".to_owned(), |name| format!("content type {name}"));
    Some(format!(
        "the answer has HTTP status {} and {content_type}, and is no gRPC: a proxy has given it, not the driver; check the proxy's route to the \
         driver",
        status.as_u16()
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tonic::codegen::http::{HeaderName, HeaderValue};

    use super::*;

    #[rstest]
    #[case::grpc(200, &[("content-type", "application/grpc")], None)]
    #[case::grpc_with_an_encoding(200, &[("content-type", "application/grpc+proto")], None)]
    #[case::a_failure_without_a_content_type(200, &[("grpc-status", "5")], None)]
    #[case::a_page(200, &[("content-type", "text/html")], Some("HTTP status 200 and content type text/html"))]
    #[case::without_a_route(404, &[("content-type", "text/plain")], Some("HTTP status 404 and content type text/plain"))]
    #[case::refused(403, &[("content-type", "application/json")], Some("HTTP status 403 and content type application/json"))]
    #[case::without_a_backend(503, &[], Some("HTTP status 503 and no content type"))]
    fn an_answer_is_grpc_or_of_a_proxy(
        #[case] status: u16,
        #[case] headers: &[(&'static str, &'static str)],
        #[case] expected: Option<&str>,
    ) {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers = headers.iter().map(header).collect();
        match (why_no_grpc(StatusCode::from_u16(status).unwrap(), &headers), expected) {
            (Some(why), Some(expected)) => assert!(why.contains(expected), "{why}"),
            (why, expected) => assert_eq!(why.as_deref(), expected),
        }
    }
}
