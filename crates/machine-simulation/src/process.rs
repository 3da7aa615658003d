//! One controller process of the simulation: its views, what it has yet to look at, and what it remembers.
//!
//! Controllers, views, indexes and wake-ups are the real ones; what a crash forgets is forgotten here. How controllers are put
//! together is in [`parts`], what they reach in [`super::played`].

mod parts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// A pass takes no longer. One that does may overlap with what comes when a rollout's patience is over
/// ([`deployment::settling::SETTLING_LIMIT`]).
const MOST_OPEN: Duration = Duration::from_secs(5);

/// The loops that keep finalizers right.
const FINALIZERS: [Controller; 2] = [Controller::MachineClass, Controller::Secret];

/// More events are not kept between two passes.
const MOST_EVENTS: usize = 4096;

/// What all processes of a world have in common.
#[derive(Clone, Debug)]
pub struct Binary {
    /// What the command line says about rollouts.
    pub rollouts: DeploymentSettings,
    /// What it says about machines.
    pub machines: MachineSettings,
    /// Whether a creation can be repeated.
    pub creation: CreationGuarantee,
    /// How long pods take to end.
    pub pods_end_in: Duration,
    /// A guard that the process lacks.
    pub without: Option<Guard>,
}

impl Default for Binary {
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

/// What a loop is to look at.
pub type Job = (Controller, ObjectKey);

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
    /// Its views of the control cluster.
    pub views: ControlViews,
    /// Its view of the Nodes.
    pub nodes: Arc<Store<NodeSnapshot>>,
    /// Its view of the pods.
    pods: Arc<Store<PodSnapshot>>,
    /// Its view of the attachments of volumes.
    attachments: Arc<Store<AttachmentSnapshot>>,
    /// Cancelled when it loses the lease.
    pub lost: CancellationToken,
    /// What it was refused.
    pub refusals: Refusals,
    /// Whether it gives verdicts. The watch over the API servers, which would freeze it, is not played: the history does.
    freeze: FreezeSwitch,
    /// Where it finds the world during a pass.
    pub stage: Stage,
    /// Its time.
    pub clock: Arc<PlayedClock>,
    /// Its loops.
    loops: Vec<Loop>,
    events: mpsc::Receiver<Pending>,
    /// Driver calls that have no answer yet.
    calls: UnderWay,
    /// Work beside the passes.
    tasks: Begun,
    /// Machines that were woken and are not due yet.
    woken: Woken,
    collector: Arc<Collector>,
    /// What the collector works on, and what it has come to. It waits for the provider within a pass, so that its passes are
    /// tasks here.
    collecting: BTreeSet<ObjectKey>,
    collected: Arc<Mutex<Vec<(ObjectKey, Outcome)>>>,
    news: Arc<Mutex<Vec<News>>>,
    due: BTreeMap<Job, Timestamp>,
    /// Passes that are held up; nobody else works on their jobs.
    open: Vec<Open>,
    failures: BTreeMap<Job, u32>,
    /// A guard that it lacks.
    without: Option<Guard>,
    /// How much of each log its watches have delivered.
    watched: [usize; KINDS],
}

