//! The extension API server: computed views of machines behind the aggregation layer.
//!
//! What lives here: what a view is ([`view`]), the views themselves ([`views`]), and the server that answers for them: one request from head
//! to answer ([`front`]), who asks ([`authentication`]), what they may ([`authorization`]), what views are asked ([`desk`], [`rows`], [`pages`])
//! and what does not depend on the caller ([`documents`]). What does not: the protocol (`protocol/`), listeners and certificates
//! (`server/`), and every rule: a view renders what the controllers' own decisions say, and never writes anything.
//! Source: spec/extension-apiserver §1–§5.

pub mod audit;
pub mod authentication;
pub mod authorization;
mod blocking;
pub mod checks;
pub mod contact;
pub mod desk;
pub mod digest;
pub mod documents;
pub mod front;
pub mod pages;
pub mod recall;
pub mod registry;
pub mod reviews;
pub mod rows;
pub mod view;
pub mod views;

#[cfg(test)]
mod testing;
