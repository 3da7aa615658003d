//! The Go original beside us: a client in Go, stand-ins for its halves, and what it leaves behind.

mod client;
pub mod halves;
pub mod left_behind;
