//! A pass over a machine: the real decisions, carried out as `controllers::machine` carries them out; what it sees is in [`seen`].
//!
//! Not simulated: classes and Secrets (always usable), bootstrap tokens, volumes, and what a drain does (it takes
//! [`DRAIN_TIME`], or as long as budgets refuse evictions).

mod seen;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{
    calls::Calls,
    process::{Loop, Process, later},
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::{Part, Patch},
    queue::Outcome,
};
use machine_api::{
    names::{finalizer, machine_reason},
    v1alpha1::Machine,
};
use machine_controllers::{
    drain::progress::Headway,
    machine::{
        Said, added_condition,
        creation_outcome::{AskedBefore, leaves_outcome_unknown},
        decide::decide,
        guarded, is_conflict,
        node_ailments::Ailments,
        node_step,
        observation::{
            Answer, Call, DrainState, Flow, Force, NodeSource, NodeStep, Observation, Pause, Permit, Trouble, Troubles,
            since,
        },
        plan::{DrainFlow, DrainOrder, Effect, Memo, Next, Plan},
        set_condition, status_patch, told_of_refusal, told_of_trouble,
        vm_gone::VmCheck,
        without,
    },
    outcomes::gone_is_fine,
};

/// How long a drain takes.
pub(super) const DRAIN_TIME: Duration = Duration::from_secs(20);
const MOST_STEPS: usize = 32;

/// What a process remembers of a machine.
#[derive(Debug, Default)]
pub struct MachineMemory {
    uid: String,
    first_seen: Timestamp,
    first_seen_deleting: Option<Timestamp>,
    flow: Flow,
    creation_unknown_since: Option<Timestamp>,
    pause: Option<Pause>,
    ailments: Ailments,
    conditions_differ_since: Option<Timestamp>,
    /// What the drain under way is for, and when it began.
    drain: Option<(DrainFlow, Timestamp)>,
    /// What the Node was drained for: to drain it once more takes no time.
    drained: Option<DrainFlow>,
    reread: bool,
    /// The driver call under way.
    pub(super) call: Option<PendingCall>,
    /// What the last one answered.
    answer: Option<Answer>,
    /// What the driver said of the VM of an unhealthy machine.
    vm_check: VmCheck,
    /// What events have last said.
    said: Said,
}

/// A driver call under way.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Which.
    pub call: Call,
    /// For this machine.
    pub machine: Target,
    /// Of the VM with this identity, if it is about one.
    pub provider_id: String,
    /// When it began.
    pub began: Timestamp,
}

/// What is known only within a pass.
#[derive(Default)]
struct Pass {
    drain: DrainState,
    troubles: Troubles,
    permit: Permit,
    node_source: NodeSource,
    conflicts: u32,
}

enum Acted {
    Done,
    Void,
    Trouble(Trouble),
    Failed(ApiError),
}

struct Newest {
    machine: Arc<Machine>,
    node: Option<Arc<Node>>,
}

impl Process {
    /// One pass over a machine.
    pub fn machine_pass(&mut self, calls: &mut Calls<'_>, key: &ObjectKey) -> Outcome {
        let Some(machine) = self.views.machines.get(key) else {
            self.machines.remove(key);
            self.vanished.remove(key);
            return Outcome::Settled;
        };
        let uid = machine.metadata.uid.clone().unwrap_or_default();
        let mut memory = self.machines.remove(key).filter(|memory| memory.uid == uid).unwrap_or_else(|| {
            self.vanished.remove(key);
            let asked = AskedBefore::of(&machine, *self.machines_since.get_or_insert(calls.now));
            let creation_unknown_since = asked.unknown_since(calls.now);
            MachineMemory { uid, first_seen: calls.now, creation_unknown_since, ..MachineMemory::default() }
        });
        let outcome = self.steps(calls, key, &mut memory);
        if self.views.machines.get(key).is_some() {
            self.machines.insert(key.clone(), memory);
        }
        outcome
    }

    /// The driver calls under way, in the order of their machines.
    pub fn calls_under_way(&self) -> Vec<(ObjectKey, PendingCall)> {
        self.machines.iter().filter_map(|(key, memory)| Some((key.clone(), memory.call.clone()?))).collect()
    }

    /// When the driver calls under way began.
    pub fn calls_began(&self) -> impl Iterator<Item = Timestamp> {
        self.machines.values().filter_map(|memory| Some(memory.call.as_ref()?.began))
    }

