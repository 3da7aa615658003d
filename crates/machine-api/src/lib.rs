//! The kinds of machines, all names of the system, and the pure functions for them: rules, defaults and conversion.
//!
//! Nothing here is async, has a client or reads a clock. Times are arguments. The crate has the stored kinds ([`v1alpha1`], [`v1beta1`]) with their
//! schemas ([`schema`]) and definitions ([`crd`]), defaults ([`defaulting`]), conversion ([`conversion`]), rules ([`validation`]), names ([`names`]),
//! machine codes ([`machine_code`]), the reviews of the API server ([`admission`]) and the webhooks that receive them ([`webhooks`]). Code
//! that calls a cluster or a cloud belongs to other crates.

#![forbid(unsafe_code)]

// The samples of tests/limits are also compiled as tests of this crate, and import it by this name.
#[cfg(test)]
extern crate self as machine_api;

pub mod admission;
pub mod conversion;
pub mod crd;
pub mod defaulting;
pub mod kind;
pub mod machine_code;
pub mod names;
pub mod schema;
pub mod v1alpha1;
pub mod v1beta1;
pub mod validation;
pub mod webhooks;
