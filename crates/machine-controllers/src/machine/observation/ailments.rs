//! The faults of a Node, and how long they have lasted: pods of a Node that has been unhealthy for long can't be evicted any
//! more.
//!
//! A Node's conditions carry times of the target cluster, whose clock may differ from ours by any amount. Therefore these
//! times only distinguish one episode of a fault from the next; the length of an episode counts from when this process first
//! saw it (decisions.md 46). A store that may be outdated shows no fault: nothing is decided by it (decisions.md 47), and
//! after that an episode begins again. This file holds this memory as a plain value; the drains use it. Source:
//! spec/machine-controller M-05.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use serde::Serialize;

use super::{Freeze, Silence, condition};
use crate::{snapshots::NodeSnapshot, times::since};
use controller_runtime::{clock::ClockTrouble, store::Store};

/// A Node that has a fault for this long is drained by force.
const FORCES_AFTER: Duration = Duration::from_secs(5 * 60);

/// A fault that keeps pods of a Node from being evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Ailment {
    /// The Node is not Ready.
    NotReady,
    /// Its file system can't be written.
    ReadOnly,
}

impl Ailment {
    const ALL: [Self; 2] = [Self::NotReady, Self::ReadOnly];

    /// The condition that shows the fault, if the Node has it.
    fn told_by(self, node: &NodeSnapshot) -> Option<&NodeCondition> {
        let (kind, well) = match self {
            Self::NotReady => ("Ready", "True"),
            Self::ReadOnly => ("ReadonlyFilesystem", "False"),
        };
        condition(node.conditions(), kind).filter(|condition| condition.status != well)
    }
}

/// Whether the stored Nodes are those that the API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// They are.
    Current,
    /// They may be outdated: the Node may have recovered since.
    MaybeOld,
}

impl Sight {
    /// The freshness of the Nodes in this store.
    pub fn through(view: &Store<NodeSnapshot>) -> Self {
        if view.is_current() { Self::Current } else { Self::MaybeOld }
    }

    /// The same under this freeze and its cause. A doubtful clock alone does not make the stored Nodes outdated.
    #[must_use]
    pub fn under(self, freeze: Freeze, silence: Silence, clock: Option<ClockTrouble>) -> Self {
        match (freeze, silence, clock) {
            (Freeze::Flowing, _, _) | (Freeze::Frozen, Silence::None, Some(_)) => self,
            (Freeze::Frozen, Silence::None, None) | (Freeze::Frozen, Silence::Target | Silence::Control, _) => {
                Self::MaybeOld
            }
        }
    }
}

/// One episode of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Spell {
    /// When it began by the target cluster's clock; compared only with other times of the same clock.
    transition: Option<Timestamp>,
    /// When this process first saw it, in steady time.
    since: Timestamp,
}

/// The faults of a Node, and since when this process has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ailments(BTreeMap<Ailment, Spell>);

impl Ailments {
    /// The faults of the Node at this steady time, continued from the earlier ones.
    pub fn of(node: &NodeSnapshot, sight: Sight, before: &Self, steady: Timestamp) -> Self {
        if sight == Sight::MaybeOld {
            return Self::default();
        }
        Self::seen_on(node, |ailment, transition| {
            let same = before.0.get(&ailment).filter(|spell| spell.transition == transition);
            same.map_or(steady, |spell| spell.since)
        })
    }

    /// The same for a process that has watched the Node from the beginning, by its own clock.
    pub fn from_the_beginning(node: &NodeSnapshot, steady: Timestamp) -> Self {
        Self::seen_on(node, |_, transition| transition.unwrap_or(steady))
    }

    fn seen_on(node: &NodeSnapshot, since: impl Fn(Ailment, Option<Timestamp>) -> Timestamp) -> Self {
        let spell = |ailment: Ailment| {
            let transition = ailment.told_by(node)?.last_transition_time.as_ref().map(|time| time.0);
            Some((ailment, Spell { transition, since: since(ailment, transition) }))
        };
        Self(Ailment::ALL.into_iter().filter_map(spell).collect())
    }

