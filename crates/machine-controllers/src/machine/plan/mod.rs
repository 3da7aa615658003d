//! What a decision wants done: typed effects in order, and when to look again.
//!
//! Every plan carries the name of its rule. Effects are idempotent or carry a precondition; the first that fails ends the
//! list, and the next observation sees the truth. Source: spec/machine-controller §15.3.

pub mod deletion_stage;
pub mod node_dress;
pub mod status_change;
pub mod telling;
pub mod waits;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::api::resource::Quantity};
use kube_values::syntax::label_value;
use serde::Serialize;

use self::{
    node_dress::NodeDress,
    status_change::StatusChange,
    telling::{Worth, write_if},
    waits::Wait,
};
use super::{
    measures::Measurement,
    observation::{Call, NodeStep, Observation, Purpose, VmCheck},
    standing::{Standing, Waiting},
};
use crate::drain::order::DrainOrder;

/// What a decision wants done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the rule that decided.
    pub rule: &'static str,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// What comes afterwards.
    pub next: Next,
    /// Where the machine stands, as far as the rule says that, whether it is worth a write or not.
    pub standing: Option<Box<Standing>>,
}

/// What comes after the effects of a plan.
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
    /// Records on the machine which VM and which Node are its own.
    Link(Link),
    /// Takes off the machine what it says of its preservation.
    ForgetPreservation(VersionGuard),
    /// Remembers on the machine what its Node says of the preservation; what the machine says itself goes.
    RememberNodesWish(String),
    /// Writes fields of the machine's status.
    WriteStatus {
        /// The fields.
        change: Box<StatusChange>,
        /// The moment it tells of.
        at: Timestamp,
    },
    /// Takes our finalizer off the machine.
    RemoveMachineFinalizer,
    /// Deletes the Machine object, because its Node was deleted.
    DeleteMachine,
    /// Reads the machine from the API server; if it is gone or being deleted, the rest of the plan is void.
    RereadMachine,
    /// Compares class and Secrets with those that were observed; if they have changed, the rest of the plan is void. What was
    /// decided of a VM holds only for these: whether it needs a token, whether its intent is to be stored.
    CheckInputs,
    /// Reads the Node from the API server, so that the next decision stands on the truth.
    RereadNode,
    /// Looks on the API server for the Node that the view does not show: by the machine's label, or by the Node's own label
    /// that names the machine. The next decision stands on the truth.
    LookForNode,
    /// Keeps new pods off the Node.
    Cordon,
    /// Changes labels, annotations, finalizers and taints of the Node, as it was observed.
    Dress {
        /// What for.
        step: NodeStep,
        /// The changes.
        dress: Box<NodeDress>,
    },
    /// Changes extended resources in the Node's status; `None` removes one.
    MirrorCapacity(BTreeMap<String, Option<Quantity>>),
    /// Adds a condition to the Node that it does not have.
    AddNodeCondition(Box<NodeCondition>),
    /// Sets a condition of the Node in place of the one of its type.
    SetNodeCondition {
        /// What for.
        step: NodeStep,
        /// The condition, whole.
        condition: Box<NodeCondition>,
    },
    /// Takes our finalizer off the Node.
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
    /// Deletes the machine's bootstrap token, if there is one. Failure does not matter: it expires.
    DeleteToken,
    /// Starts a driver call.
    Start(Call),
    /// Tells people of trouble, once until it changes.
    Warn {
        /// Reason in CamelCase.
        reason: &'static str,
        /// What happened and what to do.
        message: String,
    },
    /// Tells people of progress.
    Tell {
        /// Reason in CamelCase.
        reason: &'static str,
        /// What happened.
        message: String,
    },
    /// Changes what this process remembers of the flow.
    Remember(Memo),
    /// Tells metrics of something that the effects before have made true.
    Measure(Measurement),
}

/// What is recorded of a machine's VM and Node. Absent parts stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Name of the Node.
    pub node: Option<String>,
    /// ID of the VM.
    pub provider_id: Option<String>,
    /// Priority of the machine, which has none yet.
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
    /// The last answer has been dealt with.
    AnswerDone,
    /// The flow is over.
    FlowDone,
    /// No driver call before this time, unless its inputs change.
    Pause(Purpose, Timestamp),
    /// What the driver said of the VM of an unhealthy machine.
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

    /// A plan that makes this change of the status if it is worth a write, first of all.
    pub fn telling(rule: &'static str, seen: &Observation, change: StatusChange, worth: Worth, next: Next) -> Self {
        let effects = write_if(seen, &change, worth).into_iter().collect();
        Self { rule, effects, next, standing: change.standing.map(Box::new) }
    }

    /// Says where the machine stands, if the effects don't.
    #[must_use]
    pub fn stands(mut self, standing: Standing) -> Self {
        self.standing.get_or_insert_with(|| Box::new(standing));
        self
    }

    /// The same with an event if the status is written.
    #[must_use]
    pub fn warning_if_written(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        if !self.effects.is_empty() {
            self.effects.push(Effect::Warn { reason, message: message.into() });
        }
        self
    }

    /// The same with more to do.
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

/// What one part of the decision says: act now, or let the next part speak.
#[derive(Clone, Debug, PartialEq)]
pub enum Say {
    /// This is to be done now.
    Act(Plan),
    /// Nothing now; perhaps look again at the latest after this time.
    Pass(Option<Duration>),
}

impl Say {
    /// Nothing to do and nothing to wait for.
    pub const NOTHING: Self = Self::Pass(None);

    /// Act by this rule.
    pub fn act(rule: &'static str, effects: Vec<Effect>, next: Next) -> Self {
        Self::Act(Plan::new(rule, effects, next))
    }

    /// Act by this rule, which says whom the machine waits for.
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
