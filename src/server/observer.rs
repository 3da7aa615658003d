//! Counts the connections of a listener in metrics and logs its requests.

use std::{net::SocketAddr, time::Duration};

use http::{Method, StatusCode};
use kube_listener::{Observer, Rejection, is_health};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::LogLimit;
use mcm_metrics::{self as metrics, Listener, Metrics, OfListener, Rejected};

/// Counts connections in metrics and logs requests without their bodies.
pub(super) struct ConnectionObserver {
    metrics: Metrics,
    listener: Listener,
    /// Limits the log lines of failed requests.
    failures: LogLimit,
}

impl ConnectionObserver {
    pub(super) fn new(metrics: Metrics, listener: Listener) -> Self {
        Self { metrics, listener, failures: LogLimit::default() }
    }
}

impl Observer for ConnectionObserver {
    fn opened(&self) {
        self.metrics.server.connections.add(&OfListener { listener: self.listener }, 1.0);
    }

    fn closed(&self) {
        self.metrics.server.connections.add(&OfListener { listener: self.listener }, -1.0);
    }

    fn rejected(&self, reason: Rejection) {
        let reason = match reason {
            Rejection::ConnectionLimit => metrics::Rejection::ConnectionLimit,
            Rejection::PeerConnectionLimit => metrics::Rejection::PeerConnectionLimit,
            Rejection::Handshake => metrics::Rejection::Handshake,
        };
        self.metrics.server.rejected.inc(&Rejected { listener: self.listener, reason });
    }

    fn answered(&self, peer: SocketAddr, method: &Method, path: &str, status: StatusCode, took: Duration) {
        let code = status.as_u16();
        // A health check that answers 500 has not failed: that is its answer.
        if status.is_server_error() && !is_health(path) {
            if let Some(held_back) = self.failures.permit(Instant::now()) {
                warn!(
                    %peer, operation = %method, path, code, took_ms = took.as_millis(), count = held_back,
                    "request failed"
                );
            }
        } else {
            debug!(%peer, operation = %method, path, code, took_ms = took.as_millis(), "request");
        }
    }
}
