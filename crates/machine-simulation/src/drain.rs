//! Forecast of a drain: runs the real drain decisions on virtual time with the existing pods.
//!
//! The model is simple. An evicted pod takes its whole grace period, and its volumes half of their allowed time. Its
//! replacement elsewhere is healthy soon afterwards. A budget that allows nothing now never will. Source:
//! spec/extension-apiserver §1.4.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;

use super::process::later;
use controller_runtime::key::ObjectKey;
use machine_controllers::{
    drain::{
        budgets::BudgetState,
        observe::{DrainObservation, PodFacts},
        pods::PodClass,
        progress::PodAnswer,
        step::{DrainResult, How, PodAction, drain_step, learn},
    },
    times::since,
};

/// Time from the end of a pod until its budget counts the replacement.
const REPLACED: Duration = Duration::from_secs(30);
/// Time from an immediate deletion until the pod is gone.
const AT_ONCE: Duration = Duration::from_secs(1);
/// More steps than any drain needs.
const MOST_STEPS: usize = 20_000;

/// The input of a forecast.
#[derive(Clone, Debug)]
pub struct Question {
    /// The node and its pods before the drain.
    pub seen: DrainObservation,
    /// Evictions that budgets allow now, by namespace and name.
    pub allowed: BTreeMap<String, i32>,
    /// UIDs of pods that are evicted without regard to their budgets.
    pub unasked: BTreeSet<String>,
}

/// How pods are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// They are evicted concurrently.
    EvictParallel,
    /// They are evicted one after the other, because their volumes must move.
    EvictSerial,
    /// They are deleted.
    Delete,
    /// They are deleted at once, without grace period.
    DeleteNow,
}

/// Pods that are removed at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// The time, from now on.
    pub at: Duration,
    /// How.
    pub kind: Kind,
    /// The pods, in order.
    pub pods: Vec<ObjectKey>,
    /// Time until the pods and their volumes are gone.
    pub lasts: Duration,
}

/// The end of the drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All pods that must leave are gone.
    Drained,
    /// Only pods are left whose budgets refuse forever.
    Blocked,
    /// The attempt has failed.
    Failed(String),
}

/// The result of a forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The waves in order.
    pub waves: Vec<Wave>,
    /// Pods whose eviction is refused forever.
    pub blocked: Vec<ObjectKey>,
    /// The end of the drain.
    pub end: End,
    /// The duration of the drain.
    pub took: Duration,
}

/// Computes the forecast while `go_on` returns `true`; `None` if that is too short.
pub fn forecast(question: &Question, go_on: &dyn Fn() -> bool) -> Option<Forecast> {
    let began = question.seen.now;
    let mut world = World::of(question);
    for _ in 0..MOST_STEPS {
        if !go_on() {
            return None;
        }
        let step = drain_step(&world.seen);
        world.seen.progress = step.progress;
        let acted = !step.actions.is_empty();
        for action in &step.actions {
            world.carry_out(action, began);
        }
        match step.result {
            DrainResult::Drained => return Some(world.end(End::Drained, began)),
            DrainResult::Failed(error) => {
                let end = if world.blocked.is_empty() { End::Failed(error.text) } else { End::Blocked };
                return Some(world.end(end, began));
            }
            DrainResult::Running { wake, .. } => {
                if world.only_refused() {
                    return Some(world.end(End::Blocked, began));
                }
                // Answers arrive at once, and the next step runs at the same virtual time.
                if !acted {
                    world.advance(wake);
                }
            }
        }
    }
    Some(world.end(End::Failed("the drain does not come to an end".to_owned()), began))
}

struct World {
    seen: DrainObservation,
    allowed: BTreeMap<String, i32>,
    unasked: BTreeSet<String>,
    /// Budgets that allowed no eviction from the start.
    closed: BTreeSet<String>,
    /// When pods will be gone, by UID.
    gone: BTreeMap<String, Timestamp>,
    /// When volumes will be detached from the node, and when attached elsewhere.
    moves: BTreeMap<String, (Timestamp, Timestamp)>,
    /// When budgets will allow one more eviction.
    refills: Vec<(Timestamp, String)>,
    /// Pods that are refused forever, by namespace and name.
    blocked: BTreeMap<String, ObjectKey>,
    waves: Vec<Wave>,
    pods: BTreeMap<String, PodFacts>,
}

impl World {
    fn of(question: &Question) -> Self {
        let seen = question.seen.clone();
        let closed = question.allowed.iter().filter(|(_, allowed)| **allowed <= 0).map(|(name, _)| name.clone());
        let mut world = Self {
            allowed: question.allowed.clone(),
            unasked: question.unasked.clone(),
            closed: closed.collect(),
            gone: BTreeMap::new(),
            moves: BTreeMap::new(),
            refills: Vec::new(),
            blocked: BTreeMap::new(),
            waves: Vec::new(),
            pods: seen.pods.iter().map(|pod| (pod.uid.clone(), pod.clone())).collect(),
            seen,
        };
        for pod in question.seen.pods.iter().filter(|pod| !pod.class.stays()) {
            if let Some(deleted) = pod.deleting_since {
                world.goes(pod, deleted, pod.grace);
            }
        }
        world
    }

