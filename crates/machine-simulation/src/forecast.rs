//! What a rollout would do: the decisions of deployments and sets, on virtual time, over the machines that there are.
//!
//! The world is plain: machines become Running after a while, deleted ones are gone after another, and nothing is lost.
//! The same question gets the same answer, whoever asks and when. Source: spec/extension-apiserver §1.5.

mod in_place;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use self::in_place::Updates;
use super::{
    api::{Api, KINDS, Object},
    calls::Around,
    checks::Checks,
    classes,
    cloud::Cloud,
    facts::is_terminating,
    nodes::{Readiness, set_ready},
    pods,
    process::{Binary, Process, Work, later},
    trace::Trace,
    world::{Scene, run},
};
use controller_runtime::{
    key::ObjectKey,
    snapshot::{Snapshot, Whole},
};
use machine_api::{
    names::{annotation, label},
    v1alpha1::{
        LastOperation, Machine, MachineDeployment, MachinePhase, MachineSet, OperationState, OperationType,
        controller_of,
    },
};
use machine_controllers::{
    deployment::{
        availability::Availability, fleet::Fleet, observe::DeploymentObservation, settings::DeploymentSettings, waits,
    },
    loops::Controller,
    machine::settings::MachineSettings,
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot},
};

/// Jumps in time without anything happening, after which nothing is expected to happen any more.
const MOST_IDLE_JUMPS: u32 = 24;
/// Passes at one moment; more would be a circle.
const MOST_PASSES: u32 = 1000;
/// All that is drawn is drawn from here, so that equal questions get equal answers.
const SEED: u64 = 7;

/// How the world goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// From a machine's creation until it runs.
    pub create: Duration,
    /// From a machine's deletion until it is gone.
    pub drain: Duration,
    /// From a Node that is drained for its update in place until its agent has updated it.
    pub update: Duration,
    /// Every so manieth new machine fails; 0: none.
    pub fail_every: u32,
}

impl Assumptions {
    /// What is assumed unless said otherwise.
    pub const fn usual() -> Self {
        Self {
            create: Duration::from_secs(180),
            drain: Duration::from_secs(300),
            update: Duration::from_secs(600),
            fail_every: 0,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The deployment as it is to be.
    pub deployment: DeploymentSnapshot,
    /// Its sets, and those that nobody controls.
    pub sets: Vec<SetSnapshot>,
    /// Their machines.
    pub machines: Vec<MachineSnapshot>,
    /// The machines' Nodes.
    pub nodes: Vec<NodeSnapshot>,
    /// The time.
    pub now: Timestamp,
    /// What the command line says about rollouts.
    pub settings: DeploymentSettings,
    /// What it says about machines.
    pub machine_settings: MachineSettings,
    /// How the world goes on.
    pub assume: Assumptions,
    /// More steps are not told.
    pub most_steps: usize,
}

/// What happens to a set at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The set.
    pub set: String,
    /// Machines it wanted.
    pub from: i32,
    /// Machines it wants.
    pub to: i32,
    /// Machines that it makes.
    pub creates: usize,
    /// Machines that it deletes, in this order.
    pub deletes: Vec<String>,
    /// Machines whose Nodes are picked for their update in place.
    pub updates: Vec<String>,
    /// Machines of the deployment that are not being deleted, afterwards.
    pub total: usize,
    /// Those that a rollout counts on, afterwards.
    pub available: usize,
    /// When, from now on.
    pub at: Duration,
}

/// Why it does not come to an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// In one word in CamelCase.
    pub reason: &'static str,
    /// In a sentence.
    pub message: String,
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Step by step.
    pub steps: Vec<Step>,
    /// Most machines at once, those that are being deleted included.
    pub peak: usize,
    /// Least machines that a rollout counts on.
    pub least_available: usize,
    /// How long it takes.
    pub took: Duration,
    /// Why it does not come to an end.
    pub stuck: Option<Stuck>,
    /// Why it ends before its end, if it does.
    pub cut: Option<Cut>,
}

/// Why a forecast ends before its end. What it counts is then what happens until there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// There are more steps than were asked for.
    Steps,
    /// It took longer to compute than was allowed.
    Time,
}

