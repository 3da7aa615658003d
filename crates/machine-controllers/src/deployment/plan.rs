//! The plan for a deployment: a list of effects, each with the name of its rule, and the time of the next pass.

use std::fmt;

use crate::{
    changes::Changes,
    snapshots::{MachineSnapshot, NodeSnapshot},
};
use controller_runtime::{
    events::EventNote,
    key::{ObjectKey, Target},
    snapshot::Snapshot,
};
use kube_values::selector::Labels;
use serde::Serialize;

use super::node_change::NodeChange;
pub use crate::set::plan::Next;
use crate::snapshots::SetSnapshot;
use machine_api::v1alpha1::{MachineDeployment, MachineDeploymentStatus, MachineSet};

/// Whether the plan continues after a failure of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OnFailure {
    /// The plan ends; the pass is repeated.
    EndPlan,
    /// The plan continues; the pass is repeated afterwards.
    GoOn,
}

/// One effect.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Effect {
    /// Adds our finalizer to the deployment.
    AddFinalizer,
    /// Removes our finalizer from the deployment.
    RemoveFinalizer,
    /// Writes the deployment's revision.
    WriteRevision(String),
    /// Replaces the scaler's list of machines to delete; `None` removes it.
    WriteTriggerList(Option<String>),
    /// Gives the deployment the template and the annotations of an earlier revision, and removes the request.
    RollBack(Box<MachineDeployment>),
    /// Increases the collision count of the deployment, because the name of a set was taken.
    CountCollision(i32),
    /// Writes the status of the deployment.
    WriteStatus(Box<MachineDeploymentStatus>),
    /// Creates the set of the present template.
    CreateSet(Box<MachineSet>),
    /// Updates metadata and `spec` of a set. Ignores a set that is gone.
    SyncSet {
        /// The set.
        set: SetSnapshot,
        /// The wanted set.
        wanted: Box<MachineSet>,
    },
    /// Allows or forbids a set to create machines. Ignores a set that is gone.
    SetGrowth(SetSnapshot, Growth),
    /// Marks on a set whether its Nodes have the taint of old sets. Ignores a set that is gone.
    MarkTainted(SetSnapshot, Tainted),
    /// Changes the wanted number of machines of a set, or the deployment size that the set remembers.
    ScaleSet {
        /// The set.
        set: SetSnapshot,
        /// The wanted number of machines.
        to: i32,
        /// Changed annotations that remember the deployment's size.
        remembered: Labels,
    },
    /// Adopts an orphan. The deployment is read again first: it may have been deleted or replaced.
    AdoptSet(SetSnapshot),
    /// Releases a set that does not match any more. Ignores a set that is gone or has changed meanwhile.
    ReleaseSet(SetSnapshot),
    /// Deletes a set.
    DeleteSet {
        /// The set.
        set: Target,
        /// The version to delete: the set may have been sized or have lost its owner since.
        version: Option<String>,
    },
    /// Changes labels and annotations of a machine. Ignores a machine that is gone.
    MarkMachine {
        /// The machine.
        machine: MachineSnapshot,
        /// Labels.
        labels: Changes,
        /// Annotations.
        annotations: Changes,
    },
    /// Moves a machine to the new set. Ignores a machine that is gone.
    HandOver {
        /// The machine.
        machine: MachineSnapshot,
        /// Its set.
        from: SetSnapshot,
        /// The new set.
        to: SetSnapshot,
    },
    /// Changes a Node. Ignores a Node that is gone.
    ChangeNode {
        /// The Node.
        node: NodeSnapshot,
        /// The change.
        change: Box<NodeChange>,
        /// Whether the plan continues after a failure.
        on_failure: OnFailure,
    },
    /// Writes an event about the deployment.
    Tell(EventNote),
}

/// Whether a set may make machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Growth {
    /// It may not, because machines are moving to another set.
    Blocked,
    /// It may.
    Free,
}

/// Whether the Nodes of a set have the taint of old sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Tainted {
    /// All of them.
    Yes,
    /// None of them.
    No,
}

/// An object that an effect changes and that decisions count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// A set.
    Set(ObjectKey),
    /// A machine.
    Machine(ObjectKey),
    /// A Node.
    Node(ObjectKey),
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(key) => write!(f, "machineset {key}"),
            Self::Machine(key) => write!(f, "machine {key}"),
            Self::Node(key) => write!(f, "node {key}"),
        }
    }
}

impl Effect {
    /// Deletes a set in its observed version.
    pub fn delete(set: &SetSnapshot) -> Self {
        Self::DeleteSet { set: set.target(), version: set.resource_version().map(str::to_owned) }
    }

    /// Whether the effect creates machines, now or later. A frozen deployment has no such effects (D-18).
    pub fn grows(&self) -> bool {
        match self {
            Self::CreateSet(_) => true,
            Self::ScaleSet { set, to, .. } => *to > set.replicas(),
            _ => false,
        }
    }
}

/// An effect and the rule that caused it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the rule, for logs, the journal and the audit of the gate.
    pub rule: &'static str,
    /// The effect.
    pub effect: Effect,
}

/// All effects to carry out now, in order, and the time of the next pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The effects in order.
    pub steps: Vec<Step>,
    /// The time of the next pass if nothing changes.
    pub next: Next,
}

impl Plan {
    /// Adds a step.
    pub fn push(&mut self, rule: &'static str, effect: Effect) {
        self.steps.push(Step { rule, effect });
    }
}
