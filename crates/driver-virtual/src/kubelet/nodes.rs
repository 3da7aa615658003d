//! Nodes: registering, showing readiness, heartbeats, coming back, and leaving real Nodes alone.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::runtime::watcher;

use super::{
    CallError, Done, Job, Kubelet, Listed, back_off,
    brief::{NodeBrief, Shown},
    log_call_error, log_watch_error,
    node_reads::{read, remove},
    objects, spread,
    target::{PatchKind, Target},
    volumes::{Listing, NodeVolumes},
};
use crate::cloud::{Happening, Heartbeat, NodeNotice, NodeView, NodeWish, VmRef};

/// How often a Node of the same name that is in the way is looked at again.
const OCCUPIED: Duration = Duration::from_secs(5);
/// How often a heart that may not beat yet tries again.
const NOT_YET: Duration = Duration::from_secs(1);
/// How often a real Node of the same name is looked at again.
const REFUSED: Duration = Duration::from_secs(30);
/// After so long an emulated cloud controller manager deletes the Node of a VM that is gone.
const CCM_DELAY: Duration = Duration::from_secs(60);

/// Something to do about a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodeJob {
    /// Make it show what the cloud says.
    Show,
    /// Renew its Lease, for this VM.
    Lease(VmRef),
    /// Post its status again, for this VM.
    Heartbeat(VmRef),
    /// Make it show its volumes.
    Volumes,
    /// Delete it, if it still belongs to the VM of this identity.
    Remove(Box<str>),
}

/// Whether the Node is in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Absent,
    Shows(Shown),
}

/// Whether something goes on for the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Writing,
    /// It must be looked at again after the write.
    WritingOutdated,
}

/// Whether heartbeats are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beats {
    NotYet,
    Regular,
    Frozen,
}

/// Whether the Lease is in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Missing,
    Exists,
}

/// What is known of a Node of a running VM.
#[derive(Debug)]
pub(super) struct NodeRecord {
    pub(super) vm: VmRef,
    uid: Box<str>,
    presence: Presence,
    activity: Activity,
    beats: Beats,
    lease: Lease,
    failures: u32,
    refusals: u32,
    beat: u32,
    /// Addresses given to Pods.
    pub(super) pods_started: u8,
    /// The volumes that it shows.
    pub(super) volumes: NodeVolumes,
    /// Whether they are being written.
    pub(super) listing: Listing,
}

impl NodeRecord {
    fn new(vm: VmRef) -> Self {
        Self {
            vm,
            uid: Box::default(),
            presence: Presence::Absent,
            activity: Activity::Idle,
            beats: Beats::NotYet,
            lease: Lease::Missing,
            failures: 0,
            refusals: 0,
            beat: 0,
            pods_started: 0,
            volumes: NodeVolumes::default(),
            listing: Listing::default(),
        }
    }

    /// Whether the Node is in the API, as far as is known.
    pub(super) fn is_shown(&self) -> bool {
        self.presence != Presence::Absent
    }

    /// Whether the kubelet of the Node works.
    pub(super) fn works(&self) -> bool {
        self.beats != Beats::Frozen
    }
}

/// A call about a Node that has ended.
#[derive(Debug)]
pub(super) struct NodeDone {
    name: Arc<str>,
    vm: Option<VmRef>,
    result: NodeResult,
}

#[derive(Debug)]
enum NodeResult {
    Posted(Shown, Box<str>),
    Patched(Shown),
    Missing,
    Found(Box<NodeBrief>),
    ShowFailed(CallError),
    Leased(Result<(), CallError>),
    Beaten(Result<(), CallError>),
    Listed(NodeVolumes, Result<(), CallError>),
    Removed(Box<str>, Result<(), CallError>),
}

impl Done {
    /// The volumes of a Node were written, or not.
    pub(super) fn volumes(name: Arc<str>, vm: VmRef, volumes: NodeVolumes, result: Result<(), CallError>) -> Self {
        Self::Node(NodeDone { name, vm: Some(vm), result: NodeResult::Listed(volumes, result) })
    }
}

impl Kubelet {
    pub(super) fn on_notice(&mut self, notice: NodeNotice) {
        let name: Arc<str> = Arc::from(notice.node);
        match notice.wish {
            NodeWish::Show => {
                let known = self.nodes.get(&name).is_some_and(|record| record.vm == notice.vm);
                if !known {
                    let mut record = NodeRecord::new(notice.vm);
                    if let Some(brief) = self.found.remove(&*name) {
                        record.uid = brief.uid().into();
                        self.adopt_presence(&mut record, &brief);
                    }
                    self.nodes.insert(Arc::clone(&name), record);
                    self.place_pods(&name);
                    self.place_attachments(&name);
                }
                self.queue.push_back(Job::Node(name, NodeJob::Show));
            }
            NodeWish::Stop | NodeWish::Gone => {
                if self.nodes.get(&name).is_some_and(|record| record.vm == notice.vm) {
                    self.nodes.remove(&name);
                }
                if notice.wish == NodeWish::Gone && self.config().nodes.ccm {
                    // An empty identity fits every simulated Node of the name whose VM does not run.
                    self.schedule(CCM_DELAY, Job::Node(name, NodeJob::Remove(Box::default())));
                }
            }
        }
    }

