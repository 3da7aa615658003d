//! The world of a history: clusters, cloud, processes and virtual time; what each step does; and the calm after a storm.

use jiff::Timestamp;

use super::{
    api::Api,
    calls::{Around, Calls, End, Misfortune},
    checks::{Checks, Edited},
    cloud::Cloud,
    edits,
    guards::Guard,
    history::{Edit, History, Luck, NodeEvent, Setup, Step},
    nodes,
    process::{Job, Loop, Process, Work, later},
    rest, tampering,
    trace::Trace,
};
use std::time::Duration;

/// How long a driver call takes in calm weather.
const CALL_TIME: Duration = Duration::from_secs(2);
/// How long a VM takes to join in calm weather.
const JOIN_TIME: Duration = Duration::from_secs(40);
/// Everything must have come to rest so long after a storm.
const CALM: Duration = Duration::from_secs(6 * 3600);
/// More passes than any way to a rest takes.
const MOST_PASSES: u32 = 4000;

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
    seed: u64,
    without: Option<Guard>,
    processes: usize,
    /// Passes so far.
    pub passes: u64,
}

/// A world at rest, to begin histories from.
#[derive(Clone)]
pub struct Start {
    api: Api,
    cloud: Cloud,
    now: Timestamp,
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
        let start = Self { api, cloud: Cloud::default(), now: dawn() };
        let nothing = History { seed: 1, setup, rounds: Vec::new(), without: None };
        let mut world = World::new(&start, &nothing, Trace::default());
        world.calm();
        let World { mut api, cloud, now, checks, .. } = world;
        api.begin();
        (Self { api, cloud, now }, checks)
    }
}

impl World {
    /// A world that begins like this.
    pub fn new(start: &Start, history: &History, trace: Trace) -> Self {
        let api = start.api.clone();
        let leader = Process::of_history(&api, start.now, history.seed);
        let waits = history.without == Some(Guard::CatchUp);
        let standby = waits.then(|| Process::of_history(&api, start.now, !history.seed));
        let mut checks = Checks::default();
        checks.leads = true;
        checks.at_rest(&api);
        Self {
            api,
            cloud: start.cloud.clone(),
            checks,
            trace,
            now: start.now,
            begin: start.now,
            leader,
            stale: None,
            standby,
            evictions_from: start.now,
            seed: history.seed,
            without: history.without,
            processes: 1,
            passes: 0,
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
            Step::Decide(pick) => {
                if let Some(job) = self.leader.one_due(self.now, pick) {
                    self.pass(job, Work::Decide, None);
                }
            }
            Step::Act(pick, misfortune) => {
                if let Some((job, decided)) = self.leader.take_open(pick) {
                    self.pass(job, Work::Act(decided), misfortune);
                }
            }
            Step::StalePass(pick) => self.stale_pass(pick),
            Step::Watch(kind, most) => {
                let kind = usize::from(kind);
                let seen = self.leader.watch(&self.api, kind, usize::from(most), self.now);
                if seen > 0 {
                    let of = ["machines", "sets", "deployments", "nodes"].get(kind).copied().unwrap_or_default();
                    self.say(|| format!("the watch of {of} brings {seen} events"));
                }
            }
            Step::Wait(seconds) => self.wait_until(later(self.now, Duration::from_secs(u64::from(seconds)))),
            Step::Cloud(pick, luck) => self.end_some_call(pick, luck),
            Step::Node(pick, event) => self.node_event(pick, event),
            Step::Budget(minutes) => {
                self.evictions_from = later(self.now, Duration::from_secs(60 * u64::from(minutes)));
                self.say(|| format!("evictions are refused for {minutes} minutes"));
            }
            Step::Edit(edit) => {
                if edits::apply(&mut self.api, &mut self.checks, edit, self.now) {
                    self.say(|| edit.to_string());
                    let edited = if matches!(edit, Edit::Class(_)) { Edited::Template } else { Edited::Other };
                    self.checks.edited(&self.api, edited);
                }
            }
            Step::Crash(calls_happen) => {
                self.say(|| "the process dies and another one starts".to_owned());
                self.calls_end_unheard(calls_happen);
                self.restart();
            }
            Step::Usurped(calls_happen) => {
                self.say(|| "the process loses the lease to another one, and goes on".to_owned());
                self.loses_lease(calls_happen);
            }
        }
        self.checks.after_step(&self.api);
    }

