//! The computed views: what no stored object can hold, computed by the controllers' own decisions.
//!
//! One file or room per view, each with the shape of its objects, [`describe`] for what each is by name, and [`common`] with what else
//! they share. What does not live
//! here: every rule; a view that would need a copy of one asks the controller for it. Nothing here writes to a cluster or a
//! provider. Source: spec/extension-apiserver §1.

mod amounts;
pub mod common;
mod describe;
mod drain_plans;
mod fleet;
mod outlooks;
mod provider_machines;
mod rollout_plans;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use self::{
    drain_plans::DrainPlanView,
    fleet::FleetView,
    outlooks::OutlookView,
    provider_machines::{
        ProviderMachineView,
        inventory::{Inventories, InventorySettings},
    },
    rollout_plans::RolloutPlanView,
};
use crate::extension::view::View;
use controller_runtime::clock::SharedClock;
use machine_api::validation::{Policy, Providers, References};
use machine_controllers::{
    deployment::settings::DeploymentSettings, machine::outlook::Outlooks, safety::collector::Collector,
    views::ControlViews,
};

/// What all views are made from.
#[derive(Clone)]
pub struct Sources {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// The namespace that the stores hold.
    pub namespace: String,
    /// Tells the time.
    pub clock: SharedClock,
    /// Whether this process leads, and so acts.
    pub is_leading: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What would be decided about machines.
    pub outlooks: Outlooks,
    /// What providers list.
    pub inventories: Arc<Inventories>,
    /// Who deletes orphaned VMs, where this process does.
    pub collector: Option<Arc<Collector>>,
    /// Plans of a view that are computed at a time.
    pub plans_at_a_time: usize,
    /// What the command line says about rollouts.
    pub rollouts: DeploymentSettings,
    /// How proposals are judged.
    pub admission: Judges,
}

/// What admission judges with.
#[derive(Clone)]
pub struct Judges {
    /// Settings.
    pub policy: Policy,
    /// The drivers' own rules.
    pub providers: Arc<dyn Providers>,
    /// What is known of other objects.
    pub references: Arc<dyn References>,
}

/// All views; of drains only where there is a target cluster. Which of them are served is the server's to decide.
pub fn views(sources: &Sources) -> Vec<Arc<dyn View>> {
    let mut all: Vec<Arc<dyn View>> = vec![
        Arc::new(ProviderMachineView::new(sources)),
        Arc::new(OutlookView::new(sources)),
        Arc::new(RolloutPlanView::new(sources)),
        Arc::new(FleetView::new(sources)),
    ];
    if let Some(drains) = DrainPlanView::new(sources) {
        all.push(Arc::new(drains));
    }
    all
}
