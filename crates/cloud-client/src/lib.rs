//! The client that all drivers use for calls to their cloud APIs. Nothing in this crate depends on a specific cloud.
//!
//! [`Client::call`] sends a request and retries it where that is safe ([`retry`] decides, without clock and I/O). It keeps to the
//! budget of the credentials ([`Budgets`]) and to the deadline of the operation, and counts each request. Only [`HttpTransport`]
//! uses sockets; a test gives the client another [`Transport`]. [`token_file`] reads the files that Secrets name. [`Tokens`] keeps the tokens of
//! accounts until they expire.

#![forbid(unsafe_code)]

mod budget;
mod client;
mod failure;
mod http_transport;
mod proxy;
pub mod retry;
mod secret;
mod tls;
pub mod token_file;
mod tokens;
mod transport;

/// The type of bodies.
pub use bytes::Bytes;
/// The types of requests and answers.
pub use http;

pub use budget::{Budgets, Limits};
pub use client::{Call, Client};
pub use failure::{Failure, FailureKind};
pub use http_transport::{ClientIdentity, HttpOptions, HttpTransport, ServerCheck};
pub use retry::{Repeat, draw};
pub use secret::{CredentialsKey, Secret};
pub use tokens::{Token, Tokens, redacted};
pub use transport::{Answer, NoAnswer, Transport};

/// The user agent of every request to a cloud.
pub const USER_AGENT: &str = concat!("machine-controller-manager-rs/", env!("CARGO_PKG_VERSION"));
