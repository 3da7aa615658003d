//! What a decision about a deployment comes to: a list of effects, each with the name of its rule, and when to look again.

use std::fmt;

use controller_runtime::{
    events::EventNote,
    key::{ObjectKey, Target},
    objects::{Part, Patch},
};
use serde::Serialize;

pub use crate::set::plan::Next;
use machine_api::v1alpha1::MachineSet;

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
    DeleteSet {
        /// The set.
        set: Target,
        /// Only in this version: it may have been sized or have lost its owner since.
        version: Option<String>,
    },
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
    pub fn delete(set: &MachineSet) -> Self {
        Self::DeleteSet { set: Target::of(set), version: set.metadata.resource_version.clone() }
    }

    /// What must be read again before anything else is decided, when no answer says what became of the effect: a set that
    /// was made or sized takes room, a node that was picked will be missing. `None` for what is only told, for hints on
    /// Nodes (which hold nothing up), and for the deployment, on which writes are guarded by its version or say the same
    /// twice.
    pub fn counted(&self) -> Option<Counted> {
        match self {
            Self::CreateSet(set) => Some(Counted::Set(ObjectKey::of(&**set))),
            Self::PatchSet { set, .. }
            | Self::ScaleSet { set, .. }
            | Self::AdoptSet { set, .. }
            | Self::ReleaseSet { set, .. }
            | Self::DeleteSet { set, .. } => Some(Counted::Set(set.key.clone())),
            Self::PatchMachine { machine, .. } => Some(Counted::Machine(machine.key.clone())),
            Self::PatchNode { node, on_failure: OnFailure::EndPlan, .. } => Some(Counted::Node(node.key.clone())),
            Self::PatchNode { on_failure: OnFailure::GoOn, .. } | Self::PatchDeployment { .. } | Self::Tell(_) => None,
        }
    }

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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn target(name: &str) -> Target {
        Target { key: ObjectKey::new("ns", name), uid: format!("uid-{name}") }
    }

    fn nothing() -> Patch {
        Patch::Merge(serde_json::json!({}))
    }

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "a")
    }

    #[rstest]
    #[case::a_size(
        Effect::ScaleSet { set: target("a"), from: 1, to: 2, patch: nothing() }, Some(Counted::Set(key())))]
    #[case::a_set(Effect::PatchSet { set: target("a"), patch: nothing() }, Some(Counted::Set(key())))]
    #[case::its_end(Effect::DeleteSet { set: target("a"), version: None }, Some(Counted::Set(key())))]
    #[case::a_machine(Effect::PatchMachine { machine: target("a"), patch: nothing() }, Some(Counted::Machine(key())))]
    #[case::a_picked_node(
        Effect::PatchNode { node: target("a"), patch: nothing(), on_failure: OnFailure::EndPlan },
        Some(Counted::Node(key())))]
    #[case::a_taint(Effect::PatchNode { node: target("a"), patch: nothing(), on_failure: OnFailure::GoOn }, None)]
    #[case::the_deployment(Effect::PatchDeployment { part: Part::Main, patch: nothing() }, None)]
    fn what_got_no_answer_is_read_again_when_it_counts(#[case] effect: Effect, #[case] expected: Option<Counted>) {
        assert_eq!(effect.counted(), expected);
    }
}
