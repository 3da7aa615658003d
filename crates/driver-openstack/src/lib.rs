//! `OpenStack`: the fields of its classes, the rules for them, and the driver that creates servers.
//!
//! [`schema`] has the fields of a `providerSpec` and their types, [`rules`] the conditions between them, and [`secret`] the keys that the Secrets
//! need. They apply to classes even if the driver runs in another process or the virtual cloud simulates `OpenStack`. With the feature `driver`,
//! [`OpenStackDriver`] makes requests to the services: [`driver`] implements the trait. [`create`], [`ports`] and [`remove`] carry out the decisions
//! of [`lookup`] and [`plan`], with the state of [`memory`] and the bodies of [`bodies`]. [`cloud`] logs in and sends requests, and [`nova`],
//! [`neutron`] and [`storage`] have one function for each request. [`ask`] checks that the names and ids in a class exist.
//! Source: spec/providers §6, decisions.md 55, 58 and 59; messages are those of machine-controller-manager-provider-openstack.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod ask;
#[cfg(feature = "driver")]
mod bodies;
#[cfg(feature = "driver")]
mod cloud;
#[cfg(feature = "driver")]
mod create;
#[cfg(feature = "driver")]
mod driver;
#[cfg(feature = "driver")]
mod errors;
#[cfg(all(test, feature = "driver"))]
mod fake_cloud;
#[cfg(feature = "driver")]
mod keystone;
#[cfg(feature = "driver")]
mod login;
#[cfg(feature = "driver")]
mod lookup;
#[cfg(feature = "driver")]
mod memory;
#[cfg(feature = "driver")]
mod neutron;
#[cfg(feature = "driver")]
mod nova;
#[cfg(feature = "driver")]
mod options;
#[cfg(feature = "driver")]
mod plan;
#[cfg(feature = "driver")]
mod ports;
#[cfg(feature = "driver")]
mod remove;
mod rules;
mod schema;
mod secret;
#[cfg(feature = "driver")]
mod spec;
#[cfg(feature = "driver")]
mod state;
#[cfg(feature = "driver")]
mod storage;
#[cfg(feature = "driver")]
mod subject;
#[cfg(all(test, feature = "driver"))]
mod test_rig;

#[cfg(feature = "driver")]
pub use driver::OpenStackDriver;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::{MachineStatus, OpenStackOptions};

/// The `provider` string of classes for `OpenStack`.
pub const OPENSTACK: &str = "OpenStack";
/// The `apiVersion` of a `providerSpec`.
pub const API_VERSION: &str = "openstack.machine.gardener.cloud/v1alpha1";
/// The `kind` of a `providerSpec`.
pub const KIND: &str = "MachineProviderConfig";

/// The rules for `OpenStack` classes.
pub static CLASSES: ClassRules = ClassRules::new(
    OPENSTACK,
    schema::provider_spec,
    |_, spec, path, found| rules::provider_spec(spec, path, found),
    secret::missing,
);
