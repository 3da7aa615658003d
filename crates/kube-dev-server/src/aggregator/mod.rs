//! The aggregator: groups that other servers answer for, registered by `APIService` objects.
//!
//! What lives here: what registrations say ([`registration`]), whether their servers answer ([`keeper`]), how requests reach
//! them ([`line`], [`proxy`]), and their documents among ours ([`merge`]). A request was authenticated and authorised before
//! it comes here; its server learns who asks as behind any front proxy, by headers and our certificate ([`identity`]).
//! Who is let in is decided in [`super::access`] and [`super::authorization`].
//! Source: spec/extension-apiserver §5, §6.2.

mod identity;
mod keeper;
mod line;
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
    identity::Identity,
    line::Line,
    merge::Foreign,
    registration::{Registration, Unavailable},
};
use super::{kinds::Registry, server::Server};
use kube_protocol::request::Target;

/// What the server knows of registered servers.
#[derive(Default)]
pub(super) struct Aggregator {
    identity: OnceLock<Identity>,
    backends: RwLock<Arc<Backends>>,
    /// Registrations or Services have changed, or a server was not reached.
    changed: Notify,
    /// Other servers answer, or others do not, than before.
    moved: Notify,
}

type Backends = BTreeMap<GroupVersion, Arc<Backend>>;

/// A registered server, as it was found last.
struct Backend {
    registration: Registration,
    line: Result<Line, Unavailable>,
    /// What it answered last.
    found: Result<Box<Learned>, Unavailable>,
}

/// The documents of a server.
#[derive(Clone)]
struct Learned {
    /// Plain discovery and the index of `OpenAPI`, as they were written: when they change, so did the rest.
    seen: (bytes::Bytes, bytes::Bytes),
    /// Entry of aggregated discovery.
    entry: Option<Value>,
    /// Where its document of `OpenAPI` v3 is found, with its hash.
    open_api: Option<String>,
    swagger: Option<Value>,
}

impl Backend {
    fn foreign(&self) -> Foreign {
        let entry = self.found.as_ref().ok().and_then(|learned| learned.entry.clone());
        Foreign {
            serves: self.registration.serves.clone(),
            group_priority: self.registration.group_priority,
            version_priority: self.registration.version_priority,
            entry,
        }
    }
}

impl Aggregator {
    /// Registrations or Services have changed.
    pub(super) fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Waits until other servers answer, or do not, than before.
    pub(super) async fn moved(&self) {
        self.moved.notified().await;
    }

    fn backends(&self) -> Arc<Backends> {
        Arc::clone(&self.backends.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn backend(&self, serves: &GroupVersion) -> Option<Arc<Backend>> {
        self.backends().get(serves).cloned()
    }

    /// Group-versions whose servers do not answer: nobody knows what there is of them.
    pub(super) fn unanswered(&self) -> Vec<GroupVersion> {
        let backends = self.backends();
        backends.iter().filter(|(_, backend)| backend.found.is_err()).map(|(serves, _)| serves.clone()).collect()
    }

    fn foreign(&self) -> Vec<Foreign> {
        self.backends().values().map(|backend| backend.foreign()).collect()
    }

    /// Plain discovery of all groups, with those of others.
    pub(super) fn group_list(&self, local: Value, registry: &Registry) -> Value {
        merge::group_list(local, &self.foreign(), |group| priority(registry, group))
    }

    /// Plain discovery of one group.
    pub(super) fn group(&self, local: Option<Value>, name: &str) -> Option<Value> {
        merge::group(local, &self.foreign(), name)
    }

    /// Aggregated discovery of all groups, with those of others.
    pub(super) fn aggregated(&self, local: Value, registry: &Registry) -> Value {
        merge::aggregated(local, &self.foreign(), |group| priority(registry, group))
    }

    /// The index of `OpenAPI` v3, with the documents of others.
    pub(super) fn open_api_index(&self, mut index: Value) -> Value {
        for (serves, backend) in self.backends().iter() {
            if let Some(place) = backend.found.as_ref().ok().and_then(|learned| learned.open_api.as_deref()) {
                index["paths"][serves.path().trim_start_matches('/')] = serde_json::json!({"serverRelativeURL": place});
            }
        }
        index
    }

    /// The document of everything, with what others serve.
    pub(super) fn swagger(&self, mut swagger: Value) -> Value {
        for (serves, backend) in self.backends().iter() {
            if let Some(other) = backend.found.as_ref().ok().and_then(|learned| learned.swagger.as_ref()) {
                merge::add_swagger(&mut swagger, other, serves);
            }
        }
        swagger
    }

    /// The paths of others.
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
    /// The group-version of a request that another server answers for.
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
        // What this server serves itself nobody else does.
        (is_known && !self.registry().serves(group, version)).then_some(serves)
    }
}
