//! The Go original: a client in Go, replacements for its halves, and the objects that it leaves behind.

mod client;
pub mod halves;
pub mod left_behind;
