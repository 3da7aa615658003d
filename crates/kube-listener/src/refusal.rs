//! What a listener does not answer as asked, as Kubernetes clients expect to be told: by a `Status` object.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode, Version,
    header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;

/// Why a request was not answered as asked, whatever it asks for.
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
    /// As many requests as allowed are in flight.
    Busy,
    /// The caller's deadline is about to pass.
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
    /// All connections are taken but those that are kept for health.
    Crowded,
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
            Self::Busy => (
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
            Self::Crowded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "too many connections are open; try again".to_owned(),
            ),
        }
    }

    /// Whether nothing more is read from the connection.
    pub const fn ends_connection(self) -> bool {
        match self {
            Self::RequestTimeout
            | Self::TooLarge { .. }
            | Self::BadBody
            | Self::PathTooLong { .. }
            | Self::TooManyFields { .. }
            | Self::Crowded => true,
            Self::Panic | Self::Busy | Self::Timeout => false,
        }
    }

    /// The answer over this version of HTTP.
    pub(crate) fn response(self, version: Version) -> Response {
        let response = self.into_response();
        if self.ends_connection() { last_answer(response, version) } else { response }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason, message) = self.parts();
        let response = failure(code, reason, &message);
        if matches!(self, Self::Busy | Self::Crowded) { soon_again(response) } else { response }
    }
}

/// An answer that is a `Status` object about a failure.
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

/// The answer, with the advice to ask again in a second.
pub fn soon_again(mut response: Response) -> Response {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The answer, as the last of its connection. HTTP/2 knows no `Connection` header.
pub fn last_answer(mut response: Response, version: Version) -> Response {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_place_is_told_when_to_come_again() {
        for refusal in [Refusal::Busy, Refusal::Crowded] {
            let response = refusal.into_response();
            assert_eq!((response.status().as_u16(), response.headers()[RETRY_AFTER].as_bytes()), (503, &b"1"[..]));
        }
    }
}
