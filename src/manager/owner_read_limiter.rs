//! Limits how many owners of new objects are read at a time. Any user can name an owner that does not exist. These reads must not
//! delay reviews that read nothing, nor the reads of other namespaces. The reads themselves are in [`super::reviewer`].

use controller_runtime::lock;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

/// Reads at a time.
const TOTAL: usize = 32;
/// Reads at a time for one namespace.
const PER_NAMESPACE: usize = 8;

/// The number of running reads per namespace.
#[derive(Debug, Default)]
pub(super) struct OwnerReadLimiter(Mutex<HashMap<String, usize>>);

/// The permit of one read. When it is dropped, the read no longer counts.
#[derive(Debug)]
pub(super) struct OwnerReadPermit<'a> {
    limiter: &'a OwnerReadLimiter,
    namespace: &'a str,
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitReached {
    /// The limit of all reads.
    #[error("{TOTAL} others are being read")]
    Total,
    /// The limit of this namespace.
    #[error("{PER_NAMESPACE} others of its namespace are being read")]
    Namespace,
}

impl OwnerReadLimiter {
    /// A permit for a read in this namespace.
    ///
    /// # Errors
    /// When a limit is reached. The caller does not wait, because the controller of a refused object tries again.
    pub(super) fn acquire<'a>(&'a self, namespace: &'a str) -> Result<OwnerReadPermit<'a>, LimitReached> {
        let mut running = self.running();
        if running.values().sum::<usize>() >= TOTAL {
            return Err(LimitReached::Total);
        }
        let own = running.entry(namespace.to_owned()).or_default();
        if *own >= PER_NAMESPACE {
            return Err(LimitReached::Namespace);
        }
        *own += 1;
        Ok(OwnerReadPermit { limiter: self, namespace })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        lock(&self.0)
    }
}

impl Drop for OwnerReadPermit<'_> {
    fn drop(&mut self) {
        let mut running = self.limiter.running();
        if let Some(own) = running.get_mut(self.namespace) {
            *own -= 1;
            if *own == 0 {
                running.remove(self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_can_use_only_its_own_permits_and_returns_them() {
        let limiter = OwnerReadLimiter::default();
        let held: Vec<_> = (0..PER_NAMESPACE).map(|_| limiter.acquire("crowded").unwrap()).collect();
        assert_eq!(limiter.acquire("crowded").unwrap_err(), LimitReached::Namespace);
        drop(limiter.acquire("quiet").unwrap());
        drop(held);
        assert!(limiter.running().is_empty());
        drop(limiter.acquire("crowded").unwrap());
    }

    #[test]
    fn all_namespaces_together_have_a_limit() {
        let limiter = OwnerReadLimiter::default();
        let names: Vec<_> = (0..TOTAL).map(|number| format!("n{number}")).collect();
        let held: Vec<_> = names.iter().map(|name| limiter.acquire(name).unwrap()).collect();
        assert_eq!(limiter.acquire("another").unwrap_err(), LimitReached::Total);
        assert_eq!(held.len(), TOTAL);
    }
}
