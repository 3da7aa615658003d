//! What the driver of every cloud needs to talk to its API, and nothing of any one cloud.
//!
//! [`Client::call`] sends a request and sends it again where that is safe ([`retry`] decides, without clock and I/O), keeps to
//! the budget of the credentials ([`Budgets`]) and to the deadline of the operation, and counts each request. [`HttpTransport`]
//! is the only place with sockets; a test gives the client a [`Transport`] of its own.

#![forbid(unsafe_code)]

mod budget;
mod client;
mod failure;
mod http_transport;
mod proxy;
pub mod retry;
mod secret;
mod tls;
mod transport;

/// What a request and its answer consist of.
pub use bytes::Bytes;
/// The vocabulary of requests.
pub use http;

pub use budget::{Budgets, Limits};
pub use client::{Call, Client};
pub use failure::{Failure, Trouble};
pub use http_transport::{ClientIdentity, HttpOptions, HttpTransport, ServerCheck};
pub use retry::{Repeat, draw};
pub use secret::{CredentialsKey, Secret};
pub use transport::{Answer, NoAnswer, Transport};

/// How every request to a cloud names its sender.
pub const USER_AGENT: &str = concat!("machine-controller-manager-rs/", env!("CARGO_PKG_VERSION"));
