//! Values as Kubernetes spells them.
//!
//! What lives here: Go-style durations ([`duration`]), quantities ([`quantity`]), counts or percentages ([`int_or_percent`]), selectors
//! ([`selector`]) and the syntax of names and labels ([`syntax`]), enums over words that other writers may extend ([`string_enum!`]),
//! field errors ([`field`]) and JSON as it stands in its text ([`json`]). What does not: any kind, and anything that talks to a cluster.

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
