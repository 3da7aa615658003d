//! A change of a machine's status: which fields it sets, how it is written, and when it isn't worth a write.
//!
//! Fields that a change does not name stay as they are; above all `preserveExpiryTime` (M-12). Source:
//! spec/machine-controller §4.4, §4.10; decisions.md 30.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use serde::Serialize;

use super::{
    observation::{Observation, since},
    plan::Effect,
};
use machine_api::{
    names::machine_condition,
    v1alpha1::{Machine, MachinePhase, OperationState, OperationType},
};
use machine_driver::Code;

/// After this time an unchanged failure is written again (spec §4.10).
const REPEAT_AFTER: std::time::Duration = std::time::Duration::from_secs(30 * 60);
/// As much of a message is compared.
const COMPARED: usize = 4096;

/// A change of a machine's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatusChange {
    pub(super) phase: Option<(MachinePhase, TimeoutClock)>,
    pub(super) operation: Option<Operation>,
    pub(super) conditions: Option<Vec<NodeCondition>>,
    pub(super) addresses: Option<Vec<NodeAddress>>,
    pub(super) last_known_state: Option<String>,
    pub(super) preservation: Option<Preservation>,
    pub(super) progress: Option<Progress>,
    pub(super) doubt: Option<Doubt>,
}

/// What becomes of a machine's preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Preservation {
    /// It ends.
    Ends,
    /// It ends, and the clock of the phase starts anew.
    Stops,
    /// It lasts until then, and the clock of the phase starts anew.
    Until(Timestamp),
}

/// Whether a phase is being timed, as `timeoutActive` tells.
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
    /// What it is.
    pub operation: OperationType,
    /// Where it stands.
    pub state: OperationState,
    /// The code that a driver or we ourselves failed with.
    pub code: Option<Code>,
    /// For people; during a deletion also the stage.
    pub description: String,
}

/// What the `Progressing` condition says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Whether the machine is on its way somewhere.
    pub moving: Moving,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Whom it waits for, since when, until when, and what ends it.
    pub message: String,
}

/// Whether a machine is on its way somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Moving {
    /// Yes.
    Yes,
    /// No: it is where it should be, or stays where it is until somebody helps.
    No,
}

impl Moving {
    /// The status of the condition.
    pub const fn status(self) -> &'static str {
        match self {
            Self::Yes => "True",
            Self::No => "False",
        }
    }
}

/// What the condition `NodeIdentified` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Doubt {
    /// Nothing: whose the Node is, is known.
    None,
    /// Nobody can tell whose the Node is.
    Because {
        /// Reason in CamelCase.
        reason: &'static str,
        /// Why, and what follows.
        message: String,
    },
}

impl StatusChange {
    /// Nothing changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the phase; its clock starts anew when it differs from the stored one.
    #[must_use]
    pub fn phase(mut self, phase: MachinePhase, clock: TimeoutClock) -> Self {
        self.phase = Some((phase, clock));
        self
    }

    /// Sets the last operation.
    #[must_use]
    pub fn operation(mut self, operation: OperationType, state: OperationState, description: String) -> Self {
        self.operation = Some(Operation { operation, state, code: None, description });
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

    /// Preserves the machine until then; the clock of its phase starts anew (spec §5.6).
    #[must_use]
    pub fn preserved_until(mut self, until: Timestamp) -> Self {
        self.preservation = Some(Preservation::Until(until));
        self
    }

    /// Ends a preservation; the clock of the phase starts anew (spec §5.6).
    #[must_use]
    pub fn preservation_stops(mut self) -> Self {
        self.preservation = Some(Preservation::Stops);
        self
    }

    /// Says whom the machine waits for.
    #[must_use]
    pub fn progress(mut self, moving: Moving, reason: &'static str, message: impl Into<String>) -> Self {
        self.progress = Some(Progress { moving, reason, message: message.into() });
        self
    }

    /// Says whether anybody can tell whose the Node is.
    #[must_use]
    pub fn doubt(mut self, doubt: Doubt) -> Self {
        self.doubt = Some(doubt);
        self
    }

    /// The condition that this change writes of where the machine stands.
    pub fn progressing(&self, at: Timestamp, machine: &Machine) -> Option<Condition> {
        let progress = self.progress.as_ref()?;
        let status = progress.moving.status();
        let since = progressing(machine)
            .filter(|stored| stored.status == status)
            .map_or(at, |stored| stored.last_transition_time.0);
        Some(Condition {
            type_: machine_condition::PROGRESSING.to_owned(),
            status: status.to_owned(),
            reason: progress.reason.to_owned(),
            message: progress.message.clone(),
            observed_generation: Some(machine.metadata.generation.unwrap_or_default()),
            last_transition_time: Time(since),
        })
    }

    /// The write of this change.
    pub fn effect(&self, seen: &Observation) -> Effect {
        Effect::WriteStatus { change: Box::new(self.clone()), at: seen.now }
    }

    /// The write of this change, or nothing when it says what stands there already (spec §4.10).
    pub fn effect_unless_similar(&self, seen: &Observation) -> Option<Effect> {
        (!self.is_similar(seen)).then(|| self.effect(seen))
    }

    /// Whether a list is replaced.
    pub(super) fn replaces_lists(&self) -> bool {
        self.conditions.is_some() || self.addresses.is_some() || self.replaces_machine_conditions()
    }

    /// Whether the machine's own conditions are replaced.
    pub(super) fn replaces_machine_conditions(&self) -> bool {
        self.progress.is_some() || self.doubt.is_some()
    }

    /// Whether the change says nothing that the status does not say already.
    fn is_similar(&self, seen: &Observation) -> bool {
        let stored = &seen.machine.status;
        let Some(operation) = &self.operation else { return false };
        let last = &stored.last_operation;
        let is_old = last.last_update_time.as_ref().is_none_or(|written| since(seen.now, written.0) > REPEAT_AFTER);
        let same_phase = self.phase.as_ref().is_none_or(|(phase, clock)| {
            *phase == stored.current_status.phase
                && (*clock == TimeoutClock::Active) == stored.current_status.timeout_active
        });
        let same_state = self.last_known_state.as_ref().is_none_or(|state| *state == stored.last_known_state);
        !is_old
            && same_phase
            && same_state
            && self.conditions.is_none()
            && self.addresses.is_none()
            && operation.operation == last.operation
            && operation.state == last.state
            && operation.code.map(Code::as_str).unwrap_or_default() == last.error_code
            && masked(&operation.description) == masked(&last.description)
    }
}

/// The condition that says whom the machine waits for.
pub fn progressing(machine: &Machine) -> Option<&Condition> {
    machine.status.machine_conditions.iter().find(|condition| condition.type_ == machine_condition::PROGRESSING)
}

/// A message without what changes from answer to answer: every word that holds a digit (ids, times, addresses).
pub fn masked(message: &str) -> String {
    let head: String = message.chars().take(COMPARED).collect();
    head.split(|c: char| !(c.is_alphanumeric() || c == '-'))
        .map(|word| if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// A time as the API server writes it: whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    // Printed by its own printer, which is many times as fast as a pattern; views and statuses hold such times by the thousand.
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
