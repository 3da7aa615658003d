//! From a machine to a VM: ask, make, record, initialise, Pending.
//!
//! Source: spec/machine-controller §4. One step at a time; the answer of a driver call is part of the next observation.
//! `errors` decides how a failure is written; this file decides whether a create may be sent at all.

pub mod bootstrap_token;
pub mod errors;
pub mod outcome;
#[cfg(test)]
mod tests;
pub mod user_data;

use self::{
    errors::{CreationFailure, InputFault, input_fault, report, report_input_fault},
    outcome::{UnknownOutcome, await_outcome, unknown_outcome},
};
use super::{
    health::pending_wait,
    observation::{
        Answer, Call, ClassState, CreationGuarantee, KnownVm, NodeView, Observation, Purpose, SecretView,
        TargetCluster, UserData, VmOrigin, union,
    },
    plan::{
        Effect, Link, Memo, Next, RuleResult, is_linkable,
        reporting::report_when_lasting,
        status_change::{StatusChange, TimeoutClock},
        waits::Wait,
    },
    retry::RetryPeriod,
    standing::Waiting,
};
use crate::times::after;
use kube_values::syntax::label_value;
use machine_api::{
    names::{DEFAULT_MACHINE_PRIORITY, annotation, finalizer, machine_condition, machine_reason, stage_text},
    v1alpha1::{MachinePhase, OperationState, OperationType},
};
use machine_driver::{Code, SameInstance, Status, VmIdentity};

/// The last operation's text while a VM is made, and after it was made.
pub(super) const CREATING: &str = "Creating machine on cloud provider";
const CREATED: &str = "Created machine on cloud provider";
/// The last operation's text when a new VM has the name of an old Node.
const STALE_NODE: &str = "VM using old node obj";

/// The next step towards a VM.
#[derive(Clone, Debug, PartialEq)]
pub enum CreationStep {
    /// Ask the driver whether there is a VM already.
    AskStatus,
    /// Wait: the VM of an earlier attempt may still appear.
    AwaitOutcome(UnknownOutcome),
    /// Make the VM.
    Create,
    /// Remove the new VM: a Node of its name exists and belongs to an older one.
    DeleteStaleVm,
    /// Write node label, priority and provider ID.
    RecordIdentity(VmIdentity),
    /// Initialise the VM.
    Initialise,
    /// Write the first phase of a machine with a VM.
    RecordPhase,
    /// Nothing is left to do.
    Done,
    /// Report a failure.
    Fail(CreationFailure),
}

/// Decides the next step of a machine that has no VM, or whose VM is not complete (spec §3.1, 13).
pub fn creation(seen: &Observation) -> RuleResult {
    if !is_wanted(seen) {
        return RuleResult::NOTHING;
    }
    if let Some(call) = seen.flow.in_flight {
        return awaits_driver(seen, call);
    }
    // A driver's answer is handled even if the inputs have become invalid meanwhile, because a VM may exist.
    if seen.flow.answer.is_none() {
        if let Some(pause) = seen.paused(Purpose::Creation) {
            return RuleResult::Pass(Some(pause));
        }
        match input_fault(seen) {
            Some(InputFault::NotReady(rule)) => return awaits_class(seen, rule),
            Some(InputFault::Fault(fault)) => return RuleResult::Act(report_input_fault(seen, &fault)),
            None => {}
        }
    }
    match next_creation_step(seen) {
        CreationStep::AskStatus => RuleResult::act("ask-vm-status", vec![Effect::Start(Call::Status)], Next::AwaitCall),
        CreationStep::AwaitOutcome(outcome) => await_outcome(seen, outcome),
        CreationStep::Create => RuleResult::act("create-vm", create(seen), Next::AwaitCall),
        CreationStep::DeleteStaleVm => {
            RuleResult::act("delete-stale-vm", vec![Effect::Start(Call::DeleteStale)], Next::AwaitCall)
        }
        CreationStep::RecordIdentity(vm) => {
            let mut effects = Vec::new();
            if matches!(seen.flow.answer, Some(Answer::Status(Ok(_)))) && seen.machine.provider_id().is_empty() {
                effects.push(Effect::Tell {
                    reason: machine_reason::ADOPTED,
                    message: format!("VM {} existed already and was taken over", vm.provider_id),
                });
            }
            effects.insert(0, record_identity(seen, &vm));
            RuleResult::act("record-identity", effects, Next::Again)
        }
        CreationStep::Initialise => {
            let mut effects: Vec<Effect> = needs_token(seen).then_some(Effect::EnsureToken).into_iter().collect();
            effects.extend([Effect::CheckInputs, Effect::Start(Call::Initialize)]);
            RuleResult::act("initialise-vm", effects, Next::AwaitCall)
        }
        CreationStep::RecordPhase => {
            let mut effects = vec![record_phase(seen), Effect::Remember(Memo::FlowDone)];
            effects.extend(recovery(seen));
            RuleResult::act("record-phase", effects, Next::Again)
        }
        CreationStep::Done => RuleResult::act("vm-known", vec![Effect::Remember(Memo::FlowDone)], Next::Again),
        CreationStep::Fail(failure) => RuleResult::Act(report(seen, &failure)),
    }
}

