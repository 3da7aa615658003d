//! The properties that must hold for a single machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;

use super::{Checking, Checks};
use crate::{
    api::{Api, Kind, Object},
    cloud::{Cloud, as_the_node_has_it, code_of, machine_of},
    nodes::{is_ready, is_strange},
    played::{cloud::PendingCall, target::node_of},
    process::later,
};
use controller_runtime::{queue::Outcome, snapshot::Snapshot, store::Store};
use machine_api::{
    names::{finalizer, label, machine_condition, stage_text, taint},
    v1alpha1::{Machine, MachinePhase, controller_of},
};
use machine_controllers::{
    machine::{
        observation::{Answer, Call, Freeze, Observation},
        plan::{
            Effect, Plan,
            reporting::{REPORTED_AFTER, reported_reason},
        },
        settings::MachineSettings,
    },
    snapshots::{MachineSnapshot, NodeSnapshot},
};
use machine_driver::{Code, MachineRequest};

/// The records of the machines, by UID.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Machines whose VM is gone according to the provider.
    ended: BTreeSet<String>,
    /// Machines whose last initialisation failed.
    uninitialised: BTreeSet<String>,
    /// The rule of passes that do nothing over a machine, and since when.
    still: BTreeMap<String, (&'static str, Timestamp)>,
    /// The rules of the last decisions about machines.
    rules: BTreeMap<String, &'static str>,
}

/// Whether faults may occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// No fault occurs in this pass.
    Fair,
    /// A fault occurs.
    Foul,
}

/// A machine and its Node before a write of their controller.
#[derive(Clone, Debug)]
pub struct Before {
    machine: Option<Arc<Machine>>,
    node: Option<Arc<Node>>,
}

impl Before {
    /// The object with this kind and name.
    pub fn of<K: Kind>(api: &Api, name: &str) -> Self {
        let is = |place| place == K::PLACE;
        Self {
            machine: api.machines.get(name).filter(|_| is(Machine::PLACE)).cloned(),
            node: api.nodes.get(name).filter(|_| is(Node::PLACE)).cloned(),
        }
    }
}

impl Checks {
    /// Checks a decision about a machine before it is carried out.
    pub fn life_goes_on(&mut self, seen: &Observation, plan: &Plan, api: &Api) {
        if self.checking == Checking::Off || !self.leads {
            return;
        }
        let uid = seen.machine.uid().to_owned();
        self.lives.rules.insert(uid.clone(), plan.rule);
        let truth =
            api.machines.get(seen.name()).filter(|machine| machine.metadata.uid.as_deref() == Some(seen.machine.uid()));
        let ends = truth.is_none_or(|machine| machine.metadata.deletion_timestamp.is_some());
        let starts = plan.effects.iter().find_map(|effect| match effect {
            Effect::Start(call) => Some(*call),
            _ => None,
        });
        if let (Some(call), Some(running)) = (starts, seen.flow.in_flight) {
            self.violated("a driver call begins while another one is under way", || {
                format!("{call:?} during {running:?} for {}", seen.name())
            });
        }
        if self.silent && !ends && starts.is_some() {
            self.violated("a driver is called while the controller is frozen", || {
                format!("{starts:?} for {}", seen.name())
            });
        }
        if let Some(truth) = truth {
            self.explains_itself(seen, plan, truth);
        }
    }

    /// Checks that a machine is in its intended state or reports a reason, after passes that have done nothing for a
    /// long time.
    fn explains_itself(&mut self, seen: &Observation, plan: &Plan, truth: &Machine) {
        let uid = uid(truth);
        let does_nothing = plan.effects.is_empty() && plan.next.ends_pass();
        let is_seen = truth.metadata.resource_version.as_deref() == seen.machine.resource_version();
        let known = self.lives.still.get(&uid).filter(|(rule, _)| does_nothing && is_seen && *rule == plan.rule);
        let since = known.map_or(seen.now, |(_, since)| *since);
        self.lives.still.insert(uid, (plan.rule, since));
        let truth_seen = MachineSnapshot::from(truth.clone());
        let told = reported_reason(&truth_seen);
        let ends = truth.metadata.deletion_timestamp.is_some();
        if !does_nothing || !is_seen {
            return;
        }
        let patience = 2 * REPORTED_AFTER;
        let is_settled = *seen.phase() == MachinePhase::Running && !ends;
        if seen.has_finalizer() && !is_settled && told.is_none() && later(since, patience) < seen.now {
            let stage = &truth.status.last_operation.description;
            self.violated("a machine waits and does not say why", || {
                format!("{} in {:?} ({stage:?}) by {}", seen.name(), seen.phase(), plan.rule)
            });
        }
        let says_frozen = told == Some(machine_condition::REASON_FROZEN);
        if says_frozen && !ends && seen.freeze == Freeze::Flowing {
            self.violated("a machine says that it is frozen and is not", || seen.name().to_owned());
        }
    }

    /// Checks the outcome of a pass over a machine.
    pub fn pass_has_ended(&mut self, outcome: &Outcome) {
        if let Outcome::Retry(text) = outcome
            && text.contains("did not come to an end")
        {
            self.violated("a pass goes in circles", || text.clone());
        }
    }

