//! The drivers' own rules over classes, as admission asks for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use kube_values::{field::Findings, json::Json};
use machine_api::{
    v1alpha1::MachineClass,
    validation::{Coverage, ProviderSchema, Providers},
};
use machine_driver::Registry;

/// The drivers of this process, with their schemas compiled.
#[derive(Clone)]
pub struct RegisteredDrivers {
    registry: Registry,
    coverage: Coverage,
    schemas: Arc<BTreeMap<String, OnceLock<Option<ProviderSchema>>>>,
}

impl RegisteredDrivers {
    /// These drivers; `coverage` says whether they are all the cluster has. A schema that can't be compiled is left out
    /// and told in the log: classes of that provider are then judged by its other rules alone.
    pub fn new(registry: Registry, coverage: Coverage) -> Self {
        let providers = registry.judged_providers().into_iter();
        let schemas = providers.map(|provider| (provider.to_owned(), OnceLock::new())).collect();
        let drivers = Self { registry, coverage, schemas: Arc::new(schemas) };
        for provider in drivers.schemas.keys() {
            drivers.compiled(provider);
        }
        drivers
    }

    /// The schema of a provider. A driver in another process tells it when it is connected: the first one told is compiled, and counts.
    fn compiled(&self, provider: &str) -> Option<&ProviderSchema> {
        let place = self.schemas.get(provider)?;
        if place.get().is_none() {
            let told = self.registry.schema(provider)?;
            let compiled = ProviderSchema::compile(told).inspect_err(|error| {
                tracing::error!(provider, error, "the driver's schema of providerSpec can't be used");
            });
            // Two requests at once compile the same.
            let _ = place.set(compiled.ok());
        }
        place.get()?.as_ref()
    }
}

impl Providers for RegisteredDrivers {
    fn names(&self) -> Vec<&str> {
        self.registry.judged_providers().into_iter().collect()
    }

    fn coverage(&self) -> Coverage {
        self.coverage
    }

    fn serves(&self, provider: &str) -> bool {
        self.registry.serves(provider)
    }

    fn schema(&self, provider: &str) -> Option<&ProviderSchema> {
        self.compiled(provider)
    }

    fn missing_in_secret(&self, provider: &str, keys: &BTreeSet<String>) -> Vec<&'static str> {
        self.registry.missing_in_secret(provider, keys)
    }

    /// Asks the driver, if the class can be read at all. What keeps it from being read has been found by its type.
    fn check(&self, provider: &str, class: &Json<'_>, found: &mut Findings) {
        if let Ok(class) = serde_json::from_value::<MachineClass>(class.to_value()) {
            self.registry.validate_class(provider, &class, found);
        }
    }
}
