//! The calls of the cloud's API after the checks: create, initialize, delete, status, list.
//!
//! Every call first runs the steps that are due, and returns at once. The answer contains how long the caller must wait.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;

use super::{
    Cloud, address_of,
    vm::{Initialisation, Life, Vm, VmRef, machine_key},
};
use crate::{clock::later, config::QuotaLimit, template::VmTemplate};
use machine_driver::{Code, CreatedVm, ListedVm, Status, VmIdentity};

/// The subject of a call.
#[derive(Clone, Debug, Default)]
pub struct MachineCall {
    /// The namespace of the machine. For a list, the namespace of the class.
    pub namespace: String,
    /// The name of the machine. Empty for a list.
    pub machine: String,
    /// The provider id that the machine has. May be empty.
    pub provider_id: String,
    /// Whether the call is for a stored machine or for one VM without a machine.
    pub target: Target,
    /// The settings of the class and the machine.
    pub template: VmTemplate,
}

/// The VMs that a deletion deletes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// All VMs of the machine.
    #[default]
    Machine,
    /// Only the VM with the provider id. Another VM may belong to a valid machine.
    OneVm,
}

/// A VM that was requested or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateStep {
    /// The VM.
    pub vm: VmRef,
    /// The time from which the VM exists.
    pub exists_at: Timestamp,
}

impl Cloud {
    /// Requests the VM of a machine, or finds the VM of an earlier request.
    ///
    /// # Errors
    /// `Aborted` while an earlier VM of the machine is being deleted, `AlreadyExists` if the VM belongs to another owner, `ResourceExhausted` if a
    /// quota is exhausted.
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

    /// The answer of a create call after its VM exists.
    ///
    /// # Errors
    /// `Aborted` if the VM was deleted or vanished meanwhile.
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

    /// Initialises a VM.
    ///
    /// # Errors
    /// `Uninitialized` if there is no VM.
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
            self.note(reference, super::EventKind::Initialized, now);
            self.changed(reference);
        }
        Ok(identity)
    }

    /// Begins the deletion of the VMs of a machine. Returns when the last one is gone. A VM with the provider id is found at once. A VM with the name
    /// of the machine is found only if the cloud shows it.
    ///
    /// # Errors
    /// `NotFound` if there is no VM.
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

    /// The VM of a machine.
    ///
    /// # Errors
    /// `NotFound` without a VM, `OutOfRange` for several VMs, `Uninitialized` with the identity of the VM.
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

    /// All VMs of the cluster and role of the class, sorted by machine name.
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

    /// Makes a VM without a machine.
    pub fn make_orphan(&mut self, call: &MachineCall, now: Timestamp) -> VmRef {
        self.advance(now);
        self.order(&machine_key(&call.namespace, &call.machine), call.template.clone(), now)
    }

    /// The VM with this provider id.
    pub fn find(&self, provider_id: &str) -> Option<VmRef> {
        self.fleet.by_provider_id(provider_id)
    }

    /// The VMs of a machine that belong to the owner of its class, and the number of VMs of other owners. A VM whose owner is unknown gets its owner
    /// here.
    fn vms_of(&mut self, call: &MachineCall) -> (Vec<VmRef>, usize) {
        // An empty name never selects a VM.
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
            self.record_owner(*vm, &key, &call.template);
        }
        (owned, foreign.len())
    }

    fn record_owner(&mut self, reference: VmRef, key: &Arc<str>, wanted: &VmTemplate) {
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

    /// The VM with the provider id of the call, if it belongs to the machine and the owner.
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

/// Whether the API shows the VM, with answers that are delayed by `lag`.
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
