//! The events of these histories, apart from the decisions of the controllers.

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec};
use proptest::prelude::*;

use super::world::{World, place_of};
use crate::{
    deployment::in_place::marks::Marks,
    set::{
        counts::{is_available, is_terminating},
        testing::{meta, now},
    },
    snapshots::MachineSnapshot,
};
use machine_api::{
    names::{annotation, label, node_condition},
    v1alpha1::{Machine, MachinePhase, OrchestrationType::Manual},
};

/// An event. Numbers select one of the objects that it can apply to.
#[derive(Clone, Debug)]
pub(super) enum Happens {
    /// A pass of the deployment that ends after this number of writes, with a pass of the given set after each write.
    Deployment {
        writes: usize,
        between: Option<usize>,
    },
    Set(usize),
    SetDecides(usize),
    Joins(usize),
    IsDrained(usize),
    IsUpdated(usize),
    Recovers(usize),
    Ends(usize),
    UserPicks(usize),
}

pub(super) fn happenings() -> impl Strategy<Value = Vec<Happens>> {
    let some = 0..64_usize;
    let one = prop_oneof![
        5 => (prop_oneof![0..4_usize, Just(usize::MAX)], prop::option::of(0..4_usize))
            .prop_map(|(writes, between)| Happens::Deployment { writes, between }),
        4 => (0..4_usize).prop_map(Happens::Set),
        2 => (0..4_usize).prop_map(Happens::SetDecides),
        3 => some.clone().prop_map(Happens::Joins),
        3 => some.clone().prop_map(Happens::IsDrained),
        3 => some.clone().prop_map(Happens::IsUpdated),
        3 => some.clone().prop_map(Happens::Recovers),
        2 => some.clone().prop_map(Happens::Ends),
        1 => some.prop_map(Happens::UserPicks),
    ];
    prop::collection::vec(one, 0..250)
}

impl World {
    /// The machine, with a new resource version, for a change.
    fn changed(&mut self, place: usize) -> &mut Machine {
        let machine = self.machines[place].to_mut();
        let version = machine.metadata.resource_version.as_deref().unwrap_or("0").parse::<u64>().unwrap() + 1;
        machine.metadata.resource_version = Some(version.to_string());
        machine
    }

    /// Our action makes a machine unavailable.
    pub(super) fn loses(&mut self, place: usize, phase: MachinePhase) {
        let was_available = is_available(&self.machines[place]);
        self.changed(place).status.current_status.phase = phase;
        let left = i32::try_from(self.machines.iter().filter(|machine| is_available(machine)).count()).unwrap();
        if let (true, Some(least)) = (was_available, self.least_available) {
            assert!(left >= least, "{left} available, at least {least} wanted");
        }
    }

