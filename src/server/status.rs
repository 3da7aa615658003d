//! Failures as Kubernetes clients expect them: a `Status` object.

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use http::{
    HeaderValue, StatusCode,
    header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;

/// Why a request was not answered as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A client certificate is demanded and none was shown.
    Unauthorized,
    /// There is nothing at this path.
    NotFound,
    /// Not by this method; POST only.
    MethodNotAllowed,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The body is larger than this many bytes.
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The body is not JSON by its type.
    UnsupportedMediaType,
    /// The body broke off.
    BadBody,
    /// A handler panicked.
    Panic,
    /// As many requests as allowed are in flight.
    Busy,
    /// The caller's deadline is about to pass.
    Timeout,
    /// The process is ending.
    Leaving,
    /// The process is ending and takes nothing new.
    Late,
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
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "a client certificate of the authority given by --webhook-client-ca is required".to_owned(),
            ),
            Self::NotFound => {
                (StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource".to_owned())
            }
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "reviews are sent by POST".to_owned())
            }
            Self::RequestTimeout => {
                (StatusCode::REQUEST_TIMEOUT, "Timeout", "the request's body did not arrive in time".to_owned())
            }
            Self::TooLarge { limit } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("the request's body is larger than {limit} bytes"),
            ),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaType",
                "the request's Content-Type must be application/json".to_owned(),
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
            Self::Leaving => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "this server is shutting down; try again, which leads to another one".to_owned(),
            ),
            Self::Late => (
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                "this server is shutting down and takes no more requests; try again, which leads to another one"
                    .to_owned(),
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
    const fn ends_connection(self) -> bool {
        match self {
            Self::RequestTimeout
            | Self::TooLarge { .. }
            | Self::BadBody
            | Self::Leaving
            | Self::Late
            | Self::PathTooLong { .. }
            | Self::TooManyFields { .. }
            | Self::Crowded => true,
            Self::Unauthorized
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::UnsupportedMediaType
            | Self::Panic
            | Self::Busy
            | Self::Timeout => false,
        }
    }

    /// The answer over this version of HTTP (HTTP/2 knows no `Connection` header).
    pub(super) fn response(self, version: http::Version) -> Response {
        let mut response = self.into_response();
        if self.ends_connection() && version < http::Version::HTTP_2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason, message) = self.parts();
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
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            Self::MethodNotAllowed => {
                headers.insert(ALLOW, HeaderValue::from_static("POST"));
            }
            Self::Busy | Self::Leaving | Self::Late | Self::Crowded => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_sent_away_is_told_when_to_come_again() {
        for (refusal, code) in
            [(Refusal::Leaving, 503), (Refusal::Busy, 503), (Refusal::Crowded, 503), (Refusal::Late, 429)]
        {
            let response = refusal.into_response();
            assert_eq!((response.status().as_u16(), response.headers()[RETRY_AFTER].as_bytes()), (code, &b"1"[..]));
        }
        for refusal in [Refusal::Leaving, Refusal::Late] {
            assert_eq!(refusal.response(http::Version::HTTP_11).headers()[CONNECTION], "close");
        }
    }
}
