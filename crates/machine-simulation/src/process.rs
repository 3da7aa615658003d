//! One controller process of the simulation: its stores, its due jobs, and its memory.
//!
//! Controllers, stores, indexes and wake-ups are the same as in production. A crash loses the same state as in production. [`parts`]
//! makes the controllers, and [`super::played`] has the ports that they call.

mod parts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::parts::Parts;
use super::{
    api::{Api, Event, KINDS, Kind, Object},
    classes::is_of_classes,
    guards::Guard,
    played::{
        PlayedClock, Stage,
        cloud::{CallId, PendingCall, UnderWay},
        target::pod_store,
        tasks::{Begun, timers},
    },
    pods,
};
use controller_runtime::{
    clock::Clock,
    events::Pending,
    gate::Gate,
    key::ObjectKey,
    lock,
    queue::Outcome,
    refusals::{About, Refusals},
    snapshot::Snapshot,
    store::{Change, Store},
    tasks::Tasks,
};
use machine_api::v1alpha1::MachineClass;
use machine_controllers::{
    deployment::settings::DeploymentSettings,
    loops::{Controller, Loop, Pass},
    machine::{
        FreezeSwitch,
        observation::{Answer, CreationGuarantee, Freeze, Silence},
        settings::MachineSettings,
    },
    overshooting,
    safety::collector::Collector,
    snapshots::{AttachmentSnapshot, DeploymentSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, SetSnapshot},
    views::{ControlViews, node_store},
    wakes::{Route, Strength, Wake, Wakes},
};

/// Maximum duration of a pass. A longer pass could overlap with the actions of a rollout after its waiting time
/// ([`deployment::settling::SETTLING_LIMIT`]).
const MOST_OPEN: Duration = Duration::from_secs(5);

/// The loops for finalizers.
const FINALIZERS: [Controller; 2] = [Controller::MachineClass, Controller::Secret];

/// Maximum number of events kept between two passes.
const MOST_EVENTS: usize = 4096;

/// The configuration of all processes of a world.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// Settings of rollouts from the command line.
    pub rollouts: DeploymentSettings,
    /// Settings of machines from the command line.
    pub machines: MachineSettings,
    /// Whether a creation may be repeated.
    pub creation: CreationGuarantee,
    /// How long pods terminate.
    pub pods_end_in: Duration,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        Self {
            rollouts: DeploymentSettings::default(),
            machines: MachineSettings::default(),
            creation: CreationGuarantee::Idempotent,
            pods_end_in: pods::ENDING,
            without: None,
        }
    }
}

/// A key and its loop.
pub type Job = (Controller, ObjectKey);

/// A pass that is held up.
struct Open {
    job: Job,
    pass: Pass,
    began: Timestamp,
}

/// The next work on a job.
pub enum Work {
    /// A new pass.
    Pass,
    /// The continuation of a pass that was held up.
    GoOn(Pass),
}

/// A change that has not been routed yet.
enum News {
    Machine(Change<MachineSnapshot>),
    Set(Change<SetSnapshot>),
    Deployment(Change<DeploymentSnapshot>),
    Node(Change<NodeSnapshot>),
    Pod(Change<PodSnapshot>),
    Secret(Change<Arc<Secret>>),
    Attachment(Change<AttachmentSnapshot>),
    Class(Change<Arc<MachineClass>>),
}

/// One controller process.
pub struct Process {
    /// Its stores of the control cluster.
    pub views: ControlViews,
    /// Its store of Nodes.
    pub nodes: Arc<Store<NodeSnapshot>>,
    /// Its store of pods.
    pods: Arc<Store<PodSnapshot>>,
    /// Its store of volume attachments.
    attachments: Arc<Store<AttachmentSnapshot>>,
    /// Cancelled when the process loses the lease.
    pub lost: CancellationToken,
    /// The refusals that it remembers.
    pub refusals: Refusals,
    /// Its freeze switch. The monitor of the API servers, which freezes the loops in production, is not simulated. The history sets the
    /// switch.
    freeze: FreezeSwitch,
    /// Access to the world during a pass.
    pub stage: Stage,
    /// Its clock.
    pub clock: Arc<PlayedClock>,
    /// Its loops.
    loops: Vec<Loop>,
    events: mpsc::Receiver<Pending>,
    /// Pending driver calls.
    calls: UnderWay,
    /// Its tasks.
    tasks: Begun,
    /// Machines that were woken and are not in `due` yet.
    woken: Woken,
    collector: Arc<Collector>,
    /// The running passes of the collector, and their outcomes. The collector waits for the provider within a pass, so
    /// its passes are tasks here.
    collecting: BTreeSet<ObjectKey>,
    collected: Arc<Mutex<Vec<(ObjectKey, Outcome)>>>,
    news: Arc<Mutex<Vec<News>>>,
    due: BTreeMap<Job, Timestamp>,
    /// Passes that are held up; their jobs are not started again.
    open: Vec<Open>,
    failures: BTreeMap<Job, u32>,
    /// A guard that it lacks.
    without: Option<Guard>,
    /// The position of its watches in each log.
    watched: [usize; KINDS],
}