    /// A driver call has ended.
    pub fn answered(&mut self, key: &ObjectKey, answer: Answer, now: Timestamp) {
        if let Some(memory) = self.machines.get_mut(key) {
            memory.call = None;
            memory.answer = Some(answer);
            self.wake((Loop::Machine, key.clone()), now);
        }
    }

    fn steps(&mut self, calls: &mut Calls<'_>, key: &ObjectKey, memory: &mut MachineMemory) -> Outcome {
        if memory.reread {
            if calls.get(&self.views.machines, key).is_err() {
                return Outcome::Retry("the machine can't be read again".to_owned());
            }
            memory.reread = false;
        }
        let mut pass = Pass::default();
        for _ in 0..MOST_STEPS {
            let Some(machine) = self.views.machines.get(key) else { return Outcome::Settled };
            if machine.metadata.uid.as_deref() != Some(memory.uid.as_str()) {
                self.wake((Loop::Machine, key.clone()), calls.now);
                return Outcome::Settled;
            }
            memory.flow.in_flight = memory.call.as_ref().map(|call| call.call);
            if let Some(answer) = memory.answer.take() {
                if leaves_outcome_unknown(&answer) {
                    memory.creation_unknown_since = Some(calls.now);
                }
                memory.flow.learn(answer);
            }
            let seen = self.see_machine(&machine, memory, &pass, calls.now);
            let plan = decide(&seen);
            calls.trace.say(|| format!("    decides {:?}", plan.rule));
            match self.act_on_machine(calls, &plan, &seen, memory, &mut pass) {
                Acted::Done => {}
                Acted::Void => continue,
                Acted::Trouble(trouble) => {
                    let text = told_of_trouble(&seen, &trouble);
                    tell(calls, &seen, memory, (machine_reason::NODE_NOT_UPDATED, text));
                    pass.troubles.push(trouble);
                    continue;
                }
                Acted::Failed(error) => {
                    let text = told_of_refusal(plan.rule, &error);
                    tell(calls, &seen, memory, (machine_reason::WRITE_REFUSED, text));
                    return failure(&error);
                }
            }
            if plan.next.ends_pass() && pass.drain == DrainState::Due && pass.troubles.is_empty() {
                (memory.drain, memory.drained) = (None, None);
            }
            match plan.next {
                Next::Again => {}
                Next::Settled | Next::AwaitCall => return Outcome::Settled,
                Next::LookAgain(after, why) => return Outcome::LookAgain(after, why.as_str()),
                Next::StepDrain(order) => pass.drain = stepped(&order, memory, calls, self.binary.drain_time),
                Next::TakePermit => pass.permit = Permit::Held,
            }
        }
        calls.checks.violated("a pass over a machine goes in circles", || format!("machine {key}"));
        Outcome::Settled
    }

    fn act_on_machine(
        &self,
        calls: &mut Calls<'_>,
        plan: &Plan,
        seen: &Observation,
        memory: &mut MachineMemory,
        pass: &mut Pass,
    ) -> Acted {
        let mut newest = Newest { machine: Arc::clone(&seen.machine), node: seen.node.ours().cloned() };
        for effect in &plan.effects {
            match self.effect(calls, effect, seen, &mut newest, memory) {
                Acted::Done if matches!(effect, Effect::RereadNode | Effect::LookForNode) => {
                    pass.node_source = NodeSource::Live;
                }
                Acted::Done => {}
                Acted::Failed(error) => return self.failed(calls, effect, error, seen, memory, pass),
                other => return other,
            }
        }
        Acted::Done
    }

