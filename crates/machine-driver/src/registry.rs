//! Which driver serves which `provider` string, and whose classes can be judged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{ClassRules, Code, Driver, SameInstance, Status, same_instance};
use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;

/// The drivers of this process, by the `provider` strings they serve, and rules over classes that are served elsewhere.
#[derive(Clone, Default)]
pub struct Registry {
    drivers: BTreeMap<String, Arc<dyn Driver>>,
    rules: BTreeMap<String, Arc<dyn ClassRules>>,
}

impl Registry {
    /// No drivers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver under all its provider strings; a later driver takes over strings of an earlier one.
    pub fn register(&mut self, driver: &Arc<dyn Driver>) {
        for provider in &driver.info().providers {
            self.drivers.insert(provider.clone(), Arc::clone(driver));
        }
    }

    /// Adds a driver under one of its provider strings.
    pub fn register_as(&mut self, provider: &str, driver: &Arc<dyn Driver>) {
        self.drivers.insert(provider.to_owned(), Arc::clone(driver));
    }

    /// Adds rules over the classes of a provider. A driver that serves the same string judges its classes itself.
    pub fn register_rules(&mut self, rules: &Arc<dyn ClassRules>) {
        self.rules.insert(rules.provider().to_owned(), Arc::clone(rules));
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

    /// Whether a machine's provider id and a Node's name the same instance of this provider; a provider that nobody here
    /// serves is judged as a driver without a word of its own.
    pub fn same_instance(&self, provider: &str, machine: &str, node: &str) -> SameInstance {
        match self.drivers.get(provider) {
            Some(driver) => driver.same_instance(machine, node),
            None => same_instance::unless_they_differ(machine, node),
        }
    }

    /// The drivers, each once.
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

    /// The provider strings whose classes can be judged: those served and those of which the rules are known. Sorted.
    pub fn judged_providers(&self) -> BTreeSet<&str> {
        self.drivers.keys().chain(self.rules.keys()).map(String::as_str).collect()
    }

    /// The JSON Schema of a provider's `providerSpec`.
    pub fn schema(&self, provider: &str) -> Option<&Value> {
        match (self.drivers.get(provider), self.rules.get(provider)) {
            (Some(driver), _) => driver.info().schema.as_ref(),
            (None, Some(rules)) => Some(rules.schema()),
            (None, None) => None,
        }
    }

    /// Runs the provider's own rules over a class.
    pub fn validate_class(&self, provider: &str, class: &MachineClass, found: &mut Findings) {
        match (self.drivers.get(provider), self.rules.get(provider)) {
            (Some(driver), _) => driver.validate(class, found),
            (None, Some(rules)) => rules.validate(class, found),
            (None, None) => {}
        }
    }

    /// What the provider misses in Secrets with these keys. A driver that impersonates the provider misses nothing.
    pub fn missing_in_secret(&self, provider: &str, keys: &BTreeSet<String>) -> Vec<&'static str> {
        let rules = self.rules.get(provider).map(|rules| &**rules);
        match self.drivers.get(provider) {
            Some(driver) => driver.missing_in_secret(rules, keys),
            None => rules.map(|rules| rules.missing_in_secret(keys)).unwrap_or_default(),
        }
    }
}
