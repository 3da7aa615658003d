//! A machine that has lost its link: its label `node` is gone, by a pruning of labels or by a replacement from an old
//! export, and its Node still exists.
//!
//! The Node is linked again, in service as well as in a deletion: without the link nothing watches the Node's health, and
//! nothing drains it. This file decides which Node may be linked, `ownership` whose a Node is. The first link of a machine
//! is written in `creation`, together with the identity of its VM.

use super::ownership::{Owner, has_its_id, owner_in};
use crate::{
    machine::{
        observation::{Answer, NodeView, Observation},
        plan::{Effect, Link, Next, RuleResult, deletion_stage::DeletionStage},
    },
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::{BY_INSTANCE, BY_MACHINE, BY_NODE, ControlViews},
};
use controller_runtime::{snapshot::Snapshot, store::Store};
use machine_api::{names::label, v1alpha1::MachinePhase};
use machine_driver::{SameInstance, same_instance::instance_key};

/// Links the Node that was found to a machine that has been linked before.
pub(crate) fn lost_link(seen: &Observation) -> RuleResult {
    match &seen.node {
        NodeView::NotLinked { candidate: Some(node), .. } if was_linked(seen) => {
            RuleResult::act("link-node-again", vec![Effect::Link(Link::of_node(node))], Next::Again)
        }
        _ => RuleResult::NOTHING,
    }
}

/// Whether the machine must have had its label: the label is written together with the provider ID, before these phases. A
/// running creation writes a missing label itself.
pub(crate) fn was_linked(seen: &Observation) -> bool {
    let is_past_creation = match seen.phase() {
        MachinePhase::Pending
        | MachinePhase::Running
        | MachinePhase::Unknown
        | MachinePhase::Failed
        | MachinePhase::InPlaceUpdating
        | MachinePhase::InPlaceUpdateSuccessful
        | MachinePhase::InPlaceUpdateFailed => true,
        MachinePhase::Unset
        | MachinePhase::CrashLoopBackOff
        // Without a target cluster there was no Node.
        | MachinePhase::Available
        | MachinePhase::Terminating
        | MachinePhase::Other(_) => false,
    };
    is_past_creation && !seen.machine.provider_id().is_empty()
}

/// The Node that a deletion links before it continues, so that the Node is drained: at each stage until the VM is deleted.
/// An answer of the driver about that deletion is handled first.
pub(crate) fn link_before_the_vm_goes(seen: &Observation, stage: Option<DeletionStage>) -> Option<&str> {
    let NodeView::NotLinked { candidate: Some(node), .. } = &seen.node else { return None };
    let is_in_time = match stage {
        None | Some(DeletionStage::GetVmStatus | DeletionStage::Drain | DeletionStage::DeleteVolumeAttachments) => true,
        Some(DeletionStage::DeleteVm) => !matches!(seen.flow.answer, Some(Answer::Deleted(_))),
        Some(DeletionStage::DeleteNode | DeletionStage::RemoveFinalizer) => false,
    };
    is_in_time.then_some(node)
}

/// The Node of a machine that has none on its label: a Node that is the machine's, and has its instance or names it.
pub fn candidate(
    machine: &MachineSnapshot,
    nodes: &Store<NodeSnapshot>,
    views: &ControlViews,
    same: &dyn Fn(&MachineSnapshot, &str) -> SameInstance,
) -> Option<NodeSnapshot> {
    let instance = instance_key(machine.provider_id());
    let of_instance = instance.map(|instance| nodes.by_index(BY_INSTANCE, &instance)).unwrap_or_default();
    let mut all = nodes.by_index(BY_MACHINE, machine.name());
    all.extend(of_instance);
    let has_instance = |node: &NodeSnapshot| same(machine, node.provider_id()) == SameInstance::Same;
    all.into_iter()
        .filter(|node| leads_to(machine, node, has_instance(node), views))
        .filter(|node| owner_in(machine, node, views, same) == Owner::Ours)
        .min_by_key(|node| (!has_instance(node), !names(node, machine)))
}

/// Whether the Node leads to the machine without a link. By its instance: unless the Node names another machine, which may
/// be unknown here and whose ID may only end alike. By its label: unless another machine has the Node on its label, which
/// IDs can't disprove.
fn leads_to(machine: &MachineSnapshot, node: &NodeSnapshot, has_instance: bool, views: &ControlViews) -> bool {
    if has_instance {
        return names(node, machine) || node.label(label::MACHINE_NAME).is_none() || has_its_id(machine, node);
    }
    names(node, machine) && !views.machines.is_indexed(BY_NODE, node.name())
}

fn names(node: &NodeSnapshot, machine: &MachineSnapshot) -> bool {
    node.label(label::MACHINE_NAME) == Some(machine.name())
}

#[cfg(test)]
mod tests {
    use SameInstance::{Another, Same, Unknown};
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;
    use rstest::rstest;

    use super::*;
    use crate::{
        machine::{decide::decide, testing::*},
        views::node_store,
    };
    use machine_api::v1alpha1::{OperationState, OperationType};

    fn unlinked(mut machine: Machine) -> Machine {
        machine.labels_mut().remove(label::NODE);
        machine
    }

