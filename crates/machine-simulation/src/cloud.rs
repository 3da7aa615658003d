//! The provider of the simulation: VMs, each with an id and a tag that names its machine.
//!
//! Two VMs may have the same tag. Whether a repeated creation makes another VM depends on the provider ([`Provider`]).
//! Kubelets are in [`super::nodes`].

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{
    api::Api,
    checks::Checks,
    history::{Luck, Provider},
    played::cloud::PendingCall,
    process::later,
};
use machine_api::v1alpha1::Machine;
use machine_controllers::machine::observation::{Answer, Call};
use machine_driver::{Code, CreatedVm, DeletedVm, Status, VmIdentity};

/// How long a VM takes to join in the calm phase.
const JOIN_TIME: Duration = Duration::from_secs(40);
/// Time after which the VM of an unanswered creation is listed. Together with [`DROPPED_CALL_ENDS`] it is less than the
/// time that the controllers wait.
const SHOWN_LATE: Duration = Duration::from_secs(30);
/// The same for a provider that does not keep its promise.
const SHOWN_TOO_LATE: Duration = Duration::from_secs(600);
/// Maximum time from the end of a process to the end of its driver calls.
const DROPPED_CALL_ENDS: Duration = Duration::from_secs(25);

/// A VM.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Its provider id.
    pub provider_id: String,
    /// The machine for which it was made.
    pub owner: String,
    /// The name of its Node.
    pub node: String,
    /// The time of its creation.
    pub made: Timestamp,
    /// When the provider starts to list it.
    pub shown: Timestamp,
    /// When its Node joins by itself.
    pub joins_at: Timestamp,
}

/// A driver call whose process is gone.
#[derive(Clone, Debug)]
struct DroppedCall {
    call: PendingCall,
    since: Timestamp,
}

/// The provider.
#[derive(Clone, Debug, Default)]
pub struct Cloud {
    /// The VMs by their identities.
    pub vms: BTreeMap<String, Vm>,
    /// The answer to a repeated creation.
    provider: Provider,
    made: u64,
    dropped: Vec<DroppedCall>,
}

/// The circumstances of a driver call.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The time.
    pub now: Timestamp,
    /// The objects of the API server.
    pub api: &'a Api,
}

fn refused<T>(code: Code) -> Result<T, Status> {
    Err(Status::new(code, "the weather is bad"))
}

impl Cloud {
    /// The same VMs at another provider.
    #[must_use]
    pub fn run_by(self, provider: Provider) -> Self {
        Self { provider, ..self }
    }

    /// Carries out a driver call and returns the answer.
    pub fn end(&mut self, call: &PendingCall, luck: Luck, moment: Moment<'_>, checks: &mut Checks) -> Answer {
        let answer = self.answer(call, luck, moment, checks);
        checks.provider_answers(call, &answer);
        answer
    }

    fn answer(&mut self, call: &PendingCall, luck: Luck, moment: Moment<'_>, checks: &mut Checks) -> Answer {
        let before = match luck {
            Luck::Busy => Some(Code::Unavailable),
            Luck::Full if call.call == Call::Create => Some(Code::ResourceExhausted),
            _ => None,
        };
        if let Some(code) = before {
            return failed(call.call, code);
        }
        let answer = self.perform(call, luck, moment, checks);
        match luck {
            Luck::Lost => failed(call.call, Code::DeadlineExceeded),
            Luck::ShownLate | Luck::ShownTooLate if call.call == Call::Create => {
                failed(call.call, Code::DeadlineExceeded)
            }
            _ => answer,
        }
    }

    /// Removes one of the VMs; returns the name of its Node.
    pub fn loses_one(&mut self, pick: u16) -> Option<String> {
        let place = usize::from(pick).checked_rem(self.vms.len())?;
        let id = self.vms.keys().nth(place)?.clone();
        self.vms.remove(&id).map(|vm| vm.node)
    }

    /// Keeps a driver call whose process is gone.
    pub fn goes_on(&mut self, call: PendingCall, now: Timestamp) {
        self.dropped.push(DroppedCall { call, since: now });
    }

    /// When the next of these calls ends.
    pub fn next_dropped_end(&self) -> Option<Timestamp> {
        self.dropped.iter().map(|one| later(one.since, DROPPED_CALL_ENDS)).min()
    }

