//! The part of an object that a store keeps and that decisions read.
//!
//! The API server sends and receives whole objects. A store keeps a [`Snapshot`] of each: a cheap handle that may have less data
//! than the object. `Arc<K>` is the snapshot of a kind whose objects are kept whole.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::key::{ObjectKey, Target};

/// An object in one version. Clones share their data.
pub trait Snapshot: Clone + Debug + Send + Sync + 'static {
    /// The type that the API server sends and receives.
    type Object: Resource<DynamicType = ()> + Send + Sync + 'static;

    /// The snapshot of an object.
    fn of(object: Arc<Self::Object>) -> Self;

    /// The namespace, empty for an object of the cluster.
    fn namespace(&self) -> &str;

    /// The name.
    fn name(&self) -> &str;

    /// The UID, empty for an object that was never stored.
    fn uid(&self) -> &str;

    /// The version in the API server's form.
    fn resource_version(&self) -> Option<&str>;

    /// Whether the object ceases to exist with this version: it is marked for deletion and has no finalizer and no grace period
    /// left.
    fn has_gone(&self) -> bool;

    /// Whether the metadata of both is equal, apart from versions and managed fields. A write of the status does not change it.
    fn has_metadata_of(&self, other: &Self) -> bool;

    /// Namespace and name.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// The target of a write to this object.
    fn target(&self) -> Target {
        Target { key: self.key(), uid: self.uid().to_owned() }
    }

    /// The version as a number, see [`version_number`].
    fn version(&self) -> u64 {
        version_number(self.resource_version())
    }
}

/// A snapshot that holds the whole object. A kind whose snapshot has less data does not implement this trait, and the compiler
/// finds all code that needs whole objects.
pub trait Whole: Snapshot {
    /// The object.
    fn whole_object(&self) -> &Arc<Self::Object>;
}

/// A version as a number. Resource versions of one kind are ordered integers: since Kubernetes 1.35 by its API, before that by
/// etcd. A version that is no integer counts as newest, so that its object is never ignored as old.
pub fn version_number(version: Option<&str>) -> u64 {
    version.and_then(|version| version.parse().ok()).unwrap_or(u64::MAX)
}

impl<K: Resource<DynamicType = ()> + Debug + Send + Sync + 'static> Snapshot for Arc<K> {
    type Object = K;

    fn of(object: Self) -> Self {
        object
    }

    fn namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.meta().name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }

    fn has_gone(&self) -> bool {
        let metadata = self.meta();
        metadata.deletion_timestamp.is_some()
            && metadata.finalizers.as_ref().is_none_or(Vec::is_empty)
            && metadata.deletion_grace_period_seconds.unwrap_or(0) == 0
    }

    fn has_metadata_of(&self, other: &Self) -> bool {
        let said = |meta: &ObjectMeta| ObjectMeta { resource_version: None, managed_fields: None, ..meta.clone() };
        said(self.meta()) == said(other.meta())
    }
}

impl<K: Resource<DynamicType = ()> + Debug + Send + Sync + 'static> Whole for Arc<K> {
    fn whole_object(&self) -> &Self {
        self
    }
}