impl Process {
    /// Starts a process, which lists all objects and then watches them.
    pub fn start(api: &Api, now: Timestamp, seed: u64, config: &ProcessConfig) -> Self {
        let lost = CancellationToken::new();
        let (views, nodes, pods) = (ControlViews::default(), node_store(), pod_store());
        let attachments = Arc::new(Store::new(Vec::new()));
        let (calls, tasks, woken) = (UnderWay::default(), Begun::default(), Woken::default());
        let clock = Arc::new(PlayedClock::at(now));
        let time = Arc::clone(&clock);
        let refusals = Refusals::timed_by(move || steady(time.now()));
        let (notes, events) = mpsc::channel(MOST_EVENTS);
        let freeze = FreezeSwitch::default();
        let parts = Parts {
            stage: Stage::default(),
            freeze: freeze.clone(),
            lost: lost.clone(),
            gate: Gate::open_until(lost.clone()),
            refusals: refusals.clone(),
            clock: &clock,
            views: &views,
            nodes: &nodes,
            pods: &pods,
            attachments: &attachments,
            calls: &calls,
            tasks: Arc::new(tasks.tasks()),
            woken: &woken,
            notes,
            config,
        };
        let collector = Arc::new(parts.collector());
        let mut process = Self {
            loops: vec![
                Loop::deployments(&Arc::new(parts.deployments()), &freeze),
                Loop::sets(&Arc::new(parts.sets(seed)), &freeze),
                Loop::machines(&Arc::new(parts.machines(seed))),
                Loop::overshooting(&Arc::new(parts.guard()), "ns"),
                Loop::orphans(&collector),
                Loop::classes(&Arc::new(parts.classes())),
                Loop::secrets(&Arc::new(parts.secrets())),
            ],
            collector,
            events,
            stage: parts.stage.clone(),
            clock,
            lost,
            refusals,
            freeze,
            calls,
            tasks,
            woken,
            collecting: BTreeSet::new(),
            collected: Arc::default(),
            news: Arc::default(),
            due: BTreeMap::new(),
            open: Vec::new(),
            failures: BTreeMap::new(),
            without: config.without,
            watched: [0; KINDS],
            views,
            nodes,
            pods,
            attachments,
        };
        list(&process.views.classes, api);
        process.listen();
        list(&process.views.deployments, api);
        list(&process.views.sets, api);
        list(&process.nodes, api);
        list(&process.pods, api);
        list(&process.attachments, api);
        list(&process.views.machines, api);
        for class in api.classes.values() {
            let key = ObjectKey::of(&**class);
            process.due.insert((Controller::MachineSafetyOrphanVms, key.clone()), now);
            process.due.insert((Controller::MachineClass, key), now);
        }
        for secret in api.secrets.values().filter(|secret| is_of_classes(secret)) {
            process.views.secrets.apply_shared(Arc::clone(secret));
        }
        for (watched, log) in process.watched.iter_mut().zip(&api.log) {
            *watched = log.len();
        }
        let first: Vec<Job> =
            process.loops.iter().filter_map(|run| Some((run.controller, run.first.clone()?))).collect();
        process.due.extend(first.into_iter().map(|job| (job, now)));
        process.route(now);
        process
    }

    /// The listeners only record changes: routing inside them would make the stores own themselves.
    fn listen(&self) {
        fn attach<S: Snapshot>(store: &Store<S>, news: &Arc<Mutex<Vec<News>>>, wrap: fn(Change<S>) -> News) {
            let news = Arc::clone(news);
            store.set_listeners(vec![Box::new(move |change: &Change<S>| {
                let change = Change { old: change.old.clone(), new: change.new.clone() };
                lock(&news).push(wrap(change));
            })]);
        }
        attach(&self.views.machines, &self.news, News::Machine);
        attach(&self.views.sets, &self.news, News::Set);
        attach(&self.views.deployments, &self.news, News::Deployment);
        attach(&self.nodes, &self.news, News::Node);
        attach(&self.pods, &self.news, News::Pod);
        attach(&self.views.secrets, &self.news, News::Secret);
        attach(&self.attachments, &self.news, News::Attachment);
        attach(&self.views.classes, &self.news, News::Class);
    }

