//! Nodes: registration, readiness, heartbeats and re-registration. Nodes that are not simulated are not changed.

use std::{sync::Arc, time::Duration};

use controller_runtime::{error::ApiError, key::ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::{
    Call, Job, Kubelet, call, objects, spread,
    target::{PatchKind, Target, is_conflict},
    volumes::NodeVolumes,
    watched::{NodeFacts, Readiness, Watched},
};
use crate::cloud::{EventKind, Heartbeat, NodeAction, NodeNotice, NodeView, VmRef};

/// The interval between checks of another simulated Node with the same name.
const OCCUPIED: Duration = Duration::from_secs(5);
/// The delay of a heartbeat whose Node is not known to the watch yet.
const NOT_YET: Duration = Duration::from_secs(1);
/// The interval between checks of a real Node with the same name.
const REFUSED: Duration = Duration::from_secs(30);
/// The time after which a simulated cloud controller manager deletes the Node of a VM that is gone.
const CCM_DELAY: Duration = Duration::from_secs(60);

/// A job for a Node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum NodeJob {
    /// Show the state of the cloud.
    Show,
    /// Renew the Lease for this VM.
    Lease(VmRef),
    /// Update the status for this VM.
    Heartbeat(VmRef),
    /// Show the volumes.
    Volumes,
    /// Delete the Node if it still belongs to the VM with this provider id.
    Remove(Box<str>),
}

/// Whether heartbeats are scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Beats {
    #[default]
    NotYet,
    Regular,
    Frozen,
}

/// The state of the Node of a running VM.
#[derive(Debug, Default)]
pub(super) struct NodeRecord {
    pub(super) vm: VmRef,
    /// The readiness that the Node shows. `None` while the Node does not exist, as far as is known.
    shows: Option<Readiness>,
    beats: Beats,
    has_lease: bool,
    /// Whether a real Node with the name was found.
    is_refused: bool,
    beat: u32,
    /// The number of addresses given to Pods.
    pub(super) pods_started: u8,
    /// The volumes that the Node shows.
    pub(super) volumes: NodeVolumes,
}

impl NodeRecord {
    /// Whether the Node exists, as far as is known.
    pub(super) fn is_shown(&self) -> bool {
        self.shows.is_some()
    }

    /// Whether the kubelet of the Node works.
    pub(super) fn works(&self) -> bool {
        self.beats != Beats::Frozen
    }

    /// Uses an existing Node.
    fn adopt(&mut self, node: &NodeFacts) {
        self.shows = Some(node.ready);
        self.volumes = node.volumes.clone();
    }
}

/// The result of showing a Node.
enum Shown {
    /// The Node was created for the VM with this provider id.
    Created(Box<str>),
    Patched,
    /// Another Node with this name exists.
    Found(Watched<NodeFacts>),
}

impl Kubelet {
    pub(super) fn on_notice(&mut self, notice: NodeNotice) {
        let name: Arc<str> = Arc::from(notice.node);
        let is_known = self.nodes.get(&name).is_some_and(|record| record.vm == notice.vm);
        match notice.action {
            NodeAction::Show => {
                if !is_known {
                    let mut record = NodeRecord { vm: notice.vm, ..NodeRecord::default() };
                    if let Some(node) = self.watched(&name).filter(|node| self.is_ours(notice.vm, node)) {
                        record.adopt(&node.facts);
                    }
                    self.nodes.insert(Arc::clone(&name), record);
                    self.place_pods(&name);
                    self.place_attachments(&name);
                }
                self.queue.push_back(Job::Node(name, NodeJob::Show));
            }
            NodeAction::Stop | NodeAction::Gone => {
                if is_known {
                    self.nodes.remove(&name);
                }
                if notice.action == NodeAction::Gone && self.config().nodes.ccm {
                    // An empty provider id matches every simulated Node with this name whose VM does not run.
                    self.schedule(CCM_DELAY, Job::Node(name, NodeJob::Remove(Box::default())));
                }
            }
        }
    }

    /// The Node with this name.
    fn watched(&self, name: &str) -> Option<Watched<NodeFacts>> {
        self.watched_nodes.get(&ObjectKey::cluster_scoped(name))
    }

    /// Whether a Node belongs to this VM.
    fn is_ours(&self, vm: VmRef, node: &Watched<NodeFacts>) -> bool {
        let view = self.shared.with(|cloud, _| cloud.node_view(vm));
        let both = view.zip(node.facts.simulated.as_ref());
        both.is_some_and(|(view, node)| *view.vm.provider_id == *node.provider_id)
    }

