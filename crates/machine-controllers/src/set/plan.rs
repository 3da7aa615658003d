//! What a decision about a set comes to: a list of effects, each with the name of its rule, and when to look again.

use std::time::Duration;

use controller_runtime::{
    events::EventNote,
    key::Target,
    objects::{Part, Patch},
    queue::Outcome,
};
use machine_api::v1alpha1::Machine;
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
    /// Changes the set.
    PatchSet {
        /// Which part of it.
        part: Part,
        /// How.
        patch: Patch,
    },
    /// Takes an orphan over; the set is read again first, for it may have been deleted or replaced.
    AdoptMachine {
        /// The orphan.
        machine: Target,
        /// Adds the reference.
        patch: Patch,
    },
    /// Lets a machine go that does not fit any more. One that is gone or has changed meanwhile is left alone.
    ReleaseMachine {
        /// The machine.
        machine: Target,
        /// Removes the reference.
        patch: Patch,
    },
    /// Changes a machine. One that is gone is left alone.
    PatchMachine {
        /// The machine.
        machine: Target,
        /// How.
        patch: Patch,
        /// What a refusal means.
        on_failure: OnFailure,
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
