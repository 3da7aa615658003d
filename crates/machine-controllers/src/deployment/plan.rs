//! What a decision about a deployment comes to: a list of effects, each with the name of its rule, and when to look again.

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

/// What a failure of an effect means for those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OnFailure {
    /// The plan ends; the pass is run again.
    EndPlan,
    /// The plan goes on; the pass is run again at its end.
    GoOn,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Effect {
    /// Puts our finalizer on the deployment.
    AddFinalizer,
    /// Takes our finalizer off the deployment.
    RemoveFinalizer,
    /// Writes on the deployment which revision it has.
    WriteRevision(String),
    /// Writes the scaler's list of machines to delete anew; `None` removes it.
    WriteTriggerList(Option<String>),
    /// Gives the deployment the template and the annotations of an earlier revision, and takes the wish for it off.
    RollBack(Box<MachineDeployment>),
    /// Counts on the deployment that the name of a set was taken.
    CountCollision(i32),
    /// Writes the status of the deployment.
    WriteStatus(Box<MachineDeploymentStatus>),
    /// Creates the set that the present template asks for.
    CreateSet(Box<MachineSet>),
    /// Brings metadata and specification of a set in line. One that is gone is left alone.
    SyncSet {
        /// The set.
        set: SetSnapshot,
        /// What it shall be.
        wanted: Box<MachineSet>,
    },
    /// Says on a set whether it may make machines. One that is gone is left alone.
    SetGrowth(SetSnapshot, Growth),
    /// Says on a set whether its Nodes have the taint of old sets. One that is gone is left alone.
    MarkTainted(SetSnapshot, Tainted),
    /// Changes how many machines a set wants, or what it remembers of the deployment's size.
    ScaleSet {
        /// The set.
        set: SetSnapshot,
        /// Machines it shall want.
        to: i32,
        /// Annotations that remember the deployment's size, where they change.
        remembered: Labels,
    },
    /// Takes an orphan over; the deployment is read again first, for it may have been deleted or replaced.
    AdoptSet(SetSnapshot),
    /// Lets a set go that does not fit any more. One that is gone or has changed meanwhile is left alone.
    ReleaseSet(SetSnapshot),
    /// Deletes a set.
    DeleteSet {
        /// The set.
        set: Target,
        /// Only in this version: it may have been sized or have lost its owner since.
        version: Option<String>,
    },
    /// Changes labels and annotations of a machine. One that is gone is left alone.
    MarkMachine {
        /// The machine.
        machine: MachineSnapshot,
        /// Labels.
        labels: Changes,
        /// Annotations.
        annotations: Changes,
    },
    /// Makes a machine one of the new set. One that is gone is left alone.
    HandOver {
        /// The machine.
        machine: MachineSnapshot,
        /// Its set.
        from: SetSnapshot,
        /// The new set.
        to: SetSnapshot,
    },
    /// Changes a Node. One that is gone is left alone.
    ChangeNode {
        /// The Node.
        node: NodeSnapshot,
        /// How.
        change: Box<NodeChange>,
        /// What a failure means.
        on_failure: OnFailure,
    },
    /// Tells of something on the deployment.
    Tell(EventNote),
}

/// Whether a set may make machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Growth {
    /// It may not, while machines move to another one.
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

/// An object that an effect changes and that decisions count on.
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
    /// Deletes a set as it was seen.
    pub fn delete(set: &SetSnapshot) -> Self {
        Self::DeleteSet { set: set.target(), version: set.resource_version().map(str::to_owned) }
    }

    /// Whether the effect makes machines, now or by and by. A frozen deployment has no such effects (D-18).
    pub fn grows(&self) -> bool {
        match self {
            Self::CreateSet(_) => true,
            Self::ScaleSet { set, to, .. } => *to > set.replicas(),
            _ => false,
        }
    }
}

/// An effect and the rule it follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the rule, for logs, the journal and the audit of the gate.
    pub rule: &'static str,
    /// What to do.
    pub effect: Effect,
}

/// All that is to be done now, in order, and when to look again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// What to do.
    pub steps: Vec<Step>,
    /// When to look again if nothing changes.
    pub next: Next,
}

impl Plan {
    /// Adds a step.
    pub fn push(&mut self, rule: &'static str, effect: Effect) {
        self.steps.push(Step { rule, effect });
    }
}
