//! Carries plans out: patches, driver calls, tokens, events. Decides nothing.
//!
//! The first effect that fails ends the plan. [`Acted`] is the consequence of the failure for the pass.

use jiff::Timestamp;

use super::{
    MachineController, TargetDeps,
    memory::{Memory, Pass},
    observation::{Call, NodeSource, NodeStep, Observation, Pause, StepFailure},
    observe::class_of,
    patches::{self, Write},
    plan::{Effect, Memo, Plan, deletion_stage::DeletionStage},
    stages::{self, Stretch},
    tokens,
};
use crate::snapshots::{MachineSnapshot, NodeSnapshot};
use controller_runtime::{
    error::ApiError,
    events::EventNote,
    gate::Destruction,
    key::{ObjectKey, Target},
    objects::{DeleteHow, Deleted},
    snapshot::Snapshot,
};
use machine_api::names::label;

/// The result of carrying out a plan.
#[derive(Debug)]
pub enum Acted {
    /// All effects happened.
    Done,
    /// An object differs from what was observed: observe and decide again.
    Void,
    /// An effect on the target cluster failed: decide again with this failure in the observation.
    StepFailed(StepFailure),
    /// An effect on the control cluster failed.
    Failed(ApiError),
}

/// The newest known version of the plan's objects: the answer to each write replaces the observed object.
struct Newest {
    machine: MachineSnapshot,
    node: Option<NodeSnapshot>,
}

impl MachineController {
    /// Carries out the effects of a plan.
    pub(super) async fn act(&self, plan: &Plan, seen: &Observation, memory: &mut Memory, pass: &mut Pass) -> Acted {
        let mut newest = Newest { machine: seen.machine.clone(), node: seen.node.ours().cloned() };
        for effect in &plan.effects {
            let acted = self.effect(plan.rule, effect, seen, &mut newest, memory).await;
            if !matches!(acted, Acted::Void)
                && let Some(name) = name_of(effect)
            {
                memory.span.did(plan.rule, name);
            }
            match acted {
                Acted::Done if matches!(effect, Effect::RereadNode | Effect::LookForNode) => {
                    pass.node_source = NodeSource::Live;
                }
                Acted::Done => {}
                Acted::Failed(error) => return self.failed(effect, error, seen, memory, pass).await,
                other => return other,
            }
        }
        Acted::Done
    }

