//! Forecast of a rollout: runs the real decisions about deployments and sets on virtual time with the existing
//! machines.
//!
//! The model is simple: new machines become Running after a fixed time, deleted machines are gone after another, and no
//! call is lost. Equal questions always get equal answers. Source: spec/extension-apiserver §1.5.

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
    process::{Process, ProcessConfig, Work, later},
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

/// After this number of jumps in time without any event, the forecast assumes that nothing more will happen.
const MOST_IDLE_JUMPS: u32 = 24;
/// Maximum number of passes at one point of time; more would be an endless loop.
const MOST_PASSES: u32 = 1000;
/// The seed of all random values, so that equal questions get equal answers.
const SEED: u64 = 7;

/// The assumptions of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// Time from a machine's creation until it is Running.
    pub create: Duration,
    /// Time from a machine's deletion until it is gone.
    pub drain: Duration,
    /// Time from the end of the drain for an update in place until the agent has updated the Node.
    pub update: Duration,
    /// Every nth new machine fails; 0 means none.
    pub fail_every: u32,
}

impl Assumptions {
    /// The default assumptions.
    pub const fn usual() -> Self {
        Self {
            create: Duration::from_secs(180),
            drain: Duration::from_secs(300),
            update: Duration::from_secs(600),
            fail_every: 0,
        }
    }
}

/// The input of a forecast.
#[derive(Clone, Debug)]
pub struct Question {
    /// The deployment with its proposed changes.
    pub deployment: DeploymentSnapshot,
    /// Its sets, and the sets without a controller.
    pub sets: Vec<SetSnapshot>,
    /// Their machines.
    pub machines: Vec<MachineSnapshot>,
    /// The machines' Nodes.
    pub nodes: Vec<NodeSnapshot>,
    /// The time.
    pub now: Timestamp,
    /// Settings of rollouts from the command line.
    pub settings: DeploymentSettings,
    /// Settings of machines from the command line.
    pub machine_settings: MachineSettings,
    /// The assumptions of the model.
    pub assume: Assumptions,
    /// Maximum number of steps in the answer.
    pub most_steps: usize,
}

/// The changes of a set at one point of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The set.
    pub set: String,
    /// The wanted machines before.
    pub from: i32,
    /// The wanted machines after.
    pub to: i32,
    /// The number of machines that it creates.
    pub creates: usize,
    /// The machines that it deletes, in order.
    pub deletes: Vec<String>,
    /// The machines whose Nodes are selected for an update in place.
    pub updates: Vec<String>,
    /// The number of machines of the deployment that are not being deleted, afterwards.
    pub total: usize,
    /// The number of available machines, afterwards.
    pub available: usize,
    /// The time, from now on.
    pub at: Duration,
}

/// Why the rollout does not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The reason in CamelCase.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// The result of a forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The steps in order.
    pub steps: Vec<Step>,
    /// Maximum number of machines at the same time, including those being deleted.
    pub peak: usize,
    /// Minimum number of available machines.
    pub least_available: usize,
    /// The duration.
    pub took: Duration,
    /// Why the rollout does not complete, if so.
    pub stuck: Option<Stuck>,
    /// Why the forecast stops early, if it does.
    pub cut: Option<Cut>,
}

/// Why a forecast stops early. Its numbers then cover the time until that point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The maximum number of steps is reached.
    Steps,
    /// The computation took longer than allowed.
    Time,
}

/// Computes the forecast while `go_on` returns `true`.
pub fn forecast(question: &Question, go_on: &dyn Fn() -> bool) -> Forecast {
    let mut world = World::of(question);
    let mut idle = 0;
    while idle < MOST_IDLE_JUMPS {
        let happened = world.moment();
        idle = if happened || world.next_event().is_some() { 0 } else { idle + 1 };
        let too_many = world.forecast.steps.len() > question.most_steps;
        if too_many || !go_on() {
            world.forecast.steps.truncate(question.most_steps);
            world.forecast.cut = Some(if too_many { Cut::Steps } else { Cut::Time });
            return world.forecast;
        }
        let Some(next) = world.next() else { break };
        world.now = next.max(world.now);
    }
    world.forecast.stuck = world.stuck();
    world.forecast
}

/// The next event of a machine.
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
    /// The next events of machines, with their times.
    fates: BTreeMap<String, (Timestamp, Fate)>,
    /// Machines whose deletion has been processed.
    deleted: BTreeSet<String>,
    /// Machines that have been processed.
    known: BTreeSet<String>,
    /// The wanted machines of each set at the last step.
    wanted: BTreeMap<String, i32>,
    /// The position in the log of machines.
    read: usize,
    made: u32,
    updates: Updates,
    forecast: Forecast,
}