/// A call under way. Most calls take seconds; a call that takes longer is reported.
fn awaits_driver(seen: &Observation, call: Call) -> RuleResult {
    let (Some(asked), Some(wait)) = (seen.flow.asked_at, driver_wait(seen, call)) else {
        return RuleResult::act("creation-awaits-driver", Vec::new(), Next::AwaitCall);
    };
    match report_when_lasting(seen, asked, &wait) {
        Err(rest) => {
            RuleResult::waits("creation-awaits-driver", wait, Vec::new(), Next::LookAgain(rest, Wait::SlowCall))
        }
        Ok(effects) => RuleResult::waits("creation-awaits-driver", wait, effects, Next::AwaitCall),
    }
}

/// The wait of a machine while this call is under way.
pub fn driver_wait(seen: &Observation, call: Call) -> Option<Waiting> {
    let asked = seen.flow.asked_at?;
    let (reason, on, limit) = match call {
        Call::Initialize => (
            machine_condition::REASON_WAITING_FOR_INITIALIZATION,
            "the provider to initialise the VM",
            seen.limits.calls.initialize,
        ),
        Call::Status => (
            machine_condition::REASON_WAITING_FOR_PROVIDER,
            "the provider to say whether there is a VM",
            seen.limits.calls.status,
        ),
        Call::Create => {
            (machine_condition::REASON_WAITING_FOR_VM, "the provider to make the VM", seen.limits.calls.create)
        }
        Call::Delete | Call::DeleteStale => (
            machine_condition::REASON_WAITING_FOR_VM,
            "the provider to delete a VM of no use",
            seen.limits.calls.delete,
        ),
    };
    let wait = Waiting::on(reason, on)
        .since(asked)
        .ended_by("it answers")
        .at_most_until(after(asked, limit), "the call counts as failed and is tried again");
    Some(wait)
}

/// The class has no finalizer yet. The class controller adds it within moments, unless it does not run.
fn awaits_class(seen: &Observation, rule: &'static str) -> RuleResult {
    let class = &seen.machine.class_ref().name;
    let wait = Waiting::on(
        machine_reason::CLASS_NOT_USABLE,
        format!("finalizer {} on MachineClass \"{class}\"", finalizer::MACHINE),
    )
    .since(seen.first_seen)
    .ended_by("the controller machineclass has put it there; see --controllers and its log if it does not");
    let effects = report_when_lasting(seen, seen.first_seen, &wait).unwrap_or_default();
    let pause = RetryPeriod::Short.length(seen.limits.resource_exhausted_retry);
    RuleResult::waits(rule, wait, effects, Next::LookAgain(pause, Wait::ClassFinalizer))
}

