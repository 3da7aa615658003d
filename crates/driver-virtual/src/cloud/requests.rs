//! The calls of the cloud's API, after admission: create, initialize, delete, status, list.
//!
//! Every call lets due things happen first and answers at once; how long the caller waits is part of the answer.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;

use super::{
    Cloud, address_of,
    vm::{Initialisation, Life, Vm, VmRef, machine_key},
};
use crate::{clock::later, config::QuotaLimit, template::VmTemplate};
use machine_driver::{Code, CreatedVm, ListedVm, Status, VmIdentity};

/// What a call is about.
#[derive(Clone, Debug, Default)]
pub struct MachineCall {
    /// Namespace of the machine, or of the class for a list.
    pub namespace: String,
    /// Name of the machine; empty for a list.
    pub machine: String,
    /// The identity that the machine knows its VM by; may be empty.
    pub provider_id: String,
    /// Whether the call is about a stored machine or about one VM that has none.
    pub target: Target,
    /// What the class and the machine ask for.
    pub template: VmTemplate,
}

/// How far a deletion reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// All VMs of the machine.
    #[default]
    Machine,
    /// Only the VM with the given identity; another one of the machine may be the good one.
    OneVm,
}

/// A VM that was ordered or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateStep {
    /// The VM.
    pub vm: VmRef,
    /// From when on it exists.
    pub exists_at: Timestamp,
}

impl Cloud {
    /// Orders the VM of a machine, or finds the one that was ordered before.
    ///
    /// # Errors
    /// `Aborted` while an earlier VM of the machine still ends, `AlreadyExists` when its VM belongs to another owner,
    /// `ResourceExhausted` when a quota is used up.
    pub fn create(&mut self, call: &MachineCall, now: Timestamp) -> Result<CreateStep, Status> {
        self.advance(now);
        let (owned, foreign) = self.vms_of(call);
        let not_gone = |vm: &&Vm| vm.is_alive();
        if foreign > 0 && owned.is_empty() {
            let message = format!("a VM named {:?} exists and belongs to another cluster or role", call.machine);
            return Err(Status::new(Code::AlreadyExists, message));
        }
        for vm in &owned {
            match self.fleet.get(*vm).filter(not_gone).map(|vm| vm.life) {
                Some(Life::Creating { until }) => return Ok(CreateStep { vm: *vm, exists_at: until }),
                Some(Life::Running) => return Ok(CreateStep { vm: *vm, exists_at: now }),
                _ => {}
            }
        }
        if owned.iter().any(|vm| self.fleet.get(*vm).is_some_and(Vm::is_alive)) {
            let message = format!("the former VM of machine {:?} is still being deleted", call.machine);
            return Err(Status::new(Code::Aborted, message));
        }
        self.check_quota(&call.template)?;
        let vm = self.order(&machine_key(&call.namespace, &call.machine), call.template.clone(), now);
        let exists_at = match self.fleet.get(vm).map(|vm| vm.life) {
            Some(Life::Creating { until }) => until,
            _ => now,
        };
        Ok(CreateStep { vm, exists_at })
    }

    /// The answer of a create call once its VM exists.
    ///
    /// # Errors
    /// `Aborted` when the VM was deleted or vanished meanwhile.
    pub fn created(&mut self, vm: VmRef, now: Timestamp) -> Result<CreatedVm, Status> {
        self.advance(now);
        match self.fleet.get(vm).filter(|vm| vm.life == Life::Running) {
            Some(vm) => Ok(CreatedVm { vm: identity(vm), last_known_state: None }),
            None => Err(Status::new(Code::Aborted, "the VM ended while it was being created")),
        }
    }