    /// Ends the calls of vanished processes that are due by `until`.
    pub fn end_dropped(&mut self, until: Timestamp, moment: Moment<'_>, checks: &mut Checks) {
        let ended = |one: &mut DroppedCall| later(one.since, DROPPED_CALL_ENDS) <= until;
        let ended: Vec<DroppedCall> = self.dropped.extract_if(.., ended).collect();
        for one in ended {
            self.end(&one.call, Luck::Good, moment, checks);
        }
    }

    /// The VMs of a machine.
    pub fn of_machine(&self, name: &str) -> impl Iterator<Item = &Vm> {
        self.vms.values().filter(move |vm| vm.owner == name)
    }

    /// Whether a Node has a VM.
    pub fn runs(&self, node: &str) -> bool {
        self.vms.values().any(|vm| vm.node == node)
    }

    /// The VMs that the provider lists at this time.
    pub fn shown(&self, now: Timestamp) -> impl Iterator<Item = &Vm> {
        self.vms.values().filter(move |vm| vm.shown <= now)
    }

    /// Deletes a VM; returns whether it existed.
    pub fn destroy(&mut self, provider_id: &str, api: &Api, checks: &mut Checks) -> bool {
        let Some(vm) = self.vms.remove(provider_id) else { return false };
        let lives = |machine: &&std::sync::Arc<Machine>| {
            let own = machine.spec.provider_id.as_str();
            machine.metadata.deletion_timestamp.is_none() && (own.is_empty() || own == provider_id)
        };
        if api.machines.get(&vm.owner).is_some_and(|machine| lives(&machine)) {
            checks.violated("the VM of a machine is deleted that nobody has deleted", || provider_id.to_owned());
        }
        true
    }

    fn perform(&mut self, call: &PendingCall, luck: Luck, moment: Moment<'_>, checks: &mut Checks) -> Answer {
        match call.call {
            Call::Status => Answer::Status(self.found(call, moment.now).map(identity)),
            Call::Initialize => Answer::Initialized(self.found(call, moment.now).map(identity)),
            Call::Create => {
                let vm = identity(self.create(&call.machine.key.name, luck, moment.now, checks));
                Answer::Created(Ok(CreatedVm { vm, last_known_state: None }))
            }
            Call::Delete if call.machine.uid.is_empty() => {
                Answer::Deleted(self.collect(&call.provider_id, moment.api, checks))
            }
            Call::Delete => Answer::Deleted(self.delete(call, moment, checks)),
            Call::DeleteStale => Answer::DeletedStale(self.delete_stale(call, moment, checks)),
        }
    }

    /// The VM of a machine: the one with its provider id, or else the only one with its tag.
    fn found(&self, call: &PendingCall, now: Timestamp) -> Result<&Vm, Status> {
        let is_it = |vm: &&Vm| match call.provider_id.as_str() {
            "" => vm.owner == call.machine.key.name,
            id => vm.provider_id == id,
        };
        let mut found = self.shown(now).filter(is_it);
        match (found.next(), found.next()) {
            (None, _) => refused(Code::NotFound),
            (Some(vm), None) => Ok(vm),
            (Some(_), Some(_)) => refused(Code::OutOfRange),
        }
    }

    fn create(&mut self, owner: &str, luck: Luck, now: Timestamp, checks: &mut Checks) -> &Vm {
        let known: Vec<String> = self.of_machine(owner).map(|vm| vm.provider_id.clone()).collect();
        // A VM that the provider hides for too long could not be found by any controller.
        let could_be_found = |vm: &Vm| vm.shown <= later(vm.made, SHOWN_LATE);
        if self.provider == Provider::MakesAnother && self.of_machine(owner).any(could_be_found) {
            checks.violated("a second VM is made for a machine", || format!("{owner} has {known:?}"));
        }
        let known = known.into_iter().next().filter(|_| self.provider == Provider::AnswersTheSame);
        let id = known.unwrap_or_else(|| {
            self.made += 1;
            format!("sim:///{owner}/{}", self.made)
        });
        let node = if self.runs(owner) { format!("{owner}.{}", self.made) } else { owner.to_owned() };
        let shown = match luck {
            Luck::ShownLate => later(now, SHOWN_LATE),
            Luck::ShownTooLate => later(now, SHOWN_TOO_LATE),
            _ => now,
        };
        let joins_at = if luck == Luck::Stillborn { Timestamp::MAX } else { later(now, JOIN_TIME) };
        let made = || Vm { provider_id: id.clone(), owner: owner.to_owned(), node, made: now, shown, joins_at };
        self.vms.entry(id.clone()).or_insert_with(made)
    }

