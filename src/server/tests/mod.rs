//! The server on loopback, driven through real sockets.

mod certificates;
mod draining;
mod endpoints;
mod floods;
mod guest;
mod hostile;
mod reviews;
mod rig;
