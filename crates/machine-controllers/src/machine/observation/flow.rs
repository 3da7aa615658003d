//! The driver's part of an observation: the call under way, the last answer, and the pause before the next call.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use serde::Serialize;

use crate::drain::order::Force;
use machine_driver::{Code, CreatedVm, DeletedVm, Status, VmIdentity};

/// A kind of driver call about one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Call {
    /// `GetMachineStatus`.
    Status,
    /// `CreateMachine`.
    Create,
    /// `InitializeMachine`.
    Initialize,
    /// `DeleteMachine` of the machine's VM.
    Delete,
    /// `DeleteMachine` of a VM that has the name of an old Node.
    DeleteStale,
}

/// The answer of a driver call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Answer {
    /// Of `GetMachineStatus`.
    Status(Result<VmIdentity, Status>),
    /// Of `CreateMachine`.
    Created(Result<CreatedVm, Status>),
    /// Of `InitializeMachine`.
    Initialized(Result<VmIdentity, Status>),
    /// Of `DeleteMachine`.
    Deleted(Result<DeletedVm, Status>),
    /// Of `DeleteMachine` for a VM that has the name of an old Node.
    DeletedStale(Result<DeletedVm, Status>),
}

/// How the VM of the flow was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VmOrigin {
    /// `CreateMachine` made it in this flow.
    Created,
    /// It existed already.
    Found,
    /// It existed already, but is not initialised.
    FoundUninitialized,
}

/// The VM of the flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KnownVm {
    /// Its identity.
    pub identity: VmIdentity,
    /// How it was found.
    pub origin: VmOrigin,
    /// The memory that the driver wants to keep; written with the next status.
    pub last_known_state: Option<String>,
}

/// The driver's answers since the flow began. In memory only: after a restart the driver is asked again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Flow {
    /// A call that has not answered yet.
    pub in_flight: Option<Call>,
    /// When the last call was started.
    pub asked_at: Option<Timestamp>,
    /// The inputs of the last call that was started.
    pub asked_with: Option<Inputs>,
    /// The last answer, until it has been acted upon.
    pub answer: Option<Answer>,
    /// The VM, once known.
    pub vm: Option<KnownVm>,
}

impl Flow {
    /// Whether nothing is under way and nothing is known.
    pub fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.answer.is_none() && self.vm.is_none()
    }

    /// Notes that a call is started; the last answer has been acted upon.
    pub fn ask(&mut self, call: Call, inputs: Inputs, now: Timestamp) {
        (self.answer, self.in_flight, self.asked_at) = (None, Some(call), Some(now));
        self.asked_with = Some(inputs);
    }

    /// Takes in the failure of a call that could not be started.
    pub fn not_started(&mut self, answer: Answer) {
        self.asked_with = None;
        self.learn(answer);
    }

    /// Takes in the answer of a call.
    pub fn learn(&mut self, answer: Answer) {
        self.in_flight = None;
        match &answer {
            Answer::Created(Ok(created)) => {
                self.vm = Some(KnownVm {
                    identity: created.vm.clone(),
                    origin: VmOrigin::Created,
                    last_known_state: created.last_known_state.clone(),
                });
            }
            Answer::Status(Ok(identity)) => self.found(identity.clone(), VmOrigin::Found),
            Answer::Status(Err(status)) if status.code == Code::Uninitialized => {
                if let Some(partial) = &status.partial {
                    self.found((**partial).clone(), VmOrigin::FoundUninitialized);
                }
            }
            Answer::Initialized(Ok(more)) => {
                if let Some(known) = &mut self.vm {
                    known.identity.addresses = union(&known.identity.addresses, &more.addresses);
                }
            }
            Answer::Status(Err(_))
            | Answer::Created(Err(_))
            | Answer::Initialized(Err(_))
            | Answer::Deleted(_)
            | Answer::DeletedStale(_) => {}
        }
        self.answer = Some(answer);
    }

    /// The driver's state that is not stored yet: that of a failed call, otherwise the state that came with the VM. A status write that ends the flow
    /// stores it, because a driver finds with it what it has made (docs/drivers.md).
    pub fn unstored_state(&self) -> Option<&str> {
        let failed = match &self.answer {
            Some(
                Answer::Status(Err(status))
                | Answer::Created(Err(status))
                | Answer::Initialized(Err(status))
                | Answer::Deleted(Err(status))
                | Answer::DeletedStale(Err(status)),
            ) => status.last_known_state.as_deref(),
            Some(
                Answer::Status(Ok(_)) | Answer::Created(Ok(_)) | Answer::Initialized(Ok(_)) | Answer::Deleted(Ok(_)),
            )
            | None => None,
            // The state that came with the VM is of no use without the VM.
            Some(Answer::DeletedStale(Ok(deleted))) => return deleted.last_known_state.as_deref(),
        };
        failed.or_else(|| self.vm.as_ref()?.last_known_state.as_deref())
    }

    fn found(&mut self, identity: VmIdentity, origin: VmOrigin) {
        self.vm = Some(KnownVm { identity, origin, last_known_state: None });
    }
}

/// Both lists without repetition, sorted by type, then address (spec §4.11).
pub fn union(one: &[NodeAddress], other: &[NodeAddress]) -> Vec<NodeAddress> {
    let mut all: Vec<NodeAddress> = one.iter().chain(other).cloned().collect();
    all.sort_by(|a, b| (&a.type_, &a.address).cmp(&(&b.type_, &b.address)));
    all.dedup();
    all
}

/// The purpose of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Purpose {
    /// Creating the VM.
    Creation,
    /// Deleting the VM.
    Deletion,
}

/// A pause before the next driver call; it ends early when its inputs change (spec §4.6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Its purpose.
    pub purpose: Purpose,
    /// When it ends, in steady time.
    pub until: Timestamp,
    /// The inputs of the call that failed.
    pub inputs: Inputs,
}

/// The inputs of a driver call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inputs {
    /// Generation of the machine.
    pub machine: Option<i64>,
    /// UID and generation of the class.
    pub class: Option<(String, Option<i64>)>,
    /// Names and versions of the Secrets.
    pub secrets: Vec<(String, Option<String>)>,
    /// Whether the label asks for a deletion by force.
    pub force: Force,
}

/// The driver's answer about the VM of an unhealthy machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum VmCheck {
    /// The driver was not asked since the machine became unhealthy.
    #[default]
    NotAsked,
    /// The driver knew the VM, or gave another answer than `NotFound`, at this steady time.
    NoEvidence(Timestamp),
    /// The driver did not know the VM at this steady time.
    MissingOnce(Timestamp),
    /// The driver did not know the VM twice.
    Gone,
}
