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

use std::{collections::BTreeSet, sync::LazyLock};

#[cfg(feature = "driver")]
pub use driver::AwsDriver;
#[cfg(feature = "driver")]
pub use errors::ErrorCodes;
use machine_driver::ClassRules;
#[cfg(feature = "driver")]
pub use options::{AwsOptions, OwnIdentity};
#[cfg(feature = "driver")]
pub use regions::Variant;
use serde_json::Value;

use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};
use machine_api::{
    v1alpha1::MachineClass,
    validation::{Node, as_go_reads},
};

/// The `provider` string of classes for EC2.
pub const AWS: &str = "AWS";

static SCHEMA: LazyLock<Value> = LazyLock::new(schema::provider_spec);

/// The rules for EC2 classes.
#[derive(Clone, Copy, Debug, Default)]
pub struct AwsClasses;

impl ClassRules for AwsClasses {
    fn provider(&self) -> &'static str {
        AWS
    }

    fn schema(&self) -> &Value {
        &SCHEMA
    }

    fn validate(&self, class: &MachineClass, found: &mut Findings) {
        let spec = as_go_reads(&SCHEMA, &class.provider_spec);
        rules::provider_spec(Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), found);
    }

    fn missing_in_secret(&self, keys: &BTreeSet<String>) -> Vec<&'static str> {
        secret::missing(keys)
    }
}
