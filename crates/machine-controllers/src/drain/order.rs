//! What is ordered of a drain, by the flow of a machine that needs its node empty.

use jiff::Timestamp;
use serde::Serialize;

/// Whether something is to be done by force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Force {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

/// What a node is drained for. Each flow looks at the pods for itself: a list that another one made days ago says nothing
/// about those of today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DrainFlow {
    /// The deletion of its machine.
    Deletion,
    /// The preservation of its machine, which failed at that time.
    Preservation(Option<Timestamp>),
    /// The update in place that it was selected for at that time.
    Update(Option<Timestamp>),
}

/// How a node is to be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainOrder {
    /// Name of the node.
    pub node: String,
    /// UID of the node. A node that has registered anew has other pods.
    pub node_uid: String,
    /// What it is drained for.
    pub flow: DrainFlow,
    /// Whether pods are deleted at once.
    pub force: Force,
    /// When the attempt has failed, in the steady time.
    pub deadline: Timestamp,
}
