//! What the computed views are made from: the stores, drivers and controllers of this process.

use std::sync::Arc;

use super::{Common, control::Parts, loops, references::CachedReferences, target::TargetViews};
use crate::{
    extension::views::{Inventories, InventorySettings, Judges, Sources, Standing, StandingNow},
    manager::registered_drivers::RegisteredDrivers,
};
use machine_api::validation::{ControllerUsers, Policy};
use machine_controllers::{
    drain::observe::DrainViews,
    machine::outlook::{OutlookDeps, OutlookTarget, Outlooks},
    views::ControlViews,
};
use machine_driver::Registry;

/// What providers list. The loop that looks for orphans tells it what it has learned.
pub(super) fn inventories(common: &Common, views: &ControlViews, drivers: &Registry) -> Arc<Inventories> {
    let usual = InventorySettings::default();
    let settings = common.settings.extension.as_ref().map_or(usual, |told| InventorySettings {
        max_age: told.inventory_max_age,
        at_once: told.inventories_at_a_time,
        ..usual
    });
    Arc::new(Inventories::new(views.clone(), drivers.clone(), Arc::clone(&common.clock), settings))
}

/// What a process sees of its clusters, whether it acts on it or only serves.
pub(super) struct Seen {
    pub(super) common: Arc<Common>,
    pub(super) views: ControlViews,
    pub(super) target: Option<TargetViews>,
    pub(super) drivers: Registry,
    pub(super) inventories: Arc<Inventories>,
    /// Never leading where there are no loops.
    pub(super) standing: StandingNow,
    /// The loops that views ask; none where there are none.
    pub(super) running: loops::Running,
}

impl Seen {
    /// What a process with control loops sees.
    pub(super) fn of(parts: &Parts) -> Self {
        let leadership = parts.leadership.clone();
        Self {
            common: Arc::clone(&parts.common),
            views: parts.views.clone(),
            target: parts.target.clone(),
            drivers: parts.drivers.registry.clone(),
            inventories: Arc::clone(&parts.inventories),
            standing: Arc::new(move || if leadership.is_leading() { Standing::Leader } else { Standing::Standby }),
            running: parts.running.get().cloned().unwrap_or_default(),
        }
    }
}

/// The sources of the views.
pub(super) fn sources(seen: &Seen) -> Sources {
    let settings = &seen.common.settings;
    let target = seen.target.as_ref().map(|target| {
        let drains: Arc<dyn DrainViews> = Arc::new(target.clone());
        OutlookTarget { nodes: Arc::clone(&target.node_store), drains }
    });
    let references = CachedReferences::of_namespace(&settings.namespace);
    references.know(seen.views.clone());
    Sources {
        views: seen.views.clone(),
        namespace: settings.namespace.clone(),
        clock: Arc::clone(&seen.common.clock),
        standing: Arc::clone(&seen.standing),
        outlooks: Outlooks::new(OutlookDeps {
            views: seen.views.clone(),
            target,
            drivers: seen.drivers.clone(),
            settings: settings.machine.clone(),
            freeze: seen.running.freeze.clone(),
            controller: seen.running.machines.clone(),
        }),
        inventories: Arc::clone(&seen.inventories),
        collector: seen.running.collector.clone(),
        plans_at_a_time: settings.extension.as_ref().map_or(1, |told| told.plans_at_a_time),
        rollouts: settings.rollout,
        admission: Judges {
            policy: Policy {
                profile: settings.admission.profile,
                controllers: ControllerUsers::named(settings.admission.controller_users.clone()),
            },
            providers: Arc::new(RegisteredDrivers::new(seen.drivers.clone(), settings.admission.providers)),
            references,
        },
    }
}
