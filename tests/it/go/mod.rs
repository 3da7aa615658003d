//! Interoperation with the Go original: a client in Go, stand-ins for its halves, and the objects that it leaves behind.

mod client;
pub mod halves;
pub mod left_behind;
