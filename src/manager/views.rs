//! The sources of the computed views: the stores, drivers and controllers of this process.

use std::sync::Arc;

use super::{Common, control::Parts, loops, references::CachedReferences, target::TargetViews};
use crate::{
    extension::views::{AdmissionRules, Inventories, InventorySettings, Sources},
    manager::registered_drivers::RegisteredDrivers,
};
use machine_api::validation::{ControllerUsers, Policy};
use machine_controllers::{
    drain::observe::DrainViews,
    machine::outlook::{OutlookDeps, OutlookTarget, Outlooks},
    views::ControlViews,
};
use machine_driver::Registry;

/// The VMs that providers list. The controller that looks for orphans adds its lists.
pub(super) fn inventories(common: &Common, views: &ControlViews, drivers: &Registry) -> Arc<Inventories> {
    let usual = InventorySettings::default();
    let settings = common.settings.extension.as_ref().map_or(usual, |extension| InventorySettings {
        max_age: extension.inventory_max_age,
        parallel: extension.inventories_at_a_time,
        ..usual
    });
    Arc::new(Inventories::new(views.clone(), drivers.clone(), Arc::clone(&common.clock), settings))
}

/// The state of the clusters, as a process with or without control loops knows it.
pub(super) struct ClusterState {
    pub(super) common: Arc<Common>,
    pub(super) views: ControlViews,
    pub(super) target: Option<TargetViews>,
    pub(super) drivers: Registry,
    pub(super) inventories: Arc<Inventories>,
    /// Whether this process leads. A process without loops never leads.
    pub(super) is_leading: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The loops that views read. Empty in a process without loops.
    pub(super) running: loops::Running,
}

impl ClusterState {
    /// The state of a process with control loops.
    pub(super) fn of(parts: &Parts) -> Self {
        let leadership = parts.leadership.clone();
        Self {
            common: Arc::clone(&parts.common),
            views: parts.views.clone(),
            target: parts.target.clone(),
            drivers: parts.drivers.registry.clone(),
            inventories: Arc::clone(&parts.inventories),
            is_leading: Arc::new(move || leadership.is_leading()),
            running: parts.running.get().cloned().unwrap_or_default(),
        }
    }
}

/// What is decided about machines now, from this state.
pub(super) fn outlooks(state: &ClusterState) -> Outlooks {
    let target = state.target.as_ref().map(|target| {
        let drains: Arc<dyn DrainViews> = Arc::new(target.clone());
        OutlookTarget { nodes: Arc::clone(&target.node_store), drains }
    });
    Outlooks::new(OutlookDeps {
        views: state.views.clone(),
        target,
        drivers: state.drivers.clone(),
        settings: state.common.settings.machine.clone(),
        freeze: state.running.freeze.clone(),
        controller: state.running.machines.clone(),
    })
}

/// The sources of the views.
pub(super) fn sources(state: &ClusterState) -> Sources {
    let settings = &state.common.settings;
    let references = CachedReferences::of_namespace(&settings.namespace);
    references.use_stores(state.views.clone());
    Sources {
        views: state.views.clone(),
        namespace: settings.namespace.clone(),
        clock: Arc::clone(&state.common.clock),
        is_leading: Arc::clone(&state.is_leading),
        outlooks: outlooks(state),
        inventories: Arc::clone(&state.inventories),
        collector: state.running.collector.clone(),
        plans_at_a_time: settings.extension.as_ref().map_or(1, |extension| extension.plans_at_a_time),
        rollouts: settings.rollout,
        admission: AdmissionRules {
            policy: Policy {
                profile: settings.admission.profile,
                controllers: ControllerUsers::named(settings.admission.controller_users.clone()),
            },
            providers: Arc::new(RegisteredDrivers::new(state.drivers.clone(), settings.admission.providers)),
            references,
        },
    }
}
