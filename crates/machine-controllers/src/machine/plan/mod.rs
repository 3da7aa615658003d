//! The result of a decision: typed effects in order, and the time of the next pass.
//!
//! Every plan carries the name of its rule. Effects are idempotent or carry a precondition. The first effect that fails ends
//! the plan, and the next observation shows the true state. Source: spec/machine-controller §15.3.

pub mod deletion_stage;
pub mod node_dress;
pub mod reporting;
pub mod status_change;
pub mod waits;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::api::resource::Quantity};
use kube_values::syntax::label_value;
use serde::Serialize;

use self::{
    node_dress::NodeDress,
    reporting::{Worth, write_if},
    status_change::StatusChange,
    waits::Wait,
};
use super::{
    measures::Measurement,
    observation::{Call, NodeStep, Observation, Purpose, VmCheck},
    standing::{Standing, Waiting},
};
use crate::drain::order::DrainOrder;

/// The result of a decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the rule that decided.
    pub rule: &'static str,
    /// The effects, in order.
    pub effects: Vec<Effect>,
    /// The next step after the effects.
    pub next: Next,
    /// The standing of the machine, if the rule states one, whether it is worth a write or not.
    pub standing: Option<Box<Standing>>,
}

/// The next step after the effects of a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Next {
    /// Observe and decide again in the same pass.
    Again,
    /// Nothing, until something changes.
    Settled,
    /// Look again after this time.
    LookAgain(Duration, Wait),
    /// The answer of the driver call in flight wakes the machine.
    AwaitCall,
    /// Step the drain, then decide again in the same pass.
    StepDrain(DrainOrder),
    /// Take the failure permit of the machine's group, then decide again under it.
    TakePermit,
}

impl Next {
    /// Whether the pass ends here, until something changes or a time comes.
    pub fn ends_pass(&self) -> bool {
        match self {
            Self::Settled | Self::LookAgain(..) | Self::AwaitCall => true,
            Self::Again | Self::StepDrain(_) | Self::TakePermit => false,
        }
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Effect {
    /// Puts our finalizer on the machine.
    AddMachineFinalizer,
    /// Records the machine's VM and Node on the machine.
    Link(Link),
    /// Removes the preservation annotations of the machine.
    ForgetPreservation(VersionGuard),
    /// Stores the Node's preservation value on the machine, and removes the machine's own value.
    RememberNodesWish(String),
    /// Writes fields of the machine's status.
    WriteStatus {
        /// The fields.
        change: Box<StatusChange>,
        /// The time of the change.
        at: Timestamp,
    },
    /// Removes our finalizer from the machine.
    RemoveMachineFinalizer,
    /// Deletes the Machine object, because its Node was deleted.
    DeleteMachine,
    /// Reads the machine from the API server; if it is gone or being deleted, the rest of the plan is void.
    RereadMachine,
    /// Compares class and Secrets with the observed class and Secrets. If they have changed, the rest of the plan is void.
    /// The decisions about a VM are valid only for the observed objects: whether it needs a token, and whether its intent is
    /// stored.
    CheckInputs,
    /// Reads the Node from the API server for the next decision.
    RereadNode,
    /// Looks on the API server for a Node that the store does not show: by the machine's label, or by the Node's own label
    /// that names the machine. The next decision uses the answer.
    LookForNode,
    /// Keeps new pods off the Node.
    Cordon,
    /// Changes labels, annotations, finalizers and taints of the Node, in the version that was observed.
    Dress {
        /// The step that the change belongs to.
        step: NodeStep,
        /// The changes.
        dress: Box<NodeDress>,
    },
    /// Changes extended resources in the Node's status; `None` removes one.
    MirrorCapacity(BTreeMap<String, Option<Quantity>>),
    /// Adds a condition to the Node that it does not have.
    AddNodeCondition(Box<NodeCondition>),
    /// Replaces the Node's condition of the same type.
    SetNodeCondition {
        /// The step that the change belongs to.
        step: NodeStep,
        /// The whole condition.
        condition: Box<NodeCondition>,
    },
    /// Removes our finalizer from the Node.
    RemoveNodeFinalizer,
    /// Deletes the Node with this UID.
    DeleteNode {
        /// UID the Node must have.
        uid: String,
    },
    /// Deletes a volume attachment.
    DeleteAttachment {
        /// Its name.
        name: String,
        /// UID it must have.
        uid: String,
    },
    /// Makes sure that the machine has a bootstrap token of its own.
    EnsureToken,
    /// Deletes the machine's bootstrap token, if there is one. A failure does not matter: the token expires.
    DeleteToken,
    /// Starts a driver call.
    Start(Call),
    /// Records a warning event, once until it changes.
    Warn {
        /// Reason in CamelCase.
        reason: &'static str,
        /// The cause and the advice.
        message: String,
    },
    /// Records a normal event, once until it changes.
    Tell {
        /// Reason in CamelCase.
        reason: &'static str,
        /// A description of the event.
        message: String,
    },
    /// Records a normal event on the Node, once until it changes.
    TellNode {
        /// Reason in CamelCase.
        reason: &'static str,
        /// A description of the event.
        message: String,
    },
    /// Changes what this process remembers of the machine.
    Remember(Memo),
    /// Records a measurement that holds after the effects before it.
    Measure(Measurement),
}

/// The VM and the Node that are recorded on a machine. Absent parts stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Name of the Node.
    pub node: Option<String>,
    /// ID of the VM.
    pub provider_id: Option<String>,
    /// Priority of a machine that has none yet.
    pub priority: Option<i64>,
}

impl Link {
    /// Only the Node.
    pub fn of_node(name: &str) -> Self {
        Self { node: Some(name.to_owned()), ..Self::default() }
    }
}

/// Whether a Node of this name can be linked: the name becomes the value of a label.
pub fn is_linkable(node: &str) -> bool {
    !node.is_empty() && label_value(node).is_empty()
}

/// Whether a patch may hit another version than the observed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VersionGuard {
    /// Any version: the patch does not depend on what was read.
    Any,
    /// Only the observed one.
    Observed,
}

