//! Microsoft Azure: the fields of its classes, the rules for them, and the driver that creates virtual machines.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the Secrets
//! need. They apply to classes even if the driver runs in another process or the virtual cloud simulates Azure. With the feature `driver`,
//! [`AzureDriver`] makes requests to Azure: [`driver`] implements the trait, [`create`] and [`remove`] carry out what [`plan`] decides, with the
//! bodies of [`body`], the queries of [`graph`] and the state of [`state`]. [`arm`] sends the requests of [`api`] and follows their operations, about
//! which [`lro`] decides. [`login`] reads the credentials of a Secret, and [`token`] requests tokens for them.
//! Source: spec/providers §4, decisions.md 59; messages as in machine-controller-manager-provider-azure.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod api;
#[cfg(feature = "driver")]
mod arm;
#[cfg(feature = "driver")]
mod ask;
#[cfg(feature = "driver")]
mod body;
#[cfg(feature = "driver")]
mod create;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod errors;
#[cfg(feature = "driver")]
mod graph;
#[cfg(feature = "driver")]
mod login;
#[cfg(feature = "driver")]
mod lro;
mod names;
#[cfg(feature = "driver")]
mod options;
#[cfg(feature = "driver")]
mod plan;
#[cfg(feature = "driver")]
mod remove;
#[cfg(feature = "driver")]
mod resources;
mod rules;
mod schema;
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
pub use driver::AzureDriver;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::AzureOptions;

/// The `provider` string of classes for Azure.
pub const AZURE: &str = "Azure";

/// The rules for Azure classes.
pub static CLASSES: ClassRules = ClassRules::new(
    AZURE,
    schema::provider_spec,
    |_, spec, path, found| rules::provider_spec(spec, path, found),
    secret::missing,
);
