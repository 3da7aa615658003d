//! Health of the extension API server, on the TLS port. The probe of the pod uses another port and other checks.
//!
//! Source: spec/extension-apiserver §2.12.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{authentication::config::AuthConfig, reachability::Reachability};
use crate::server::Health;
use kube_protocol::health::CheckState;

/// The sources of the health checks.
pub struct Checks {
    /// The checks of the process.
    pub health: Health,
    /// Whether the API server of the control cluster answers.
    pub reachability: Reachability,
    /// The present trust configuration.
    pub config: Arc<ArcSwap<AuthConfig>>,
}

impl Checks {
    /// The checks of an endpoint. `caches` returns the reason why views can't be computed yet, if there is one. A failure that a
    /// restart would not mend affects `readyz` alone.
    pub fn of(&self, endpoint: &str, caches: impl FnOnce() -> Option<String>) -> Vec<CheckState> {
        let check = |name, failure| CheckState { name, failure };
        let mut checks =
            vec![check("ping", None), check("log", None), check("serving-cert", self.health.failure_of("certificate"))];
        if endpoint == "readyz" {
            let proxy = self.config.load().usable_front_proxy().err().map(str::to_owned);
            checks.extend([
                check("requestheader-ca", proxy),
                check("informer-sync", caches()),
                check("control-api", self.reachability.failure()),
                check("shutdown", self.health.failure_of("shutdown")),
            ]);
        }
        checks
    }
}
