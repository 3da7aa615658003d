//! Reading objects of any kind, for commands that look a cluster over. A kind that is not there has no objects.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};

use super::Failure;
use controller_runtime::error::ApiError;

/// The objects of a kind, of a namespace or of the whole cluster.
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

/// Reads an object, if it is there.
///
/// # Errors
/// When the API server does not say.
pub async fn read(api: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, ApiError> {
    match api.get_opt(name).await {
        // Not even the kind is there.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        read => read.map_err(ApiError::from),
    }
}

/// As [`read`], for commands that can't do without it.
///
/// # Errors
/// When the API server does not say; the text names the object.
pub async fn get(api: &Api<DynamicObject>, name: &str) -> Result<Option<DynamicObject>, Failure> {
    read(api, name).await.map_err(|error| Failure::run(anyhow::anyhow!("cannot read {name}: {error}")))
}

/// All objects.
///
/// # Errors
/// When the API server does not say; the text names what was listed.
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
            // Not even the kind is there.
            Err(ApiError::NotFound(_) | ApiError::NotServed(_)) => return Ok(objects),
            Err(error) => {
                let url = api.resource_url();
                return Err(Failure::run(anyhow::anyhow!("cannot list {url}: {error}")));
            }
        }
    }
}