    fn check_quota(&self, template: &VmTemplate) -> Result<(), Status> {
        for quota in &self.config.quota {
            if !quota.pattern.matches(template.subject("")) {
                continue;
            }
            let used = self.fleet.usage().filter(|(used, _)| quota.pattern.matches(used.subject("")));
            let (exceeded, what) = match quota.limit {
                QuotaLimit::Machines(max) => (used.map(|(_, vms)| vms).sum::<u64>() >= max, format!("{max} VMs")),
                QuotaLimit::Vcpus(max) => {
                    let milli: u64 = used.map(|(used, vms)| used.milli_cores() * vms).sum();
                    (milli + template.milli_cores() > max * 1000, format!("{max} cores"))
                }
            };
            if exceeded {
                let message = format!(
                    "quota of {what} is used up for type {:?} in zone {:?}",
                    template.machine_type, template.zone
                );
                return Err(Status::new(Code::ResourceExhausted, message));
            }
        }
        Ok(())
    }

    /// Finishes a VM that was created but not initialised.
    ///
    /// # Errors
    /// `Uninitialized` when there is no VM to finish.
    pub fn initialize(&mut self, call: &MachineCall, now: Timestamp) -> Result<VmIdentity, Status> {
        self.advance(now);
        let (owned, _) = self.vms_of(call);
        let running = owned.into_iter().find(|vm| self.fleet.get(*vm).is_some_and(|vm| vm.life == Life::Running));
        let Some((reference, vm)) = running.and_then(|vm| Some((vm, self.fleet.get(vm)?))) else {
            return Err(Status::new(Code::Uninitialized, format!("machine {:?} has no VM yet", call.machine)));
        };
        let (identity, missing) = (identity(vm), vm.initialisation == Initialisation::Missing);
        if missing {
            self.update(reference, |vm| vm.initialisation = Initialisation::Done);
            self.note(reference, super::Happening::Initialized, now);
            self.changed(reference);
        }
        Ok(identity)
    }

