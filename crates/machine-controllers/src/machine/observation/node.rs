//! A machine's Node in an observation: its owner, its drain, its attachments, and failed writes.

use std::time::Duration;

use jiff::Timestamp;
use machine_driver::SameInstance;
use serde::Serialize;

use crate::{
    drain::{
        progress::{Attempt, Failure},
        waiting::Waiting,
    },
    snapshots::NodeSnapshot,
};

/// The Node of a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum NodeView {
    /// There is no target cluster.
    NoTarget,
    /// The machine has no Node on its label; its Node may exist nevertheless.
    NotLinked {
        /// Name of a Node that is the machine's nevertheless, by the Node's label or its instance.
        candidate: Option<String>,
        /// The Node with the name that the driver answered, if it exists.
        namesake: Option<Namesake>,
    },
    /// The Node of the label does not exist.
    Absent,
    /// The Node of the label was removed while this process watched.
    Vanished,
    /// The Node exists and belongs to the machine.
    Ours(NodeSnapshot),
    /// A Node of that name exists but belongs to something else.
    Foreign {
        /// Its name.
        name: String,
        /// Why it counts as foreign.
        why: String,
    },
    /// A Node of that name exists, the IDs do not decide its owner, and another machine has the better claim by name.
    Contested {
        /// Its name.
        name: String,
        /// The other machine, as a text.
        why: String,
    },
}

/// A Node with the name of a VM that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Namesake {
    /// Whether its provider ID and the VM's provider ID name the same instance.
    pub instance: SameInstance,
    /// When it registered.
    pub created: Option<Timestamp>,
}

/// Whether the driver can confirm that the Node which is treated as the machine's belongs to the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum NodeIdentity {
    /// It can, or there is nothing to compare yet.
    #[default]
    Told,
    /// It can't: both have a provider ID, and it is unknown whether they name the same instance. Names have decided.
    Unknown {
        /// The ID of the Node.
        node: String,
    },
}

impl NodeView {
    /// The Node, if it exists and is ours.
    pub fn ours(&self) -> Option<&NodeSnapshot> {
        match self {
            Self::Ours(node) => Some(node),
            Self::NoTarget
            | Self::NotLinked { .. }
            | Self::Absent
            | Self::Vanished
            | Self::Foreign { .. }
            | Self::Contested { .. } => None,
        }
    }
}

/// A drain, as far as it was stepped in this pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub enum DrainState {
    /// Not stepped yet.
    #[default]
    Due,
    /// The views of pods are not complete yet.
    Warming,
    /// Under way.
    Running {
        /// Its progress, for people.
        progress: String,
        /// The budget that refuses evictions.
        blocked_by: Option<String>,
        /// The object that the drain waits for.
        waiting: Option<Waiting>,
        /// Whether it only repeats the attempt before.
        attempt: Attempt,
        /// When to step again, at the latest.
        wake: Duration,
    },
    /// Done.
    Drained,
    /// It failed, for this reason.
    Failed(Failure),
}

/// A volume attachment on the Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachmentView {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is being deleted already.
    pub deleting: bool,
}

/// The source of the knowledge about the Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum NodeSource {
    /// The store, which may lag, or be as old as a suspension of this process.
    #[default]
    View,
    /// The API server, in this pass.
    Live,
}

/// A step whose failure is reported; all steps but the last are on the target cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NodeStep {
    /// Marking the node as unschedulable.
    Cordon,
    /// Writing the condition `Terminating`.
    TerminatingCondition,
    /// Deleting volume attachments.
    Attachments,
    /// Looking for the Node before the machine's finalizer is removed.
    LastLook,
    /// Deleting the Node.
    Delete,
    /// Removing our finalizer from the Node.
    Finalizer,
    /// Writing finalizer, labels, annotations and taints of the Node.
    Metadata,
    /// Writing what a preservation adds to the Node, and removing it.
    Preservation,
    /// Writing the condition `InPlaceUpdate`.
    InPlaceCondition,
    /// Removing our finalizer from the machine.
    LetGo,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepFailure {
    /// The step.
    pub step: NodeStep,
    /// The error.
    pub error: String,
}

/// The steps that failed in a pass. Each step is tried once in a pass, whatever else fails in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepFailures(Vec<StepFailure>);

impl StepFailures {
    /// Adds a failed step.
    pub fn push(&mut self, failure: StepFailure) {
        self.0.retain(|known| known.step != failure.step);
        self.0.push(failure);
    }

    /// The failure of this step.
    pub fn at(&self, step: NodeStep) -> Option<&StepFailure> {
        self.0.iter().find(|failure| failure.step == step)
    }

    /// The step that failed last.
    pub fn latest(&self) -> Option<&StepFailure> {
        self.0.last()
    }

    /// Whether nothing failed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<StepFailure> for StepFailures {
    fn from(failure: StepFailure) -> Self {
        Self(vec![failure])
    }
}
