//! Google Compute Engine: the fields of its classes, the rules for them, and the driver that creates instances.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the Secrets
//! need. They apply to classes even if the driver runs in another process or the virtual cloud simulates GCE. With the feature `driver`,
//! [`GcpDriver`] makes requests to GCE: [`driver`] implements the trait, [`create`] and [`remove`] carry out what [`plan`] and [`lookup`] decide, with
//! the bodies of [`body`], the instances of [`search`] and the state of [`state`]. [`compute`] sends requests. [`login`] reads the credentials of a
//! Secret, and [`token`] makes or exchanges tokens for them.
//! Source: spec/providers §5, decisions.md 59 and 60; messages as in machine-controller-manager-provider-gcp.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod ask;
#[cfg(feature = "driver")]
mod body;
#[cfg(feature = "driver")]
mod compute;
#[cfg(feature = "driver")]
mod create;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod errors;
#[cfg(feature = "driver")]
mod login;
#[cfg(feature = "driver")]
mod lookup;
mod names;
#[cfg(feature = "driver")]
mod options;
#[cfg(feature = "driver")]
mod plan;
#[cfg(feature = "driver")]
mod remove;
#[cfg(feature = "driver")]
mod request_id;
#[cfg(feature = "driver")]
mod resources;
mod rules;
mod schema;
#[cfg(feature = "driver")]
mod search;
mod secret;
#[cfg(feature = "driver")]
mod spec;
#[cfg(feature = "driver")]
mod state;
#[cfg(feature = "driver")]
mod subject;
#[cfg(all(test, feature = "driver"))]
mod test_rig;
#[cfg(feature = "driver")]
mod token;
#[cfg(feature = "driver")]
mod waiting;
#[cfg(feature = "driver")]
mod zone;

#[cfg(feature = "driver")]
pub use driver::GcpDriver;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::GcpOptions;

/// The `provider` string of classes for GCE.
pub const GCP: &str = "GCP";

/// The rules for GCE classes.
pub static CLASSES: ClassRules = ClassRules::new(
    GCP,
    schema::provider_spec,
    |_, spec, path, found| rules::provider_spec(spec, path, found),
    secret::missing,
);
