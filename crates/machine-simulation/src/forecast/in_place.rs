//! Updates in place in a forecast: real passes of the machine controller prepare selected Nodes for their update, and
//! simple agents carry it out.
//!
//! Machine passes run only for machines whose Nodes are candidates or that are being updated. The behaviour of all
//! other machines is assumed ([`super::Assumptions`]).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    super::{
        nodes::{is_ready_for_update, set_update_result},
        process::{Job, later},
    },
    Stuck, World,
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use machine_api::{
    names::{label, update_result},
    v1alpha1::{MachinePhase, OrchestrationType, StrategyType},
};
use machine_controllers::{loops::Controller, set::counts::is_terminating, snapshots::MachineSnapshot, views::BY_NODE};

/// The state of updates in place.
#[derive(Debug, Default)]
pub(super) struct Updates {
    /// When agents will be done, by Node.
    agents: BTreeMap<String, Timestamp>,
    /// Nodes that are selected.
    picked: BTreeSet<String>,
}

impl World<'_> {
    /// Whether a pass is played: all passes over deployments and sets, and those over machines that are being updated.
    pub(super) fn is_played(&self, (of, key): &Job) -> bool {
        match of {
            Controller::MachineDeployment | Controller::MachineSet => true,
            Controller::Machine => {
                self.process.views.machines.get(key).is_some_and(|machine| self.is_updating(&machine))
            }
            Controller::MachineSafetyOvershooting
            | Controller::MachineSafetyOrphanVms
            | Controller::MachineSafetyApiServer
            | Controller::MachineClass
            | Controller::Secret
            | Controller::Node => false,
        }
    }

    fn is_updating(&self, machine: &MachineSnapshot) -> bool {
        if is_terminating(machine) {
            return false;
        }
        let is_under_way = matches!(
            machine.phase(),
            MachinePhase::InPlaceUpdating | MachinePhase::InPlaceUpdateSuccessful | MachinePhase::InPlaceUpdateFailed
        );
        let is_candidate = || {
            let name = machine.labels().get(label::NODE).cloned().unwrap_or_default();
            let node = self.process.nodes.get(&ObjectKey::cluster_scoped(name));
            node.is_some_and(|node| node.label(label::CANDIDATE_FOR_UPDATE).is_some())
        };
        is_under_way || is_candidate()
    }

    /// Agents start where they may; agents that are done write the result.
    pub(super) fn let_agents_work(&mut self) {
        let now = self.now;
        let done: Vec<String> =
            self.updates.agents.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in done {
            self.updates.agents.remove(&name);
            set_update_result(&mut self.api, &name, update_result::SUCCESSFUL);
        }
        let ready = later(now, self.question.assume.update);
        for name in self.api.nodes.iter().filter(|(_, node)| is_ready_for_update(node)).map(|(name, _)| name) {
            self.updates.agents.entry(name.clone()).or_insert(ready);
        }
    }

    /// When the next agent will be done.
    pub(super) fn next_agent(&self) -> Option<Timestamp> {
        self.updates.agents.values().copied().min()
    }

    /// The machines, by set, whose Nodes have been selected since the last call.
    pub(super) fn newly_picked(&mut self) -> BTreeMap<String, Vec<String>> {
        let is_picked = |name: &String| {
            let labels = self.api.nodes.get(name).and_then(|node| node.metadata.labels.as_ref());
            labels.is_some_and(|labels| labels.contains_key(label::SELECTED_FOR_UPDATE))
        };
        let picked: BTreeSet<String> = self.api.nodes.keys().filter(|name| is_picked(name)).cloned().collect();
        let mut new: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for node in picked.difference(&self.updates.picked) {
            for machine in self.process.views.machines.by_index(BY_NODE, node) {
                let set = machine.controller().map(|owner| owner.name.clone()).unwrap_or_default();
                new.entry(set).or_default().push(machine.name().to_owned());
            }
        }
        self.updates.picked = picked;
        new
    }

    /// With orchestration `Manual` nothing happens until the user selects Nodes.
    pub(super) fn awaits_picks(&self, explanation: Option<&str>) -> Option<Stuck> {
        let strategy = self.question.deployment.strategy();
        let is_manual = strategy.strategy_type == StrategyType::InPlaceUpdate
            && strategy
                .in_place_update
                .as_ref()
                .is_some_and(|limits| limits.orchestration_type == OrchestrationType::Manual);
        let message = explanation.filter(|_| is_manual)?;
        Some(Stuck { reason: "AwaitsSelection", message: message.to_owned() })
    }
}
