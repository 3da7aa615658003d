//! The interface between a view and the server.
//!
//! Source: spec/extension-apiserver §1.1.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::rows::Row;
use kube_protocol::{request::Verb, resource::Resource, status::ApiStatus};

/// Group of all views.
pub const GROUP: &str = "views.machine.sapcloud.io";
/// Version of this group.
pub const VERSION: &str = "v1alpha1";

/// The greatest age of the data that a view is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// `resourceVersion` is unset: not older than the limit of the view.
    Recent,
    /// `resourceVersion=0`: the data in memory, of any age.
    Any,
}

/// A request to a view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question<'a> {
    /// One object by name.
    Get {
        /// Namespace of the object.
        namespace: &'a str,
        /// Name of the object.
        name: &'a str,
    },
    /// The objects of one namespace or of all namespaces.
    List {
        /// The namespace; `None`: all.
        namespace: Option<&'a str>,
        /// The name, if a field selector selects a single one.
        name: Option<&'a str>,
    },
    /// A review, which is answered and not stored.
    Create {
        /// Namespace of the review.
        namespace: &'a str,
        /// The decoded review: an object of the view's kind.
        review: &'a Value,
    },
}

/// A right on stored objects. A caller needs it to read what a view computes from them (`--views-check-source-rbac`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRight {
    /// `Get` or `List`.
    pub verb: Verb,
    /// Plural in `machine.sapcloud.io`.
    pub resource: &'static str,
    /// The namespace; `None`: all.
    pub namespace: Option<String>,
    /// The name; `None`: all.
    pub name: Option<String>,
}

/// One object, with warnings for the caller.
#[derive(Debug)]
pub struct Answer {
    /// The object.
    pub object: Arc<dyn Row>,
    /// Texts for `Warning` headers, at most 120 characters each.
    pub warnings: Vec<String>,
}

/// Objects in any order, with warnings for the caller.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The objects.
    pub rows: Vec<Arc<dyn Row>>,
    /// Texts for `Warning` headers, at most 120 characters each.
    pub warnings: Vec<String>,
}

/// The part of a view that does not depend on requests.
#[derive(Clone, Debug)]
pub struct Description {
    /// Names and verbs.
    pub resource: Resource,
    /// The `OpenAPI` v3 schema of its kind, with descriptions.
    pub schema: Value,
    /// The column definitions of tables.
    pub heads: Value,
    /// The fields for field selectors, beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<&'static str>,
}

/// A computed resource.
#[async_trait]
pub trait View: Send + Sync {
    /// The part of the view that does not depend on requests.
    fn description(&self) -> &Description;

    /// Names and verbs.
    fn resource(&self) -> &Resource {
        &self.description().resource
    }

    /// The schema of the view's kind.
    fn schema(&self) -> &Value {
        &self.description().schema
    }

    /// The rights on stored objects that the caller needs beside the right on the view.
    fn source_rights(&self, question: Question<'_>) -> Vec<SourceRight>;

    /// One object.
    ///
    /// # Errors
    /// 404 for an object that does not exist, 503 when the view can't be computed now.
    async fn get(&self, namespace: &str, name: &str, freshness: Freshness) -> Result<Answer, ApiStatus>;

    /// The objects of one namespace or of all namespaces.
    ///
    /// # Errors
    /// 405 for a view without lists, 503 when the view can't be computed now.
    async fn list(&self, _namespace: Option<&str>, _freshness: Freshness) -> Result<Listing, ApiStatus> {
        Err(ApiStatus::method_not_allowed())
    }

    /// The answer to a review. Nothing is stored.
    ///
    /// # Errors
    /// 405 for a view without reviews, 400 and 422 for a malformed review, 429 for too many reviews at a time.
    async fn create(&self, _namespace: &str, _review: Value) -> Result<Answer, ApiStatus> {
        Err(ApiStatus::method_not_allowed())
    }
}