    fn effect(
        &self,
        calls: &mut Calls<'_>,
        effect: &Effect,
        seen: &Observation,
        newest: &mut Newest,
        memory: &mut MachineMemory,
    ) -> Acted {
        let outcome = match effect {
            Effect::PatchMachine { patch, guard } => {
                let patch = guarded(patch, *guard, newest.machine.metadata.resource_version.as_deref());
                self.patch_machine(calls, newest, Part::Main, &patch)
            }
            Effect::PatchStatus(patch) => match status_patch(patch, &seen.machine, &newest.machine) {
                Some(patch) => self.patch_machine(calls, newest, Part::Status, &patch),
                None => return Acted::Void,
            },
            Effect::RemoveMachineFinalizer => match without(newest.machine.finalizers(), finalizer::MACHINE) {
                Some(patch) => gone_is_fine(self.patch_machine(calls, newest, Part::Main, &patch)),
                None => Ok(()),
            },
            Effect::DeleteMachine => {
                calls.delete(&self.views.machines, &Target::of(&*newest.machine), None).map(|marked| {
                    if let Some(marked) = marked {
                        newest.machine = marked;
                    }
                })
            }
            Effect::RereadMachine => {
                return match calls.get(&self.views.machines, &ObjectKey::of(&*seen.machine)) {
                    Err(error) => Acted::Failed(error),
                    Ok(Some(machine))
                        if machine.metadata.uid == seen.machine.metadata.uid
                            && machine.metadata.deletion_timestamp.is_none() =>
                    {
                        Acted::Done
                    }
                    Ok(_) => Acted::Void,
                };
            }
            Effect::RereadNode => calls.get(&self.nodes, &ObjectKey::cluster_scoped(seen.node_label())).map(drop),
            Effect::LookForNode => {
                // Nodes are called as their machines here, and no kubelet registers with the machine's name.
                let name = if seen.node_label().is_empty() { seen.name() } else { seen.node_label() };
                return match calls.get(&self.nodes, &ObjectKey::cluster_scoped(name)) {
                    Ok(_) => Acted::Done,
                    Err(error) => Acted::Trouble(Trouble { step: NodeStep::LastLook, error: error.to_string() }),
                };
            }
            Effect::PatchNode { patch, guard, .. } => {
                let version = newest.node.as_ref().and_then(|node| node.metadata.resource_version.as_deref());
                let patch = guarded(patch, *guard, version);
                self.patch_node(calls, newest, Part::Main, &patch)
            }
            Effect::AddNodeCondition(condition) => {
                let patch = added_condition(newest.node.as_deref(), condition);
                self.patch_node(calls, newest, Part::Status, &patch)
            }
            Effect::SetNodeCondition { condition, .. } => {
                let patch = set_condition(newest.node.as_deref(), condition);
                self.patch_node(calls, newest, Part::Status, &patch)
            }
            Effect::PatchNodeStatus(patch) => {
                self.patch_node(calls, newest, Part::Status, &Patch::Merge(patch.clone()))
            }
            Effect::RemoveNodeFinalizer => {
                match newest.node.as_ref().and_then(|node| without(node.finalizers(), finalizer::NODE)) {
                    Some(patch) => gone_is_fine(self.patch_node(calls, newest, Part::Main, &patch)),
                    None => Ok(()),
                }
            }
            Effect::DeleteNode { uid } => match &newest.node {
                Some(node) => {
                    let target = Target { key: ObjectKey::of(&**node), uid: uid.clone() };
                    calls.delete(&self.nodes, &target, None).map(|node| newest.node = node)
                }
                None => Ok(()),
            },
            Effect::Start(call) => return start(calls, *call, seen, memory),
            Effect::Remember(memo) => {
                remember(*memo, seen, memory);
                Ok(())
            }
            Effect::Warn { reason, message } | Effect::Tell { reason, message } => {
                tell(calls, seen, memory, (reason, Some(message.clone())));
                Ok(())
            }
            // There are no volumes, no tokens and no metrics here.
            Effect::DeleteAttachment { .. } | Effect::EnsureToken | Effect::DeleteToken | Effect::Measure(_) => Ok(()),
        };
        match outcome {
            Ok(()) => Acted::Done,
            Err(error) => Acted::Failed(error),
        }
    }

    fn patch_machine(
        &self,
        calls: &mut Calls<'_>,
        newest: &mut Newest,
        part: Part,
        patch: &Patch,
    ) -> Result<(), ApiError> {
        newest.machine = calls.patch(&self.views.machines, &Target::of(&*newest.machine), part, patch)?;
        Ok(())
    }

    fn patch_node(
        &self,
        calls: &mut Calls<'_>,
        newest: &mut Newest,
        part: Part,
        patch: &Patch,
    ) -> Result<(), ApiError> {
        let Some(node) = &newest.node else { return Ok(()) };
        newest.node = Some(calls.patch(&self.nodes, &Target::of(&**node), part, patch)?);
        Ok(())
    }

