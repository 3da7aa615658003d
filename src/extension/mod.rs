//! The extension API server: computed views of machines behind the aggregation layer.
//!
//! Contents: the interface of a view ([`view`]), the views themselves ([`views`]), and their server: one request from head to answer ([`server`]),
//! the identity of the caller ([`authentication`]), its rights ([`authorization`]), the request to a view ([`handler`]), the rendering of objects
//! ([`rows`]), the pages of lists ([`pages`]), and the documents that are the same for all callers ([`documents`]). Elsewhere: the protocol
//! (`kube-protocol`), listeners and certificates (`server/`), and all rules about machines. A view renders the decisions of the controllers, and
//! writes nothing. Source: spec/extension-apiserver §1–§5.

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
pub mod reachability;
pub mod registry;
pub mod reviews;
pub mod rows;
pub mod server;
pub mod view;
pub mod views;

#[cfg(test)]
mod testing;
