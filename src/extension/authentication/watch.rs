//! Keeps [`AuthConfig`] equal to the `ConfigMap`: watches this one object, and reads it once a minute too.
//!
//! The watch is kube's own: the watches of the controllers keep stores of all objects of a kind, and this process may read one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::config::{AuthConfig, Complaint};
use crate::extension::reachability::Reachability;
use controller_runtime::{error::ApiError, objects::call};
use mcm_metrics::{AuthConfigPart, Metrics};

/// Namespace of the `ConfigMap` with the trust configuration for extension API servers.
pub const NAMESPACE: &str = "kube-system";
/// Name of this `ConfigMap`.
pub const NAME: &str = "extension-apiserver-authentication";

/// Time between reads beside the watch.
const PERIOD: Duration = Duration::from_secs(60);

/// Keeps the configuration up to date.
pub struct ConfigWatcher {
    /// Reads the `ConfigMap`.
    pub client: Client,
    /// The present configuration. It is replaced as a whole.
    pub config: Arc<ArcSwap<AuthConfig>>,
    /// Counts keys that can't be used.
    pub metrics: Metrics,
    /// Is confirmed by each answer.
    pub reachability: Reachability,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl ConfigWatcher {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut events = watch_object(api.clone(), NAME).default_backoff().boxed();
        let mut period = tokio::time::interval(PERIOD);
        let mut reported = Vec::new();
        let mut is_reported = false;
        loop {
            let found = tokio::select! {
                () = stop.cancelled() => return,
                Some(event) = events.next() => event.map_err(ApiError::from),
                _ = period.tick() => call(api.get_opt(NAME)).await,
            };
            match found {
                Ok(found) => {
                    self.reachability.confirm();
                    is_reported = false;
                    self.take(found.and_then(|found| found.data).as_ref(), &mut reported);
                }
                Err(why) if !is_reported => {
                    warn!(
                        kind = "ConfigMap", namespace = NAMESPACE, name = NAME, error = %why,
                        "cannot read the ConfigMap, which says whom to believe; views stay closed or keep what they \
                         know: bind Role extension-apiserver-authentication-reader, or switch the views off with \
                         --extension-apiserver=false"
                    );
                    is_reported = true;
                }
                Err(why) => {
                    debug!(
                        kind = "ConfigMap", namespace = NAMESPACE, name = NAME, error = %why,
                        "cannot read the ConfigMap"
                    );
                }
            }
        }
    }

    fn take(&self, data: Option<&BTreeMap<String, String>>, reported: &mut Vec<Complaint>) {
        let now = (self.clock)();
        let mut complaints = Vec::new();
        // A change of a file that a flag names may replace the configuration at the same time.
        let before = self.config.rcu(|before| {
            let (after, found) = before.after(data, now);
            complaints = found;
            after
        });
        let after = self.config.load();
        if complaints != *reported {
            for complaint in complaints.iter().filter(|complaint| !reported.contains(complaint)) {
                self.metrics.extension.auth_config_errors.inc(&AuthConfigPart { key: complaint.key });
                warn!(
                    kind = "ConfigMap",
                    namespace = NAMESPACE,
                    name = NAME,
                    path = complaint.key,
                    error = %complaint.why,
                    "a part of the ConfigMap is not used"
                );
            }
            *reported = complaints;
        }
        match (before.usable_front_proxy(), after.usable_front_proxy()) {
            (Err(old), Err(new)) if old == new => {}
            (Ok(_), Ok(_)) => {}
            (_, Ok(_)) => info!("requests of front proxies are believed"),
            (_, Err(why)) => warn!(error = %why, "no request of a front proxy is believed"),
        }
    }
}