/// Tells what would happen, for as long as `go_on` allows.
pub fn forecast(question: &Question, go_on: &dyn Fn() -> bool) -> Forecast {
    let mut world = World::of(question);
    let mut idle = 0;
    while idle < MOST_IDLE_JUMPS {
        let happened = world.moment();
        idle = if happened || world.next_happening().is_some() { 0 } else { idle + 1 };
        let too_many = world.told.steps.len() > question.most_steps;
        if too_many || !go_on() {
            world.told.steps.truncate(question.most_steps);
            world.told.cut = Some(if too_many { Cut::Steps } else { Cut::Time });
            return world.told;
        }
        let Some(next) = world.next() else { break };
        world.now = next.max(world.now);
    }
    world.told.stuck = world.stuck();
    world.told
}

/// What the world does to a machine, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    Fails,
    Goes,
}

struct World<'a> {
    question: &'a Question,
    key: ObjectKey,
    api: Api,
    process: Process,
    now: Timestamp,
    /// What is to happen to machines.
    fates: BTreeMap<String, (Timestamp, Fate)>,
    /// Machines whose deletion has been seen.
    deleted: BTreeSet<String>,
    /// Machines that have been seen.
    known: BTreeSet<String>,
    /// Wanted machines by set, as last told.
    wanted: BTreeMap<String, i32>,
    /// How much of the machines' log has been read.
    read: usize,
    made: u32,
    updates: Updates,
    told: Forecast,
}

impl<'a> World<'a> {
    fn of(question: &'a Question) -> Self {
        let mut api = Api::default();
        api.put(MachineDeployment::clone(question.deployment.whole_object()));
        question.sets.iter().for_each(|set| api.put(MachineSet::clone(set.whole_object())));
        question.machines.iter().for_each(|machine| api.put(Machine::clone(machine.whole_object())));
        question.nodes.iter().for_each(|node| api.put(Node::clone(node.whole_object())));
        // A cordoned Node, too, may have pods that its drain has not moved yet.
        question.nodes.iter().for_each(|node| pods::put(&mut api, node.name(), question.now));
        classes::make_named(&mut api, question.now);
        api.begin();
        let binary = Binary {
            rollouts: question.settings,
            machines: question.machine_settings.clone(),
            pods_end_in: question.assume.drain,
            ..Binary::default()
        };
        let process = Process::start(&api, question.now, SEED, &binary);
        let mut world = Self {
            question,
            key: question.deployment.key(),
            wanted: api.sets.values().map(|set| (set.name_any(), set.spec.replicas)).collect(),
            known: api.machines.keys().cloned().collect(),
            deleted: BTreeSet::new(),
            api,
            process,
            now: question.now,
            fates: BTreeMap::new(),
            read: 0,
            made: 0,
            updates: Updates::default(),
            told: Forecast {
                steps: Vec::new(),
                peak: 0,
                least_available: usize::MAX,
                took: Duration::ZERO,
                stuck: None,
                cut: None,
            },
        };
        for machine in &question.machines {
            world.foresee(machine.whole_object());
        }
        world.count();
        world
    }

    /// What becomes of a machine that is there at the beginning.
    fn foresee(&mut self, machine: &Machine) {
        let Assumptions { create, drain, .. } = self.question.assume;
        let name = machine.name_any();
        if machine.metadata.deletion_timestamp.is_some() {
            self.deleted.insert(name.clone());
            self.fates.insert(name, (later(self.now, drain), Fate::Goes));
            return;
        }
        let phase = &machine.status.current_status.phase;
        if matches!(phase, MachinePhase::Unset | MachinePhase::Pending | MachinePhase::CrashLoopBackOff) {
            let age = machine.creation_timestamp().map(|created| self.now.duration_since(created.0));
            let age = age.and_then(|age| Duration::try_from(age).ok()).unwrap_or_default();
            // One that takes longer than assumed takes as long again.
            let left = if age < create { create.saturating_sub(age) } else { create };
            self.fates.insert(name, (later(self.now, left), Fate::Runs));
        }
    }

