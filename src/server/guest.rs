//! Who else answers on the TLS port.

use async_trait::async_trait;
use axum::body::Body;
use http::{Request, Response};

/// Answers every request on the TLS port that is not for the webhooks. Each request carries its [`kube_listener::Peer`] as an
/// extension.
#[async_trait]
pub trait Guest: Send + Sync + 'static {
    /// One request from head to answer; limits of time, size and number are the guest's own.
    async fn answer(&self, request: Request<Body>) -> Response<Body>;
}
