//! How effects are carried out in the played world: writes, driver calls, and the patches that the machine's rules write.

use super::super::{
    node_dress::NodeDress,
    patches::{self, Write},
};
use super::*;
use controller_runtime::objects::Patch;
use machine_api::names::stage_text;

/// The creation timeout by default.
const CREATION_SECONDS: i64 = 20 * 60;

impl World {
    pub(super) fn act(&mut self, plan: &Plan, seen: &Observation) -> Acted {
        for effect in &plan.effects {
            if self.faults > 0 && self.chance(2) {
                return Acted::Crashed;
            }
            match self.effect(effect, seen) {
                Acted::Done => {}
                other => return other,
            }
        }
        Acted::Done
    }

    fn effect(&mut self, effect: &Effect, seen: &Observation) -> Acted {
        match effect {
            Effect::AddMachineFinalizer
            | Effect::Link(_)
            | Effect::ForgetPreservation(_)
            | Effect::RememberNodesWish(_) => {
                let Write::This(_, Patch::Merge(patch)) = patches::of_machine(effect, seen, &seen.machine) else {
                    panic!("{effect:?} is a merge patch")
                };
                let guard = if patch["metadata"]["resourceVersion"].is_null() {
                    VersionGuard::Any
                } else {
                    VersionGuard::Observed
                };
                self.write_machine(guard, |machine| patch_machine(machine, &patch))
            }
            Effect::WriteStatus { change, at: now } => {
                let patch = patches::status(change, *now, &seen.machine);
                let kept = self
                    .machine
                    .as_ref()
                    .and_then(|machine| machine.status.current_status.preserve_expiry_time.clone())
                    .filter(|end| end.0 > at(self.now));
                self.judge(seen, &patch);
                let guard = if change.replaces_lists() { VersionGuard::Observed } else { VersionGuard::Any };
                let acted = self.write_machine(guard, |machine| patch_status(machine, &patch["status"]));
                if let Some(machine) = &self.machine {
                    let current = &machine.status.current_status;
                    if kept.is_some()
                        && current.preserve_expiry_time.is_none()
                        && current.phase != MachinePhase::Terminating
                    {
                        self.wrong("a write of something else ended a preservation");
                    }
                }
                acted
            }
            Effect::RemoveMachineFinalizer => {
                if !self.delete_was_answered {
                    self.wrong("the machine is let go before the driver has said that its VM is gone");
                }
                self.write_machine(VersionGuard::Any, |machine| {
                    machine.finalizers_mut().retain(|name| name != finalizer::MACHINE);
                })
            }
            Effect::DeleteMachine => {
                if !self.node_was_deleted {
                    self.wrong("a machine is deleted whose Node nobody deleted");
                }
                self.delete_machine();
                self.process.machine.clone_from(&self.machine);
                Acted::Done
            }
            Effect::RereadMachine => {
                self.process.machine.clone_from(&self.machine);
                match &self.machine {
                    Some(machine) if machine.metadata.deletion_timestamp.is_none() => Acted::Done,
                    _ => Acted::Void,
                }
            }
            Effect::RereadNode => {
                if self.chance(self.faults) {
                    return Acted::Failed;
                }
                self.process.node_vanished |= self.process.node.is_some() && self.node.is_none();
                self.process.node.clone_from(&self.node);
                Acted::Done
            }
            Effect::LookForNode => {
                let is_in_vain = self.chance(self.faults);
                self.last_look = if is_in_vain { LastLook::InVain } else { LastLook::Answered };
                if is_in_vain {
                    let step = super::super::observation::NodeStep::LastLook;
                    return Acted::Trouble(Trouble { step, error: "no".to_owned() });
                }
                self.process.node_vanished |= self.process.node.is_some() && self.node.is_none();
                self.process.node.clone_from(&self.node);
                Acted::Done
            }
            Effect::Cordon
            | Effect::Dress { .. }
            | Effect::AddNodeCondition(_)
            | Effect::SetNodeCondition { .. }
            | Effect::MirrorCapacity(_)
            | Effect::RemoveNodeFinalizer
            | Effect::DeleteNode { .. } => self.write_node(effect),
            Effect::Start(call) => self.start(*call, seen),
            Effect::Remember(memo) => {
                remember(*memo, seen, &mut self.process.memory);
                Acted::Done
            }
            Effect::DeleteAttachment { .. }
            | Effect::CheckInputs
            | Effect::EnsureToken
            | Effect::DeleteToken
            | Effect::Warn { .. }
            | Effect::Tell { .. }
            | Effect::Measure(_) => Acted::Done,
        }
    }