    async fn effect(
        &self,
        rule: &'static str,
        effect: &Effect,
        seen: &Observation,
        newest: &mut Newest,
        memory: &mut Memory,
    ) -> Acted {
        if let Some(object) = written_object(effect) {
            self.measures.wrote(object, rule);
        }
        let outcome = match effect {
            Effect::AddMachineFinalizer
            | Effect::Link(_)
            | Effect::ForgetPreservation(_)
            | Effect::RememberNodesWish(_)
            | Effect::WriteStatus { .. } => match patches::of_machine(effect, seen, &newest.machine) {
                Write::Void => return Acted::Void,
                write => {
                    let before = newest.machine.clone();
                    let written = self.write_machine(newest, write).await;
                    log_progress(rule, &before, &newest.machine);
                    self.record_stage(&before, &newest.machine, seen.now, memory);
                    written
                }
            },
            Effect::RemoveMachineFinalizer => {
                let write = patches::of_machine(effect, seen, &newest.machine);
                let removed = gone_is_done(self.write_machine(newest, write).await);
                if removed.is_ok() {
                    self.tracer.record(|| stages::ended_by_end(memory.stage.take(), &seen.machine, seen.now));
                    self.tracer.record(|| stages::life(&seen.machine, seen.now));
                }
                removed
            }
            Effect::DeleteMachine => self.delete_machine(rule, newest).await,
            Effect::RereadMachine => return self.reread(seen).await,
            Effect::CheckInputs if self.inputs_of(&seen.machine) == seen.inputs => Ok(()),
            Effect::CheckInputs => return Acted::Void,
            Effect::RereadNode => match &self.target {
                Some(target) => target.nodes.get(&ObjectKey::cluster_scoped(seen.node_label())).await.map(drop),
                None => Ok(()),
            },
            Effect::LookForNode => return self.look_for_node(seen).await,
            Effect::Cordon
            | Effect::Dress { .. }
            | Effect::MirrorCapacity(_)
            | Effect::AddNodeCondition(_)
            | Effect::SetNodeCondition { .. } => self.write_node(newest, effect).await,
            Effect::RemoveNodeFinalizer => gone_is_done(self.write_node(newest, effect).await),
            Effect::DeleteNode { uid } => self.delete_node(rule, uid, newest).await,
            Effect::DeleteAttachment { name, uid } => match &self.target {
                Some(target) => target.drainer.evictor().detach(name, uid).await,
                None => Ok(()),
            },
            Effect::EnsureToken => return self.ensure_token(seen, memory).await,
            Effect::DeleteToken => {
                if let Some(target) = &self.target {
                    tokens::delete(&target.tokens, seen, memory).await;
                }
                Ok(())
            }
            Effect::Start(call) => {
                let inputs = self.inputs_of(&newest.machine);
                return self.start(rule, *call, inputs, seen, memory);
            }
            Effect::Warn { reason, message } => {
                if memory.is_news(reason, message, seen.steady) {
                    self.recorder.note(&newest.machine, EventNote::warning(reason, message.clone()));
                }
                Ok(())
            }
            Effect::Tell { reason, message } => {
                if memory.is_news(reason, message, seen.steady) {
                    self.recorder.note(&newest.machine, EventNote::normal(reason, message.clone()));
                }
                Ok(())
            }
            Effect::TellNode { reason, message } => {
                if let (Some(target), Some(node)) = (&self.target, &newest.node)
                    && memory.is_news(reason, message, seen.steady)
                {
                    target.recorder.note(node, EventNote::normal(reason, message.clone()));
                }
                Ok(())
            }
            Effect::Remember(memo) => {
                remember(*memo, seen, memory);
                Ok(())
            }
            Effect::Measure(what) => {
                let class = class_of(&self.views, &newest.machine);
                self.measures.machine(*what, &newest.machine, class.as_deref());
                Ok(())
            }
        };
        if let (Ok(()), Effect::WriteStatus { change, .. }) = (&outcome, effect)
            && let Some(standing) = &change.standing
        {
            memory.has_stated(standing, seen.steady);
        }
        match outcome {
            Ok(()) => Acted::Done,
            Err(error) => Acted::Failed(error),
        }
    }

    /// Records the stage that a write has ended.
    fn record_stage(&self, before: &MachineSnapshot, now: &MachineSnapshot, at: Timestamp, memory: &mut Memory) {
        if self.tracer.is_on() {
            self.tracer.record(|| stages::ended_by_write(memory.stage, before, now, at));
            memory.stage = Stretch::of(now, memory.stage);
        }
    }

    async fn write_machine(&self, newest: &mut Newest, write: Write) -> Result<(), ApiError> {
        if let Write::This(part, patch) = write {
            newest.machine = self.machines.patch(&newest.machine.target(), part, patch).await?;
        }
        Ok(())
    }

    async fn write_node(&self, newest: &mut Newest, effect: &Effect) -> Result<(), ApiError> {
        let (Some(target), Some(node)) = (&self.target, &newest.node) else { return Ok(()) };
        if let Write::This(part, patch) = patches::of_node(effect, node) {
            newest.node = Some(target.nodes.patch(&node.target(), part, patch).await?);
        }
        Ok(())
    }

    async fn delete_machine(&self, rule: &'static str, newest: &mut Newest) -> Result<(), ApiError> {
        let target = newest.machine.target();
        self.gate.permit(Destruction::Machine, rule, &target)?;
        if let Deleted::Marked(machine) = self.machines.delete(&target, DeleteHow::default()).await? {
            newest.machine = machine;
        }
        Ok(())
    }

