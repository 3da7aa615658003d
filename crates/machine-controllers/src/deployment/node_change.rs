//! The changes that a rollout makes to a Node, as a value; and the taint that keeps new pods off the Nodes of old sets.

use k8s_openapi::api::core::v1::Taint;
use serde::Serialize;

use crate::{changes::Changes, snapshots::NodeSnapshot};
use machine_api::names::taint;

/// Value of the taint.
pub const MARKER_VALUE: &str = "True";
/// Effect of the taint.
pub const EFFECT: &str = "PreferNoSchedule";

/// The change of a Node's taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub enum TaintChange {
    /// No change.
    #[default]
    Keep,
    /// Adds the taint of old sets.
    Add,
    /// Removes the taint of old sets.
    Remove,
    /// Replaces all taints.
    Replace(Vec<Taint>),
}

/// The change of a Node's cordon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Cordon {
    /// No change.
    #[default]
    Keep,
    /// Makes the Node schedulable.
    Lift,
}

/// Whether the change may apply to a version of the Node other than the observed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Guard {
    /// Any version.
    #[default]
    Any,
    /// Only the observed version.
    Observed,
}

/// The changes that a rollout makes to a Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeChange {
    /// Labels.
    pub labels: Changes,
    /// Annotations.
    pub annotations: Changes,
    /// Taints.
    pub taints: TaintChange,
    /// The change of the cordon.
    pub cordon: Cordon,
    /// The version to which the change may apply.
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

    /// Adds the change that another rule makes to the same Node in the same pass. A complete list of taints already
    /// contains the changes of all rules.
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

/// The taint of old sets and its index in the Node's list.
pub fn our_taint(node: &NodeSnapshot) -> Option<(usize, &Taint)> {
    node.taints().iter().enumerate().find(|(_, found)| is_ours(found))
}

/// Whether the Node has the taint of old sets with the correct value and effect.
pub fn is_marked(node: &NodeSnapshot) -> bool {
    our_taint(node).is_some_and(|(_, found)| found.value.as_deref() == Some(MARKER_VALUE))
}

/// The taints of a Node without the taint of old sets.
pub fn without_old_taint(node: &NodeSnapshot) -> Vec<Taint> {
    let mut taints = node.taints().to_vec();
    taints.retain(|found| !is_ours(found));
    taints
}

fn is_ours(found: &Taint) -> bool {
    found.key == taint::PREFER_NO_SCHEDULE && found.effect == EFFECT
}
