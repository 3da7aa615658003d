//! The places that connections take: counted in all and by address.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{ConnectionLimits, Rejection};

/// Counts open connections.
#[derive(Default)]
pub(super) struct Places(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// What a connection may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Anything.
    Fully,
    /// Whether the process is well; all other places are taken.
    ForHealth,
}

impl Places {
    /// A place for a connection from this address.
    pub(super) fn enter(self: &Arc<Self>, peer: IpAddr, limits: &ConnectionLimits) -> Result<Place, Rejection> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = counts.by_address.get(&peer).copied().unwrap_or(0);
        let admitted = match counts.all {
            all if all < limits.connections => Admitted::Fully,
            all if all < limits.connections.saturating_add(limits.kept_for_health) => Admitted::ForHealth,
            _ => return Err(Rejection::ConnectionLimit),
        };
        if of_peer >= limits.connections_per_peer {
            return Err(Rejection::PeerConnectionLimit);
        }
        counts.all += 1;
        counts.by_address.insert(peer, of_peer + 1);
        drop(counts);
        Ok(Place { places: Arc::clone(self), peer, admitted, of_proxy: AtomicBool::new(false) })
    }

    fn forget(counts: &mut Counts, peer: IpAddr) {
        match counts.by_address.get_mut(&peer) {
            Some(of_peer) if *of_peer > 1 => *of_peer -= 1,
            _ => {
                counts.by_address.remove(&peer);
            }
        }
    }
}

/// A connection's place among the open ones; given back when dropped.
pub(super) struct Place {
    places: Arc<Places>,
    peer: IpAddr,
    pub(super) admitted: Admitted,
    of_proxy: AtomicBool,
}

impl Place {
    /// From now on the connection does not count against the limit of its address.
    pub(super) fn is_of_proxy(&self) {
        if !self.of_proxy.swap(true, Ordering::Relaxed) {
            Places::forget(&mut self.places.0.lock().unwrap_or_else(PoisonError::into_inner), self.peer);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all = counts.all.saturating_sub(1);
        if !*self.of_proxy.get_mut() {
            Places::forget(&mut counts, self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const TWO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn limits() -> ConnectionLimits {
        ConnectionLimits { connections: 3, connections_per_peer: 2, kept_for_health: 0, ..ConnectionLimits::default() }
    }

    #[test]
    fn connections_are_counted_in_all_and_by_address() {
        let places = Arc::new(Places::default());
        let first = places.enter(ONE, &limits()).ok().unwrap();
        let _second = places.enter(ONE, &limits()).ok().unwrap();
        assert_eq!(places.enter(ONE, &limits()).err(), Some(Rejection::PeerConnectionLimit));
        let _third = places.enter(TWO, &limits()).ok().unwrap();
        assert_eq!(places.enter(TWO, &limits()).err(), Some(Rejection::ConnectionLimit));
        drop(first);
        assert!(places.enter(TWO, &limits()).is_ok());
    }

    #[test]
    fn the_last_places_are_kept_for_health() {
        let limits = ConnectionLimits { connections: 1, kept_for_health: 1, ..limits() };
        let places = Arc::new(Places::default());
        let first = places.enter(ONE, &limits).ok().unwrap();
        let second = places.enter(TWO, &limits).ok().unwrap();
        assert_eq!([first.admitted, second.admitted], [Admitted::Fully, Admitted::ForHealth]);
        assert_eq!(places.enter(TWO, &limits).err(), Some(Rejection::ConnectionLimit));
    }

    #[test]
    fn connections_of_front_proxies_do_not_count_against_their_address() {
        let places = Arc::new(Places::default());
        let mut held = Vec::new();
        for _ in 0..3 {
            let place = places.enter(ONE, &limits()).ok().unwrap();
            place.is_of_proxy();
            place.is_of_proxy();
            held.push(place);
        }
        assert_eq!(places.enter(TWO, &limits()).err(), Some(Rejection::ConnectionLimit), "but among all they do");
        drop(held);
        let (_one, _two) = (places.enter(ONE, &limits()).ok().unwrap(), places.enter(ONE, &limits()).ok().unwrap());
        assert_eq!(places.enter(ONE, &limits()).err(), Some(Rejection::PeerConnectionLimit), "nothing is lost");
    }
}
