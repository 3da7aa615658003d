//! What a decision about a deployment comes to: a list of effects, each with the name of its rule, and when to look again.

use serde::Serialize;

pub use crate::controllers::set::plan::Next;
use crate::{
    api::v1alpha1::MachineSet,
    cluster::{
        events::EventNote,
        key::Target,
        objects::{Part, Patch},
    },
};

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
    /// Changes the deployment.
    PatchDeployment {
        /// Which part of it.
        part: Part,
        /// How.
        patch: Patch,
    },
    /// Creates the set that the present template asks for.
    CreateSet(Box<MachineSet>),
    /// Changes a set without changing its size. One that is gone is left alone.
    PatchSet {
        /// The set.
        set: Target,
        /// How.
        patch: Patch,
    },
    /// Changes how many machines a set wants, or what it remembers of the deployment's size.
    ScaleSet {
        /// The set.
        set: Target,
        /// Machines it wants now.
        from: i32,
        /// Machines it shall want.
        to: i32,
        /// How.
        patch: Patch,
    },
    /// Takes an orphan over; the deployment is read again first, for it may have been deleted or replaced.
    AdoptSet {
        /// The orphan.
        set: Target,
        /// Adds the reference.
        patch: Patch,
    },
    /// Lets a set go that does not fit any more. One that is gone or has changed meanwhile is left alone.
    ReleaseSet {
        /// The set.
        set: Target,
        /// Removes the reference.
        patch: Patch,
    },
    /// Deletes a set.
    DeleteSet(Target),
    /// Changes a machine. One that is gone is left alone.
    PatchMachine {
        /// The machine.
        machine: Target,
        /// How.
        patch: Patch,
    },
    /// Changes a Node. One that is gone is left alone.
    PatchNode {
        /// The Node.
        node: Target,
        /// How.
        patch: Patch,
        /// What a failure means.
        on_failure: OnFailure,
    },
    /// Tells of something on the deployment.
    Tell(EventNote),
}

impl Effect {
    /// Whether the effect makes machines, now or by and by. A frozen deployment has no such effects (D-18).
    pub fn grows(&self) -> bool {
        match self {
            Self::CreateSet(_) => true,
            Self::ScaleSet { from, to, .. } => to > from,
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
