//! Which driver serves which `provider` string.

use std::{collections::BTreeMap, sync::Arc};

use super::{Code, Driver, Status};

/// The drivers of this process, by the `provider` strings they serve.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<String, Arc<dyn Driver>>);

impl Registry {
    /// No drivers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a driver under all its provider strings; a later driver takes over strings of an earlier one.
    pub fn register(&mut self, driver: &Arc<dyn Driver>) {
        for provider in &driver.info().providers {
            self.0.insert(provider.clone(), Arc::clone(driver));
        }
    }

    /// Adds a driver under one of its provider strings.
    pub fn register_as(&mut self, provider: &str, driver: &Arc<dyn Driver>) {
        self.0.insert(provider.to_owned(), Arc::clone(driver));
    }

    /// The driver of a class's `provider` string.
    ///
    /// # Errors
    /// `InvalidArgument` when no driver serves it; the text is a contract (spec/providers §1.6).
    pub fn driver_for(&self, provider: &str) -> Result<&Arc<dyn Driver>, Status> {
        self.0
            .get(provider)
            .ok_or_else(|| Status::new(Code::InvalidArgument, format!("no driver for provider '{provider}'")))
    }

    /// The provider strings served, sorted.
    pub fn providers(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}
