//! Limits the number of open connections: of all clients, and of each address.

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
pub(super) struct ConnectionLimiter(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// The requests that a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All requests.
    All,
    /// Requests for health only, because all other connections are in use.
    Health,
}

impl ConnectionLimiter {
    /// The permit of a connection from this address.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn acquire(
        self: &Arc<Self>,
        peer: IpAddr,
        limits: &ConnectionLimits,
    ) -> Result<ConnectionPermit, Rejection> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = counts.by_address.get(&peer).copied().unwrap_or(0);
        let scope = match counts.total {
            total if total < limits.connections => Scope::All,
            total if total < limits.connections.saturating_add(limits.kept_for_health) => Scope::Health,
            _ => return Err(Rejection::ConnectionLimit),
        };
        if of_peer >= limits.connections_per_peer {
            return Err(Rejection::PeerConnectionLimit);
        }
        counts.total += 1;
        counts.by_address.insert(peer, of_peer + 1);
        drop(counts);
        Ok(ConnectionPermit { limiter: Arc::clone(self), peer, scope, is_of_proxy: AtomicBool::new(false) })
    }

    fn release(counts: &mut Counts, peer: IpAddr) {
        match counts.by_address.get_mut(&peer) {
            Some(of_peer) if *of_peer > 1 => *of_peer -= 1,
            _ => {
                counts.by_address.remove(&peer);
            }
        }
    }
}

/// The permit of an open connection. It is released when it is dropped.
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    peer: IpAddr,
    pub(super) scope: Scope,
    is_of_proxy: AtomicBool,
}

impl ConnectionPermit {
    /// From now on the connection does not count against the limit of its address.
    pub(super) fn mark_as_proxy(&self) {
        if !self.is_of_proxy.swap(true, Ordering::Relaxed) {
            ConnectionLimiter::release(&mut self.limiter.0.lock().unwrap_or_else(PoisonError::into_inner), self.peer);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limiter.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total = counts.total.saturating_sub(1);
        if !*self.is_of_proxy.get_mut() {
            ConnectionLimiter::release(&mut counts, self.peer);
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
        let limiter = Arc::new(ConnectionLimiter::default());
        let first = limiter.acquire(ONE, &limits()).ok().unwrap();
        let _second = limiter.acquire(ONE, &limits()).ok().unwrap();
        assert_eq!(limiter.acquire(ONE, &limits()).err(), Some(Rejection::PeerConnectionLimit));
        let _third = limiter.acquire(TWO, &limits()).ok().unwrap();
        assert_eq!(limiter.acquire(TWO, &limits()).err(), Some(Rejection::ConnectionLimit));
        drop(first);
        assert!(limiter.acquire(TWO, &limits()).is_ok());
    }

    #[test]
    fn the_last_connections_are_kept_for_health() {
        let limits = ConnectionLimits { connections: 1, kept_for_health: 1, ..limits() };
        let limiter = Arc::new(ConnectionLimiter::default());
        let first = limiter.acquire(ONE, &limits).ok().unwrap();
        let second = limiter.acquire(TWO, &limits).ok().unwrap();
        assert_eq!([first.scope, second.scope], [Scope::All, Scope::Health]);
        assert_eq!(limiter.acquire(TWO, &limits).err(), Some(Rejection::ConnectionLimit));
    }

    #[test]
    fn connections_of_front_proxies_do_not_count_against_their_address() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let mut held = Vec::new();
        for _ in 0..3 {
            let permit = limiter.acquire(ONE, &limits()).ok().unwrap();
            permit.mark_as_proxy();
            permit.mark_as_proxy();
            held.push(permit);
        }
        assert_eq!(
            limiter.acquire(TWO, &limits()).err(),
            Some(Rejection::ConnectionLimit),
            "they count against the limit of all connections"
        );
        drop(held);
        let (_one, _two) =
            (limiter.acquire(ONE, &limits()).ok().unwrap(), limiter.acquire(ONE, &limits()).ok().unwrap());
        assert_eq!(
            limiter.acquire(ONE, &limits()).err(),
            Some(Rejection::PeerConnectionLimit),
            "the count of the address is still right"
        );
    }
}