    async fn delete_node(&self, rule: &'static str, uid: &str, newest: &mut Newest) -> Result<(), ApiError> {
        let (Some(deps), Some(node)) = (&self.target, &newest.node) else { return Ok(()) };
        let target = Target { key: node.key(), uid: uid.to_owned() };
        self.gate.permit(Destruction::Node, rule, &target)?;
        newest.node = match deps.nodes.delete(&target, DeleteHow::default()).await? {
            Deleted::Marked(node) => Some(node),
            Deleted::Gone => None,
        };
        Ok(())
    }

    /// Looks for the Node a last time before the machine's finalizer is removed. An error does not prove that the Node is
    /// absent, whatever its text says.
    async fn look_for_node(&self, seen: &Observation) -> Acted {
        let Some(target) = &self.target else { return Acted::Done };
        let looked = match seen.node_label() {
            "" => target.nodes.with_label(label::MACHINE_NAME, seen.name()).await.map(drop),
            node => target.nodes.get(&ObjectKey::cluster_scoped(node)).await.map(drop),
        };
        match looked {
            Ok(()) => Acted::Done,
            Err(error) => Acted::StepFailed(StepFailure { step: NodeStep::LastLook, error: error.to_string() }),
        }
    }

    /// Reads the machine a last time before its first VM is created: that call is the only one that costs money.
    async fn reread(&self, seen: &Observation) -> Acted {
        match self.machines.get(&seen.machine.key()).await {
            Err(error) => Acted::Failed(error),
            Ok(Some(machine)) if machine.uid() == seen.machine.uid() && !machine.is_deleting() => Acted::Done,
            Ok(_) => Acted::Void,
        }
    }

    /// A token that cannot be made is a failed creation: the failure is written to the machine and counts for the creation
    /// timeout.
    async fn ensure_token(&self, seen: &Observation, memory: &mut Memory) -> Acted {
        let Some(target) = &self.target else { return Acted::Done };
        let made = tokens::ensure(&target.tokens, &self.rng, &self.settings, &self.measures, seen, memory).await;
        match made {
            Ok(()) => Acted::Done,
            // A lost race is not a failed creation. cluster-autoscaler would act on a failed creation.
            Err(error @ (ApiError::NotLeading(_) | ApiError::Conflict(_))) => Acted::Failed(error),
            Err(error) => {
                let code = if error.outcome_unknown() {
                    machine_driver::Code::Unavailable
                } else {
                    machine_driver::Code::FailedPrecondition
                };
                let text = format!("cannot make a bootstrap token in the target cluster: {error}");
                let call = if seen.flow.vm.is_some() { Call::Initialize } else { Call::Create };
                memory.flow.not_started(super::driver_calls::failed(call, machine_driver::Status::new(code, text)));
                Acted::Void
            }
        }
    }

    /// The consequence of a failed effect for the pass.
    async fn failed(
        &self,
        effect: &Effect,
        error: ApiError,
        seen: &Observation,
        memory: &mut Memory,
        pass: &mut Pass,
    ) -> Acted {
        if matches!(error, ApiError::NotLeading(_)) {
            return Acted::Failed(error);
        }
        let step = node_step(effect);
        let is_conflict = is_conflict(effect, &error);
        if error.is_not_found() && !matches!(effect, Effect::DeleteAttachment { .. }) {
            return Acted::Void;
        }
        if is_conflict && pass.conflicts == 0 {
            pass.conflicts += 1;
            let read = match (step, &self.target) {
                (Some(step), Some(TargetDeps { nodes, .. })) if step != NodeStep::LetGo => {
                    nodes.get(&ObjectKey::cluster_scoped(seen.node_label())).await.map(drop)
                }
                _ => self.machines.get(&seen.machine.key()).await.map(drop),
            };
            if read.is_ok() {
                return Acted::Void;
            }
        }
        match step {
            // The machine stays, whatever refuses the write. The failure is shown on the machine itself.
            Some(step @ NodeStep::LetGo) => {
                memory.reread |= error.outcome_unknown();
                Acted::StepFailed(StepFailure { step, error: error.to_string() })
            }
            Some(step) if !is_conflict => {
                if error.outcome_unknown()
                    && let Some(target) = &self.target
                {
                    // This read only updates the store for the next pass; the failure is reported in any case.
                    let _ = target.nodes.get(&ObjectKey::cluster_scoped(seen.node_label())).await;
                }
                Acted::StepFailed(StepFailure { step, error: error.to_string() })
            }
            _ => {
                memory.reread |= error.outcome_unknown();
                Acted::Failed(error)
            }
        }
    }
}

