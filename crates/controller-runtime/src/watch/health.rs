//! Whether a watch works: when it last received data, and its errors.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::{UndecodableObject, WatchedCluster};
use crate::lock;

/// The state of one watch, for readiness texts and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchHealth {
    /// The cluster.
    pub cluster: WatchedCluster,
    /// Plural name of the kind.
    pub kind: &'static str,
    /// Time since the API server last sent data for this watch, bookmarks included; absent before the first response. Bookmarks
    /// come about once a minute, so a watch without data for minutes is dead.
    pub silent_for: Option<Duration>,
    /// Whether the first list is complete.
    pub synced: bool,
    /// Complete lists since the start. More than one means that the watch had to list again.
    pub lists: u64,
    /// Errors of the watch since the start.
    pub failures: u64,
    /// The last error; absent while the watch works.
    pub last_error: Option<String>,
    /// Objects that can't be decoded now.
    pub undecodable: usize,
}

#[derive(Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    received: Option<Instant>,
    lists: u64,
    failures: u64,
    last_error: Option<String>,
    /// The error that was logged last; absent once a watch has been opened since.
    logged: Option<String>,
    /// Resource version of each undecodable object, by UID. Each version is reported once.
    undecodable: BTreeMap<String, String>,
}

impl Health {
    pub(super) fn read(&self, cluster: WatchedCluster, kind: &'static str) -> WatchHealth {
        let state = self.lock();
        WatchHealth {
            cluster,
            kind,
            silent_for: state.received.map(|at| at.elapsed()),
            synced: state.lists > 0,
            lists: state.lists,
            failures: state.failures,
            last_error: state.last_error.clone(),
            undecodable: state.undecodable.len(),
        }
    }

    pub(super) fn received(&self) {
        self.lock().received = Some(Instant::now());
    }

    pub(super) fn works(&self) {
        self.lock().last_error = None;
    }

    /// A watch was opened. The next error is logged, even if it is the same as the last one.
    pub(super) fn opened(&self) {
        let mut state = self.lock();
        state.last_error = None;
        state.logged = None;
    }

    pub(super) fn listed(&self) {
        self.lock().lists += 1;
    }

    /// The watch failed. Returns whether to log the error: it differs from the last logged one.
    pub(super) fn failed(&self, error: &str) -> bool {
        let mut state = self.lock();
        state.failures += 1;
        state.last_error = Some(error.to_owned());
        if state.logged.as_deref() == Some(error) {
            return false;
        }
        state.logged = Some(error.to_owned());
        true
    }

    /// Records an undecodable object. Returns whether this version of it is new.
    pub(super) fn record_undecodable(&self, undecodable: &UndecodableObject) -> bool {
        let version = undecodable.resource_version.clone();
        self.lock().undecodable.insert(undecodable.uid.clone(), version.clone()) != Some(version)
    }

    /// The object can be decoded, or was deleted.
    pub(super) fn decodable(&self, uid: Option<&str>) {
        let mut state = self.lock();
        if !state.undecodable.is_empty()
            && let Some(uid) = uid
        {
            state.undecodable.remove(uid);
        }
    }

    /// A complete list contained only these undecodable objects.
    pub(super) fn keep_undecodable(&self, listed: &std::collections::BTreeSet<String>) {
        self.lock().undecodable.retain(|uid, _| listed.contains(uid));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
}
