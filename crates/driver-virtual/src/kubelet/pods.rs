//! Pods on simulated Nodes: they start after some time, run, succeed after the time of their annotation, and end when they are deleted.

use std::{net::Ipv4Addr, time::Duration};

use controller_runtime::key::ObjectKey;
use kube_values::duration::GoDuration;

use super::{
    BY_NODE, Call, Job, Kubelet, call,
    objects::{self, PodShows},
    target::PatchKind,
    watched::{PodFacts, Watched},
};

/// A step of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PodStep {
    /// Show that the Pod runs.
    Start,
    /// Show that the Pod has succeeded.
    Complete,
    /// Remove the Pod.
    End,
}

/// The stage of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Starting,
    Running,
    Refusing,
    Ending,
    Over,
}

/// The state of a Pod on a simulated Node.
#[derive(Debug)]
pub(super) struct PodRecord {
    uid: String,
    node: String,
    stage: Stage,
}

impl PodRecord {
    /// Whether the volumes of the Pod are in use.
    pub(super) fn uses_volumes(&self) -> bool {
        self.stage != Stage::Over
    }
}

fn path_of(key: &ObjectKey) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", key.namespace, key.name)
}

impl Kubelet {
    /// Handles the Pods that were bound to a Node before it was known.
    pub(super) fn place_pods(&mut self, node: &str) {
        for pod in self.watched_pods.by_index(BY_NODE, node) {
            self.on_pod(&pod, true);
        }
    }

    pub(super) fn on_pod(&mut self, pod: &Watched<PodFacts>, is_there: bool) {
        let (key, facts) = (&pod.key, &pod.facts);
        if !is_there {
            if self.pods.remove(key).is_some() && !facts.claims.is_empty() {
                self.volumes_changed(&facts.node);
            }
            return;
        }
        // The deletion of an earlier Pod of this name is not always seen.
        let is_another = self.pods.get(key).is_some_and(|record| record.uid != pod.uid);
        if is_another && let Some(earlier) = self.pods.remove(key) {
            self.volumes_changed(&earlier.node);
        }
        let settings = self.config().pods.clone();
        if !settings.run || !self.nodes.contains_key(facts.node.as_str()) {
            return;
        }
        if !facts.claims.is_empty() {
            self.volumes_changed(&facts.node);
        }
        let new = || PodRecord { uid: pod.uid.clone(), node: facts.node.clone(), stage: Stage::New };
        let record = self.pods.entry(key.clone()).or_insert_with(new);
        let (step, after) = match (facts.deleting, facts.phase.as_str(), record.stage) {
            (Some(_), _, Stage::Ending) => return,
            (Some(_), ..) if facts.refuses => {
                record.stage = Stage::Refusing;
                return;
            }
            (Some(grace), ..) => {
                record.stage = Stage::Ending;
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                let takes =
                    if settings.honour_termination_grace { settings.termination_latency } else { Duration::ZERO };
                (PodStep::End, grace.min(takes))
            }
            (None, "Pending" | "", Stage::New) => {
                record.stage = Stage::Starting;
                (PodStep::Start, settings.start_latency)
            }
            (None, "Running", Stage::New) => {
                record.stage = Stage::Running;
                let Some(length) = run_length(pod) else { return };
                (PodStep::Complete, length)
            }
            (None, "Succeeded" | "Failed", _) => {
                record.stage = Stage::Over;
                return;
            }
            _ => return,
        };
        self.schedule(after, Job::Pod(key.clone(), step));
    }

    pub(super) fn begin_pod(&mut self, key: &ObjectKey, step: PodStep) -> Option<Call> {
        let (record, pod) = (self.pods.get_mut(key)?, self.watched_pods.get(key)?);
        let node = self.nodes.get_mut(pod.facts.node.as_str()).filter(|node| node.works());
        let Some(node) = node else {
            // The kubelet does not work. The component that cleans up after the Node will remove the Pod.
            record.stage = Stage::New;
            return None;
        };
        let (target, path, uid) = (self.target.clone(), path_of(key), record.uid.clone());
        let shows = match (step, record.stage) {
            (PodStep::Start, Stage::Starting) => PodShows::Running,
            (PodStep::Complete, Stage::Running) => PodShows::Succeeded,
            (PodStep::End, Stage::Ending) => {
                return Some(call(async move { target.delete(&path, &uid).await }, |_, ()| ()));
            }
            _ => return None,
        };
        let vm = node.vm;
        let (view, now) = self.shared.with(|cloud, now| (cloud.node_view(vm), now));
        let view = view?;
        if step == PodStep::Start {
            node.pods_started = node.pods_started.wrapping_add(1);
        }
        let address = Ipv4Addr::from_bits(view.pod_network.to_bits() + 2 + u32::from(node.pods_started) % 253);
        let patch = objects::pod_status(&pod, shows, view.address, address, now);
        let show = async move { target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await };
        let key = key.clone();
        Some(call(show, move |kubelet, ()| kubelet.on_pod_shown(key, &uid, shows)))
    }

    fn on_pod_shown(&mut self, key: ObjectKey, uid: &str, shown: PodShows) {
        let Some(record) = self.pods.get_mut(&key).filter(|record| record.uid == uid) else { return };
        match (shown, record.stage) {
            (PodShows::Running, Stage::Starting) => {
                record.stage = Stage::Running;
                if let Some(length) = self.watched_pods.get(&key).and_then(|pod| run_length(&pod)) {
                    self.schedule(length, Job::Pod(key, PodStep::Complete));
                }
            }
            (PodShows::Succeeded, Stage::Running) => record.stage = Stage::Over,
            _ => {}
        }
    }
}

/// How long the Pod runs before it succeeds. `None` if it never does.
fn run_length(pod: &Watched<PodFacts>) -> Option<Duration> {
    let text = pod.facts.run_for.as_deref()?;
    match text.parse::<GoDuration>() {
        Ok(length) => Some(length.to_std()),
        Err(error) => {
            tracing::warn!(pod = %pod.key, %error, "annotation run-for is ignored");
            None
        }
    }
}
