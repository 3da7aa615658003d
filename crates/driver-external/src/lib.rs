//! Drivers out of process: the client that the machine controller asks, and the server that serves any [`machine_driver::Driver`].
//!
//! Both speak the protocol of `proto/machine/driver/v1/driver.proto`, over a Unix socket or mutual TLS. Source: spec/providers §9.

#![forbid(unsafe_code)]

mod address;
mod attempts;
mod client;
mod codes;
mod connection;
mod convert;
mod info;
mod keeper;
mod link;
mod server;
mod supervise;
mod told;
pub mod wire;

pub use address::{Address, PlainText, WrongAddress};
pub use client::{ExternalDriver, News, Options, Place};
pub use connection::TlsFiles;
pub use info::{Accepted, PROTOCOL, Protocol, Refusal};
pub use link::DOWN_AFTER;
pub use server::{Served, serve};
pub use supervise::SOCKET_VARIABLE;
