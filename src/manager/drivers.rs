//! Which drivers this process has.

use std::sync::Arc;

use rand::Rng;
use tokio_util::sync::CancellationToken;

use super::{Common, stream};
use crate::{
    driver::{
        Driver, Registry,
        virtual_cloud::{self, AdminAddress, Impersonation, SimulationOptions, SimulationTask, Standby, StatePlace},
    },
    settings::{self, DriverSelection, SimulationAdmin, SimulationState},
};

/// The drivers' rules over classes, without their clouds: what every replica needs.
pub(super) fn for_admission(common: &Common) -> anyhow::Result<Registry> {
    let rules: Arc<dyn Driver> = Arc::new(Standby::new(&options(common))?);
    Ok(selected(common, &rules))
}

/// The drivers themselves, and the tasks that must run for them. Only for the leader: a simulation reads its state and
/// begins to live.
pub(super) async fn start(
    common: &Common,
    target: Option<kube::Client>,
    shutdown: CancellationToken,
) -> anyhow::Result<(Registry, Vec<SimulationTask>)> {
    let cloud = virtual_cloud::start(options(common), target, shutdown).await?;
    let tasks = cloud.take_tasks();
    let driver: Arc<dyn Driver> = cloud;
    Ok((selected(common, &driver), tasks))
}

fn selected(common: &Common, driver: &Arc<dyn Driver>) -> Registry {
    let mut registry = Registry::new();
    for provider in &driver.info().providers {
        let wanted = match &common.settings.drivers {
            DriverSelection::All => true,
            DriverSelection::Only(providers) => providers.contains(provider),
        };
        if wanted {
            registry.register_as(provider, driver);
        }
    }
    registry
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