    /// A machine is given up because its Node is ill or has not come: that must be so in truth, not only in the view.
    fn judge(&mut self, seen: &Observation, patch: &Value) {
        let is_ill = matches!(seen.phase(), MachinePhase::Unknown | MachinePhase::Pending);
        let is_given_up = is_ill && patch["status"]["currentStatus"]["phase"] == "Failed";
        let is_well = self.node.as_ref().is_some_and(|node| {
            let ready = super::super::observation::condition(super::super::observation::conditions_of(node), "Ready");
            is_of_the_vm(node) && ready.is_some_and(|ready| ready.status == "True")
        });
        if is_given_up && is_well {
            self.wrong("a healthy machine is given up");
        }
        let Some(status) = self.machine.as_ref().map(|machine| machine.status.clone()) else { return };
        let adopted = machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM;
        let began = status.current_status.last_update_time.as_ref().map(|began| began.0);
        let in_time = began.is_some_and(|began| at(self.now).duration_since(began).as_secs() < CREATION_SECONDS);
        let is_adopted = status.machine_conditions.iter().any(|condition| condition.reason == adopted);
        if is_given_up && *seen.phase() == MachinePhase::Pending && is_adopted && in_time {
            self.wrong("a VM that was taken over is given up before its time");
        }
        let was_recorded = status.last_operation.description.contains(stage_text::INITIALIZE_VM);
        let goes_on = patch["status"]["currentStatus"]["phase"] == "Pending";
        if goes_on && was_recorded && self.initialisation == Initialisation::Failed {
            self.wrong("an initialisation that failed is not repeated");
        }
    }

    fn write_machine(&mut self, guard: VersionGuard, change: impl FnOnce(&mut Machine)) -> Acted {
        let version = |machine: &Option<Arc<Machine>>| {
            machine.as_ref().and_then(|machine| machine.metadata.resource_version.clone())
        };
        let is_stale = version(&self.process.machine) != version(&self.machine);
        if self.machine.is_none() || (guard == VersionGuard::Observed && is_stale) {
            self.process.machine.clone_from(&self.machine);
            return Acted::Void;
        }
        let broken = self.chance(self.faults);
        if broken && self.chance(50) {
            return Acted::Failed;
        }
        self.change_machine(change);
        self.writes += 1;
        if broken {
            // It happened, but the answer got lost.
            self.process.memory.reread = true;
            return Acted::Failed;
        }
        self.process.machine.clone_from(&self.machine);
        Acted::Done
    }

    fn write_node(&mut self, effect: &Effect) -> Acted {
        let step = super::super::act::node_step(effect).unwrap_or(super::super::observation::NodeStep::Metadata);
        let is_deleting = self.machine.as_ref().is_none_or(|machine| machine.metadata.deletion_timestamp.is_some());
        if self.chance(self.faults) {
            return Acted::Trouble(Trouble { step, error: "no".to_owned() });
        }
        let is_another = !is_the_same(self.process.node.as_deref(), self.node.as_deref());
        let Some(node) = self.node.as_mut().filter(|_| !is_another) else {
            // Every write names the UID of the Node that it is for; the answer tells what is there.
            self.process.node.clone_from(&self.node);
            return Acted::Void;
        };
        self.writes += 1;
        let is_foreign = !is_of_the_vm(node);
        let target = Arc::make_mut(node);
        let mut verdict = None;
        match effect {
            Effect::Cordon => target.spec.get_or_insert_default().unschedulable = Some(true),
            Effect::Dress { dress, .. } => wear(target, dress),
            Effect::AddNodeCondition(condition) | Effect::SetNodeCondition { condition, .. } => {
                let all = target.status.get_or_insert_default().conditions.get_or_insert_default();
                all.retain(|stored| stored.type_ != condition.type_);
                all.push((**condition).clone());
            }
            Effect::RemoveNodeFinalizer => target.finalizers_mut().retain(|name| name != finalizer::NODE),
            Effect::DeleteNode { .. } => {
                verdict = (!is_deleting).then_some("the Node of a living machine is deleted");
                target.metadata.deletion_timestamp = Some(Time(at(self.now)));
            }
            _ => {}
        }
        if target.metadata.deletion_timestamp.is_some() && target.finalizers().is_empty() {
            self.node = None;
        }
        if is_foreign {
            verdict = Some("a Node of somebody else is touched");
        }
        if let Some(verdict) = verdict {
            self.wrong(verdict);
        }
        self.process.node.clone_from(&self.node);
        Acted::Done
    }