/// A change of what this process remembers of a machine's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Memo {
    /// The last answer has been handled.
    AnswerDone,
    /// The flow is over.
    FlowDone,
    /// No driver call before this time, unless its inputs change.
    Pause(Purpose, Timestamp),
    /// The driver's answer about the VM of an unhealthy machine.
    VmChecked(VmCheck),
}

impl Plan {
    /// A plan of this rule.
    pub fn new(rule: &'static str, effects: Vec<Effect>, next: Next) -> Self {
        let standing = effects.iter().rev().find_map(|effect| match effect {
            Effect::WriteStatus { change, .. } => change.standing.clone().map(Box::new),
            _ => None,
        });
        Self { rule, effects, next, standing }
    }

    /// A plan that begins with this change of the status, if the change is worth a write.
    pub fn reporting(rule: &'static str, seen: &Observation, change: StatusChange, worth: Worth, next: Next) -> Self {
        let effects = write_if(seen, &change, worth).into_iter().collect();
        Self { rule, effects, next, standing: change.standing.map(Box::new) }
    }

    /// Adds the standing of the machine, if the effects don't state one.
    #[must_use]
    pub fn stands(mut self, standing: Standing) -> Self {
        self.standing.get_or_insert_with(|| Box::new(standing));
        self
    }

    /// Adds a warning event if the status is written.
    #[must_use]
    pub fn warning_if_written(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        if !self.effects.is_empty() {
            self.effects.push(Effect::Warn { reason, message: message.into() });
        }
        self
    }

    /// Adds more effects.
    #[must_use]
    pub fn also(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects.extend(effects);
        self
    }

    /// A plan that does nothing.
    pub fn wait(rule: &'static str, next: Next) -> Self {
        Self::new(rule, Vec::new(), next)
    }
}

/// The result of one rule: act now, or let the next rule decide.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleResult {
    /// Carry out this plan now.
    Act(Plan),
    /// Nothing to do now; perhaps look again after this time at the latest.
    Pass(Option<Duration>),
}

impl RuleResult {
    /// Nothing to do and nothing to wait for.
    pub const NOTHING: Self = Self::Pass(None);

    /// Act by this rule.
    pub fn act(rule: &'static str, effects: Vec<Effect>, next: Next) -> Self {
        Self::Act(Plan::new(rule, effects, next))
    }

    /// Act by this rule; `wait` is what the machine waits for.
    pub fn waits(rule: &'static str, wait: Waiting, effects: Vec<Effect>, next: Next) -> Self {
        Self::Act(Plan::new(rule, effects, next).stands(Standing::Waits(wait)))
    }
}

/// The earlier of two times to look again.
pub fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
