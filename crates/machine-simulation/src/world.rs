//! The world of a history: clusters, cloud, processes and virtual time, and the effect of each step. [`calm`] brings it
//! to rest after the random steps.

mod calm;

use std::time::Duration;

use jiff::Timestamp;

use super::{
    api::{Api, Kind},
    calls::{Around, CallFault, Calls, End, PlannedFault},
    checks::{Checks, Edited},
    classes,
    cloud::{Cloud, Moment, code_of},
    edits,
    guards::Guard,
    history::{DroppedCalls, Edit, History, Luck, NodeEvent, Provider, Setup, Step},
    nodes,
    played::Lent,
    pods,
    process::{Job, Process, ProcessConfig, Work, later},
    refusals::Refused,
    trace::Trace,
    volumes::Volumes,
};
use controller_runtime::queue::Outcome;
use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::VolumeAttachment,
};
use machine_api::{
    names::{deployment_reason, machine_reason},
    v1alpha1::MachineClass,
};
use machine_controllers::loops::Pass;
use machine_controllers::{
    deployment::{AvailabilityRule, DeploymentSettings},
    machine::observation::CreationGuarantee,
};

/// The world of a history.
pub struct World {
    /// The API servers.
    pub api: Api,
    /// The provider.
    pub cloud: Cloud,
    /// The checks.
    pub checks: Checks,
    /// The trace.
    pub trace: Trace,
    /// The time.
    pub now: Timestamp,
    /// The start of the world.
    begin: Timestamp,
    leader: Process,
    /// A process that has lost the lease and does not know it yet.
    stale: Option<Process>,
    /// A process that waits for the lease with outdated stores; other processes list all objects at their start.
    standby: Option<Process>,
    /// The time until which budgets refuse evictions.
    evictions_from: Timestamp,
    volumes: Volumes,
    /// Whether users edit classes or Secrets. Otherwise, the finalizers of these objects need no passes.
    classes_change: bool,
    /// The time until which the target cluster does not answer.
    silent_until: Option<Timestamp>,
    /// The requests that are refused for hours.
    refused: Option<Refused>,
    seed: u64,
    config: ProcessConfig,
    without: Option<Guard>,
    processes: usize,
    /// Number of passes.
    pub passes: u64,
    /// Numbers of calls.
    pub calls: Calls,
    /// The planned fault.
    pub planned_fault: Option<PlannedFault>,
}

/// A world at rest, from which histories start.
#[derive(Clone)]
pub struct Start {
    /// The API servers.
    pub api: Api,
    /// The provider.
    pub cloud: Cloud,
    /// The time.
    pub now: Timestamp,
}

/// The start time of every world.
fn start_time() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Start {
    /// Brings a world with this deployment to rest.
    pub fn of(setup: Setup) -> (Self, Checks) {
        let mut api = Api::default();
        // The creation of the first object can't fail.
        let _ = api.create(&edits::deployment(setup), start_time());
        classes::make_missing(&mut api, start_time());
        let start = Self { api, cloud: Cloud::default(), now: start_time() };
        let nothing = History {
            seed: 1,
            setup,
            provider: Provider::default(),
            counts: AvailabilityRule::default(),
            volumes: 0,
            rounds: Vec::new(),
            without: None,
        };
        let mut world = World::new(&start, &nothing, Trace::default());
        // Secrets get our finalizer.
        world.classes_change = true;
        world.calm();
        let World { mut api, cloud, now, checks, .. } = world;
        api.begin();
        (Self { api, cloud, now }, checks)
    }
}

