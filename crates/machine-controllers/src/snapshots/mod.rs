//! Snapshots: the form in which stores keep objects, with the accessors for everything that is read of them.
//!
//! A snapshot is a cheap handle of an object in one version. Rules, indexes, routing and views read it only through
//! accessors that return borrowed values, so that the content of a snapshot can change without changes there. Code that
//! needs the whole object uses `Whole`; `src/layers.rs` lists the files that do so.
//!
//! Classes and Secrets have no snapshots here: there are few of them, and drivers get the whole objects. Their snapshot
//! is `Arc<K>`.

mod attachment;
mod budget;
mod claim;
mod deployment;
mod machine;
mod metadata;
mod node;
mod pod;
mod set;
mod volume;

pub use self::{
    attachment::AttachmentSnapshot,
    budget::BudgetSnapshot,
    claim::ClaimSnapshot,
    deployment::DeploymentSnapshot,
    machine::MachineSnapshot,
    metadata::{Described, Metadata},
    node::NodeSnapshot,
    pod::PodSnapshot,
    set::SetSnapshot,
    volume::VolumeSnapshot,
};

/// Declares the snapshot of a kind, with the accessors that every kind has.
macro_rules! snapshot {
    ($(#[$doc:meta])* $name:ident of $kind:ty) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<$kind>);

        impl $name {
            /// When the deletion of the object was requested; `None` if it is not being deleted.
            pub fn deleting_since(&self) -> Option<jiff::Timestamp> {
                self.0.metadata.deletion_timestamp.as_ref().map(|time| time.0)
            }

            /// Whether the object is being deleted.
            pub fn is_deleting(&self) -> bool {
                self.0.metadata.deletion_timestamp.is_some()
            }

            /// The value of a label.
            pub fn label(&self, key: &str) -> Option<&str> {
                self.0.metadata.labels.as_ref()?.get(key).map(String::as_str)
            }

            /// The value of an annotation.
            pub fn annotation(&self, key: &str) -> Option<&str> {
                self.0.metadata.annotations.as_ref()?.get(key).map(String::as_str)
            }
        }

        impl From<std::sync::Arc<$kind>> for $name {
            fn from(object: std::sync::Arc<$kind>) -> Self {
                Self(object)
            }
        }

        impl From<$kind> for $name {
            fn from(object: $kind) -> Self {
                Self(std::sync::Arc::new(object))
            }
        }

        impl Snapshot for $name {
            type Object = $kind;

            fn of(object: std::sync::Arc<$kind>) -> Self {
                Self(object)
            }

            fn namespace(&self) -> &str {
                Snapshot::namespace(&self.0)
            }

            fn name(&self) -> &str {
                Snapshot::name(&self.0)
            }

            fn uid(&self) -> &str {
                Snapshot::uid(&self.0)
            }

            fn resource_version(&self) -> Option<&str> {
                Snapshot::resource_version(&self.0)
            }

            fn has_gone(&self) -> bool {
                Snapshot::has_gone(&self.0)
            }

            fn has_metadata_of(&self, other: &Self) -> bool {
                Snapshot::has_metadata_of(&self.0, &other.0)
            }
        }

        impl controller_runtime::snapshot::Whole for $name {
            fn whole_object(&self) -> &std::sync::Arc<$kind> {
                &self.0
            }
        }
    };
}
use snapshot;
