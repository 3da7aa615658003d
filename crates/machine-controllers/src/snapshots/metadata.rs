//! What is read of the metadata of deployments, sets and machines.

use std::collections::BTreeMap;

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_values::selector::Labels;

static NOTHING: Labels = BTreeMap::new();

/// The metadata that rules over objects of several kinds read: ownership, finalizers, freezes, revisions.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
    /// The UID; empty for an object that was never stored.
    pub uid: &'a str,
    /// The version as the API server spells it.
    pub resource_version: Option<&'a str>,
    /// When the object was created.
    pub created: Option<Timestamp>,
    /// Since when the object is being deleted.
    pub deleting_since: Option<Timestamp>,
    /// The labels.
    pub labels: &'a Labels,
    /// The annotations.
    pub annotations: &'a Labels,
    /// The finalizers.
    pub finalizers: &'a [String],
    /// The references to owners.
    pub owner_references: &'a [OwnerReference],
}

impl<'a> Metadata<'a> {
    /// The owner that controls the object.
    pub fn controller(self) -> Option<&'a OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller == Some(true))
    }

    /// Whether this finalizer holds the object.
    pub fn has_finalizer(self, name: &str) -> bool {
        self.finalizers.iter().any(|present| present == name)
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(self) -> bool {
        self.deleting_since.is_some()
    }
}

impl<'a> From<&'a ObjectMeta> for Metadata<'a> {
    fn from(meta: &'a ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref().unwrap_or_default(),
            resource_version: meta.resource_version.as_deref(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleting_since: meta.deletion_timestamp.as_ref().map(|time| time.0),
            labels: meta.labels.as_ref().unwrap_or(&NOTHING),
            annotations: meta.annotations.as_ref().unwrap_or(&NOTHING),
            finalizers: meta.finalizers.as_deref().unwrap_or_default(),
            owner_references: meta.owner_references.as_deref().unwrap_or_default(),
        }
    }
}

/// A snapshot that gives its metadata.
pub trait Described: Snapshot {
    /// What rules over objects of several kinds read.
    fn metadata(&self) -> Metadata<'_>;
}

/// Lets the snapshot of a kind give its metadata.
macro_rules! metadata {
    ($name:ident of $kind:ty) => {
        impl $name {
            /// What rules over objects of several kinds read.
            pub fn metadata(&self) -> Metadata<'_> {
                Metadata::from(&self.0.metadata)
            }

            /// The labels.
            pub fn labels(&self) -> &Labels {
                self.metadata().labels
            }

            /// The annotations.
            pub fn annotations(&self) -> &Labels {
                self.metadata().annotations
            }

            /// The owner that controls the object.
            pub fn controller(&self) -> Option<&OwnerReference> {
                self.metadata().controller()
            }

            /// When the object was created.
            pub fn created(&self) -> Option<Timestamp> {
                self.metadata().created
            }

            /// The number of its specification.
            pub fn generation(&self) -> Option<i64> {
                self.0.metadata.generation
            }

            /// A copy of the object of a test, to make another one of it.
            #[cfg(test)]
            #[allow(dead_code)] // not every kind is copied
            pub(crate) fn to_object(&self) -> $kind {
                <$kind>::clone(&self.0)
            }

            /// The object of a test, to change it.
            #[cfg(test)]
            pub(crate) fn to_mut(&mut self) -> &mut $kind {
                std::sync::Arc::make_mut(&mut self.0)
            }
        }

        impl Described for $name {
            fn metadata(&self) -> Metadata<'_> {
                self.metadata()
            }
        }
    };
}
pub(super) use metadata;