    /// Deletes a VM without a machine.
    fn collect(&mut self, provider_id: &str, api: &Api, checks: &mut Checks) -> Result<DeletedVm, Status> {
        if self.destroy(provider_id, api, checks) { Ok(DeletedVm::default()) } else { refused(Code::NotFound) }
    }

    /// Deletes a VM that an existing machine does not name and can't use.
    fn delete_stale(
        &mut self,
        call: &PendingCall,
        Moment { api, .. }: Moment<'_>,
        checks: &mut Checks,
    ) -> Result<DeletedVm, Status> {
        let name = &call.machine.key.name;
        let is_its_own = |machine: &std::sync::Arc<Machine>| machine.spec.provider_id == call.provider_id;
        if call.provider_id.is_empty() || api.machines.get(name).is_some_and(is_its_own) {
            checks.violated("the VM of a machine is deleted that nobody has deleted", || name.clone());
        }
        match self.vms.remove(&call.provider_id) {
            Some(_) => Ok(DeletedVm::default()),
            None => refused(Code::NotFound),
        }
    }

    /// Deletes the VM that the machine names, or all VMs with its tag.
    fn delete(
        &mut self,
        call: &PendingCall,
        Moment { now, api }: Moment<'_>,
        checks: &mut Checks,
    ) -> Result<DeletedVm, Status> {
        let name = &call.machine.key.name;
        let living = api.machines.get(name).is_some_and(|machine| {
            machine.metadata.uid.as_deref() == Some(call.machine.uid.as_str())
                && machine.metadata.deletion_timestamp.is_none()
        });
        if living {
            checks.violated("the VM of a machine is deleted that nobody has deleted", || name.clone());
        }
        let is_it = |vm: &&Vm| match call.provider_id.as_str() {
            "" => vm.owner == *name,
            id => vm.provider_id == id,
        };
        let all: Vec<String> = self.shown(now).filter(is_it).map(|vm| vm.provider_id.clone()).collect();
        if !all.is_empty() {
            checks.vm_ends(api, &call.machine);
        }
        let mut any = false;
        for id in all {
            any |= self.destroy(&id, api, checks);
        }
        if any { Ok(DeletedVm::default()) } else { refused(Code::NotFound) }
    }
}

/// The machine for which the VM of a Node was made. The Node of a further VM of a machine has a number after a dot in
/// its name.
pub fn machine_of(node: &str) -> &str {
    node.split_once('.').map_or(node, |(machine, _)| machine)
}

/// The id as the cloud controller manager writes it on the Node: another spelling for the same instance.
pub fn as_the_node_has_it(provider_id: &str) -> String {
    provider_id.replace("sim:///", "sim://zone-a/")
}

fn identity(vm: &Vm) -> VmIdentity {
    VmIdentity { provider_id: vm.provider_id.clone(), node_name: vm.node.clone(), addresses: Vec::new() }
}

/// The code of a failed call.
pub fn code_of(answer: &Answer) -> Option<Code> {
    match answer {
        Answer::Status(Err(status))
        | Answer::Created(Err(status))
        | Answer::Initialized(Err(status))
        | Answer::Deleted(Err(status))
        | Answer::DeletedStale(Err(status)) => Some(status.code),
        Answer::Status(Ok(_))
        | Answer::Created(Ok(_))
        | Answer::Initialized(Ok(_))
        | Answer::Deleted(Ok(_))
        | Answer::DeletedStale(Ok(_)) => None,
    }
}

fn failed(call: Call, code: Code) -> Answer {
    match call {
        Call::Status => Answer::Status(refused(code)),
        Call::Create => Answer::Created(refused(code)),
        Call::Initialize => Answer::Initialized(refused(code)),
        Call::Delete => Answer::Deleted(refused(code)),
        Call::DeleteStale => Answer::DeletedStale(refused(code)),
    }
}
