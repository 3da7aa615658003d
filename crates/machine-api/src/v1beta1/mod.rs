//! The kinds in version `v1beta1` (spec/api-and-admission §8.2).
//!
//! Nothing is stored in this version by default: [`super::conversion`] makes these objects from the stored ones and back.
//! What the older version said in one string or hid in a flat structure has a field of its own here; what exists only
//! there is carried in an annotation, so that nothing is lost on the way.

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
