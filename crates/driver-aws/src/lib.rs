//! Amazon EC2: the shape of its classes and the rules over them.
//!
//! [`schema`] says which fields a `providerSpec` has and of which types, [`rules`] what must hold between them, [`secret`]
//! what the Secrets must contain. Nothing here talks to EC2: the calls of a driver are not part of this program, so that
//! classes of provider `AWS` are judged here and served elsewhere, or impersonated by the virtual cloud.
//! Source: spec/providers §3.1, §3.2; messages are those of machine-controller-manager-provider-aws.

#![forbid(unsafe_code)]

mod rules;
mod schema;
mod secret;

use std::{collections::BTreeSet, sync::LazyLock};

use machine_driver::ClassRules;
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

/// The rules over classes for EC2.
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
