//! The cluster of these histories. It carries out the writes of the controllers and checks that they do nothing
//! forbidden.

use std::collections::BTreeMap;

use controller_runtime::{objects::Patch, snapshot::Snapshot};
use machine_api::v1alpha1::{MachinePhase, MachineSet, OrchestrationType};

use crate::{
    deployment::{
        decide::decide,
        observe::{DeploymentObservation, SetSeen},
        patches,
        plan::{Effect, Plan},
        settling::SettlingMemory,
        testing::*,
    },
    set::{
        self,
        counts::is_terminating,
        observe::SetObservation,
        testing::{at, now},
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot},
};

pub(super) struct World {
    pub(super) deployment: DeploymentSnapshot,
    pub(super) sets: Vec<SetSnapshot>,
    pub(super) machines: Vec<MachineSnapshot>,
    pub(super) nodes: BTreeMap<String, NodeSnapshot>,
    /// Plans that sets have decided on, with the generation that they observed, and have not carried out yet.
    pub(super) waiting: BTreeMap<usize, (i64, set::plan::Plan)>,
    /// The memory of the deployment controller about the sets.
    pub(super) settling: SettlingMemory,
    pub(super) made: i64,
    pub(super) deleted: i32,
    pub(super) least_available: Option<i32>,
}

/// The object after the patch; `None` if the API server refuses it.
fn patched<S>(object: &S, patch: &Patch) -> Option<S>
where
    S: Snapshot<Object: serde::de::DeserializeOwned> + serde::Serialize,
{
    let before = serde_json::to_value(object).unwrap();
    let mut after = before.clone();
    match patch {
        Patch::Merge(patch) => json_patch::merge(&mut after, patch),
        Patch::Json(operations) => {
            let patch: json_patch::Patch = serde_json::from_value(operations.clone().into()).unwrap();
            json_patch::patch(&mut after, &patch).ok()?;
        }
    }
    if after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"] {
        return None;
    }
    let next = before["metadata"]["resourceVersion"].as_str().unwrap_or("0").parse::<u64>().unwrap() + 1;
    after["metadata"]["resourceVersion"] = next.to_string().into();
    if after["spec"] != before["spec"] {
        let generation = before["metadata"]["generation"].as_i64().unwrap_or(1);
        after["metadata"]["generation"] = (generation + 1).into();
    }
    Some(S::of(serde_json::from_value(after).unwrap()))
}

pub(super) fn place_of(all: &[impl Snapshot], name: &str) -> Option<usize> {
    all.iter().position(|object| object.name() == name)
}

fn change<S>(all: &mut [S], name: &str, patch: &Patch) -> bool
where
    S: Snapshot<Object: serde::de::DeserializeOwned> + serde::Serialize,
{
    let Some(place) = place_of(all, name) else { return false };
    patched(&all[place], patch).map(|after| all[place] = after).is_some()
}

impl World {
    pub(super) fn new(replicas: i32, surge: i32, unavailable: i32, picks: OrchestrationType) -> Self {
        let mut deployment =
            deployment(replicas, 0, 0).with(|d| d.spec.strategy = in_place(surge, unavailable, picks)).build();
        deployment.spec.template.spec.class.name = "first".to_owned();
        let mut world = Self {
            deployment: deployment.into(),
            sets: Vec::new(),
            machines: Vec::new(),
            nodes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            settling: SettlingMemory::default(),
            made: 0,
            deleted: 0,
            least_available: None,
        };
        world.settle();
        world.check_end();
        world
    }

    pub(super) fn turn_to(&mut self, class: &str) {
        self.deployment.to_mut().spec.template.spec.class.name = class.to_owned();
    }

    pub(super) fn machines_of(&self, set: &SetSnapshot) -> Vec<MachineSnapshot> {
        let of = |machine: &&MachineSnapshot| machine.controller().is_some_and(|owner| owner.uid == set.uid());
        self.machines.iter().filter(of).cloned().collect()
    }

    /// The observation of the deployment controller. It also remembers the sets.
    fn observe(&mut self) -> DeploymentObservation {
        let seen = |set: &SetSnapshot| SetSeen { set: set.clone(), machines: self.machines_of(set) };
        let sets: Vec<SetSeen> = self.sets.iter().map(seen).collect();
        let unsettled = self.settling.take(&sets, now());
        let nodes = Some(self.nodes.clone());
        DeploymentObservation { sets, nodes, unsettled, ..DeploymentObservation::of(self.deployment.clone(), now()) }
    }

    pub(super) fn deployment_pass(&mut self, writes: usize, between: Option<usize>) -> bool {
        let plan = decide(&self.observe());
        let moved = self.carry_out(&plan, writes, between);
        // The status is written from the present sets, also after a write that was refused.
        self.observe();
        moved
    }

