//! The world of a history: clusters, cloud, processes and virtual time, and what each step does. How it comes to rest after a
//! storm is in [`calm`].

mod calm;

use std::time::Duration;

use jiff::Timestamp;

use super::{
    api::{Api, Kind},
    calls::{Around, Calls, Doom, End, Misfortune, TargetAnswers},
    checks::{Checks, Edited},
    classes,
    cloud::{Cloud, Moment, code_of},
    edits,
    guards::Guard,
    history::{Edit, History, Luck, NodeEvent, Provider, Setup, Step, Unheard},
    nodes,
    played::Lent,
    pods,
    process::{Binary, Job, Process, Work, later},
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
    /// What is watched over.
    pub checks: Checks,
    /// What is told.
    pub trace: Trace,
    /// The time.
    pub now: Timestamp,
    /// When the world began.
    begin: Timestamp,
    leader: Process,
    /// A process that has lost the lease and does not know yet.
    stale: Option<Process>,
    /// A process that waits for the lease with views that nothing brings up to date; others list when they begin.
    standby: Option<Process>,
    /// Until when budgets refuse evictions.
    evictions_from: Timestamp,
    volumes: Volumes,
    /// Whether anybody writes on classes or Secrets; nothing is to be done about their finalizers elsewhere.
    classes_change: bool,
    /// Until when the target cluster is silent.
    silent_until: Option<Timestamp>,
    /// What is refused for hours.
    refused: Option<Refused>,
    seed: u64,
    binary: Binary,
    without: Option<Guard>,
    processes: usize,
    /// Passes so far.
    pub passes: u64,
    /// Calls so far.
    pub calls: Calls,
    /// The call that goes wrong.
    pub doom: Option<Doom>,
}

/// A world at rest, to begin histories from.
#[derive(Clone)]
pub struct Start {
    /// The API servers.
    pub api: Api,
    /// The provider.
    pub cloud: Cloud,
    /// The time.
    pub now: Timestamp,
}

/// When every world begins.
fn dawn() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or(Timestamp::UNIX_EPOCH)
}

impl Start {
    /// The world with this deployment, brought to rest.
    pub fn of(setup: Setup) -> (Self, Checks) {
        let mut api = Api::default();
        // Nothing can be in the way of the first object.
        let _ = api.create(&edits::deployment(setup), dawn());
        classes::make_missing(&mut api, dawn());
        let start = Self { api, cloud: Cloud::default(), now: dawn() };
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
    /// A world that begins like this.
    pub fn new(start: &Start, history: &History, trace: Trace) -> Self {
        let mut api = start.api.clone();
        let volumes = Volumes { count: history.volumes, detach_from: start.now };
        // Pods come, and their volumes are attached.
        volumes.go_on(&mut api, start.now);
        let creation = match history.provider {
            _ if history.without == Some(Guard::Intent) => CreationGuarantee::Idempotent,
            Provider::AnswersTheSame => CreationGuarantee::Idempotent,
            Provider::MakesAnother => CreationGuarantee::RecordIntent,
        };
        let rollouts = DeploymentSettings { availability: history.counts, ..DeploymentSettings::default() };
        let binary = Binary { creation, rollouts, without: history.without, ..Binary::default() };
        let leader = Process::start(&api, start.now, history.seed, &binary);
        let waits = matches!(history.without, Some(Guard::CatchUp | Guard::Confirmation));
        let standby = waits.then(|| Process::start(&api, start.now, !history.seed, &binary));
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
            binary,
            without: history.without,
            processes: 1,
            passes: 0,
            calls: Calls::default(),
            doom: None,
        }
    }

    /// Whether something has happened that must not.
    pub fn is_violated(&self) -> bool {
        self.checks.violation.is_some()
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        self.trace.at(self.begin, self.now, line);
    }

