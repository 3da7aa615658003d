//! Values in the formats of Kubernetes.
//!
//! The crate has durations in Go's syntax ([`duration`]), quantities ([`quantity`]), numbers or percentages ([`int_or_percent`]), selectors
//! ([`selector`]), the syntax of names and labels ([`syntax`]), string enums that other programs may extend ([`string_enum!`]), field errors
//! ([`field`]) and borrowed JSON ([`json`]). Kinds and code that calls a cluster belong to other crates.

#![forbid(unsafe_code)]

pub mod duration;
pub mod field;
pub mod int_or_percent;
pub mod json;
pub mod quantity;
pub mod selector;
pub mod serde_helpers;
pub mod string_enum;
pub mod syntax;
pub mod uuid;
