//! Health of the extension server, on the TLS port. The pod's own probe asks another port and other checks.
//!
//! Source: spec/extension-apiserver §2.12.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{authentication::config::AuthConfig, reachability::Reachability};
use crate::server::Health;
use kube_protocol::health::CheckState;

/// The endpoints.
pub const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];

/// What health is told by.
pub struct Checks {
    /// The checks of the process.
    pub health: Health,
    /// Whether the API server answers.
    pub reachability: Reachability,
    /// Whom to trust.
    pub config: Arc<ArcSwap<AuthConfig>>,
}

impl Checks {
    /// The checks of an endpoint; `caches` says why views can't be computed yet, if they can't. Nothing that a restart would not help makes a process look dead.
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
