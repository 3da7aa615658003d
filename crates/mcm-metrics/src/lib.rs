//! The metrics of the process: names, types, labels, and the text of `/metrics`.
//!
//! Contains metric names (a contract with dashboards and alerts of the original), typed families whose bounded label values are
//! enums, and the handle of work queues ([`QueueMetrics`]). Does not contain HTTP (`server/`), the decisions when to count, or
//! the gauges of single objects, which `machine-controllers` computes at each scrape. Nothing here is async or reads a clock:
//! the monotonic time comes from a [`Clock`]. Nothing is global, so that several managers can run in one process.
//!
//! Sources: spec/machine-controller §13.1, spec/deployment-and-set §18, spec/providers §2.1,
//! spec/api-and-admission §9.14, §11.7.

#![forbid(unsafe_code)]

mod catalogue;
mod driver;
mod family;
mod labels;
mod process;
mod queue;
mod rest_url;

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus::{Registry, TextEncoder, core::Collector};

pub use catalogue::*;
pub use family::{Counters, Family, FamilyKind, Gauges, Histograms, Label, LabelSet, LabelValue};
pub use labels::*;
pub use process::families as process_families;
pub use queue::{QueueMetrics, Waiting, Working};
pub use rest_url::url_pattern;

/// Monotonic time since any fixed moment, such as the start of the process. Only differences are used.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Content type of [`Metrics::render`].
pub const TEXT_CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// A metric could not be declared or written. This is always a defect of this program.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// All metrics of one manager. Clones share the same values.
#[derive(Clone)]
pub struct Metrics(Arc<Owned>);

struct Owned {
    registry: Registry,
    families: Vec<Family>,
    catalogue: Catalogue,
    queues: queue::Queues,
    /// Called before each scrape.
    refreshes: Mutex<Vec<Refresh>>,
}

/// Sets metrics whose values are read at a scrape.
type Refresh = Box<dyn Fn(&Catalogue) + Send + Sync>;

impl Metrics {
    /// Declares all metrics in a registry of their own.
    ///
    /// # Errors
    /// When two declarations clash.
    pub fn new(clock: Clock) -> Result<Self, MetricsError> {
        let declarations = family::Declarations::default();
        let catalogue = Catalogue::register(&declarations)?;
        let queues = queue::Queues::register(&declarations, clock)?;
        let family::Declarations { registry, families } = declarations;
        registry.register(Box::new(process::Process::new()))?;
        Ok(Self(Arc::new(Owned {
            registry,
            families: families.into_inner(),
            catalogue,
            queues,
            refreshes: Mutex::default(),
        })))
    }

    /// The families that this crate declares, in the order of their declarations. Collectors that others add are not among them.
    pub fn families(&self) -> &[Family] {
        &self.0.families
    }

    /// The handle through which the work queue of this name reports. Queues with the same name share their series.
    pub fn queue(&self, name: &str) -> QueueMetrics {
        self.0.queues.named(name)
    }

    /// Adds a collector, which is asked at every scrape, to the families of this crate.
    ///
    /// # Errors
    /// When it declares a family that exists already.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<(), MetricsError> {
        Ok(self.0.registry.register(Box::new(collector))?)
    }

    /// Calls `refresh` before each scrape, to set metrics that nothing changes at a known moment. It must not hold these metrics
    /// themselves: it would keep them for ever.
    pub fn before_scrapes(&self, refresh: impl Fn(&Catalogue) + Send + Sync + 'static) {
        self.0.refreshes.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(refresh));
    }

    /// All metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When a family cannot be written, for example because two collectors declare it with different types.
    pub fn render(&self) -> Result<String, MetricsError> {
        self.0.queues.refresh();
        for refresh in self.0.refreshes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            refresh(&self.0.catalogue);
        }
        Ok(TextEncoder::new().encode_to_string(&self.0.registry.gather())?)
    }
}

impl Deref for Metrics {
    type Target = Catalogue;

    fn deref(&self) -> &Catalogue {
        &self.0.catalogue
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

#[cfg(test)]
mod tests;