impl World {
    /// The world at the start of this history.
    pub fn new(start: &Start, history: &History, trace: Trace) -> Self {
        let mut api = start.api.clone();
        let volumes = Volumes { count: history.volumes, detach_from: start.now };
        // Pods are created, and their volumes are attached.
        volumes.go_on(&mut api, start.now);
        let creation = match history.provider {
            _ if history.without == Some(Guard::Intent) => CreationGuarantee::Idempotent,
            Provider::AnswersTheSame => CreationGuarantee::Idempotent,
            Provider::MakesAnother => CreationGuarantee::RecordIntent,
        };
        let rollouts = DeploymentSettings { availability: history.counts, ..DeploymentSettings::default() };
        let config = ProcessConfig { creation, rollouts, without: history.without, ..ProcessConfig::default() };
        let leader = Process::start(&api, start.now, history.seed, &config);
        let waits = matches!(history.without, Some(Guard::CatchUp | Guard::Confirmation));
        let standby = waits.then(|| Process::start(&api, start.now, !history.seed, &config));
        let mut checks = Checks::default();
        checks.leads = true;
        checks.at_rest(&api);
        Self {
            api,
            cloud: start.cloud.clone().run_by(history.provider),
            checks,
            trace,
            now: start.now,
            begin: start.now,
            leader,
            stale: None,
            standby,
            evictions_from: start.now,
            volumes,
            classes_change: history.changes_classes(),
            silent_until: None,
            refused: None,
            seed: history.seed,
            config,
            without: history.without,
            processes: 1,
            passes: 0,
            calls: Calls::default(),
            planned_fault: None,
        }
    }

    /// Whether a property is violated.
    pub fn is_violated(&self) -> bool {
        self.checks.violation.is_some()
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.at(self.begin, self.now, line);
    }

