//! The handler of requests on the TLS port that are not for webhooks.

use async_trait::async_trait;
use axum::body::Body;
use http::{Request, Response};

/// Answers every request on the TLS port that is not for a webhook. Each request carries its [`kube_listener::Peer`] as an
/// extension.
#[async_trait]
pub trait FallbackHandler: Send + Sync + 'static {
    /// Answers one request. The handler has its own limits of time, size and number.
    async fn answer(&self, request: Request<Body>) -> Response<Body>;
}
