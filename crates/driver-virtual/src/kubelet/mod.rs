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
    collections::{BTreeMap, HashMap, VecDeque},
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
    watch::{Poison, Scope, Watches, Watching},
};
use futures::{
    StreamExt,
    future::{BoxFuture, join3},
    stream::FuturesUnordered,
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    attachments::{Attaching, AttachmentRecord},
    deadlines::Deadlines,
    nodes::{NodeJob, NodeRecord},
    pods::{PodRecord, PodStep},
    target::Target,
    watched::{NodeFacts, PodFacts, Watched},
};
use super::{cloud::NodeNotice, config::SimulationConfig, draw::Fingerprint, shared::Shared};

/// The maximum number of concurrent calls to the target cluster.
const CONCURRENCY: usize = 64;
/// The index by the Node of an object.
const BY_NODE: &str = "node";

/// A job for the target cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Job {
    Node(Arc<str>, NodeJob),
    Pod(ObjectKey, PodStep),
    Attachment(Arc<str>, Attaching),
}

/// The result of a job.
#[derive(Debug)]
enum Done {
    Node(nodes::NodeDone),
    Pod(pods::PodDone),
    Attachment(attachments::AttachmentDone),
}

/// A changed object, and whether it still exists.
#[derive(Debug)]
enum Event {
    Node(Watched<NodeFacts>, bool),
    Pod(Watched<PodFacts>, bool),
    Attachment(Arc<VolumeAttachment>, bool),
}

/// The kubelets of all simulated VMs.
pub struct Kubelet {
    shared: Arc<Shared>,
    target: Target,
    notices: mpsc::UnboundedReceiver<NodeNotice>,
    version: String,
    watched_nodes: Arc<Store<Watched<NodeFacts>>>,
    watched_pods: Arc<Store<Watched<PodFacts>>>,
    watched_attachments: Arc<Store<Arc<VolumeAttachment>>>,
    nodes: BTreeMap<Arc<str>, NodeRecord>,
    pods: HashMap<ObjectKey, PodRecord>,
    attachments: HashMap<Arc<str>, AttachmentRecord>,
    queue: VecDeque<Job>,
    deadlines: Deadlines<Job>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Kubelet {
    /// Creates kubelets that follow the notices of the cloud.
    pub fn new(shared: Arc<Shared>, client: kube::Client, notices: mpsc::UnboundedReceiver<NodeNotice>) -> Self {
        Self {
            shared,
            target: Target::new(client),
            notices,
            version: "v0.0.0-virtual".to_owned(),
            watched_nodes: Arc::new(Store::new(Vec::new())),
            watched_pods: Arc::new(Store::new(vec![(BY_NODE, |pod| vec![pod.facts.node.clone()])])),
            watched_attachments: Arc::new(Store::new(vec![(BY_NODE, |found| vec![found.spec.node_name.clone()])])),
            nodes: BTreeMap::new(),
            pods: HashMap::new(),
            attachments: HashMap::new(),
            queue: VecDeque::new(),
            deadlines: Deadlines::new(),
            in_flight: FuturesUnordered::new(),
        }
    }

    /// Runs until the shutdown, which drops calls in flight.
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
        let watches = Watches::new(Arc::new(|_: &Poison| ()), jitter);
        let (sender, mut events) = mpsc::unbounded_channel();
        let bound = all().with_fields("spec.nodeName!=");
        let mut feeds = pin!(join3(
            self.watch(&watches, "nodes", all(), &self.watched_nodes, &sender, Event::Node),
            self.watch(&watches, "pods", bound, &self.watched_pods, &sender, Event::Pod),
            self.watch(&watches, "volumeattachments", all(), &self.watched_attachments, &sender, Event::Attachment),
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
                Some(done) = self.in_flight.next(), if !self.in_flight.is_empty() => self.on_done(done),
                () = wait(deadline) => {
                    let now = Instant::now();
                    while let Some(job) = self.deadlines.take_due(now) {
                        self.queue.push_back(job);
                    }
                }
                _ = &mut feeds => return,
                Some(event) = events.recv() => match event {
                    Event::Node(node, is_there) => self.on_node(&node, is_there),
                    Event::Pod(pod, is_there) => self.on_pod(&pod, is_there),
                    Event::Attachment(attachment, is_there) => self.on_attachment(&attachment, is_there),
                },
                () = &mut listed, if !knows_nodes => {
                    knows_nodes = true;
                    self.on_all_nodes();
                }
                // Before the Nodes are known, a new Node could exist already and would be refused.
                Some(notice) = self.notices.recv(), if knows_nodes => {
                    let mut all = vec![notice];
                    while let Ok(notice) = self.notices.try_recv() {
                        all.push(notice);
                    }
                    // A Node must not show a VM that a killed process would forget.
                    if let Err(error) = self.shared.commit().await {
                        tracing::error!(%error, "the simulation's state is not kept");
                    }
                    for notice in all {
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
        events: &mpsc::UnboundedSender<Event>,
        event: fn(S, bool) -> Event,
    ) -> impl Future<Output = ()> + use<S>
    where
        S::Object: DeserializeOwned + Clone + Debug,
    {
        let events = events.clone();
        store.set_listeners(vec![Box::new(move |change: &Change<S>| {
            if let Some(object) = change.newest() {
                // The receiver lives as long as the watch.
                drop(events.send(event(object.clone(), change.new.is_some())));
            }
        })]);
        watches.clone().keep(kind, self.target.client(), watching, Arc::clone(store), CancellationToken::new())
    }

    fn start_jobs(&mut self) {
        while self.in_flight.len() < CONCURRENCY {
            let Some(job) = self.queue.pop_front() else { return };
            let begun = match job {
                Job::Node(name, job) => self.begin_node(&name, job),
                Job::Pod(key, step) => self.begin_pod(&key, step),
                Job::Attachment(name, step) => self.begin_attachment(&name, step),
            };
            self.in_flight.extend(begun);
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Node(done) => self.on_node_done(done),
            Done::Pod(done) => self.on_pod_done(done),
            Done::Attachment(done) => self.on_attachment_done(done),
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
fn back_off(name: &str, failures: u32) -> Duration {
    let longest = Duration::from_millis(500) * 2_u32.pow(failures.min(6));
    longest.mul_f64(0.5 + spread(name, failures) / 2.0)
}

fn log_call_error(what: &str, name: &str, error: &ApiError) {
    if target::is_final(error) {
        tracing::error!(what, name, %error, "the target cluster refuses a simulated object");
    } else {
        tracing::debug!(what, name, %error, "call failed and is repeated");
    }
}
