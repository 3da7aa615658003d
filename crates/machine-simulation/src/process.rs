//! One controller process of the simulation: its views, what it has yet to look at, and what it remembers.
//!
//! Controllers, views, indexes and wake-ups are the real ones; what a crash forgets is forgotten here. Passes over machines are in
//! [`super::machines`] still; what the others reach is in [`super::played`].

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    api::{Api, Event, Kind, Object},
    guards::{Guard, cleans, deployment_without, set_without, told_without},
    machines::{DRAIN_TIME, MachineMemory},
    played::{Caller, Played, PlayedClock, Stage},
};
use controller_runtime::{
    clock::{Clock, SharedClock},
    events::{Pending, Recorder},
    gate::Gate,
    key::ObjectKey,
    objects::Objects,
    queue::Outcome,
    refusals::Refusals,
    store::{Change, Store},
};
use machine_api::v1alpha1::{Machine, MachineDeployment, MachineSet};
use machine_controllers::{
    Decision,
    deployment::{
        self, DeploymentController, DeploymentDeps, observe::DeploymentObservation, settings::DeploymentSettings,
    },
    machine::{self, observation::CreationGuarantee, settings::MachineSettings},
    overshooting::{self, Margins, OvershootController, OvershootDeps},
    set::{
        self, SetController, SetDecisions, SetDeps,
        observe::SetObservation,
        routing::{Strength, Wake},
    },
    views::{ControlViews, node_store},
};

/// A pass takes no longer. One that does may overlap with what comes when a rollout's patience is over
/// ([`deployment::settling::PATIENCE`]).
const MOST_OPEN: Duration = Duration::from_secs(5);

/// More events are not kept between two passes.
const MOST_EVENTS: usize = 4096;
/// The default of the flags.
const MARGINS: Margins = Margins { up: 2, down: 1 };
/// The default of the flag.
const GUARD_PERIOD: Duration = Duration::from_secs(60);

/// The control loops of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loop {
    /// Of deployments.
    Deployment,
    /// Of sets.
    Set,
    /// Of machines.
    Machine,
    /// The overshoot guard.
    Guard,
}

/// What all processes of a world have in common.
#[derive(Clone, Debug)]
pub struct Binary {
    /// What the command line says about rollouts.
    pub rollouts: DeploymentSettings,
    /// What it says about machines.
    pub machines: MachineSettings,
    /// Whether a creation can be repeated.
    pub creation: CreationGuarantee,
    /// How long drains take.
    pub drain_time: Duration,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
}

impl Default for Binary {
    fn default() -> Self {
        Self {
            rollouts: DeploymentSettings::default(),
            machines: MachineSettings::default(),
            creation: CreationGuarantee::Idempotent,
            drain_time: DRAIN_TIME,
            without: None,
        }
    }
}

/// What a loop is to look at.
pub type Job = (Loop, ObjectKey);

/// A pass that has begun.
pub type Pass = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A pass that is held up.
struct Open {
    job: Job,
    pass: Pass,
    began: Timestamp,
}

/// What is done about a job.
pub enum Work {
    /// A pass is begun.
    Pass,
    /// One that was held up goes on.
    GoOn(Pass),
}

/// A change that the process has not routed yet.
enum News {
    Machine(Change<Machine>),
    Set(Change<MachineSet>),
    Deployment(Change<MachineDeployment>),
    Node(Change<Node>),
}

