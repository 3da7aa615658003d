//! The kubelets of all simulated VMs, in one task. They register Nodes in the target cluster, send heartbeats, start and end Pods, and attach and
//! detach volumes.
//!
//! The cloud decides which state a Node should have. This module compares every Node with that state, and writes the Nodes that differ. Watches
//! deliver changes of other clients. At most [`CONCURRENCY`] calls run at a time, and all deadlines are in one map. Nodes are in [`nodes`], Pods in
//! [`pods`], `VolumeAttachment`s in [`attachments`], the volumes of Nodes in [`volumes`], and the written objects in [`objects`].
//! Source: spec/providers §7.4–§7.6.

mod attachments;
mod deadlines;
mod nodes;
mod objects;
mod pods;
mod target;
#[cfg(test)]
mod tests;
mod volumes;
mod watched;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt::Debug,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use controller_runtime::{
    error::ApiError,
    key::ObjectKey,
    snapshot::Snapshot,
    store::{Change, Store},
    watch::{Scope, UndecodableObject, Watches, Watching},
};
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join3},
    stream::FuturesUnordered,
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::{
    attachments::{Attaching, AttachmentRecord},
    deadlines::Deadlines,
    nodes::{NodeJob, NodeRecord},
    pods::{PodRecord, PodStep},
    target::{Target, is_conflict, is_final},
    watched::{NodeFacts, PodFacts, Watched},
};
use super::{config::SimulationConfig, draw::Fingerprint, latest::Latest, shared::Shared};

/// The maximum number of concurrent calls to the target cluster.
const CONCURRENCY: usize = 64;
/// The number of consecutive failures above which the delays no longer grow.
const MOST_FAILURES: u32 = 6;
/// The index by the Node of an object.
const BY_NODE: &str = "node";

/// A job for the target cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Job {
    Node(Arc<str>, NodeJob),
    Pod(ObjectKey, PodStep),
    Attachment(Arc<str>, Attaching),
}

/// The call of a job, with what follows from its answer.
type Call = BoxFuture<'static, Result<Then, ApiError>>;

/// A change of the kubelets.
type Then = Box<dyn FnOnce(&mut Kubelet) + Send>;

/// A changed object, and whether it still exists.
enum Event {
    Node(Watched<NodeFacts>, bool),
    Pod(Watched<PodFacts>, bool),
    Attachment(Arc<VolumeAttachment>, bool),
}