    fn carry_out(&mut self, plan: &Plan, writes: usize, between: Option<usize>) -> bool {
        for step in plan.steps.iter().take(writes) {
            if !self.write(&step.effect) {
                return true;
            }
            if let Some(index) = between {
                self.set_pass(index);
            }
        }
        !plan.steps.is_empty()
    }

    /// Carries out a write; returns whether the API server accepted it.
    pub(super) fn write(&mut self, effect: &Effect) -> bool {
        match effect {
            Effect::CreateSet(set) => {
                self.made += 1;
                let mut set = (**set).clone();
                set.metadata.uid = Some(format!("uid-{}", set.metadata.name.clone().unwrap()));
                set.metadata.resource_version = Some("1".to_owned());
                set.metadata.generation = Some(1);
                set.metadata.creation_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.made)));
                self.sets.push(set.into());
                true
            }
            Effect::ScaleSet { .. } | Effect::SyncSet { .. } | Effect::SetGrowth(..) | Effect::MarkTainted(..) => {
                match patches::of_set(effect, &self.deployment) {
                    Some((set, patch)) => change(&mut self.sets, &set.key.name, &patch),
                    None => true,
                }
            }
            Effect::MarkMachine { .. } | Effect::HandOver { .. } => match patches::of_machine(effect) {
                // A machine that is gone is left alone.
                Some((machine, patch)) => {
                    place_of(&self.machines, &machine.key.name).is_none()
                        || change(&mut self.machines, &machine.key.name, &patch)
                }
                None => true,
            },
            Effect::ChangeNode { node: seen, change, .. } => match self.nodes.get_mut(seen.name()) {
                None => true,
                Some(node) => match patches::of_node(change, seen) {
                    Some(patch) => patched(node, &patch).map(|after| *node = after).is_some(),
                    None => true,
                },
            },
            Effect::AddFinalizer | Effect::WriteRevision(_) | Effect::WriteTriggerList(_) | Effect::RollBack(_) => {
                match patches::of_deployment(effect, &self.deployment) {
                    Some((_, patch)) => {
                        let after = patched(&self.deployment, &patch);
                        after.map(|after| self.deployment = after).is_some()
                    }
                    None => true,
                }
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn set_plan(&mut self, index: usize) -> Option<(usize, set::plan::Plan)> {
        let index = index % self.sets.len().max(1);
        let set = self.sets.get(index).cloned()?;
        self.made += 1;
        let seen = SetObservation {
            machines: self.machines_of(&set),
            name_seed: u64::try_from(self.made).unwrap(),
            ..SetObservation::of(set, now())
        };
        Some((index, set::decide::decide(&seen)))
    }

    pub(super) fn set_pass(&mut self, index: usize) -> bool {
        // A set has one pass at a time: a pass that has started ends first.
        self.set_decides(index);
        let index = index % self.sets.len().max(1);
        let Some((observed, plan)) = self.waiting.remove(&index) else { return false };
        self.act_for_set(&plan);
        let status = &mut self.sets[index].to_mut().status;
        let is_news = status.observed_generation != observed;
        status.observed_generation = observed;
        is_news || !plan.steps.is_empty()
    }

    pub(super) fn set_decides(&mut self, index: usize) {
        let Some((index, plan)) = self.set_plan(index) else { return };
        let generation = self.sets[index].generation().unwrap_or_default();
        self.waiting.entry(index).or_insert((generation, plan));
    }

    pub(super) fn act_for_set(&mut self, plan: &set::plan::Plan) {
        for step in &plan.steps {
            match &step.effect {
                set::plan::Effect::CreateMachine(machine) => {
                    let name = machine.metadata.name.clone().unwrap();
                    if place_of(&self.machines, &name).is_some() {
                        continue;
                    }
                    let mut machine = (**machine).clone();
                    machine.metadata.uid = Some(format!("uid-{name}"));
                    machine.metadata.resource_version = Some("1".to_owned());
                    machine.status.current_status.phase = MachinePhase::Pending;
                    self.machines.push(machine.into());
                }
                set::plan::Effect::DeleteMachine { machine: target, version } => {
                    let Some(place) = place_of(&self.machines, &target.key.name) else { continue };
                    let machine = &self.machines[place];
                    // Refused when the machine has changed since the set chose it.
                    let is_as_seen = version.is_none() || version.as_deref() == machine.resource_version();
                    if is_terminating(machine) || !is_as_seen {
                        continue;
                    }
                    self.deleted += 1;
                    self.loses(place, MachinePhase::Terminating);
                }
                effect @ set::plan::Effect::SyncTemplate { .. } => {
                    // The part of a machine that comes from the template does not depend on the set.
                    let (machine, patch) =
                        set::patches::patch_of_machine(effect, &MachineSet::default().into()).unwrap();
                    change(&mut self.machines, &machine.key.name, &patch);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn staying(&self) -> i32 {
        i32::try_from(self.machines.iter().filter(|machine| !is_terminating(machine)).count()).unwrap()
    }
}
