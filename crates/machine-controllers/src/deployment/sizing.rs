//! The effect that changes the size of a set, together with the deployment size that the set remembers.
//!
//! Source: spec/deployment-and-set §7.5 (desired and max replicas), §9.4. Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::{Effect, Plan},
};
use kube_values::selector::Labels;
use machine_api::{names::annotation, v1alpha1::StrategyType};

impl Fleet<'_> {
    /// The wanted replicas, and the wanted replicas plus surge, as annotations of a set. Surge counts for rolling
    /// updates only.
    pub fn size_annotations(&self) -> [(&'static str, String); 2] {
        let rolling = self.deployment.strategy().strategy_type == StrategyType::RollingUpdate;
        let surge = if rolling { self.limits.surge } else { 0 };
        [
            (annotation::DESIRED_REPLICAS, self.replicas().to_string()),
            (annotation::MAX_REPLICAS, self.replicas().saturating_add(surge).to_string()),
        ]
    }

    /// Adds the effect that gives the set this size; returns whether there is one. The effect also updates the
    /// deployment size that the set remembers.
    pub fn size_set(&self, rule: &'static str, set: &SetState<'_>, to: i32, plan: &mut Plan) -> bool {
        let to = to.max(0);
        let remembered = self.size_annotations();
        let stale: Labels = remembered
            .into_iter()
            .filter(|(key, value)| set.annotation(key) != Some(value))
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        if to == set.spec() && stale.is_empty() {
            return false;
        }
        plan.push(rule, Effect::ScaleSet { set: set.set.clone(), to, remembered: stale });
        true
    }

    /// Does what [`Fleet::resize_set`] does, for the correction of a set's size. The remembered deployment size stays,
    /// so that a change of the deployment meanwhile is still noticed.
    pub fn mend_set(&self, rule: &'static str, set: &SetState<'_>, to: i32, plan: &mut Plan) -> bool {
        let to = to.max(0);
        if to == set.spec() {
            return false;
        }
        plan.push(rule, Effect::ScaleSet { set: set.set.clone(), to, remembered: Labels::new() });
        true
    }

    /// Does what [`Fleet::size_set`] does, but only if the size itself changes.
    pub fn resize_set(&self, rule: &'static str, set: &SetState<'_>, to: i32, plan: &mut Plan) -> bool {
        to.max(0) != set.spec() && self.size_set(rule, set, to, plan)
    }
}
