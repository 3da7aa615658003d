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
    fn shown_by(self, node: &NodeSnapshot) -> Option<&NodeCondition> {
        let (kind, well) = match self {
            Self::NotReady => ("Ready", "True"),
            Self::ReadOnly => ("ReadonlyFilesystem", "False"),
        };
        condition(node.conditions(), kind).filter(|condition| condition.status != well)
    }
}

/// Whether the stored Nodes are the same as in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// They are.
    Current,
    /// They may be outdated: the Node may have recovered since.
    MaybeOutdated,
}

impl Freshness {
    /// The freshness of the Nodes in this store.
    pub fn of_store(view: &Store<NodeSnapshot>) -> Self {
        if view.is_current() { Self::Current } else { Self::MaybeOutdated }
    }

    /// The same under this freeze and its cause. A doubtful clock alone does not make the stored Nodes outdated.
    #[must_use]
    pub fn under(self, freeze: Freeze, silence: Silence, clock: Option<ClockTrouble>) -> Self {
        match (freeze, silence, clock) {
            (Freeze::Flowing, _, _) | (Freeze::Frozen, Silence::None, Some(_)) => self,
            (Freeze::Frozen, Silence::None, None) | (Freeze::Frozen, Silence::Target | Silence::Control, _) => {
                Self::MaybeOutdated
            }
        }
    }
}

/// One episode of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Episode {
    /// When it began by the target cluster's clock; compared only with other times of the same clock.
    transition: Option<Timestamp>,
    /// When this process first saw it, in steady time.
    since: Timestamp,
}

/// The faults of a Node, and since when this process has seen them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Ailments(BTreeMap<Ailment, Episode>);

impl Ailments {
    /// The faults of the Node at this steady time, continued from the earlier ones.
    pub fn of(node: &NodeSnapshot, freshness: Freshness, before: &Self, steady: Timestamp) -> Self {
        if freshness == Freshness::MaybeOutdated {
            return Self::default();
        }
        Self::seen_on(node, |ailment, transition| {
            let same = before.0.get(&ailment).filter(|episode| episode.transition == transition);
            same.map_or(steady, |episode| episode.since)
        })
    }

    /// The same for a process that has watched the Node from the beginning, by its own clock.
    pub fn from_the_beginning(node: &NodeSnapshot, steady: Timestamp) -> Self {
        Self::seen_on(node, |_, transition| transition.unwrap_or(steady))
    }

    fn seen_on(node: &NodeSnapshot, since: impl Fn(Ailment, Option<Timestamp>) -> Timestamp) -> Self {
        let episode = |ailment: Ailment| {
            let transition = ailment.shown_by(node)?.last_transition_time.as_ref().map(|time| time.0);
            Some((ailment, Episode { transition, since: since(ailment, transition) }))
        };
        Self(Ailment::ALL.into_iter().filter_map(episode).collect())
    }

    /// Whether a fault has lasted for more than five minutes.
    pub fn are_lasting(&self, steady: Timestamp) -> bool {
        self.0.values().any(|episode| since(steady, episode.since) > FORCES_AFTER)
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
        let changed = NodeCondition {
            last_transition_time: Some(Time(at(second))),
            ..crate::machine::testing::condition(kind, status)
        };
        node(vec![changed])
    }

    /// Whether the Node counts as unhealthy for long, when it was seen like this at these seconds.
    fn lasting(looks: &[(i64, Node)]) -> bool {
        let mut ailments = Ailments::default();
        for (second, node) in looks {
            ailments = Ailments::of(&node.clone().into(), Freshness::Current, &ailments, at(*second));
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
        let unhealthy = || since_second("Ready", "False", target_ahead);
        assert!(!lasting(&[(0, unhealthy())]) && !lasting(&[(0, unhealthy()), (300, unhealthy())]));
        assert!(lasting(&[(0, unhealthy()), (301, unhealthy())]));
    }

    #[rstest]
    #[case::seen_all_the_time(&[(0, Freshness::Current), (301, Freshness::Current)], true)]
    #[case::seen_in_an_old_view(&[(0, Freshness::Current), (301, Freshness::MaybeOutdated)], false)]
    #[case::long_known_before_the_view_grew_old(&[(0, Freshness::Current), (301, Freshness::Current), (302, Freshness::MaybeOutdated)], false)]
    #[case::seen_again_after_an_outage(&[(0, Freshness::Current), (5, Freshness::MaybeOutdated), (400, Freshness::Current)], false)]
    #[case::and_for_long(&[(0, Freshness::Current), (5, Freshness::MaybeOutdated), (400, Freshness::Current), (701, Freshness::Current)], true)]
    fn time_without_current_nodes_does_not_count_as_unhealthy(
        #[case] looks: &[(i64, Freshness)],
        #[case] expected: bool,
    ) {
        let (mut ailments, mut lasting) = (Ailments::default(), false);
        for (second, freshness) in looks {
            ailments = Ailments::of(&since_second("Ready", "False", 0).into(), *freshness, &ailments, at(*second));
            lasting = ailments.are_lasting(at(*second));
        }
        assert_eq!(lasting, expected);
    }

    #[rstest]
    #[case::nothing_is_amiss(Freeze::Flowing, Silence::None, None, Freshness::Current)]
    #[case::a_probe_has_failed(Freeze::Flowing, Silence::Target, None, Freshness::Current)]
    #[case::the_target_cluster_is_silent(Freeze::Frozen, Silence::Target, None, Freshness::MaybeOutdated)]
    #[case::it_answers_and_the_views_are_behind(Freeze::Frozen, Silence::None, None, Freshness::MaybeOutdated)]
    #[case::the_control_cluster_is_silent(Freeze::Frozen, Silence::Control, None, Freshness::MaybeOutdated)]
    #[case::only_the_clock_is_in_doubt(Freeze::Frozen, Silence::None, Some(ClockTrouble::Stepped), Freshness::Current)]
    #[case::the_clock_too(Freeze::Frozen, Silence::Target, Some(ClockTrouble::Stepped), Freshness::MaybeOutdated)]
    fn nodes_are_seen(
        #[case] freeze: Freeze,
        #[case] silence: Silence,
        #[case] clock: Option<ClockTrouble>,
        #[case] expected: Freshness,
    ) {
        assert_eq!(Freshness::Current.under(freeze, silence, clock), expected);
        assert_eq!(
            Freshness::MaybeOutdated.under(freeze, silence, clock),
            Freshness::MaybeOutdated,
            "a view that is not fed"
        );
    }

    #[test]
    fn an_ailment_that_went_and_came_again_is_another_one() {
        let unhealthy = |began| since_second("Ready", "False", began);
        assert!(!lasting(&[(0, unhealthy(0)), (200, unhealthy(190)), (400, unhealthy(190))]));
        assert!(!lasting(&[(0, unhealthy(0)), (200, since_second("Ready", "True", 190)), (400, unhealthy(390))]));
    }
}
