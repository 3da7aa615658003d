//! The checks of this process. Some decide on readiness, and the others are only reported.
//!
//! A pod that is not ready answers no reviews. So only a problem that makes reviews impossible decides on readiness. Missing CRDs, empty caches
//! or an unreachable API server are shown by `/readyz?verbose` and decide nothing. Source: decisions on readiness; spec/extension-apiserver
//! §2.12, §4.6.

use controller_runtime::lock;
use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

/// Whether a check decides on readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// While it fails, the replica is not ready.
    Readiness,
    /// It is only reported.
    None,
}

#[derive(Clone, Debug)]
enum State {
    Failing(String),
    Passing,
}

#[derive(Debug)]
struct Entry {
    name: String,
    gate: Gate,
    state: State,
    has_passed: bool,
}

#[derive(Debug, Default)]
struct Checks {
    entries: Mutex<Vec<Entry>>,
    dead: Mutex<Option<String>>,
}

/// The checks of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Checks>);

/// One check. Its holder sets its state.
#[derive(Clone)]
pub struct Check {
    checks: Arc<Checks>,
    name: Arc<str>,
}

/// Whether the process is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can answer requests.
    Ready,
    /// It cannot.
    NotReady,
}

impl Health {
    /// Adds a check that fails with `reason` until it is set. It replaces a check of the same name.
    pub fn check(&self, name: &str, gate: Gate, reason: &str) -> Check {
        let mut entries = lock(&self.0.entries);
        entries.retain(|entry| entry.name != name);
        let state = State::Failing(reason.to_owned());
        entries.push(Entry { name: name.to_owned(), gate, state, has_passed: false });
        Check { checks: Arc::clone(&self.0), name: name.into() }
    }

    /// Declares that the process has to be restarted. From now on `/healthz` answers 500.
    pub fn declare_dead(&self, reason: &str) {
        *lock(&self.0.dead) = Some(reason.to_owned());
    }

    /// Whether the process is alive.
    pub fn is_alive(&self) -> bool {
        lock(&self.0.dead).is_none()
    }

    /// Whether all checks that gate readiness pass.
    pub fn readiness(&self) -> Readiness {
        let entries = lock(&self.0.entries);
        if entries.iter().all(|entry| entry.gate == Gate::None || matches!(entry.state, State::Passing)) {
            Readiness::Ready
        } else {
            Readiness::NotReady
        }
    }

    /// Why the check of this name fails. `None` if it passes or does not exist.
    pub fn failure_of(&self, name: &str) -> Option<String> {
        let entries = lock(&self.0.entries);
        entries.iter().find(|entry| entry.name == name).and_then(|entry| match &entry.state {
            State::Failing(reason) => Some(reason.clone()),
            State::Passing => None,
        })
    }

    /// All checks, one per line, in the format of the components of Kubernetes.
    pub fn report(&self) -> String {
        let entries = lock(&self.0.entries);
        let mut text = "[+]ping ok\n".to_owned();
        for Entry { name, gate, state, .. } in entries.iter() {
            let aside = if *gate == Gate::None { " (does not gate readiness)" } else { "" };
            // Writing to a string cannot fail.
            let _ = match state {
                State::Passing => writeln!(text, "[+]{name} ok"),
                State::Failing(reason) => writeln!(text, "[-]{name} failed: {reason}{aside}"),
            };
        }
        drop(entries);
        text.push_str(match self.readiness() {
            Readiness::Ready => "readyz check passed\n",
            Readiness::NotReady => "readyz check failed\n",
        });
        text
    }
}

impl Check {
    /// The check passes from now on.
    pub fn pass(&self) {
        self.set(State::Passing);
    }

    /// The check fails from now on, for this reason.
    pub fn fail(&self, reason: &str) {
        self.set(State::Failing(reason.to_owned()));
    }

    /// Whether the check has ever passed.
    pub fn has_passed(&self) -> bool {
        let entries = lock(&self.checks.entries);
        entries.iter().any(|entry| entry.name == *self.name && entry.has_passed)
    }

    fn set(&self, state: State) {
        let mut entries = lock(&self.checks.entries);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.name == *self.name) {
            entry.has_passed |= matches!(state, State::Passing);
            entry.state = state;
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Check({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_waits_for_every_gate_and_for_nothing_else() {
        let health = Health::default();
        let certificate = health.check("certificate", Gate::Readiness, "none is loaded yet");
        let _caches = health.check("caches", Gate::None, "machines are not listed yet");
        assert_eq!(health.readiness(), Readiness::NotReady);
        certificate.pass();
        assert_eq!(health.readiness(), Readiness::Ready);
        assert_eq!(
            health.report(),
            "[+]ping ok\n[+]certificate ok\n[-]caches failed: machines are not listed yet (does not gate readiness)\nreadyz check passed\n"
        );
        certificate.fail("expired");
        assert!(certificate.has_passed());
        assert!(health.report().ends_with("readyz check failed\n"));
    }

    #[test]
    fn a_dead_process_is_reported() {
        let health = Health::default();
        assert!(health.is_alive());
        health.declare_dead("lease lost");
        assert!(!health.is_alive());
    }
}
