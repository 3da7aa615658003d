//! Draining a node: moves its pods away within their disruption budgets, and by force if nothing else helps.
//!
//! A drain runs in steps: `observe` builds a plain value, [`step::drain_step`] decides, `act` evicts. No worker waits
//! for a pod, an API server or a driver; a change or a timer starts the next step. Cordon, conditions and the work
//! after the drain belong to `machine`. Source: spec/machine-controller §7.

pub mod act;
pub mod budgets;
pub mod calls;
pub mod counts;
pub mod observe;
pub mod order;
pub mod pods;
pub mod progress;
pub mod step;
#[cfg(test)]
mod tests;
pub mod volumes;
pub mod waiting;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;

use self::{
    act::Evictor,
    calls::{DrainAnswer, Inbox, Namer, VolumeAnswer, Wake},
    counts::{CountedPods, PodCounts},
    observe::{DrainLimits, DrainViews, left_attached, volumes_of},
    order::{DrainOrder, Force},
    progress::{Failure, Progress, Unnamed},
    step::{DrainResult, drain_step, learn},
};
use crate::{
    snapshots::NodeSnapshot,
    times::{after, since},
};
use controller_runtime::tasks::SharedTasks;
use machine_driver::Driver;
use mcm_metrics::Metrics;
use mcm_traces::Place;

/// Time until a refused eviction is repeated.
pub const EVICTION_RETRY: Duration = Duration::from_secs(20);
/// Pause after the first failed attempt; it doubles up to [`EVICTION_RETRY`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// Runs the steps of drains.
pub struct Drainer {
    views: Arc<dyn DrainViews>,
    evictor: Arc<Evictor>,
    namer: Namer,
    tasks: SharedTasks,
}

/// A drain for one step.
pub struct Drain<'a> {
    /// Name of the node.
    pub node_name: &'a str,
    /// The node, if it exists.
    pub node: Option<&'a NodeSnapshot>,
    /// Limits and mode.
    pub limits: DrainLimits,
    /// The driver that knows the provider's names of volumes. Without it the drain does not wait for volumes.
    pub driver: Option<&'a Arc<dyn Driver>>,
    /// The time of the step on the steady clock. All times of a drain are steady times, including its deadline.
    pub now: Timestamp,
    /// Wakes the machine when an answer arrives.
    pub wake: Wake,
}

/// Whether a remembered drain continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// Continue it with the pods that it has listed.
    Continued,
    /// Forget it.
    Forgotten,
}

/// Decides whether a remembered drain continues. The second argument is the drain that the machine's flow orders now,
/// if any.
pub type DrainMemory = fn(&DrainOrder, Option<&DrainOrder>) -> Remembered;

/// A drain continues for the flow and the node for which it was started. A drain that no flow orders any more is
/// forgotten: its list of pods becomes outdated and is of no use to a later drain.
pub fn remembered(before: &DrainOrder, ordered: Option<&DrainOrder>) -> Remembered {
    let is_same = |order: &DrainOrder| {
        (before.flow, &before.node, &before.node_uid) == (order.flow, &order.node, &order.node_uid)
    };
    if ordered.is_some_and(is_same) { Remembered::Continued } else { Remembered::Forgotten }
}

/// A drain between its steps. In memory only: after a restart the pods are listed again.
#[derive(Debug)]
pub struct Run {
    /// The flow, node, mode and deadline of the drain. Another flow or node means another drain; another mode means
    /// another attempt.
    order: DrainOrder,
    /// When the attempt started, which is its first step.
    began: Option<Timestamp>,
    progress: Progress,
    inbox: Inbox,
    /// The wait of the drain since its last step.
    waiting: Option<waiting::Waiting>,
    /// Failed attempts in this mode; then the time of the next attempt and the reason of the last failure.
    failures: u32,
    paused: Option<(Timestamp, Failure)>,
    counted: Option<CountedPods>,
    /// Where calls of the driver are recorded.
    place: Place,
}