/// The event that a creation succeeded after it had failed. Without a failure the status says enough (decisions.md 32).
fn recovery(seen: &Observation) -> Option<Effect> {
    if *seen.phase() != MachinePhase::CrashLoopBackOff {
        return None;
    }
    let vm = seen.flow.vm.as_ref()?;
    let provider_id = &vm.identity.provider_id;
    if initialisation_is_pending(seen) {
        let message = format!("VM {provider_id} was initialised after earlier attempts had failed");
        return Some(Effect::Tell { reason: machine_reason::INITIALIZED, message });
    }
    (vm.origin == VmOrigin::Created).then(|| Effect::Tell {
        reason: machine_reason::CREATED,
        message: format!("VM {provider_id} was made after earlier attempts had failed"),
    })
}

/// Whether the machine needs a VM, or has one that is not fully recorded.
fn is_wanted(seen: &Observation) -> bool {
    let without_vm = seen.machine.provider_id().is_empty();
    match seen.phase() {
        MachinePhase::Unset | MachinePhase::CrashLoopBackOff => true,
        MachinePhase::Terminating => false,
        MachinePhase::Failed => without_vm && (!seen.flow.is_idle() || failed_may_create(seen)),
        MachinePhase::Pending
        | MachinePhase::Available
        | MachinePhase::Running
        | MachinePhase::Unknown
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed
        | MachinePhase::Other(_) => without_vm,
    }
}

/// A Failed machine without a VM never creates again when a controller owns it; a standalone one only when its
/// specification changed since it failed (decisions.md 10).
fn failed_may_create(seen: &Observation) -> bool {
    if seen.machine.controller().is_some() {
        return false;
    }
    let failed_at = seen
        .machine
        .status()
        .machine_conditions
        .iter()
        .find(|condition| condition.type_ == machine_condition::PROGRESSING)
        .and_then(|condition| condition.observed_generation);
    match (failed_at, seen.machine.generation()) {
        (Some(failed_at), Some(now)) => now > failed_at,
        _ => false,
    }
}

/// The next step towards a VM.
pub fn next_creation_step(seen: &Observation) -> CreationStep {
    let has_provider_id = !seen.machine.provider_id().is_empty();
    match &seen.flow.answer {
        // An answer about a deletion says nothing about a machine that is not being deleted.
        None | Some(Answer::Deleted(_)) => CreationStep::AskStatus,
        Some(Answer::Status(Err(status))) => match status.code {
            Code::NotFound | Code::Unimplemented if has_provider_id => with_vm(seen, &trusted(seen)),
            Code::NotFound | Code::Unimplemented
                if *seen.phase() == MachinePhase::Failed && !failed_may_create(seen) =>
            {
                CreationStep::Done
            }
            Code::NotFound | Code::Unimplemented => {
                unknown_outcome(seen).map_or(CreationStep::Create, CreationStep::AwaitOutcome)
            }
            Code::Uninitialized => match &seen.flow.vm {
                Some(vm) => with_vm(seen, vm),
                None => CreationStep::Fail(CreationFailure::driver(&Status::new(
                    Code::Internal,
                    "the driver reports an uninitialised VM but not which",
                ))),
            },
            _ => CreationStep::Fail(CreationFailure::driver(status)),
        },
        Some(Answer::Created(Err(status))) => CreationStep::Fail(CreationFailure::driver(status)),
        Some(Answer::Initialized(Err(status))) if status.code != Code::Unimplemented => {
            CreationStep::Fail(CreationFailure::initialisation(status))
        }
        Some(Answer::DeletedStale(_)) => CreationStep::Fail(CreationFailure::stale_node(STALE_NODE)),
        Some(Answer::Status(Ok(_)) | Answer::Created(Ok(_)) | Answer::Initialized(_)) => match &seen.flow.vm {
            Some(vm) => with_vm(seen, vm),
            // The driver does not find the VM of a restored machine, and the VM was initialised. Asking again would find
            // nothing either, without end. If the Node does not come, the creation timeout ends the wait.
            None if has_provider_id => with_vm(seen, &trusted(seen)),
            None => CreationStep::AskStatus,
        },
    }
}