/// One controller process.
pub struct Process {
    /// Its views of the control cluster.
    pub views: ControlViews,
    /// Its view of the Nodes.
    pub nodes: Arc<Store<Node>>,
    /// Its gate, closed with `lost`.
    pub gate: Gate,
    /// Cancelled when it loses the lease.
    pub lost: CancellationToken,
    /// What it was refused.
    pub refusals: Refusals,
    /// Where it finds the world during a pass.
    pub stage: Stage,
    /// Its time.
    pub clock: Arc<PlayedClock>,
    /// What its command line says, and more.
    pub binary: Binary,
    deployments: Arc<DeploymentController>,
    sets: Arc<SetController>,
    guard: Arc<OvershootController>,
    events: mpsc::Receiver<Pending>,
    pub(super) machines: BTreeMap<ObjectKey, MachineMemory>,
    /// When its first pass over a machine began.
    pub(super) machines_since: Option<Timestamp>,
    pub(super) vanished: std::collections::BTreeSet<ObjectKey>,
    /// Since when the orphan collector has suspected VMs, by their identity.
    pub(super) suspects: BTreeMap<String, Timestamp>,
    /// When it looks again.
    pub(super) collects_at: Timestamp,
    news: Arc<Mutex<Vec<News>>>,
    due: BTreeMap<Job, Timestamp>,
    /// Passes that are held up; nobody else works on their jobs.
    open: Vec<Open>,
    failures: BTreeMap<Job, u32>,
    /// How much of each log its watches have delivered.
    watched: [usize; 4],
}

impl Process {
    /// A process that lists everything and then watches.
    pub fn start(api: &Api, now: Timestamp, seed: u64, binary: &Binary) -> Self {
        let lost = CancellationToken::new();
        let (views, nodes) = (ControlViews::default(), node_store());
        let clock = Arc::new(PlayedClock::at(now));
        let time = Arc::clone(&clock);
        let refusals = Refusals::timed_by(move || steady(time.now()));
        let (notes, events) = mpsc::channel(MOST_EVENTS);
        let parts = Parts {
            stage: Stage::default(),
            lost: lost.clone(),
            gate: Gate::open_until(lost.clone()),
            refusals: refusals.clone(),
            clock: Arc::clone(&clock) as SharedClock,
            views: &views,
            nodes: &nodes,
            notes,
            binary,
        };
        let mut process = Self {
            deployments: Arc::new(parts.deployments()),
            sets: Arc::new(parts.sets(seed)),
            guard: Arc::new(parts.guard()),
            events,
            gate: parts.gate.clone(),
            stage: parts.stage.clone(),
            clock,
            binary: binary.clone(),
            lost,
            refusals,
            machines: BTreeMap::new(),
            machines_since: None,
            vanished: std::collections::BTreeSet::new(),
            suspects: BTreeMap::new(),
            collects_at: now,
            news: Arc::default(),
            due: BTreeMap::new(),
            open: Vec::new(),
            failures: BTreeMap::new(),
            watched: [0; 4],
            views,
            nodes,
        };
        process.listen();
        list(&process.views.deployments, api);
        list(&process.views.sets, api);
        list(&process.nodes, api);
        list(&process.views.machines, api);
        for (watched, log) in process.watched.iter_mut().zip(&api.log) {
            *watched = log.len();
        }
        process.due.insert((Loop::Guard, overshooting::routing::key_of("ns")), now);
        process.route(now);
        process
    }

    /// The listeners only note what changed: routing them here would make the views hold themselves.
    fn listen(&self) {
        fn attach<K: Kind>(store: &Store<K>, news: &Arc<Mutex<Vec<News>>>, wrap: fn(Change<K>) -> News) {
            let news = Arc::clone(news);
            store.set_listeners(vec![Box::new(move |change: &Change<K>| {
                let change = Change { old: change.old.clone(), new: change.new.clone() };
                news.lock().unwrap_or_else(PoisonError::into_inner).push(wrap(change));
            })]);
        }
        attach(&self.views.machines, &self.news, News::Machine);
        attach(&self.views.sets, &self.news, News::Set);
        attach(&self.views.deployments, &self.news, News::Deployment);
        attach(&self.nodes, &self.news, News::Node);
    }

