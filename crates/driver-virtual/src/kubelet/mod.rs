//! The kubelets of all simulated VMs, in one task: they join Nodes to the target cluster and keep them alive, start and
//! end Pods, attach and detach volumes.
//!
//! What a Node should show is decided by the cloud; here every Node is compared with it and written when it differs.
//! Watches see what others do. At most [`CONCURRENCY`] calls are in flight; all waiting is in one deadline structure.
//! Nodes are in [`nodes`], Pods in [`pods`], `VolumeAttachment`s in [`attachments`], the volumes that Nodes show in
//! [`volumes`], the written objects in [`objects`].
//! Source: spec/providers §7.4–§7.6.

mod attachments;
mod brief;
mod deadlines;
mod node_reads;
mod nodes;
mod objects;
mod pods;
mod target;
#[cfg(test)]
mod tests;
mod volumes;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{BoxStream, FuturesUnordered},
};
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    attachments::{Attaching, AttachmentRecord},
    brief::{AttachmentBrief, NodeBrief, PodBrief},
    deadlines::Deadlines,
    nodes::{NodeJob, NodeRecord},
    pods::{PodRecord, PodStep},
    target::{CallError, Target},
};
use super::{cloud::NodeNotice, config::SimulationConfig, draw::Fingerprint, shared::Shared};

/// Calls to the target cluster at a time.
const CONCURRENCY: usize = 64;
/// Pods, and attachments, on nodes that are not known yet; beyond it they are forgotten.
const UNPLACED: usize = 10_000;

/// Something to do against the target cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Job {
    Node(Arc<str>, NodeJob),
    Pod(Arc<str>, PodStep),
    Attachment(Arc<str>, Attaching),
}

/// What came of it.
#[derive(Debug)]
enum Done {
    Node(nodes::NodeDone),
    Pod(pods::PodDone),
    Attachment(attachments::AttachmentDone),
}

/// The kubelets of all simulated VMs.
pub struct Kubelet {
    shared: Arc<Shared>,
    target: Target,
    notices: Option<mpsc::UnboundedReceiver<NodeNotice>>,
    version: String,
    /// In order, as are the unplaced pods: what is done about several of them must not depend on a hash.
    nodes: BTreeMap<Arc<str>, NodeRecord>,
    /// Simulated Nodes that were there at the start and whose VM has not been told of yet.
    found: HashMap<String, NodeBrief>,
    /// Names seen since a watch began anew; `None` while none begins.
    relisted: Option<Vec<NodeBrief>>,
    pods: HashMap<Arc<str>, PodRecord>,
    unplaced: BTreeMap<Arc<str>, PodBrief>,
    attachments: HashMap<Arc<str>, AttachmentRecord>,
    unplaced_attachments: HashMap<Arc<str>, AttachmentBrief>,
    queue: VecDeque<Job>,
    deadlines: Deadlines<Job>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Kubelet {
    /// Kubelets that follow the cloud's notices.
    pub fn new(shared: Arc<Shared>, client: kube::Client, notices: mpsc::UnboundedReceiver<NodeNotice>) -> Self {
        Self {
            shared,
            target: Target::new(client),
            notices: Some(notices),
            version: "v0.0.0-virtual".to_owned(),
            nodes: BTreeMap::new(),
            found: HashMap::new(),
            relisted: None,
            pods: HashMap::new(),
            unplaced: BTreeMap::new(),
            attachments: HashMap::new(),
            unplaced_attachments: HashMap::new(),
            queue: VecDeque::new(),
            deadlines: Deadlines::new(),
            in_flight: FuturesUnordered::new(),
        }
    }

    /// Works until the end. Calls in flight are given up then.
    pub async fn run(self, shutdown: CancellationToken) {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = self.work() => {}
        }
    }

    async fn work(mut self) {
        let Some(mut notices) = self.notices.take() else { return };
        if let Ok(version) = self.target.get("/version").await
            && let Some(version) = version.get("gitVersion").and_then(serde_json::Value::as_str)
        {
            self.version = format!("{version}-virtual");
        }
        let mut nodes = self.watch::<NodeBrief>(watcher::Config::default());
        let mut pods = self.watch::<PodBrief>(watcher::Config::default().fields("spec.nodeName!="));
        let mut attachments = self.watch::<AttachmentBrief>(watcher::Config::default());
        let mut listed = Listed::NotYet;
        loop {
            self.start_jobs();
            let deadline = self.deadlines.next();
            // In this order and not by lot, so that one seed replays one history. What is under way goes first: it is what
            // the events to come follow from, and it ends.
            tokio::select! {
                biased;
                Some(done) = self.in_flight.next(), if !self.in_flight.is_empty() => self.on_done(done),
                () = wait(deadline) => {
                    let now = Instant::now();
                    while let Some(job) = self.deadlines.take_due(now) {
                        self.queue.push_back(job);
                    }
                }
                Some(event) = nodes.next() => {
                    if self.on_node_event(event) == Listed::Once {
                        listed = Listed::Once;
                    }
                }
                Some(event) = pods.next() => self.on_pod_event(event),
                Some(event) = attachments.next() => self.on_attachment_event(event),
                // Before the Nodes are known, each would be made again only to be refused.
                Some(notice) = notices.recv(), if listed == Listed::Once => {
                    let mut all = vec![notice];
                    while let Ok(notice) = notices.try_recv() {
                        all.push(notice);
                    }
                    // No Node may show a VM that a killed process would forget.
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

    fn watch<K>(&self, config: watcher::Config) -> BoxStream<'static, watcher::Result<watcher::Event<K>>>
    where
        K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug + Send + 'static,
    {
        let config = config.any_semantic().timeout(180);
        watcher(Api::all(self.target.client()), config).default_backoff().boxed()
    }

    fn start_jobs(&mut self) {
        while self.in_flight.len() < CONCURRENCY {
            let Some(job) = self.queue.pop_front() else { return };
            let begun = match job {
                Job::Node(name, job) => self.begin_node(&name, &job),
                Job::Pod(path, step) => self.begin_pod(&path, step),
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

    /// Does something now or later.
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

/// Whether all Nodes of the target cluster were seen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    NotYet,
    Once,
}

async fn wait(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A number from 0 to 1 that is always the same for a name, and evenly spread over names.
#[allow(clippy::cast_precision_loss)] // a spread needs no exact value
fn spread(name: &str, salt: u32) -> f64 {
    let mut hash = Fingerprint::new();
    hash.add(name.as_bytes());
    hash.add(&salt.to_le_bytes());
    (hash.value() >> 11) as f64 / (1_u64 << 53) as f64
}

/// How long to wait after so many failures in a row; never the same for all.
fn back_off(name: &str, failures: u32) -> Duration {
    let longest = Duration::from_millis(500) * 2_u32.pow(failures.min(6));
    longest.mul_f64(0.5 + spread(name, failures) / 2.0)
}

fn log_watch_error(kind: &str, error: &watcher::Error) {
    tracing::warn!(kind, %error, "watch of the target cluster is interrupted");
}

fn log_call_error(what: &str, name: &str, error: &CallError) {
    if error.is_final() {
        tracing::error!(what, name, %error, "the target cluster refuses a simulated object");
    } else {
        tracing::debug!(what, name, %error, "call failed and is repeated");
    }
}