    /// Orders the end of a machine's VMs; answers when the last one is gone. A VM is found by its identity at once, by the
    /// machine's name only when the cloud shows it.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub fn delete(&mut self, call: &MachineCall, now: Timestamp) -> Result<Timestamp, Status> {
        self.advance(now);
        let mut targets: Vec<VmRef> = self.by_identity(call).into_iter().collect();
        if call.target == Target::Machine || call.provider_id.is_empty() {
            let lag = self.config_of(&call.template).consistency.get_lag;
            let (owned, _) = self.vms_of(call);
            targets
                .extend(owned.into_iter().filter(|vm| self.fleet.get(*vm).is_some_and(|vm| is_visible(vm, lag, now))));
        }
        targets.sort();
        targets.dedup();
        let gone_at = targets.into_iter().filter_map(|vm| self.stop(vm, now)).max();
        gone_at.ok_or_else(|| not_found(call))
    }

    /// Finds the VM of a machine.
    ///
    /// # Errors
    /// `NotFound`, `OutOfRange` when there are several, `Uninitialized` together with the identity.
    pub fn status(&mut self, call: &MachineCall, now: Timestamp) -> Result<VmIdentity, Status> {
        self.advance(now);
        let lag = self.config_of(&call.template).consistency.get_lag;
        let (mut vms, _) = self.vms_of(call);
        vms.extend(self.by_identity(call));
        vms.sort();
        vms.dedup();
        let mut seen: Vec<&Vm> =
            vms.iter().filter_map(|vm| self.fleet.get(*vm)).filter(|vm| is_visible(vm, lag, now)).collect();
        if seen.iter().any(|vm| vm.life == Life::Running) {
            seen.retain(|vm| vm.life == Life::Running);
        }
        match seen.as_slice() {
            [] => Err(not_found(call)),
            [vm] if vm.initialisation == Initialisation::Missing => {
                let message = format!("VM {} is not initialised", vm.provider_id);
                Err(Status::new(Code::Uninitialized, message).with_partial(identity(vm)))
            }
            [vm] => Ok(identity(vm)),
            many => {
                let ids: Vec<&str> = many.iter().map(|vm| &*vm.provider_id).collect();
                let message = format!("machine {:?} has several VMs: {}", call.machine, ids.join(", "));
                Err(Status::new(Code::OutOfRange, message))
            }
        }
    }

    /// All VMs of the class's cluster and role, by machine name.
    pub fn list(&mut self, call: &MachineCall, now: Timestamp) -> Vec<ListedVm> {
        self.advance(now);
        let lag = self.config_of(&call.template).consistency.list_lag;
        let mut listed: Vec<ListedVm> = self
            .fleet
            .iter()
            .filter(|(_, vm)| is_visible(vm, lag, now) && call.template.owns(&self.fleet.template(vm.template)))
            .map(|(_, vm)| ListedVm {
                provider_id: vm.provider_id.to_string(),
                machine_name: vm.machine().to_owned(),
                created: Some(vm.created),
            })
            .collect();
        listed.sort_by(|a, b| (&a.machine_name, &a.provider_id).cmp(&(&b.machine_name, &b.provider_id)));
        listed
    }

    /// A VM without a machine.
    pub fn make_orphan(&mut self, call: &MachineCall, now: Timestamp) -> VmRef {
        self.advance(now);
        self.order(&machine_key(&call.namespace, &call.machine), call.template.clone(), now)
    }

    /// The VM with this identity.
    pub fn find(&self, provider_id: &str) -> Option<VmRef> {
        self.fleet.by_provider_id(provider_id)
    }

    /// The VMs of a machine that belong to its class's owner, and how many belong to another one. A VM of which only
    /// the identity was known gets its owner here.
    fn vms_of(&mut self, call: &MachineCall) -> (Vec<VmRef>, usize) {
        // No look-up is ever built from an empty name.
        if call.machine.is_empty() {
            return (Vec::new(), 0);
        }
        let key = machine_key(&call.namespace, &call.machine);
        let mut vms = self.fleet.of_machine(&key);
        vms.extend(self.fleet.of_machine(&machine_key("", &call.machine)));
        vms.sort();
        vms.dedup();
        let (owned, foreign): (Vec<VmRef>, Vec<VmRef>) = vms.into_iter().partition(|vm| {
            self.fleet.get(*vm).is_some_and(|vm| call.template.owns(&self.fleet.template(vm.template)))
        });
        for vm in &owned {
            self.learn(*vm, &key, &call.template);
        }
        (owned, foreign.len())
    }

    fn learn(&mut self, reference: VmRef, key: &Arc<str>, wanted: &VmTemplate) {
        let Some(vm) = self.fleet.get(reference).filter(|vm| vm.is_alive()) else { return };
        let known = self.fleet.template(vm.template);
        if known.has_owner() && vm.key == *key {
            return;
        }
        let template = VmTemplate { region: known.region.clone(), zone: known.zone.clone(), ..wanted.clone() };
        let number = self.intern(template);
        self.fleet.rebind(reference, key, number);
        self.changed(reference);
    }

    /// The VM that the call names by its identity, if it may touch it.
    fn by_identity(&self, call: &MachineCall) -> Option<VmRef> {
        if call.provider_id.is_empty() {
            return None;
        }
        let reference = self.fleet.by_provider_id(&call.provider_id)?;
        let vm = self.fleet.get(reference)?;
        let same = |known: &str, asked: &str| known.is_empty() || asked.is_empty() || known == asked;
        let matches = same(vm.namespace(), &call.namespace)
            && same(vm.machine(), &call.machine)
            && call.template.owns(&self.fleet.template(vm.template));
        matches.then_some(reference)
    }
}

fn not_found(call: &MachineCall) -> Status {
    Status::new(Code::NotFound, format!("machine {:?} has no VM", call.machine))
}

/// Whether the API shows the VM, given how long its answers lag behind.
fn is_visible(vm: &Vm, lag: Duration, now: Timestamp) -> bool {
    match vm.life {
        Life::Creating { .. } => false,
        Life::Running | Life::Stopping { .. } => lag.is_zero() || now >= later(vm.created, lag),
        Life::Gone { since } => now < later(since, lag),
    }
}

fn identity(vm: &Vm) -> VmIdentity {
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    VmIdentity {
        provider_id: vm.provider_id.to_string(),
        node_name: vm.node_name().to_owned(),
        addresses: vec![
            address("InternalIP", address_of(vm.address).to_string()),
            address("Hostname", vm.node_name().to_owned()),
        ],
    }
}
