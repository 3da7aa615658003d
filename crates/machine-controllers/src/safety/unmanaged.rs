//! Decides what to do with a Node, given the machines that name it in their label.
//!
//! A Node without a machine is released: our finalizer is removed, and an annotation marks the Node as unmanaged. This
//! happens only after the API server itself has said that there is no machine (decision 16). Source:
//! spec/machine-controller §9.2, M-56, M-58.

use std::time::Duration;

use jiff::Timestamp;
use machine_api::names::annotation;
use serde::Serialize;

use crate::{machine::observation::Freeze, snapshots::NodeSnapshot};

/// Version of the observation's serialised form.
pub const OBSERVATION_VERSION: u32 = 1;

/// The answer of the API server to a list of machines by label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LiveAnswer {
    /// The API server was not asked.
    NotAsked,
    /// There is no machine.
    NoMachine,
    /// There is at least one machine; the store does not have it yet.
    SomeMachine,
}

/// Everything that the decision about one Node depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the decision.
    pub now: Timestamp,
    /// Whether decisions are suspended.
    pub freeze: Freeze,
    /// Machines in the store that name this Node in their label.
    pub machines: Vec<String>,
    /// The answer of the API server about such machines.
    pub live: LiveAnswer,
    /// When the Node was made.
    pub created: Option<Timestamp>,
    /// Whether the Node is being deleted.
    pub deleting: bool,
    /// Whether the Node has our finalizer.
    pub finalizer: bool,
    /// Whether the Node is annotated as unmanaged.
    pub marked: bool,
    /// The age up to which a Node may have no machine.
    pub max_age: Duration,
}

impl Observation {
    /// The observation of the Node itself, without its machines.
    pub fn of(node: &NodeSnapshot, now: Timestamp, max_age: Duration) -> Self {
        Self {
            version: OBSERVATION_VERSION,
            now,
            freeze: Freeze::Flowing,
            machines: Vec::new(),
            live: LiveAnswer::NotAsked,
            created: node.created(),
            deleting: node.is_deleting(),
            finalizer: node.is_held(),
            marked: node.annotation(annotation::NOT_MANAGED).is_some(),
            max_age,
        }
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Plan {
    /// Do nothing.
    Keep,
    /// Do nothing now; decide again after this time.
    LookAgain(Duration),
    /// Ask the API server for machines that name this Node in their label.
    Ask,
    /// Remove our finalizer and annotate the Node as unmanaged.
    Release,
    /// Remove the annotation.
    Unmark,
    /// Several machines name the Node.
    Contested,
}

/// Pause while the loops are frozen.
const FROZEN_PAUSE: Duration = Duration::from_secs(30);

/// Decides what to do with the Node.
pub fn decide(seen: &Observation) -> Plan {
    match (seen.machines.len(), seen.marked) {
        (0, _) => without_machine(seen),
        (1, true) => Plan::Unmark,
        (1, false) => Plan::Keep,
        _ => Plan::Contested,
    }
}

fn without_machine(seen: &Observation) -> Plan {
    let is_released = seen.marked && !seen.finalizer;
    // Hurry only if our own finalizer delays the deletion (M-58).
    let is_urgent = seen.deleting && seen.finalizer;
    if is_released || (seen.deleting && !seen.finalizer) {
        return Plan::Keep;
    }
    let age = seen.created.and_then(|created| Duration::try_from(seen.now.duration_since(created)).ok());
    let left = seen.max_age.saturating_sub(age.unwrap_or_default());
    if !is_urgent && !left.is_zero() {
        return Plan::LookAgain(left);
    }
    if seen.freeze == Freeze::Frozen {
        return Plan::LookAgain(FROZEN_PAUSE);
    }
    match seen.live {
        LiveAnswer::NotAsked => Plan::Ask,
        LiveAnswer::NoMachine => Plan::Release,
        // The change of the store will wake the Node.
        LiveAnswer::SomeMachine => Plan::Keep,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MINUTE: i64 = 60;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// A Node of this age in minutes, with our finalizer and without a machine.
    fn node(minutes: i64) -> Observation {
        Observation {
            version: OBSERVATION_VERSION,
            now: at(minutes * MINUTE),
            freeze: Freeze::Flowing,
            machines: Vec::new(),
            live: LiveAnswer::NotAsked,
            created: Some(at(0)),
            deleting: false,
            finalizer: true,
            marked: false,
            max_age: Duration::from_secs(20 * 60),
        }
    }

    fn of(machines: usize, mut node: Observation) -> Observation {
        node.machines = vec!["m".to_owned(); machines];
        node
    }

    fn answered(live: LiveAnswer, node: Observation) -> Observation {
        Observation { live, ..node }
    }

    #[rstest]
    #[case::mc_251_young(node(19), Plan::LookAgain(Duration::from_secs(60)))]
    #[case::mc_252_old_the_api_server_is_asked_first(node(21), Plan::Ask)]
    #[case::mc_252_old_and_really_without_a_machine(answered(LiveAnswer::NoMachine, node(21)), Plan::Release)]
    #[case::the_store_was_late(answered(LiveAnswer::SomeMachine, node(21)), Plan::Keep)]
    #[case::released_already(Observation { marked: true, finalizer: false, ..node(21) }, Plan::Keep)]
    #[case::marked_but_still_held(answered(LiveAnswer::NoMachine, Observation { marked: true, ..node(21) }), Plan::Release)]
    #[case::mc_253_adopted(of(1, Observation { marked: true, finalizer: false, ..node(21) }), Plan::Unmark)]
    #[case::managed(of(1, node(21)), Plan::Keep)]
    #[case::mc_032_two_machines(of(2, node(21)), Plan::Contested)]
    #[case::deleted_by_somebody_and_held_up_by_us(Observation { deleting: true, ..node(1) }, Plan::Ask)]
    #[case::deleted_and_not_ours(Observation { deleting: true, finalizer: false, ..node(30) }, Plan::Keep)]
    #[case::frozen(Observation { freeze: Freeze::Frozen, ..node(21) }, Plan::LookAgain(FROZEN_PAUSE))]
    fn a_node_without_a_machine_is_let_go(#[case] seen: Observation, #[case] plan: Plan) {
        assert_eq!(decide(&seen), plan);
    }
}
