//! How many owners of new objects are read at a time, and for whom. Anybody may name an owner that does not exist: it must take
//! neither the places of reviews that read nothing, nor those of other namespaces. Who reads, and what for, is [`super::reviewer`]'s.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// How many owners are read at a time.
const ALL: usize = 32;
/// How many of them may be of one namespace.
const OF_A_NAMESPACE: usize = 8;

/// The places of reads that are under way, by the namespace they are for.
#[derive(Debug, Default)]
pub(super) struct OwnerPlaces(Mutex<HashMap<String, usize>>);

/// A read that is under way; its place is free again when it is dropped.
#[derive(Debug)]
pub(super) struct OwnerPlace<'a> {
    places: &'a OwnerPlaces,
    namespace: &'a str,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// For nobody.
    #[error("{ALL} others are being read")]
    All,
    /// For this namespace.
    #[error("{OF_A_NAMESPACE} others of its namespace are being read")]
    Namespace,
}

impl OwnerPlaces {
    /// A place for a read in this namespace.
    ///
    /// # Errors
    /// When there is none; nobody waits for one, since the controller of a refused object comes again.
    pub(super) fn take<'a>(&'a self, namespace: &'a str) -> Result<OwnerPlace<'a>, Full> {
        let mut taken = self.taken();
        if taken.values().sum::<usize>() >= ALL {
            return Err(Full::All);
        }
        let own = taken.entry(namespace.to_owned()).or_default();
        if *own >= OF_A_NAMESPACE {
            return Err(Full::Namespace);
        }
        *own += 1;
        Ok(OwnerPlace { places: self, namespace })
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwnerPlace<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(own) = taken.get_mut(self.namespace) {
            *own -= 1;
            if *own == 0 {
                taken.remove(self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_leaves_places_to_others_and_gives_its_own_back() {
        let places = OwnerPlaces::default();
        let held: Vec<_> = (0..OF_A_NAMESPACE).map(|_| places.take("crowded").unwrap()).collect();
        assert_eq!(places.take("crowded").unwrap_err(), Full::Namespace);
        drop(places.take("quiet").unwrap());
        drop(held);
        assert!(places.taken().is_empty());
        drop(places.take("crowded").unwrap());
    }

    #[test]
    fn there_are_no_more_places_than_this_for_all_together() {
        let places = OwnerPlaces::default();
        let names: Vec<_> = (0..ALL).map(|number| format!("n{number}")).collect();
        let held: Vec<_> = names.iter().map(|name| places.take(name).unwrap()).collect();
        assert_eq!(places.take("another").unwrap_err(), Full::All);
        assert_eq!(held.len(), ALL);
    }
}
