//! The computed views: facts and forecasts that no stored object contains, computed by the decisions of the controllers.
//!
//! Contents: one module per view, each with the shape of its objects, [`describe`] for names, columns and schemas, and [`common`] for the rest that
//! views share. Elsewhere: rules about machines, which views call in the modules of the controllers. Nothing here writes to a cluster or to a
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
    drain_plans::{Drain, DrainPlanView, PLAN_WITHIN, Status as DrainStatus},
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

/// The sources of all views.
#[derive(Clone)]
pub struct Sources {
    /// The stores of the control cluster.
    pub views: ControlViews,
    /// The namespace of the objects in the stores.
    pub namespace: String,
    /// The clock.
    pub clock: SharedClock,
    /// Whether this process leads, so that its controllers act.
    pub is_leading: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The decisions of the machine controller.
    pub outlooks: Outlooks,
    /// The lists of the providers.
    pub inventories: Arc<Inventories>,
    /// The collector of orphaned VMs, if this process has one.
    pub collector: Option<Arc<Collector>>,
    /// Number of plans that one view computes at a time.
    pub plans_at_a_time: usize,
    /// Settings of rollouts.
    pub rollouts: DeploymentSettings,
    /// The rules of admission, for proposals.
    pub admission: AdmissionRules,
}

/// The inputs of admission's rules.
#[derive(Clone)]
pub struct AdmissionRules {
    /// Settings.
    pub policy: Policy,
    /// The rules of the drivers.
    pub providers: Arc<dyn Providers>,
    /// Other objects that rules refer to.
    pub references: Arc<dyn References>,
}

/// All views. The view of drains exists only with a target cluster. The server decides which views it serves.
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
