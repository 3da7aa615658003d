//! The class rules of the drivers, in the form that admission needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use controller_runtime::lock;
use kube_values::{field::Findings, json::Json};
use machine_api::{
    v1alpha1::MachineClass,
    validation::{Coverage, ProviderSchema, Providers},
};
use machine_driver::Registry;
use serde_json::Value;

/// The drivers of this process, with their schemas compiled.
#[derive(Clone)]
pub struct RegisteredDrivers {
    registry: Registry,
    coverage: Coverage,
    schemas: Arc<Mutex<BTreeMap<String, Compiled>>>,
}

/// A driver's schema and its compiled form, if it can be compiled.
struct Compiled {
    source: Value,
    schema: Option<Arc<ProviderSchema>>,
}

impl RegisteredDrivers {
    /// These drivers; `coverage` says whether they are all drivers of the cluster. A schema that can't be compiled is logged and left
    /// out: only the other rules of its provider then apply.
    pub fn new(registry: Registry, coverage: Coverage) -> Self {
        let drivers = Self { registry, coverage, schemas: Arc::default() };
        for provider in drivers.registry.judged_providers() {
            drivers.compiled(provider);
        }
        drivers
    }

    /// The schema of a provider. A driver in another process sends its schema when it is connected, and may send another one with a
    /// later connection.
    fn compiled(&self, provider: &str) -> Option<Arc<ProviderSchema>> {
        let source = self.registry.schema(provider)?;
        let mut schemas = lock(&self.schemas);
        if let Some(compiled) = schemas.get(provider).filter(|compiled| compiled.source == *source) {
            return compiled.schema.clone();
        }
        let schema = ProviderSchema::compile(source).inspect_err(|error| {
            tracing::error!(provider, error, "the driver's schema of providerSpec can't be used");
        });
        let compiled = Compiled { source: source.clone(), schema: schema.ok().map(Arc::new) };
        schemas.entry(provider.to_owned()).insert_entry(compiled).get().schema.clone()
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

    fn schema(&self, provider: &str) -> Option<Arc<ProviderSchema>> {
        self.compiled(provider)
    }

    fn missing_in_secret(&self, provider: &str, keys: &BTreeSet<String>) -> Vec<&'static str> {
        self.registry.missing_in_secret(provider, keys)
    }

    /// Runs the driver's rules if the class can be decoded. If it can't be decoded, the rules for its types find the reason.
    fn check(&self, provider: &str, class: &Json<'_>, found: &mut Findings) {
        if let Ok(class) = serde_json::from_value::<MachineClass>(class.to_value()) {
            self.registry.validate_class(provider, &class, found);
        }
    }
}