/// The next step of a creation once the VM is known.
fn with_vm(seen: &Observation, vm: &KnownVm) -> CreationStep {
    let identity = &vm.identity;
    let node_name_missing = seen.target == TargetCluster::Present && identity.node_name.is_empty();
    if node_name_missing || identity.provider_id.is_empty() {
        return CreationStep::Fail(CreationFailure::driver(&Status::new(
            Code::Internal,
            format!(
                "nodeName ({}) or providerID ({}) is empty after creation flow",
                identity.node_name, identity.provider_id
            ),
        )));
    }
    if seen.target == TargetCluster::Present && !is_linkable(&identity.node_name) {
        let (node, why) = (&identity.node_name, label_value(&identity.node_name).join("; "));
        let message = format!(
            "VM {}: no Node can be named {node:?}, for its name is a label's value: {why}",
            identity.provider_id
        );
        return CreationStep::Fail(CreationFailure::driver(&Status::new(Code::Internal, message)));
    }
    if matches!(seen.flow.answer, Some(Answer::Created(Ok(_)))) && is_stale_node(seen, identity) {
        return CreationStep::DeleteStaleVm;
    }
    if !is_recorded(seen) {
        return CreationStep::RecordIdentity(identity.clone());
    }
    let is_initialised = matches!(seen.flow.answer, Some(Answer::Initialized(_)));
    let must_initialise = match vm.origin {
        VmOrigin::Created | VmOrigin::FoundUninitialized => true,
        VmOrigin::Found => initialisation_is_pending(seen),
    };
    if must_initialise && !is_initialised {
        return CreationStep::Initialise;
    }
    match seen.phase() {
        MachinePhase::Unset | MachinePhase::CrashLoopBackOff => CreationStep::RecordPhase,
        _ => CreationStep::Done,
    }
}

/// The VM that a restored machine names and that the driver does not find.
fn trusted(seen: &Observation) -> KnownVm {
    KnownVm {
        identity: VmIdentity {
            provider_id: seen.machine.provider_id().to_owned(),
            node_name: seen.node_label().to_owned(),
            addresses: Vec::new(),
        },
        origin: VmOrigin::Found,
        last_known_state: None,
    }
}

/// Whether the last operation says that an initialisation failed and has to be repeated (M-14).
fn initialisation_is_pending(seen: &Observation) -> bool {
    let last = seen.machine.last_operation();
    last.operation == OperationType::Create
        && last.state == OperationState::Failed
        && last.description.contains(stage_text::INITIALIZE_VM)
}

/// Whether a Node with the new VM's name exists that does not belong to the new VM. In some clouds a VM joins before the
/// create call answers. Therefore a Node named like the machine is stale only if it is older than that call and names
/// another instance (decisions.md 44). The machine is not linked yet, so the observation looks up the Node by the name that
/// the driver answered.
pub(super) fn is_stale_node(seen: &Observation, vm: &VmIdentity) -> bool {
    let NodeView::NotLinked { namesake: Some(node), .. } = &seen.node else { return false };
    match node.instance {
        SameInstance::Same => false,
        SameInstance::Unknown => vm.node_name != seen.name(),
        SameInstance::Another => {
            let is_older = node.created.zip(seen.flow.asked_at).is_some_and(|(registered, asked)| registered < asked);
            vm.node_name != seen.name() || is_older
        }
    }
}

/// Whether node label, priority and provider ID are all there.
fn is_recorded(seen: &Observation) -> bool {
    let has_label = seen.target == TargetCluster::None || !seen.node_label().is_empty();
    let has_priority =
        seen.machine.annotations().get(annotation::MACHINE_PRIORITY).is_some_and(|value| !value.is_empty());
    has_label && has_priority && !seen.machine.provider_id().is_empty()
}

