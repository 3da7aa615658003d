//! The life cycle of a VM: what happens as time passes, and what follows from each step (spec/providers §7.3).
//!
//! The deadlines of all VMs are in one ordered set. A timer is ignored if its VM is in another state meanwhile.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use jiff::Timestamp;

use super::{
    Cloud, EventKind, Step, address_of,
    vm::{Heartbeat, Initialisation, Joining, Life, NodeStage, Vm, VmRef},
};
use crate::{
    clock::later,
    config::{NodeNaming, SimulationConfig},
    distribution::exponential,
    draw::Decision,
    rules::Outcome,
    template::{InstanceId, VmTemplate},
};

/// The time of a step in the life of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    pub(super) at: Timestamp,
    serial: u32,
    slot: u32,
    due: Due,
}

/// The steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    Exists,
    Boots,
    Ready,
    Breaks,
    SpotNotice,
    Vanishes,
    Gone,
    Forgotten,
}

/// The next action of the kubelet of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Show the stage of the VM on the Node.
    Show,
    /// Stop, because the VM ends.
    Stop,
    /// Delete the Node if that is configured, because the VM is gone.
    Gone,
}

/// Notifies the kubelets that the VM of a Node has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNotice {
    /// The VM.
    pub vm: VmRef,
    /// The name of the Node.
    pub node: Box<str>,
    /// The action.
    pub action: NodeAction,
}

impl Cloud {
    /// Runs all steps that are due, in their order and each at its own time.
    pub fn advance(&mut self, now: Timestamp) {
        while let Some(timer) = self.timers.first().copied().filter(|timer| timer.at <= now) {
            self.timers.pop_first();
            let vm = VmRef { slot: timer.slot, serial: timer.serial };
            match timer.due {
                Due::Exists => self.begins_to_exist(vm, timer.at),
                Due::Boots => self.boots(vm, timer.at),
                Due::Ready => self.becomes_ready(vm, timer.at),
                Due::Breaks => self.breaks(vm, timer.at),
                Due::SpotNotice => self.is_interrupted(vm, timer.at),
                Due::Vanishes => self.vanishes(vm, timer.at),
                Due::Gone => self.is_gone(vm, timer.at),
                Due::Forgotten => {
                    self.fleet.remove(vm);
                }
            }
        }
    }

    /// Makes the next VM of a machine. The caller has checked quotas and existing VMs.
    pub(super) fn order(&mut self, key: &Arc<str>, template: VmTemplate, now: Timestamp) -> VmRef {
        let number = self.intern(template);
        let vm = self.new_vm(key, number);
        self.add(vm, now)
    }

    /// Makes a VM with a unique provider id.
    fn new_vm(&mut self, key: &Arc<str>, template: u64) -> Vm {
        let facts = self.fleet.template(template);
        let machine = key.split_once('/').map_or(&**key, |(_, name)| name);
        loop {
            let record = self.fleet.record(key);
            record.made += 1;
            let generation = record.made;
            let provider_id = facts.provider_id(machine, self.instance_id(key, generation));
            // A provider id with the name of the machine may still belong to a VM that only a delayed list shows.
            let taken = self.fleet.by_provider_id(&provider_id).and_then(|vm| self.fleet.get(vm));
            if taken.is_some_and(|vm| vm.is_alive() && *vm.key != **key) {
                continue;
            }
            return Vm { template, ..Vm::new(key, generation, provider_id) };
        }
    }

    fn instance_id(&self, key: &str, generation: u32) -> InstanceId {
        use rand::Rng;
        let decision = Decision { operation: "create", subject: key, attempt: generation, purpose: "instance id" };
        let mut generator = self.draws.generator(decision);
        InstanceId([generator.next_u64(), generator.next_u64()])
    }

