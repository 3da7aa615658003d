//! The controllers' access to Kubernetes APIs.
//!
//! Contains the cached view of a kind with its indexes ([`store`]), the work queue ([`queue`]), guarded writes ([`objects`]), the
//! gate that every destructive effect passes ([`gate`]) and the errors of API calls ([`error`]). Contains no rule about machines. A
//! controller reads stores, decides, and writes through [`objects`].
//!
//! The answer of every write is put into the store at once ([`store::Store::observe_write`]), so that no decision uses an object
//! that is older than this process's last write to it.

#![forbid(unsafe_code)]

pub mod catch_up;
pub mod clients;
pub mod clock;
pub mod definitions;
pub mod error;
pub mod events;
pub mod gate;
pub mod installed_schemas;
pub mod key;
pub mod latch;
pub mod lease;
pub mod objects;
pub mod panics;
pub mod preflight;
pub mod queue;
pub mod refusals;
pub mod server_version;
pub mod snapshot;
pub mod storage_version;
pub mod store;
pub mod supervisor;
pub mod tasks;
pub mod watch;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. If a holder of the lock has panicked, its data is used as it is, because the process goes on without the task that
/// panicked.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
