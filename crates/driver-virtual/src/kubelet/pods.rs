//! Pods on simulated Nodes: they start after a while, run, succeed when they are told to, and end when deleted.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use kube::runtime::watcher;

use super::{
    CallError, Done, Job, Kubelet, UNPLACED, back_off,
    brief::PodBrief,
    log_call_error, log_watch_error,
    objects::{self, PodShows},
    target::PatchKind,
};
use kube_values::duration::GoDuration;

/// What is done with a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodStep {
    /// Show that it runs.
    Start,
    /// Show that it has done its work.
    Complete,
    /// Remove it.
    End,
}

/// Where a Pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Starting,
    Running,
    Refusing,
    Ending,
    Over,
}

/// What is known of a Pod on a simulated Node.
#[derive(Debug)]
pub(super) struct PodRecord {
    uid: Box<str>,
    node: Arc<str>,
    stage: Stage,
    failures: u32,
    /// The claims that it uses.
    claims: Box<[String]>,
    /// Kept only until its status is written for the last time.
    brief: Option<Box<PodBrief>>,
}

impl PodRecord {
    /// The claims that it holds in use on this node.
    pub(super) fn claims_on(&self, node: &str) -> impl Iterator<Item = &str> {
        let uses = &*self.node == node && self.stage != Stage::Over;
        self.claims.iter().filter(move |_| uses).map(String::as_str)
    }
}

/// A call about a Pod that has ended.
#[derive(Debug)]
pub(super) struct PodDone {
    path: Arc<str>,
    uid: Box<str>,
    step: PodStep,
    result: Result<(), CallError>,
}

impl Kubelet {
    pub(super) fn on_pod_event(&mut self, event: watcher::Result<watcher::Event<PodBrief>>) {
        match event {
            Err(error) => log_watch_error("pods", &error),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Ok(watcher::Event::InitApply(pod) | watcher::Event::Apply(pod)) => self.on_pod(pod),
            Ok(watcher::Event::Delete(pod)) => {
                let path = pod.path();
                if let Some(record) = self.pods.remove(&*path).filter(|record| !record.claims.is_empty()) {
                    self.volumes_changed(&record.node);
                }
                self.unplaced.remove(&*path);
            }
        }
    }

    /// Takes up the Pods that were bound to a Node before it was known.
    pub(super) fn place_pods(&mut self, node: &Arc<str>) {
        if self.unplaced.is_empty() {
            return;
        }
        let here: Vec<Arc<str>> =
            self.unplaced.iter().filter(|(_, pod)| pod.node == **node).map(|(path, _)| Arc::clone(path)).collect();
        for path in here {
            if let Some(pod) = self.unplaced.remove(&path) {
                self.on_pod(pod);
            }
        }
    }

    fn on_pod(&mut self, pod: PodBrief) {
        let path: Arc<str> = Arc::from(pod.path());
        let Some((node, _)) = self.nodes.get_key_value(pod.node.as_str()) else {
            let waits = pod.phase == "Pending" || pod.deleting.is_some();
            if waits && self.unplaced.len() < UNPLACED {
                self.unplaced.insert(path, pod);
            }
            return;
        };
        let (node, settings) = (Arc::clone(node), self.config().pods.clone());
        if !settings.run {
            return;
        }
        let new = || PodRecord {
            uid: pod.uid().into(),
            node: Arc::clone(&node),
            stage: Stage::New,
            failures: 0,
            claims: pod.claims.clone().into(),
            brief: None,
        };
        if !pod.claims.is_empty() {
            self.volumes_changed(&node);
        }
        let record = self.pods.entry(Arc::clone(&path)).or_insert_with(new);
        if &*record.uid != pod.uid() {
            *record = new();
        }
        let (step, after) = match (pod.deleting, pod.phase.as_str(), record.stage) {
            (Some(_), _, Stage::Ending) => return,
            (Some(_), ..) if pod.refuses => {
                record.stage = Stage::Refusing;
                return;
            }
            (Some(grace), ..) => {
                record.stage = Stage::Ending;
                record.brief = None;
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                let after = if settings.honour_termination_grace {
                    grace.min(settings.termination_latency)
                } else {
                    Duration::ZERO
                };
                (PodStep::End, after)
            }
            (None, "Pending" | "", Stage::New) => {
                record.stage = Stage::Starting;
                record.brief = Some(Box::new(pod));
                (PodStep::Start, settings.start_latency)
            }
            (None, "Running", Stage::New) => {
                record.stage = Stage::Running;
                let Some(length) = run_length(&pod) else { return };
                record.brief = Some(Box::new(pod));
                (PodStep::Complete, length)
            }
            (None, "Succeeded" | "Failed", _) => {
                record.stage = Stage::Over;
                record.brief = None;
                return;
            }
            _ => return,
        };
        self.schedule(after, Job::Pod(path, step));
    }

