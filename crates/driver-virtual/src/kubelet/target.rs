//! Single calls to the API server of the target cluster, with the deadline and the errors of all calls.
//!
//! They are no [`controller_runtime::objects::ObjectApi`], because kubelets send strategic patches and no answer to a write is decoded.

use controller_runtime::{error::ApiError, objects::in_time};
use http::{Method, Request};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The short form of the answers to writes, because the answers are not read.
const SHORT: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Whether the object existed already, or has changed.
pub const fn is_conflict(error: &ApiError) -> bool {
    matches!(error, ApiError::Conflict(_) | ApiError::AlreadyExists(_))
}

/// Whether the API server will never accept the request.
pub const fn is_final(error: &ApiError) -> bool {
    matches!(error, ApiError::Invalid(_) | ApiError::TooLarge(_) | ApiError::Other(_))
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
    /// Creates a target with this client. The client should not retry by itself.
    pub const fn new(client: kube::Client) -> Self {
        Self { client }
    }

    /// The client for watches.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Reads an object. `None` if it does not exist.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, ApiError> {
        match self.call(Method::GET, path, None, Vec::new()).await {
            Ok(body) => serde_json::from_str(&body).map(Some).map_err(|error| ApiError::Unavailable(error.to_string())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Creates an object.
    pub async fn create(&self, path: &str, body: Vec<u8>) -> Result<(), ApiError> {
        self.call(Method::POST, path, Some("application/json"), body).await.map(drop)
    }

    /// Patches an object.
    pub async fn patch(&self, path: &str, kind: PatchKind, body: &Value) -> Result<(), ApiError> {
        let content = match kind {
            PatchKind::Strategic => "application/strategic-merge-patch+json",
            PatchKind::Merge => "application/merge-patch+json",
        };
        self.call(Method::PATCH, path, Some(content), body.to_string().into_bytes()).await.map(drop)
    }

    /// Deletes the object with this UID at once.
    pub async fn delete(&self, path: &str, uid: &str) -> Result<(), ApiError> {
        let options = json!({
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
    ) -> Result<String, ApiError> {
        let mut request = Request::builder().method(method).uri(path);
        request = match content {
            Some(content) => request.header("content-type", content).header("accept", SHORT),
            None => request.header("accept", "application/json"),
        };
        let request = request.body(body).map_err(|error| ApiError::Other(error.to_string()))?;
        in_time(request, |request| self.client.request_text(request)).await?.map_err(ApiError::from)
    }
}
