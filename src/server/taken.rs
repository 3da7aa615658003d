//! Ports that are taken before there is a server: somebody had to know their numbers first.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

/// Listeners that were bound before the server. Who connects meanwhile waits instead of being refused.
#[derive(Debug, Default)]
pub struct Taken(Vec<TcpListener>);

impl Taken {
    /// Takes free ports of 127.0.0.1; the answer names them. Nobody else can get one of them from here on.
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

    /// Gives away the listener of an address.
    pub(super) fn give(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let at = self.0.iter().position(|listener| listener.local_addr().is_ok_and(|local| local == address))?;
        Some(self.0.swap_remove(at))
    }
}
