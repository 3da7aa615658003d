//! Facts about the stored objects that the checks need: which machines belong to a deployment, are available, are
//! terminating, or are deleted first.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Node;

use super::api::Api;
use machine_api::{
    names::{DEFAULT_MACHINE_PRIORITY, annotation, label, update_result},
    v1alpha1::{Machine, MachinePhase, MachineSet, controller_of},
};
use machine_controllers::deployment::template_equality::is_equal;

/// Whether the machine is being deleted.
pub(super) fn is_terminating(machine: &Machine) -> bool {
    machine.metadata.deletion_timestamp.is_some() || machine.status.current_status.phase == MachinePhase::Terminating
}

/// Whether the machine will be replaced.
pub(super) fn is_failed(machine: &Machine) -> bool {
    machine.status.current_status.phase == MachinePhase::Failed
}

/// Whether the machine is available for its set.
pub(super) fn is_available(machine: &Machine) -> bool {
    !is_terminating(machine)
        && matches!(machine.status.current_status.phase, MachinePhase::Available | MachinePhase::Running)
}

/// The value of an annotation.
pub(super) fn annotation_of<'a>(machine: &'a Machine, key: &str) -> Option<&'a str> {
    machine.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The value of a label.
pub(super) fn label_of<'a>(machine: &'a Machine, key: &str) -> Option<&'a str> {
    machine.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Whether the machine belongs to a set of a deployment and is not being deleted.
pub(super) fn is_ours(api: &Api, machine: &Machine) -> bool {
    !is_terminating(machine) && has_deployment(api, machine)
}

/// Whether the machine belongs to a set, and the set to a deployment.
pub(super) fn has_deployment(api: &Api, machine: &Machine) -> bool {
    set_of(api, machine).is_some_and(|set| controller_of(&set.metadata).is_some())
}

pub(super) fn stays(api: &Api, name: &str) -> bool {
    api.machines.get(name).is_some_and(|machine| !is_terminating(machine))
}

pub(super) fn orphans(api: &Api) -> BTreeSet<String> {
    let is_orphan = |machine: &Machine| !has_deployment(api, machine);
    api.machines.iter().filter(|(_, machine)| is_orphan(machine)).map(|(name, _)| name.clone()).collect()
}

pub(super) fn orphan_sets(api: &Api) -> BTreeSet<String> {
    let is_orphan = |set: &MachineSet| controller_of(&set.metadata).is_none();
    api.sets.iter().filter(|(_, set)| is_orphan(set)).map(|(name, _)| name.clone()).collect()
}

pub(super) fn is_updating(machine: &Arc<Machine>) -> bool {
    machine.status.current_status.phase == MachinePhase::InPlaceUpdating && !is_terminating(machine)
}

pub(super) fn is_being_updated(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    label(label::SELECTED_FOR_UPDATE).is_some() && label(label::UPDATE_RESULT) != Some(update_result::SUCCESSFUL)
}

/// The priority that the scaler gives to machines that it wants deleted.
pub(super) const MARKED: i64 = 1;

/// The priority in a machine's annotation.
pub(super) fn priority(machine: &Machine) -> i64 {
    annotation_of(machine, annotation::MACHINE_PRIORITY)
        .and_then(|value| value.parse().ok())
        .unwrap_or(DEFAULT_MACHINE_PRIORITY)
}

/// Whether the scaler has named the machine.
pub(super) fn is_marked(machine: &Machine) -> bool {
    annotation_of(machine, annotation::MACHINE_PRIORITY) == Some("1")
        && annotation_of(machine, annotation::MARKED_FOR_DELETION_TIME).is_some()
}

pub(super) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

pub(super) fn available(api: &Api) -> BTreeSet<String> {
    let counts = |machine: &Machine| is_available(machine) && is_ours(api, machine);
    api.machines.iter().filter(|(_, machine)| counts(machine)).map(|(name, _)| name.clone()).collect()
}

/// Available machines of sets without a deployment, or of sets that are being deleted.
pub(super) fn unowned(api: &Api) -> BTreeSet<String> {
    let is_lost =
        |set: &MachineSet| controller_of(&set.metadata).is_none() || set.metadata.deletion_timestamp.is_some();
    if !api.sets.values().any(|set| is_lost(set)) {
        return BTreeSet::new();
    }
    let counts = |machine: &Machine| {
        is_available(machine) && !is_terminating(machine) && set_of(api, machine).is_some_and(is_lost)
    };
    api.machines.iter().filter(|(_, machine)| counts(machine)).map(|(name, _)| name.clone()).collect()
}

/// The Node that a machine names.
pub(super) fn node_of<'a>(api: &'a Api, machine: &str) -> Option<&'a Arc<Node>> {
    api.nodes.get(label_of(api.machines.get(machine)?, label::NODE)?)
}

pub(super) fn set_of<'a>(api: &'a Api, machine: &Machine) -> Option<&'a MachineSet> {
    let owner = controller_of(&machine.metadata)?;
    api.sets.get(&owner.name).map(|set| &**set)
}

/// Whether the machine's set is the one of the deployment's present template.
pub(super) fn is_of_new_set(api: &Api, machine: &Machine) -> bool {
    let Some(set) = set_of(api, machine) else { return false };
    api.deployments.values().any(|deployment| is_equal(&set.spec.template, &deployment.spec.template))
}

pub(super) fn old_ones_stay(api: &Api) -> bool {
    api.machines.values().any(|machine| !is_terminating(machine) && !is_of_new_set(api, machine))
}
