//! The controller's process in the played world: its passes, with the real decisions and the real memory, over views that
//! may lag; and what every pass must leave behind.

use super::*;

impl World {
    /// A pass of the controller over the machine.
    pub fn look(&mut self) {
        self.passes += 1;
        self.process.wake = None;
        if self.process.memory.reread {
            self.process.machine.clone_from(&self.machine);
            self.process.memory.reread = false;
        }
        let mut pass = Pass::default();
        for _ in 0..32 {
            let Some(machine) = self.process.machine.clone() else { return };
            self.process.memory.flow.in_flight =
                self.call.filter(|running| running.is_awaited).map(|running| running.call);
            let seen = self.sabotage.of_observation(self.observe(machine, &pass));
            let plan = self.sabotage.of_plan(decide(&seen));
            if self.trace {
                println!(
                    "{:>7} s:   {} {:?} {:?}, then {:?}",
                    self.now,
                    plan.rule,
                    seen.phase(),
                    plan.effects,
                    plan.next
                );
            }
            match self.act(&plan, &seen) {
                Acted::Done
                    if plan.effects.iter().any(|done| matches!(done, Effect::RereadNode | Effect::LookForNode)) =>
                {
                    pass.node_source = NodeSource::Live;
                }
                Acted::Done => {}
                Acted::Void => continue,
                Acted::Trouble(trouble) => {
                    pass.troubles.push(trouble);
                    continue;
                }
                Acted::Failed => {
                    self.process.wake = Some(self.now + 1);
                    return;
                }
                Acted::Crashed => {
                    self.restart();
                    return;
                }
            }
            if self.violation.is_some() {
                return;
            }
            match plan.next {
                Next::Again => {}
                Next::Settled | Next::AwaitCall => return self.explained(&plan),
                Next::LookAgain(after, _) => {
                    self.process.wake = Some(self.now + i64::try_from(after.as_secs()).unwrap_or(0) + 1);
                    return self.explained(&plan);
                }
                Next::StepDrain(order) => pass.drain = self.step_drain(order.force),
                Next::TakePermit => pass.permit = Permit::Held,
            }
        }
        self.wrong("a pass goes in circles");
    }

    /// After passes that have done nothing for long, either the machine is where it should be, or it says why not.
    fn explained(&mut self, plan: &Plan) {
        if !plan.effects.is_empty() || self.still.is_none_or(|(rule, _)| rule != plan.rule) {
            self.still = Some((plan.rule, self.now));
        }
        let Some(machine) = self.machine.clone() else { return };
        let deleting = machine.metadata.deletion_timestamp.is_some();
        let is_seen = self.process.machine.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &machine));
        let is_ours = machine.finalizers().iter().any(|name| name == finalizer::MACHINE);
        let phase = &machine.status.current_status.phase;
        let is_settled = *phase == MachinePhase::Running && !deleting;
        let patience = 2 * i64::try_from(SAID_AFTER.as_secs()).unwrap_or(0);
        let stands_still = self.still.is_some_and(|(_, since)| self.now - since > patience);
        if is_seen && is_ours && !is_settled && stands_still && told_reason(&machine).is_none() {
            let stage = &machine.status.last_operation.description;
            self.wrong(format!("a machine waits in {phase:?} ({stage:?}) by {} and does not say why", plan.rule));
        }
        let is_frozen = told_reason(&machine) == Some(machine_condition::REASON_FROZEN);
        if is_seen && is_frozen && !deleting && self.freeze == Freeze::Flowing {
            self.wrong("a machine says that it is frozen and is not");
        }
    }

    fn step_drain(&mut self, force: Force) -> super::super::observation::DrainState {
        use super::super::observation::DrainState;
        let takes_no_pods = |node: &Node| {
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
            super::super::node_steps::is_cordoned(node) || taints.iter().any(|mark| mark.key == taint::PRESERVED)
        };
        let is_cordoned = self.node.as_deref().is_none_or(takes_no_pods);
        // Of a Node that has registered anew behind a late view nobody can know.
        if !is_cordoned && is_the_same(self.process.node.as_deref(), self.node.as_deref()) {
            self.wrong("pods are evicted from a node that takes new ones");
        }
        if self.chance(self.faults) {
            return DrainState::Failed("no".into());
        }
        self.pods = if force == Force::Yes { 0 } else { self.pods.saturating_sub(1) };
        if self.pods == 0 {
            return DrainState::Drained;
        }
        DrainState::Running {
            progress: format!("{} left", self.pods),
            blocked_by: None,
            waiting: None,
            attempt: crate::drain::progress::Attempt::New,
            wake: std::time::Duration::from_secs(5),
        }
    }

    fn observe(&mut self, machine: Arc<Machine>, pass: &Pass) -> Observation {
        let now = at(self.now);
        let node = self.node_view(&machine);
        let memory = &mut self.process.memory;
        memory.conditions_differ_since = conditions_differ_since(&machine, &node, memory.conditions_differ_since, now);
        memory.first_seen_deleting = first_seen_deleting(&machine, memory.first_seen_deleting, now);
        let silence = if self.freeze == Freeze::Frozen { Silence::Target } else { Silence::None };
        let sight = Sight::Current.under(self.freeze, silence, None);
        memory.ailments = ailments(&node, sight, &memory.ailments, now);
        memory.vm_check = vm_check(&machine, memory.vm_check);
        let mut seen = self.base.clone();
        (seen.now, seen.steady) = (now, now);
        seen.first_seen = memory.first_seen;
        seen.first_seen_deleting = memory.first_seen_deleting;
        seen.freeze = self.freeze;
        seen.silence = silence;
        seen.class.state = self.class.clone();
        seen.class.last_good = LastGood::Unknown;
        seen.flow = memory.flow.clone();
        seen.creation_unknown_since = memory.creation_unknown_since;
        seen.pause.clone_from(&memory.pause);
        seen.inputs.machine = machine.metadata.generation;
        seen.inputs.force = force_deletion(&machine);
        seen.ailments.clone_from(&memory.ailments);
        seen.conditions_differ_since = memory.conditions_differ_since;
        seen.vm_check = memory.vm_check;
        seen.siblings = Some(Vec::new());
        seen.drain = pass.drain.clone();
        seen.permit = pass.permit;
        seen.node_source = pass.node_source;
        seen.troubles.clone_from(&pass.troubles);
        seen.node = node;
        seen.machine = machine;
        seen
    }

    fn node_view(&self, machine: &Machine) -> NodeView {
        let linked = machine.labels().contains_key(label::NODE);
        match &self.process.node {
            node if !linked => NodeView::NotLinked {
                candidate: node
                    .as_ref()
                    .filter(|node| node.labels().get(label::MACHINE_NAME).map(String::as_str) == Some("m-abcde"))
                    .map(|node| node.name_any()),
                namesake: node.as_ref().filter(|_| self.process.memory.flow.vm.is_some()).map(|node| Namesake {
                    instance: same_instance(VM, node),
                    created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
                }),
            },
            None if self.process.node_vanished => NodeView::Vanished,
            None => NodeView::Absent,
            Some(node) => {
                match owner(&Claim { machine, instance: same_instance(&machine.spec.provider_id, node) }, node, &[]) {
                    Owner::Foreign(why) if self.sabotage != Sabotage::TakeAnyNode => {
                        NodeView::Foreign { name: node.name_any(), why }
                    }
                    _ => NodeView::Ours(Arc::clone(node)),
                }
            }
        }
    }
}