impl<'a> World<'a> {
    fn of(question: &'a Question) -> Self {
        let mut api = Api::default();
        api.put(MachineDeployment::clone(question.deployment.whole_object()));
        question.sets.iter().for_each(|set| api.put(MachineSet::clone(set.whole_object())));
        question.machines.iter().for_each(|machine| api.put(Machine::clone(machine.whole_object())));
        question.nodes.iter().for_each(|node| api.put(Node::clone(node.whole_object())));
        // A cordoned Node may also have pods that its drain has not moved yet.
        question.nodes.iter().for_each(|node| pods::put(&mut api, node.name(), question.now));
        classes::make_named(&mut api, question.now);
        api.begin();
        let config = ProcessConfig {
            rollouts: question.settings,
            machines: question.machine_settings.clone(),
            pods_end_in: question.assume.drain,
            ..ProcessConfig::default()
        };
        let process = Process::start(&api, question.now, SEED, &config);
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
            forecast: Forecast {
                steps: Vec::new(),
                peak: 0,
                least_available: usize::MAX,
                took: Duration::ZERO,
                stuck: None,
                cut: None,
            },
        };
        for machine in &question.machines {
            world.schedule_fate(machine.whole_object());
        }
        world.count();
        world
    }

    /// Schedules the next event of a machine that exists at the start.
    fn schedule_fate(&mut self, machine: &Machine) {
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
            // A machine that takes longer than assumed gets the whole time again.
            let left = if age < create { create.saturating_sub(age) } else { create };
            self.fates.insert(name, (later(self.now, left), Fate::Runs));
        }
    }

    /// Carries out everything that is due now and records the steps; returns whether anything happened.
    fn moment(&mut self) -> bool {
        self.apply_due_fates();
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
                // There are no faults, so the process lives.
                let mut cloud = Cloud::default();
                let calls = &mut 0;
                let scene =
                    Scene { api: &mut self.api, cloud: &mut cloud, checks: &mut checks, trace: &mut trace, calls };
                let _ = run(scene, &mut self.process, (job, Work::Pass), around);
            }
        }
        // Agents that can start now do so.
        self.let_agents_work();
        self.record_steps()
    }

    /// Carries out the events of machines that are due.
    fn apply_due_fates(&mut self) {
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
        // An existing Node is fine.
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
            // The Node may be gone already.
            let _ = self.api.delete::<Node>(&node, None, None, self.now);
        }
        self.api.edit::<Machine>(name, |machine| machine.metadata.finalizers = None);
    }

    /// Reads the effects of the controllers, schedules their consequences, and records the steps.
    fn record_steps(&mut self) -> bool {
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
                self.forecast.steps.push(step);
                happened = true;
            }
            self.wanted.insert(set, to);
        }
        if !events.is_empty() {
            self.forecast.took = at;
        }
        happened
    }

    /// The number of machines that are not being deleted, and how many of them are available.
    fn count(&mut self) -> (usize, usize) {
        let availability = Availability::of(self.question.settings.availability, &self.question.deployment);
        let machines = self.api.machines.values();
        let staying: Vec<_> = machines.filter(|machine| !is_terminating(machine)).collect();
        let available = staying
            .iter()
            .filter(|machine| availability.holds(&MachineSnapshot::from(Arc::clone(machine)), self.now))
            .count();
        self.forecast.peak = self.forecast.peak.max(self.api.machines.len());
        self.forecast.least_available = self.forecast.least_available.min(available);
        (staying.len(), available)
    }

    fn next(&self) -> Option<Timestamp> {
        let rollouts =
            self.process.next_due_of(|of| matches!(of, Controller::MachineDeployment | Controller::MachineSet));
        // Drains check their pods every few seconds. If another event is scheduled, they wait for it.
        let machines = || self.process.next_due_of(|of| of == Controller::Machine);
        self.next_event().map_or_else(machines, Some).into_iter().chain(rollouts).min()
    }

    /// The time of the next event.
    fn next_event(&self) -> Option<Timestamp> {
        let fate = self.fates.values().map(|(at, _)| *at).min();
        let pods = pods::next_end(&self.api, self.question.assume.drain);
        [fate, pods, self.next_agent()].into_iter().flatten().min()
    }

    /// Why the rollout is not complete although nothing happens any more.
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
