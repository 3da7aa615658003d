//! The end of a deletion, after the VM is gone: the Node is deleted, then our finalizer is removed from the machine.
//!
//! A kubelet may register while its VM is being deleted, and the store may not show that yet. Nothing else would ever delete
//! this Node. Therefore, when the store shows no Node of the machine, the API server is asked once before the finalizer is
//! removed. Source: spec/machine-controller §6.7, §6.8.

use super::{
    StageStatus,
    drain::{is_overdue, overdue_after},
    pause_of, vm_is_gone, wait_in_deletion,
};
use crate::{
    drain::order::Force,
    machine::{
        observation::{NodeSource, NodeStep, NodeView, Observation, StepFailure, shared_instance::VmOwner},
        plan::{Effect, Link, Next, Plan, deletion_stage::DeletionStage, waits::Wait},
        retry::{RetryPeriod, tried_again},
    },
};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;
use machine_api::{
    names::{label, machine_condition, machine_reason},
    v1alpha1::OperationState,
};

/// Deletes the Node (first, so that nothing adds the finalizer again), removes our finalizer from it, and then from the
/// machine.
pub(super) fn delete_node(seen: &Observation) -> Plan {
    let mut effects = Vec::new();
    match seen.step_failures.latest() {
        Some(failure) if may_go_unseen(seen, failure) => effects.push(Effect::Warn {
            reason: machine_reason::NODE_NOT_LOOKED_FOR,
            message: format!(
                "the machine goes by force although it is unknown whether it leaves a Node behind: {}",
                failure.error
            ),
        }),
        Some(failure) => return node_step_failed(seen, failure),
        None if must_look(seen) => {
            return Plan::new("last-look-for-node", vec![Effect::LookForNode], Next::Again);
        }
        None => {}
    }
    match &seen.node {
        NodeView::Ours(node) => {
            if !node.is_deleting() {
                effects.push(Effect::DeleteNode { uid: node.uid().to_owned() });
            }
            if node.is_held() {
                effects.push(Effect::RemoveNodeFinalizer);
            }
        }
        NodeView::NotLinked { candidate: Some(node), .. } => {
            let effects =
                vec![Effect::Link(Link::of_node(node)), StageStatus::at(DeletionStage::DeleteNode, "").effect(seen)];
            return Plan::new("link-late-node", effects, Next::Again);
        }
        NodeView::Foreign { name, why } => effects.push(Effect::Warn {
            reason: machine_reason::FOREIGN_NODE_KEPT,
            message: format!("Node {name} is left alone: {why}"),
        }),
        NodeView::Contested { name, why } => effects.push(Effect::Warn {
            reason: machine_reason::NODE_CONTESTED,
            message: format!("Node {name} is left alone: {why}"),
        }),
        NodeView::NoTarget | NodeView::NotLinked { candidate: None, .. } | NodeView::Absent | NodeView::Vanished => {}
    }
    // Without earlier failures the end of the machine says enough (decisions.md 32).
    if vm_is_gone(seen) && vm_deletion_had_failed(seen) {
        effects.push(Effect::Tell {
            reason: machine_reason::VM_DELETED,
            message: "the VM was deleted after earlier attempts had failed".to_owned(),
        });
    }
    effects.push(Effect::RemoveMachineFinalizer);
    Plan::new("delete-node-and-let-go", effects, Next::Settled)
}

/// Whether the last attempt to delete the VM had failed before the attempt that succeeded. The condition does not show it: an
/// attempt that lasts has changed the condition.
fn vm_deletion_had_failed(seen: &Observation) -> bool {
    seen.machine.last_operation().state == OperationState::Failed
        && DeletionStage::of(&seen.machine) == Some(DeletionStage::DeleteVm)
}

/// Whether only the store says that the machine has no Node. When the store shows a Node of another instance, that Node may
/// be gone by now, and the machine's own Node may have joined under the same name.
fn must_look(seen: &Observation) -> bool {
    let is_unseen = match &seen.node {
        NodeView::NotLinked { candidate: None, .. }
        | NodeView::Absent
        | NodeView::Vanished
        | NodeView::Foreign { .. }
        | NodeView::Contested { .. } => true,
        NodeView::NoTarget | NodeView::NotLinked { candidate: Some(_), .. } | NodeView::Ours(_) => false,
    };
    is_unseen && seen.node_source == NodeSource::View
}

