//! Fleets of a few machines and their Nodes, each at the stage of its update that the test names.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition};

use super::super::plan::{Effect, Step};
use crate::{
    deployment::{
        decide::decide,
        observe::{DeploymentObservation, SetSeen},
        testing::*,
    },
    set::testing::{Building, meta},
    snapshots::SetSnapshot,
};
use controller_runtime::snapshot::{Snapshot, Whole};
use machine_api::{
    names::{annotation, label, node_condition},
    v1alpha1::{Machine, MachineDeployment, MachinePhase, OrchestrationType},
};

/// The stage of a machine's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    /// Running; its node has no mark.
    Plain,
    /// Running; its node is a candidate.
    Candidate,
    /// As `Candidate`, but the machine is not healthy.
    Unhealthy,
    /// Its node was selected; the machine is still Running.
    Selected,
    /// Its node is drained and being updated.
    Updating,
    /// Its node is updated, and all objects show this.
    Updated,
    /// Its node is updated, but the machine's phase does not show this yet.
    UpdatedEarly,
    /// The machine's condition shows a success, and its node shows a failure.
    Contradicting,
    /// Updated, and moved to its present set.
    HandedOver,
    /// Its VM is still starting; there is no node.
    Starting,
    /// It names a node that does not exist.
    WithoutNode,
}

/// A set's size and its machines.
pub(super) fn of(size: i32, machines: &'static [Is]) -> (i32, &'static [Is]) {
    (size, machines)
}

pub(super) fn machine_of(set: &SetSnapshot, number: usize, is: Is) -> Machine {
    let mut machine = machines_of(set.whole_object(), number + 1, number + 1).remove(number).to_object();
    let labels = machine.metadata.labels.get_or_insert_default();
    if is != Is::Starting {
        labels.insert(label::NODE.to_owned(), format!("node-{}", machine.metadata.name.clone().unwrap()));
    }
    if is == Is::HandedOver {
        labels.insert(label::UPDATE_RESULT.to_owned(), "successful".to_owned());
    }
    machine.status.current_status.phase = match is {
        Is::Starting => MachinePhase::Pending,
        Is::Unhealthy => MachinePhase::Unknown,
        Is::Updating | Is::UpdatedEarly => MachinePhase::InPlaceUpdating,
        _ => MachinePhase::Running,
    };
    if matches!(is, Is::Updated | Is::UpdatedEarly | Is::Contradicting | Is::HandedOver) {
        machine.status.conditions = vec![condition(node_condition::REASON_UPDATE_SUCCESSFUL)];
    }
    machine
}

pub(super) fn condition(reason: &str) -> NodeCondition {
    NodeCondition {
        type_: node_condition::IN_PLACE_UPDATE.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        ..NodeCondition::default()
    }
}

pub(super) fn node_of(machine: &Machine, is: Is) -> Option<Node> {
    let name = machine.metadata.labels.as_ref()?.get(label::NODE)?;
    let mut node = Node { metadata: meta(name), ..Node::default() };
    let labels = node.metadata.labels.get_or_insert_default();
    let mut put = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
    let reason = match is {
        Is::WithoutNode => return None,
        Is::Plain | Is::Starting => None,
        Is::Candidate | Is::Unhealthy => Some("CandidateForUpdate"),
        Is::Selected => Some("SelectedForUpdate"),
        Is::Updating => Some(node_condition::REASON_READY_FOR_UPDATE),
        Is::Contradicting => Some("UpdateFailed"),
        Is::Updated | Is::UpdatedEarly | Is::HandedOver => Some(node_condition::REASON_UPDATE_SUCCESSFUL),
    };
    if reason.is_some() {
        put(label::CANDIDATE_FOR_UPDATE, "true");
    }
    if !matches!(is, Is::Plain | Is::Candidate | Is::Unhealthy) {
        put(label::SELECTED_FOR_UPDATE, "true");
        node.spec.get_or_insert_default().unschedulable = Some(true);
    }
    match is {
        Is::Contradicting => _ = put(label::UPDATE_RESULT, "failed"),
        Is::Updated | Is::UpdatedEarly | Is::HandedOver => _ = put(label::UPDATE_RESULT, "successful"),
        _ => {}
    }
    node.status.get_or_insert_default().conditions = reason.map(|reason| vec![condition(reason)]);
    Some(node)
}

/// The old set and the new one, each as wanted size and machines, in a deployment of three machines without surge and
/// with one machine that may be unavailable.
pub(super) fn fleet(picks: OrchestrationType, old: (i32, &[Is]), new: (i32, &[Is])) -> DeploymentObservation {
    fleet_of(3, (0, 1), picks, old, new)
}

pub(super) fn fleet_of(
    replicas: i32,
    (surge, unavailable): (i32, i32),
    picks: OrchestrationType,
    old: (i32, &[Is]),
    new: (i32, &[Is]),
) -> DeploymentObservation {
    let deployment: Building<MachineDeployment> = deployment(replicas, surge, unavailable)
        .annotation(annotation::REVISION, "1")
        .with(|d| d.spec.strategy = in_place(surge, unavailable, picks));
    let mut nodes = BTreeMap::new();
    let mut sets = Vec::new();
    for (name, class, (size, machines), created) in [("md-old", "old", old, -2000), ("md-new", "new", new, -1000)] {
        let mut set = Building(set_of_class(name, class, size, created));
        if class == "old" {
            set = set
                .label(label::SCALE_UP_DISABLED, "true")
                .annotation(annotation::REVISION, "0")
                .annotation(annotation::PREFER_NO_SCHEDULE, "True");
        }
        let set = set.build();
        let mut seen = SetSeen { machines: Vec::new(), set: set.into() };
        for (number, is) in machines.iter().enumerate() {
            let machine = machine_of(&seen.set, number, *is);
            if let Some(node) = node_of(&machine, *is) {
                nodes.insert(node.metadata.name.clone().unwrap(), node.into());
            }
            seen.machines.push(machine.into());
        }
        sets.push(seen);
    }
    let mut seen = seeing_sets(deployment.build(), sets);
    seen.nodes = Some(nodes);
    seen
}

/// The rules of this folder in the plan, with the objects that they change.
pub(super) fn rules(seen: &DeploymentObservation) -> Vec<String> {
    let told = |step: &Step| match &step.effect {
        Effect::ScaleSet { set, to, .. } => format!("{} {} {to}", step.rule, set.name()),
        Effect::ChangeNode { node, .. } => format!("{} {}", step.rule, node.name()),
        Effect::MarkMachine { machine, .. } | Effect::HandOver { machine, .. } => {
            format!("{} {}", step.rule, machine.name())
        }
        _ => step.rule.to_owned(),
    };
    decide(seen).steps.iter().filter(|step| step.rule.starts_with("in-place/")).map(told).collect()
}