    /// Adds a new VM and starts its life.
    fn add(&mut self, mut vm: Vm, now: Timestamp) -> VmRef {
        let key = Arc::clone(&vm.key);
        let until = later(now, self.lasts(&vm, Step::Create));
        vm.life = Life::Creating { until };
        vm.created = now;
        let id = vm.provider_id.clone();
        let template = vm.template;
        let reference = self.fleet.insert(vm);
        self.name_node(reference, template);
        self.events.push(now, key, EventKind::Ordered { id });
        self.at(until, reference, Due::Exists);
        self.changed(reference);
        self.advance(now);
        reference
    }

    /// Sets the name of the Node, if the configuration does not use the name of the machine.
    fn name_node(&mut self, reference: VmRef, template: u64) {
        if self.fleet.config(template).nodes.node_name != NodeNaming::PrivateDns {
            return;
        }
        let region = self.fleet.template(template).region.clone();
        if let Some(vm) = self.fleet.get_mut(reference) {
            vm.node_name = Some(private_dns(address_of(vm.address), &region).into_boxed_str());
        }
    }

    pub(super) fn at(&mut self, at: Timestamp, vm: VmRef, due: Due) {
        self.timers.insert(Timer { at, serial: vm.serial, slot: vm.slot, due });
    }

    /// Marks the VM as changed, so that it is stored again.
    pub(super) fn changed(&mut self, vm: VmRef) {
        self.revision += 1;
        self.changes.vms.push(vm);
    }

    fn notify(&mut self, vm: VmRef, action: NodeAction) {
        if let Some(node) = self.fleet.get(vm).filter(|vm| vm.joining == Joining::Joins).map(|vm| vm.node_name().into())
        {
            self.notices.push(NodeNotice { vm, node, action });
        }
    }

    fn begins_to_exist(&mut self, reference: VmRef, at: Timestamp) {
        let Some(vm) = self.fleet.get_mut(reference) else { return };
        if !matches!(vm.life, Life::Creating { .. }) {
            return;
        }
        vm.life = Life::Running;
        vm.created = at;
        let (generation, template, key, id) = (vm.generation, vm.template, Arc::clone(&vm.key), vm.provider_id.clone());
        self.note(reference, EventKind::Running { id }, at);
        let outcome = self.outcome_of(reference);
        if let Some(outcome) = outcome {
            self.events.push(at, Arc::clone(&key), EventKind::Outcome { effect: outcome.word() });
        }
        match outcome {
            Some(Outcome::NeverJoins) => self.update(reference, |vm| vm.joining = Joining::Never),
            Some(Outcome::Uninitialized) => self.update(reference, |vm| vm.initialisation = Initialisation::Missing),
            // Only one duplicate is made, because a duplicate of a duplicate would never end.
            Some(Outcome::DuplicateVm) if generation == 1 || self.fleet.of_machine(&key).len() == 1 => {
                self.add_twin(&key, template, at);
            }
            _ => {}
        }
        self.begin_running(reference);
        self.changed(reference);
    }

    /// Makes a second VM for the same machine, like a cloud that lost the first request. It has no kubelet, because two kubelets can't register with
    /// the same name.
    fn add_twin(&mut self, key: &Arc<str>, template: u64, at: Timestamp) {
        let facts = self.fleet.template(template);
        let mut twin = self.new_vm(key, template);
        if self.fleet.by_provider_id(&twin.provider_id).is_some() {
            tracing::debug!(
                kind = "Machine",
                name = %key,
                provider = facts.provider,
                "names are identities there: no second VM"
            );
            return;
        }
        twin.created = at;
        twin.joining = Joining::Never;
        let id = twin.provider_id.clone();
        let reference = self.fleet.insert(twin);
        self.events.push(at, Arc::clone(key), EventKind::Running { id });
        self.changed(reference);
    }

