//! A machine's Node in an observation: whose it is, how its drain stands, what is attached, and what could not be written.

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
    /// The machine has no node label; a Node that is its own may exist.
    NotLinked {
        /// Name of a Node that is the machine's nevertheless: by its label or its instance.
        candidate: Option<String>,
        /// The Node that has the name which the driver answered, if there is such a Node.
        namesake: Option<Namesake>,
    },
    /// The Node of the label does not exist.
    Absent,
    /// The Node of the label was removed while this process watched.
    Vanished,
    /// The Node is there and belongs to the machine.
    Ours(NodeSnapshot),
    /// A Node of that name is there but belongs to something else.
    Foreign {
        /// Its name.
        name: String,
        /// How we know.
        why: String,
    },
    /// A Node of that name is there, ids don't tell whose it is, and another machine has the better claim by name.
    Contested {
        /// Its name.
        name: String,
        /// Who else has a claim.
        why: String,
    },
}

/// A Node with the name of a VM that was just made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Namesake {
    /// Whether its provider id and that of the VM name one instance.
    pub instance: SameInstance,
    /// When it registered.
    pub created: Option<Timestamp>,
}

/// Whether the driver can tell whose a Node is that counts as the machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum NodeIdentity {
    /// It can, or there is nothing to compare yet.
    #[default]
    Told,
    /// It can't: both have a provider id, and nobody knows whether they name one instance. Names have decided.
    Unknown {
        /// The id of the Node.
        node: String,
    },
}

impl NodeView {
    /// The Node, if it is there and ours.
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
        /// How far it is, for people.
        progress: String,
        /// The budget that refuses evictions.
        blocked_by: Option<String>,
        /// Whom it waits for.
        waiting: Option<Waiting>,
        /// How it stands against the attempt before.
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

/// Where what is known of the Node comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum NodeSource {
    /// The view, which may lag or be as old as a sleep of this process.
    #[default]
    View,
    /// The API server, in this very pass.
    Live,
}

/// A step that is told when it fails; all but the last are on the target cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum NodeStep {
    /// Marking the node as unschedulable.
    Cordon,
    /// Writing the condition `Terminating`.
    TerminatingCondition,
    /// Deleting volume attachments.
    Attachments,
    /// Looking for the Node before the machine is let go.
    LastLook,
    /// Deleting the Node.
    Delete,
    /// Taking our finalizer off the Node.
    Finalizer,
    /// Finalizer, labels, taints and memories of the Node.
    Metadata,
    /// What a preservation puts on the Node, and takes off it.
    Preservation,
    /// Writing the condition `InPlaceUpdate`.
    InPlaceCondition,
    /// Taking our finalizer off the machine.
    LetGo,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// What was tried.
    pub step: NodeStep,
    /// What came of it.
    pub error: String,
}

/// The steps that failed in a pass. Each is tried once in a pass, whatever else fails in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Troubles(Vec<Trouble>);

impl Troubles {
    /// Another step failed.
    pub fn push(&mut self, trouble: Trouble) {
        self.0.retain(|known| known.step != trouble.step);
        self.0.push(trouble);
    }

    /// What came of this step.
    pub fn at(&self, step: NodeStep) -> Option<&Trouble> {
        self.0.iter().find(|trouble| trouble.step == step)
    }

    /// The step that failed last.
    pub fn latest(&self) -> Option<&Trouble> {
        self.0.last()
    }

    /// Whether nothing failed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Trouble> for Troubles {
    fn from(trouble: Trouble) -> Self {
        Self(vec![trouble])
    }
}
