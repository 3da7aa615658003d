//! The server on loopback, driven through real sockets.

mod certificates;
mod draining;
mod endpoints;
mod fallback;
mod floods;
mod hostile;
mod reviews;
mod rig;
