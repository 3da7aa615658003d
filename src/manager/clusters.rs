//! The clients of the control cluster and of the target cluster.

use std::{path::Path, sync::Arc};

use super::{
    ClusterAccess, Common,
    observers::{CallMetrics, ControlCalls},
};
use crate::settings::{ControlCluster, TargetCluster};
use controller_runtime::{
    clients::{ClientSettings, Cluster, Rate, Source, config},
    preflight::Preflight,
};

/// The label in metrics of an API server that has no address.
const EMBEDDED: &str = "embedded";

/// Clients of both clusters.
pub(super) struct Clusters {
    /// The cluster with the machine objects.
    pub(super) control: Cluster,
    /// The cluster with the Nodes. `None` without a target cluster.
    pub(super) target: Option<Cluster>,
}

impl Clusters {
    /// Makes the clients. They send no request yet.
    pub(super) async fn connect(common: &Common, access: ClusterAccess) -> anyhow::Result<Self> {
        match access {
            ClusterAccess::Settings => Self::configured(common).await,
            ClusterAccess::Clients { control, target } => {
                let over = |client: &kube::Client, settings| Cluster::over(client, client, EMBEDDED, &settings);
                Ok(Self {
                    control: over(&control, of_control(common)),
                    target: target.map(|target| over(&target, of_target(common))),
                })
            }
        }
    }

    async fn configured(common: &Common) -> anyhow::Result<Self> {
        let control_source = match &common.settings.control {
            ControlCluster::InCluster => Source::InCluster,
            ControlCluster::Kubeconfig(path) => Source::File(path.clone()),
        };
        let target_source = match &common.settings.target {
            TargetCluster::None => None,
            TargetCluster::InCluster => Some(Source::InCluster),
            TargetCluster::Kubeconfig(path) => Some(Source::File(path.clone())),
        };
        let control = Cluster::connect(&config::load(&control_source).await?, &of_control(common))?;
        let target = match target_source {
            None => None,
            Some(source) => Some(Cluster::connect(&config::load(&source).await?, &of_target(common))?),
        };
        Ok(Self { control, target })
    }

    /// The control cluster, through this kubeconfig if there is one.
    pub(super) async fn control_by(&self, common: &Common, kubeconfig: Option<&Path>) -> anyhow::Result<Cluster> {
        let Some(path) = kubeconfig else { return Ok(self.control.clone()) };
        let config = config::load(&Source::File(path.to_owned())).await?;
        Ok(Cluster::connect(&config, &of_control(common))?)
    }

    /// Checks of the control cluster.
    pub(super) fn control_preflight(&self) -> Preflight {
        Preflight::new("control", self.control.client(controller_runtime::clients::Purpose::Discovery))
    }

    /// Checks of the target cluster.
    pub(super) fn target_preflight(&self) -> Option<Preflight> {
        let target = self.target.as_ref()?;
        Some(Preflight::new("target", target.client(controller_runtime::clients::Purpose::Discovery)))
    }
}

fn of_control(common: &Common) -> ClientSettings {
    let observer = ControlCalls::new(call_metrics(common), Arc::clone(&common.clock));
    ClientSettings { rate: rate(common), observer: Some(Arc::new(observer)) }
}

/// The clock does not follow the target cluster's time.
fn of_target(common: &Common) -> ClientSettings {
    ClientSettings { rate: rate(common), observer: Some(Arc::new(call_metrics(common))) }
}

fn call_metrics(common: &Common) -> CallMetrics {
    CallMetrics::new(common.metrics.clone(), common.settings.metrics.request_latency)
}

fn rate(common: &Common) -> Rate {
    Rate { qps: common.settings.client_rate.qps, burst: common.settings.client_rate.burst }
}
