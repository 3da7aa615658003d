//! What a rollout changes on a Node, as a value, and the taint that keeps new pods off the Nodes of old sets.

use k8s_openapi::api::core::v1::Taint;
use serde::Serialize;

use crate::{changes::Changes, snapshots::NodeSnapshot};
use machine_api::names::taint;

/// Value of the taint.
pub const MARKER_VALUE: &str = "True";
/// Effect of the taint.
pub const EFFECT: &str = "PreferNoSchedule";

/// What becomes of a Node's taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub enum TaintChange {
    /// They stay.
    #[default]
    Keep,
    /// The taint of old sets is added.
    Add,
    /// The taint of old sets is taken off.
    Remove,
    /// They are all replaced.
    Replace(Vec<Taint>),
}

/// What becomes of a Node's cordon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Cordon {
    /// It stays, if there is one.
    #[default]
    Keep,
    /// The Node takes pods again.
    Lift,
}

/// Whether a change may hit another version of the Node than the observed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Guard {
    /// Any version.
    #[default]
    Any,
    /// Only the observed one.
    Observed,
}

/// What a rollout changes on a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeChange {
    /// Labels.
    pub labels: Changes,
    /// Annotations.
    pub annotations: Changes,
    /// Taints.
    pub taints: TaintChange,
    /// Cordon.
    pub cordon: Cordon,
    /// Which version it may hit.
    pub guard: Guard,
}

impl NodeChange {
    /// Only these labels.
    pub fn of_labels(labels: impl IntoIterator<Item = (String, Option<String>)>) -> Self {
        Self { labels: labels.into_iter().collect(), ..Self::default() }
    }

    /// Only these annotations.
    pub fn of_annotations(annotations: impl IntoIterator<Item = (String, Option<String>)>) -> Self {
        Self { annotations: annotations.into_iter().collect(), ..Self::default() }
    }

    /// Only the taints.
    pub fn of_taints(taints: TaintChange) -> Self {
        Self { taints, ..Self::default() }
    }

    /// Takes in what another rule changes on the same Node in the same pass. A whole list of taints was made with all of them in
    /// mind.
    pub fn absorb(&mut self, other: Self) {
        self.labels.extend(other.labels);
        self.annotations.extend(other.annotations);
        match (&self.taints, other.taints) {
            (_, TaintChange::Keep) | (TaintChange::Replace(_), TaintChange::Add | TaintChange::Remove) => {}
            (_, taints) => self.taints = taints,
        }
        if other.cordon == Cordon::Lift {
            self.cordon = Cordon::Lift;
        }
        if other.guard == Guard::Observed {
            self.guard = Guard::Observed;
        }
    }
}

/// The taint of old sets and its place on the Node.
pub fn our_taint(node: &NodeSnapshot) -> Option<(usize, &Taint)> {
    node.taints().iter().enumerate().find(|(_, found)| is_ours(found))
}

/// Whether the Node has the taint of old sets as it should be.
pub fn is_marked(node: &NodeSnapshot) -> bool {
    our_taint(node).is_some_and(|(_, found)| found.value.as_deref() == Some(MARKER_VALUE))
}

/// The taints of a Node but for the one of old sets.
pub fn without_old_taint(node: &NodeSnapshot) -> Vec<Taint> {
    let mut taints = node.taints().to_vec();
    taints.retain(|found| !is_ours(found));
    taints
}

fn is_ours(found: &Taint) -> bool {
    found.key == taint::PREFER_NO_SCHEDULE && found.effect == EFFECT
}
