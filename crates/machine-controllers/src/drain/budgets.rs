//! Disruption budgets: which budget covers a pod, and whether it can ever allow an eviction.
//!
//! Source: spec/machine-controller §7.5.

use controller_runtime::snapshot::Snapshot;
use serde::Serialize;

use crate::snapshots::{BudgetSnapshot, PodSnapshot};

/// The budget that covers a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum BudgetState {
    /// No budget.
    None,
    /// A budget that may allow evictions, now or later.
    One(String),
    /// A budget that allows no eviction even when all its pods are healthy.
    Misconfigured(String),
    /// Several budgets; the API server refuses evictions then.
    Several(Vec<String>),
}

impl BudgetState {
    /// The names of the budgets, for messages.
    pub fn names(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::One(name) | Self::Misconfigured(name) => Some(name.clone()),
            Self::Several(names) => Some(names.join(" and ")),
        }
    }
}

/// The budget that covers this pod, among the budgets of its namespace.
pub fn budget_of(pod: &PodSnapshot, budgets: &[BudgetSnapshot]) -> BudgetState {
    let covering: Vec<_> = budgets.iter().filter(|budget| budget.covers(pod)).collect();
    let name = |budget: &BudgetSnapshot| budget.key().to_string();
    match covering.as_slice() {
        [] => BudgetState::None,
        [budget] if budget.is_misconfigured() => BudgetState::Misconfigured(name(budget)),
        [budget] => BudgetState::One(name(budget)),
        several => BudgetState::Several(several.iter().map(|budget| name(budget)).collect()),
    }
}

/// Whether the API server evicts a pod without regard to its budget: a pod that does not run; or a running pod that is
/// not ready, if its only budget says so (`unhealthyPodEvictionPolicy`) or has enough healthy pods.
pub fn goes_unasked(pod: &PodSnapshot, budget: Option<&BudgetSnapshot>) -> bool {
    if pod.does_not_run() || pod.is_deleting() {
        return true;
    }
    let lets_go = |budget: &BudgetSnapshot| {
        let (healthy, desired) = (budget.current_healthy(), budget.desired_healthy());
        budget.always_allows_unready() || healthy >= desired && desired > 0
    };
    !pod.is_ready() && budget.is_some_and(lets_go)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            core::v1::Pod,
            policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
        },
        apimachinery::pkg::apis::meta::v1::LabelSelector,
    };
    use kube::ResourceExt;
    use rstest::rstest;

    use super::*;

    fn budget(name: &str, app: &str, observed: i64, healthy: i32) -> PodDisruptionBudget {
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
        budget
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
    fn the_budget_of_a_pod(#[case] budgets: Vec<PodDisruptionBudget>, #[case] state: BudgetState) {
        let mut pod = Pod::default();
        pod.labels_mut().insert("app".to_owned(), "web".to_owned());
        let budgets: Vec<_> = budgets.into_iter().map(BudgetSnapshot::from).collect();
        assert_eq!(budget_of(&pod.into(), &budgets), state);
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
        let mut budget = budget("a", "web", 2, healthy);
        budget.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = policy.map(str::to_owned);
        budget.status.as_mut().unwrap().desired_healthy = 2;
        let pod = PodSnapshot::from(pod);
        assert_eq!(goes_unasked(&pod, Some(&budget.into())), unasked);
        let without_one = matches!(phase, "Pending" | "Succeeded" | "Failed");
        assert_eq!(
            goes_unasked(&pod, None),
            without_one,
            "one that is covered by several is only let go if it does not run"
        );
    }
}
