//! Schema and rules of a provider's classes. They need no cloud.

use std::{collections::BTreeSet, sync::LazyLock};

use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};
use machine_api::{
    v1alpha1::MachineClass,
    validation::{Node, as_go_reads},
};
use serde_json::Value;

/// The rules for the `providerSpec` of a class: of the class, the spec as the Go original reads it, and its path. They do no I/O.
pub type SpecRules = fn(&MachineClass, Node<'_>, &FieldPath, &mut Findings);

/// The keys that Secrets of a class lack, of the keys with a value that is not blank. The texts name keys, never values.
pub type MissingKeys = fn(&BTreeSet<String>) -> Vec<&'static str>;

/// Rules for the classes of one provider. A process can have them without a driver for that provider, for the admission of classes
/// whose drivers run elsewhere.
pub struct ClassRules {
    provider: &'static str,
    schema: LazyLock<Value>,
    rules: SpecRules,
    missing: MissingKeys,
}

impl ClassRules {
    /// The rules for classes with this `provider` string. `schema` makes the JSON Schema (2020-12) of `providerSpec`: types only. A property with the
    /// same meaning as a field of the class's `nodeTemplate` names that field with `x-node-template`.
    pub const fn new(provider: &'static str, schema: fn() -> Value, rules: SpecRules, missing: MissingKeys) -> Self {
        Self { provider, schema: LazyLock::new(schema), rules, missing }
    }

    /// The `provider` string of the classes.
    pub const fn provider(&self) -> &'static str {
        self.provider
    }

    /// JSON Schema (2020-12) of `providerSpec`.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// The `providerSpec` of a class with the fields as the Go original reads them, for example with names in another case.
    pub fn as_go_reads(&self, class: &MachineClass) -> Value {
        as_go_reads(&self.schema, &class.provider_spec)
    }

    /// Checks a class without I/O; paths start at `providerSpec`.
    pub fn validate(&self, class: &MachineClass, found: &mut Findings) {
        let spec = self.as_go_reads(class);
        (self.rules)(class, Node::of(&Json::from(&spec)), &FieldPath::new("providerSpec"), found);
    }

    /// The missing keys in the Secrets of a class. `keys` are the keys with a value that is not blank. Texts name keys, never values.
    pub fn missing_in_secret(&self, keys: &BTreeSet<String>) -> Vec<&'static str> {
        (self.missing)(keys)
    }
}
