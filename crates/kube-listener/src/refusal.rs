//! Why the listener itself refuses a request, and the `Status` object that tells Kubernetes clients the reason.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode, Version,
    header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;

/// Why the listener refuses a request, whatever its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The body did not arrive in time.
    RequestTimeout,
    /// The body is larger than this many bytes.
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The body broke off.
    BadBody,
    /// A handler panicked.
    Panic,
    /// The limit of requests in flight is reached.
    TooManyRequests,
    /// The deadline of the client is about to pass.
    Timeout,
    /// The path has more bytes than this.
    PathTooLong {
        /// The limit.
        limit: usize,
    },
    /// The head has more fields than this.
    TooManyFields {
        /// The limit.
        limit: usize,
    },
    /// All connections are in use, except the connections that are reserved for health checks.
    TooManyConnections,
}

impl Refusal {
    fn parts(self) -> (StatusCode, &'static str, String) {
        match self {
            Self::RequestTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "Timeout", "the request's body did not arrive in time".to_owned())
            }
            Self::TooLarge { limit } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("the request's body is larger than {limit} bytes"),
            ),
            Self::BadBody => {
                (StatusCode::BAD_REQUEST, "BadRequest", "the request's body could not be read to its end".to_owned())
            }
            Self::Panic => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "the request could not be answered because of a fault in the server; see its log".to_owned(),
            ),
            Self::TooManyRequests => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "too many requests are being answered; try again".to_owned(),
            ),
            Self::Timeout => (
                StatusCode::GATEWAY_TIMEOUT,
                "Timeout",
                "the request could not be answered within its deadline".to_owned(),
            ),
            Self::PathTooLong { limit } => (
                StatusCode::URI_TOO_LONG,
                "RequestURITooLong",
                format!("the request's path and query are longer than {limit} bytes"),
            ),
            Self::TooManyFields { limit } => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "RequestHeaderFieldsTooLarge",
                format!("the request's head has more than {limit} fields"),
            ),
            Self::TooManyConnections => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "too many connections are open; try again".to_owned(),
            ),
        }
    }

    /// Whether the connection is closed after the answer.
    pub const fn closes_connection(self) -> bool {
        match self {
            Self::RequestTimeout
            | Self::TooLarge { .. }
            | Self::BadBody
            | Self::PathTooLong { .. }
            | Self::TooManyFields { .. }
            | Self::TooManyConnections => true,
            Self::Panic | Self::TooManyRequests | Self::Timeout => false,
        }
    }

    /// The answer over this version of HTTP.
    pub(crate) fn response(self, version: Version) -> Response {
        let response = self.into_response();
        if self.closes_connection() { with_connection_close(response, version) } else { response }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason, message) = self.parts();
        let response = failure(code, reason, &message);
        if matches!(self, Self::TooManyRequests | Self::TooManyConnections) {
            with_retry_after(response)
        } else {
            response
        }
    }
}

/// An answer that is a `Status` object of a failure.
pub fn failure(code: StatusCode, reason: &str, message: &str) -> Response {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    });
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer, with a `Retry-After` of one second.
pub fn with_retry_after(mut response: Response) -> Response {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The answer, with `Connection: close`. HTTP/2 has no such header.
pub fn with_connection_close(mut response: Response, version: Version) -> Response {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_exceeds_a_limit_is_asked_to_retry() {
        for refusal in [Refusal::TooManyRequests, Refusal::TooManyConnections] {
            let response = refusal.into_response();
            assert_eq!((response.status().as_u16(), response.headers()[RETRY_AFTER].as_bytes()), (503, &b"1"[..]));
        }
    }
}
