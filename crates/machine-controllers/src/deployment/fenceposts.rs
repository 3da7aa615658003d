//! How far the number of machines may differ from the wanted number during a rollout.
//!
//! Source: spec/deployment-and-set §9.1. Pure.

use crate::snapshots::DeploymentSnapshot;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_values::int_or_percent::{IntOrPercent, Rounding};
use machine_api::v1alpha1::{OrchestrationType, StrategyType};
use serde::Serialize;

/// Machines above and below the wanted number. A negative value, stored before admission refused it, has the effect
/// that it has in the original: it reduces the wanted number, but not below zero machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fenceposts {
    /// Additional machines; at least minus the wanted number.
    pub surge: i32,
    /// Machines that may be unavailable; see [`Self::max_unavailable`] for the bound.
    pub unavailable: i32,
}

impl Fenceposts {
    /// The limits of a deployment. A value that can't be read counts as zero; validation reports it.
    pub fn of(deployment: &DeploymentSnapshot) -> Self {
        let strategy = deployment.strategy();
        let replicas = deployment.replicas();
        match strategy.strategy_type {
            StrategyType::RollingUpdate => {
                let limits = strategy.rolling_update.as_ref();
                let surge = limits.and_then(|limits| limits.max_surge.as_ref());
                resolve(surge, limits.and_then(|limits| limits.max_unavailable.as_ref()), replicas)
            }
            StrategyType::InPlaceUpdate => {
                let limits = strategy.in_place_update.as_ref();
                let surge = limits
                    .filter(|limits| limits.orchestration_type != OrchestrationType::Manual)
                    .and_then(|limits| limits.max_surge.as_ref());
                resolve(surge, limits.and_then(|limits| limits.max_unavailable.as_ref()), replicas)
            }
            StrategyType::Recreate | StrategyType::Unset | StrategyType::Other(_) => Self::default(),
        }
    }

    /// Machines that may be unavailable, at most the wanted number.
    pub fn max_unavailable(self, replicas: i32) -> i32 {
        self.unavailable.min(replicas).max(0)
    }
}

/// Surge is rounded up, unavailable down. If both are zero, one machine may be unavailable; otherwise no rollout could
/// progress.
pub fn resolve(surge: Option<&IntOrString>, unavailable: Option<&IntOrString>, replicas: i32) -> Fenceposts {
    let number = |value: Option<&IntOrString>, rounding| {
        value.and_then(|value| IntOrPercent::try_from(value).ok()).map_or(0, |value| value.resolve(replicas, rounding))
    };
    let surge = number(surge, Rounding::Up);
    let unavailable = number(unavailable, Rounding::Down);
    let surge = surge.max(-replicas.max(0));
    Fenceposts { surge, unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable } }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::deployment::testing::*;

    fn value(text: &str) -> IntOrString {
        text.parse().map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int)
    }

    #[rstest]
    #[case::s_roll_08("25%", "25%", 10, 3, 2)]
    #[case::s_roll_09("25%", "25%", 3, 1, 0)]
    #[case::s_roll_10("0", "1%", 2, 0, 1)]
    #[case::one_machine("1%", "25%", 1, 1, 0)]
    #[case::halves("50%", "50%", 5, 3, 2)]
    #[case::s_roll_11("0", "10%", 9, 0, 1)]
    #[case::s_roll_12("33%", "33%", 7, 3, 2)]
    #[case::both_zero("0", "0", 5, 0, 1)]
    #[case::more_than_there_are("2", "10", 5, 2, 10)]
    #[case::a_share_above_the_whole("0", "150%", 4, 0, 6)]
    #[case::a_negative_surge("-1", "0", 3, -1, 0)]
    #[case::a_negative_share_of_surge_rounds_to_nothing("-5%", "0", 10, 0, 1)]
    #[case::a_negative_unavailable_is_no_zero("0", "-1", 3, 0, -1)]
    #[case::a_negative_surge_leaves_no_less_than_nothing("-9", "0", 3, -3, 0)]
    fn limits_are_resolved(
        #[case] max_surge: &str,
        #[case] max_unavailable: &str,
        #[case] replicas: i32,
        #[case] surge: i32,
        #[case] unavailable: i32,
    ) {
        let found = resolve(Some(&value(max_surge)), Some(&value(max_unavailable)), replicas);
        assert_eq!(found, Fenceposts { surge, unavailable });
    }

    /// Gardener splits percentages among zones, which produces values like this.
    #[test]
    fn a_share_above_the_whole_is_the_whole() {
        let mut strategy = rolling(0, 0);
        strategy.rolling_update.as_mut().unwrap().max_unavailable = Some(value("150%"));
        let deployment = deployment(4, 1, 1).with(|d| d.spec.strategy = strategy).snapshot();
        assert_eq!(Fenceposts::of(&deployment).max_unavailable(4), 4);
    }

    #[rstest]
    #[case::s_roll_01_no_strategy(2, StrategyType::Unset, 0)]
    #[case::s_roll_02_no_replicas(0, StrategyType::RollingUpdate, 0)]
    #[case::s_roll_03_rolling(5, StrategyType::RollingUpdate, 1)]
    #[case::recreate(5, StrategyType::Recreate, 0)]
    fn machines_may_be_missing(#[case] replicas: i32, #[case] strategy: StrategyType, #[case] expected: i32) {
        let deployment = deployment(replicas, 1, 1).with(|d| d.spec.strategy.strategy_type = strategy).snapshot();
        assert_eq!(Fenceposts::of(&deployment).max_unavailable(replicas), expected);
    }

    #[rstest]
    #[case::s_roll_04_rolling(5, rolling(2, 10), 5)]
    #[case::s_roll_05_in_place_manual(5, in_place(1, 2, OrchestrationType::Manual), 2)]
    #[case::s_roll_06_in_place_auto(3, in_place(1, 10, OrchestrationType::Auto), 3)]
    #[case::a_negative_number(3, rolling(0, -1), 0)]
    #[case::s_roll_07_in_place_without_replicas(0, in_place(1, 2, OrchestrationType::Manual), 0)]
    fn never_more_than_there_should_be(
        #[case] replicas: i32,
        #[case] strategy: machine_api::v1alpha1::MachineDeploymentStrategy,
        #[case] expected: i32,
    ) {
        let deployment = deployment(replicas, 1, 1).with(|d| d.spec.strategy = strategy).snapshot();
        assert_eq!(Fenceposts::of(&deployment).max_unavailable(replicas), expected);
    }
}
