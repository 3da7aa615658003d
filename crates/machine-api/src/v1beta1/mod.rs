//! The kinds in version `v1beta1` (spec/api-and-admission §8.2).
//!
//! By default no object is stored in this version: [`super::conversion`] converts stored objects to this version and back. Data that the older
//! version has in one string or in a flat structure has its own field here. Data that only the older version has is in an annotation, so that nothing
//! is lost.

mod common;
mod machine;
mod machine_class;
mod machine_deployment;
mod machine_set;

pub use common::*;
pub use machine::*;
pub use machine_class::*;
pub use machine_deployment::*;
pub use machine_set::*;
