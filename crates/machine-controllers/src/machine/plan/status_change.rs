//! A change of a machine's status: the fields that it sets. `patches` decides how it is written, [`super::reporting`] whether
//! it is worth a write.
//!
//! Fields that a change does not name stay unchanged, above all `preserveExpiryTime` (M-12). Source: spec/machine-controller
//! §4.4; decisions.md 30.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use serde::Serialize;

use super::{Effect, deletion_stage::DeletionStage};
use crate::{
    machine::{
        observation::Observation,
        standing::{Standing, Waiting},
    },
    snapshots::MachineSnapshot,
};
use machine_api::{
    names::{machine_condition, machine_reason},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::Code;

/// A change of a machine's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatusChange {
    pub(crate) phase: Option<(MachinePhase, TimeoutClock)>,
    pub(crate) operation: Option<Operation>,
    pub(crate) conditions: Option<Vec<NodeCondition>>,
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    pub(crate) last_known_state: Option<String>,
    pub(crate) preservation: Option<Preservation>,
    pub(crate) standing: Option<Standing>,
    pub(crate) doubt: Option<Doubt>,
}

/// A change of a machine's preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Preservation {
    /// It ends.
    Ends,
    /// It ends, and the time of the phase begins again.
    Stops,
    /// It lasts until this time, and the time of the phase begins again.
    Until(Timestamp),
}

/// Whether the phase has a time limit, as `timeoutActive` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TimeoutClock {
    /// Yes.
    Active,
    /// No.
    Inactive,
}

/// A last operation to be written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operation {
    /// The type of the operation.
    pub operation: OperationType,
    /// The state of the operation.
    pub state: OperationState,
    /// The code of a failure, from the driver or from this program.
    pub code: Option<Code>,
    /// The stage of a deletion with which the description ends.
    pub stage: Option<DeletionStage>,
    /// Text for people; during a deletion it ends with the stage.
    pub description: String,
}

/// The content of the condition `NodeIdentified`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Doubt {
    /// Nothing: the owner of the Node is known.
    None,
    /// The owner of the Node is unclear.
    Because {
        /// Reason in CamelCase.
        reason: &'static str,
        /// The cause and the consequence.
        message: String,
    },
}

impl StatusChange {
    /// Nothing changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the phase; the time of the phase begins again when it differs from the stored one.
    #[must_use]
    pub fn phase(mut self, phase: MachinePhase, clock: TimeoutClock) -> Self {
        self.phase = Some((phase, clock));
        self
    }

    /// Sets the last operation.
    #[must_use]
    pub fn operation(mut self, operation: OperationType, state: OperationState, description: String) -> Self {
        self.operation = Some(Operation { operation, state, code: None, stage: None, description });
        self
    }

    /// Sets the stage of a deletion; the description of the last operation ends with its marker.
    #[must_use]
    pub fn at_stage(mut self, stage: DeletionStage) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.description.push_str(stage.marker());
            operation.stage = Some(stage);
        }
        self
    }

    /// Sets the code of the last operation.
    #[must_use]
    pub fn code(mut self, code: Option<Code>) -> Self {
        if let Some(operation) = &mut self.operation {
            operation.code = code;
        }
        self
    }

    /// Takes over the Node's conditions.
    #[must_use]
    pub fn conditions(mut self, conditions: &[NodeCondition]) -> Self {
        self.conditions = Some(conditions.to_vec());
        self
    }

    /// Sets the addresses.
    #[must_use]
    pub fn addresses(mut self, addresses: Vec<NodeAddress>) -> Self {
        self.addresses = Some(addresses);
        self
    }

    /// Sets the driver's memory, unless it is `None`.
    #[must_use]
    pub fn last_known_state(mut self, state: Option<String>) -> Self {
        self.last_known_state = state;
        self
    }

    /// Ends a preservation.
    #[must_use]
    pub fn preservation_ends(mut self) -> Self {
        self.preservation = Some(Preservation::Ends);
        self
    }

    /// Preserves the machine until this time; the time of its phase begins again (spec §5.6).
    #[must_use]
    pub fn preserved_until(mut self, until: Timestamp) -> Self {
        self.preservation = Some(Preservation::Until(until));
        self
    }

    /// Ends a preservation; the time of the phase begins again (spec §5.6).
    #[must_use]
    pub fn preservation_stops(mut self) -> Self {
        self.preservation = Some(Preservation::Stops);
        self
    }

    /// Sets what the machine waits for.
    #[must_use]
    pub fn waits(mut self, wait: Waiting) -> Self {
        self.standing = Some(Standing::Waits(wait));
        self
    }

    /// Sets the state in which the machine stays, and what would end it.
    #[must_use]
    pub fn rests(mut self, wait: Waiting) -> Self {
        self.standing = Some(Standing::Rests(wait));
        self
    }

    /// Sets that the machine is in its intended state.
    #[must_use]
    pub fn settled(mut self, reason: &'static str, text: &'static str) -> Self {
        self.standing = Some(Standing::Settled { reason, text: text.into() });
        self
    }

    /// Sets whether the owner of the Node is unclear.
    #[must_use]
    pub fn doubt(mut self, doubt: Doubt) -> Self {
        self.doubt = Some(doubt);
        self
    }

    /// The condition that this change writes for the machine's standing.
    pub fn progressing(&self, at: Timestamp, machine: &MachineSnapshot) -> Option<Condition> {
        let standing = self.standing.as_ref()?;
        let status = standing.status();
        let since = progressing(machine)
            .filter(|stored| stored.status == status)
            .map_or(at, |stored| stored.last_transition_time.0);
        Some(Condition {
            type_: machine_condition::PROGRESSING.to_owned(),
            status: status.to_owned(),
            reason: standing.reason().to_owned(),
            message: standing.message(),
            observed_generation: Some(machine.generation().unwrap_or_default()),
            last_transition_time: Time(since),
        })
    }

    /// The write of this change.
    pub fn effect(&self, seen: &Observation) -> Effect {
        Effect::WriteStatus { change: Box::new(self.clone()), at: seen.now }
    }

    /// Whether a list is replaced.
    pub(crate) fn replaces_lists(&self) -> bool {
        self.conditions.is_some() || self.addresses.is_some() || self.replaces_machine_conditions()
    }

    /// Whether the machine's own conditions are replaced.
    pub(crate) fn replaces_machine_conditions(&self) -> bool {
        self.standing.is_some() || self.doubt.is_some()
    }
}

/// The condition that shows what the machine waits for.
pub fn progressing(machine: &MachineSnapshot) -> Option<&Condition> {
    machine.machine_conditions().iter().find(|condition| condition.type_ == machine_condition::PROGRESSING)
}

/// The reason for which a machine waits, by its status. A machine in its intended state waits for nothing: its condition is
/// False, with a reason that [`StatusChange::settled`] sets.
pub fn waits_because(machine: &MachineSnapshot) -> Option<&str> {
    const SETTLED: [&str; 2] = [machine_condition::REASON_SETTLED, machine_reason::PRESERVATION_STOPPED];
    let stored = progressing(machine)?;
    let is_settled = stored.status != "True" && SETTLED.contains(&stored.reason.as_str());
    (!is_settled && !stored.reason.is_empty()).then_some(stored.reason.as_str())
}