    /// Carries out a step.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Pass(pick, call_fault) => self.some_pass(pick, call_fault),
            Step::Begin(pick, calls) => {
                if let Some(job) = self.leader.one_due(self.now, pick) {
                    self.begin(job, calls);
                }
            }
            Step::GoOn(pick, call_fault) => {
                if let Some((job, pass)) = self.leader.take_open(pick) {
                    self.pass(job, Work::GoOn(pass), call_fault);
                }
            }
            Step::StalePass(pick) => self.stale_pass(pick),
            Step::Watch(kind, most) => {
                let kind = usize::from(kind);
                if kind == Node::PLACE && self.silent_until.is_some() {
                    return;
                }
                let seen = self.leader.watch(&self.api, kind, usize::from(most), self.now);
                if kind == Node::PLACE {
                    self.deliver_pods();
                }
                if seen > 0 {
                    let of = ["machines", "sets", "deployments", "nodes"].get(kind).copied().unwrap_or_default();
                    self.say(|| format!("the watch of {of} brings {seen} events"));
                }
            }
            Step::Wait(seconds) => self.wait_until(later(self.now, Duration::from_secs(u64::from(seconds)))),
            Step::Cloud(pick, luck) => self.end_some_call(pick, luck),
            Step::Node(pick, event) => self.node_event(pick, event),
            Step::VmVanishes(pick) => {
                if let Some(name) = self.cloud.loses_one(pick) {
                    nodes::goes_silent(&mut self.api, &name, self.now);
                    self.say(|| format!("the VM of node {name} is gone"));
                }
            }
            Step::Budget(minutes) => {
                self.evictions_from = later(self.now, Duration::from_secs(60 * u64::from(minutes)));
                self.say(|| format!("evictions are refused for {minutes} minutes"));
            }
            Step::Detaching(minutes) => {
                self.volumes.detach_from = later(self.now, Duration::from_secs(60 * u64::from(minutes)));
                self.say(|| format!("no volume is detached for {minutes} minutes"));
            }
            Step::NewPods => {
                pods::replace(&mut self.api, self.now);
                self.say(|| "the pods are replaced".to_owned());
                self.move_volumes();
                self.deliver_pods();
            }
            Step::Silence(minutes) => {
                self.silent_until = Some(later(self.now, Duration::from_secs(60 * u64::from(minutes))));
                self.say(|| format!("the target cluster is silent for {minutes} minutes"));
                self.freezes();
            }
            Step::UserData => {
                classes::change_user_data(&mut self.api);
                self.say(|| "a user changes the user data of all classes".to_owned());
                self.deliver_classes();
            }
            Step::Classes(edit) => {
                classes::apply(&mut self.api, edit, self.now);
                self.say(|| format!("a user writes on a class or Secret: {edit:?}"));
                self.deliver_classes();
            }
            Step::Finalizers(pick, call_fault) => {
                let mut due = self.finalizers_due();
                if let Some(place) = usize::from(pick).checked_rem(due.len()) {
                    self.pass(due.swap_remove(place), Work::Pass, call_fault);
                }
            }
            Step::Edit(edit) => {
                if edits::apply(&mut self.api, &mut self.checks, edit, self.now) {
                    self.say(|| edit.to_string());
                    let edited = if matches!(edit, Edit::Class(_)) { Edited::Template } else { Edited::Other };
                    self.checks.edited(&self.api, edited);
                }
            }
            Step::Refuse(refused, hours) => self.refuse(refused, hours),
            Step::Crash(dropped) => {
                self.say(|| "the process dies and another one starts".to_owned());
                self.drop_calls(dropped);
                self.restart();
            }
            Step::Usurped(dropped) => {
                self.say(|| "the process loses the lease to another one, and goes on".to_owned());
                self.loses_lease(dropped);
            }
        }
        self.checks.after_step(&self.api);
    }

    fn wait_until(&mut self, then: Timestamp) {
        while let Some((job, pass)) = self.leader.take_overdue(then) {
            self.pass(job, Work::GoOn(pass), None);
        }
        self.end_dropped(then);
        self.now = then.max(self.now);
        if self.silent_until.is_some_and(|end| end <= self.now) {
            self.thaws();
        }
        pods::end(&mut self.api, self.config.pods_end_in, self.now);
        pods::schedule(&mut self.api, self.now);
        self.move_volumes();
        self.deliver_pods();
        self.collect();
    }

    /// The leader notices that the target cluster does not answer.
    fn freezes(&mut self) {
        self.checks.silent = true;
        if self.without != Some(Guard::Silence) {
            self.leader.freezes();
        }
    }

    /// The target cluster answers again, if it did not before.
    fn thaws(&mut self) {
        if self.silent_until.take().is_some() {
            self.say(|| "the target cluster answers again".to_owned());
            self.checks.silent = false;
            self.leader.thaws(self.now);
        }
    }

    /// Starts due passes of the leader's collector; returns whether there were any.
    fn collect(&mut self) -> bool {
        let is_time = self.leader.collect(self.now, self.without);
        if is_time {
            self.tasks_go_on();
        }
        is_time
    }

    /// Polls the leader's tasks.
    fn tasks_go_on(&mut self) {
        let around = self.around(None);
        let (mut scene, leader) = self.scene();
        let (_, end, _) = polled(&mut scene, leader, None, around);
        self.leader.route(self.now);
        self.checks.after_step(&self.api);
        self.follows(end);
    }

    fn loses_lease(&mut self, dropped: DroppedCalls) {
        self.drop_calls(dropped);
        self.leader.lost.cancel();
        let old = self.restart();
        self.stale = Some(old);
        self.checks.leads = true;
    }

    fn restart(&mut self) -> Process {
        let seed = self.seed ^ (self.processes as u64) << 32;
        let listing = || Process::start(&self.api, self.now, seed, &self.config);
        let fresh = self.standby.take().unwrap_or_else(listing);
        self.processes += 1;
        let old = std::mem::replace(&mut self.leader, fresh);
        self.deliver_classes();
        if self.silent_until.is_some() {
            self.freezes();
        }
        old
    }

    fn some_pass(&mut self, pick: u16, call_fault: Option<CallFault>) {
        let mut due = self.leader.one_due(self.now, pick);
        if due.is_none()
            && let Some(next) = self.leader.next_due().filter(|next| *next <= later(self.now, Duration::from_secs(120)))
        {
            self.wait_until(next);
            due = self.leader.one_due(self.now, pick);
        }
        if let Some(job) = due {
            self.pass(job, Work::Pass, call_fault);
        }
    }

    fn stale_pass(&mut self, pick: u16) {
        let Some(mut process) = self.stale.take() else { return };
        let open = process.take_open(pick).map(|(job, pass)| (job, Work::GoOn(pass)));
        let whole = || {
            let mut jobs = process.all_jobs();
            (!jobs.is_empty()).then(|| (jobs.swap_remove(usize::from(pick) % jobs.len()), Work::Pass))
        };
        if let Some((job, work)) = open.or_else(whole) {
            self.say(|| format!("the process without the lease looks at {:?} {}", job.0, job.1));
            self.checks.leads = false;
            let around = self.around(None);
            let _ = run(self.scene().0, &mut process, (job, work), around);
            self.checks.leads = true;
        }
        self.stale = Some(process);
    }

    fn scene(&mut self) -> (Scene<'_>, &mut Process) {
        let Self { api, cloud, checks, trace, leader, calls, .. } = self;
        (Scene { api, cloud, checks, trace, calls: &mut calls.api }, leader)
    }

    fn around(&self, call_fault: Option<CallFault>) -> Around {
        Around {
            now: self.now,
            evictions_from: self.evictions_from,
            without: self.without,
            call_fault: call_fault.or_else(|| self.planned_fault?.after(self.calls.api)),
            refused: self.refused,
            held_after: None,
            target_answers: self.silent_until.is_none(),
        }
    }

    /// Starts a pass that is held up after this number of calls.
    fn begin(&mut self, job: Job, calls: u8) {
        self.say(|| format!("pass over {:?} {}, up to call {calls}", job.0, job.1));
        self.work(job, Work::Pass, Around { held_after: Some(calls), ..self.around(None) });
    }

    fn pass(&mut self, job: Job, work: Work, call_fault: Option<CallFault>) {
        let what = match work {
            Work::Pass => "pass over",
            Work::GoOn(_) => "rest of the pass over",
        };
        self.say(|| format!("{what} {:?} {}", job.0, job.1));
        self.work(job, work, self.around(call_fault));
    }

    fn work(&mut self, job: Job, work: Work, around: Around) {
        self.passes += 1;
        self.checks.begun = matches!(work, Work::Pass);
        let (scene, leader) = self.scene();
        let end = run(scene, leader, (job, work), around);
        // Checked after each pass, so that losses are counted for the pass in which they happen.
        self.checks.after_step(&self.api);
        self.follows(end);
    }

    /// Replaces the leader if its process has died or lost the lease.
    fn follows(&mut self, end: End) {
        match end {
            End::Lives => {}
            End::Dies => {
                self.drop_calls(DroppedCalls::AtOnce);
                self.restart();
            }
            End::LosesLease => self.loses_lease(DroppedCalls::AtOnce),
        }
    }

    fn end_some_call(&mut self, pick: u16, luck: Luck) {
        let mut under_way = self.leader.calls_under_way();
        if under_way.is_empty() {
            return;
        }
        let (id, call) = under_way.swap_remove(usize::from(pick) % under_way.len());
        let moment = Moment { now: self.now, api: &self.api };
        let answer = self.cloud.end(&call, luck, moment, &mut self.checks);
        self.say(|| {
            let code = code_of(&answer).map(|code| format!(": {code:?}")).unwrap_or_default();
            format!("driver call {:?} for {} ends ({luck:?}){code}", call.call, call.machine.key)
        });
        self.leader.answered(&id, answer);
        self.tasks_go_on();
    }

    /// The process is gone before its driver calls end.
    fn drop_calls(&mut self, dropped: DroppedCalls) {
        if dropped == DroppedCalls::Never {
            return;
        }
        for (_, call) in self.leader.calls_under_way() {
            self.cloud.goes_on(call, self.now);
        }
        if dropped == DroppedCalls::AtOnce {
            self.end_dropped(Timestamp::MAX);
        }
    }

    /// Ends the due calls of processes that are gone.
    fn end_dropped(&mut self, until: Timestamp) {
        let moment = Moment { now: self.now, api: &self.api };
        self.cloud.end_dropped(until, moment, &mut self.checks);
    }

    /// Moves pods with volumes; returns whether any moved.
    fn move_volumes(&mut self) -> bool {
        let moved = self.volumes.go_on(&mut self.api, self.now);
        if moved {
            self.say(|| "pods with volumes move on".to_owned());
            self.deliver_pods();
        }
        moved
    }

    /// Delivers changes of pods and attachments at once, because a drain can't know a pod that is not in the store at
    /// its start.
    fn deliver_pods(&mut self) {
        if self.silent_until.is_some() {
            return;
        }
        self.leader.watch(&self.api, Pod::PLACE, usize::MAX, self.now);
        self.leader.watch(&self.api, VolumeAttachment::PLACE, usize::MAX, self.now);
    }

    /// Jobs of classes and Secrets that are due.
    fn finalizers_due(&self) -> Vec<Job> {
        if self.classes_change { self.leader.finalizers_due(self.now) } else { Vec::new() }
    }

    /// Delivers changes of classes and their Secrets at once.
    fn deliver_classes(&mut self) {
        for kind in [MachineClass::PLACE, Secret::PLACE] {
            self.leader.watch(&self.api, kind, usize::MAX, self.now);
        }
    }

    fn node_event(&mut self, pick: u16, event: NodeEvent) {
        if let Some(name) = nodes::happens(&mut self.api, &self.cloud, pick, event, self.now) {
            self.say(|| format!("node {name}: {event:?}"));
            self.deliver_pods();
        }
    }
}

