//! The way of one request to a cloud and of its answer.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// What the cloud says of the request.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, whole.
    pub body: Bytes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection came about: the cloud has not seen the request.
    NotSent(String),
    /// The connection broke after the request was sent: the cloud may have done what was asked.
    Lost(String),
    /// The answer is longer than any answer of the API.
    TooLong,
    /// The client can't be used as it is configured.
    Unusable(String),
}

/// Sends one request, once. It decides nothing.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// The answer, with its whole body.
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer>;
}
