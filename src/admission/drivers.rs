//! The drivers' own rules over classes, as admission asks for them.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    api::{
        field::Findings,
        v1alpha1::MachineClass,
        validation::{Coverage, Providers},
    },
    driver::Registry,
};

/// The drivers of this process.
#[derive(Clone)]
pub struct RegisteredDrivers {
    registry: Registry,
    coverage: Coverage,
}

impl RegisteredDrivers {
    /// These drivers; `coverage` says whether they are all the cluster has.
    pub const fn new(registry: Registry, coverage: Coverage) -> Self {
        Self { registry, coverage }
    }
}

impl Providers for RegisteredDrivers {
    fn names(&self) -> Vec<&str> {
        self.registry.providers()
    }

    fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Asks the driver, if the class can be read at all. What keeps it from being read has been found by its type.
    fn check(&self, provider: &str, class: &Value, found: &mut Findings) {
        if let (Ok(driver), Ok(class)) = (self.registry.driver_for(provider), MachineClass::deserialize(class)) {
            driver.validate(&class, found);
        }
    }
}
