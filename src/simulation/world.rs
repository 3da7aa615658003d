//! The world of a history: clusters, cloud, processes and virtual time; what each step does; and the calm after a storm.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};

use super::{
    api::Api,
    calls::{Calls, Misfortune},
    checks::Checks,
    cloud::Cloud,
    edits,
    history::{Luck, NodeEvent, Setup, Step},
    process::{Job, Loop, Process, later},
    rest,
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
    seed: u64,
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
        let mut world = World::new(&start, 1, Trace::default());
        world.calm();
        let World { mut api, cloud, now, checks, .. } = world;
        api.begin();
        (Self { api, cloud, now }, checks)
    }
}

impl World {
    /// A world that begins like this.
    pub fn new(start: &Start, seed: u64, trace: Trace) -> Self {
        let api = start.api.clone();
        let leader = Process::start(&api, start.now, seed);
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
            seed,
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
            Step::StalePass(pick) => self.stale_pass(pick),
            Step::Watch(kind, most) => {
                let kind = usize::from(kind);
                let seen = self.leader.watch(&self.api, kind, usize::from(most), self.now);
                if seen > 0 {
                    let of = ["machines", "sets", "deployments", "nodes"].get(kind).copied().unwrap_or_default();
                    self.say(|| format!("the watch of {of} brings {seen} events"));
                }
            }
            Step::Wait(seconds) => {
                self.now = later(self.now, Duration::from_secs(u64::from(seconds)));
            }
            Step::Cloud(pick, luck) => self.end_some_call(pick, luck),
            Step::Node(pick, event) => self.node_event(pick, event),
            Step::Edit(edit) => {
                if edits::apply(&mut self.api, edit, self.now) {
                    self.say(|| edit.to_string());
                    let is_template = matches!(edit, super::history::Edit::Class(_));
                    self.checks.edited(&self.api, is_template);
                }
            }
            Step::Crash(calls_happen) => {
                self.say(|| "the process dies and another one starts".to_owned());
                self.calls_end_unheard(calls_happen);
                self.restart();
            }
            Step::Usurped(calls_happen) => {
                self.say(|| "the process loses the lease to another one, and goes on".to_owned());
                self.calls_end_unheard(calls_happen);
                self.leader.lost.cancel();
                let old = self.restart();
                self.stale = Some(old);
            }
        }
        self.checks.after_step(&self.api);
    }

    fn restart(&mut self) -> Process {
        let fresh = Process::start(&self.api, self.now, self.seed ^ (self.processes as u64) << 32);
        self.processes += 1;
        std::mem::replace(&mut self.leader, fresh)
    }

    fn some_pass(&mut self, pick: u16, misfortune: Option<Misfortune>) {
        let mut due = self.leader.due(self.now);
        if due.is_empty()
            && let Some(next) = self.leader.next_due().filter(|next| *next <= later(self.now, Duration::from_secs(120)))
        {
            self.now = next.max(self.now);
            due = self.leader.due(self.now);
        }
        if !due.is_empty() {
            let job = due.swap_remove(usize::from(pick) % due.len());
            self.pass(job, misfortune);
        }
    }

    fn stale_pass(&mut self, pick: u16) {
        let Some(mut process) = self.stale.take() else { return };
        let mut jobs = process.all_jobs();
        if !jobs.is_empty() {
            let job = jobs.swap_remove(usize::from(pick) % jobs.len());
            self.say(|| format!("the process without the lease looks at {:?} {}", job.0, job.1));
            self.checks.leads = false;
            run(&mut self.api, &mut self.checks, &mut self.trace, &mut process, job, (self.now, None));
            self.checks.leads = true;
        }
        self.stale = Some(process);
    }

    fn pass(&mut self, job: Job, misfortune: Option<Misfortune>) {
        self.say(|| format!("pass over {:?} {}", job.0, job.1));
        self.passes += 1;
        let Self { api, checks, trace, leader, now, .. } = self;
        let dies = run(api, checks, trace, leader, job, (*now, misfortune));
        if dies {
            self.calls_end_unheard(true);
            self.restart();
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
        if event == NodeEvent::Joins {
            let names: Vec<String> = self
                .cloud
                .vms
                .iter()
                .filter(|(_, vm)| vm.joins_at != Timestamp::MAX)
                .map(|(name, _)| name.clone())
                .collect();
            if let Some(name) = names.get(usize::from(pick) % names.len().max(1)) {
                self.join(&name.clone());
            }
            return;
        }
        let names: Vec<String> = self.api.nodes.keys().cloned().collect();
        let Some(name) = names.get(usize::from(pick) % names.len().max(1)) else { return };
        self.say(|| format!("node {name}: {event:?}"));
        match event {
            NodeEvent::Joins => {}
            NodeEvent::Deleted => {
                let _ = self.api.delete::<Node>(name, None, self.now);
            }
            NodeEvent::Sickens | NodeEvent::Recovers => {
                let ready = event == NodeEvent::Recovers && self.cloud.vms.contains_key(name);
                self.api.edit::<Node>(name, |node| set_ready(node, ready));
            }
        }
    }

    fn join(&mut self, name: &str) -> bool {
        let Some(vm) = self.cloud.vms.get(name) else { return false };
        if self.api.nodes.contains_key(name) {
            return false;
        }
        let mut node = Node::default();
        node.metadata.name = Some(name.to_owned());
        node.spec = Some(NodeSpec { provider_id: Some(vm.provider_id.clone()), ..NodeSpec::default() });
        set_ready(&mut node, true);
        let _ = self.api.create(&node, self.now);
        self.say(|| format!("node {name} joins"));
        true
    }

    /// The weather clears: everything that can heal heals, and everything comes to rest.
    pub fn calm(&mut self) {
        self.say(|| "the weather clears".to_owned());
        edits::resume(&mut self.api, &mut self.checks);
        self.stale = None;
        for name in self.api.nodes.keys().cloned().collect::<Vec<_>>() {
            if self.cloud.vms.contains_key(&name) {
                self.api.edit::<Node>(&name, |node| set_ready(node, true));
            }
        }
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
                let changes = self.api.changes;
                let job = Process::guard_job();
                self.pass(job, None);
                if self.api.changes == changes {
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
        for (place, (_, call)) in self.leader.calls_under_way().into_iter().enumerate().rev() {
            if later(call.began, CALL_TIME) <= self.now {
                self.end_some_call(u16::try_from(place).unwrap_or(0), Luck::Good);
                moved = true;
            }
        }
        let joining: Vec<String> =
            self.cloud.vms.iter().filter(|(_, vm)| vm.joins_at <= self.now).map(|(name, _)| name.clone()).collect();
        for name in joining {
            moved |= self.join(&name);
        }
        for job in self.leader.due(self.now) {
            if job.0 != Loop::Guard {
                self.pass(job, None);
                *passes += 1;
                moved = true;
            }
        }
        moved
    }

    fn next_happening(&self) -> Option<Timestamp> {
        let calls = self.leader.calls_under_way().into_iter().map(|(_, call)| later(call.began, CALL_TIME)).min();
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
            self.pass(job, None);
        }
        if self.api.changes != changes {
            self.checks.violated("something is written although everything is at rest", String::new);
        }
        self.checks.at_rest(&self.api);
    }
}

/// A pass of a process; whether it dies in it.
pub(super) fn run(
    api: &mut Api,
    checks: &mut Checks,
    trace: &mut Trace,
    process: &mut Process,
    job: Job,
    (now, misfortune): (Timestamp, Option<Misfortune>),
) -> bool {
    process.begins(&job);
    let gate = process.gate.clone();
    let mut calls = Calls { api, checks, trace, gate: &gate, now, misfortune, made: 0, dead: false };
    let outcome = match job.0 {
        Loop::Deployment => process.deployment_pass(&mut calls, &job.1),
        Loop::Set => process.set_pass(&mut calls, &job.1),
        Loop::Machine => process.machine_pass(&mut calls, &job.1),
        Loop::Guard => process.guard_pass(&mut calls, &job.1),
    };
    calls.trace.say(|| format!("    {outcome:?}"));
    let dead = calls.dead;
    process.ends(job, &outcome, now);
    dead
}

pub(super) fn set_ready(node: &mut Node, ready: bool) {
    let status: &mut NodeStatus = node.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "Ready");
    let status = if ready { "True" } else { "False" };
    conditions.push(NodeCondition { type_: "Ready".to_owned(), status: status.to_owned(), ..NodeCondition::default() });
}
