//! Single calls to the target cluster's API server: raw, short, with a deadline, decoding only what is needed.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::Value;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Answers to writes are asked for in this short form, since nothing of them is read.
const SHORT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Why a call did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The API server refused it.
    #[error("API server answered {code}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// What it said.
        message: String,
    },
    /// It was not answered.
    #[error("API server did not answer: {0}")]
    Unanswered(String),
}

impl CallError {
    /// Whether the object was not there.
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }

    /// Whether the object was there already, or has changed.
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: 409, .. })
    }

    /// Whether the API server will never accept it.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 400 | 405 | 413 | 415 | 422, .. })
    }
}

/// The kinds of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// Lists with keys are merged by key.
    Strategic,
    /// Lists are replaced.
    Merge,
}

/// The target cluster.
#[derive(Clone)]
pub struct Target {
    client: kube::Client,
}

impl Target {
    /// Calls through this client. It should not retry by itself.
    pub const fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// The client, for watches.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Reads an object.
    pub async fn get(&self, path: &str) -> Result<Value, CallError> {
        let body = self.call(Method::GET, path, None, Vec::new()).await?;
        serde_json::from_slice(&body).map_err(|error| CallError::Unanswered(error.to_string()))
    }

    /// Makes an object.
    pub async fn create(&self, path: &str, body: Vec<u8>) -> Result<(), CallError> {
        self.call(Method::POST, path, Some("application/json"), body).await.map(drop)
    }

    /// Patches an object.
    pub async fn patch(&self, path: &str, kind: PatchKind, body: &Value) -> Result<(), CallError> {
        let content = match kind {
            PatchKind::Strategic => "application/strategic-merge-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
        };
        self.call(Method::PATCH, path, Some(content), body.to_string().into_bytes()).await.map(drop)
    }

    /// Deletes an object of this UID at once.
    pub async fn delete(&self, path: &str, uid: &str) -> Result<(), CallError> {
        let options = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": uid}
        });
        self.call(Method::DELETE, path, Some("application/json"), options.to_string().into_bytes()).await.map(drop)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        content: Option<&'static str>,
        body: Vec<u8>,
    ) -> Result<Bytes, CallError> {
        let unanswered = |error: &dyn std::fmt::Display| CallError::Unanswered(error.to_string());
        let mut request = Request::builder().method(method).uri(path);
        request = match content {
            Some(content) => request.header("content-type", content).header("accept", SHORT),
            None => request.header("accept", "application/json"),
        };
        let request = request.body(Body::from(body)).map_err(|error| unanswered(&error))?;
        let answered = async {
            let response = self.client.send(request).await.map_err(|error| unanswered(&error))?;
            let code = response.status();
            let body = response.into_body().collect().await.map_err(|error| unanswered(&error))?.to_bytes();
            if code.is_success() {
                return Ok(body);
            }
            let status: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = status.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
            Err(CallError::Refused { code: code.as_u16(), message })
        };
        match tokio::time::timeout(DEADLINE, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Unanswered(format!("no answer within {DEADLINE:?}"))),
        }
    }
}