    /// Called when all Nodes of the target cluster are known.
    pub(super) fn on_all_nodes(&self) {
        if !self.shared.keeps() {
            let nodes = self.watched_nodes.snapshot();
            self.shared
                .with(|cloud, now| cloud.adopt_once(nodes.iter().filter_map(|node| node.known(now)).collect(), now));
        }
        self.shared.has_rebuilt();
    }

    pub(super) fn on_node(&mut self, node: &Watched<NodeFacts>, is_there: bool) {
        let Some((name, _)) = self.nodes.get_key_value(node.key.name.as_str()) else { return };
        let name = Arc::clone(name);
        let Some(record) = self.nodes.get_mut(&name).filter(|record| record.is_shown()) else { return };
        if !is_there {
            self.on_node_gone(name);
        } else if node.facts.ready == Readiness::Unknown {
            // Another controller has set the readiness to unknown (the node lifecycle controller), so it is written again.
            record.shows = Some(Readiness::Unknown);
            self.queue.push_back(Job::Node(name, NodeJob::Show));
        }
    }

    /// Called when a Node no longer exists, although its VM runs. Its Lease was deleted with it.
    pub(super) fn on_node_gone(&mut self, name: Arc<str>) {
        let after = self.config().nodes.reregister;
        let Some(record) = self.nodes.get_mut(&name) else { return };
        (record.shows, record.has_lease, record.volumes) = (None, false, NodeVolumes::default());
        self.schedule(after, Job::Node(name, NodeJob::Show));
    }

    pub(super) fn begin_node(&mut self, name: &Arc<str>, job: &NodeJob) -> Option<Call> {
        let (target, name, path) = (self.target.clone(), Arc::clone(name), format!("/api/v1/nodes/{name}"));
        if let NodeJob::Remove(provider_id) = job {
            let provider_id = provider_id.clone();
            let runs = self.nodes.contains_key(&name);
            return (!runs).then(|| call(async move { remove(&target, &path, &provider_id).await }, |_, ()| ()));
        }
        let vm = self.nodes.get(&name)?.vm;
        let (view, now) = self.shared.with(|cloud, now| (cloud.node_view(vm), now));
        let Some(view) = view else {
            self.nodes.remove(&name);
            return None;
        };
        let uid = self.watched(&name).map(|node| node.uid.clone());
        let record = self.nodes.get_mut(&name)?;
        if view.vm.heartbeat == Heartbeat::Frozen {
            record.beats = Beats::Frozen;
            return None;
        }
        match job {
            NodeJob::Volumes => self.begin_volumes(&name),
            NodeJob::Show => {
                let (wanted, shows) = (objects::wanted_readiness(view.vm.node), record.shows);
                if shows == Some(wanted) {
                    self.begin_beats(&name);
                    return None;
                }
                let version = self.version.clone();
                let show = async move {
                    if shows.is_none() {
                        return register(&target, &path, &view, &version, now).await;
                    }
                    let patch = objects::node_readiness(view.vm.node, now);
                    target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await?;
                    Ok(Shown::Patched)
                };
                Some(call(show, move |kubelet, shown| kubelet.on_shown(name, vm, wanted, shown)))
            }
            // The heartbeat belongs to an earlier VM with this name. The new VM has its own heartbeats.
            NodeJob::Lease(of) | NodeJob::Heartbeat(of) if *of != vm => None,
            // A Lease must be deleted with its Node, so it needs the UID of the Node from the watch.
            NodeJob::Lease(_) | NodeJob::Heartbeat(_) if !record.is_shown() || uid.is_none() => {
                self.schedule(NOT_YET, Job::Node(name, job.clone()));
                None
            }
            NodeJob::Lease(_) => {
                let lease =
                    objects::lease(&name, &uid.unwrap_or_default(), view.config.nodes.lease_duration.as_secs(), now);
                let (of, has_lease) = (Arc::clone(&name), record.has_lease);
                let renew = async move { renew(&target, &of, has_lease, &lease, now).await };
                Some(call(renew, move |kubelet, ()| {
                    if let Some(record) = kubelet.nodes.get_mut(&name).filter(|record| record.vm == vm) {
                        record.has_lease = true;
                        kubelet.next_beat(name, NodeJob::Lease(vm));
                    }
                }))
            }
            NodeJob::Heartbeat(_) => {
                let patch = objects::node_heartbeat(view.vm.node, now);
                let beat = async move { target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await };
                Some(call(beat, move |kubelet, ()| kubelet.next_beat(name, NodeJob::Heartbeat(vm))))
            }
            NodeJob::Remove(_) => None,
        }
    }