    fn failed(
        &self,
        calls: &mut Calls<'_>,
        effect: &Effect,
        error: ApiError,
        seen: &Observation,
        memory: &mut MachineMemory,
        pass: &mut Pass,
    ) -> Acted {
        if matches!(error, ApiError::NotLeading(_)) {
            return Acted::Failed(error);
        }
        let step = node_step(effect);
        let is_conflict = is_conflict(effect, &error);
        if error.is_not_found() {
            return Acted::Void;
        }
        let node = ObjectKey::cluster_scoped(seen.node_label());
        if is_conflict && pass.conflicts == 0 {
            pass.conflicts += 1;
            let read = match step {
                Some(step) if step != NodeStep::LetGo => calls.get(&self.nodes, &node).map(drop),
                _ => calls.get(&self.views.machines, &ObjectKey::of(&*seen.machine)).map(drop),
            };
            if read.is_ok() {
                return Acted::Void;
            }
        }
        match step {
            Some(step @ NodeStep::LetGo) => {
                memory.reread |= error.outcome_unknown();
                Acted::Trouble(Trouble { step, error: error.to_string() })
            }
            Some(step) if !is_conflict => {
                if error.outcome_unknown() {
                    let _ = calls.get(&self.nodes, &node);
                }
                Acted::Trouble(Trouble { step, error: error.to_string() })
            }
            _ => {
                memory.reread |= error.outcome_unknown();
                Acted::Failed(error)
            }
        }
    }
}

/// An event about the machine, if that is news.
fn tell(calls: &mut Calls<'_>, seen: &Observation, memory: &mut MachineMemory, event: (&'static str, Option<String>)) {
    let (reason, Some(message)) = event else { return };
    if memory.said.is_news(reason, &message) {
        calls.trace.say(|| format!("    event {reason}: {message}"));
        calls.checks.costs("Machine", seen.name());
        if reason == machine_reason::IN_PLACE_UPDATE_SUCCESSFUL {
            calls.checks.updated();
        }
    }
}

/// What a drain comes to: it takes its time, and while budgets refuse evictions it waits, until it is forced or late.
fn stepped(order: &DrainOrder, memory: &mut MachineMemory, calls: &Calls<'_>, takes: Duration) -> DrainState {
    if memory.drained == Some(order.flow) {
        return DrainState::Drained;
    }
    let same = memory.drain.filter(|(flow, _)| *flow == order.flow);
    let (_, began) = *memory.drain.insert(same.unwrap_or((order.flow, calls.now)));
    let is_blocked = order.force == Force::No && calls.now < calls.around.evictions_from;
    let end = if is_blocked { calls.around.evictions_from } else { later(began, takes) };
    if end <= calls.now {
        (memory.drain, memory.drained) = (None, Some(order.flow));
        return DrainState::Drained;
    }
    if is_blocked && order.deadline <= calls.now {
        memory.drain = None;
        return DrainState::Failed("evictions are refused".to_owned());
    }
    let wake = if is_blocked { end.min(order.deadline) } else { end };
    DrainState::Running {
        progress: String::new(),
        blocked_by: is_blocked.then(|| "a budget".to_owned()),
        waiting: None,
        headway: Headway::None,
        wake: since(wake, calls.now),
    }
}

fn start(calls: &mut Calls<'_>, call: Call, seen: &Observation, memory: &mut MachineMemory) -> Acted {
    if let Err(error) = calls.gate.may_act() {
        return Acted::Failed(error);
    }
    calls.checks.acts();
    let vm = memory.flow.vm.as_ref().map(|vm| vm.identity.provider_id.clone());
    let provider_id =
        if call == Call::DeleteStale { vm.unwrap_or_default() } else { seen.machine.spec.provider_id.clone() };
    memory.flow.ask(call, seen.now);
    memory.call = Some(PendingCall { call, machine: Target::of(&*seen.machine), provider_id, began: calls.now });
    calls.trace.say(|| format!("    starts the driver call {call:?}"));
    Acted::Done
}

fn remember(memo: Memo, seen: &Observation, memory: &mut MachineMemory) {
    match memo {
        Memo::AnswerDone => memory.flow.answer = None,
        Memo::FlowDone => {
            memory.flow.answer = None;
            memory.flow.vm = None;
            memory.pause = None;
        }
        Memo::Pause(purpose, until) => {
            memory.pause = Some(Pause { purpose, until, inputs: seen.inputs.clone() });
        }
        Memo::VmChecked(check) => memory.vm_check = check,
    }
}

fn failure(error: &ApiError) -> Outcome {
    match error {
        ApiError::NotLeading(_) => Outcome::Settled,
        ApiError::Conflict(_) => Outcome::LookAgain(Duration::from_millis(200), "conflict"),
        error => Outcome::after(error, error.to_string()),
    }
}
