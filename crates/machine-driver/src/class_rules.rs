//! What is known of a provider's classes without a cloud: their schema and their rules.

use std::collections::BTreeSet;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use serde_json::Value;

/// Rules over the classes of one provider. A process can have them without a driver for that provider: admission in front
/// of drivers that run elsewhere.
pub trait ClassRules: Send + Sync + 'static {
    /// The `provider` string of the classes.
    fn provider(&self) -> &'static str;

    /// JSON Schema (2020-12) of `providerSpec`: types only. A property that says the same as a field of the class's
    /// `nodeTemplate` names that field with `x-node-template`.
    fn schema(&self) -> &Value;

    /// Checks a class without I/O; paths start at `providerSpec`.
    fn validate(&self, class: &MachineClass, found: &mut Findings);

    /// What is missing in the Secrets of a class that hold values that are not blank under these keys. Texts name keys,
    /// never values.
    fn missing_in_secret(&self, keys: &BTreeSet<String>) -> Vec<&'static str>;
}
