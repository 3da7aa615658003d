//! The values of the chart for metrics: monitors and dashboards. Those for alerts are in [`super::alert_values`].

use schemars::JsonSchema;
use serde::Serialize;

use super::values::Texts;
use crate::observability::{dashboards::DashboardOptions, rules::DEFAULT_JOB};

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Metrics {
    /// Value of the label "job" of the scrapes. The monitors set it, and the alerts select by it. Several managers need several values
    #[schemars(regex(pattern = r#"^[^\s"'{}\\$]+$"#))]
    job: String,
    /// A `PodMonitor`
    pod_monitor: Monitor,
    /// A `ServiceMonitor`, and a Service for it
    service_monitor: Monitor,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { job: DEFAULT_JOB.to_owned(), pod_monitor: Monitor::default(), service_monitor: Monitor::default() }
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Monitor {
    /// Whether it is installed. It needs the definitions of the Prometheus operator
    enabled: bool,
    /// Period between two scrapes
    #[schemars(regex(pattern = r"^[0-9]+(ms|s|m|h)$"))]
    interval: String,
    /// Labels by which a Prometheus selects it
    labels: Texts,
}

impl Default for Monitor {
    fn default() -> Self {
        Self { enabled: false, interval: "30s".to_owned(), labels: Texts::new() }
    }
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Dashboards {
    /// Whether a `ConfigMap` for each dashboard is installed
    enabled: bool,
    /// Labels by which the sidecar finds the dashboards
    labels: Texts,
}

impl Default for Dashboards {
    fn default() -> Self {
        let label = DashboardOptions::default().label;
        Self { enabled: false, labels: Texts::from([(label.key, label.value)]) }
    }
}