    fn carry_out(&mut self, action: &PodAction, began: Timestamp) {
        let Some(pod) = self.pods.get(&action.uid).cloned() else { return };
        let answer = self.answer(action, &pod);
        if answer == PodAnswer::Accepted {
            let grace = if action.how == How::DeleteNow { AT_ONCE } else { pod.grace.min(self.seen.limits.timeout) };
            let lasts = self.goes(&pod, self.seen.now, grace);
            self.record_wave(action, &pod, lasts, began);
        }
        let now = self.seen.now;
        let mut progress = std::mem::take(&mut self.seen.progress);
        learn(&mut progress, &self.seen, action, answer, now);
        self.seen.progress = progress;
    }

    /// The answer of the API server.
    fn answer(&mut self, action: &PodAction, pod: &PodFacts) -> PodAnswer {
        if action.how != How::Evict || self.unasked.contains(&action.uid) {
            return PodAnswer::Accepted;
        }
        match &pod.budget {
            BudgetState::None => PodAnswer::Accepted,
            BudgetState::Several(_) => {
                self.blocked.insert(pod.key.to_string(), pod.key.clone());
                PodAnswer::Failed("no pod with more than one budget is evicted".to_owned())
            }
            BudgetState::Misconfigured(_) => {
                self.blocked.insert(pod.key.to_string(), pod.key.clone());
                PodAnswer::Refused
            }
            BudgetState::One(name) => match self.allowed.get_mut(name) {
                Some(allowed) if *allowed > 0 => {
                    *allowed -= 1;
                    let back = later(self.seen.now, pod.grace + REPLACED);
                    self.refills.push((back, name.clone()));
                    PodAnswer::Accepted
                }
                _ => {
                    if self.closed.contains(name) {
                        self.blocked.insert(pod.key.to_string(), pod.key.clone());
                    }
                    PodAnswer::Refused
                }
            },
        }
    }

    /// Schedules the end of the pod and the moves of its volumes; returns the duration.
    fn goes(&mut self, pod: &PodFacts, from: Timestamp, grace: Duration) -> Duration {
        let gone = later(from, grace).max(self.seen.now);
        self.gone.insert(pod.uid.clone(), gone);
        if pod.volumes.is_empty() {
            return since(gone, self.seen.now);
        }
        let detached = later(gone, self.seen.limits.detach / 2);
        let attached = later(detached, self.seen.limits.reattach / 2);
        for volume in &pod.volumes {
            self.moves.insert(volume.clone(), (detached, attached));
        }
        since(attached, self.seen.now)
    }

    fn record_wave(&mut self, action: &PodAction, pod: &PodFacts, lasts: Duration, began: Timestamp) {
        let kind = match (action.how, pod.class) {
            (How::Delete, _) => Kind::Delete,
            (How::DeleteNow, _) => Kind::DeleteNow,
            (How::Evict, PodClass::WithVolumes) => Kind::EvictSerial,
            (How::Evict, _) => Kind::EvictParallel,
        };
        let at = since(self.seen.now, began);
        match self.waves.iter_mut().find(|wave| wave.at == at && wave.kind == kind) {
            Some(wave) => {
                wave.pods.push(pod.key.clone());
                wave.lasts = wave.lasts.max(lasts);
            }
            None => self.waves.push(Wave { at, kind, pods: vec![pod.key.clone()], lasts }),
        }
    }

    /// Whether all remaining pods are refused forever, not only for now.
    fn only_refused(&self) -> bool {
        let mut left = self.seen.progress.pods.values().filter(|pod| pod.end.is_none()).peekable();
        let for_good = |name: &str| self.blocked.contains_key(name);
        left.peek().is_some() && left.all(|pod| pod.accepted.is_none() && pod.refusals > 0 && for_good(&pod.name))
    }

    /// Advances the time to the next event, at most by `wake`.
    fn advance(&mut self, wake: Duration) {
        let now = self.seen.now;
        let happenings = self
            .gone
            .values()
            .copied()
            .chain(self.moves.values().flat_map(|(detached, attached)| [*detached, *attached]))
            .chain(self.refills.iter().map(|(at, _)| *at))
            .filter(|at| *at > now);
        self.seen.now = happenings.chain([later(now, wake)]).min().unwrap_or(now);
        let now = self.seen.now;
        let is_gone = |pod: &PodFacts| self.gone.get(&pod.uid).is_some_and(|at| *at <= now);
        self.seen.pods.retain(|pod| !is_gone(pod));
        for (volume, (detached, attached)) in &self.moves {
            if let Some(place) = self.seen.volumes.get_mut(volume) {
                if *detached <= now {
                    place.here = false;
                    place.wanted = true;
                }
                if *attached <= now {
                    place.elsewhere = true;
                }
            }
        }
        let due = |(at, _): &(Timestamp, String)| *at <= now;
        for (_, name) in self.refills.iter().filter(|refill| due(refill)) {
            *self.allowed.entry(name.clone()).or_default() += 1;
        }
        self.refills.retain(|refill| !due(refill));
    }

    fn end(self, end: End, began: Timestamp) -> Forecast {
        Forecast {
            took: since(self.seen.now, began),
            waves: self.waves,
            blocked: self.blocked.into_values().collect(),
            end,
        }
    }
}