    #[rstest]
    #[case::running(MachinePhase::Running, "cloud:///n", true)]
    #[case::before_it_joined(MachinePhase::Pending, "cloud:///n", true)]
    #[case::unhealthy(MachinePhase::Unknown, "cloud:///n", true)]
    #[case::failed(MachinePhase::Failed, "cloud:///n", true)]
    #[case::updated_in_place(MachinePhase::InPlaceUpdating, "cloud:///n", true)]
    #[case::restored(MachinePhase::Unset, "cloud:///n", false)]
    #[case::its_creation_goes_on(MachinePhase::CrashLoopBackOff, "cloud:///n", false)]
    #[case::made_without_a_target_cluster(MachinePhase::Available, "cloud:///n", false)]
    #[case::it_has_no_vm(MachinePhase::Running, "", false)]
    fn a_machine_that_was_linked_is_linked_again(#[case] phase: MachinePhase, #[case] id: &str, #[case] again: bool) {
        let mut machine = unlinked(in_phase(phase, 60, OperationType::Create, OperationState::Successful));
        machine.spec.provider_id = id.to_owned();
        let mut seen = seen(machine, 100);
        seen.node = NodeView::NotLinked { candidate: Some("n7".to_owned()), namesake: None };
        let plan = decide(&seen);
        assert_eq!(plan.rule == "link-node-again", again, "{}", plan.rule);
        if again {
            assert_eq!(plan.effects, [Effect::Link(Link::of_node("n7"))]);
        }
        seen.node = NodeView::NotLinked { candidate: None, namesake: None };
        assert_ne!(decide(&seen).rule, "link-node-again", "nobody knows of a Node");
    }

    /// Whether the Node with this name on its label is the candidate of a machine that has lost its link. `ids` is the
    /// driver's answer about the IDs; `other` is another machine that may exist.
    fn is_found(named: Option<&str>, id: &str, ids: SameInstance, other: Option<Machine>) -> bool {
        let (views, nodes) = (ControlViews::default(), node_store());
        let machine = unlinked(running());
        views.machines.apply(machine.clone());
        if let Some(other) = other {
            views.machines.apply(other);
        }
        let mut node = node(vec![]);
        node.metadata.labels = named.map(|name| [(label::MACHINE_NAME.to_owned(), name.to_owned())].into());
        node.spec.get_or_insert_default().provider_id = Some(id.to_owned());
        nodes.apply(node);
        let machine = MachineSnapshot::from(machine);
        candidate(&machine, &nodes, &views, &|_, _| ids).is_some()
    }

    const SPELLED_OTHERWISE: &str = "cloud://zone-a/n";

    #[rstest]
    #[case::by_its_label_and_instance(Some("m-abcde"), SPELLED_OTHERWISE, Same, true)]
    #[case::by_its_instance(None, SPELLED_OTHERWISE, Same, true)]
    #[case::by_its_label_before_it_has_an_id(Some("m-abcde"), "", Unknown, true)]
    #[case::by_its_label_though_nobody_can_tell(Some("m-abcde"), SPELLED_OTHERWISE, Unknown, true)]
    #[case::by_the_very_text_of_its_id(Some("former"), "cloud:///n", Same, true)]
    #[case::it_names_a_machine_that_nobody_knows(Some("stranger"), SPELLED_OTHERWISE, Same, false)]
    #[case::nothing_but_ids_that_nobody_can_tell(None, SPELLED_OTHERWISE, Unknown, false)]
    #[case::the_label_of_another_instance(Some("m-abcde"), "cloud:///x", Another, false)]
    fn a_node_leads_to_its_machine(
        #[case] named: Option<&str>,
        #[case] id: &str,
        #[case] ids: SameInstance,
        #[case] found: bool,
    ) {
        assert_eq!(is_found(named, id, ids, None), found);
    }

    /// A machine with the same instance, created this many seconds later.
    fn twin(later: i64) -> Machine {
        let mut twin = running();
        twin.metadata.name = Some("twin".to_owned());
        twin.metadata.uid = Some("twin".to_owned());
        twin.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(later)));
        twin
    }

    fn unlinked_twin(later: i64) -> Machine {
        unlinked(twin(later))
    }

    #[rstest]
    #[case::the_elder_lost_its_link_too(unlinked_twin(-10), None, Same, false)]
    #[case::the_elder_has_it(twin(-10), None, Same, false)]
    #[case::the_node_names_the_elder(unlinked_twin(-10), Some("twin"), Same, false)]
    #[case::the_younger_lost_its_link_too(unlinked_twin(10), None, Same, true)]
    #[case::the_node_does_not_name_the_younger(twin(10), Some("m-abcde"), Same, true)]
    #[case::another_has_it_on_its_label_and_ids_say_nothing(twin(10), Some("m-abcde"), Unknown, false)]
    fn one_of_two_machines_with_one_instance_gets_the_node(
        #[case] twin: Machine,
        #[case] named: Option<&str>,
        #[case] ids: SameInstance,
        #[case] found: bool,
    ) {
        assert_eq!(is_found(named, SPELLED_OTHERWISE, ids, Some(twin)), found);
    }
}
