//! Changes of a Node: labels, annotations, finalizers and taints, as values.

use k8s_openapi::api::core::v1::Taint;
use serde::Serialize;

use crate::changes::Changes;

/// Changes of a Node. Finalizers and taints are lists: they are written whole, and only in the version that was observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeDress {
    /// All finalizers, if one is missing.
    pub finalizers: Option<Vec<String>>,
    /// Labels.
    pub labels: Changes,
    /// Annotations.
    pub annotations: Changes,
    /// All taints, if they change.
    pub taints: Option<Vec<Taint>>,
}

impl NodeDress {
    /// Only these taints.
    pub fn of_taints(taints: Vec<Taint>) -> Self {
        Self { taints: Some(taints), ..Self::default() }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Itself; `None` if nothing changes.
    pub fn unless_empty(self) -> Option<Self> {
        (!self.is_empty()).then_some(self)
    }
}
