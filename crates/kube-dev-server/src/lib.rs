//! A Kubernetes-compatible API server in one process, for a start without a cluster and for hermetic tests.
//!
//! What lives here: stored objects with resource versions and watches ([`store`]), the kinds it serves ([`kinds`]), schemas
//! ([`schema`]), the verbs over them, admission by webhooks, groups that other servers answer for ([`aggregator`]), and
//! stand-ins for the few controllers that clients rely on ([`helpers`]). What does not: the protocol itself (`kube-protocol`), and our own kinds, which come as definitions like
//! anybody's. It is no Kubernetes distribution: there is no scheduler, no kubelet and no network.
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
mod eviction;
mod fields;
mod files;
mod first_content;
mod handle;
mod helpers;
mod hooks;
mod json_patches;
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
#[cfg(test)]
mod testing;
mod watch;
mod watch_lines;
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
