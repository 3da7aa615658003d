//! The Kubernetes API protocol, as a server speaks it: pure functions over requests, values and bytes.
//!
//! What lives here: which resource and verb a request means ([`request`]), which representation its sender wants
//! ([`negotiate`]), how it is written ([`answer`]), what bodies must say ([`bodies`]), selectors and options of lists and watches ([`selectors`], [`options`]), errors as `Status`
//! ([`status`]), tables ([`table`]), discovery and `OpenAPI` documents ([`discovery`], [`openapi`]). What does not: storage,
//! sockets, tasks, clocks. Two servers build on it: the computed views and the embedded development server.
//! Source: spec/extension-apiserver §2.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bodies;
pub mod depth;
pub mod discovery;
pub mod duplicates;
pub mod health;
pub mod jsonpath;
pub mod negotiate;
pub mod openapi;
pub mod openapi_protobuf;
pub mod options;
pub mod request;
pub mod resource;
pub mod selectors;
pub mod status;
pub mod table;
pub mod unknown_fields;
