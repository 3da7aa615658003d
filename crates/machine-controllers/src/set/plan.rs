//! What a decision about a set comes to: a list of effects, each with the name of its rule, and when to look again.

use std::time::Duration;

use crate::snapshots::MachineSnapshot;
use controller_runtime::{events::EventNote, key::Target, queue::Outcome};
use machine_api::v1alpha1::{Machine, MachineSetStatus, MachineSpec};
use serde::Serialize;

/// When a key is to be looked at again although nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Next {
    /// Not before something changes.
    #[default]
    OnChange,
    /// After so long, for this reason.
    After(Duration, &'static str),
}

impl Next {
    /// The earlier of the two.
    #[must_use]
    pub fn or_earlier(self, other: Self) -> Self {
        match (self, other) {
            (Self::After(mine, _), Self::After(theirs, _)) if theirs < mine => other,
            (Self::OnChange, _) => other,
            _ => self,
        }
    }
}

impl From<Next> for Outcome {
    fn from(next: Next) -> Self {
        match next {
            Next::OnChange => Self::Settled,
            Next::After(delay, reason) => Self::LookAgain(delay, reason),
        }
    }
}

/// Whether a set keeps a Failed machine of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Keeping {
    /// It does, until the machine's time is over.
    Keep,
    /// It does not any more.
    LetGo,
}

/// One thing to do. Machines stand here as they were seen; what an effect writes is made of it in [`super::patches`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Effect {
    /// Puts our finalizer on the set.
    AddFinalizer,
    /// Takes our finalizer off the set.
    RemoveFinalizer,
    /// Writes the status of the set.
    WriteStatus(Box<MachineSetStatus>),
    /// Takes an orphan over; the set is read again first, for it may have been deleted or replaced.
    Adopt(MachineSnapshot),
    /// Lets a machine go that does not fit any more. One that is gone or has changed meanwhile is left alone.
    Release(MachineSnapshot),
    /// Says on a Failed machine whether the set keeps it. What is decided after it counts on it, so that a refusal ends the plan.
    Keep(MachineSnapshot, Keeping),
    /// Gives a machine what is new in the template. A machine of which that is refused for good holds up no other one.
    SyncTemplate {
        /// The machine.
        machine: MachineSnapshot,
        /// Its specification from now on.
        spec: Box<MachineSpec>,
    },
    /// Creates a machine.
    CreateMachine(Box<Machine>),
    /// Asks the API server whether a machine exists whose creation got no answer, before it is created under this name.
    CreateUnlessThere(Box<Machine>),
    /// Deletes a machine.
    DeleteMachine {
        /// The machine.
        machine: Target,
        /// Only in this version: what it was chosen for may not hold any more. Absent when nothing can change it.
        version: Option<String>,
    },
    /// Tells of something on the set.
    Tell(EventNote),
}

/// An effect and the rule it follows from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the rule, for logs, the journal and the audit of the gate.
    pub rule: &'static str,
    /// What to do.
    pub effect: Effect,
}

impl Step {
    /// A step of a rule.
    pub fn new(rule: &'static str, effect: Effect) -> Self {
        Self { rule, effect }
    }
}

/// All that is to be done now, in order, and when to look again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// What to do; the first failure ends the list, except inside a run of creations or of deletions.
    pub steps: Vec<Step>,
    /// When to look again if nothing changes.
    pub next: Next,
}

impl Plan {
    /// Adds a step.
    pub fn push(&mut self, rule: &'static str, effect: Effect) {
        self.steps.push(Step::new(rule, effect));
    }
}
