//! One controller process of the simulation: its views, what it has yet to look at, and what it remembers.
//!
//! Views, indexes and wake-ups are the real ones; what a crash forgets is forgotten here. Passes are in [`super::sets`],
//! [`super::deployments`], [`super::machines`] and [`super::guard`].

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use tokio_util::sync::CancellationToken;

use super::{
    api::{Api, Event, Kind, Object},
    calls::Calls,
    deployments::{DeploymentDecided, DeploymentMemory},
    machines::{DRAIN_TIME, MachineMemory},
    sets::{SetDecided, SetMemory},
};
use controller_runtime::{
    gate::Gate,
    key::ObjectKey,
    queue::Outcome,
    refusals::Ledger,
    store::{Change, Store},
};
use machine_api::v1alpha1::{Machine, MachineDeployment, MachineSet};
use machine_controllers::{
    checked::{Checkable, Checked},
    deployment::{self, AvailabilityRule, settings::DeploymentSettings},
    machine::{self, observation::CreationGuarantee, settings::MachineSettings},
    overshooting,
    set::{
        self,
        routing::{Strength, Wake},
    },
    views::{ControlViews, node_store},
};

/// A pass takes no longer. One that does may overlap with what comes when a rollout's patience is over
/// ([`deployment::settling::PATIENCE`]).
const MOST_OPEN: Duration = Duration::from_secs(5);

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

/// Where the objects that a process works on come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From somebody: they may break the rules of admission.
    Given,
    /// From a history: they break none. To ask would cost a tenth of all the time.
    Drawn,
}

/// What all processes of a history have in common.
#[derive(Clone, Copy, Debug)]
pub struct Binary {
    /// Whether a creation can be repeated.
    pub creation: CreationGuarantee,
    /// Which machines rollouts count on.
    pub counts: AvailabilityRule,
}

/// What a loop is to look at.
pub type Job = (Loop, ObjectKey);

/// What a loop has decided and not carried out yet.
pub enum Decided {
    /// About a deployment.
    Deployment(DeploymentDecided),
    /// About a set.
    Set(SetDecided),
}

/// The second half of a pass that has begun.
struct Open {
    job: Job,
    decided: Box<Decided>,
    began: Timestamp,
}

/// How much of a pass is done at once: others may come between a decision and the deeds.
pub enum Work {
    /// All of it.
    Whole,
    /// What is decided is kept for later. Loops that are not known to do that do all.
    Decide,
    /// That which was decided is done.
    Act(Box<Decided>),
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
    /// What its command line says about rollouts.
    pub settings: DeploymentSettings,
    /// Cancelled when it loses the lease.
    pub lost: CancellationToken,
    /// What it was refused.
    pub refusals: Arc<Mutex<Ledger>>,
    /// Where its deployments and sets come from.
    pub origin: Origin,
    pub(super) sets: BTreeMap<ObjectKey, SetMemory>,
    pub(super) deployments: BTreeMap<ObjectKey, DeploymentMemory>,
    pub(super) machines: BTreeMap<ObjectKey, MachineMemory>,
    /// When its first pass over a machine began.
    pub(super) machines_since: Option<Timestamp>,
    pub(super) machine_settings: MachineSettings,
    /// How long its drains take.
    pub(super) drain_time: Duration,
    /// Whether a creation can be repeated.
    pub(super) creation: CreationGuarantee,
    pub(super) vanished: std::collections::BTreeSet<ObjectKey>,
    /// Since when the orphan collector has suspected VMs, by their identity.
    pub(super) suspects: BTreeMap<String, Timestamp>,
    /// When it looks again.
    pub(super) collects_at: Timestamp,
    news: Arc<Mutex<Vec<News>>>,
    due: BTreeMap<Job, Timestamp>,
    /// Jobs that are decided on and not done; nobody else works on them.
    open: Vec<Open>,
    failures: BTreeMap<Job, u32>,
    /// How much of each log its watches have delivered.
    watched: [usize; 4],
    seed: u64,
}

