//! Accessors of disruption budgets.

use std::collections::BTreeMap;

use controller_runtime::snapshot::Snapshot;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use kube_values::selector;

use super::{PodSnapshot, snapshot};

snapshot! {
    /// A disruption budget.
    BudgetSnapshot of PodDisruptionBudget
}

impl BudgetSnapshot {
    /// Whether the budget covers a pod of its namespace. In policy/v1 an empty selector covers all pods, an absent
    /// selector covers none.
    pub fn covers(&self, pod: &PodSnapshot) -> bool {
        let wanted = self.0.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        wanted.is_some_and(|wanted| selector::is_empty(wanted) || pod.fits(wanted))
    }

    /// Whether pods that are not ready can be evicted without regard to the budget.
    pub fn always_allows_unready(&self) -> bool {
        let policy = self.0.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
        policy == Some("AlwaysAllow")
    }

    /// The number of evictions that the budget allows now.
    pub fn disruptions_allowed(&self) -> i32 {
        self.status().map_or(0, |status| status.disruptions_allowed)
    }

    /// The number of healthy pods.
    pub fn current_healthy(&self) -> i32 {
        self.status().map_or(0, |status| status.current_healthy)
    }

    /// The number of healthy pods that the budget demands.
    pub fn desired_healthy(&self) -> i32 {
        self.status().map_or(0, |status| status.desired_healthy)
    }

    /// Whether the budget allows no eviction although all its pods are healthy.
    pub fn is_misconfigured(&self) -> bool {
        self.status().is_some_and(|status| {
            self.0.metadata.generation == status.observed_generation
                && status.expected_pods > 0
                && status.current_healthy >= status.expected_pods
                && status.disrupted_pods.as_ref().is_none_or(BTreeMap::is_empty)
                && status.disruptions_allowed == 0
        })
    }

    fn status(&self) -> Option<&PodDisruptionBudgetStatus> {
        self.0.status.as_ref()
    }
}
