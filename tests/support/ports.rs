//! Ports for the programs that the tests start.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

/// A loopback port that is free, and stays free until a process binds it by its number.
///
/// It lies below the range from which the kernel chooses ports for outgoing connections and for listeners on port 0 (32768 and above,
/// `ip_local_port_range`), so that no connection takes it meanwhile. No two calls return the same port.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 32_768 - FIRST;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test programs that run at the same time begin at different ports.
    let begin = std::process::id().wrapping_mul(2_654_435_761) % COUNT;
    (0..COUNT)
        .map(|_| FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port below the kernel's own")
}
