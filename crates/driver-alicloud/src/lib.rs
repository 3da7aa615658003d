//! Alibaba Cloud ECS: the fields of its classes, the rules for them, and the driver that creates instances.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the Secrets
//! need. They apply to classes even if the driver runs in another process or the virtual cloud simulates ECS. With the feature `driver`,
//! [`AlicloudDriver`] makes requests to ECS: [`driver`] implements the trait, [`create`] and [`remove`] carry out what [`lookup`] decides, and
//! [`launch`] makes the request for an instance. [`ecs`] sends requests, [`actions`] has their parameters and answers, [`query`] and [`sign`] write
//! them as Alibaba Cloud's own client does.
//! Source: machine-controller-manager-provider-alicloud for fields, messages, provider ids and names of Nodes; decisions.md 59 and 60.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod actions;
#[cfg(feature = "driver")]
mod ask;
#[cfg(feature = "driver")]
mod create;
#[cfg(feature = "driver")]
mod credentials;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod ecs;
#[cfg(feature = "driver")]
mod errors;
#[cfg(feature = "driver")]
mod launch;
#[cfg(feature = "driver")]
mod lookup;
mod names;
#[cfg(feature = "driver")]
mod options;
#[cfg(feature = "driver")]
mod query;
#[cfg(feature = "driver")]
mod remove;
mod rules;
mod schema;
mod secret;
#[cfg(feature = "driver")]
mod sign;
#[cfg(feature = "driver")]
mod spec;
#[cfg(feature = "driver")]
mod state;
#[cfg(feature = "driver")]
mod subject;
#[cfg(all(test, feature = "driver"))]
mod test_rig;

#[cfg(feature = "driver")]
pub use driver::AlicloudDriver;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::AlicloudOptions;

/// The `provider` string of classes for Alibaba Cloud.
pub const ALICLOUD: &str = "Alicloud";

/// The rules for classes of Alibaba Cloud.
pub static CLASSES: ClassRules = ClassRules::new(
    ALICLOUD,
    schema::provider_spec,
    |_, spec, path, found| rules::provider_spec(spec, path, found),
    secret::missing,
);