impl Run {
    /// A drain that has not started.
    pub fn new(order: DrainOrder) -> Self {
        Self {
            order,
            began: None,
            progress: Progress::default(),
            inbox: Inbox::default(),
            waiting: None,
            failures: 0,
            paused: None,
            counted: None,
            place: Place::nowhere(),
        }
    }

    /// The same drain, whose next calls of the driver are recorded there.
    #[must_use]
    pub fn recorded_at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// The same drain, whose pods are counted in the metric until the drain is dropped.
    #[must_use]
    pub fn counted_by(mut self, metrics: &Metrics) -> Self {
        self.counted.get_or_insert_with(|| CountedPods::new(metrics.clone()));
        self
    }

    fn count(&mut self, counts: PodCounts) {
        if let Some(counted) = &mut self.counted {
            counted.show(counts);
        }
    }

    /// The ordered drain: the remembered one if `memory` continues it, otherwise a new one, which has listed no pods.
    #[must_use]
    pub fn ordered(before: Option<Self>, order: DrainOrder, memory: DrainMemory) -> Self {
        match before.filter(|run| memory(&run.order, Some(&order)) == Remembered::Continued) {
            Some(run) => run.in_mode(order),
            None => Self::new(order),
        }
    }

    /// The next time at which the driver must be asked about a volume. A forced drain waits for no volumes.
    fn next_naming(&self) -> Option<Timestamp> {
        if self.order.force == Force::Yes { None } else { self.progress.next_naming() }
    }

    /// Whether `memory` keeps the drain after a pass that has ordered none.
    pub fn is_kept_by(&self, memory: DrainMemory) -> bool {
        memory(&self.order, None) == Remembered::Continued
    }

    /// The same drain in the mode of this order. A change of mode starts a new attempt, which keeps the volumes that
    /// did not detach in time. A forced attempt keeps its original deadline.
    fn in_mode(self, order: DrainOrder) -> Self {
        if self.order.force != order.force {
            let progress = self.progress.next_attempt();
            return Self { order, progress, waiting: None, failures: 0, paused: None, ..self };
        }
        match order.force {
            Force::Yes => self,
            Force::No => Self { order, ..self },
        }
    }

    /// How long the attempt has lasted.
    pub fn took(&self, now: Timestamp) -> Duration {
        self.began.map(|began| since(now, began)).unwrap_or_default()
    }

    /// The wait of the drain at its last step.
    pub fn waiting(&self) -> Option<&waiting::Waiting> {
        self.waiting.as_ref()
    }

    fn failed(&mut self, error: &Failure, now: Timestamp) {
        let pause = pause_after(&self.progress, self.failures);
        self.failures = self.failures.saturating_add(1);
        self.began = None;
        self.progress = self.progress.next_attempt();
        self.paused = Some((after(now, pause), error.clone()));
    }
}

/// The pause after a failed attempt, with this number of failures before it. The next attempt evicts its pods again. A
/// pod whose eviction was refused is not asked sooner than within one attempt.
fn pause_after(attempt: &Progress, failures_before: u32) -> Duration {
    if attempt.was_refused() {
        return EVICTION_RETRY;
    }
    FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failures_before.min(8))).min(EVICTION_RETRY)
}

impl Drainer {
    /// A drainer with these stores and this evictor; calls of drivers pass the evictor's gate too. `tasks` runs the
    /// requests to API server and driver; `volumes_deadline` limits each `get_volume_ids`.
    pub fn new(views: Arc<dyn DrainViews>, evictor: Evictor, tasks: SharedTasks, volumes_deadline: Duration) -> Self {
        let namer = Namer::new(evictor.gate().clone(), Arc::clone(&tasks), volumes_deadline);
        Self { views, evictor: Arc::new(evictor), namer, tasks }
    }

    /// The stores of pods and volumes.
    pub fn views(&self) -> &dyn DrainViews {
        &*self.views
    }