    /// Wakes what the changes since the last time concern.
    pub fn route(&mut self, now: Timestamp) {
        let all = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        for news in all {
            match &news {
                News::Machine(change) => self.may_be_granted(change),
                News::Set(change) => self.may_be_granted(change),
                News::Deployment(change) => self.may_be_granted(change),
                News::Node(change) => self.may_be_granted(change),
            }
            let views = &self.views;
            let mut woken: Vec<(Loop, Wake)> = Vec::new();
            let mut wake = |of: Loop, wakes: Vec<Wake>| woken.extend(wakes.into_iter().map(|wake| (of, wake)));
            let machines = |keys: std::collections::BTreeSet<ObjectKey>| keys.into_iter().map(Wake::now).collect();
            match &news {
                News::Machine(change) => {
                    wake(Loop::Deployment, deployment::routing::deployments_of_machine(change, views));
                    wake(Loop::Set, set::routing::sets_of_machine(change, views));
                    wake(Loop::Machine, machines(machine::routing::after_machine(change, views)));
                    wake(Loop::Guard, overshooting::routing::after_machine(change));
                }
                News::Set(change) => {
                    wake(Loop::Deployment, deployment::routing::deployments_of_set(change, views));
                    wake(Loop::Set, set::routing::sets_of_set(change));
                    wake(Loop::Guard, overshooting::routing::after_set(change));
                }
                News::Deployment(change) => {
                    wake(Loop::Deployment, deployment::routing::deployments_of_deployment(change));
                    wake(Loop::Guard, overshooting::routing::after_deployment(change));
                }
                News::Node(change) => {
                    wake(Loop::Deployment, deployment::routing::deployments_of_node(change, views));
                    wake(Loop::Set, set::routing::sets_of_node(change, views));
                    let node_news = machine::routing::after_node(change, views);
                    self.vanished.extend(node_news.vanished);
                    for key in &node_news.appeared {
                        self.vanished.remove(key);
                    }
                    wake(Loop::Machine, machines(node_news.wake));
                }
            }
            for (of, wake) in woken {
                let job = (of, wake.key);
                let backs_off = self.failures.contains_key(&job) && self.due.contains_key(&job);
                if backs_off && wake.strength == Strength::KeepsBackOff {
                    continue;
                }
                self.wake(job, later(now, wake.after));
            }
        }
    }

    /// What was refused of an object may be granted once it has changed.
    fn may_be_granted<K: Kind>(&self, change: &Change<K>) {
        self.refusals.see(change);
    }

    /// Wants a pass at this time, or earlier if that was wanted already.
    pub fn wake(&mut self, job: Job, at: Timestamp) {
        let due = self.due.entry(job).or_insert(at);
        *due = at.min(*due);
    }

    /// What may be begun, and from when on.
    fn waiting(&self) -> impl Iterator<Item = (&Job, &Timestamp)> {
        self.due.iter().filter(|(job, _)| !self.open.iter().any(|open| open.job == **job))
    }

    /// One of the jobs that are due.
    pub fn one_due(&self, now: Timestamp, pick: u16) -> Option<Job> {
        let count = self.waiting().filter(|(_, at)| **at <= now).count();
        let place = usize::from(pick).checked_rem(count)?;
        self.waiting().filter(|(_, at)| **at <= now).nth(place).map(|(job, _)| job.clone())
    }

    /// The jobs that are due, in their order.
    pub fn due(&self, now: Timestamp) -> Vec<Job> {
        self.waiting().filter(|(_, at)| **at <= now).map(|(job, _)| job.clone()).collect()
    }

