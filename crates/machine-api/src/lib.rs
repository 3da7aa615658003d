//! The kinds of machines, every name the system uses, and the pure rules over them.
//!
//! Nothing here is async, knows a client or reads a clock; time comes in as a value. What lives here: the stored kinds ([`v1alpha1`],
//! [`v1beta1`]) with their schemas ([`schema`]) and definitions ([`crd`]), defaults ([`defaulting`]), conversion ([`conversion`]) and rules ([`validation`]); names ([`names`]);
//! machine codes ([`machine_code`]); the reviews of the API server ([`admission`]) and the webhooks that bring them ([`webhooks`]). What does not: anything that talks to a cluster or a cloud.

#![forbid(unsafe_code)]

// Under this name the samples of tests/limits know the crate, which are tests of this crate too.
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
