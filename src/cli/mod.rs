//! The subcommands. Their work is done in plain functions over text and values; only `main.rs` knows the process.

pub mod documents;
pub mod manifests_crds;
pub mod manifests_webhooks;
pub mod validate;
