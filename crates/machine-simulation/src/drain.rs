//! What a drain would do: the decisions of the drain room, on virtual time, over the pods that there are.
//!
//! The world is plain: a pod that goes takes its whole grace period, its volumes half of the time that they may take, and
//! its replacement elsewhere is healthy soon after. A budget that allows nothing now never will. Source:
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
        volumes::Presence,
    },
    times::since,
};

/// From the end of a pod until its replacement counts for its budget.
const REPLACED: Duration = Duration::from_secs(30);
/// From an immediate deletion until the pod is gone.
const AT_ONCE: Duration = Duration::from_secs(1);
/// More steps than any drain takes.
const MOST_STEPS: usize = 20_000;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The node and its pods as they are; nothing has been done yet.
    pub seen: DrainObservation,
    /// Evictions that budgets allow now, by namespace and name.
    pub allowed: BTreeMap<String, i32>,
    /// Pods that are evicted whatever their budgets say, by UID.
    pub unasked: BTreeSet<String>,
}

/// How pods go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// They are evicted together.
    EvictParallel,
    /// One is evicted after the other, because their volumes have to move.
    EvictSerial,
    /// They are deleted.
    Delete,
    /// They are deleted at once, without the time that they want to end in.
    DeleteNow,
}

/// Pods that are asked to go at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// When, from now on.
    pub at: Duration,
    /// How.
    pub kind: Kind,
    /// Which, in their order.
    pub pods: Vec<ObjectKey>,
    /// How long until they and their volumes are gone.
    pub lasts: Duration,
}

/// How it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All pods that have to go are gone.
    Drained,
    /// Pods are left whose budgets refuse for good.
    Blocked,
    /// The attempt has failed.
    Failed(String),
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Wave by wave.
    pub waves: Vec<Wave>,
    /// Pods whose eviction is refused for good.
    pub blocked: Vec<ObjectKey>,
    /// How it ends.
    pub end: End,
    /// How long it takes until then.
    pub took: Duration,
}

/// Tells what would happen, for as long as `go_on` allows; `None` when that is not long enough.
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
                // Answers come at once, and what they let go follows at the same moment.
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
    /// Budgets that allowed nothing from the beginning.
    closed: BTreeSet<String>,
    /// When pods are gone, by UID.
    gone: BTreeMap<String, Timestamp>,
    /// When volumes are off the node, and when they are elsewhere.
    moves: BTreeMap<String, (Timestamp, Timestamp)>,
    /// When budgets allow one more.
    refills: Vec<(Timestamp, String)>,
    /// Pods that are refused for good, by namespace and name.
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
            self.tell(action, &pod, lasts, began);
        }
        let now = self.seen.now;
        let mut progress = std::mem::take(&mut self.seen.progress);
        learn(&mut progress, &self.seen, action, answer, now);
        self.seen.progress = progress;
    }

    /// What the API server says.
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

    /// The pod goes and its volumes follow; how long that takes.
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

    fn tell(&mut self, action: &PodAction, pod: &PodFacts, lasts: Duration, began: Timestamp) {
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

    /// Whether all that is left has been refused for good, and not merely for now.
    fn only_refused(&self) -> bool {
        let mut left = self.seen.progress.pods.values().filter(|pod| pod.end.is_none()).peekable();
        let for_good = |name: &str| self.blocked.contains_key(name);
        left.peek().is_some() && left.all(|pod| pod.accepted.is_none() && pod.refusals > 0 && for_good(&pod.name))
    }

    /// Time goes on to the next happening, at most so far.
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
                    place.here = Presence::No;
                    place.wanted = Presence::Yes;
                }
                if *attached <= now {
                    place.elsewhere = Presence::Yes;
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