/// A target cluster that does not answer any more delays a deletion for ever. Only a deletion by force goes on, after the
/// time that volume attachments may take (M-02).
fn may_go_unseen(seen: &Observation, failure: &StepFailure) -> bool {
    failure.step == NodeStep::LastLook && seen.force_deletion() == Force::Yes && is_overdue(seen)
}

/// Tries a failed step on the Node, or on the machine itself, again, and reports the failure.
pub(super) fn node_step_failed(seen: &Observation, failure: &StepFailure) -> Plan {
    let (node, error) = (seen.node_label(), &failure.error);
    let pause = pause_of(RetryPeriod::Short, seen);
    let every = GoDuration::from(pause);
    let mut end = tried_again(every);
    let (stage, reason, on, text) = match failure.step {
        NodeStep::LastLook => {
            end = format!(
                "asked again every {every}; the label {} lets the machine go without an answer, {} after its deletion at the \
                 earliest",
                label::FORCE_DELETION,
                GoDuration::from(overdue_after(seen))
            );
            (
                DeletionStage::DeleteNode,
                machine_condition::REASON_DELETING_NODE,
                "the target cluster to say whether a Node of the machine is left",
                format!("Whether a Node of the machine is left could not be found out: {error}."),
            )
        }
        NodeStep::LetGo => {
            let (stage, done) = match &seen.vm_owner {
                VmOwner::This | VmOwner::Leaving(_) => {
                    (DeletionStage::RemoveFinalizer, "VM and Node are gone".to_owned())
                }
                // If the other machine is gone first, the deletion continues at its present stage.
                VmOwner::Living(other) => (
                    DeletionStage::of(&seen.machine).unwrap_or(DeletionStage::GetVmStatus),
                    format!("The VM is left to machine {other}, which names it too"),
                ),
            };
            (
                stage,
                machine_condition::REASON_LETTING_GO,
                "its finalizer to be taken off",
                format!("{done}, but the machine's finalizer can't be taken off: {error}."),
            )
        }
        NodeStep::Finalizer => (
            DeletionStage::DeleteNode,
            machine_condition::REASON_DELETING_NODE,
            "its Node to be deleted",
            format!("Removal of finalizers from Node Object \"{node}\" failed due to error: {error}, Retrying."),
        ),
        _ => (
            DeletionStage::DeleteNode,
            machine_condition::REASON_DELETING_NODE,
            "its Node to be deleted",
            format!("Deletion of Node Object \"{node}\" failed due to error: {error}."),
        ),
    };
    let warn = Effect::Warn { reason: machine_reason::NODE_NOT_DELETED, message: text.clone() };
    let wait = wait_in_deletion(seen, reason, on).seen(&text).ended_by(format!("that succeeds; it is {end}"));
    StageStatus::failed(stage, text, None)
        .waits(wait)
        .plan("node-deletion-failed", seen, Next::LookAgain(pause, Wait::NodeDeletion))
        .also([warn])
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use rstest::rstest;

    use super::*;
    use crate::machine::{
        decide::decide,
        observation::{Answer, TargetCluster},
        testing::*,
    };
    use machine_driver::DeletedVm;

    /// A machine whose VM has just been deleted, with this view of its Node.
    fn without_vm(node: NodeView, source: NodeSource) -> Observation {
        let mut seen = answered(seen(resting(DeletionStage::DeleteVm), 200), Answer::Deleted(Ok(DeletedVm::default())));
        if node == NodeView::NoTarget {
            seen.target = TargetCluster::None;
        }
        if matches!(node, NodeView::NotLinked { .. }) {
            seen.machine.to_mut().labels_mut().remove(label::NODE);
        }
        seen.node = node;
        seen.node_source = source;
        seen
    }

    fn unlinked(candidate: Option<&str>) -> NodeView {
        NodeView::NotLinked { candidate: candidate.map(str::to_owned), namesake: None }
    }

    #[rstest]
    #[case::not_seen(NodeView::Absent, NodeSource::View, "last-look-for-node")]
    #[case::seen_to_go_it_may_have_come_back(NodeView::Vanished, NodeSource::View, "last-look-for-node")]
    #[case::never_linked(unlinked(None), NodeSource::View, "last-look-for-node")]
    #[case::really_not_there(NodeView::Absent, NodeSource::Live, "delete-node-and-let-go")]
    #[case::really_nobody_names_the_machine(unlinked(None), NodeSource::Live, "delete-node-and-let-go")]
    #[case::seen(NodeView::Ours(node(vec![]).into()), NodeSource::View, "delete-node-and-let-go")]
    #[case::of_somebody_else(NodeView::Foreign { name: "n".to_owned(), why: "x".to_owned() }, NodeSource::View, "last-look-for-node")]
    #[case::really_of_somebody_else(NodeView::Foreign { name: "n".to_owned(), why: "x".to_owned() }, NodeSource::Live, "delete-node-and-let-go")]
    #[case::contested(NodeView::Contested { name: "n".to_owned(), why: "x".to_owned() }, NodeSource::View, "last-look-for-node")]
    #[case::really_contested(NodeView::Contested { name: "n".to_owned(), why: "x".to_owned() }, NodeSource::Live, "delete-node-and-let-go")]
    #[case::no_target_cluster(NodeView::NoTarget, NodeSource::View, "delete-node-and-let-go")]
    #[case::found_by_its_label(unlinked(Some("n")), NodeSource::Live, "link-late-node")]
    fn no_machine_is_let_go_on_a_view_that_shows_no_node_of_it(
        #[case] node: NodeView,
        #[case] source: NodeSource,
        #[case] rule: &str,
    ) {
        let plan = decide(&without_vm(node, source));
        assert_eq!(plan.rule, rule);
        assert_eq!(plan.effects.contains(&Effect::RemoveMachineFinalizer), rule == "delete-node-and-let-go");
    }

    #[rstest]
    fn each_of_the_last_stages_looks(
        #[values(DeletionStage::DeleteNode, DeletionStage::RemoveFinalizer)] stage: DeletionStage,
    ) {
        let mut seen = seen(resting(stage), 200);
        seen.node_source = NodeSource::View;
        assert_eq!(decide(&seen).effects, [Effect::LookForNode]);
    }

    #[test]
    fn a_refused_removal_of_the_finalizer_is_reported() {
        let mut seen = without_vm(NodeView::Absent, NodeSource::Live);
        seen.step_failures = StepFailure { step: NodeStep::LetGo, error: "invalid: a policy".to_owned() }.into();
        let plan = decide(&seen);
        let machine = after(&plan, &seen.machine);
        assert_eq!(DeletionStage::of(&machine), Some(DeletionStage::RemoveFinalizer));
        let reported = &machine.machine_conditions()[0].message;
        assert!(reported.contains("finalizer to be taken off") && reported.contains("a policy"), "{reported}");
    }

    #[test]
    fn a_late_node_is_linked_and_then_deleted() {
        let seen = without_vm(unlinked(Some("n")), NodeSource::Live);
        let linked = after(&decide(&seen), &seen.machine);
        assert_eq!(DeletionStage::of(&linked), Some(DeletionStage::DeleteNode));
        let plan = decide(&with_node(crate::machine::testing::seen(linked, 201), node(vec![])));
        let expected = [
            Effect::DeleteNode { uid: "node-uid".to_owned() },
            Effect::RemoveNodeFinalizer,
            Effect::RemoveMachineFinalizer,
        ];
        assert_eq!(plan.effects, expected);
    }

    #[rstest]
    #[case::it_is_asked_again(Force::No, 20_000, false)]
    #[case::by_force_but_too_soon(Force::Yes, 7_900, false)]
    #[case::by_force_after_drain_timeout_and_ten_minutes(Force::Yes, 7_901, true)]
    fn a_target_that_does_not_answer_holds_the_machine(#[case] force: Force, #[case] second: i64, #[case] goes: bool) {
        let mut seen = without_vm(NodeView::Absent, NodeSource::View);
        if force == Force::Yes {
            let machine = seen.machine.to_mut();
            machine.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned());
        }
        seen.now = at(second);
        seen.step_failures = StepFailure { step: NodeStep::LastLook, error: "away".to_owned() }.into();
        let plan = decide(&seen);
        assert_eq!(plan.effects.contains(&Effect::RemoveMachineFinalizer), goes);
        if goes {
            assert!(matches!(plan.effects[0], Effect::Warn { reason: machine_reason::NODE_NOT_LOOKED_FOR, .. }));
        } else {
            let reported = after(&plan, &seen.machine).machine_conditions()[0].message.clone();
            for part in ["since 2027-01-15T08:01:40Z", "away", "every 5s", "force-deletion", "2h10m0s"] {
                assert!(reported.contains(part), "{part} is not in {reported}");
            }
        }
    }
}
