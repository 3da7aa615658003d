//! Whether the controller can act on a deployment at all.
//!
//! Admission refuses invalid objects; this check is for objects that are older than admission (spec/deployment-and-set
//! §3.3, D-05, D-08; spec/api-and-admission §3). It uses the rules of `api/validation`, so the user reads the same
//! messages.

use std::sync::Arc;

use super::observe::DeploymentObservation;
use crate::checked::Checked;

/// The errors that forbid acting on the deployment; empty when there are none.
pub fn deployment_errors(seen: &DeploymentObservation) -> Arc<[String]> {
    Checked::errors(&seen.deployment, seen.checked.as_ref())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::{
        deployment::testing::*,
        set::testing::{Building, selector},
    };
    use machine_api::v1alpha1::{MachineDeployment, OrchestrationType, StrategyType};

    #[rstest]
    #[case::a_good_one(deployment(1, 1, 0), "")]
    #[case::s_md_05_an_unknown_strategy(
        deployment(1, 1, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::from("Dummy")), "spec.strategy.type")]
    #[case::s_md_21_no_selector(deployment(1, 1, 0).with(|d| d.spec.selector = None), "spec.selector: Required")]
    #[case::an_empty_selector(
        deployment(1, 1, 0).with(|d| d.spec.selector = Some(selector(&[]))), "spec.selector: Invalid")]
    #[case::no_limits(
        deployment(1, 1, 0).with(|d| d.spec.strategy.rolling_update = None), "spec.strategy.rollingUpdate: Required")]
    #[case::a_percentage_without_sign(deployment(1, 1, 0).with(|d| {
        d.spec.strategy.rolling_update.as_mut().unwrap().max_surge = Some(IntOrString::String("5".to_owned()));
    }), "spec.strategy.rollingUpdate.maxSurge: Invalid")]
    #[case::nobody_picks(deployment(1, 1, 0).with(|d| {
        d.spec.strategy = in_place(1, 1, OrchestrationType::Unset);
    }), "spec.strategy.inPlaceUpdate.orchestrationType")]
    fn a_deployment_is_checked(#[case] deployment: Building<MachineDeployment>, #[case] expected: &str) {
        let errors = deployment_errors(&seeing_sets(deployment.build(), vec![]));
        if expected.is_empty() {
            assert!(errors.is_empty(), "{errors:?}");
        } else {
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
        }
    }
}