/// Whether another client's write came first. A JSON patch whose `test` failed counts as a conflict, too; the next read
/// shows whether it was one.
pub fn is_conflict(effect: &Effect, error: &ApiError) -> bool {
    match effect {
        Effect::RemoveMachineFinalizer
        | Effect::RemoveNodeFinalizer
        | Effect::AddNodeCondition(_)
        | Effect::SetNodeCondition { .. } => matches!(error, ApiError::Conflict(_) | ApiError::Invalid(_)),
        _ => matches!(error, ApiError::Conflict(_)),
    }
}

/// The step on the target cluster that an effect belongs to.
pub fn node_step(effect: &Effect) -> Option<NodeStep> {
    match effect {
        Effect::Cordon => Some(NodeStep::Cordon),
        Effect::Dress { step, .. } | Effect::SetNodeCondition { step, .. } => Some(*step),
        Effect::AddNodeCondition(_) => Some(NodeStep::TerminatingCondition),
        Effect::MirrorCapacity(_) => Some(NodeStep::Metadata),
        Effect::RemoveNodeFinalizer => Some(NodeStep::Finalizer),
        Effect::DeleteNode { .. } => Some(NodeStep::Delete),
        Effect::DeleteAttachment { .. } => Some(NodeStep::Attachments),
        Effect::LookForNode => Some(NodeStep::LastLook),
        Effect::RemoveMachineFinalizer => Some(NodeStep::LetGo),
        Effect::AddMachineFinalizer
        | Effect::Link(_)
        | Effect::ForgetPreservation(_)
        | Effect::RememberNodesWish(_)
        | Effect::WriteStatus { .. }
        | Effect::DeleteMachine
        | Effect::RereadMachine
        | Effect::CheckInputs
        | Effect::RereadNode
        | Effect::EnsureToken
        | Effect::DeleteToken
        | Effect::Start(_)
        | Effect::Warn { .. }
        | Effect::Tell { .. }
        | Effect::TellNode { .. }
        | Effect::Remember(_)
        | Effect::Measure(_) => None,
    }
}

/// The object outside this process that an effect changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched<'a> {
    /// The machine.
    Machine,
    /// The machine's status.
    MachineStatus,
    /// The Node.
    Node,
    /// The Node's status.
    NodeStatus,
    /// The volume attachment of this name.
    Attachment(&'a str),
    /// A bootstrap token.
    Token,
    /// The VM.
    Vm,
    /// An event on the machine or on its Node.
    Event,
}

/// The object that an effect changes; `None` for an effect that only reads, or that stays in this process.
pub fn touched(effect: &Effect) -> Option<Touched<'_>> {
    Some(match effect {
        Effect::AddMachineFinalizer
        | Effect::Link(_)
        | Effect::ForgetPreservation(_)
        | Effect::RememberNodesWish(_)
        | Effect::RemoveMachineFinalizer
        | Effect::DeleteMachine => Touched::Machine,
        Effect::WriteStatus { .. } => Touched::MachineStatus,
        Effect::Cordon | Effect::Dress { .. } | Effect::RemoveNodeFinalizer | Effect::DeleteNode { .. } => {
            Touched::Node
        }
        Effect::AddNodeCondition(_) | Effect::SetNodeCondition { .. } | Effect::MirrorCapacity(_) => {
            Touched::NodeStatus
        }
        Effect::DeleteAttachment { name, .. } => Touched::Attachment(name),
        Effect::EnsureToken | Effect::DeleteToken => Touched::Token,
        Effect::Start(_) => Touched::Vm,
        Effect::Warn { .. } | Effect::Tell { .. } | Effect::TellNode { .. } => Touched::Event,
        Effect::RereadMachine
        | Effect::CheckInputs
        | Effect::RereadNode
        | Effect::LookForNode
        | Effect::Remember(_)
        | Effect::Measure(_) => {
            return None;
        }
    })
}