    /// Lets everything happen that is due now, and tells it; whether anything did.
    fn moment(&mut self) -> bool {
        self.fulfil();
        pods::end(&mut self.api, self.question.assume.drain, self.now);
        self.let_agents_work();
        for _ in 0..MOST_PASSES {
            for kind in 0..KINDS {
                self.process.watch(&self.api, kind, usize::MAX, self.now);
            }
            let due = self.process.due(self.now);
            if due.is_empty() {
                break;
            }
            for job in due {
                if !self.is_played(&job) {
                    self.process.begins(&job);
                    continue;
                }
                let (mut checks, mut trace) = (Checks::none(), Trace::default());
                let around = Around::calm(self.now);
                // Nothing goes wrong, so that it lives.
                let mut cloud = Cloud::default();
                let calls = &mut 0;
                let scene =
                    Scene { api: &mut self.api, cloud: &mut cloud, checks: &mut checks, trace: &mut trace, calls };
                let _ = run(scene, &mut self.process, (job, Work::Pass), around);
            }
        }
        // Those that may begin now take their time from now on.
        self.let_agents_work();
        self.tell()
    }

    /// What was to happen to machines by now.
    fn fulfil(&mut self) {
        let due: Vec<(String, Fate)> = self
            .fates
            .iter()
            .filter(|(_, (at, _))| *at <= self.now)
            .map(|(name, (_, fate))| (name.clone(), *fate))
            .collect();
        for (name, fate) in due {
            self.fates.remove(&name);
            match fate {
                Fate::Runs => self.joins(&name),
                Fate::Fails => self.fails(&name),
                Fate::Goes => self.goes(&name),
            }
        }
    }

