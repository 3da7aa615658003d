//! The extension API server: computed views of machines behind the aggregation layer.
//!
//! What lives here: what a view is ([`view`]), the views themselves ([`views`]), and the server that answers for them: one request from head
//! to answer ([`pipeline`]), who asks ([`authentication`]), what they may ([`authorization`]), how a view is asked ([`handler`]), how its
//! objects are rendered ([`rows`]) and paged ([`pages`]), and what does not depend on the caller ([`documents`]). What does not: the protocol
//! (`kube-protocol`), listeners and certificates (`server/`), and every rule: a view renders what the controllers' own decisions say, and
//! never writes anything.
//! Source: spec/extension-apiserver §1–§5.

pub mod audit;
pub mod authentication;
pub mod authorization;
mod blocking;
pub mod cache;
pub mod checks;
pub mod digest;
pub mod documents;
pub mod handler;
pub mod pages;
pub mod pipeline;
pub mod reachability;
pub mod registry;
pub mod reviews;
pub mod rows;
pub mod view;
pub mod views;

#[cfg(test)]
mod testing;