/// The changes that were not handled yet, by kind and object.
type Events = Arc<Latest<(&'static str, ObjectKey), Event>>;

/// The kubelets of all simulated VMs.
pub struct Kubelet {
    shared: Arc<Shared>,
    target: Target,
    version: String,
    watched_nodes: Arc<Store<Watched<NodeFacts>>>,
    watched_pods: Arc<Store<Watched<PodFacts>>>,
    watched_attachments: Arc<Store<Arc<VolumeAttachment>>>,
    nodes: BTreeMap<Arc<str>, NodeRecord>,
    pods: HashMap<ObjectKey, PodRecord>,
    attachments: HashMap<Arc<str>, AttachmentRecord>,
    queue: VecDeque<Job>,
    deadlines: Deadlines<Job>,
    calls: FuturesUnordered<BoxFuture<'static, (Job, Result<Then, ApiError>)>>,
    /// The jobs whose calls run. A job never has two calls at once.
    running: HashSet<Job>,
    /// The running jobs that must run again.
    outdated: HashSet<Job>,
    /// The numbers of consecutive failures.
    failures: HashMap<Job, u32>,
}

impl Kubelet {
    /// Creates kubelets that follow the notices of the cloud.
    pub fn new(shared: Arc<Shared>, client: kube::Client) -> Self {
        Self {
            shared,
            target: Target::new(client),
            version: "v0.0.0-virtual".to_owned(),
            watched_nodes: Arc::new(Store::new(Vec::new())),
            watched_pods: Arc::new(Store::new(vec![(BY_NODE, |pod| vec![pod.facts.node.clone()])])),
            watched_attachments: Arc::new(Store::new(vec![(BY_NODE, |found| vec![found.spec.node_name.clone()])])),
            nodes: BTreeMap::new(),
            pods: HashMap::new(),
            attachments: HashMap::new(),
            queue: VecDeque::new(),
            deadlines: Deadlines::new(),
            calls: FuturesUnordered::new(),
            running: HashSet::new(),
            outdated: HashSet::new(),
            failures: HashMap::new(),
        }
    }

    /// Runs until the shutdown, which drops running calls.
    pub async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(Box::pin(self.work())).await;
    }

    async fn work(mut self) {
        if let Ok(Some(version)) = self.target.get::<Value>("/version").await
            && let Some(version) = version.get("gitVersion").and_then(Value::as_str)
        {
            self.version = format!("{version}-virtual");
        }
        let drawn = AtomicU64::new(0);
        let jitter = move || Fingerprint::of(&drawn.fetch_add(1, Ordering::Relaxed).to_string());
        // The watch itself logs objects that can't be decoded.
        let watches = Watches::new(Arc::new(|_: &UndecodableObject| ()), jitter);
        let events: Events = Arc::new(Latest::new());
        let bound = all().with_fields("spec.nodeName!=");
        let mut feeds = pin!(join3(
            self.watch(&watches, "nodes", all(), &self.watched_nodes, &events, Event::Node),
            self.watch(&watches, "pods", bound, &self.watched_pods, &events, Event::Pod),
            self.watch(&watches, "volumeattachments", all(), &self.watched_attachments, &events, Event::Attachment),
        ));
        let nodes = Arc::clone(&self.watched_nodes);
        let mut listed = pin!(nodes.wait_synced());
        let mut knows_nodes = false;
        loop {
            self.start_jobs();
            let deadline = self.deadlines.next();
            // The order is fixed and not random, so that a seed always gives the same history. Finished jobs come first: they end, and later events
            // depend on them.
            tokio::select! {
                biased;
                Some((job, answer)) = self.calls.next(), if !self.calls.is_empty() => self.on_answer(job, answer),
                () = wait(deadline) => {
                    let now = Instant::now();
                    while let Some(job) = self.deadlines.take_due(now) {
                        self.queue.push_back(job);
                    }
                }
                _ = &mut feeds => return,
                event = events.next() => match event {
                    Event::Node(node, is_there) => self.on_node(&node, is_there),
                    Event::Pod(pod, is_there) => self.on_pod(&pod, is_there),
                    Event::Attachment(attachment, is_there) => self.on_attachment(&attachment, is_there),
                },
                () = &mut listed, if !knows_nodes => {
                    knows_nodes = true;
                    self.on_all_nodes();
                }
                // Before the Nodes are known, a new Node could exist already and would be refused.
                notices = self.shared.notices(), if knows_nodes => {
                    // A Node must not show a VM that a killed process would forget.
                    if let Err(error) = self.shared.commit().await {
                        tracing::error!(%error, "the simulation's state is not kept");
                    }
                    for notice in notices {
                        self.on_notice(notice);
                    }
                }
            }
        }
    }

    /// Keeps a store equal to the target cluster, and sends its changes.
    fn watch<S: Snapshot>(
        &self,
        watches: &Watches,
        kind: &'static str,
        watching: Watching<S::Object, S::Object>,
        store: &Arc<Store<S>>,
        events: &Events,
        event: fn(S, bool) -> Event,
    ) -> impl Future<Output = ()> + use<S>
    where
        S::Object: DeserializeOwned + Clone + Debug,
    {
        let events = Arc::clone(events);
        store.set_listeners(vec![Box::new(move |change: &Change<S>| {
            if let Some(object) = change.newest() {
                events.put((kind, object.key()), event(object.clone(), change.new.is_some()));
            }
        })]);
        watches.clone().keep(kind, self.target.client(), watching, Arc::clone(store), CancellationToken::new())
    }

    fn start_jobs(&mut self) {
        while self.calls.len() < CONCURRENCY {
            let Some(job) = self.queue.pop_front() else { return };
            if self.running.contains(&job) {
                self.outdated.insert(job);
                continue;
            }
            let call = match &job {
                Job::Node(name, job) => self.begin_node(name, job),
                Job::Pod(key, step) => self.begin_pod(key, *step),
                Job::Attachment(name, step) => self.begin_attachment(name, *step),
            };
            if let Some(call) = call {
                self.running.insert(job.clone());
                self.calls.push(async move { (job, call.await) }.boxed());
            } else {
                self.failures.remove(&job);
            }
        }
    }

    fn on_answer(&mut self, job: Job, answer: Result<Then, ApiError>) {
        self.running.remove(&job);
        if self.outdated.remove(&job) {
            self.queue.push_back(job.clone());
        }
        let failures = self.failures.remove(&job).unwrap_or(0);
        match answer {
            Ok(then) => then(self),
            Err(error) => self.on_failure(job, failures, &error),
        }
    }

    fn on_failure(&mut self, job: Job, failures: u32, error: &ApiError) {
        match job {
            Job::Node(name, beat @ (NodeJob::Lease(_) | NodeJob::Heartbeat(_))) => {
                log_failure(&(&name, &beat), error);
                self.next_beat(name, beat);
            }
            Job::Node(name, NodeJob::Show) if error.is_not_found() => self.on_node_gone(name),
            // A Node that is registered again shows its volumes. Other objects need nothing more.
            _ if error.is_not_found() => {}
            // There is another Pod with this name.
            Job::Pod(..) if is_conflict(error) => {}
            job => {
                log_failure(&job, error);
                let failures = if is_final(error) { MOST_FAILURES } else { failures + 1 };
                self.failures.insert(job.clone(), failures);
                self.schedule(back_off(&job, failures), job);
            }
        }
    }

    /// Queues a job, now or after some time.
    fn schedule(&mut self, after: Duration, job: Job) {
        if after.is_zero() {
            self.queue.push_back(job);
        } else {
            self.deadlines.set(Instant::now() + after, job);
        }
    }

    fn config(&self) -> Arc<SimulationConfig> {
        self.shared.with(|cloud, _| Arc::clone(cloud.config()))
    }
}