    /// Sets the timers of a running VM. All of them depend on its creation time, so that they are the same after a restart.
    pub(super) fn begin_running(&mut self, reference: VmRef) {
        let Some(vm) = self.fleet.get(reference) else { return };
        let (created, node, joining) = (vm.created, vm.node, vm.joining);
        let boots_at = later(created, self.lasts(vm, Step::Boot));
        let config = self.fleet.config(vm.template);
        let spot = self.spot_end(vm, &config);
        if joining == Joining::Joins {
            match node {
                NodeStage::Absent => self.at(boots_at, reference, Due::Boots),
                NodeStage::Registered => self.await_ready(reference, boots_at),
                NodeStage::Ready | NodeStage::Broken => self.notify(reference, NodeAction::Show),
            }
        }
        if let Some(Outcome::Vanishes(after)) = self.outcome_of(reference) {
            self.at(later(created, after), reference, Due::Vanishes);
        }
        if let Some(interrupted) = spot {
            self.at(later(created, interrupted), reference, Due::SpotNotice);
        }
    }

    fn spot_end(&self, vm: &Vm, config: &SimulationConfig) -> Option<Duration> {
        let template = self.fleet.template(vm.template);
        let spot = config.spot.as_ref().filter(|spot| spot.pattern.matches(template.subject(vm.machine())))?;
        let decision =
            Decision { operation: "create", subject: &vm.key, attempt: vm.generation, purpose: "spot interruption" };
        Some(exponential(spot.mean_time_to_interrupt, &mut self.draws.generator(decision)))
    }

    /// The outcome rule for this VM. The result is always the same.
    fn outcome_of(&self, reference: VmRef) -> Option<Outcome> {
        let vm = self.fleet.get(reference)?;
        let (template, config) = (self.fleet.template(vm.template), self.fleet.config(vm.template));
        let subject = template.subject(vm.machine());
        let rule = config.outcomes.iter().enumerate().find(|(at, rule)| {
            let purpose = format!("outcome {at}");
            let decision =
                Decision { operation: "create", subject: &vm.key, attempt: vm.generation, purpose: &purpose };
            rule.pattern.matches(subject) && self.draws.happens(decision, rule.rate)
        });
        rule.map(|(_, rule)| rule.outcome)
    }

    /// Changes the stage of the Node of a running VM. Returns whether the Node was in the stage `from`.
    fn change_stage(
        &mut self,
        reference: VmRef,
        at: Timestamp,
        from: impl FnOnce(NodeStage) -> bool,
        (to, kind): (NodeStage, EventKind),
    ) -> bool {
        let running = self.fleet.get_mut(reference).filter(|vm| vm.life == Life::Running);
        let Some(vm) = running.filter(|vm| from(vm.node)) else { return false };
        vm.node = to;
        self.note(reference, kind, at);
        true
    }

    fn boots(&mut self, reference: VmRef, at: Timestamp) {
        let boots = (NodeStage::Registered, EventKind::NodeRegisters);
        if self.change_stage(reference, at, |node| node == NodeStage::Absent, boots) {
            self.await_ready(reference, at);
        }
    }

    /// Schedules the readiness of a Node. A Node that is ready at once gets one notice, so that one write is enough.
    fn await_ready(&mut self, reference: VmRef, registered: Timestamp) {
        let Some(length) = self.fleet.get(reference).map(|vm| self.lasts(vm, Step::Ready)) else { return };
        if length.is_zero() {
            self.becomes_ready(reference, registered);
        } else {
            self.at(later(registered, length), reference, Due::Ready);
            self.notify(reference, NodeAction::Show);
        }
    }

    fn becomes_ready(&mut self, reference: VmRef, at: Timestamp) {
        let ready = (NodeStage::Ready, EventKind::NodeReady);
        if !self.change_stage(reference, at, |node| node == NodeStage::Registered, ready) {
            return;
        }
        if let Some(Outcome::JoinsThenNotReady(after)) = self.outcome_of(reference) {
            self.at(later(at, after), reference, Due::Breaks);
        }
        self.notify(reference, NodeAction::Show);
    }