    /// Checks before a driver is called to create a VM for this machine.
    pub(crate) fn life_begins(&mut self, api: &Api, request: &MachineRequest) {
        if self.checking == Checking::Off || !self.leads {
            return;
        }
        let name = request.machine.name_any();
        let truth = api.machines.get(&name).filter(|machine| machine.metadata.uid == request.machine.metadata.uid);
        let phase = truth.map(|machine| &machine.status.current_status.phase);
        let ends = truth.is_none_or(|machine| machine.metadata.deletion_timestamp.is_some());
        // The machine may have changed while the pass was held up.
        if self.begun && ends && phase.is_none_or(|phase| *phase == MachinePhase::Unset) {
            self.violated("a VM is made for a machine that is being deleted and never had one", || name.clone());
        }
        let Some(truth) = truth else { return };
        let is_owned = controller_of(&truth.metadata).is_some() || controller_of(&request.machine.metadata).is_some();
        if phase == Some(&MachinePhase::Failed) && is_owned {
            self.violated("a Failed machine that a set replaces makes a VM", || name.clone());
        }
        if !truth.finalizers().iter().any(|one| one == finalizer::MACHINE) {
            self.violated("a VM is made for a machine without our finalizer", || name.clone());
        }
    }

    /// Records the provider's answer to a driver call, whether or not a process receives it.
    pub fn provider_answers(&mut self, call: &PendingCall, answer: &Answer) {
        let uid = call.machine.uid.clone();
        match (call.call, code_of(answer)) {
            (Call::Delete, None | Some(Code::NotFound)) => drop(self.lives.ended.insert(uid)),
            (Call::Initialize, None) => drop(self.lives.uninitialised.remove(&uid)),
            (Call::Initialize, Some(_)) => drop(self.lives.uninitialised.insert(uid)),
            _ => {}
        }
    }

    /// Checks after the machine controller has written, or tried to write, an object.
    pub fn life_was_written(&mut self, api: &Api, cloud: &Cloud, before: &Before, now: Timestamp, weather: Weather) {
        if self.checking == Checking::Off || !self.leads {
            return;
        }
        // A machine that does not know its instance can't compare instances; then names decide (decisions.md 44).
        let knows_instance = |node: &Node| {
            api.machines.get(machine_of(&node.name_any())).is_none_or(|machine| !machine.spec.provider_id.is_empty())
        };
        if let Some(node) = &before.node
            && is_strange(node)
            && knows_instance(node)
            && api.nodes.get(&node.name_any()) != Some(node)
        {
            self.violated("a Node of something else is touched", || node.name_any());
        }
        let Some(before) = &before.machine else { return };
        match api.machines.get(&before.name_any()) {
            Some(after) if after.metadata.uid == before.metadata.uid => {
                self.status_was_written(api, cloud, (before, after), now);
            }
            _ => self.life_has_ended(api, cloud, before, now, weather),
        }
    }

    fn status_was_written(&mut self, api: &Api, cloud: &Cloud, (before, after): (&Machine, &Machine), now: Timestamp) {
        let name = before.name_any();
        let (was, is) = (&before.status.current_status, &after.status.current_status);
        let uid = uid(before);
        let rule = self.lives.rules.get(&uid).copied().unwrap_or_default();
        let lasts = was.preserve_expiry_time.as_ref().is_some_and(|end| end.0 > now);
        let ended = is.preserve_expiry_time.is_none() && is.phase != MachinePhase::Terminating;
        if lasts && ended && !rule.contains("preserv") {
            self.violated("a write of something else ends a preservation", || format!("{name} by {rule}"));
        }
        let is_ill = matches!(was.phase, MachinePhase::Unknown | MachinePhase::Pending);
        if is_ill && is.phase == MachinePhase::Failed {
            // The Node may have recovered while the pass was held up.
            if self.begun && names_its_node(after) && has_ready_node(api, cloud, after) {
                self.violated("a healthy machine is given up", || format!("{name} by {rule}"));
            }
            let adopted = machine_condition::REASON_WAITING_FOR_NODE_OF_ADOPTED_VM;
            let is_adopted = before.status.machine_conditions.iter().any(|one| one.reason == adopted);
            let timeout = MachineSettings::default().creation_timeout;
            let has_time = was.last_update_time.as_ref().is_some_and(|began| later(began.0, timeout) > now);
            if was.phase == MachinePhase::Pending && is_adopted && has_time {
                self.violated("a VM that was taken over is given up before its time", || format!("{name} by {rule}"));
            }
        }
        let was_recorded = before.status.last_operation.description.contains(stage_text::INITIALIZE_VM);
        let goes_on = was.phase != MachinePhase::Pending && is.phase == MachinePhase::Pending;
        if goes_on && was_recorded && self.lives.uninitialised.contains(&uid) {
            self.violated("an initialisation that failed is not repeated", || format!("{name} by {rule}"));
        }
    }