fn all<K>() -> Watching<K, K> {
    Watching::objects(Scope::Cluster, |_| ())
}

async fn wait(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A number from 0 to 1 that is always the same for a name, and equally distributed over names.
#[allow(clippy::cast_precision_loss)] // a spread needs no exact value
fn spread(name: &str, salt: u32) -> f64 {
    let mut hash = Fingerprint::new();
    hash.add(name.as_bytes());
    hash.add(&salt.to_le_bytes());
    (hash.value() >> 11) as f64 / (1_u64 << 53) as f64
}

/// The delay after this number of consecutive failures, with jitter.
fn back_off(job: &Job, failures: u32) -> Duration {
    let longest = Duration::from_millis(500) * 2_u32.pow(failures.min(MOST_FAILURES));
    longest.mul_f64(0.5 + spread(&format!("{job:?}"), failures) / 2.0)
}

fn log_failure(job: &impl Debug, error: &ApiError) {
    if is_final(error) {
        tracing::error!(operation = ?job, %error, "the target cluster refuses a simulated object");
    } else {
        tracing::debug!(operation = ?job, %error, "call failed and is repeated");
    }
}

/// The call of a job, with a change of the kubelets after its success.
fn call<T: Send + 'static>(
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    then: impl FnOnce(&mut Kubelet, T) + Send + 'static,
) -> Call {
    async move {
        let answer = work.await?;
        let then: Then = Box::new(move |kubelet| then(kubelet, answer));
        Ok(then)
    }
    .boxed()
}
