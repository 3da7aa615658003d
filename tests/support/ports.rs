//! Ports for the programs that the tests start.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU32, Ordering},
};

/// A loopback port that is free now, and stays so until somebody asks for it by number.
///
/// It lies below the range from which the kernel gives ports to outgoing connections and to listeners on port 0
/// (32768 on, `ip_local_port_range`), so that no connection made meanwhile takes it; no two calls get the same one.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 32_768 - FIRST;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Several test programs at once begin far from each other.
    let begin = std::process::id().wrapping_mul(2_654_435_761) % COUNT;
    (0..COUNT)
        .map(|_| FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port below the kernel's own")
}