impl Process {
    /// A process that lists everything and then watches.
    pub fn start(api: &Api, now: Timestamp, seed: u64) -> Self {
        let lost = CancellationToken::new();
        let mut process = Self {
            views: ControlViews::default(),
            nodes: node_store(),
            gate: Gate::open_until(lost.clone()),
            settings: DeploymentSettings::default(),
            lost,
            refusals: Arc::default(),
            origin: Origin::Given,
            sets: BTreeMap::new(),
            deployments: BTreeMap::new(),
            machines: BTreeMap::new(),
            machines_since: None,
            machine_settings: MachineSettings::default(),
            drain_time: DRAIN_TIME,
            creation: CreationGuarantee::Idempotent,
            vanished: std::collections::BTreeSet::new(),
            suspects: BTreeMap::new(),
            collects_at: now,
            news: Arc::default(),
            due: BTreeMap::new(),
            open: Vec::new(),
            failures: BTreeMap::new(),
            watched: [0; 4],
            seed,
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

    /// A process of a history.
    pub fn of_history(api: &Api, now: Timestamp, seed: u64, Binary { creation, counts }: Binary) -> Self {
        let process = Self::start(api, now, seed);
        let settings = DeploymentSettings { availability: counts, ..process.settings };
        Self { origin: Origin::Drawn, creation, settings, ..process }
    }

    /// What the rules of admission say of an object.
    pub(super) fn checked<K: Checkable>(origin: Origin, object: &Arc<K>, known: Option<&Checked<K>>) -> Checked<K> {
        match origin {
            Origin::Drawn if !cfg!(debug_assertions) => Checked::fine(object),
            Origin::Drawn | Origin::Given => {
                let found = Checked::of(object, known);
                debug_assert!(origin == Origin::Given || Checked::errors(object, Some(&found)).is_empty());
                found
            }
        }
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
                News::Machine(change) => self.may_be_granted(change, now),
                News::Set(change) => self.may_be_granted(change, now),
                News::Deployment(change) => self.may_be_granted(change, now),
                News::Node(change) => self.may_be_granted(change, now),
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
    fn may_be_granted<K: Kind>(&self, change: &Change<K>, now: Timestamp) {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).see(change, steady(now));
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

    /// One of the decisions that are not carried out yet.
    pub fn take_open(&mut self, pick: u16) -> Option<(Job, Box<Decided>)> {
        let place = usize::from(pick).checked_rem(self.open.len())?;
        let Open { job, decided, .. } = self.open.remove(place);
        Some((job, decided))
    }

    /// One of those that must not wait until then: nobody counts on what takes as long as a rollout's patience.
    pub fn take_overdue(&mut self, then: Timestamp) -> Option<(Job, Box<Decided>)> {
        let place = self.open.iter().position(|open| later(open.began, MOST_OPEN) < then)?;
        let Open { job, decided, .. } = self.open.remove(place);
        Some((job, decided))
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

    /// Work on this job begins. What has woken it since it was decided on wakes it again afterwards.
    pub fn begins(&mut self, job: &Job, work: &Work) {
        if !matches!(work, Work::Act(_)) {
            self.due.remove(job);
        }
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

    /// Works on a job; `None` when it is decided on and what is to be done is kept for later.
    pub fn work(&mut self, calls: &mut Calls<'_>, job: &Job, work: Work) -> Option<Outcome> {
        let (of, key) = job;
        let decided = match (work, of) {
            (Work::Decide, Loop::Deployment) => self.decide_on_deployment(calls, key).map(Decided::Deployment),
            (Work::Decide, Loop::Set) => self.decide_on_set(calls, key).map(Decided::Set),
            (Work::Act(decided), _) => Err(match *decided {
                Decided::Deployment(decided) => self.carry_out_deployment(calls, key, decided),
                Decided::Set(decided) => self.carry_out_set(calls, key, decided),
            }),
            (Work::Whole, Loop::Deployment) => Err(self.deployment_pass(calls, key)),
            (Work::Whole, Loop::Set) => Err(self.set_pass(calls, key)),
            (_, Loop::Machine) => Err(self.machine_pass(calls, key)),
            (_, Loop::Guard) => Err(self.guard_pass(calls, key)),
        };
        match decided {
            Ok(decided) => {
                self.open.push(Open { job: job.clone(), decided: Box::new(decided), began: calls.now });
                None
            }
            Err(outcome) => Some(outcome),
        }
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

    /// A number that was not drawn before.
    pub fn draw(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.seed
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
