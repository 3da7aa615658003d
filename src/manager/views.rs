//! What the computed views are made from: the stores, drivers and controllers of this process.

use std::sync::Arc;

use super::{Common, control::Parts, loops, references::CachedReferences};
use crate::{
    admission::RegisteredDrivers,
    api::validation::{ControllerUsers, Coverage, Policy},
    controllers::{
        drain::observe::DrainViews,
        machine::outlook::{OutlookDeps, OutlookTarget, Outlooks},
        views::ControlViews,
    },
    driver::Registry,
    extension::views::{Inventories, InventorySettings, Judges, Sources, Standing},
    settings::DriverSelection,
};

/// What providers list. The loop that looks for orphans tells it what it has learned.
pub(super) fn inventories(common: &Common, views: &ControlViews, drivers: &Registry) -> Arc<Inventories> {
    let max_age = common.settings.extension.as_ref().map(|extension| extension.inventory_max_age);
    let usual = InventorySettings::default();
    let settings = InventorySettings { max_age: max_age.unwrap_or(usual.max_age), ..usual };
    Arc::new(Inventories::new(views.clone(), drivers.clone(), Arc::clone(&common.clock), settings))
}

/// The sources of the views.
pub(super) fn sources(parts: &Parts) -> Sources {
    let settings = &parts.common.settings;
    let running = parts.running.get().cloned().unwrap_or_default();
    let target = parts.target.as_ref().map(|target| {
        let drains: Arc<dyn DrainViews> = Arc::new(target.clone());
        OutlookTarget { nodes: Arc::clone(&target.node_store), drains }
    });
    let machine = loops::machine_settings(&settings.machine);
    let leadership = parts.leadership.clone();
    let references = CachedReferences::of_namespace(&settings.namespace);
    references.know(parts.views.clone());
    let registry = &parts.drivers.registry;
    let coverage = match settings.drivers {
        DriverSelection::All => Coverage::All,
        DriverSelection::Only(_) => Coverage::Some,
    };
    Sources {
        views: parts.views.clone(),
        namespace: settings.namespace.clone(),
        clock: Arc::clone(&parts.common.clock),
        standing: Arc::new(move || if leadership.is_leading() { Standing::Leader } else { Standing::Standby }),
        outlooks: Outlooks::new(OutlookDeps {
            views: parts.views.clone(),
            target,
            drivers: registry.clone(),
            settings: machine,
            freeze: running.freeze,
            controller: running.machines,
        }),
        inventories: Arc::clone(&parts.inventories),
        collector: running.collector,
        rollouts: loops::deployment_settings(&settings.rollout),
        admission: Judges {
            policy: Policy {
                profile: settings.admission.profile,
                controllers: ControllerUsers::named(settings.admission.controller_users.clone()),
            },
            providers: Arc::new(RegisteredDrivers::new(registry.clone(), coverage)),
            references,
        },
    }
}
