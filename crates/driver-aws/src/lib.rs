//! Amazon EC2: the fields of its classes, the rules for them, and the driver that creates instances.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the
//! Secrets need. They apply to classes even if the driver runs in another process or the virtual cloud simulates EC2. With the feature
//! `driver`, [`AwsDriver`] makes requests to EC2: [`driver`] carries out what [`lookup`] and [`launch`] decide, [`ec2`] signs and sends
//! requests, [`actions`] writes requests and reads answers, and [`ask`] asks EC2 whether a class can be launched.
//! Source: spec/providers §3; messages are those of machine-controller-manager-provider-aws.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod actions;
#[cfg(feature = "driver")]
mod ask;
#[cfg(feature = "driver")]
mod credentials;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod ec2;
#[cfg(feature = "driver")]
mod errors;
#[cfg(all(test, feature = "driver"))]
mod fake_ec2;
#[cfg(feature = "driver")]
mod invisible;
#[cfg(feature = "driver")]
mod launch;
#[cfg(feature = "driver")]
mod lookup;
#[cfg(feature = "driver")]
mod memory;
#[cfg(feature = "driver")]
mod options;
#[cfg(feature = "driver")]
mod query;
#[cfg(feature = "driver")]
mod recent;
mod regions;
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
mod xml;

#[cfg(feature = "driver")]
pub use driver::AwsDriver;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::{AwsOptions, OwnIdentity};
#[cfg(feature = "driver")]
pub use regions::Variant;

/// The `provider` string of classes for EC2.
pub const AWS: &str = "AWS";

/// The rules for EC2 classes.
pub static CLASSES: ClassRules = ClassRules::new(
    AWS,
    schema::provider_spec,
    |_, spec, path, found| rules::provider_spec(spec, path, found),
    secret::missing,
);