    fn on_shown(&mut self, name: Arc<str>, vm: VmRef, readiness: Readiness, shown: Shown) {
        let record = self.nodes.get_mut(&name).filter(|record| record.vm == vm);
        match (record, shown) {
            // The VM ended during the registration of its Node. No other part knows this Node.
            (None, Shown::Created(provider_id)) => {
                self.queue.push_back(Job::Node(name, NodeJob::Remove(provider_id)));
            }
            (None, _) => {}
            (Some(_), Shown::Found(node)) => self.on_name_taken(name, &node),
            (Some(record), Shown::Created(_) | Shown::Patched) => {
                record.shows = Some(readiness);
                // Checks again whether there is something to write.
                self.queue.push_back(Job::Node(Arc::clone(&name), NodeJob::Show));
                self.queue.push_back(Job::Node(name, NodeJob::Volumes));
            }
        }
    }

    /// A Node with our name existed before.
    fn on_name_taken(&mut self, name: Arc<str>, node: &Watched<NodeFacts>) {
        let Some(vm) = self.nodes.get(&name).map(|record| record.vm) else { return };
        let is_ours = self.is_ours(vm, node);
        let Some(record) = self.nodes.get_mut(&name) else { return };
        let mut after = OCCUPIED;
        if is_ours {
            record.adopt(&node.facts);
            after = Duration::ZERO;
        } else if node.facts.simulated.is_none() {
            after = REFUSED;
            if !std::mem::replace(&mut record.is_refused, true) {
                tracing::warn!(node = %name, "FailedPrecondition: a Node of this name exists and is not simulated; it is left alone");
                self.shared.with(|cloud, now| cloud.note(vm, EventKind::NodeRefused, now));
            }
        }
        self.schedule(after, Job::Node(name, NodeJob::Show));
    }

    /// Schedules the first heartbeats of a Node. They are equally distributed over their intervals, by the name of the Node.
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

    /// Schedules the next heartbeat: leases within 4 %, updates of the status within 10 % of their interval.
    pub(super) fn next_beat(&mut self, name: Arc<str>, job: NodeJob) {
        let nodes = &self.config().nodes;
        let (vm, interval, width) = match job {
            NodeJob::Lease(vm) => (vm, nodes.lease_interval, 0.04),
            NodeJob::Heartbeat(vm) => (vm, nodes.status_period, 0.1),
            NodeJob::Show | NodeJob::Volumes | NodeJob::Remove(_) => return,
        };
        let Some(record) = self.nodes.get_mut(&name).filter(|record| record.vm == vm) else { return };
        record.beat = record.beat.wrapping_add(1);
        if interval.is_zero() {
            // Heartbeats were switched off by a changed configuration. A restart can switch them on again.
            return;
        }
        let after = interval.mul_f64(1.0 - width + 2.0 * width * spread(&name, record.beat.wrapping_add(2)));
        self.schedule(after, Job::Node(name, job));
    }
}

/// Creates the Node, or reads the existing Node with its name.
async fn register(
    target: &Target,
    path: &str,
    view: &NodeView,
    version: &str,
    now: Timestamp,
) -> Result<Shown, ApiError> {
    let body = objects::node(view, version, now).to_string().into_bytes();
    match target.create("/api/v1/nodes", body).await {
        Ok(()) => Ok(Shown::Created(view.vm.provider_id.clone())),
        Err(error) if is_conflict(&error) => {
            target.get::<Node>(path).await?.map(|node| Shown::Found(Watched::new(&node))).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// Renews the Lease of a Node, or creates it. If another client created or deleted the Lease meanwhile, the other request is correct.
async fn renew(target: &Target, node: &str, has_lease: bool, lease: &Value, now: Timestamp) -> Result<(), ApiError> {
    let all = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let (path, renewal, lease) = (format!("{all}/{node}"), objects::lease_renewal(now), lease.to_string().into_bytes());
    if has_lease {
        match target.patch(&path, PatchKind::Merge, &renewal).await {
            Err(error) if error.is_not_found() => target.create(all, lease).await,
            answer => answer,
        }
    } else {
        match target.create(all, lease).await {
            Err(error) if is_conflict(&error) => target.patch(&path, PatchKind::Merge, &renewal).await,
            answer => answer,
        }
    }
}

/// Deletes a simulated Node of the VM with this provider id. An empty provider id matches every VM.
async fn remove(target: &Target, path: &str, provider_id: &str) -> Result<(), ApiError> {
    let Some(node) = target.get::<Node>(path).await? else { return Ok(()) };
    let node = Watched::<NodeFacts>::new(&node);
    let simulated = node.facts.simulated.as_ref();
    if !simulated.is_some_and(|simulated| provider_id.is_empty() || simulated.provider_id == provider_id) {
        return Ok(());
    }
    match target.delete(path, &node.uid).await {
        Err(error) if !error.is_not_found() && !is_conflict(&error) => Err(error),
        _ => Ok(()),
    }
}
