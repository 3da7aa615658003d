//! Listeners on loopback, driven through real sockets.
