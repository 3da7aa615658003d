//! The requests of the controllers. They go through the API like requests of clients, so that admission applies to them.

use std::{fmt, sync::Arc};

use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use serde_json::{Value, json};

use super::Place;
use crate::{
    access::{MASTERS, User},
    kinds::Served,
    object,
    server::{Server, Source},
    store::{Collection, Stored},
};
use kube_protocol::options::Propagation;

/// The most bytes that are read of an error answer.
const REFUSAL_LIMIT: usize = 64 * 1024;

/// The error of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

/// Sends the requests of the controllers. It has no state, so that many requests can run at the same time.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) server: Arc<Server>,
}

impl Requests {
    pub(super) fn served(&self, collection: &Collection) -> Option<Arc<Served>> {
        self.server.registry().storage_of(collection).cloned()
    }

    /// Sends a request.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: &Value,
    ) -> Result<(), Refusal> {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::USER_AGENT, "mcm-dev-helpers")
            .body(body);
        // Stored names always result in a valid path.
        let Ok(request) = request else { return Ok(()) };
        let user = User::known("system:kube-controller-manager", [MASTERS.to_owned()]);
        let (head, body) = self.server.answer(request, Source::InProcess(user)).await.into_parts();
        if head.status.is_success() {
            return Ok(());
        }
        let body = axum::body::to_bytes(body, REFUSAL_LIMIT).await.unwrap_or_default();
        let status: Value = serde_json::from_slice(&body).unwrap_or_default();
        let refusal = Refusal { status: head.status, message: object::text(&status, "/message").to_owned() };
        if refusal.status != StatusCode::NOT_FOUND {
            tracing::debug!(
                path, code = %refusal.status, error = %refusal,
                "a helper of the development server was refused"
            );
        }
        Err(refusal)
    }

    pub(super) fn path(&self, collection: &Collection, value: &Value) -> Option<String> {
        let served = self.served(collection)?;
        let base = kube_protocol::openapi::document_path(served.group(), &served.resource.kind.version);
        let namespace =
            object::namespace(value).map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        Some(format!("/{base}{namespace}/{}/{}", served.plural(), object::name(value)))
    }

    /// Deletes an object. A missing object is no error.
    pub(super) async fn delete(
        &self,
        collection: &Collection,
        value: &Value,
        propagation: Propagation,
    ) -> Result<(), Refusal> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": format!("{propagation:?}"),
            "preconditions": {"uid": object::uid(value)},
        });
        self.delete_with(collection, value, &options).await
    }

    pub(super) async fn delete_with(
        &self,
        collection: &Collection,
        value: &Value,
        options: &Value,
    ) -> Result<(), Refusal> {
        let Some(path) = self.path(collection, value) else { return Ok(()) };
        let answered = self.send(Method::DELETE, &path, "application/json", options).await;
        answered.or_else(|refusal| if refusal.status == StatusCode::NOT_FOUND { Ok(()) } else { Err(refusal) })
    }

    /// Removes a finalizer from an object. A missing object is no error.
    pub(super) async fn remove_finalizer(
        &self,
        place: &Place,
        stored: &Stored,
        finalizer: &str,
    ) -> Result<(), Refusal> {
        let kept: Vec<&str> = object::finalizers(&stored.value).into_iter().filter(|name| *name != finalizer).collect();
        let Some(path) = self.path(&place.0, &stored.value) else { return Ok(()) };
        let patch = json!({"metadata": {"finalizers": kept, "uid": object::uid(&stored.value),
            "resourceVersion": stored.revision.to_string()}});
        let answered = self.send(Method::PATCH, &path, "application/merge-patch+json", &patch).await;
        answered.or_else(|refusal| if refusal.status == StatusCode::NOT_FOUND { Ok(()) } else { Err(refusal) })
    }
}