    fn start(&mut self, call: Call, seen: &Observation) -> Acted {
        let truly_deleting = self.machine.as_ref().is_none_or(|machine| machine.metadata.deletion_timestamp.is_some());
        if call == Call::Delete && !truly_deleting {
            self.wrong("the VM of a living machine is deleted");
        }
        if self.freeze == Freeze::Frozen && !truly_deleting {
            self.wrong("a driver is called while frozen");
        }
        if call == Call::Create {
            let phase = &self.machine.as_ref().map(|machine| machine.status.current_status.phase.clone());
            let is_first = *phase == Some(MachinePhase::Unset);
            if truly_deleting && (is_first || phase.is_none()) {
                self.wrong("a VM is made for a machine that is being deleted and never had one");
            }
            let is_owned = machine_api::v1alpha1::controller_of(&seen.machine.metadata).is_some()
                || self.machine.as_ref().is_some_and(|m| machine_api::v1alpha1::controller_of(&m.metadata).is_some());
            if *phase == Some(MachinePhase::Failed) && is_owned {
                self.wrong("a Failed machine that a set replaces makes a VM");
            }
        }
        if let Some(running) = self.call {
            if running.is_awaited {
                self.wrong(format!("{call:?} begins while {:?} is under way", running.call));
            }
            let aborted = Status::new(Code::Aborted, "a call of this name is under way");
            self.process.memory.flow.learn(super::super::driver_calls::failed(call, aborted));
            return Acted::Void;
        }
        let takes = self.random.random_range(1..40);
        self.call = Some(Running { call, ends: self.now + takes, is_awaited: true });
        self.process.memory.flow.ask(call, at(self.now));
        Acted::Done
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The merge patches that the machine's rules write; a field that none writes today is a mistake of this file.
fn patch_machine(machine: &mut Machine, patch: &Value) {
    patch_metadata(&mut machine.metadata, &patch["metadata"]);
    if let Some(id) = patch["spec"]["providerID"].as_str() {
        id.clone_into(&mut machine.spec.provider_id);
    }
}

fn patch_metadata(metadata: &mut kube::api::ObjectMeta, patch: &Value) {
    for (field, all) in [("labels", &mut metadata.labels), ("annotations", &mut metadata.annotations)] {
        for (key, value) in patch[field].as_object().into_iter().flatten() {
            let all = all.get_or_insert_default();
            match value {
                Value::Null => drop(all.remove(key)),
                value => drop(all.insert(key.clone(), text(value))),
            }
        }
    }
    if let Some(finalizers) = patch["finalizers"].as_array() {
        metadata.finalizers = Some(finalizers.iter().map(text).collect());
    }
}

fn wear(node: &mut Node, dress: &NodeDress) {
    for (changes, all) in
        [(&dress.labels, &mut node.metadata.labels), (&dress.annotations, &mut node.metadata.annotations)]
    {
        let all = all.get_or_insert_default();
        for (key, value) in changes {
            match value {
                Some(value) => drop(all.insert(key.clone(), value.clone())),
                None => drop(all.remove(key)),
            }
        }
    }
    if let Some(finalizers) = &dress.finalizers {
        node.metadata.finalizers = Some(finalizers.clone());
    }
    if let Some(taints) = &dress.taints {
        node.spec.get_or_insert_default().taints = Some(taints.clone());
    }
}

fn patch_status(machine: &mut Machine, patch: &Value) {
    let status = &mut machine.status;
    for (field, value) in patch.as_object().into_iter().flatten() {
        match field.as_str() {
            "lastOperation" => status.last_operation = serde_json::from_value(value.clone()).unwrap(),
            "conditions" => status.conditions = serde_json::from_value(value.clone()).unwrap(),
            "machineConditions" => status.machine_conditions = serde_json::from_value(value.clone()).unwrap(),
            "lastKnownState" => status.last_known_state = text(value),
            "currentStatus" => {
                let current = &mut status.current_status;
                for (field, value) in value.as_object().into_iter().flatten() {
                    match field.as_str() {
                        "phase" => current.phase = serde_json::from_value(value.clone()).unwrap(),
                        "lastUpdateTime" => current.last_update_time = serde_json::from_value(value.clone()).unwrap(),
                        "timeoutActive" => current.timeout_active = value.as_bool().unwrap_or_default(),
                        "preserveExpiryTime" => {
                            current.preserve_expiry_time = serde_json::from_value(value.clone()).unwrap();
                        }
                        other => panic!("nobody plays the field {other} yet"),
                    }
                }
            }
            other => panic!("nobody plays the field {other} yet"),
        }
    }
}