impl Process {
    /// A process that lists everything and then watches.
    pub fn start(api: &Api, now: Timestamp, seed: u64, binary: &Binary) -> Self {
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
            binary,
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
            without: binary.without,
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

    /// The listeners only note what changed: routing them here would make the views hold themselves.
    fn listen(&self) {
        fn attach<S: Snapshot>(store: &Store<S>, news: &Arc<Mutex<Vec<News>>>, wrap: fn(Change<S>) -> News) {
            let news = Arc::clone(news);
            store.set_listeners(vec![Box::new(move |change: &Change<S>| {
                let change = Change { old: change.old.clone(), new: change.new.clone() };
                news.lock().unwrap_or_else(PoisonError::into_inner).push(wrap(change));
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

    /// Wakes what the changes since the last time concern.
    pub fn route(&mut self, now: Timestamp) {
        let all = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// What a change wakes in each loop.
    fn woken<S>(&self, change: &Change<S>, route: fn(&Wakes) -> &Option<Route<S>>) -> Vec<(Controller, Wake)> {
        let routed = |run: &Loop| {
            let wakes = route(&run.wakes).as_ref().map(|route| route(change, &self.views)).unwrap_or_default();
            let of = run.controller;
            wakes.into_iter().map(move |wake| (of, wake))
        };
        self.loops.iter().flat_map(routed).collect()
    }

    /// Machines that a pass or an answer has woken are due.
    fn wake_machines(&mut self, now: Timestamp) {
        let woken = std::mem::take(&mut *lock(&self.woken));
        for key in woken {
            self.wake((Controller::Machine, key), now);
        }
    }

    /// What was refused of an object may be granted once it has changed.
    fn may_be_granted(&self, change: &Change<impl Snapshot>) {
        self.refusals.see(change);
    }

    /// The target cluster is silent, and nothing is concluded from what is seen of it.
    pub fn freezes(&self) {
        self.freeze.tell(Silence::Target);
        self.freeze.set(Freeze::Frozen);
    }

    /// It answers again: all machines are looked at.
    pub fn thaws(&mut self, now: Timestamp) {
        self.freeze.tell(Silence::None);
        self.freeze.set(Freeze::Flowing);
        for machine in self.views.machines.snapshot() {
            self.wake((Controller::Machine, machine.key()), now);
        }
    }

    /// Wants a pass at this time, or earlier if that was wanted already.
    pub fn wake(&mut self, job: Job, at: Timestamp) {
        let due = self.due.entry(job).or_insert(at);
        *due = at.min(*due);
    }

    /// What may be begun, and from when on. The jobs of the collector and of finalizers have ways of their own.
    fn waiting(&self) -> impl Iterator<Item = (&Job, &Timestamp)> {
        let has_own_way = |of| of == Controller::MachineSafetyOrphanVms || FINALIZERS.contains(&of);
        let jobs = self.due.iter().filter(move |((of, _), _)| !has_own_way(*of));
        jobs.filter(|(job, _)| !self.open.iter().any(|open| open.job == **job))
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

    /// The jobs about finalizers of classes and Secrets, and when each is due.
    pub fn finalizers(&self) -> impl Iterator<Item = (&Job, Timestamp)> {
        self.due.iter().filter(|((of, _), _)| FINALIZERS.contains(of)).map(|(job, at)| (job, *at))
    }

    /// Those that are due.
    pub fn finalizers_due(&self, now: Timestamp) -> Vec<Job> {
        self.finalizers().filter(|(_, at)| *at <= now).map(|(job, _)| job.clone()).collect()
    }

    /// When the next job is due; the guard's period does not count.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.next_due_of(|of| of != Controller::MachineSafetyOvershooting)
    }

    /// When the next job of such a loop is due.
    pub fn next_due_of(&self, counts: impl Fn(Controller) -> bool) -> Option<Timestamp> {
        self.waiting().filter(|((of, _), _)| counts(*of)).map(|(_, at)| *at).min()
    }

    /// Lets the collector begin what it is to look at by now; whether there was anything. It goes on when tasks are polled.
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

    /// When the collector looks again at what may come to something: Nodes, and classes with VMs that it suspects.
    pub fn next_collection(&self) -> Option<Timestamp> {
        let matters = |key: &ObjectKey| key.namespace.is_empty() || !self.collector.suspects_of(key).is_empty();
        let jobs = self.due.iter().filter(|((of, key), _)| *of == Controller::MachineSafetyOrphanVms && matters(key));
        jobs.map(|(_, at)| *at).min()
    }

    /// How many passes are held up.
    pub fn held_up(&self) -> usize {
        self.open.len()
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
        (Controller::MachineSafetyOvershooting, overshooting::routing::key_of("ns"))
    }

    /// Everything that there is to look at, due or not.
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

    /// All classes and Secrets that there are to look at, due or not.
    pub fn all_finalizers(&self) -> Vec<Job> {
        let classes = self.views.classes.snapshot();
        let secrets = self.views.secrets.snapshot();
        let classes = classes.iter().map(|class| (Controller::MachineClass, ObjectKey::of(&**class)));
        classes.chain(secrets.iter().map(|secret| (Controller::Secret, ObjectKey::of(&**secret)))).collect()
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

    /// A pass over this job.
    pub fn pass(&self, (of, key): &Job) -> Pass {
        match self.loops.iter().find(|run| run.controller == *of) {
            Some(run) => run.pass(key.clone()),
            None => Box::pin(async { Outcome::Settled }),
        }
    }

    /// Polls a pass, and then the tasks; the world is lent to the process meanwhile. `None` when the pass does not end: it is held
    /// up, or its process has died.
    pub fn poll(&mut self, pass: Option<&mut Pass>) -> Option<Outcome> {
        let _timers = timers();
        let polled = pass.map(|pass| pass.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        self.tasks.poll();
        match polled {
            Some(Poll::Ready(outcome)) => Some(outcome),
            Some(Poll::Pending) | None => None,
        }
    }

    /// The driver calls under way, in the order of their machines.
    pub fn calls_under_way(&self) -> Vec<(CallId, PendingCall)> {
        self.calls.all()
    }

    /// When the driver calls under way began.
    pub fn calls_began(&self) -> impl Iterator<Item = Timestamp> {
        self.calls.all().into_iter().map(|(_, call)| call.began)
    }

    /// The provider answers a driver call; the process learns of it when its tasks are polled.
    pub fn answered(&self, call: &CallId, answer: Answer) {
        self.calls.answer(call, answer);
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
            // Nobody watches tokens.
            Object::Secret(_) => {}
        }
    }
}

/// Machines that are to be looked at.
type Woken = Arc<Mutex<BTreeSet<ObjectKey>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
fn list<S: Snapshot<Object: Kind>>(store: &Store<S>, api: &Api) {
    store.list_begins();
    for object in S::Object::table(api).values() {
        store.apply_shared(Arc::clone(object));
    }
    store.list_ends();
}
