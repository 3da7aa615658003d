//! The server's side of the Kubernetes API protocol: pure functions over requests, values and bytes.
//!
//! The crate contains: the resource and verb of a request ([`request`]), content negotiation ([`negotiate`]), responses ([`answer`]),
//! checks of request bodies ([`bodies`]), selectors and options of lists and watches ([`selectors`], [`options`]), errors as `Status` ([`status`]),
//! tables ([`table`]), discovery and `OpenAPI` documents ([`discovery`], [`openapi`]). It contains no storage, sockets, tasks or clocks.
//! Two servers use it: the extension API server and the development server.
//! Source: spec/extension-apiserver §2.

#![forbid(unsafe_code)]

pub mod answer;
pub mod bodies;
pub mod depth;
pub mod discovery;
pub mod duplicates;
pub mod health;
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
