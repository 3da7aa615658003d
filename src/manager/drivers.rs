//! Which drivers this process has.

use std::sync::Arc;

use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::{Common, stream};
use crate::{
    DriverSet,
    settings::{self, DriverSelection, SimulationAdmin, SimulationState},
};
use driver_virtual::{
    self, AdminAddress, ConfigMapAccess, Impersonation, SimulationOptions, SimulationTask, Standby, StatePlace,
};
use machine_driver::{Driver, Measured, Registry};

/// The drivers of this process. Admission asks them about classes on every replica; their clouds live with the leader.
#[derive(Clone)]
pub(super) struct Drivers {
    pub(super) registry: Registry,
    simulation: Arc<Standby>,
    options: SimulationOptions,
}

impl Drivers {
    pub(super) fn new(common: &Common, all: &DriverSet) -> anyhow::Result<Self> {
        let options = options(common);
        let simulation = Arc::new(Standby::new(&options)?);
        let is_wanted = |provider: &str| match &common.settings.drivers {
            DriverSelection::All => true,
            DriverSelection::Only(providers) => providers.contains(provider),
        };
        let measured = |driver| -> Arc<dyn Driver> { Arc::new(Measured::new(driver, common.metrics.clone())) };
        let registry = all.registry(Arc::<Standby>::clone(&simulation), is_wanted, measured);
        Ok(Self { registry, simulation, options })
    }

    /// Begins what only the leader has; answers the tasks that must run for it.
    pub(super) async fn lead(
        &self,
        target: Option<kube::Client>,
        state: ConfigMapAccess,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Vec<SimulationTask>> {
        let options = SimulationOptions { config_maps: Some(state), ..self.options.clone() };
        let cloud = driver_virtual::start(options, target, shutdown).await?;
        let tasks = cloud.take_tasks();
        self.simulation.lead(cloud);
        Ok(tasks)
    }
}

fn options(common: &Common) -> SimulationOptions {
    let simulation = &common.settings.simulation;
    SimulationOptions {
        entropy: common.random(stream::SIMULATION).next_u64(),
        config: simulation.config.clone(),
        impersonation: match simulation.impersonation {
            settings::Impersonation::Refused => Impersonation::Refused,
            settings::Impersonation::Allowed => Impersonation::Allowed,
        },
        state: match &simulation.state {
            SimulationState::None => None,
            SimulationState::File(path) => Some(StatePlace::File(path.clone())),
            SimulationState::ConfigMap(name) => Some(StatePlace::ConfigMap(name.clone())),
            SimulationState::Json(path) => Some(StatePlace::Json(path.clone())),
        },
        admin: simulation.admin.as_ref().map(|admin| match admin {
            SimulationAdmin::Loopback(address) => AdminAddress::Loopback(*address),
            SimulationAdmin::Unix(path) => AdminAddress::Unix(path.clone()),
        }),
        ..SimulationOptions::new(common.clock.now())
    }
}
