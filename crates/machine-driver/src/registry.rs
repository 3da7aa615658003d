//! The driver for each `provider` string, and the providers whose classes can be checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{ClassRules, Code, Driver, SameInstance, Status, same_instance};
use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;

/// The drivers of this process by their `provider` strings, and the rules of classes whose drivers run elsewhere.
#[derive(Clone, Default)]
pub struct Registry {
    drivers: BTreeMap<String, Arc<dyn Driver>>,
    rules: BTreeMap<&'static str, &'static ClassRules>,
}

impl Registry {
    /// A registry without drivers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver for all its provider strings. It replaces earlier drivers of these strings.
    pub fn register(&mut self, driver: &Arc<dyn Driver>) {
        for provider in &driver.info().providers {
            self.drivers.insert(provider.clone(), Arc::clone(driver));
        }
    }

    /// Adds a driver under one of its provider strings.
    pub fn register_as(&mut self, provider: &str, driver: &Arc<dyn Driver>) {
        self.drivers.insert(provider.to_owned(), Arc::clone(driver));
    }

    /// Adds rules for the classes of a provider. If a driver serves the same string, the driver checks the classes instead.
    pub fn register_rules(&mut self, rules: &'static ClassRules) {
        self.rules.insert(rules.provider(), rules);
    }

    /// The driver of a class's `provider` string.
    ///
    /// # Errors
    /// `InvalidArgument` when no driver serves it; the text is a contract (spec/providers §1.6).
    pub fn driver_for(&self, provider: &str) -> Result<&Arc<dyn Driver>, Status> {
        self.drivers
            .get(provider)
            .ok_or_else(|| Status::new(Code::InvalidArgument, format!("no driver for provider '{provider}'")))
    }

    /// Whether the provider ids of a machine and of a Node name the same instance of this provider. For a provider without a driver
    /// here, the default of [`Driver::same_instance`] is used.
    pub fn same_instance(&self, provider: &str, machine: &str, node: &str) -> SameInstance {
        match self.drivers.get(provider) {
            Some(driver) => driver.same_instance(machine, node),
            None => same_instance::same_or_unknown(machine, node),
        }
    }

    /// All drivers, each once.
    pub fn drivers(&self) -> Vec<Arc<dyn Driver>> {
        let mut all: Vec<Arc<dyn Driver>> = Vec::new();
        for driver in self.drivers.values() {
            if !all.iter().any(|known| Arc::ptr_eq(known, driver)) {
                all.push(Arc::clone(driver));
            }
        }
        all
    }

    /// The provider strings served, sorted.
    pub fn providers(&self) -> Vec<&str> {
        self.drivers.keys().map(String::as_str).collect()
    }

    /// Whether a driver of this process serves the provider string.
    pub fn serves(&self, provider: &str) -> bool {
        self.drivers.contains_key(provider)
    }

    /// The provider strings with a driver or with known rules, whose classes can be checked. Sorted.
    pub fn judged_providers(&self) -> BTreeSet<&str> {
        self.drivers.keys().map(String::as_str).chain(self.rules.keys().copied()).collect()
    }

    /// The JSON Schema of a provider's `providerSpec`.
    pub fn schema(&self, provider: &str) -> Option<&Value> {
        match (self.drivers.get(provider), self.rules.get(provider)) {
            (Some(driver), _) => driver.info().schema.as_ref(),
            (None, Some(rules)) => Some(rules.schema()),
            (None, None) => None,
        }
    }

    /// Applies the provider's own rules to a class.
    pub fn validate_class(&self, provider: &str, class: &MachineClass, found: &mut Findings) {
        match (self.drivers.get(provider), self.rules.get(provider)) {
            (Some(driver), _) => driver.validate(class, found),
            (None, Some(rules)) => rules.validate(class, found),
            (None, None) => {}
        }
    }

    /// The keys that are missing for the provider in Secrets with these keys. With a driver that only simulates the provider, no key is missing.
    pub fn missing_in_secret(&self, provider: &str, keys: &BTreeSet<String>) -> Vec<&'static str> {
        let rules = self.rules.get(provider).copied();
        match self.drivers.get(provider) {
            Some(driver) => driver.missing_in_secret(rules, keys),
            None => rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default(),
        }
    }
}