    /// Wakes the jobs that the recorded changes concern.
    pub fn route(&mut self, now: Timestamp) {
        let all = std::mem::take(&mut *lock(&self.news));
        for news in all {
            match &news {
                News::Machine(change) => self.may_be_granted(change),
                News::Set(change) => self.may_be_granted(change),
                News::Deployment(change) => self.may_be_granted(change),
                News::Node(change) => self.may_be_granted(change),
                News::Pod(change) => self.may_be_granted(change),
                News::Secret(change) => self.may_be_granted(change),
                News::Attachment(change) => self.may_be_granted(change),
                News::Class(change) => self.may_be_granted(change),
            }
            let woken = match &news {
                News::Machine(change) => self.woken(change, |wakes| &wakes.machines),
                News::Set(change) => self.woken(change, |wakes| &wakes.sets),
                News::Deployment(change) => self.woken(change, |wakes| &wakes.deployments),
                News::Node(change) => self.woken(change, |wakes| &wakes.nodes),
                News::Pod(change) => self.woken(change, |wakes| &wakes.pods),
                News::Secret(change) => self.woken(change, |wakes| &wakes.secrets),
                News::Attachment(change) => self.woken(change, |wakes| &wakes.attachments),
                News::Class(change) => self.woken(change, |wakes| &wakes.classes),
            };
            for (of, wake) in woken {
                if let (Strength::EndsRefusals, Some(kind)) = (wake.strength, of.kind()) {
                    self.refusals.changed(About { kind: kind.as_str(), key: &wake.key });
                }
                let job = (of, wake.key);
                let backs_off = self.failures.contains_key(&job) && self.due.contains_key(&job);
                if backs_off && wake.strength == Strength::KeepsBackOff {
                    continue;
                }
                self.wake(job, later(now, wake.after));
            }
        }
        self.wake_machines(now);
        let ended = std::mem::take(&mut *lock(&self.collected));
        for (key, outcome) in ended {
            self.collecting.remove(&key);
            self.ends((Controller::MachineSafetyOrphanVms, key), &outcome, now);
        }
    }

    /// The wake-ups of a change in each loop.
    fn woken<S>(&self, change: &Change<S>, route: fn(&Wakes) -> &Option<Route<S>>) -> Vec<(Controller, Wake)> {
        let routed = |run: &Loop| {
            let wakes = route(&run.wakes).as_ref().map(|route| route(change, &self.views)).unwrap_or_default();
            let of = run.controller;
            wakes.into_iter().map(move |wake| (of, wake))
        };
        self.loops.iter().flat_map(routed).collect()
    }

    /// Queues the machines that a pass or an answer has woken.
    fn wake_machines(&mut self, now: Timestamp) {
        let woken = std::mem::take(&mut *lock(&self.woken));
        for key in woken {
            self.wake((Controller::Machine, key), now);
        }
    }

    /// A change of an object ends the pause after its refusals.
    fn may_be_granted(&self, change: &Change<impl Snapshot>) {
        self.refusals.see(change);
    }

    /// Freezes the loops: the target cluster does not answer, so no decision may use its stores.
    pub fn freezes(&self) {
        self.freeze.set_silence(Silence::Target);
        self.freeze.set(Freeze::Frozen);
    }

    /// Unfreezes the loops and queues all machines.
    pub fn thaws(&mut self, now: Timestamp) {
        self.freeze.set_silence(Silence::None);
        self.freeze.set(Freeze::Flowing);
        for machine in self.views.machines.snapshot() {
            self.wake((Controller::Machine, machine.key()), now);
        }
    }

    /// Queues a job for this time, unless it is already due earlier.
    pub fn wake(&mut self, job: Job, at: Timestamp) {
        let due = self.due.entry(job).or_insert(at);
        *due = at.min(*due);
    }

    /// The jobs with their times, except the jobs of the collector and of finalizers, which run separately.
    fn waiting(&self) -> impl Iterator<Item = (&Job, &Timestamp)> {
        let has_own_way = |of| of == Controller::MachineSafetyOrphanVms || FINALIZERS.contains(&of);
        let jobs = self.due.iter().filter(move |((of, _), _)| !has_own_way(*of));
        jobs.filter(|(job, _)| !self.open.iter().any(|open| open.job == **job))
    }