/// The name of an effect for people, as the view `machineoutlooks` shows it; `None` for an effect that only reads, or that
/// stays in this process.
pub fn name_of(effect: &Effect) -> Option<&'static str> {
    Some(match effect {
        Effect::AddMachineFinalizer
        | Effect::Link(_)
        | Effect::ForgetPreservation(_)
        | Effect::RememberNodesWish(_) => "PatchMachine",
        Effect::WriteStatus { .. } => "PatchMachineStatus",
        Effect::RemoveMachineFinalizer => "RemoveMachineFinalizer",
        Effect::DeleteMachine => "DeleteMachine",
        Effect::Cordon => "CordonNode",
        Effect::Dress { .. } => "PatchNode",
        Effect::AddNodeCondition(_) | Effect::SetNodeCondition { .. } | Effect::MirrorCapacity(_) => "PatchNodeStatus",
        Effect::RemoveNodeFinalizer => "RemoveNodeFinalizer",
        Effect::DeleteNode { .. } => "DeleteNode",
        Effect::DeleteAttachment { .. } => "DeleteVolumeAttachment",
        Effect::EnsureToken => "EnsureBootstrapToken",
        Effect::DeleteToken => "DeleteBootstrapToken",
        Effect::Start(Call::Status) => "GetVmStatus",
        Effect::Start(Call::Create) => "CreateVm",
        Effect::Start(Call::Initialize) => "InitializeVm",
        Effect::Start(Call::Delete) => "DeleteVm",
        Effect::Start(Call::DeleteStale) => "DeleteStaleVm",
        Effect::Warn { .. } | Effect::Tell { .. } | Effect::TellNode { .. } => "RecordEvent",
        Effect::RereadMachine
        | Effect::CheckInputs
        | Effect::RereadNode
        | Effect::LookForNode
        | Effect::Remember(_)
        | Effect::Measure(_) => {
            return None;
        }
    })
}

/// The object that an effect writes, for the count of writes. `None` when it writes nothing.
fn written_object(effect: &Effect) -> Option<&'static str> {
    match touched(effect)? {
        Touched::Machine => Some("machine"),
        Touched::MachineStatus => Some("machine/status"),
        Touched::Node => Some("node"),
        Touched::NodeStatus => Some("node/status"),
        Touched::Attachment(_) => Some("volumeattachment"),
        Touched::Token => Some("secret"),
        Touched::Vm | Touched::Event => None,
    }
}

/// Logs that a machine is at another point of its life.
fn log_progress(rule: &'static str, before: &MachineSnapshot, now: &MachineSnapshot) {
    let point = |machine: &MachineSnapshot| (machine.phase().clone(), DeletionStage::of(machine));
    let (phase, stage) = point(now);
    if point(before) == (phase.clone(), stage) {
        return;
    }
    let stage = stage.map(|stage| format!("/{stage:?}")).unwrap_or_default();
    tracing::info!(rule, stage = format!("{phase}{stage}"), "the machine goes on");
}

/// An object that is gone needs no change any more: "not found" counts as success.
fn gone_is_done(outcome: Result<(), ApiError>) -> Result<(), ApiError> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Applies a memo to what this process remembers of the machine.
pub(super) fn remember(memo: Memo, seen: &Observation, memory: &mut Memory) {
    match memo {
        Memo::AnswerDone => memory.flow.answer = None,
        Memo::FlowDone => {
            (memory.flow.answer, memory.flow.vm, memory.flow.asked_with) = (None, None, None);
            memory.pause = None;
        }
        Memo::Pause(purpose, until) => {
            memory.pause = Some(Pause { purpose, until, inputs: seen.asked_with().clone() });
        }
        Memo::VmChecked(check) => memory.vm_check = check,
    }
}
