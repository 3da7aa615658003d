//! Accessors of the metadata of deployments, sets and machines.

use std::collections::BTreeMap;

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_values::selector::Labels;

static NOTHING: Labels = BTreeMap::new();

/// The metadata that rules for several kinds read: ownership, finalizers, freezes, revisions.
#[derive(Clone, Copy, Debug)]
pub struct Metadata<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The name.
    pub name: &'a str,
    /// The UID; empty for an object that was never stored.
    pub uid: &'a str,
    /// The resource version.
    pub resource_version: Option<&'a str>,
    /// When the object was created.
    pub created: Option<Timestamp>,
    /// When the deletion of the object was requested; `None` if it is not being deleted.
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

/// A snapshot that has metadata accessors.
pub trait Described: Snapshot {
    /// The metadata.
    fn metadata(&self) -> Metadata<'_>;
}

/// Implements the metadata accessors for the snapshot of a kind.
macro_rules! metadata {
    ($name:ident of $kind:ty) => {
        impl $name {
            /// The metadata.
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

            /// The generation, which counts the changes of `spec`.
            pub fn generation(&self) -> Option<i64> {
                self.0.metadata.generation
            }

            /// A copy of the object, from which a test makes another object.
            #[cfg(test)]
            #[allow(dead_code)] // not every kind is copied
            pub(crate) fn to_object(&self) -> $kind {
                <$kind>::clone(&self.0)
            }

            /// The object, for a test that changes it.
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
