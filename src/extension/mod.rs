//! The extension API server: computed views of machines behind the aggregation layer.
//!
//! What lives here: what a view is ([`view`]), the views themselves, and the server that answers for them: who asks, what
//! they may, discovery, tables, pages. What does not: the protocol (`protocol/`), listeners and certificates (`server/`), and
//! every rule: a view renders what the controllers' own decisions say, and never writes anything.
//! Source: spec/extension-apiserver §1–§5.

pub mod view;
pub mod views;