    pub(super) fn begin_pod(&mut self, path: &Arc<str>, step: PodStep) -> Option<BoxFuture<'static, Done>> {
        let record = self.pods.get_mut(path)?;
        let node = self.nodes.get_mut(&record.node).filter(|node| node.works());
        let Some(node) = node else {
            // Nobody is there to do it; whoever cleans up after the Node will.
            record.stage = Stage::New;
            return None;
        };
        let wanted = matches!(
            (step, record.stage),
            (PodStep::Start, Stage::Starting) | (PodStep::Complete, Stage::Running) | (PodStep::End, Stage::Ending)
        );
        if !wanted {
            return None;
        }
        let (target, path, uid) = (self.target.clone(), Arc::clone(path), record.uid.clone());
        let shows = match step {
            PodStep::Start => PodShows::Running,
            PodStep::Complete => PodShows::Succeeded,
            PodStep::End => {
                let work = async move {
                    let result = target.delete(&path, &uid).await;
                    Done::Pod(PodDone { path, uid, step, result })
                };
                return Some(work.boxed());
            }
        };
        let vm = node.vm;
        let (view, now) = self.shared.with(|cloud, now| (cloud.node_view(vm), now));
        let (view, pod) = (view?, record.brief.as_deref()?);
        if step == PodStep::Start {
            node.pods_started = node.pods_started.wrapping_add(1);
        }
        let address = Ipv4Addr::from_bits(view.pod_network.to_bits() + 2 + u32::from(node.pods_started) % 253);
        let patch = objects::pod_status(pod, shows, view.address, address, now);
        let work = async move {
            let result = target.patch(&format!("{path}/status"), PatchKind::Strategic, &patch).await;
            Done::Pod(PodDone { path, uid, step, result })
        };
        Some(work.boxed())
    }

    pub(super) fn on_pod_done(&mut self, done: PodDone) {
        let Some(record) = self.pods.get_mut(&done.path).filter(|record| record.uid == done.uid) else { return };
        match done.result {
            Ok(()) => {
                record.failures = 0;
                match done.step {
                    PodStep::Start => {
                        if record.stage != Stage::Starting {
                            return;
                        }
                        record.stage = Stage::Running;
                        let length = record.brief.as_deref().and_then(run_length);
                        match length {
                            Some(length) => self.schedule(length, Job::Pod(done.path, PodStep::Complete)),
                            None => record.brief = None,
                        }
                    }
                    PodStep::Complete => {
                        if record.stage == Stage::Running {
                            record.stage = Stage::Over;
                            record.brief = None;
                        }
                    }
                    PodStep::End => {}
                }
            }
            // It is another Pod by now, or none.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                log_call_error("pod", &done.path, &error);
                record.failures += 1;
                let after = back_off(&done.path, if error.is_final() { 6 } else { record.failures });
                self.schedule(after, Job::Pod(done.path, done.step));
            }
        }
    }
}

/// How long the Pod works before it succeeds, if it does.
fn run_length(pod: &PodBrief) -> Option<Duration> {
    let text = pod.run_for.as_deref()?;
    match text.parse::<GoDuration>() {
        Ok(length) => Some(length.to_std()),
        Err(error) => {
            tracing::warn!(pod = pod.path(), %error, "annotation run-for is ignored");
            None
        }
    }
}
