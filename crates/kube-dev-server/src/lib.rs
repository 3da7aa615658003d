//! A Kubernetes-compatible API server in one process, for a start without a cluster and for hermetic tests.
//!
//! The crate contains: stored objects with resource versions and watches ([`store`]), the served kinds ([`kinds`]), schemas ([`schema`]),
//! the verbs, admission by webhooks, groups that extension API servers serve ([`aggregator`]), and replacements for the few controllers that clients
//! rely on ([`helpers`]). It does not contain the protocol (`kube-protocol`). It does not contain the kinds of the machine controller manager either:
//! they are custom resource definitions like any other. The server is no Kubernetes distribution: it has no scheduler, no kubelet and no network.
//! Source: spec/extension-apiserver §6.

#![forbid(unsafe_code)]

mod access;
mod account_secrets;
mod account_tokens;
mod admission;
mod aggregator;
mod apply;
mod authorization;
mod builtin;
mod builtin_rules;
mod certificates;
mod counts;
mod crd;
mod data_rules;
mod definition_rules;
mod delete;
mod documents;
mod event_cache;
mod eviction;
mod fields;
mod files;
mod first_content;
mod handle;
mod helpers;
mod hooks;
mod json_patches;
mod jsonpath;
mod kinds;
mod limits;
mod listener;
mod long_list;
mod object;
mod patch;
mod persistence;
mod plain;
mod protobuf;
mod quality;
mod read;
mod reviews;
mod schema;
mod server;
mod stand_ins;
mod store;
mod strategic;
mod table;
#[cfg(test)]
mod testing;
mod tls_pool;
mod watch;
mod webhook_client;
mod write;
mod write_body;
mod write_rules;

pub use access::TokenFileError;
pub use authorization::AuthorizationMode;
pub use files::write_private;
pub use handle::{CONTEXT, Credentials, DevServer, DevServerOptions, Storage};
pub use hooks::{Hook, HookError, socket::HookSocket};
pub use limits::Limits;
pub use listener::{ListenError, Listening, Reach};
pub use persistence::DataError;
pub use stand_ins::StandIn;
pub use webhook_client::InProcess;