    /// One of the due jobs.
    pub fn one_due(&self, now: Timestamp, pick: u16) -> Option<Job> {
        let count = self.waiting().filter(|(_, at)| **at <= now).count();
        let place = usize::from(pick).checked_rem(count)?;
        self.waiting().filter(|(_, at)| **at <= now).nth(place).map(|(job, _)| job.clone())
    }

    /// The due jobs in order.
    pub fn due(&self, now: Timestamp) -> Vec<Job> {
        self.waiting().filter(|(_, at)| **at <= now).map(|(job, _)| job.clone()).collect()
    }

    /// The jobs about finalizers of classes and Secrets, with their times.
    pub fn finalizers(&self) -> impl Iterator<Item = (&Job, Timestamp)> {
        self.due.iter().filter(|((of, _), _)| FINALIZERS.contains(of)).map(|(job, at)| (job, *at))
    }

    /// The due jobs about finalizers of classes and Secrets.
    pub fn finalizers_due(&self, now: Timestamp) -> Vec<Job> {
        self.finalizers().filter(|(_, at)| *at <= now).map(|(job, _)| job.clone()).collect()
    }

    /// When the next job is due; the period of the overshoot guard does not count.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.next_due_of(|of| of != Controller::MachineSafetyOvershooting)
    }

    /// When the next job of these loops is due.
    pub fn next_due_of(&self, counts: impl Fn(Controller) -> bool) -> Option<Timestamp> {
        self.waiting().filter(|((of, _), _)| counts(*of)).map(|(_, at)| *at).min()
    }

    /// Starts the due passes of the collector; returns whether there were any. They continue when tasks are polled.
    pub fn collect(&mut self, now: Timestamp, guard: Option<Guard>) -> bool {
        let is_due = |((of, key), at): &(&Job, &Timestamp)| {
            *of == Controller::MachineSafetyOrphanVms && **at <= now && !self.collecting.contains(key)
        };
        let due: Vec<Job> = self.due.iter().filter(is_due).map(|(job, _)| job.clone()).collect();
        for job in &due {
            self.due.remove(job);
            if guard == Some(Guard::Orphans) {
                continue;
            }
            let (collector, collected, key) = (Arc::clone(&self.collector), Arc::clone(&self.collected), job.1.clone());
            self.collecting.insert(key.clone());
            self.tasks.tasks().spawn(Box::pin(async move {
                let outcome = collector.reconcile(key.clone()).await;
                lock(&collected).push((key, outcome));
            }));
        }
        !due.is_empty()
    }

    /// The time of the next pass of the collector that can have an effect: a pass over a Node, or over a class with suspected VMs.
    pub fn next_collection(&self) -> Option<Timestamp> {
        let matters = |key: &ObjectKey| key.namespace.is_empty() || !self.collector.suspects_of(key).is_empty();
        let jobs = self.due.iter().filter(|((of, key), _)| *of == Controller::MachineSafetyOrphanVms && matters(key));
        jobs.map(|(_, at)| *at).min()
    }

    /// The number of passes that are held up.
    pub fn held_up(&self) -> usize {
        self.open.len()
    }

    /// Takes one of the passes that are held up.
    pub fn take_open(&mut self, pick: u16) -> Option<(Job, Pass)> {
        let place = usize::from(pick).checked_rem(self.open.len())?;
        let Open { job, pass, .. } = self.open.remove(place);
        Some((job, pass))
    }

    /// Takes a pass that must not be held up until `then`: no pass may take as long as a rollout waits.
    pub fn take_overdue(&mut self, then: Timestamp) -> Option<(Job, Pass)> {
        let place = self.open.iter().position(|open| later(open.began, MOST_OPEN) < then)?;
        let Open { job, pass, .. } = self.open.remove(place);
        Some((job, pass))
    }

    /// The job of the overshoot guard.
    pub fn guard_job() -> Job {
        (Controller::MachineSafetyOvershooting, overshooting::routing::key_of("ns"))
    }

    /// All jobs, due or not.
    pub fn all_jobs(&self) -> Vec<Job> {
        let of = |kind: Controller, keys: Vec<ObjectKey>| keys.into_iter().map(move |key| (kind, key));
        let deployments = self.views.deployments.snapshot().iter().map(Snapshot::key).collect();
        let sets = self.views.sets.snapshot().iter().map(Snapshot::key).collect();
        let machines = self.views.machines.snapshot().iter().map(controller_runtime::snapshot::Snapshot::key).collect();
        of(Controller::MachineDeployment, deployments)
            .chain(of(Controller::MachineSet, sets))
            .chain(of(Controller::Machine, machines))
            .collect()
    }

    /// The jobs of all classes and Secrets, due or not.
    pub fn all_finalizers(&self) -> Vec<Job> {
        let classes = self.views.classes.snapshot();
        let secrets = self.views.secrets.snapshot();
        let classes = classes.iter().map(|class| (Controller::MachineClass, ObjectKey::of(&**class)));
        classes.chain(secrets.iter().map(|secret| (Controller::Secret, ObjectKey::of(&**secret)))).collect()
    }

    /// A pass over this job starts. A wake-up during the pass queues the job again.
    pub fn begins(&mut self, job: &Job) {
        self.due.remove(job);
    }

    /// A pass has ended: applies the rules of the queue ([`controller_runtime::queue`]).
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

    /// Starts a pass over this job.
    pub fn pass(&self, (of, key): &Job) -> Pass {
        match self.loops.iter().find(|run| run.controller == *of) {
            Some(run) => run.pass(key.clone()),
            None => Box::pin(async { Outcome::Settled }),
        }
    }

    /// Polls a pass and then the tasks, while the world is lent to the process. `None` if the pass does not end: it is
    /// held up, or its process has died.
    pub fn poll(&mut self, pass: Option<&mut Pass>) -> Option<Outcome> {
        let _timers = timers();
        let polled = pass.map(|pass| pass.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        self.tasks.poll();
        match polled {
            Some(Poll::Ready(outcome)) => Some(outcome),
            Some(Poll::Pending) | None => None,
        }
    }

    /// The pending driver calls, ordered by machine.
    pub fn calls_under_way(&self) -> Vec<(CallId, PendingCall)> {
        self.calls.all()
    }

    /// When the pending driver calls started.
    pub fn calls_began(&self) -> impl Iterator<Item = Timestamp> {
        self.calls.all().into_iter().map(|(_, call)| call.began)
    }

    /// Answers a driver call; the process gets the answer when its tasks are polled.
    pub fn answered(&self, call: &CallId, answer: Answer) {
        self.calls.answer(call, answer);
    }

    /// Keeps a pass that is held up.
    pub fn keep(&mut self, job: Job, pass: Pass, began: Timestamp) {
        self.open.push(Open { job, pass, began });
    }

    /// Takes the events that controllers have written since the last call.
    pub fn take_events(&mut self) -> Vec<Pending> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Delivers at most this number of events of a kind; returns their number.
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
        fn into<S: Snapshot>(store: &Store<S>, object: &Arc<S::Object>, gone: bool) {
            if gone { store.delete(object) } else { store.apply_shared(Arc::clone(object)) }
        }
        match &event.object {
            Object::Machine(object) => into(&self.views.machines, object, event.gone),
            Object::Set(object) => into(&self.views.sets, object, event.gone),
            Object::Deployment(object) => into(&self.views.deployments, object, event.gone),
            Object::Node(object) => into(&self.nodes, object, event.gone),
            Object::Pod(object) => into(&self.pods, object, event.gone),
            Object::Attachment(object) => into(&self.attachments, object, event.gone),
            Object::Class(_) if event.gone && self.without == Some(Guard::Classes) => {}
            Object::Class(object) => into(&self.views.classes, object, event.gone),
            Object::Secret(object) if is_of_classes(object) => into(&self.views.secrets, object, event.gone),
            // No loop watches tokens.
            Object::Secret(_) => {}
        }
    }
}

/// Machines to queue.
type Woken = Arc<Mutex<BTreeSet<ObjectKey>>>;

/// A time on the steady clock of the refusals.
pub fn steady(now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default()
}

/// The time `after` later.
pub fn later(now: Timestamp, after: Duration) -> Timestamp {
    SignedDuration::try_from(after).ok().and_then(|after| now.checked_add(after).ok()).unwrap_or(Timestamp::MAX)
}

/// Fills a store with all objects of its kind.
fn list<S: Snapshot<Object: Kind>>(store: &Store<S>, api: &Api) {
    store.list_begins();
    for object in S::Object::table(api).values() {
        store.apply_shared(Arc::clone(object));
    }
    store.list_ends();
}
