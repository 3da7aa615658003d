//! The numbers of machines that a specification allows and demands, with separate arithmetic: the arithmetic of the
//! controllers is under test.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use machine_api::v1alpha1::{MachineDeployment, OrchestrationType, StrategyType};

/// The bounds of a specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// Maximum number of machines that are not being deleted.
    pub most: i32,
    /// Minimum number of available machines.
    pub least: i32,
}

/// The bounds of a deployment. `maxSurge` is rounded up and `maxUnavailable` down; if both are zero, one machine may be
/// unavailable. Source: spec/deployment-and-set §9.1.
pub fn margins(deployment: &MachineDeployment) -> Margins {
    let strategy = &deployment.spec.strategy;
    let replicas = deployment.spec.replicas;
    let (surge, unavailable) = match strategy.strategy_type {
        StrategyType::RollingUpdate => {
            let limits = strategy.rolling_update.as_ref();
            (limits.and_then(|one| one.max_surge.as_ref()), limits.and_then(|one| one.max_unavailable.as_ref()))
        }
        StrategyType::InPlaceUpdate => {
            let limits = strategy.in_place_update.as_ref();
            // When a user selects Nodes, no additional machines are created.
            let makes_more = limits.filter(|one| one.orchestration_type != OrchestrationType::Manual);
            (makes_more.and_then(|one| one.max_surge.as_ref()), limits.and_then(|one| one.max_unavailable.as_ref()))
        }
        _ => return Margins { most: replicas, least: 0 },
    };
    let hundredths = |margin: Option<&IntOrString>| match margin {
        Some(IntOrString::Int(machines)) => machines * 100,
        Some(IntOrString::String(share)) => {
            share.trim_end_matches('%').parse().map_or(0, |share: i32| share * replicas)
        }
        None => 0,
    };
    let (surge, unavailable) = ((hundredths(surge) + 99) / 100, hundredths(unavailable) / 100);
    let missing = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    let ends = deployment.metadata.deletion_timestamp.is_some();
    Margins { most: replicas + surge, least: if ends { 0 } else { (replicas - missing).max(0) } }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{
        super::{
            edits,
            history::{Margin, Picks, Setup, Strategy},
        },
        *,
    };
    use Margin::{Machines, Percent};

    #[rstest]
    #[case::machines(5, Machines(2), Machines(1), (7, 4))]
    #[case::surge_is_rounded_up(5, Percent(25), Machines(1), (7, 4))]
    #[case::unavailable_is_rounded_down(5, Machines(1), Percent(34), (6, 4))]
    #[case::to_nothing(3, Machines(1), Percent(25), (4, 3))]
    #[case::both_are_nothing(3, Percent(0), Percent(25), (3, 2))]
    #[case::all(3, Percent(100), Percent(100), (6, 0))]
    #[case::none_is_wanted(0, Percent(0), Percent(0), (0, 0))]
    fn a_specification_allows_and_demands(
        #[case] replicas: u8,
        #[case] surge: Margin,
        #[case] unavailable: Margin,
        #[case] (most, least): (i32, i32),
    ) {
        let of = |strategy| margins(&edits::deployment(Setup { replicas, strategy }));
        assert_eq!(of(Strategy::Rolling { surge, unavailable }), Margins { most, least });
        assert_eq!(of(Strategy::InPlace { surge, unavailable, picks: Picks::Controller }), Margins { most, least });
    }
}
