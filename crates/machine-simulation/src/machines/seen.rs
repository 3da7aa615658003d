//! What a pass over a machine sees: the machine, its Node, its siblings and what the process remembers.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;

use super::{MachineMemory, Pass};
use crate::process::Process;
use controller_runtime::key::ObjectKey;
use machine_api::{
    names::label,
    v1alpha1::{Machine, MachinePhase},
};
use machine_controllers::{
    machine::{
        lost_link::candidate,
        node_ailments::Sight,
        node_ownership::{owner_in, provider_id},
        observation::{Namesake, NodeView, Observation, Sibling, since},
        observe::{ailments, conditions_differ_since, first_seen_deleting, whose},
        settings::HealthTimeout,
        shared_instance::vm_owner_in,
    },
    views::{BY_NAME_LABEL, qualified},
};
use machine_driver::{SameInstance, same_instance::by_last_segment};

/// The simulated provider ends its ids in what names the instance.
fn same_instance(machine: &Machine, id: &str) -> SameInstance {
    by_last_segment(&machine.spec.provider_id, id)
}

impl Process {
    pub(super) fn see_machine(
        &self,
        machine: &Arc<Machine>,
        memory: &mut MachineMemory,
        pass: &Pass,
        now: Timestamp,
    ) -> Observation {
        let limits = self.binary.machines.limits_of(machine);
        let mut seen = Observation::of(Arc::clone(machine), limits, now);
        seen.class.creation = self.binary.creation;
        seen.node = self.node_of(machine, memory);
        memory.conditions_differ_since =
            conditions_differ_since(machine, &seen.node, memory.conditions_differ_since, now);
        memory.ailments = ailments(&seen.node, Sight::through(&self.nodes), &memory.ailments, now);
        memory.first_seen_deleting = first_seen_deleting(machine, memory.first_seen_deleting, now);
        seen.first_seen = memory.first_seen;
        seen.first_seen_deleting = memory.first_seen_deleting;
        seen.flow = memory.flow.clone();
        seen.vm_owner = vm_owner_in(machine, &self.views, &same_instance);
        seen.creation_unknown_since = memory.creation_unknown_since;
        seen.pause.clone_from(&memory.pause);
        seen.drain = pass.drain.clone();
        seen.permit = pass.permit;
        seen.node_source = pass.node_source;
        seen.troubles.clone_from(&pass.troubles);
        seen.ailments.clone_from(&memory.ailments);
        seen.conditions_differ_since = memory.conditions_differ_since;
        seen.vm_check = memory.vm_check;
        seen.siblings = self.siblings(machine, &seen, now);
        seen
    }

    fn node_of(&self, machine: &Machine, memory: &MachineMemory) -> NodeView {
        let name = machine.labels().get(label::NODE).map(String::as_str).unwrap_or_default();
        if name.is_empty() {
            let candidate = candidate(machine, &self.nodes, &self.views, &same_instance);
            let namesake = memory.flow.vm.as_ref().and_then(|vm| {
                let node = self.nodes.get(&ObjectKey::cluster_scoped(&vm.identity.node_name))?;
                Some(Namesake {
                    instance: by_last_segment(&vm.identity.provider_id, provider_id(&node)),
                    created: node.metadata.creation_timestamp.as_ref().map(|time| time.0),
                })
            });
            return NodeView::NotLinked { candidate: candidate.map(|node| node.name_any()), namesake };
        }
        match self.nodes.get(&ObjectKey::cluster_scoped(name)) {
            None if self.vanished.contains(&ObjectKey::of(machine)) => NodeView::Vanished,
            None => NodeView::Absent,
            Some(node) => whose(owner_in(machine, &node, &self.views, &same_instance), node),
        }
    }

    fn siblings(&self, machine: &Machine, seen: &Observation, now: Timestamp) -> Option<Vec<Sibling>> {
        let HealthTimeout::After(limit) = seen.limits.health else { return None };
        let current = &machine.status.current_status;
        let began = current.last_update_time.as_ref().map(|began| began.0)?;
        if current.phase != MachinePhase::Unknown || since(now, began) <= limit {
            return None;
        }
        let group = machine.labels().get(label::NAME)?;
        let all = self.views.machines.by_index(BY_NAME_LABEL, &qualified("ns", group));
        let others = all.iter().filter(|sibling| sibling.metadata.uid != machine.metadata.uid);
        Some(
            others
                .map(|sibling| Sibling {
                    name: sibling.name_any(),
                    phase: sibling.status.current_status.phase.as_str().to_owned(),
                    preserved: sibling.status.current_status.preserve_expiry_time.is_some(),
                })
                .collect(),
        )
    }
}
