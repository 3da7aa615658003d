//! The guards for single machines: changes the observation of a decision, or its plan, to what they would be without a
//! guard.

use std::borrow::Cow;

use controller_runtime::{snapshot::Snapshot, store::Store};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{Guard, edit};
use machine_api::{
    names::{finalizer, machine_condition, stage_text},
    v1alpha1::{Machine, MachinePhase},
};
use machine_controllers::{
    machine::{
        observation::{Answer, Freeze, NodeSource, NodeView, Observation},
        plan::{Effect, Next, Plan},
        settings::HealthTimeout,
    },
    snapshots::NodeSnapshot,
};
use machine_driver::{Code, DeletedVm, Status};

/// The observation of a decision about a machine without this guard. `nodes` is the store of Nodes of its process.
pub fn seen_without<'a>(
    guard: Option<Guard>,
    seen: &'a Observation,
    nodes: &Store<NodeSnapshot>,
) -> Cow<'a, Observation> {
    let Some(guard) = guard else { return Cow::Borrowed(seen) };
    let mut blind = seen.clone();
    hide(guard, &mut blind, nodes);
    Cow::Owned(blind)
}

fn hide(guard: Guard, seen: &mut Observation, nodes: &Store<NodeSnapshot>) {
    let is_deleting = seen.machine.is_deleting();
    let phase = seen.phase().clone();
    match guard {
        Guard::Siblings if is_updated(&phase) => seen.siblings = None,
        Guard::Calls if is_deleting => seen.flow.in_flight = None,
        Guard::Finalizer if !seen.has_finalizer() => {
            change(seen, |machine| machine.finalizers_mut().push(finalizer::MACHINE.to_owned()));
        }
        Guard::Answers => {
            if let Some(Answer::Deleted(answer)) = &mut seen.flow.answer {
                *answer = Ok(DeletedVm::default());
            }
        }
        Guard::Errors => {
            if let Some(Answer::Status(Err(status))) = &mut seen.flow.answer {
                status.code = Code::NotFound;
            }
        }
        Guard::Question if !is_deleting && seen.flow.answer.is_none() && seen.flow.in_flight.is_none() => {
            seen.flow.answer = Some(Answer::Status(Err(Status::new(Code::NotFound, "nobody asked"))));
        }
        Guard::Failure => {
            let generation = seen.now.as_second();
            change(seen, |machine| {
                machine.metadata.owner_references = None;
                machine.metadata.generation = Some(generation);
            });
        }
        Guard::Ownership => {
            if let NodeView::Foreign { name, .. } = &seen.node
                && let Some(node) = nodes.snapshot().into_iter().find(|node| node.name() == name)
            {
                seen.node = NodeView::Ours(node);
            }
        }
        Guard::Cordon => {
            if let NodeView::Ours(node) = &mut seen.node {
                edit(node, |node| node.spec.get_or_insert_default().unschedulable = Some(true));
            }
        }
        Guard::DeletionTimestamp if matches!(phase, MachinePhase::Running | MachinePhase::Terminating) => {
            let now = Time(seen.now);
            change(seen, |machine| {
                machine.metadata.deletion_timestamp.get_or_insert(now);
            });
        }
        Guard::Frozen => seen.freeze = Freeze::Flowing,
        Guard::Absence if seen.node == NodeView::Absent => seen.node = NodeView::Vanished,
        Guard::NodeLook if !is_deleting => seen.node_source = NodeSource::Live,
        Guard::LastNode if is_deleting => seen.node_source = NodeSource::Live,
        Guard::Adoption => {
            change(seen, |machine| {
                for condition in &mut machine.status.machine_conditions {
                    if condition.reason == machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM {
                        machine_condition::REASON_WAITING_FOR_NODE.clone_into(&mut condition.reason);
                    }
                }
            });
        }
        Guard::Initialisation if seen.machine.last_operation().description.contains(stage_text::INITIALIZE_VM) => {
            change(seen, |machine| machine.status.last_operation.description.clear());
        }
        Guard::HealthTimeout => seen.limits.health = HealthTimeout::Never,
        _ => {}
    }
}

/// Changes a plan to what it would be without this guard.
pub fn planned_without(guard: Option<Guard>, plan: &mut Plan) {
    match guard {
        Some(Guard::Inputs) => plan.effects.retain(|effect| *effect != Effect::CheckInputs),
        Some(Guard::LastLook) => plan.effects.retain(|effect| *effect != Effect::RereadMachine),
        Some(Guard::Fields) if !plan.rule.contains("preserv") => {
            for effect in &mut plan.effects {
                if let Effect::WriteStatus { change, .. } = effect {
                    **change = change.clone().preservation_ends();
                }
            }
        }
        Some(Guard::CreationTimeout) if matches!(plan.rule, "creation-timeout" | "last-look-at-node") => {
            plan.effects.clear();
            plan.next = Next::Settled;
        }
        Some(Guard::Repetition) if matches!(plan.rule, "driver-failed-in-deletion" | "deletion-paused") => {
            plan.next = Next::Settled;
        }
        _ => {}
    }
}

fn is_updated(phase: &MachinePhase) -> bool {
    matches!(phase, MachinePhase::InPlaceUpdateSuccessful | MachinePhase::InPlaceUpdateFailed)
}

fn change(seen: &mut Observation, change: impl FnOnce(&mut Machine)) {
    edit(&mut seen.machine, change);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_guard_changes_only_its_own_check() {
        let effects = vec![Effect::RereadMachine, Effect::CheckInputs];
        let plan = Plan::new("x", effects, Next::Again);
        let without = |guard| {
            let mut changed = plan.clone();
            planned_without(guard, &mut changed);
            changed.effects
        };
        assert_eq!(without(None), plan.effects);
        assert_eq!(without(Some(Guard::LastLook)), [Effect::CheckInputs]);
        assert_eq!(without(Some(Guard::Inputs)), [Effect::RereadMachine]);
    }
}