    /// The evictor, for volume attachments.
    pub fn evictor(&self) -> &Evictor {
        &self.evictor
    }

    /// Runs one step: processes the answers, decides, and starts the actions. Waits for nothing.
    ///
    /// After a failed attempt the failure is returned until the pause is over; then the next attempt starts.
    pub fn step(&self, drain: &Drain<'_>, run: &mut Run) -> DrainResult {
        let news = run.inbox.take();
        for news in &news {
            if let DrainAnswer::Volume(name, answer) = news {
                run.progress.named(name, answer.clone(), drain.now);
            }
        }
        self.look_up_volumes(drain, run);
        let limits = DrainLimits { force: run.order.force, deadline: run.order.deadline, ..drain.limits.clone() };
        let mut seen = observe::observe(
            &*self.views,
            drain.node_name,
            drain.node,
            limits,
            &run.progress,
            &run.progress.ids(),
            drain.now,
        );
        for news in news {
            if let DrainAnswer::Pod(action, answer) = news {
                learn(&mut run.progress, &seen, &action, answer, drain.now);
            }
        }
        if let Some((until, error)) = &run.paused
            && *until > drain.now
            && drain.node.is_some()
        {
            return DrainResult::Failed(error.clone());
        }
        run.paused = None;
        run.began.get_or_insert(drain.now);
        seen.progress = run.progress.clone();
        let mut step = drain_step(&seen);
        run.progress = step.progress;
        if let (DrainResult::Running { wake, .. }, Some(next)) = (&mut step.result, run.next_naming()) {
            *wake = since(next, drain.now).min(*wake);
        }
        run.count(PodCounts::of(&seen, &run.progress));
        for action in step.actions {
            calls::remove((&self.tasks, &self.evictor), action, &run.inbox, &drain.wake);
        }
        run.waiting = match &step.result {
            DrainResult::Running { waiting, .. } => waiting.clone(),
            DrainResult::Drained | DrainResult::Failed(_) => None,
        };
        if let DrainResult::Failed(error) = &step.result {
            run.failed(error, drain.now);
        }
        step.result
    }

    /// Asks the driver for the provider's names of each volume, once, and again if it has no answer yet. A volume that
    /// it can't name is not tracked (MC-221).
    fn look_up_volumes(&self, drain: &Drain<'_>, run: &mut Run) {
        if run.order.force == Force::Yes {
            // A forced drain waits for no volumes.
            return;
        }
        let progress = &mut run.progress;
        let pods = self.views.pods_on(drain.node_name);
        let mut names = left_attached(&*self.views, drain.node_name, &pods);
        for pod in &pods {
            for name in volumes_of(&*self.views, pod) {
                progress.claims.entry(name.clone()).or_insert_with(|| pod.claims().collect());
                names.push(name);
            }
        }
        let is_new = |name: &String| !progress.volume_ids.contains_key(name) && !progress.unnamed.contains_key(name);
        let mut unknown: BTreeSet<String> = names.into_iter().filter(is_new).collect();
        unknown.extend(progress.due_for_naming(drain.now));
        for name in unknown {
            let Some(spec) = self.views.volume(&name).and_then(|volume| volume.spec().cloned()) else {
                // The PV is gone.
                progress.named(&name, VolumeAnswer::Later, drain.now);
                continue;
            };
            let handle = spec.csi.as_ref().map_or_else(|| name.clone(), |csi| csi.volume_handle.clone());
            let new = Unnamed { since: drain.now, handle, failures: 0, next_try: None };
            progress.unnamed.entry(name.clone()).or_insert(new).next_try = None;
            // The class, and with it the driver, may be missing for a while. That says nothing about the volume.
            let Some(driver) = drain.driver else {
                progress.named(&name, VolumeAnswer::Later, drain.now);
                continue;
            };
            self.namer.ask(driver, (name, spec), &run.inbox, &drain.wake, run.place.clone());
        }
    }
}