    /// Takes a Node for ours when it shows our VM.
    fn adopt_presence(&self, record: &mut NodeRecord, brief: &NodeBrief) {
        let view = self.shared.with(|cloud, _| cloud.node_view(record.vm));
        let ours = view.zip(brief.simulated.as_ref()).is_some_and(|(view, node)| view.provider_id == node.provider_id);
        if ours {
            record.presence = Presence::Shows(brief.ready);
            record.volumes = brief.volumes.clone();
        }
    }

    pub(super) fn on_node_event(&mut self, event: watcher::Result<watcher::Event<NodeBrief>>) -> Listed {
        match event {
            Err(error) => log_watch_error("nodes", &error),
            Ok(watcher::Event::Init) => self.relisted = Some(Vec::new()),
            Ok(watcher::Event::InitApply(node)) => {
                if let Some(relisted) = &mut self.relisted {
                    relisted.push(node);
                }
            }
            Ok(watcher::Event::InitDone) => {
                self.on_all_nodes();
                return Listed::Once;
            }
            Ok(watcher::Event::Apply(node)) => self.on_node_seen(&node),
            Ok(watcher::Event::Delete(node)) => {
                let name: Arc<str> = Arc::from(node.name());
                self.on_node_deleted(&name);
            }
        }
        Listed::NotYet
    }

    fn on_all_nodes(&mut self) {
        let nodes = self.relisted.take().unwrap_or_default();
        let rebuilds = !self.shared.keeps();
        let mut present = std::collections::HashSet::new();
        for node in nodes {
            present.insert(node.name().to_owned());
            if self.nodes.contains_key(node.name()) {
                self.on_node_seen(&node);
            } else if node.simulated.is_some() {
                self.found.insert(node.name().to_owned(), node);
            }
        }
        let missing: Vec<Arc<str>> =
            self.nodes.keys().filter(|name| !present.contains(&***name)).map(Arc::clone).collect();
        for name in missing {
            self.on_node_deleted(&name);
        }
        if rebuilds {
            let mut found: Vec<&NodeBrief> = self.found.values().collect();
            found.sort_by(|a, b| a.name().cmp(b.name()));
            self.shared
                .with(|cloud, now| cloud.adopt_once(found.iter().filter_map(|node| node.known(now)).collect(), now));
        }
        self.shared.knows_its_vms();
    }

    fn on_node_seen(&mut self, node: &NodeBrief) {
        let Some((name, record)) = self.nodes.get_key_value(node.name()) else { return };
        let name = Arc::clone(name);
        let (presence, uid) = (record.presence, &*record.uid != node.uid());
        let Some(record) = self.nodes.get_mut(&name) else { return };
        if uid {
            record.uid = node.uid().into();
        }
        // Others (the node lifecycle controller) took our word for lost: say it again.
        if node.ready == Shown::Unknown && matches!(presence, Presence::Shows(_)) {
            record.presence = Presence::Shows(Shown::Unknown);
            self.queue.push_back(Job::Node(name, NodeJob::Show));
        }
    }

    fn on_node_deleted(&mut self, name: &Arc<str>) {
        self.found.remove(&**name);
        let after = self.config().nodes.reregister;
        let Some(record) = self.nodes.get_mut(name) else { return };
        // The Lease goes with its Node.
        record.lease = Lease::Missing;
        record.uid = Box::default();
        if record.presence != Presence::Absent {
            record.presence = Presence::Absent;
            record.volumes = NodeVolumes::default();
            self.schedule(after, Job::Node(Arc::clone(name), NodeJob::Show));
        }
    }

