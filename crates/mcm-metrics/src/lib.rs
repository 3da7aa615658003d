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
mod queue;
mod rest_url;

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use prometheus::{Registry, TextEncoder, core::Collector, process_collector::ProcessCollector};

pub use catalogue::*;
pub use family::{Counters, Gauges, Histograms, LabelSet, LabelValue};
pub use labels::*;
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
    catalogue: Catalogue,
    queues: queue::Queues,
}

impl Metrics {
    /// Declares all metrics in a registry of their own.
    ///
    /// # Errors
    /// When two declarations clash.
    pub fn new(clock: Clock) -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let catalogue = Catalogue::register(&registry)?;
        let queues = queue::Queues::register(&registry, clock)?;
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        registry.register(Box::new(ProcessCollector::new(pid, "")))?;
        Ok(Self(Arc::new(Owned { registry, catalogue, queues })))
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

    /// All metrics in the Prometheus text format.
    ///
    /// # Errors
    /// When a family cannot be written, for example because two collectors declare it with different types.
    pub fn render(&self) -> Result<String, MetricsError> {
        self.0.queues.refresh();
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