    /// When the next job is due; the guard's period does not count.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.waiting().filter(|((of, _), _)| *of != Loop::Guard).map(|(_, at)| *at).min()
    }

    /// One of the passes that are held up.
    pub fn take_open(&mut self, pick: u16) -> Option<(Job, Pass)> {
        let place = usize::from(pick).checked_rem(self.open.len())?;
        let Open { job, pass, .. } = self.open.remove(place);
        Some((job, pass))
    }

    /// One of those that must not wait until then: nobody counts on what takes as long as a rollout's patience.
    pub fn take_overdue(&mut self, then: Timestamp) -> Option<(Job, Pass)> {
        let place = self.open.iter().position(|open| later(open.began, MOST_OPEN) < then)?;
        let Open { job, pass, .. } = self.open.remove(place);
        Some((job, pass))
    }

    /// The next run of the guard.
    pub fn guard_job() -> Job {
        (Loop::Guard, overshooting::routing::key_of("ns"))
    }

    /// Everything that there is to look at, due or not.
    pub fn all_jobs(&self) -> Vec<Job> {
        let of = |kind: Loop, keys: Vec<ObjectKey>| keys.into_iter().map(move |key| (kind, key));
        let deployments = self.views.deployments.snapshot().iter().map(|object| ObjectKey::of(&**object)).collect();
        let sets = self.views.sets.snapshot().iter().map(|object| ObjectKey::of(&**object)).collect();
        let machines = self.views.machines.snapshot().iter().map(|object| ObjectKey::of(&**object)).collect();
        of(Loop::Deployment, deployments).chain(of(Loop::Set, sets)).chain(of(Loop::Machine, machines)).collect()
    }

    /// A pass over this job begins. What wakes it from now on wakes it again afterwards.
    pub fn begins(&mut self, job: &Job) {
        self.due.remove(job);
    }

    /// A pass has ended: the queue's rules ([`controller_runtime::queue`]).
    pub fn ends(&mut self, job: Job, outcome: &Outcome, now: Timestamp) {
        let failures = self.failures.get(&job).copied().unwrap_or(0);
        if let Some(pause) = outcome.backoff(failures) {
            self.failures.insert(job.clone(), failures + 1);
            self.wake(job, later(now, pause));
        } else {
            self.failures.remove(&job);
            if let Outcome::LookAgain(after, _) = outcome {
                self.wake(job, later(now, *after));
            }
        }
        self.route(now);
    }

    /// A pass over this job, unless it is one over a machine.
    pub fn pass(&self, (of, key): &Job) -> Option<Pass> {
        let key = key.clone();
        match of {
            Loop::Deployment => {
                let controller = Arc::clone(&self.deployments);
                Some(Box::pin(async move { controller.reconcile(key).await }))
            }
            Loop::Set => {
                let controller = Arc::clone(&self.sets);
                Some(Box::pin(async move { controller.reconcile(key).await }))
            }
            Loop::Guard => {
                let controller = Arc::clone(&self.guard);
                Some(Box::pin(async move { controller.reconcile(key).await }))
            }
            Loop::Machine => None,
        }
    }

    /// Polls a pass, to whom the world is lent meanwhile; `None` when it does not end: it is held up, or its process has died.
    pub fn poll(pass: &mut Pass) -> Option<Outcome> {
        match pass.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Keeps a pass that is held up.
    pub fn keep(&mut self, job: Job, pass: Pass, began: Timestamp) {
        self.open.push(Open { job, pass, began });
    }

    /// The events that controllers have told since the last time.
    pub fn told(&mut self) -> Vec<Pending> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Delivers so many events of a kind; how many there were.
    pub fn watch(&mut self, api: &Api, kind: usize, most: usize, now: Timestamp) -> usize {
        let (Some(log), Some(watched)) = (api.log.get(kind), self.watched.get_mut(kind)) else { return 0 };
        let from = (*watched).min(log.len());
        let to = from.saturating_add(most).min(log.len());
        *watched = to;
        for event in log.get(from..to).into_iter().flatten() {
            self.take(event);
            self.route(now);
        }
        to - from
    }

    fn take(&self, event: &Event) {
        fn into<K: Kind>(store: &Store<K>, object: &Arc<K>, gone: bool) {
            if gone { store.delete(object) } else { store.apply_shared(Arc::clone(object)) }
        }
        match &event.object {
            Object::Machine(object) => into(&self.views.machines, object, event.gone),
            Object::Set(object) => into(&self.views.sets, object, event.gone),
            Object::Deployment(object) => into(&self.views.deployments, object, event.gone),
            Object::Node(object) => into(&self.nodes, object, event.gone),
        }
    }
}

/// What controllers are made of.
struct Parts<'a> {
    stage: Stage,
    lost: CancellationToken,
    gate: Gate,
    refusals: Refusals,
    clock: SharedClock,
    views: &'a ControlViews,
    nodes: &'a Arc<Store<Node>>,
    notes: mpsc::Sender<Pending>,
    binary: &'a Binary,
}