/// The part of the world that is lent to a process.
pub(super) struct Scene<'a> {
    /// The API servers.
    pub(super) api: &'a mut Api,
    /// The provider.
    pub(super) cloud: &'a mut Cloud,
    /// The checks.
    pub(super) checks: &'a mut Checks,
    /// The trace.
    pub(super) trace: &'a mut Trace,
    /// Number of calls.
    pub(super) calls: &'a mut u32,
}

/// Runs work of a process on a job; returns the state of the process afterwards.
pub(super) fn run(mut scene: Scene<'_>, process: &mut Process, (job, work): (Job, Work), around: Around) -> End {
    let pass = match work {
        Work::GoOn(pass) => pass,
        Work::Pass => {
            process.begins(&job);
            process.pass(&job)
        }
    };
    let (pass, end, outcome) = polled(&mut scene, process, Some(pass), around);
    match (outcome, pass) {
        (Some(outcome), _) => {
            scene.trace.say(|| format!("    {outcome:?}"));
            scene.checks.pass_has_ended(&outcome);
            process.ends(job, &outcome, around.now);
        }
        (None, Some(pass)) => {
            process.keep(job, pass, around.now);
            process.route(around.now);
        }
        (None, None) => process.route(around.now),
    }
    end
}

/// Polls a pass and the tasks. Returns the pass if it is held up, the state of the process, and the outcome if the pass
/// ends.
fn polled(
    Scene { api, cloud, checks, trace, calls }: &mut Scene<'_>,
    process: &mut Process,
    mut pass: Option<Pass>,
    around: Around,
) -> (Option<Pass>, End, Option<Outcome>) {
    process.clock.set(around.now);
    checks.costs.count(around.refused.map(|_| around.now));
    let lent = Lent {
        api: std::mem::take(*api),
        cloud: std::mem::take(*cloud),
        checks: std::mem::take(*checks),
        trace: std::mem::take(*trace),
        around,
        made: 0,
        end: End::Lives,
    };
    let stage = process.stage.clone();
    let (outcome, back) = stage.lend(lent, || process.poll(pass.as_mut()));
    let Some(back) = back else { return (None, End::Dies, outcome) };
    (**api, **cloud, **checks, **trace) = (back.api, back.cloud, back.checks, back.trace);
    **calls = calls.saturating_add(u32::from(back.made));
    record_events(checks, trace, process);
    let is_held_up = outcome.is_none() && back.end != End::Dies;
    (pass.filter(|_| is_held_up), back.end, outcome)
}

/// Records the events that a process has written.
fn record_events(checks: &mut Checks, trace: &mut Trace, process: &mut Process) {
    for event in process.take_events() {
        let (kind, name) = (event.about.kind.unwrap_or_default(), event.about.name.unwrap_or_default());
        trace.say(|| format!("    event about {kind} {name}: {}: {}", event.note.reason, event.note.message));
        // An event about a size belongs to the write of that size.
        if event.note.reason != deployment_reason::SCALING_SET {
            checks.costs(&kind, &name);
        }
        if event.note.reason == machine_reason::IN_PLACE_UPDATE_SUCCESSFUL {
            checks.updated();
        }
    }
}
