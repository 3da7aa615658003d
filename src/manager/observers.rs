//! Observers that count the calls of the controllers' clients in metrics.

use controller_runtime::{
    clients::{Call, CallResult, ObserveCall},
    clock::{SharedClock, date_of},
};
use mcm_metrics::{Metrics, RestLatency, RestResult, url_pattern};

use crate::settings::RequestLatency;

/// Counts calls to Kubernetes APIs.
pub(super) struct CallMetrics {
    metrics: Metrics,
    latency: RequestLatency,
}

impl CallMetrics {
    pub(super) fn new(metrics: Metrics, latency: RequestLatency) -> Self {
        Self { metrics, latency }
    }
}

impl ObserveCall for CallMetrics {
    fn observe(&self, call: &Call<'_>) {
        let code = match call.result {
            CallResult::Answered(status) => status.as_u16().to_string(),
            CallResult::Failed => "<error>".to_owned(),
        };
        let rest = &self.metrics.rest_client;
        rest.requests.inc(&RestResult { code: &code, method: call.method.as_str(), host: call.host });
        if self.latency == RequestLatency::Measured {
            let url = url_pattern(&format!("https://{}", call.host), call.path);
            rest.latency.observe(&RestLatency { verb: call.method.as_str(), url: &url }, call.took);
        }
    }
}

/// Counts calls to the control cluster, and sets the clock of the process by the time of its API server.
pub(super) struct ControlCalls {
    metrics: CallMetrics,
    clock: SharedClock,
}

impl ControlCalls {
    pub(super) fn new(metrics: CallMetrics, clock: SharedClock) -> Self {
        Self { metrics, clock }
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use http::{Method, StatusCode};
    use rstest::rstest;
    use tokio::time::Instant;

    use super::*;
    use controller_runtime::clients::Purpose;

    #[rstest]
    #[case::pk_061_measured(RequestLatency::Measured, true)]
    #[case::pk_061_left_out(RequestLatency::LeftOut, false)]
    fn the_latency_of_requests_can_be_left_out(#[case] latency: RequestLatency, #[case] expected: bool) {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        CallMetrics::new(metrics.clone(), latency).observe(&Call {
            purpose: Purpose::Discovery,
            method: &Method::GET,
            host: "api:443",
            path: "/api/v1/nodes",
            result: CallResult::Answered(StatusCode::OK),
            took: Duration::from_millis(3),
            waited: Duration::ZERO,
            sent: Instant::now(),
            date: None,
        });
        let text = metrics.render().unwrap();
        assert!(text.contains("rest_client_requests_total{"), "{text}");
        assert_eq!(text.contains("rest_client_request_latency_seconds"), expected, "{text}");
    }
}