    pub(super) fn begin_node(&mut self, name: &Arc<str>, job: &NodeJob) -> Option<BoxFuture<'static, Done>> {
        let (target, name) = (self.target.clone(), Arc::clone(name));
        let path = format!("/api/v1/nodes/{name}");
        if let NodeJob::Remove(provider_id) = job {
            let (provider_id, running) = (provider_id.clone(), self.nodes.contains_key(&name));
            let work = async move {
                let result = if running { Ok(()) } else { remove(&target, &path, &provider_id).await };
                Done::Node(NodeDone { name, vm: None, result: NodeResult::Removed(provider_id, result) })
            };
            return Some(work.boxed());
        }
        let vm = self.nodes.get(&name)?.vm;
        let (view, now) = self.shared.with(|cloud, now| (cloud.node_view(vm), now));
        let Some(view) = view else {
            self.nodes.remove(&name);
            return None;
        };
        let record = self.nodes.get_mut(&name)?;
        if view.heartbeat == Heartbeat::Frozen {
            record.beats = Beats::Frozen;
            return None;
        }
        if let NodeJob::Lease(of) | NodeJob::Heartbeat(of) = job {
            if *of != vm {
                // The heart of an earlier VM of the name; this one has its own.
                return None;
            }
            if record.presence == Presence::Absent || record.uid.is_empty() {
                // A Lease must not outlive its Node, so it waits until the watch has shown whose it is.
                self.schedule(NOT_YET, Job::Node(name, job.clone()));
                return None;
            }
        }
        if *job == NodeJob::Volumes {
            return self.begin_volumes(&name);
        }
        let done = move |name, result| Done::Node(NodeDone { name, vm: Some(vm), result });
        match job {
            NodeJob::Show if record.activity != Activity::Idle => {
                record.activity = Activity::WritingOutdated;
                None
            }
            NodeJob::Show => {
                let wanted = objects::wanted_readiness(view.stage);
                let presence = record.presence;
                if presence == Presence::Shows(wanted) {
                    self.begin_beats(&name);
                    return None;
                }
                record.activity = Activity::Writing;
                let version = self.version.clone();
                let work = async move {
                    let result = match presence {
                        Presence::Absent => register(&target, &path, &view, &version, now).await,
                        Presence::Shows(_) => {
                            let patch = objects::node_readiness(view.stage, now);
                            match target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await {
                                Ok(()) => NodeResult::Patched(wanted),
                                Err(error) if error.is_not_found() => NodeResult::Missing,
                                Err(error) => NodeResult::ShowFailed(error),
                            }
                        }
                    };
                    done(name, result)
                };
                Some(work.boxed())
            }
            NodeJob::Lease(_) => {
                let (lease, uid) = (record.lease, record.uid.clone());
                let duration = view.config.nodes.lease_duration.as_secs();
                let work = async move {
                    let all = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
                    let path = format!("{all}/{name}");
                    let made = objects::lease(&name, &uid, duration, now).to_string().into_bytes();
                    let renewal = objects::lease_renewal(now);
                    let mut result = match lease {
                        Lease::Exists => target.patch(&path, PatchKind::Merge, &renewal).await,
                        Lease::Missing => target.create(all, made.clone()).await,
                    };
                    // The other of the two is right when somebody else made or deleted it.
                    if result.as_ref().is_err_and(CallError::is_not_found) && lease == Lease::Exists {
                        result = target.create(all, made).await;
                    } else if result.as_ref().is_err_and(CallError::is_conflict) {
                        result = target.patch(&path, PatchKind::Merge, &renewal).await;
                    }
                    done(name, NodeResult::Leased(result))
                };
                Some(work.boxed())
            }
            NodeJob::Heartbeat(_) => {
                let patch = objects::node_heartbeat(view.stage, now);
                let work = async move {
                    let result = target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await;
                    done(name, NodeResult::Beaten(result))
                };
                Some(work.boxed())
            }
            NodeJob::Remove(_) | NodeJob::Volumes => None,
        }
    }

    pub(super) fn on_node_done(&mut self, done: NodeDone) {
        let NodeDone { name, vm, result } = done;
        if let NodeResult::Removed(provider_id, result) = result {
            if let Err(error) = result {
                log_call_error("remove node", &name, &error);
                self.schedule(OCCUPIED, Job::Node(name, NodeJob::Remove(provider_id)));
            }
            return;
        }
        let record = self.nodes.get_mut(&name).filter(|record| Some(record.vm) == vm);
        let Some(record) = record else {
            // The VM ended while its Node was being registered: nobody else knows of this Node.
            if let NodeResult::Posted(_, provider_id) = result {
                self.queue.push_back(Job::Node(name, NodeJob::Remove(provider_id)));
            }
            return;
        };
        match result {
            NodeResult::Leased(result) => {
                match result {
                    Ok(()) => record.lease = Lease::Exists,
                    Err(error) => log_call_error("lease", &name, &error),
                }
                self.next_beat(&name, NodeJob::Lease);
            }
            NodeResult::Beaten(result) => {
                if let Err(error) = result {
                    log_call_error("node status", &name, &error);
                }
                self.next_beat(&name, NodeJob::Heartbeat);
            }
            NodeResult::Listed(volumes, result) => self.on_volumes_done(name, volumes, result),
            NodeResult::Posted(shown, _) | NodeResult::Patched(shown) => {
                record.failures = 0;
                record.presence = Presence::Shows(shown);
                // What came meanwhile, and whether there is anything left to do, is looked at again.
                record.activity = Activity::Idle;
                self.queue.push_back(Job::Node(Arc::clone(&name), NodeJob::Show));
                self.queue.push_back(Job::Node(name, NodeJob::Volumes));
            }
            NodeResult::Missing => {
                record.activity = Activity::Idle;
                record.presence = Presence::Absent;
                let after = self.config().nodes.reregister;
                self.schedule(after, Job::Node(name, NodeJob::Show));
            }
            NodeResult::Found(node) => {
                record.activity = Activity::Idle;
                self.on_name_taken(&name, &node);
            }
            NodeResult::ShowFailed(error) => {
                record.activity = Activity::Idle;
                record.failures += 1;
                let after = back_off(&name, if error.is_final() { 6 } else { record.failures });
                log_call_error("node", &name, &error);
                self.schedule(after, Job::Node(name, NodeJob::Show));
            }
            NodeResult::Removed(..) => {}
        }
    }

    /// A Node of our name was there before us.
    fn on_name_taken(&mut self, name: &Arc<str>, node: &NodeBrief) {
        let Some(mut record) = self.nodes.remove(name) else { return };
        self.adopt_presence(&mut record, node);
        let mut after = OCCUPIED;
        if record.presence != Presence::Absent {
            record.uid = node.uid().into();
            after = Duration::ZERO;
        } else if node.simulated.is_none() {
            after = REFUSED;
            record.refusals += 1;
            if record.refusals == 1 {
                tracing::warn!(node = %name, "FailedPrecondition: a Node of this name exists and is not simulated; it is left alone");
                self.shared.with(|cloud, now| cloud.note(record.vm, Happening::NodeRefused, now));
            }
        }
        self.nodes.insert(Arc::clone(name), record);
        self.schedule(after, Job::Node(Arc::clone(name), NodeJob::Show));
    }

    /// Sets the first heartbeats of a Node, spread evenly over their intervals by its name.
    fn begin_beats(&mut self, name: &Arc<str>) {
        let nodes = &self.config().nodes;
        let Some(record) = self.nodes.get_mut(name).filter(|record| record.beats == Beats::NotYet) else { return };
        record.beats = Beats::Regular;
        let vm = record.vm;
        if !nodes.lease_interval.is_zero() {
            let first = nodes.lease_interval.mul_f64(spread(name, 0)).max(Duration::from_millis(1));
            self.schedule(first, Job::Node(Arc::clone(name), NodeJob::Lease(vm)));
        }
        if !nodes.status_period.is_zero() {
            let first = nodes.status_period.mul_f64(0.9 + 0.2 * spread(name, 1));
            self.schedule(first, Job::Node(Arc::clone(name), NodeJob::Heartbeat(vm)));
        }
    }

    /// Sets the next heartbeat: leases within 4 %, statuses within 10 % of their interval.
    fn next_beat(&mut self, name: &Arc<str>, job: impl FnOnce(VmRef) -> NodeJob) {
        let nodes = &self.config().nodes;
        let Some(record) = self.nodes.get_mut(name) else { return };
        let job = job(record.vm);
        let (interval, width) = match job {
            NodeJob::Lease(_) => (nodes.lease_interval, 0.04),
            _ => (nodes.status_period, 0.1),
        };
        record.beat = record.beat.wrapping_add(1);
        if interval.is_zero() {
            // Switched off by a changed configuration; a restart takes it up again.
            return;
        }
        let after = interval.mul_f64(1.0 - width + 2.0 * width * spread(name, record.beat.wrapping_add(2)));
        self.schedule(after, Job::Node(Arc::clone(name), job));
    }
}

/// Makes the Node, or reads the one that has its name.
async fn register(target: &Target, path: &str, view: &NodeView, version: &str, now: jiff::Timestamp) -> NodeResult {
    let body = objects::node(view, version, now).to_string().into_bytes();
    let shown = objects::wanted_readiness(view.stage);
    match target.create("/api/v1/nodes", body).await {
        Ok(()) => NodeResult::Posted(shown, view.provider_id.as_str().into()),
        Err(error) if error.is_conflict() => match read(target, path).await {
            Ok(Some(node)) => NodeResult::Found(Box::new(node)),
            Ok(None) => NodeResult::ShowFailed(error),
            Err(error) => NodeResult::ShowFailed(error),
        },
        Err(error) => NodeResult::ShowFailed(error),
    }
}
