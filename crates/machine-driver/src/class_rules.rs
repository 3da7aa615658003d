//! Schema and rules of a provider's classes. They need no cloud.

use std::collections::BTreeSet;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use serde_json::Value;

/// Rules for the classes of one provider. A process can have them without a driver for that provider, for the admission of classes
/// whose drivers run elsewhere.
pub trait ClassRules: Send + Sync + 'static {
    /// The `provider` string of the classes.
    fn provider(&self) -> &'static str;

    /// JSON Schema (2020-12) of `providerSpec`: types only. A property with the same meaning as a field of the class's
    /// `nodeTemplate` names that field with `x-node-template`.
    fn schema(&self) -> &Value;

    /// Checks a class without I/O; paths start at `providerSpec`.
    fn validate(&self, class: &MachineClass, found: &mut Findings);

    /// The missing keys in the Secrets of a class. `keys` are the keys with a value that is not blank. Texts name keys, never values.
    fn missing_in_secret(&self, keys: &BTreeSet<String>) -> Vec<&'static str>;
}
