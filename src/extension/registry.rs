//! The views that are served, by the names that paths give them.

use std::sync::Arc;

use super::view::{GROUP, VERSION, View};
use kube_protocol::resource::Resource;

/// The served views. Their set never changes while a server runs.
#[derive(Clone)]
pub struct Registry(Arc<[Arc<dyn View>]>);

impl Registry {
    /// Serves these.
    pub fn new(views: Vec<Arc<dyn View>>) -> Self {
        Self(views.into())
    }

    /// The view of a resource; none for what is not served.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<dyn View>> {
        self.0.iter().filter(|_| group == GROUP && version == VERSION).find(|view| view.resource().plural == plural)
    }

    /// All of them.
    pub fn views(&self) -> &[Arc<dyn View>] {
        &self.0
    }

    /// What discovery tells of them.
    pub fn resources(&self) -> Vec<&Resource> {
        self.0.iter().map(|view| view.resource()).collect()
    }
}