    /// Whether a fault has lasted for more than five minutes.
    pub fn are_lasting(&self, steady: Timestamp) -> bool {
        self.0.values().any(|spell| since(steady, spell.since) > FORCES_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
    use rstest::rstest;

    use super::*;
    use crate::machine::testing::*;

    /// A Node with a condition that changed at this second of the target cluster's clock.
    fn since_second(kind: &str, status: &str, second: i64) -> Node {
        let told = NodeCondition {
            last_transition_time: Some(Time(at(second))),
            ..crate::machine::testing::condition(kind, status)
        };
        node(vec![told])
    }

    /// Whether the Node counts as unhealthy for long, when it was seen like this at these seconds.
    fn lasting(looks: &[(i64, Node)]) -> bool {
        let mut ailments = Ailments::default();
        for (second, node) in looks {
            ailments = Ailments::of(&node.clone().into(), Sight::Current, &ailments, at(*second));
        }
        looks.last().is_some_and(|(second, _)| ailments.are_lasting(at(*second)))
    }

    #[rstest]
    #[case::mc_165_not_ready_for_long("Ready", "False", 301, true)]
    #[case::mc_165_unknown_for_long("Ready", "Unknown", 301, true)]
    #[case::not_yet("Ready", "False", 300, false)]
    #[case::read_only("ReadonlyFilesystem", "True", 301, true)]
    #[case::well("Ready", "True", 301, false)]
    fn an_ailment_lasts(#[case] kind: &str, #[case] status: &str, #[case] second: i64, #[case] expected: bool) {
        let node = || since_second(kind, status, 0);
        assert_eq!(lasting(&[(0, node()), (second, node())]), expected);
    }

    #[rstest]
    #[case::behind_by_hours(-7200)]
    #[case::ahead_by_hours(7200)]
    fn the_target_clusters_clock_decides_nothing(#[case] target_ahead: i64) {
        let ill = || since_second("Ready", "False", target_ahead);
        assert!(!lasting(&[(0, ill())]) && !lasting(&[(0, ill()), (300, ill())]));
        assert!(lasting(&[(0, ill()), (301, ill())]));
    }

    #[rstest]
    #[case::seen_all_the_time(&[(0, Sight::Current), (301, Sight::Current)], true)]
    #[case::seen_in_an_old_view(&[(0, Sight::Current), (301, Sight::MaybeOld)], false)]
    #[case::long_known_before_the_view_grew_old(&[(0, Sight::Current), (301, Sight::Current), (302, Sight::MaybeOld)], false)]
    #[case::seen_again_after_an_outage(&[(0, Sight::Current), (5, Sight::MaybeOld), (400, Sight::Current)], false)]
    #[case::and_for_long(&[(0, Sight::Current), (5, Sight::MaybeOld), (400, Sight::Current), (701, Sight::Current)], true)]
    fn time_out_of_sight_is_no_time_of_illness(#[case] looks: &[(i64, Sight)], #[case] expected: bool) {
        let (mut ailments, mut lasting) = (Ailments::default(), false);
        for (second, sight) in looks {
            ailments = Ailments::of(&since_second("Ready", "False", 0).into(), *sight, &ailments, at(*second));
            lasting = ailments.are_lasting(at(*second));
        }
        assert_eq!(lasting, expected);
    }

    #[rstest]
    #[case::nothing_is_amiss(Freeze::Flowing, Silence::None, None, Sight::Current)]
    #[case::a_probe_has_failed(Freeze::Flowing, Silence::Target, None, Sight::Current)]
    #[case::the_target_cluster_is_silent(Freeze::Frozen, Silence::Target, None, Sight::MaybeOld)]
    #[case::it_answers_and_the_views_are_behind(Freeze::Frozen, Silence::None, None, Sight::MaybeOld)]
    #[case::the_control_cluster_is_silent(Freeze::Frozen, Silence::Control, None, Sight::MaybeOld)]
    #[case::only_the_clock_is_in_doubt(Freeze::Frozen, Silence::None, Some(ClockTrouble::Stepped), Sight::Current)]
    #[case::the_clock_too(Freeze::Frozen, Silence::Target, Some(ClockTrouble::Stepped), Sight::MaybeOld)]
    fn nodes_are_seen(
        #[case] freeze: Freeze,
        #[case] silence: Silence,
        #[case] clock: Option<ClockTrouble>,
        #[case] expected: Sight,
    ) {
        assert_eq!(Sight::Current.under(freeze, silence, clock), expected);
        assert_eq!(Sight::MaybeOld.under(freeze, silence, clock), Sight::MaybeOld, "a view that is not fed");
    }

    #[test]
    fn an_ailment_that_went_and_came_again_is_another_one() {
        let ill = |began| since_second("Ready", "False", began);
        assert!(!lasting(&[(0, ill(0)), (200, ill(190)), (400, ill(190))]));
        assert!(!lasting(&[(0, ill(0)), (200, since_second("Ready", "True", 190)), (400, ill(390))]));
    }
}