    fn joins(&mut self, name: &str) {
        let now = self.now;
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        set_ready(&mut node, Readiness::Ready, now);
        // One that is there already is as it is.
        let _ = self.api.create(&node, now);
        self.api.edit::<Machine>(name, |machine| {
            machine.labels_mut().entry(label::NODE.to_owned()).or_insert_with(|| name.to_owned());
            let annotations = machine.annotations_mut();
            annotations.entry(annotation::MACHINE_PRIORITY.to_owned()).or_insert_with(|| "3".to_owned());
            phase(machine, MachinePhase::Running, OperationState::Successful, now);
            machine.status.conditions = vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(Time(now)),
                ..NodeCondition::default()
            }];
        });
    }

    fn fails(&mut self, name: &str) {
        let now = self.now;
        self.api.edit::<Machine>(name, |machine| phase(machine, MachinePhase::Failed, OperationState::Failed, now));
    }

    fn goes(&mut self, name: &str) {
        let node = self.api.get::<Machine>(name).and_then(|machine| machine.labels().get(label::NODE).cloned());
        if let Some(node) = node {
            self.api.edit::<Node>(&node, |node| node.metadata.finalizers = None);
            // It may be gone already.
            let _ = self.api.delete::<Node>(&node, None, None, self.now);
        }
        self.api.edit::<Machine>(name, |machine| machine.metadata.finalizers = None);
    }

    /// Reads what the controllers have done, decides what becomes of it, and tells it.
    fn tell(&mut self) -> bool {
        let mut creates: BTreeMap<String, usize> = BTreeMap::new();
        let mut deletes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let events = self.api.log[0].get(self.read..).unwrap_or_default().to_vec();
        self.read = self.api.log[0].len();
        for event in &events {
            let Object::Machine(machine) = &event.object else { continue };
            let name = machine.name_any();
            let set = || controller_of(&machine.metadata).map(|owner| owner.name.clone()).unwrap_or_default();
            if self.known.insert(name.clone()) {
                *creates.entry(set()).or_default() += 1;
                self.made = self.made.saturating_add(1);
                let every = self.question.assume.fail_every;
                let fate = if every > 0 && self.made.is_multiple_of(every) { Fate::Fails } else { Fate::Runs };
                self.fates.insert(name.clone(), (later(self.now, self.question.assume.create), fate));
            }
            if machine.metadata.deletion_timestamp.is_some() && self.deleted.insert(name.clone()) {
                deletes.entry(set()).or_default().push(name.clone());
                self.fates.insert(name, (later(self.now, self.question.assume.drain), Fate::Goes));
            }
        }
        let (total, available) = self.count();
        let at = Duration::try_from(self.now.duration_since(self.question.now)).unwrap_or_default();
        let mut updates = self.newly_picked();
        let mut happened = !events.is_empty();
        let sets: BTreeSet<String> = self.wanted.keys().chain(self.api.sets.keys()).cloned().collect();
        for set in sets {
            let from = self.wanted.get(&set).copied().unwrap_or(0);
            let to = self.api.sets.get(&set).map_or(0, |set| set.spec.replicas);
            let step = Step {
                creates: creates.remove(&set).unwrap_or(0),
                deletes: deletes.remove(&set).unwrap_or_default(),
                updates: updates.remove(&set).unwrap_or_default(),
                set: set.clone(),
                from,
                to,
                total,
                available,
                at,
            };
            if from != to || step.creates > 0 || !step.deletes.is_empty() || !step.updates.is_empty() {
                self.told.steps.push(step);
                happened = true;
            }
            self.wanted.insert(set, to);
        }
        if !events.is_empty() {
            self.told.took = at;
        }
        happened
    }

    /// Machines that stay, and those that a rollout counts on.
    fn count(&mut self) -> (usize, usize) {
        let availability = Availability::of(self.question.settings.availability, &self.question.deployment);
        let machines = self.api.machines.values();
        let staying: Vec<_> = machines.filter(|machine| !is_terminating(machine)).collect();
        let available = staying
            .iter()
            .filter(|machine| availability.holds(&MachineSnapshot::from(Arc::clone(machine)), self.now))
            .count();
        self.told.peak = self.told.peak.max(self.api.machines.len());
        self.told.least_available = self.told.least_available.min(available);
        (staying.len(), available)
    }

    fn next(&self) -> Option<Timestamp> {
        let rollouts =
            self.process.next_due_of(|of| matches!(of, Controller::MachineDeployment | Controller::MachineSet));
        // Drains look at their pods every few seconds; while something is to happen, that is what they wait for.
        let machines = || self.process.next_due_of(|of| of == Controller::Machine);
        self.next_happening().map_or_else(machines, Some).into_iter().chain(rollouts).min()
    }

    /// When the world does something next.
    fn next_happening(&self) -> Option<Timestamp> {
        let fate = self.fates.values().map(|(at, _)| *at).min();
        let pods = pods::next_end(&self.api, self.question.assume.drain);
        [fate, pods, self.next_agent()].into_iter().flatten().min()
    }

    /// Why the rollout is not complete, now that nothing happens any more.
    fn stuck(&self) -> Option<Stuck> {
        let views = &self.process.views;
        let seen = DeploymentObservation::look_up(views, Some(&*self.process.nodes), &self.key, self.now)?;
        let seen = DeploymentObservation { settings: self.question.settings, ..seen };
        let fleet = Fleet::of(&seen);
        if fleet.is_complete() {
            return None;
        }
        let missing = || {
            let counted = fleet.sum(|set| set.kept_available);
            format!(
                "{counted} of {} wanted machines would be available, and nothing more would happen",
                seen.deployment.replicas()
            )
        };
        let stuck = |reason, message: String| Some(Stuck { reason, message });
        if seen.deployment.is_paused() {
            stuck("Paused", "rollouts are stopped: spec.paused is true".to_owned())
        } else if machine_controllers::deployment::decide::is_frozen(seen.deployment.metadata()) {
            stuck("Frozen", "the deployment has too many machines and is frozen".to_owned())
        } else {
            let explanation = waits::explain(&seen, &fleet).map(|text| text.trim().to_owned());
            if let Some(stuck) = self.awaits_picks(explanation.as_deref()) {
                return Some(stuck);
            }
            stuck("NoProgress", explanation.unwrap_or_else(missing))
        }
    }
}

fn phase(machine: &mut Machine, phase: MachinePhase, state: OperationState, now: Timestamp) {
    machine.status.current_status.phase = phase;
    machine.status.current_status.last_update_time = Some(Time(now));
    machine.status.last_operation = LastOperation {
        operation: OperationType::Create,
        state,
        last_update_time: Some(Time(now)),
        ..LastOperation::default()
    };
}

#[cfg(test)]
#[path = "forecast_tests.rs"]
mod tests;
