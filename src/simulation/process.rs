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
    deployments::DeploymentMemory,
    machines::{DRAIN_TIME, MachineMemory},
    sets::SetMemory,
};
use crate::{
    api::v1alpha1::{Machine, MachineDeployment, MachineSet},
    cluster::{
        gate::Gate,
        key::ObjectKey,
        queue::Outcome,
        store::{Change, Store},
    },
    controllers::{
        checked::{Checkable, Checked},
        deployment::{self, settings::DeploymentSettings},
        machine::{self, settings::MachineSettings},
        overshooting, set,
        set::routing::Wake,
        views::{ControlViews, node_store},
    },
};

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

/// What a loop is to look at.
pub type Job = (Loop, ObjectKey);

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
    /// Where its deployments and sets come from.
    pub origin: Origin,
    pub(super) sets: BTreeMap<ObjectKey, SetMemory>,
    pub(super) deployments: BTreeMap<ObjectKey, DeploymentMemory>,
    pub(super) machines: BTreeMap<ObjectKey, MachineMemory>,
    pub(super) machine_settings: MachineSettings,
    /// How long its drains take.
    pub(super) drain_time: Duration,
    pub(super) vanished: std::collections::BTreeSet<ObjectKey>,
    news: Arc<Mutex<Vec<News>>>,
    due: BTreeMap<Job, Timestamp>,
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
            origin: Origin::Given,
            sets: BTreeMap::new(),
            deployments: BTreeMap::new(),
            machines: BTreeMap::new(),
            machine_settings: MachineSettings::default(),
            drain_time: DRAIN_TIME,
            vanished: std::collections::BTreeSet::new(),
            news: Arc::default(),
            due: BTreeMap::new(),
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
    pub fn of_history(api: &Api, now: Timestamp, seed: u64) -> Self {
        Self { origin: Origin::Drawn, ..Self::start(api, now, seed) }
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
                self.wake((of, wake.key), later(now, wake.after));
            }
        }
    }

    /// Wants a pass at this time, or earlier if that was wanted already.
    pub fn wake(&mut self, job: Job, at: Timestamp) {
        let due = self.due.entry(job).or_insert(at);
        *due = at.min(*due);
    }

    /// One of the jobs that are due.
    pub fn one_due(&self, now: Timestamp, pick: u16) -> Option<Job> {
        let count = self.due.values().filter(|at| **at <= now).count();
        let place = usize::from(pick).checked_rem(count)?;
        self.due.iter().filter(|(_, at)| **at <= now).nth(place).map(|(job, _)| job.clone())
    }

    /// The jobs that are due, in their order.
    pub fn due(&self, now: Timestamp) -> Vec<Job> {
        self.due.iter().filter(|(_, at)| **at <= now).map(|(job, _)| job.clone()).collect()
    }

    /// When the next job is due; the guard's period does not count.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.iter().filter(|((of, _), _)| *of != Loop::Guard).map(|(_, at)| *at).min()
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

    /// A pass over this job begins.
    pub fn begins(&mut self, job: &Job) {
        self.due.remove(job);
    }

    /// A pass has ended: the queue's rules ([`crate::cluster::queue`]).
    pub fn ends(&mut self, job: Job, outcome: &Outcome, now: Timestamp) {
        match outcome {
            Outcome::Settled => {
                self.failures.remove(&job);
            }
            Outcome::LookAgain(after, _) => {
                self.failures.remove(&job);
                self.wake(job, later(now, *after));
            }
            Outcome::Retry(_) => {
                let failures = self.failures.entry(job.clone()).or_insert(0);
                let pause = Duration::from_millis(5).saturating_mul(1 << (*failures).min(18));
                *failures += 1;
                self.wake(job, later(now, pause.min(Duration::from_secs(1000))));
            }
        }
        self.route(now);
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
