//! Reading and writing a Lease object.
//!
//! The calls go through kube's own API: a Lease is replaced as a whole, and the election gives each call the time that is left to it.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};

use super::decide::Record;
use crate::error::ApiError;

/// The three calls of a leader election. Writes are conditional: they fail with [`ApiError::Conflict`] or
/// [`ApiError::AlreadyExists`] when another client was faster.
#[async_trait]
pub trait LeaseApi: Send + Sync {
    /// Reads a lease; `None` when it does not exist.
    async fn get(&self, name: &str) -> Result<Option<Lease>, ApiError>;
    /// Creates a lease.
    async fn create(&self, lease: &Lease) -> Result<Lease, ApiError>;
    /// Replaces a lease of the same resource version. client-go does the same, so that the same permissions are enough.
    async fn update(&self, lease: &Lease) -> Result<Lease, ApiError>;
}

#[async_trait]
impl LeaseApi for Api<Lease> {
    async fn get(&self, name: &str) -> Result<Option<Lease>, ApiError> {
        self.get_opt(name).await.map_err(ApiError::from)
    }

    async fn create(&self, lease: &Lease) -> Result<Lease, ApiError> {
        Api::create(self, &PostParams::default(), lease).await.map_err(ApiError::from)
    }

    async fn update(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        self.replace(name, &PostParams::default(), lease).await.map_err(ApiError::from)
    }
}

/// The fields of a lease that the election uses.
pub(super) fn record_of(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        duration: seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs),
        transitions: spec.and_then(|spec| spec.lease_transitions).unwrap_or_default(),
    }
}

/// A new Lease object, held by `me` from `now` on.
pub(super) fn fresh(namespace: &str, name: &str, me: &str, duration: Duration, now: jiff::Timestamp) -> Lease {
    let mut lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    };
    hold(&mut lease, me, duration, 0, now);
    lease
}

/// Marks a lease as held by `me`. The acquire time changes only with the holder.
pub(super) fn hold(lease: &mut Lease, me: &str, duration: Duration, transitions: i32, now: jiff::Timestamp) {
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if spec.holder_identity.as_deref() != Some(me) || spec.acquire_time.is_none() {
        spec.acquire_time = Some(MicroTime(now));
    }
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
    spec.lease_transitions = Some(transitions);
    spec.renew_time = Some(MicroTime(now));
}

/// Marks a lease as free, as client-go does when a leader stops.
pub(super) fn release(lease: &mut Lease, now: jiff::Timestamp) {
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.acquire_time = Some(MicroTime(now));
    spec.renew_time = Some(MicroTime(now));
}
