//! Ports that are bound before the server starts, because their numbers must be known first.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

/// Listeners that were bound before the server. A client that connects in the meantime waits and is not refused.
#[derive(Debug, Default)]
pub struct ReservedPorts(Vec<TcpListener>);

impl ReservedPorts {
    /// Binds free ports of 127.0.0.1 and returns their numbers. No other process can get them from now on.
    ///
    /// # Errors
    /// When no port is free.
    pub fn of_loopback<const N: usize>() -> io::Result<(Self, [u16; N])> {
        let mut ports = [0; N];
        let mut listeners = Vec::with_capacity(N);
        for port in &mut ports {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            *port = listener.local_addr()?.port();
            listeners.push(listener);
        }
        Ok((Self(listeners), ports))
    }

    /// Takes out the listener of an address.
    pub(super) fn take(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = self.0.iter().position(|listener| listener.local_addr().is_ok_and(|local| local == address))?;
        Some(self.0.swap_remove(at))
    }
}
