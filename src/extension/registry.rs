//! The served views, by the names in paths.

use std::sync::Arc;

use super::view::{GROUP, VERSION, View};
use kube_protocol::resource::Resource;

/// The served views. Their set never changes while a server runs.
#[derive(Clone)]
pub struct Registry(Arc<[Arc<dyn View>]>);

impl Registry {
    /// A registry of these views.
    pub fn new(views: Vec<Arc<dyn View>>) -> Self {
        Self(views.into())
    }

    /// The view of a resource; `None` for a resource that is not served.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<dyn View>> {
        self.0.iter().filter(|_| group == GROUP && version == VERSION).find(|view| view.resource().plural == plural)
    }

    /// All served views.
    pub fn views(&self) -> &[Arc<dyn View>] {
        &self.0
    }

    /// The resources of the views, for discovery.
    pub fn resources(&self) -> Vec<&Resource> {
        self.0.iter().map(|view| view.resource()).collect()
    }
}
