//! Whether a deployment can be acted on at all.
//!
//! Admission refuses such objects; these rules are for those that predate it (spec/deployment-and-set §3.3, D-05, D-08).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::{
    api::{
        int_or_percent::IntOrPercent,
        v1alpha1::{MachineDeployment, OrchestrationType, StrategyType},
    },
    controllers::set::validity::{class_errors, replica_errors, selector_errors},
};

/// What makes it impossible to act on the deployment; empty when nothing does.
pub fn deployment_errors(deployment: &MachineDeployment) -> Vec<String> {
    let spec = &deployment.spec;
    let mut errors = replica_errors(spec.replicas);
    errors.extend(selector_errors(spec.selector.as_ref(), &spec.template));
    errors.extend(class_errors(&spec.template));
    match &spec.strategy.strategy_type {
        StrategyType::Recreate => {}
        StrategyType::RollingUpdate => match &spec.strategy.rolling_update {
            None => errors.push("spec.strategy.rollingUpdate: Required value".to_owned()),
            Some(limits) => {
                let path = "spec.strategy.rollingUpdate";
                errors.extend(limit_error(path, "maxUnavailable", limits.max_unavailable.as_ref()));
                errors.extend(limit_error(path, "maxSurge", limits.max_surge.as_ref()));
            }
        },
        StrategyType::InPlaceUpdate => match &spec.strategy.in_place_update {
            None => errors.push("spec.strategy.inPlaceUpdate: Required value".to_owned()),
            Some(limits) => {
                let path = "spec.strategy.inPlaceUpdate";
                errors.extend(limit_error(path, "maxUnavailable", limits.max_unavailable.as_ref()));
                errors.extend(limit_error(path, "maxSurge", limits.max_surge.as_ref()));
                if !matches!(limits.orchestration_type, OrchestrationType::Auto | OrchestrationType::Manual) {
                    errors.push(format!(
                        "{path}.orchestrationType: Invalid value: \"{}\": must be \"Auto\" or \"Manual\"",
                        limits.orchestration_type
                    ));
                }
            }
        },
        other @ (StrategyType::Unset | StrategyType::Other(_)) => errors.push(format!(
            "spec.strategy.type: Invalid value: \"{other}\": must be \"InPlaceUpdate\", \"Recreate\" or \"RollingUpdate\""
        )),
    }
    errors
}

fn limit_error(path: &str, field: &str, value: Option<&IntOrString>) -> Option<String> {
    match value.map(IntOrPercent::try_from) {
        None => Some(format!("{path}.{field}: Required value")),
        Some(Err(error)) => Some(format!("{path}.{field}: Invalid value: {error}")),
        Some(Ok(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controllers::{
        deployment::testing::*,
        set::testing::{Building, selector},
    };

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
        let errors = deployment_errors(&deployment.build());
        if expected.is_empty() {
            assert_eq!(errors, Vec::<String>::new());
        } else {
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
        }
    }
}
