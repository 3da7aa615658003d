//! The plan for a set: a list of effects, each with the name of its rule, and the time of the next pass.

use std::time::Duration;

use crate::snapshots::MachineSnapshot;
use controller_runtime::{events::EventNote, key::Target, queue::Outcome};
use machine_api::v1alpha1::{Machine, MachineSetStatus, MachineSpec};
use serde::Serialize;

/// The time of the next pass if nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Next {
    /// Only after a change.
    #[default]
    OnChange,
    /// After this time, for this reason.
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

/// Whether a set preserves a Failed machine automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Keeping {
    /// It does, until the preservation ends.
    Keep,
    /// It does not any more.
    LetGo,
}

/// One effect. Machines are given in their observed version; [`super::patches`] makes the patch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Effect {
    /// Adds our finalizer to the set.
    AddFinalizer,
    /// Removes our finalizer from the set.
    RemoveFinalizer,
    /// Writes the status of the set.
    WriteStatus(Box<MachineSetStatus>),
    /// Adopts an orphan. The set is read again first: it may have been deleted or replaced.
    Adopt(MachineSnapshot),
    /// Releases a machine that does not match any more. Ignores a machine that is gone or has changed meanwhile.
    Release(MachineSnapshot),
    /// Writes on a Failed machine whether the set preserves it. Later steps depend on it, so a refusal ends the plan.
    Keep(MachineSnapshot, Keeping),
    /// Writes the new parts of the template to a machine. A lasting refusal for one machine does not stop the others.
    SyncTemplate {
        /// The machine.
        machine: MachineSnapshot,
        /// Its new `spec`.
        spec: Box<MachineSpec>,
    },
    /// Creates a machine.
    CreateMachine(Box<Machine>),
    /// Asks the API server for a machine whose creation got no answer, and creates it under its name if it does not
    /// exist.
    CreateUnlessThere(Box<Machine>),
    /// Deletes a machine.
    DeleteMachine {
        /// The machine.
        machine: Target,
        /// The version to delete: the reason for the deletion may not hold in another version. Absent if no change can
        /// matter.
        version: Option<String>,
    },
    /// Writes an event about the set.
    Tell(EventNote),
}

/// An effect and the rule that caused it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Name of the rule, for logs, the journal and the audit of the gate.
    pub rule: &'static str,
    /// The effect.
    pub effect: Effect,
}

impl Step {
    /// A step of a rule.
    pub fn new(rule: &'static str, effect: Effect) -> Self {
        Self { rule, effect }
    }
}

/// All effects to carry out now, in order, and the time of the next pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// The effects. The first failure ends the plan, except within consecutive creations or deletions.
    pub steps: Vec<Step>,
    /// The time of the next pass if nothing changes.
    pub next: Next,
}

impl Plan {
    /// Adds a step.
    pub fn push(&mut self, rule: &'static str, effect: Effect) {
        self.steps.push(Step::new(rule, effect));
    }
}
