//! The aggregator: API groups that extension API servers serve. `APIService` objects register these servers.
//!
//! The parts are: the contents of registrations ([`registration`]), the checks of the servers ([`keeper`]), the client and the proxy for requests
//! ([`client`], [`proxy`]), and the merged documents ([`merge`]). Requests are authenticated and authorized before ([`super::access`],
//! [`super::authorization`]). The extension API server trusts this server as a front proxy: this server sends the user in headers and identifies
//! itself with a client certificate ([`identity`]).
//! Source: spec/extension-apiserver §5, §6.2.

mod client;
mod identity;
mod keeper;
mod merge;
mod proxy;
mod registration;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, PoisonError, RwLock},
};

use serde_json::Value;
use tokio::sync::Notify;

pub(super) use self::registration::{GROUP, GroupVersion, RESOURCE};
use self::{
    client::ExtensionClient,
    identity::Identity,
    merge::Foreign,
    registration::{Registration, Unavailable},
};
use super::{kinds::Registry, server::Server};
use kube_protocol::request::Target;

/// The registered extension API servers.
#[derive(Default)]
pub(super) struct Aggregator {
    identity: OnceLock<Identity>,
    backends: RwLock<Arc<Backends>>,
    /// Notified when registrations or Services have changed, or a request has not reached its server.
    check: Notify,
    /// Notified when the result of the checks has changed.
    changed: Notify,
}

type Backends = BTreeMap<GroupVersion, Arc<Backend>>;

/// A registered server and the result of its last check.
struct Backend {
    registration: Registration,
    client: Result<ExtensionClient, Unavailable>,
    documents: Result<Box<ServerDocuments>, Unavailable>,
}

/// The documents of an extension API server.
#[derive(Clone)]
struct ServerDocuments {
    /// The bytes of plain discovery and of the `OpenAPI` index. If they are unchanged, the other documents are unchanged too.
    version: (bytes::Bytes, bytes::Bytes),
    /// The entry in aggregated discovery.
    entry: Option<Value>,
    /// The path of the `OpenAPI` v3 document, with its hash.
    open_api: Option<String>,
    swagger: Option<Value>,
}

impl Backend {
    fn foreign(&self) -> Foreign {
        let entry = self.documents.as_ref().ok().and_then(|documents| documents.entry.clone());
        Foreign {
            serves: self.registration.serves.clone(),
            group_priority: self.registration.group_priority,
            version_priority: self.registration.version_priority,
            entry,
        }
    }
}

impl Aggregator {
    /// Requests a new check of all servers.
    pub(super) fn check_again(&self) {
        self.check.notify_one();
    }

    /// Waits until the result of the checks changes.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn backends(&self) -> Arc<Backends> {
        Arc::clone(&self.backends.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn backend(&self, serves: &GroupVersion) -> Option<Arc<Backend>> {
        self.backends().get(serves).cloned()
    }

    /// The group-versions whose servers are unavailable. Their objects are unknown.
    pub(super) fn unavailable(&self) -> Vec<GroupVersion> {
        let backends = self.backends();
        backends.iter().filter(|(_, backend)| backend.documents.is_err()).map(|(serves, _)| serves.clone()).collect()
    }

    fn foreign(&self) -> Vec<Foreign> {
        self.backends().values().map(|backend| backend.foreign()).collect()
    }

    /// Plain discovery of all groups, including the groups of extension API servers.
    pub(super) fn group_list(&self, local: Value, registry: &Registry) -> Value {
        merge::group_list(local, &self.foreign(), |group| priority(registry, group))
    }

    /// Plain discovery of one group.
    pub(super) fn group(&self, local: Option<Value>, name: &str) -> Option<Value> {
        merge::group(local, &self.foreign(), name)
    }

    /// Aggregated discovery of all groups, including the groups of extension API servers.
    pub(super) fn aggregated(&self, local: Value, registry: &Registry) -> Value {
        merge::aggregated(local, &self.foreign(), |group| priority(registry, group))
    }

    /// The index of `OpenAPI` v3, including the documents of extension API servers.
    pub(super) fn open_api_index(&self, mut index: Value) -> Value {
        for (serves, backend) in self.backends().iter() {
            if let Some(url) = backend.documents.as_ref().ok().and_then(|documents| documents.open_api.as_deref()) {
                index["paths"][serves.path().trim_start_matches('/')] = serde_json::json!({"serverRelativeURL": url});
            }
        }
        index
    }

    /// The `OpenAPI` v2 document, including the resources of extension API servers.
    pub(super) fn swagger(&self, mut swagger: Value) -> Value {
        for (serves, backend) in self.backends().iter() {
            if let Some(other) = backend.documents.as_ref().ok().and_then(|documents| documents.swagger.as_ref()) {
                merge::add_swagger(&mut swagger, other, serves);
            }
        }
        swagger
    }

    /// The paths of extension API servers.
    pub(super) fn paths(&self) -> Vec<String> {
        let backends = self.backends();
        backends.keys().flat_map(|serves| [format!("/apis/{}", serves.group), serves.path()]).collect()
    }
}

fn priority(registry: &Registry, group: &str) -> i64 {
    let served = registry.all().iter().find(|served| served.group() == group);
    served.map_or(0, |served| registration::local_group_priority(served))
}

impl Server {
    /// The group-version of a request, if an extension API server serves it.
    pub(super) fn foreign(&self, target: &Target) -> Option<GroupVersion> {
        let (group, version) = match target {
            Target::Resource(request) => (request.group.as_str(), request.version.as_str()),
            Target::Other(segments) => match segments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["apis", group, version] | ["openapi", "v3", "apis", group, version] => (*group, *version),
                _ => return None,
            },
        };
        let serves = GroupVersion { group: group.to_owned(), version: version.to_owned() };
        let is_known = self.aggregator.backends().contains_key(&serves);
        // A group-version that this server serves itself is never forwarded.
        (is_known && !self.registry().serves(group, version)).then_some(serves)
    }
}