    fn wait_until(&mut self, then: Timestamp) {
        while let Some((job, decided)) = self.leader.take_overdue(then) {
            self.pass(job, Work::Act(decided), None);
        }
        self.now = then.max(self.now);
    }

    fn loses_lease(&mut self, calls_happen: bool) {
        self.calls_end_unheard(calls_happen);
        self.leader.lost.cancel();
        let old = self.restart();
        self.stale = Some(old);
        self.checks.leads = true;
    }

    fn restart(&mut self) -> Process {
        let listing = || Process::of_history(&self.api, self.now, self.seed ^ (self.processes as u64) << 32);
        let fresh = self.standby.take().unwrap_or_else(listing);
        self.processes += 1;
        std::mem::replace(&mut self.leader, fresh)
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
            self.pass(job, Work::Whole, misfortune);
        }
    }

    fn stale_pass(&mut self, pick: u16) {
        let Some(mut process) = self.stale.take() else { return };
        let open = process.take_open(pick).map(|(job, decided)| (job, Work::Act(decided)));
        let whole = || {
            let mut jobs = process.all_jobs();
            (!jobs.is_empty()).then(|| (jobs.swap_remove(usize::from(pick) % jobs.len()), Work::Whole))
        };
        if let Some((job, work)) = open.or_else(whole) {
            self.say(|| format!("the process without the lease looks at {:?} {}", job.0, job.1));
            self.checks.leads = false;
            let around = self.around(None);
            let _ = run(&mut self.api, &mut self.checks, &mut self.trace, &mut process, (job, work), around);
            self.checks.leads = true;
        }
        self.stale = Some(process);
    }

    fn around(&self, misfortune: Option<Misfortune>) -> Around {
        Around { now: self.now, evictions_from: self.evictions_from, without: self.without, misfortune }
    }

    fn pass(&mut self, job: Job, work: Work, misfortune: Option<Misfortune>) {
        let what = match work {
            Work::Whole => "pass over",
            Work::Decide => "first half of a pass over",
            Work::Act(_) => "second half of the pass over",
        };
        self.say(|| format!("{what} {:?} {}", job.0, job.1));
        self.passes += 1;
        let around = self.around(misfortune);
        match run(&mut self.api, &mut self.checks, &mut self.trace, &mut self.leader, (job, work), around) {
            End::Lives => {}
            End::Dies => {
                self.calls_end_unheard(true);
                self.restart();
            }
            End::LosesLease => self.loses_lease(true),
        }
    }

    fn end_some_call(&mut self, pick: u16, luck: Luck) {
        let mut under_way = self.leader.calls_under_way();
        if under_way.is_empty() {
            return;
        }
        let (key, call) = under_way.swap_remove(usize::from(pick) % under_way.len());
        let answer = self.cloud.end(&call, luck, later(self.now, JOIN_TIME), &self.api, &mut self.checks);
        self.say(|| format!("driver call {:?} for {key} ends ({luck:?})", call.call));
        self.leader.answered(&key, answer, self.now);
    }

    /// The process is gone before its driver calls end.
    fn calls_end_unheard(&mut self, happen: bool) {
        if happen {
            for (_, call) in self.leader.calls_under_way() {
                self.cloud.end(&call, Luck::Good, later(self.now, JOIN_TIME), &self.api, &mut self.checks);
            }
        }
    }

    fn node_event(&mut self, pick: u16, event: NodeEvent) {
        if let Some(name) = nodes::happens(&mut self.api, &self.cloud, pick, event, self.now) {
            self.say(|| format!("node {name}: {event:?}"));
        }
    }

    /// The weather clears: everything that can heal heals, and everything comes to rest.
    pub fn calm(&mut self) {
        self.say(|| "the weather clears".to_owned());
        while let Some((job, decided)) = self.leader.take_open(0) {
            self.pass(job, Work::Act(decided), None);
        }
        edits::resume(&mut self.api, &mut self.checks);
        self.stale = None;
        nodes::heal(&mut self.api, &self.cloud);
        tampering::mend_labels(&mut self.api);
        let deadline = later(self.now, CALM);
        let mut passes = 0;
        while !self.is_violated() {
            for kind in 0..4 {
                self.leader.watch(&self.api, kind, usize::MAX, self.now);
            }
            if self.calm_step(&mut passes) {
                self.checks.after_step(&self.api);
                continue;
            }
            let Some(next) = self.next_happening() else {
                if self.is_all_done() {
                    break;
                }
                continue;
            };
            if next > deadline || passes > MOST_PASSES {
                let text = rest::unlike(&self.api, &self.cloud).join("; ");
                self.checks.violated("nothing comes to rest", || format!("{passes} passes since the storm; {text}"));
                return;
            }
            self.now = next.max(self.now);
        }
        if !self.is_violated() {
            self.check_rest();
        }
    }

    /// Does what is due now; whether there was anything.
    fn calm_step(&mut self, passes: &mut u32) -> bool {
        let mut moved = false;
        let began: Vec<Timestamp> = self.leader.calls_began().collect();
        for (place, began) in began.into_iter().enumerate().rev() {
            if later(began, CALL_TIME) <= self.now {
                self.end_some_call(u16::try_from(place).unwrap_or(0), Luck::Good);
                moved = true;
            }
        }
        let joining: Vec<String> =
            self.cloud.vms.iter().filter(|(_, vm)| vm.joins_at <= self.now).map(|(name, _)| name.clone()).collect();
        for name in joining {
            if nodes::join(&mut self.api, &self.cloud, &name, self.now) {
                self.say(|| format!("node {name} joins"));
                moved = true;
            }
        }
        if nodes::go_on_updating(&mut self.api) {
            self.say(|| "nodes are updated".to_owned());
            moved = true;
        }
        // One loop after the other, as deployments and sets rest between passes while machines come and go.
        let due = self.leader.due(self.now);
        let is_due = |of: &Loop| due.iter().any(|job| job.0 == *of);
        if let Some(of) = [Loop::Machine, Loop::Set, Loop::Deployment].into_iter().find(is_due) {
            for job in due.into_iter().filter(|job| job.0 == of) {
                self.pass(job, Work::Whole, None);
                *passes += 1;
            }
            moved = true;
        }
        moved
    }

    /// Whether nobody does anything any more when nothing is due: neither the guard nor a user.
    fn is_all_done(&mut self) -> bool {
        let changes = self.api.changes;
        self.pass(Process::guard_job(), Work::Whole, None);
        if tampering::go_on_picking(&mut self.api, &mut self.checks) {
            self.say(|| "a user picks the next node".to_owned());
        }
        if tampering::sweep(&mut self.api, self.now) {
            self.say(|| "machines without owner are deleted".to_owned());
        }
        self.api.changes == changes
    }

    fn next_happening(&self) -> Option<Timestamp> {
        let calls = self.leader.calls_began().map(|began| later(began, CALL_TIME)).min();
        let joins = self
            .cloud
            .vms
            .iter()
            .filter(|(name, vm)| vm.joins_at != Timestamp::MAX && !self.api.nodes.contains_key(*name))
            .map(|(_, vm)| vm.joins_at)
            .min();
        [calls, joins, self.leader.next_due()].into_iter().flatten().min()
    }

    fn check_rest(&mut self) {
        let unlike = rest::unlike(&self.api, &self.cloud);
        if !unlike.is_empty() {
            self.checks.violated("the rest is not what the specification wants", || unlike.join("; "));
            return;
        }
        self.say(|| "everything is at rest".to_owned());
        let changes = self.api.changes;
        for job in self.leader.all_jobs() {
            self.pass(job, Work::Whole, None);
        }
        if self.api.changes != changes {
            self.checks.violated("something is written although everything is at rest", String::new);
        }
        self.checks.at_rest(&self.api);
    }
}

/// Work of a process on a job, and how the process is afterwards.
pub(super) fn run(
    api: &mut Api,
    checks: &mut Checks,
    trace: &mut Trace,
    process: &mut Process,
    (job, work): (Job, Work),
    around: Around,
) -> End {
    process.begins(&job, &work);
    let (gate, lost) = (process.gate.clone(), process.lost.clone());
    let mut calls =
        Calls { api, checks, trace, gate: &gate, lost: &lost, now: around.now, around, made: 0, end: End::Lives };
    let outcome = process.work(&mut calls, &job, work);
    let end = calls.end;
    match outcome {
        Some(outcome) => {
            calls.trace.say(|| format!("    {outcome:?}"));
            process.ends(job, &outcome, around.now);
        }
        None => process.route(around.now),
    }
    end
}
