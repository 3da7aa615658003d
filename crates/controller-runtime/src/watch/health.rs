//! Whether a watch is alive: when its connection was last heard, what it stumbled over.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::Poison;

/// The state of one watch, for readiness texts and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchHealth {
    /// Plural name of the kind.
    pub kind: &'static str,
    /// Time since the API server last sent anything for it, bookmarks included; absent before the first answer. Bookmarks
    /// come about once a minute, so minutes of silence mean a dead watch.
    pub silent_for: Option<Duration>,
    /// Whether the first list has been taken over.
    pub synced: bool,
    /// Complete lists since the start; more than one tells of lost watches.
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
    heard: Option<Instant>,
    lists: u64,
    failures: u64,
    last_error: Option<String>,
    /// The error that was told last; absent once a watch has been opened since.
    told: Option<String>,
    /// Resource version of undecodable objects by UID; each version is told of once.
    undecodable: BTreeMap<String, String>,
}

impl Health {
    pub(super) fn read(&self, kind: &'static str) -> WatchHealth {
        let state = self.lock();
        WatchHealth {
            kind,
            silent_for: state.heard.map(|at| at.elapsed()),
            synced: state.lists > 0,
            lists: state.lists,
            failures: state.failures,
            last_error: state.last_error.clone(),
            undecodable: state.undecodable.len(),
        }
    }

    pub(super) fn heard(&self) {
        self.lock().heard = Some(Instant::now());
    }

    pub(super) fn works(&self) {
        self.lock().last_error = None;
    }

    /// A watch was opened: whatever goes wrong from now on is news.
    pub(super) fn opened(&self) {
        let mut state = self.lock();
        state.last_error = None;
        state.told = None;
    }

    pub(super) fn listed(&self) {
        self.lock().lists += 1;
    }

    /// It failed; whether the reason is news.
    pub(super) fn failed(&self, error: &str) -> bool {
        let mut state = self.lock();
        state.failures += 1;
        state.last_error = Some(error.to_owned());
        if state.told.as_deref() == Some(error) {
            return false;
        }
        state.told = Some(error.to_owned());
        true
    }

    /// Remembers an undecodable object; whether this version of it is news.
    pub(super) fn undecodable(&self, poison: &Poison) -> bool {
        let version = poison.resource_version.clone();
        self.lock().undecodable.insert(poison.uid.clone(), version.clone()) != Some(version)
    }

    /// This object can be decoded, or is gone.
    pub(super) fn decodable(&self, uid: Option<&str>) {
        let mut state = self.lock();
        if !state.undecodable.is_empty()
            && let Some(uid) = uid
        {
            state.undecodable.remove(uid);
        }
    }

    /// A complete list mentioned only these undecodable objects.
    pub(super) fn keep_undecodable(&self, seen: &std::collections::BTreeSet<String>) {
        self.lock().undecodable.retain(|uid, _| seen.contains(uid));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
