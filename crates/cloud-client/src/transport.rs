//! The interface for sending one request to a cloud.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};

/// An answer with its whole body.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, whole.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection could be opened, so the cloud has not received the request.
    NotSent(String),
    /// The connection broke after the request was sent: the cloud may have carried it out.
    Lost(String),
    /// The answer is too long for an API answer.
    TooLong,
    /// The client can't be used with its configuration.
    Unusable(String),
}

/// Sends one request, once, without retries.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends the request and returns the answer with its whole body.
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer>;
}
