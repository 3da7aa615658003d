//! Resources of any API, and their objects, for commands that inspect a cluster. A resource that does not exist has no objects.

use std::sync::Arc;

use kube::{
    Client, Resource as _,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use machine_api::{kind::Kind, names};

use super::Failure;
use controller_runtime::{
    error::ApiError,
    key::ObjectKey,
    objects::{ApiServer, ListQuery, ObjectApi},
};

/// Objects per page of a list.
const PAGE: u32 = 500;
const WEBHOOKS: &str = "admissionregistration.k8s.io";

/// A resource of an API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The group, empty for the core API.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// Its name in paths.
    pub plural: &'static str,
}

/// What the answer 404 to a list means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unserved {
    /// The API server may lack the resource, so there are no objects.
    NoObjects,
    /// The API server must have the resource, so another server may have answered.
    Failure,
}

/// A resource of version v1.
pub const fn v1(group: &'static str, kind: &'static str, plural: &'static str) -> Resource {
    Resource { group, version: "v1", kind, plural }
}

/// Secrets.
pub const SECRETS: Resource = v1("", "Secret", "secrets");
/// Leases.
pub const LEASES: Resource = v1("coordination.k8s.io", "Lease", "leases");
/// Definitions of custom kinds.
pub const DEFINITIONS: Resource = v1("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions");
/// Registrations of other API servers.
pub const API_SERVICES: Resource = v1("apiregistration.k8s.io", "APIService", "apiservices");
/// Webhooks that change objects.
pub const MUTATING: Resource = v1(WEBHOOKS, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
/// Webhooks that check objects.
pub const VALIDATING: Resource = v1(WEBHOOKS, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations");

impl Resource {
    /// The resource of a machine kind in v1alpha1.
    pub const fn of_kind(kind: Kind) -> Self {
        Self { group: names::GROUP, version: names::V1ALPHA1, kind: kind.as_str(), plural: kind.plural() }
    }

    /// The resource as kube describes it.
    pub fn description(self) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group, self.version, self.kind), self.plural)
    }

    /// Reads and writes its objects.
    pub fn api(self, client: &Client) -> ApiServer<DynamicObject> {
        ApiServer::of_kind(client.clone(), self.description())
    }

    /// Reads an object, if it exists. The namespace is empty for an object of the cluster.
    ///
    /// # Errors
    /// When the object can't be read.
    pub async fn read(self, client: &Client, namespace: &str, name: &str) -> Result<Option<DynamicObject>, ApiError> {
        match self.api(client).read(&ObjectKey::new(namespace, name)).await {
            Ok(object) => Ok(Some(Arc::unwrap_or_clone(object))),
            // The object or the resource does not exist.
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same as [`Self::read`], with an error that ends a command.
    ///
    /// # Errors
    /// When the object can't be read; the text names it.
    pub async fn get(self, client: &Client, namespace: &str, name: &str) -> Result<Option<DynamicObject>, Failure> {
        let read = self.read(client, namespace, name).await;
        read.map_err(|error| Failure::run(anyhow::anyhow!("cannot read {name}: {error}")))
    }

    /// Lists all objects that a query matches. There are none of a resource that the API server does not have.
    ///
    /// # Errors
    /// When the objects can't be listed; the text names the list.
    pub async fn list(self, client: &Client, query: ListQuery) -> Result<Vec<DynamicObject>, Failure> {
        // Every API server has Leases, so a 404 to their list does not say that there are none.
        let unserved = if self.group == LEASES.group { Unserved::Failure } else { Unserved::NoObjects };
        self.list_or(client, query, unserved).await
    }

    /// The same as [`Self::list`] for a resource that the API server must have: its absence is an error.
    ///
    /// # Errors
    /// When the objects can't be listed, or the API server does not have the resource; the text names the list.
    pub async fn list_served(self, client: &Client, query: ListQuery) -> Result<Vec<DynamicObject>, Failure> {
        self.list_or(client, query, Unserved::Failure).await
    }

    async fn list_or(
        self,
        client: &Client,
        query: ListQuery,
        unserved: Unserved,
    ) -> Result<Vec<DynamicObject>, Failure> {
        let url = DynamicObject::url_path(&self.description(), query.namespace.as_deref());
        let unlisted = |error: ApiError| {
            let is_absent = matches!(error, ApiError::NotFound(_) | ApiError::NotServed(_));
            let advice = if is_absent && self.group == names::GROUP {
                "; if the definition is missing, apply `mcm manifests crds`"
            } else {
                ""
            };
            Failure::run(anyhow::anyhow!("cannot list {url}: {error}{advice}"))
        };
        let api = self.api(client);
        let mut query = ListQuery { limit: Some(PAGE), ..query };
        let mut objects = Vec::new();
        loop {
            let page = match api.list(&query).await {
                // Only the first answer can say that the resource does not exist.
                Err(ApiError::NotFound(_) | ApiError::NotServed(_))
                    if query.after.is_none() && unserved == Unserved::NoObjects =>
                {
                    return Ok(objects);
                }
                page => page.map_err(unlisted)?,
            };
            for item in page.items {
                objects.push(api.decode(item).map(Arc::unwrap_or_clone).map_err(unlisted)?);
            }
            if page.next.is_none() {
                return Ok(objects);
            }
            query.after = page.next;
        }
    }
}
