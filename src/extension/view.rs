//! What a view is to the server that answers for it.
//!
//! Source: spec/extension-apiserver §1.1.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::rows::Row;
use kube_protocol::{request::Verb, resource::Resource, status::ApiStatus};

/// Group of all views.
pub const GROUP: &str = "views.machine.sapcloud.io";
/// Their version.
pub const VERSION: &str = "v1alpha1";

/// How old what a view is computed from may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// `resourceVersion` unset: as recent as the view's own limit demands.
    Recent,
    /// `resourceVersion=0`: whatever is in memory.
    Any,
}

/// What somebody asks of a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question<'a> {
    /// One object by name.
    Get {
        /// Namespace of the object.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// All of a namespace, or of all.
    List {
        /// `None`: all namespaces.
        namespace: Option<&'a str>,
        /// The only name that a field selector lets through, if it does.
        name: Option<&'a str>,
    },
    /// The answer to a review.
    Create {
        /// Namespace of the review.
        namespace: &'a str,
        /// The review, decoded: an object of the view's kind.
        review: &'a Value,
    },
}

/// A right on stored objects that one needs to be told what is computed from them (`--views-check-source-rbac`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRight {
    /// `Get` or `List`.
    pub verb: Verb,
    /// Plural in `machine.sapcloud.io`.
    pub resource: &'static str,
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// `None`: every name.
    pub name: Option<String>,
}

/// One object, with what the reader should be warned of.
#[derive(Debug)]
pub struct Answer {
    /// The object.
    pub object: Arc<dyn Row>,
    /// Texts for `Warning` headers, at most 120 characters each.
    pub warnings: Vec<String>,
}

/// Objects in any order, with what the reader should be warned of.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The objects.
    pub rows: Vec<Arc<dyn Row>>,
    /// Texts for `Warning` headers, at most 120 characters each.
    pub warnings: Vec<String>,
}

/// What is known of a view before anybody asks.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its names and verbs.
    pub resource: Resource,
    /// The `OpenAPI` v3 schema of its kind, with descriptions.
    pub schema: Value,
    /// What its tables say of their columns.
    pub heads: Value,
    /// Fields by which objects can be selected, beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<&'static str>,
}

/// A computed resource.
#[async_trait]
pub trait View: Send + Sync {
    /// What is known of it before anybody asks.
    fn description(&self) -> &Description;

    /// Its names and verbs.
    fn resource(&self) -> &Resource {
        &self.description().resource
    }

    /// The schema of its kind.
    fn schema(&self) -> &Value {
        &self.description().schema
    }

    /// What one must be allowed to read to be answered; nothing: the right on the view is enough.
    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight>;

    /// One object.
    ///
    /// # Errors
    /// 404 for what does not exist, 503 for what can't be known now.
    async fn get(&self, namespace: &str, name: &str, freshness: Freshness) -> Result<Answer, ApiStatus>;

    /// The objects of a namespace, or of all.
    ///
    /// # Errors
    /// 405 where the view has no lists, 503 for what can't be known now.
    async fn list(&self, _namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        Err(ApiStatus::method_not_allowed())
    }

    /// The answer to a review; stores nothing.
    ///
    /// # Errors
    /// 405 where the view takes no reviews, 400 and 422 for a malformed one, 429 when too many are asked at once.
    async fn create(&self, _namespace: &str, _review: Value) -> Result<Answer, ApiStatus> {
        Err(ApiStatus::method_not_allowed())
    }
}
