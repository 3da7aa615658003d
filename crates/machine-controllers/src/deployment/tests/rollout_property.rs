//! Properties of rollouts, checked on histories of a simulated control cluster: decisions.md 39.
//!
//! The two real decisions run in any order, between machines that start, fail and are deleted in any order. The
//! properties: there are never more machines than wanted plus surge; no deletion of ours leaves fewer available
//! machines than the deployment allows; at the end there are exactly the wanted machines, all in the new set.

use proptest::prelude::*;

use crate::{
    deployment::{
        decide::decide,
        observe::{DeploymentObservation, SetSeen},
        patches,
        plan::Effect,
        testing::*,
    },
    set::{
        self,
        counts::{is_available, is_terminating},
        observe::SetObservation,
        testing::{at, now},
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
};
use controller_runtime::{objects::Patch, snapshot::Snapshot};
use machine_api::v1alpha1::MachinePhase;

/// The control cluster: the objects of the API server.
struct World {
    deployment: DeploymentSnapshot,
    sets: Vec<SetSnapshot>,
    machines: Vec<MachineSnapshot>,
    made: i64,
}

/// An event.
#[derive(Clone, Debug)]
enum Happens {
    Deployment,
    Set(usize),
    Starts(usize),
    Fails(usize),
    Ends(usize),
}

fn merged<S>(object: &S, patch: &Patch) -> S
where
    S: Snapshot<Object: serde::de::DeserializeOwned> + serde::Serialize,
{
    let Patch::Merge(patch) = patch else { panic!("{patch:?}") };
    let mut document = serde_json::to_value(object).unwrap();
    json_patch::merge(&mut document, patch);
    S::of(serde_json::from_value(document).unwrap())
}

impl World {
    fn machines_of(&self, set: &SetSnapshot) -> Vec<MachineSnapshot> {
        let of = |machine: &&MachineSnapshot| machine.controller().is_some_and(|owner| owner.uid == set.uid());
        self.machines.iter().filter(of).cloned().collect()
    }

    fn deployment_pass(&mut self) -> bool {
        let sets = self.sets.iter().map(|set| SetSeen { set: set.clone(), machines: self.machines_of(set) }).collect();
        let seen = DeploymentObservation { sets, ..DeploymentObservation::of(self.deployment.clone(), now()) };
        let plan = decide(&seen);
        for step in &plan.steps {
            match &step.effect {
                Effect::CreateSet(set) => {
                    self.made += 1;
                    let mut set = (**set).clone();
                    set.metadata.uid = Some(format!("uid-{}", set.metadata.name.clone().unwrap()));
                    set.metadata.creation_timestamp =
                        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.made)));
                    self.sets.push(set.into());
                }
                effect @ (Effect::ScaleSet { .. } | Effect::SyncSet { .. } | Effect::SetGrowth(..)) => {
                    let Some((target, patch)) = patches::of_set(effect, &self.deployment) else { continue };
                    for set in self.sets.iter_mut().filter(|set| set.name() == target.key.name) {
                        *set = merged(set, &patch);
                    }
                }
                effect @ (Effect::AddFinalizer | Effect::WriteRevision(_)) => {
                    if let Some((_, patch)) = patches::of_deployment(effect, &self.deployment) {
                        self.deployment = merged(&self.deployment, &patch);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        !plan.steps.is_empty()
    }

    fn set_pass(&mut self, index: usize, least_available: Option<i32>) -> bool {
        let Some(set) = self.sets.get(index).cloned() else { return false };
        self.made += 1;
        let seen = SetObservation {
            machines: self.machines_of(&set),
            name_seed: u64::try_from(self.made).unwrap(),
            ..SetObservation::of(set.clone(), now())
        };
        let plan = set::decide::decide(&seen);
        for step in &plan.steps {
            match &step.effect {
                set::plan::Effect::CreateMachine(machine) => {
                    let mut machine = (**machine).clone();
                    machine.metadata.uid = Some(format!("uid-{}", machine.metadata.name.clone().unwrap()));
                    machine.status.current_status.phase = MachinePhase::Pending;
                    self.machines.push(machine.into());
                }
                set::plan::Effect::DeleteMachine { machine: target, .. } => {
                    for machine in self.machines.iter_mut().filter(|machine| machine.name() == target.key.name) {
                        let was_available = is_available(machine);
                        machine.to_mut().status.current_status.phase = MachinePhase::Terminating;
                        if let (true, Some(least)) = (was_available, least_available) {
                            let left = self.machines.iter().filter(|m| is_available(m)).count();
                            assert!(i32::try_from(left).unwrap() >= least, "{left} available, at least {least} wanted");
                            break;
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        !plan.steps.is_empty()
    }

    fn nth(&mut self, index: usize, which: fn(&MachineSnapshot) -> bool) -> Option<usize> {
        let all: Vec<usize> = (0..self.machines.len()).filter(|place| which(&self.machines[*place])).collect();
        (!all.is_empty()).then(|| all[index % all.len()])
    }

    fn set_phase(&mut self, place: Option<usize>, phase: MachinePhase) {
        if let Some(place) = place {
            self.machines[place].to_mut().status.current_status.phase = phase;
        }
    }

    fn happens(&mut self, what: &Happens, least_available: Option<i32>) {
        match what {
            Happens::Deployment => {
                self.deployment_pass();
            }
            Happens::Set(index) => {
                let index = index % self.sets.len().max(1);
                self.set_pass(index, least_available);
            }
            Happens::Starts(index) => {
                let place = self.nth(*index, |machine| *machine.phase() == MachinePhase::Pending);
                self.set_phase(place, MachinePhase::Running);
            }
            Happens::Fails(index) => {
                let place = self.nth(*index, |machine| !is_terminating(machine));
                self.set_phase(place, MachinePhase::Failed);
            }
            Happens::Ends(index) => {
                if let Some(place) = self.nth(*index, is_terminating) {
                    self.machines.remove(place);
                }
            }
        }
    }

    fn staying(&self) -> i32 {
        i32::try_from(self.machines.iter().filter(|machine| !is_terminating(machine)).count()).unwrap()
    }

    /// Plays until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..500 {
            let mut moved = self.deployment_pass();
            for index in 0..self.sets.len() {
                moved |= self.set_pass(index, None);
            }
            let before = self.machines.len();
            self.machines.retain(|machine| !is_terminating(machine));
            moved |= before != self.machines.len();
            for machine in &mut self.machines {
                if *machine.phase() == MachinePhase::Pending {
                    machine.to_mut().status.current_status.phase = MachinePhase::Running;
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
        panic!("no rest after 500 rounds: {:?}", self.sets.iter().map(SetSnapshot::replicas).collect::<Vec<_>>());
    }

    fn check_end(&self) {
        let replicas = self.deployment.replicas();
        assert_eq!(self.staying(), replicas);
        let classes: std::collections::BTreeSet<&str> =
            self.machines.iter().map(|machine| machine.class_ref().name.as_str()).collect();
        assert!(classes.iter().all(|class| *class == self.deployment.template().spec.class.name), "{classes:?}");
    }
}

fn happenings(failures: bool) -> impl Strategy<Value = Vec<Happens>> {
    let fails = u32::from(failures);
    let one = prop_oneof![
        3 => Just(Happens::Deployment),
        4 => (0..8_usize).prop_map(Happens::Set),
        4 => (0..64_usize).prop_map(Happens::Starts),
        fails => (0..64_usize).prop_map(Happens::Fails),
        2 => (0..64_usize).prop_map(Happens::Ends),
    ];
    prop::collection::vec(one, 0..250)
}

fn at_rest(replicas: i32, surge: i32, unavailable: i32) -> World {
    let mut deployment = deployment(replicas, surge, unavailable).build();
    deployment.spec.template.spec.class.name = "first".to_owned();
    let mut world = World { deployment: deployment.into(), sets: Vec::new(), machines: Vec::new(), made: 0 };
    world.settle();
    world.check_end();
    world
}

fn turn_to(world: &mut World, class: &str) {
    world.deployment.to_mut().spec.template.spec.class.name = class.to_owned();
}

proptest! {
    #![proptest_config(a_quarter_of_the_cases())]

    #[test]
    fn a_rolling_update_keeps_its_limits_and_ends(
        replicas in 0..9_i32, surge in 0..4_i32, unavailable in 0..4_i32, again in any::<bool>(),
        first in happenings(false), second in happenings(false),
    ) {
        let mut world = at_rest(replicas, surge, unavailable);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        let least = (replicas - unavailable).max(0);
        for (class, history) in [("second", first), (if again { "third" } else { "first" }, second)] {
            turn_to(&mut world, class);
            for what in &history {
                world.happens(what, Some(least));
                prop_assert!(world.staying() <= replicas + surge, "{} machines", world.staying());
            }
        }
        world.settle();
        world.check_end();
    }

    #[test]
    fn a_rolling_update_with_failing_machines_never_has_too_many_and_ends(
        replicas in 0..9_i32, surge in 0..4_i32, unavailable in 0..4_i32, history in happenings(true),
    ) {
        let mut world = at_rest(replicas, surge, unavailable);
        turn_to(&mut world, "second");
        for what in &history {
            world.happens(what, None);
            prop_assert!(world.staying() <= replicas + surge, "{} machines", world.staying());
        }
        world.settle();
        world.check_end();
    }

    #[test]
    fn a_deployment_scaled_in_the_middle_of_a_rollout_ends(
        replicas in 0..9_i32, then in 0..9_i32, surge in 0..4_i32, unavailable in 0..4_i32,
        first in happenings(true), second in happenings(true),
    ) {
        let mut world = at_rest(replicas, surge, unavailable);
        turn_to(&mut world, "second");
        for what in &first {
            world.happens(what, None);
        }
        world.deployment.to_mut().spec.replicas = then;
        for what in &second {
            world.happens(what, None);
            prop_assert!(world.staying() <= replicas.max(then) + surge, "{} machines", world.staying());
        }
        world.settle();
        world.check_end();
    }
}