impl Parts<'_> {
    fn lacks(&self, guard: Guard) -> bool {
        self.binary.without == Some(guard)
    }

    /// The gate that controllers ask.
    fn gate(&self) -> Gate {
        if self.lacks(Guard::Leadership) { Gate::open_until(CancellationToken::new()) } else { self.gate.clone() }
    }

    /// Objects as a loop reads and writes them.
    fn objects<K: Kind>(&self, of: Loop, store: &Arc<Store<K>>) -> Objects<K> {
        let caller = Caller {
            stage: self.stage.clone(),
            of,
            gate: self.gate.clone(),
            lost: self.lost.clone(),
            refusals: self.refusals.clone(),
            nodes: Arc::clone(self.nodes),
        };
        let hears_itself = !self.lacks(Guard::OwnWrites);
        let api = Arc::new(Played::new(&caller, store));
        let objects = Objects::over(api, self.gate(), hears_itself.then(|| Arc::clone(store)));
        if self.lacks(Guard::Refusals) { objects } else { objects.minding(&self.refusals) }
    }

    fn deployments(&self) -> DeploymentController {
        let views = self.views;
        DeploymentController::new(DeploymentDeps {
            views: views.clone(),
            deployments: self.objects(Loop::Deployment, &views.deployments),
            sets: self.objects(Loop::Deployment, &views.sets),
            machines: self.objects(Loop::Deployment, &views.machines),
            nodes: Some(self.objects(Loop::Deployment, self.nodes)),
            node_store: Some(Arc::clone(self.nodes)),
            clock: Arc::clone(&self.clock),
            gate: self.gate(),
            recorder: Recorder::new(deployment::COMPONENT, self.notes.clone()),
            settings: self.binary.rollouts,
        })
        .deciding_by(self.deciding_on_deployments())
    }

    fn deciding_on_deployments(&self) -> Decision<DeploymentObservation, deployment::plan::Plan> {
        let (stage, without) = (self.stage.clone(), self.binary.without);
        Arc::new(move |seen| {
            let mut plan = deployment::decide::decide(&deployment_without(without, seen));
            if without == Some(Guard::Cleaning) {
                plan.steps.retain(|step| !cleans(step.rule));
            }
            stage.with(|lent| lent.checks.deployment_decides(seen, &plan, &mut lent.trace));
            plan
        })
    }

    fn sets(&self, name_seed: u64) -> SetController {
        let views = self.views;
        SetController::new(SetDeps {
            views: views.clone(),
            machines: self.objects(Loop::Set, &views.machines),
            sets: self.objects(Loop::Set, &views.sets),
            nodes: Some(Arc::clone(self.nodes)),
            clock: Arc::clone(&self.clock),
            gate: self.gate(),
            recorder: Recorder::new(set::COMPONENT, self.notes.clone()),
            name_seed,
        })
        .deciding_by(self.deciding_on_sets())
    }

    fn deciding_on_sets(&self) -> SetDecisions {
        let (stage, without) = (self.stage.clone(), self.binary.without);
        let set = move |seen: &SetObservation| {
            let plan = set::decide::decide(&set_without(without, seen));
            stage.with(|lent| lent.checks.set_decides(seen, &plan, &mut lent.trace));
            plan
        };
        let status = move |seen: &SetObservation| set::status::decide_status(&told_without(without, seen));
        SetDecisions { set: Arc::new(set), status: Arc::new(status) }
    }

    fn guard(&self) -> OvershootController {
        let views = self.views;
        OvershootController::new(OvershootDeps {
            views: views.clone(),
            sets: self.objects(Loop::Guard, &views.sets),
            deployments: self.objects(Loop::Guard, &views.deployments),
            clock: Arc::clone(&self.clock),
            recorder: Recorder::new(overshooting::COMPONENT, self.notes.clone()),
            margins: MARGINS,
            period: GUARD_PERIOD,
        })
    }
}

/// A time as the ledger of refusals counts it.
pub fn steady(now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default()
}

/// A time so much later.
pub fn later(now: Timestamp, after: Duration) -> Timestamp {
    SignedDuration::try_from(after).ok().and_then(|after| now.checked_add(after).ok()).unwrap_or(Timestamp::MAX)
}

/// Fills a store with all there is.
fn list<K: Kind>(store: &Store<K>, api: &Api) {
    store.list_begins();
    for object in K::table(api).values() {
        store.apply_shared(Arc::clone(object));
    }
    store.list_ends();
}
