//! Failures in the form that Kubernetes clients expect: `Status` objects.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header::ALLOW};
use kube_listener::refusal::{failure, with_connection_close, with_retry_after};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A client certificate is required, and the client has sent none.
    Unauthorized,
    /// No resource has this path.
    NotFound,
    /// The method is not POST.
    MethodNotAllowed,
    /// The content type is not JSON.
    UnsupportedMediaType,
    /// The process is shutting down.
    Leaving,
    /// The process is shutting down and takes no new requests.
    Late,
    /// A limit of the listener is exceeded.
    Limit(kube_listener::Refusal),
}

impl From<kube_listener::Refusal> for Refusal {
    fn from(refusal: kube_listener::Refusal) -> Self {
        Self::Limit(refusal)
    }
}

impl Refusal {
    /// The response for this version of HTTP.
    pub(super) fn response(self, version: http::Version) -> Response {
        let closes_connection = match self {
            Self::Leaving | Self::Late => true,
            Self::Limit(refusal) => refusal.closes_connection(),
            Self::Unauthorized | Self::NotFound | Self::MethodNotAllowed | Self::UnsupportedMediaType => false,
        };
        let response = self.into_response();
        if closes_connection { with_connection_close(response, version) } else { response }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason, message) = match self {
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "a client certificate of the authority given by --webhook-client-ca is required",
            ),
            Self::NotFound => (StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "reviews are sent by POST"),
            Self::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaType",
                "the request's Content-Type must be application/json",
            ),
            Self::Leaving => (
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "this server is shutting down; try again, which leads to another one",
            ),
            Self::Late => (
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                "this server is shutting down and takes no more requests; try again, which leads to another one",
            ),
            Self::Limit(refusal) => return refusal.into_response(),
        };
        let mut response = failure(code, reason, message);
        match self {
            Self::MethodNotAllowed => {
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                response
            }
            Self::Leaving | Self::Late => with_retry_after(response),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONNECTION, RETRY_AFTER};

    use super::*;

    #[test]
    fn a_client_of_a_server_that_shuts_down_is_asked_to_retry() {
        for (refusal, code) in
            [(Refusal::Leaving, 503), (kube_listener::Refusal::TooManyRequests.into(), 503), (Refusal::Late, 429)]
        {
            let response = refusal.into_response();
            assert_eq!((response.status().as_u16(), response.headers()[RETRY_AFTER].as_bytes()), (code, &b"1"[..]));
        }
        for refusal in [Refusal::Leaving, Refusal::Late] {
            assert_eq!(refusal.response(http::Version::HTTP_11).headers()[CONNECTION], "close");
        }
    }
}
