//! Disruption budgets: which covers a pod, and whether it will ever allow an eviction.
//!
//! Source: spec/machine-controller §7.5.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::ResourceExt;
use kube_values::selector;
use serde::Serialize;

/// The budget that covers a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum BudgetState {
    /// None.
    None,
    /// One that may allow evictions, now or later.
    One(String),
    /// One that allows none although everything is healthy.
    Misconfigured(String),
    /// More than one: the API server refuses to choose.
    Several(Vec<String>),
}

impl BudgetState {
    /// The budgets' names, for people.
    pub fn names(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::One(name) | Self::Misconfigured(name) => Some(name.clone()),
            Self::Several(names) => Some(names.join(" and ")),
        }
    }
}

/// The budget that covers this pod, out of those of its namespace.
pub fn budget_of(pod: &Pod, budgets: &[Arc<PodDisruptionBudget>]) -> BudgetState {
    let covers = |budget: &&Arc<PodDisruptionBudget>| {
        let wanted = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        // In policy/v1 an empty selector covers all pods of the namespace, an absent one none.
        wanted.is_some_and(|wanted| selector::is_empty(wanted) || selector::matches(wanted, pod.labels()))
    };
    let covering: Vec<_> = budgets.iter().filter(covers).collect();
    let name =
        |budget: &PodDisruptionBudget| format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any());
    match covering.as_slice() {
        [] => BudgetState::None,
        [budget] if is_misconfigured(budget) => BudgetState::Misconfigured(name(budget)),
        [budget] => BudgetState::One(name(budget)),
        several => BudgetState::Several(several.iter().map(|budget| name(budget)).collect()),
    }
}

/// Whether the API server evicts a pod without asking its budget: one that does not run counts for no budget, and neither does
/// one that runs but is not ready, where its one budget says so (`unhealthyPodEvictionPolicy`) or has all that it needs.
pub fn goes_unasked(pod: &Pod, budget: Option<&PodDisruptionBudget>) -> bool {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if matches!(phase, "Pending" | "Succeeded" | "Failed") || pod.metadata.deletion_timestamp.is_some() {
        return true;
    }
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let is_ready = conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True");
    !is_ready
        && budget.is_some_and(|budget| {
            let policy = budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
            let holds = |healthy: i32, desired: i32| healthy >= desired && desired > 0;
            policy == Some("AlwaysAllow")
                || budget.status.as_ref().is_some_and(|status| holds(status.current_healthy, status.desired_healthy))
        })
}

/// Whether the budget allows nothing although all its pods are healthy.
fn is_misconfigured(budget: &PodDisruptionBudget) -> bool {
    let Some(status) = &budget.status else { return false };
    budget.metadata.generation == status.observed_generation
        && status.expected_pods > 0
        && status.current_healthy >= status.expected_pods
        && status.disrupted_pods.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
        && status.disruptions_allowed == 0
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::policy::v1::{PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
        apimachinery::pkg::apis::meta::v1::LabelSelector,
    };
    use rstest::rstest;

    use super::*;

    fn budget(name: &str, app: &str, observed: i64, healthy: i32) -> Arc<PodDisruptionBudget> {
        let mut budget = PodDisruptionBudget::default();
        budget.metadata.name = Some(name.to_owned());
        budget.metadata.namespace = Some("ns".to_owned());
        budget.metadata.generation = Some(2);
        budget.spec = Some(PodDisruptionBudgetSpec {
            selector: Some(LabelSelector {
                match_labels: Some([("app".to_owned(), app.to_owned())].into()),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        });
        budget.status = Some(PodDisruptionBudgetStatus {
            observed_generation: Some(observed),
            expected_pods: 3,
            current_healthy: healthy,
            ..PodDisruptionBudgetStatus::default()
        });
        Arc::new(budget)
    }

    #[rstest]
    #[case::none_covers_it(vec![budget("a", "other", 2, 3)], BudgetState::None)]
    #[case::mc_199_it_will_never_allow_one(vec![budget("a", "web", 2, 3)], BudgetState::Misconfigured("ns/a".to_owned()))]
    #[case::mc_200_its_status_is_old(vec![budget("a", "web", 1, 3)], BudgetState::One("ns/a".to_owned()))]
    #[case::mc_198_a_pod_is_not_healthy_yet(vec![budget("a", "web", 2, 2)], BudgetState::One("ns/a".to_owned()))]
    #[case::mc_204_two(
        vec![budget("a", "web", 2, 3), budget("b", "web", 2, 3)],
        BudgetState::Several(vec!["ns/a".to_owned(), "ns/b".to_owned()])
    )]
    fn the_budget_of_a_pod(#[case] budgets: Vec<Arc<PodDisruptionBudget>>, #[case] state: BudgetState) {
        let mut pod = Pod::default();
        pod.labels_mut().insert("app".to_owned(), "web".to_owned());
        assert_eq!(budget_of(&pod, &budgets), state);
    }
    #[rstest]
    #[case::running_and_ready("Running", "True", None, 3, false)]
    #[case::not_running_yet("Pending", "False", None, 0, true)]
    #[case::done("Succeeded", "False", None, 0, true)]
    #[case::failed("Failed", "False", None, 0, true)]
    #[case::not_ready_and_the_budget_lacks_pods("Running", "False", None, 1, false)]
    #[case::not_ready_and_the_budget_has_enough("Running", "False", None, 2, true)]
    #[case::not_ready_whatever_the_budget_has("Running", "False", Some("AlwaysAllow"), 1, true)]
    #[case::ready_whatever_the_policy("Running", "True", Some("AlwaysAllow"), 3, false)]
    fn whom_the_api_server_evicts_without_asking(
        #[case] phase: &str,
        #[case] ready: &str,
        #[case] policy: Option<&str>,
        #[case] healthy: i32,
        #[case] unasked: bool,
    ) {
        let status = serde_json::json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] });
        let pod = Pod { status: serde_json::from_value(status).unwrap(), ..Pod::default() };
        let mut budget = (*budget("a", "web", 2, healthy)).clone();
        budget.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = policy.map(str::to_owned);
        budget.status.as_mut().unwrap().desired_healthy = 2;
        assert_eq!(goes_unasked(&pod, Some(&budget)), unasked);
        let without_one = matches!(phase, "Pending" | "Succeeded" | "Failed");
        assert_eq!(
            goes_unasked(&pod, None),
            without_one,
            "one that is covered by several is only let go if it does not run"
        );
    }
}