/// One write of node label, priority (unless there is one) and provider ID.
fn record_identity(seen: &Observation, vm: &VmIdentity) -> Effect {
    let has_priority =
        seen.machine.annotations().get(annotation::MACHINE_PRIORITY).is_some_and(|value| !value.is_empty());
    Effect::Link(Link {
        node: (seen.target == TargetCluster::Present).then(|| vm.node_name.clone()),
        provider_id: Some(vm.provider_id.clone()),
        priority: (!has_priority).then_some(DEFAULT_MACHINE_PRIORITY),
    })
}

/// Pending with its clock, or Available without a target cluster.
fn record_phase(seen: &Observation) -> Effect {
    let vm = seen.flow.vm.as_ref();
    let change = StatusChange::new().last_known_state(seen.flow.unstored_state().map(str::to_owned));
    let change = match seen.target {
        TargetCluster::Present => {
            let (reason, vm_is) = match vm.map(|vm| vm.origin) {
                Some(VmOrigin::Created) => (machine_condition::REASON_WAITING_FOR_NODE, "was made"),
                Some(VmOrigin::Found | VmOrigin::FoundUninitialized) | None => {
                    (machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM, "existed already")
                }
            };
            let wait = pending_wait(seen, reason, format!("Node {} to register and become Ready", seen.node_label()))
                .seen(format!("the VM {vm_is}"))
                .ended_by("the kubelet on the VM has joined the cluster");
            change
                .phase(MachinePhase::Pending, TimeoutClock::Active)
                .operation(OperationType::Create, OperationState::Processing, CREATING.to_owned())
                .waits(wait)
        }
        TargetCluster::None => change
            .phase(MachinePhase::Available, TimeoutClock::Inactive)
            .operation(OperationType::Create, OperationState::Successful, CREATED.to_owned())
            .addresses(all_addresses(seen))
            .settled(machine_condition::REASON_SETTLED, "the VM exists"),
    };
    change.effect(seen)
}

/// Stored and answered addresses, with the node name as `Hostname` (spec §4.11).
fn all_addresses(seen: &Observation) -> Vec<k8s_openapi::api::core::v1::NodeAddress> {
    let vm = seen.flow.vm.as_ref().map(|vm| vm.identity.clone()).unwrap_or_default();
    let mut more = vm.addresses;
    if !vm.node_name.is_empty() {
        more.push(k8s_openapi::api::core::v1::NodeAddress { type_: "Hostname".to_owned(), address: vm.node_name });
    }
    union(seen.machine.addresses(), &more)
}

/// The effects that lead to a `CreateMachine`: before the first one, the machine is read again; a token is made if the user
/// data needs one; the intent is stored if the driver needs that.
fn create(seen: &Observation) -> Vec<Effect> {
    let mut effects = Vec::new();
    if *seen.phase() == MachinePhase::Unset {
        effects.push(Effect::RereadMachine);
    }
    if needs_token(seen) {
        effects.push(Effect::EnsureToken);
    }
    // The last write before the call: a stored intent without an outcome means that a VM may have been asked for. The write also stores the driver's
    // memory from the look-up, with which the driver finds the VM of a call that is cut off, also after an edit of the class.
    if seen.class.creation == CreationGuarantee::RecordIntent {
        let intent = StatusChange::new()
            .operation(OperationType::Create, OperationState::Processing, CREATING.to_owned())
            .last_known_state(seen.flow.unstored_state().map(str::to_owned));
        effects.push(intent.effect(seen));
    }
    effects.extend([Effect::CheckInputs, Effect::Start(Call::Create)]);
    effects
}

/// Whether the user data of a call has to hold a bootstrap token.
fn needs_token(seen: &Observation) -> bool {
    seen.target == TargetCluster::Present
        && matches!(seen.secrets, SecretView::Present(UserData::NeedsToken))
        && seen.class.state == ClassState::Usable
}
