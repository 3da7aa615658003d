//! The vocabulary of the program: the kinds, every name the system uses, and the pure rules over them.
//!
//! Ground floor. Nothing here is async, knows a client or reads a clock; time comes in as a value. What lives here:
//! the stored kinds ([`v1alpha1`]), names ([`names`]), what was read of an object ([`json`]), machine codes ([`machine_code`]), Go-style
//! values ([`duration`], [`int_or_percent`]) and field errors ([`field`]). What does not: anything that talks to a cluster (`cluster/`)
//! or a cloud (`driver/`).

pub mod conversion;
pub mod crd;
pub mod defaulting;
pub mod duration;
pub mod field;
pub mod int_or_percent;
pub mod json;
pub mod kind;
pub mod machine_code;
pub mod names;
pub mod quantity;
pub mod selector;
pub mod serde_helpers;
pub mod string_enum;
pub mod v1alpha1;
pub mod v1beta1;
pub mod validation;