    /// Lets a step happen.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Pass(pick, misfortune) => self.some_pass(pick, misfortune),
            Step::Begin(pick, calls) => {
                if let Some(job) = self.leader.one_due(self.now, pick) {
                    self.begin(job, calls);
                }
            }
            Step::GoOn(pick, misfortune) => {
                if let Some((job, pass)) = self.leader.take_open(pick) {
                    self.pass(job, Work::GoOn(pass), misfortune);
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
                    self.see_pods();
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
                self.see_pods();
            }
            Step::Silence(minutes) => {
                self.silent_until = Some(later(self.now, Duration::from_secs(60 * u64::from(minutes))));
                self.say(|| format!("the target cluster is silent for {minutes} minutes"));
                self.freezes();
            }
            Step::UserData => {
                classes::change_user_data(&mut self.api);
                self.say(|| "a user changes the user data of all classes".to_owned());
                self.see_classes();
            }
            Step::Classes(edit) => {
                classes::apply(&mut self.api, edit, self.now);
                self.say(|| format!("a user writes on a class or Secret: {edit:?}"));
                self.see_classes();
            }
            Step::Finalizers(pick, misfortune) => {
                let mut due = self.finalizers_due();
                if let Some(place) = usize::from(pick).checked_rem(due.len()) {
                    self.pass(due.swap_remove(place), Work::Pass, misfortune);
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
            Step::Crash(unheard) => {
                self.say(|| "the process dies and another one starts".to_owned());
                self.calls_end_unheard(unheard);
                self.restart();
            }
            Step::Usurped(unheard) => {
                self.say(|| "the process loses the lease to another one, and goes on".to_owned());
                self.loses_lease(unheard);
            }
        }
        self.checks.after_step(&self.api);
    }

    fn wait_until(&mut self, then: Timestamp) {
        while let Some((job, pass)) = self.leader.take_overdue(then) {
            self.pass(job, Work::GoOn(pass), None);
        }
        self.end_unheard(then);
        self.now = then.max(self.now);
        if self.silent_until.is_some_and(|end| end <= self.now) {
            self.thaws();
        }
        pods::end(&mut self.api, self.binary.pods_end_in, self.now);
        pods::schedule(&mut self.api, self.now);
        self.move_volumes();
        self.see_pods();
        self.collect();
    }

    /// The leader sees that the target cluster is silent.
    fn freezes(&mut self) {
        self.checks.silent = true;
        if self.without != Some(Guard::Silence) {
            self.leader.freezes();
        }
    }

    /// The target cluster answers again, if it was silent.
    fn thaws(&mut self) {
        if self.silent_until.take().is_some() {
            self.say(|| "the target cluster answers again".to_owned());
            self.checks.silent = false;
            self.leader.thaws(self.now);
        }
    }

    /// The leader looks for VMs and Nodes that are nobody's, if it is time to; whether it was.
    fn collect(&mut self) -> bool {
        let is_time = self.leader.collect(self.now, self.without);
        if is_time {
            self.tasks_go_on();
        }
        is_time
    }

    /// The leader's tasks go on.
    fn tasks_go_on(&mut self) {
        let around = self.around(None);
        let (mut scene, leader) = self.scene();
        let (_, end, _) = polled(&mut scene, leader, None, around);
        self.leader.route(self.now);
        self.checks.after_step(&self.api);
        self.follows(end);
    }

    fn loses_lease(&mut self, unheard: Unheard) {
        self.calls_end_unheard(unheard);
        self.leader.lost.cancel();
        let old = self.restart();
        self.stale = Some(old);
        self.checks.leads = true;
    }

    fn restart(&mut self) -> Process {
        let seed = self.seed ^ (self.processes as u64) << 32;
        let listing = || Process::start(&self.api, self.now, seed, &self.binary);
        let fresh = self.standby.take().unwrap_or_else(listing);
        self.processes += 1;
        let old = std::mem::replace(&mut self.leader, fresh);
        self.see_classes();
        if self.silent_until.is_some() {
            self.freezes();
        }
        old
    }

    fn some_pass(&mut self, pick: u16, misfortune: Option<Misfortune>) {
        let mut due = self.leader.one_due(self.now, pick);
        if due.is_none()
            && let Some(next) = self.leader.next_due().filter(|next| *next <= later(self.now, Duration::from_secs(120)))
        {
            self.wait_until(next);
            due = self.leader.one_due(self.now, pick);
        }
        if let Some(job) = due {
            self.pass(job, Work::Pass, misfortune);
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

    fn around(&self, misfortune: Option<Misfortune>) -> Around {
        Around {
            now: self.now,
            evictions_from: self.evictions_from,
            without: self.without,
            misfortune: misfortune.or_else(|| self.doom?.after(self.calls.api)),
            refused: self.refused,
            held_after: None,
            target: if self.silent_until.is_some() { TargetAnswers::No } else { TargetAnswers::Yes },
        }
    }

    /// Begins a pass that is held up after so many calls.
    fn begin(&mut self, job: Job, calls: u8) {
        self.say(|| format!("pass over {:?} {}, up to call {calls}", job.0, job.1));
        self.work(job, Work::Pass, Around { held_after: Some(calls), ..self.around(None) });
    }

    fn pass(&mut self, job: Job, work: Work, misfortune: Option<Misfortune>) {
        let what = match work {
            Work::Pass => "pass over",
            Work::GoOn(_) => "rest of the pass over",
        };
        self.say(|| format!("{what} {:?} {}", job.0, job.1));
        self.work(job, work, self.around(misfortune));
    }

    fn work(&mut self, job: Job, work: Work, around: Around) {
        self.passes += 1;
        self.checks.begun = matches!(work, Work::Pass);
        let (scene, leader) = self.scene();
        let end = run(scene, leader, (job, work), around);
        // What a pass takes is not what the next one takes.
        self.checks.after_step(&self.api);
        self.follows(end);
    }

    /// What follows from what has become of the leader.
    fn follows(&mut self, end: End) {
        match end {
            End::Lives => {}
            End::Dies => {
                self.calls_end_unheard(Unheard::AtOnce);
                self.restart();
            }
            End::LosesLease => self.loses_lease(Unheard::AtOnce),
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
    fn calls_end_unheard(&mut self, unheard: Unheard) {
        if unheard == Unheard::Never {
            return;
        }
        for (_, call) in self.leader.calls_under_way() {
            self.cloud.goes_on(call, self.now);
        }
        if unheard == Unheard::AtOnce {
            self.end_unheard(Timestamp::MAX);
        }
    }

    /// Calls of processes that are gone end that end until then.
    fn end_unheard(&mut self, until: Timestamp) {
        let moment = Moment { now: self.now, api: &self.api };
        self.cloud.end_unheard(until, moment, &mut self.checks);
    }

    /// Pods with volumes move on; whether any did.
    fn move_volumes(&mut self) -> bool {
        let moved = self.volumes.go_on(&mut self.api, self.now);
        if moved {
            self.say(|| "pods with volumes move on".to_owned());
            self.see_pods();
        }
        moved
    }

    /// New pods are seen at once, and so are attachments: a drain knows nothing of one that it has not seen when it began, and can't.
    fn see_pods(&mut self) {
        if self.silent_until.is_some() {
            return;
        }
        self.leader.watch(&self.api, Pod::PLACE, usize::MAX, self.now);
        self.leader.watch(&self.api, VolumeAttachment::PLACE, usize::MAX, self.now);
    }

    /// Classes and Secrets that are to be looked at now.
    fn finalizers_due(&self) -> Vec<Job> {
        if self.classes_change { self.leader.finalizers_due(self.now) } else { Vec::new() }
    }

    /// Classes and their Secrets are seen at once.
    fn see_classes(&mut self) {
        for kind in [MachineClass::PLACE, Secret::PLACE] {
            self.leader.watch(&self.api, kind, usize::MAX, self.now);
        }
    }

    fn node_event(&mut self, pick: u16, event: NodeEvent) {
        if let Some(name) = nodes::happens(&mut self.api, &self.cloud, pick, event, self.now) {
            self.say(|| format!("node {name}: {event:?}"));
            self.see_pods();
        }
    }
}

/// What is lent to a process while it works.
pub(super) struct Scene<'a> {
    /// The API servers.
    pub(super) api: &'a mut Api,
    /// The provider.
    pub(super) cloud: &'a mut Cloud,
    /// What is watched over.
    pub(super) checks: &'a mut Checks,
    /// What is told.
    pub(super) trace: &'a mut Trace,
    /// Calls so far.
    pub(super) calls: &'a mut u32,
}

/// Work of a process on a job, and how the process is afterwards.
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

/// Polls a pass, and tasks; what is left of the pass if it is held up, how its process is afterwards, and the outcome if it ends.
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
    tell_events(checks, trace, process);
    let is_held_up = outcome.is_none() && back.end != End::Dies;
    (pass.filter(|_| is_held_up), back.end, outcome)
}

/// The events that a process has told.
fn tell_events(checks: &mut Checks, trace: &mut Trace, process: &mut Process) {
    for told in process.told() {
        let (kind, name) = (told.about.kind.unwrap_or_default(), told.about.name.unwrap_or_default());
        trace.say(|| format!("    event about {kind} {name}: {}: {}", told.note.reason, told.note.message));
        // A size is told of when it was written.
        if told.note.reason != deployment_reason::SCALING_SET {
            checks.costs(&kind, &name);
        }
        if told.note.reason == machine_reason::IN_PLACE_UPDATE_SUCCESSFUL {
            checks.updated();
        }
    }
}