    /// The Node becomes ready again.
    pub fn recovers(&mut self, reference: VmRef, at: Timestamp) {
        let ready = (NodeStage::Ready, EventKind::NodeReady);
        if self.change_stage(reference, at, |node| node == NodeStage::Broken, ready) {
            self.notify(reference, NodeAction::Show);
            self.changed(reference);
        }
    }

    /// The Node becomes not ready until it [recovers](Self::recovers).
    pub fn breaks(&mut self, reference: VmRef, at: Timestamp) {
        let broken = (NodeStage::Broken, EventKind::NodeNotReady);
        if self.change_stage(reference, at, |node| node != NodeStage::Absent, broken) {
            self.notify(reference, NodeAction::Show);
            self.changed(reference);
        }
    }

    /// The kubelet hangs from now on.
    pub fn freeze(&mut self, reference: VmRef, at: Timestamp) {
        self.update(reference, |vm| vm.heartbeat = Heartbeat::Frozen);
        self.note(reference, EventKind::HeartbeatFrozen, at);
        self.notify(reference, NodeAction::Show);
        self.changed(reference);
    }

    /// The cloud announces the end of a VM. The VM ends when the notice period is over.
    pub fn is_interrupted(&mut self, reference: VmRef, at: Timestamp) {
        let Some(vm) = self.fleet.get(reference).filter(|vm| vm.life == Life::Running) else { return };
        let config = self.fleet.config(vm.template);
        let notice = config.spot.as_ref().map_or(Duration::from_secs(120), |spot| spot.notice);
        self.note(reference, EventKind::SpotNotice, at);
        self.at(later(at, notice), reference, Due::Vanishes);
    }

    /// The VM ends without a request.
    pub fn vanishes(&mut self, reference: VmRef, at: Timestamp) {
        if self.fleet.get(reference).is_some_and(Vm::is_alive) {
            self.notify(reference, NodeAction::Stop);
            self.is_gone(reference, at);
        }
    }

    /// Begins the deletion of a VM. Returns when it will be gone.
    pub(super) fn stop(&mut self, reference: VmRef, now: Timestamp) -> Option<Timestamp> {
        let vm = self.fleet.get(reference)?;
        let until = match vm.life {
            Life::Gone { .. } => return None,
            Life::Stopping { until } => return Some(until),
            Life::Creating { .. } | Life::Running => later(now, self.lasts(vm, Step::Delete)),
        };
        let id = vm.provider_id.clone();
        self.update(reference, |vm| vm.life = Life::Stopping { until });
        self.note(reference, EventKind::Stopping { id }, now);
        self.notify(reference, NodeAction::Stop);
        self.at(until, reference, Due::Gone);
        self.changed(reference);
        self.advance(now);
        Some(until)
    }

    fn is_gone(&mut self, reference: VmRef, at: Timestamp) {
        let Some(vm) = self.fleet.get(reference).filter(|vm| vm.is_alive()) else { return };
        let (id, template, key) = (vm.provider_id.clone(), vm.template, Arc::clone(&vm.key));
        let consistency = self.fleet.config(template).consistency;
        let lag = consistency.get_lag.max(consistency.list_lag);
        self.note(reference, EventKind::Gone { id: id.clone() }, at);
        self.notify(reference, NodeAction::Gone);
        self.fleet.discharge(template);
        self.revision += 1;
        self.changes.gone.push(id);
        self.changes.machines.push(key);
        if lag.is_zero() {
            self.fleet.remove(reference);
        } else {
            self.update(reference, |vm| vm.life = Life::Gone { since: at });
            self.at(later(at, lag), reference, Due::Forgotten);
        }
    }

    pub(super) fn update(&mut self, reference: VmRef, change: impl FnOnce(&mut Vm)) {
        if let Some(vm) = self.fleet.get_mut(reference) {
            change(vm);
        }
    }
}

/// The name that EC2 gives a host with this address.
fn private_dns(address: Ipv4Addr, region: &str) -> String {
    let [a, b, c, d] = address.octets();
    format!("ip-{a}-{b}-{c}-{d}.{region}.compute.internal")
}
