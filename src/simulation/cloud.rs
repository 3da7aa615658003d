//! The provider of the simulation, and the kubelets on its VMs.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{api::Api, checks::Checks, history::Luck, machines::PendingCall};
use crate::{
    api::v1alpha1::Machine,
    controllers::machine::observation::{Answer, Call},
    driver::{Code, CreatedVm, DeletedVm, Status, VmIdentity},
};

/// A VM.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Its identity at the provider.
    pub provider_id: String,
    /// When its Node joins by itself.
    pub joins_at: Timestamp,
}

/// The VMs by the names of their machines. Creations are idempotent.
#[derive(Clone, Debug, Default)]
pub struct Cloud {
    /// The VMs.
    pub vms: BTreeMap<String, Vm>,
    made: u64,
}

fn refused<T>(code: Code) -> Result<T, Status> {
    Err(Status::new(code, "the weather is bad"))
}

impl Cloud {
    /// Ends a driver call, and answers.
    pub fn end(
        &mut self,
        call: &PendingCall,
        luck: Luck,
        joins_at: Timestamp,
        api: &Api,
        checks: &mut Checks,
    ) -> Answer {
        let before = match luck {
            Luck::Busy => Some(Code::Unavailable),
            Luck::Full if call.call == Call::Create => Some(Code::ResourceExhausted),
            _ => None,
        };
        if let Some(code) = before {
            return failed(call.call, code);
        }
        let answer = self.perform(call, luck, joins_at, api, checks);
        if luck == Luck::Lost { failed(call.call, Code::DeadlineExceeded) } else { answer }
    }

    fn perform(
        &mut self,
        call: &PendingCall,
        luck: Luck,
        joins_at: Timestamp,
        api: &Api,
        checks: &mut Checks,
    ) -> Answer {
        let name = &call.machine.key.name;
        match call.call {
            Call::Status => Answer::Status(match self.vms.get(name) {
                Some(vm) => Ok(identity(name, vm)),
                None => refused(Code::NotFound),
            }),
            Call::Initialize => Answer::Initialized(match self.vms.get(name) {
                Some(vm) => Ok(identity(name, vm)),
                None => refused(Code::NotFound),
            }),
            Call::Create => {
                if !self.vms.contains_key(name) {
                    self.made += 1;
                    let joins_at = if luck == Luck::Stillborn { Timestamp::MAX } else { joins_at };
                    self.vms.insert(name.clone(), Vm { provider_id: format!("sim:///{name}/{}", self.made), joins_at });
                }
                Answer::Created(match self.vms.get(name) {
                    Some(vm) => Ok(CreatedVm { vm: identity(name, vm), last_known_state: None }),
                    None => refused(Code::Internal),
                })
            }
            Call::Delete | Call::DeleteStale => {
                let living = api.machines.get(name).is_some_and(|machine: &std::sync::Arc<Machine>| {
                    machine.metadata.uid.as_deref() == Some(call.machine.uid.as_str())
                        && machine.metadata.deletion_timestamp.is_none()
                });
                if living && call.call == Call::Delete {
                    checks.violated("the VM of a machine is deleted that nobody has deleted", || name.clone());
                }
                let is_it = self
                    .vms
                    .get(name)
                    .is_some_and(|vm| call.provider_id.is_empty() || vm.provider_id == call.provider_id);
                let deleted = if is_it {
                    self.vms.remove(name);
                    Ok(DeletedVm::default())
                } else {
                    refused(Code::NotFound)
                };
                if call.call == Call::Delete { Answer::Deleted(deleted) } else { Answer::DeletedStale(deleted) }
            }
        }
    }
}

/// An identity as the cloud's controller manager writes it on the Node: the same instance in another spelling.
pub fn as_the_node_has_it(provider_id: &str) -> String {
    provider_id.replace("sim:///", "sim://zone-a/")
}

fn identity(name: &str, vm: &Vm) -> VmIdentity {
    VmIdentity { provider_id: vm.provider_id.clone(), node_name: name.to_owned(), addresses: Vec::new() }
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
