//! Observers that count the calls of the controllers' clients in metrics.

use controller_runtime::{
    clients::{Call, CallResult, ObserveCall},
    clock::{SharedClock, date_of},
};
use mcm_metrics::{Metrics, RestLatency, RestResult, url_pattern};

/// Counts calls to Kubernetes APIs.
pub(super) struct CallMetrics(Metrics);

impl CallMetrics {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self(metrics)
    }
}

impl ObserveCall for CallMetrics {
    fn observe(&self, call: &Call<'_>) {
        let code = match call.result {
            CallResult::Answered(status) => status.as_u16().to_string(),
            CallResult::Failed => "<error>".to_owned(),
        };
        let rest = &self.0.rest_client;
        rest.requests.inc(&RestResult { code: &code, method: call.method.as_str(), host: call.host });
        let url = url_pattern(&format!("https://{}", call.host), call.path);
        rest.latency.observe(&RestLatency { verb: call.method.as_str(), url: &url }, call.took);
    }
}

/// Counts calls to the control cluster, and sets the clock of the process by the time of its API server.
pub(super) struct ControlCalls {
    metrics: CallMetrics,
    clock: SharedClock,
}

impl ControlCalls {
    pub(super) fn new(metrics: Metrics, clock: SharedClock) -> Self {
        Self { metrics: CallMetrics::new(metrics), clock }
    }
}

impl ObserveCall for ControlCalls {
    fn observe(&self, call: &Call<'_>) {
        if let Some(date) = call.date.and_then(|date| date.to_str().ok()).and_then(date_of) {
            self.clock.observe_date(date, call.sent);
        }
        self.metrics.observe(call);
    }
}
