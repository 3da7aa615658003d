//! Reads objects of any kind, for commands that inspect a cluster. A kind that does not exist has no objects.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};

use super::Failure;
use controller_runtime::error::ApiError;

/// The API of a kind, for a namespace or for the whole cluster.
pub fn of(
    client: &Client,
    namespace: Option<&str>,
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Reads an object, if it exists.
///
/// # Errors
/// When the object can't be read.
pub async fn read(api: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, ApiError> {
    match api.get_opt(name).await {
        // The kind does not exist.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        read => read.map_err(ApiError::from),
    }
}

/// The same as [`read`], with an error that ends a command.
///
/// # Errors
/// When the object can't be read; the text names it.
pub async fn get(api: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, Failure> {
    read(api, name).await.map_err(|error| Failure::run(anyhow::anyhow!("cannot read {name}: {error}")))
}

/// Lists all objects.
///
/// # Errors
/// When the objects can't be listed; the text names the list.
pub async fn list(api: &Api<DynamicObject>) -> Result<Vec<DynamicObject>, Failure> {
    let mut params = ListParams::default().limit(500);
    let mut objects = Vec::new();
    loop {
        match api.list(&params).await.map_err(ApiError::from) {
            Ok(page) => {
                objects.extend(page.items);
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => params.continue_token = Some(token),
                    None => return Ok(objects),
                }
            }
            // The kind does not exist.
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => return Ok(objects),
            Err(error) => {
                let url = api.resource_url();
                return Err(Failure::run(anyhow::anyhow!("cannot list {url}: {error}")));
            }
        }
    }
}
