//! Machines as pods: the fields of their classes, the rules for them, and the driver that creates pods.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the Secrets
//! need. They apply to classes even if the driver runs in another process. With the feature `driver`, [`LocalDriver`] makes pods: [`driver`]
//! implements the trait and sends what [`plan`] decides. [`subject`] has the names and labels of a machine's objects, [`objects`] their content, and
//! [`template`] the part of the pod that operators choose. [`clusters`] selects the cluster with the pods, and [`requests`] sends the requests.
//! Source: spec/providers §8, wire-compatible with the machine provider of Gardener's provider-local.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod clusters;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod errors;
#[cfg(feature = "driver")]
mod objects;
#[cfg(feature = "driver")]
mod plan;
#[cfg(feature = "driver")]
mod requests;
mod rules;
mod schema;
mod secret;
#[cfg(feature = "driver")]
mod spec;
#[cfg(feature = "driver")]
mod subject;
#[cfg(feature = "driver")]
mod template;
#[cfg(all(test, feature = "driver"))]
mod test_rig;

#[cfg(feature = "driver")]
pub use clusters::ControlCluster;
#[cfg(feature = "driver")]
pub use driver::{LocalDriver, LocalOptions};
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use template::{InvalidTemplate, PodTemplate};

/// The `provider` string of classes whose machines are pods.
pub const LOCAL: &str = "local";

/// The rules for classes whose machines are pods.
pub static CLASSES: ClassRules = ClassRules::new(
    LOCAL,
    schema::provider_spec,
    |class, spec, path, found| rules::provider_spec(spec, rules::Home::of(class), path, found),
    secret::missing,
);