    pub(super) fn nth(
        &self,
        index: usize,
        which: impl Fn(&MachineSnapshot, Marks<'_>) -> bool,
    ) -> Option<(usize, String)> {
        let all: Vec<(usize, String)> = self
            .machines
            .iter()
            .enumerate()
            .filter_map(|(place, machine)| {
                let name = machine.label(label::NODE).unwrap_or_default();
                let marks = self.nodes.get(name).map(Marks::of).unwrap_or_default();
                which(machine, marks).then(|| (place, name.to_owned()))
            })
            .collect();
        (!all.is_empty()).then(|| all[index % all.len()].clone())
    }

    /// Sets the Node's update condition and the machine's copy of it.
    pub(super) fn set_update_condition(&mut self, place: usize, node: &str, reason: &str) {
        let condition = NodeCondition {
            type_: node_condition::IN_PLACE_UPDATE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            ..NodeCondition::default()
        };
        self.nodes.get_mut(node).unwrap().to_mut().status.get_or_insert_default().conditions =
            Some(vec![condition.clone()]);
        self.changed(place).status.conditions = vec![condition];
    }

    pub(super) fn label(&mut self, node: &str, key: &str, value: &str) {
        let node = self.nodes.get_mut(node).unwrap().to_mut();
        node.metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
    }

    /// Plays the event; returns whether there was an object that it could apply to.
    pub(super) fn happens(&mut self, what: &Happens) -> bool {
        match what {
            Happens::Deployment { writes, between } => self.deployment_pass(*writes, *between),
            Happens::Set(index) => self.set_pass(*index),
            Happens::SetDecides(index) => {
                self.set_decides(*index);
                false
            }
            Happens::Joins(index) => {
                let starts = |machine: &MachineSnapshot, _: Marks<'_>| *machine.phase() == MachinePhase::Pending;
                let Some((place, _)) = self.nth(*index, starts) else { return false };
                let machine = self.changed(place);
                let node = format!("node-{}", machine.metadata.name.clone().unwrap());
                machine.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), node.clone());
                machine.status.current_status.phase = MachinePhase::Running;
                let made = Node { metadata: meta(&node), spec: Some(NodeSpec::default()), status: None };
                self.nodes.insert(node, made.into());
                true
            }
            Happens::IsDrained(index) => {
                let picked = |machine: &MachineSnapshot, marks: Marks<'_>| {
                    let ready = *machine.phase() == MachinePhase::Running;
                    ready && marks.candidate && marks.selected && marks.result.is_none()
                };
                let Some((place, node)) = self.nth(*index, picked) else { return false };
                self.loses(place, MachinePhase::InPlaceUpdating);
                self.set_update_condition(place, &node, node_condition::REASON_READY_FOR_UPDATE);
                self.nodes.get_mut(&node).unwrap().to_mut().spec.get_or_insert_default().unschedulable = Some(true);
                true
            }
            Happens::IsUpdated(index) => {
                let drained = |machine: &MachineSnapshot, marks: Marks<'_>| {
                    *machine.phase() == MachinePhase::InPlaceUpdating && marks.candidate
                };
                let Some((place, node)) = self.nth(*index, drained) else { return false };
                self.label(&node, label::UPDATE_RESULT, "successful");
                self.set_update_condition(place, &node, node_condition::REASON_UPDATE_SUCCESSFUL);
                let machine = self.changed(place);
                machine.status.current_status.phase = MachinePhase::InPlaceUpdateSuccessful;
                true
            }
            Happens::Recovers(index) => {
                let updated =
                    |machine: &MachineSnapshot, _: Marks<'_>| *machine.phase() == MachinePhase::InPlaceUpdateSuccessful;
                let Some((place, _)) = self.nth(*index, updated) else { return false };
                self.changed(place).status.current_status.phase = MachinePhase::Running;
                true
            }
            Happens::Ends(index) => {
                let Some((place, node)) = self.nth(*index, |machine, _| is_terminating(machine)) else { return false };
                self.machines.remove(place);
                self.nodes.remove(&node);
                true
            }
            Happens::UserPicks(index) => {
                let manual = self.deployment.strategy().in_place_update.as_ref().unwrap().orchestration_type == Manual;
                let candidate = |machine: &MachineSnapshot, marks: Marks<'_>| {
                    marks.candidate && !marks.selected && !is_terminating(machine)
                };
                let Some((_, node)) = self.nth(*index, candidate).filter(|_| manual) else { return false };
                self.label(&node, label::SELECTED_FOR_UPDATE, "true");
                true
            }
        }
    }

    pub(super) fn stays(&self, name: &str) -> bool {
        place_of(&self.machines, name).is_some_and(|place| !is_terminating(&self.machines[place]))
    }

    /// The overshoot guard freezes the deployment and its sets, or unfreezes them.
    pub(super) fn freeze(&mut self, is_frozen: bool) {
        let deployment = &mut self.deployment.to_mut().metadata.labels;
        let sets = self.sets.iter_mut().map(|set| &mut set.to_mut().metadata.labels);
        for labels in sets.chain([deployment]) {
            let labels = labels.get_or_insert_default();
            if is_frozen {
                labels.insert(label::FREEZE.to_owned(), "True".to_owned());
            } else {
                labels.remove(label::FREEZE);
            }
        }
    }

    /// The first write of the scaler: it marks a machine.
    pub(super) fn is_named(&mut self, index: usize) -> Option<String> {
        let (place, _) = self.nth(index, |machine, _| !is_terminating(machine))?;
        let machine = self.changed(place);
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned());
        annotations.insert(annotation::MARKED_FOR_DELETION_TIME.to_owned(), now().to_string());
        machine.metadata.name.clone()
    }

    /// The second write of the scaler: the size, reduced by `fewer`, and the time.
    pub(super) fn is_scaled_in(&mut self, fewer: i32) {
        let deployment = self.deployment.to_mut();
        deployment.spec.replicas -= fewer;
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::LAST_REPLICA_CHANGE_BY_SCALER.to_owned(), now().to_string());
    }
}
