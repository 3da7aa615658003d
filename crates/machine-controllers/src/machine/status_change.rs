//! A change of a machine's status: which fields it sets, how it is written, and when it isn't worth a write.
//!
//! Fields that a change does not name stay as they are; above all `preserveExpiryTime` (M-12). Source:
//! spec/machine-controller §4.4, §4.10; decisions.md 30.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{NodeAddress, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use serde_json::{Map, Value, json};

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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusChange {
    phase: Option<(MachinePhase, TimeoutClock)>,
    operation: Option<Operation>,
    conditions: Option<Vec<NodeCondition>>,
    addresses: Option<Vec<NodeAddress>>,
    last_known_state: Option<String>,
    preservation: Option<Preservation>,
    progress: Option<Progress>,
}

/// What becomes of a machine's preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preservation {
    /// It ends.
    Ends,
    /// It ends, and the clock of the phase starts anew.
    Stops,
    /// It lasts until then, and the clock of the phase starts anew.
    Until(Timestamp),
}

/// Whether a phase is being timed, as `timeoutActive` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutClock {
    /// Yes.
    Active,
    /// No.
    Inactive,
}

/// A last operation to be written.
#[derive(Clone, Debug, PartialEq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Whether the machine is on its way somewhere.
    pub moving: Moving,
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Whom it waits for, since when, until when, and what ends it.
    pub message: String,
}

/// Whether a machine is on its way somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// Yes.
    Yes,
    /// No: it is where it should be, or stays where it is until somebody helps.
    No,
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

    /// The write of this change.
    pub fn effect(&self, seen: &Observation) -> Effect {
        Effect::PatchStatus(self.patch(seen))
    }

    /// The write of this change, or nothing when it says what stands there already (spec §4.10).
    pub fn effect_unless_similar(&self, seen: &Observation) -> Option<Effect> {
        (!self.is_similar(seen)).then(|| self.effect(seen))
    }

    fn patch(&self, seen: &Observation) -> Value {
        let stored = &seen.machine.status;
        let now = rfc3339(seen.now);
        let mut status = Map::new();
        if let Some(operation) = &self.operation {
            status.insert(
                "lastOperation".to_owned(),
                json!({
                    "description": operation.description,
                    "errorCode": operation.code.map(Code::as_str),
                    "lastUpdateTime": now,
                    "state": operation.state,
                    "type": operation.operation,
                }),
            );
        }
        let mut current = Map::new();
        if let Some((phase, clock)) = &self.phase {
            if *phase != stored.current_status.phase {
                current.insert("phase".to_owned(), json!(phase));
                current.insert("lastUpdateTime".to_owned(), json!(now));
            }
            let active = *clock == TimeoutClock::Active;
            if active != stored.current_status.timeout_active {
                current.insert("timeoutActive".to_owned(), if active { json!(true) } else { Value::Null });
            }
        }
        let is_preserved = stored.current_status.preserve_expiry_time.is_some();
        match self.preservation {
            Some(Preservation::Ends) if is_preserved => {
                current.insert("preserveExpiryTime".to_owned(), Value::Null);
            }
            Some(Preservation::Stops) if is_preserved => {
                current.insert("preserveExpiryTime".to_owned(), Value::Null);
                current.insert("lastUpdateTime".to_owned(), json!(now));
            }
            Some(Preservation::Until(until)) => {
                current.insert("preserveExpiryTime".to_owned(), json!(rfc3339(until)));
                current.insert("lastUpdateTime".to_owned(), json!(now));
            }
            Some(Preservation::Ends | Preservation::Stops) | None => {}
        }
        if !current.is_empty() {
            status.insert("currentStatus".to_owned(), Value::Object(current));
        }
        if let Some(conditions) = &self.conditions {
            status.insert("conditions".to_owned(), json!(conditions));
        }
        if let Some(addresses) = &self.addresses {
            status.insert("addresses".to_owned(), json!(addresses));
        }
        if let Some(state) = &self.last_known_state {
            status.insert("lastKnownState".to_owned(), if state.is_empty() { Value::Null } else { json!(state) });
        }
        if let Some(progress) = &self.progress {
            status.insert("machineConditions".to_owned(), machine_conditions(progress, seen));
        }
        json!({ "status": status })
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

/// The machine's own conditions with this progress in place of the former.
fn machine_conditions(progress: &Progress, seen: &Observation) -> Value {
    let stored = &seen.machine.status.machine_conditions;
    let status = match progress.moving {
        Moving::Yes => "True",
        Moving::No => "False",
    };
    let since = stored
        .iter()
        .find(|condition| condition.type_ == machine_condition::PROGRESSING && condition.status == status)
        .map_or_else(|| rfc3339(seen.now), |condition| rfc3339(condition.last_transition_time.0));
    let others = stored.iter().filter(|condition| condition.type_ != machine_condition::PROGRESSING);
    let mut all: Vec<Value> = others.map(|condition| json!(condition)).collect();
    all.push(json!({
        "type": machine_condition::PROGRESSING,
        "status": status,
        "reason": progress.reason,
        "message": progress.message,
        "observedGeneration": seen.machine.metadata.generation.unwrap_or_default(),
        "lastTransitionTime": since,
    }));
    Value::Array(all)
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
