//! The number of machines that causes a freeze, and the number that ends it.
//!
//! Source: spec/deployment-and-set §17 (1) with D-19 (a strategy without surge has no surge). Pure.

use serde::Serialize;

use crate::{
    deployment::fenceposts::Fenceposts,
    snapshots::{DeploymentSnapshot, SetSnapshot},
};

/// `--safety-up` and `--safety-down`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Margins {
    /// Machines above the allowed number that do not yet cause a freeze.
    pub up: u32,
    /// Distance between the limit and the number at which a freeze ends.
    pub down: u32,
}

/// The two limits of a set, or of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// This number of machines or more causes a freeze.
    pub upper: i64,
    /// This number of machines or fewer ends a freeze.
    pub lower: i64,
}

impl Limits {
    fn above(allowed: i64, margins: Margins) -> Self {
        let upper = allowed + i64::from(margins.up);
        Self { upper, lower: upper - i64::from(margins.down) }
    }

    /// The limits of a set that no deployment controls.
    pub fn of_lone_set(set: &SetSnapshot, margins: Margins) -> Self {
        Self::above(2 * i64::from(set.replicas()), margins)
    }

    /// The limits of a deployment, and of each of its sets.
    pub fn of_deployment(deployment: &DeploymentSnapshot, margins: Margins) -> Self {
        let surge = Fenceposts::of(deployment).surge;
        Self::above(i64::from(deployment.replicas()) + i64::from(surge), margins)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::testing::deployment,
        set::testing::{Building, set},
    };
    use machine_api::v1alpha1::{MachineDeployment, StrategyType};

    const MARGINS: Margins = Margins { up: 2, down: 1 };

    #[test]
    fn s_safe_01_a_lone_set_may_hold_twice_as_many_and_two() {
        assert_eq!(Limits::of_lone_set(&set(3).snapshot(), MARGINS), Limits { upper: 8, lower: 7 });
    }

    fn percent(replicas: i32, surge: &str) -> Building<MachineDeployment> {
        deployment(replicas, 0, 0).with(|deployment| {
            let limits = deployment.spec.strategy.rolling_update.as_mut().unwrap();
            limits.max_surge = Some(IntOrString::String(surge.to_owned()));
        })
    }

    #[rstest]
    #[case::s_safe_02_replicas_and_surge(deployment(3, 1, 0), 6, 5)]
    #[case::s_safe_08_a_share_is_rounded_up(percent(10, "25%"), 15, 14)]
    #[case::s_safe_09_recreate_has_no_surge(
        deployment(3, 1, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::Recreate), 5, 4)]
    fn a_deployment_has_limits(
        #[case] deployment: Building<MachineDeployment>,
        #[case] upper: i64,
        #[case] lower: i64,
    ) {
        assert_eq!(Limits::of_deployment(&deployment.snapshot(), MARGINS), Limits { upper, lower });
    }
}
