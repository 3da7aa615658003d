//! The order of a drain, given by the flow of a machine that needs its node empty.

use jiff::Timestamp;
use serde::Serialize;

/// Whether to use force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Force {
    /// No.
    #[default]
    No,
    /// Yes.
    Yes,
}

/// The purpose of a drain. Each flow lists the pods itself: a list that another flow made days ago is outdated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DrainFlow {
    /// The deletion of its machine.
    Deletion,
    /// The preservation of its machine, which became Failed at that time.
    Preservation(Option<Timestamp>),
    /// The update in place for which it was selected at that time.
    Update(Option<Timestamp>),
}

/// How a node is to be drained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainOrder {
    /// Name of the node.
    pub node: String,
    /// UID of the node. A node that has registered again has other pods.
    pub node_uid: String,
    /// The purpose of the drain.
    pub flow: DrainFlow,
    /// Whether pods are deleted at once.
    pub force: Force,
    /// When the attempt fails, on the steady clock.
    pub deadline: Timestamp,
}
