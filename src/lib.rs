//! Kubernetes machine controller manager: the library behind the `mcm` binary.
//!
//! A room imports only rooms below it; `floors` (a test) holds the order, `docs/architecture.md` describes the house.

#![forbid(unsafe_code)]

pub mod cli;
pub mod drivers;
pub mod extension;
#[cfg(test)]
mod floors;
pub mod manager;
pub mod server;
pub mod settings;
