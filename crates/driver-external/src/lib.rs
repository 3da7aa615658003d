//! Drivers in other processes: a client that implements [`machine_driver::Driver`], and a server for any implementation of it.
//!
//! Client and server speak the protocol of `proto/machine/driver/v1/driver.proto` over a Unix socket or mutual TLS. Source: spec/providers §9.

#![forbid(unsafe_code)]

mod address;
mod attempts;
mod client;
mod codes;
mod connection;
mod convert;
mod grpc_only;
mod info;
mod info_history;
mod keeper;
mod link;
mod proven;
mod server;
mod supervise;
pub mod wire;

pub use address::{Address, AddressError, PlainText};
pub use client::{DriverState, ExternalDriver, Options, Place};
pub use connection::TlsFiles;
pub use info::{Accepted, PROTOCOL, Protocol, Refusal};
pub use link::DOWN_AFTER;
pub use server::{Served, serve};
pub use supervise::SOCKET_VARIABLE;