    /// Checks after the machine controller has removed its finalizer from a machine.
    fn life_has_ended(&mut self, api: &Api, cloud: &Cloud, machine: &Machine, now: Timestamp, weather: Weather) {
        let name = machine.name_any();
        let own = machine.spec.provider_id.as_str();
        if !self.lives.ended.contains(&uid(machine)) {
            self.violated("a machine is let go before the driver has said that its VM is gone", || name.clone());
        }
        if !own.is_empty() && cloud.shown(now).any(|vm| vm.provider_id == own) {
            self.violated("a machine is gone and its VM is not", || format!("{name}: {own}"));
        }
        // If that call was lost, it is unknown whether there was a Node.
        let is_its_own = |node: &&Arc<Node>| {
            !own.is_empty()
                && provider_id(node) == as_the_node_has_it(own)
                && (names_its_node(machine) || node.labels().get(label::MACHINE_NAME) == machine.metadata.name.as_ref())
        };
        if self.begun
            && weather == Weather::Fair
            && let Some(node) = api.nodes.values().find(is_its_own)
        {
            self.violated("the Node of a machine that is gone is left behind", || {
                format!("{name}: {}", node.name_any())
            });
        }
    }

    /// Checks that the machine controller may delete a machine.
    pub fn machine_is_deleted(&mut self, api: &Api, name: &str) {
        let Some(machine) = api.machines.get(name).filter(|_| self.checking == Checking::On) else { return };
        let was_deleted = |event: &crate::api::Event| {
            matches!(&event.object, Object::Node(gone) if machine_of(&gone.name_any()) == machine.name_any()
                && (event.gone || gone.metadata.deletion_timestamp.is_some()))
        };
        if !api.log.get(Node::PLACE).is_some_and(|log| log.iter().any(was_deleted)) {
            self.violated("a machine is deleted whose Node nobody has deleted", || name.to_owned());
        }
    }

    /// Checks that the machine controller may delete a Node.
    pub fn node_is_deleted(&mut self, api: &Api, name: &str) {
        let lives = |machine: &&Arc<Machine>| {
            machine.metadata.deletion_timestamp.is_none()
                && machine.labels().get(label::NODE).is_some_and(|node| node == name)
        };
        if self.checking == Checking::On
            && let Some(machine) = api.machines.values().find(lives)
        {
            self.violated("the Node of a living machine is deleted", || machine.name_any());
        }
    }

    /// Checks that a drain may evict or delete a pod; `view` is the store of Nodes of its process.
    pub fn pod_is_sent_away(&mut self, api: &Api, pod: &str, view: &Store<NodeSnapshot>) {
        let node = api.pods.get(pod).and_then(|pod: &Arc<Pod>| node_of(pod)).and_then(|node| api.nodes.get(node));
        let Some(node) = node.filter(|_| self.checking == Checking::On) else { return };
        let spec = node.spec.clone().unwrap_or_default();
        let is_kept = spec.taints.iter().flatten().any(|mark| mark.key == taint::PRESERVED);
        let takes_pods = spec.unschedulable != Some(true) && !is_kept;
        // A process with a late store can't know that a Node has registered again.
        let is_known = view.snapshot().iter().any(|seen| seen.uid() == Snapshot::uid(node));
        if takes_pods && is_known {
            self.violated("pods are evicted from a Node that takes new ones", || node.name_any());
        }
    }
}

fn uid(machine: &Machine) -> String {
    machine.metadata.uid.clone().unwrap_or_default()
}

fn provider_id(node: &Node) -> &str {
    node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default()
}

/// Whether a Node that is not in the store yet can be read by its name. The name is in the machine's label; without the
/// label it is unknown until the store has the Node and the machine is linked again.
fn names_its_node(machine: &Machine) -> bool {
    machine.labels().contains_key(label::NODE)
}

fn has_ready_node(api: &Api, cloud: &Cloud, machine: &Machine) -> bool {
    let vm = cloud.vms.get(&machine.spec.provider_id);
    let node = vm
        .and_then(|vm| api.nodes.get(&vm.node).filter(|node| provider_id(node) == as_the_node_has_it(&vm.provider_id)));
    node.is_some_and(|node| is_ready(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{history::NodeEvent, nodes};

    #[test]
    fn a_node_of_something_else_is_not_to_be_touched() {
        let (mut api, cloud, now) = (Api::default(), Cloud::default(), Timestamp::UNIX_EPOCH);
        let mut node = Node::default();
        node.metadata.name = Some("n".to_owned());
        api.create(&node, now).unwrap();
        let found = |api: &mut Api| {
            let mut checks = Checks { leads: true, ..Checks::default() };
            let before = Before::of::<Node>(api, "n");
            api.edit::<Node>("n", |node| drop(node.labels_mut().insert("touched".to_owned(), String::new())));
            checks.life_was_written(api, &cloud, &before, now, Weather::Fair);
            api.edit::<Node>("n", |node| node.labels_mut().clear());
            checks.violation.map(|violation| violation.rule)
        };
        assert_eq!(found(&mut api), None);
        nodes::happens(&mut api, &Cloud::default(), 0, NodeEvent::Supplanted, now);
        assert_eq!(found(&mut api), Some("a Node of something else is touched"));
    }
}
