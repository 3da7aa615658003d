//! One step of a drain: what to evict or delete now, what to wait for, and whether it is over.
//!
//! Pure. Source: spec/machine-controller §7.3–7.9, §15.4; decisions.md 11. Pods without volumes go in parallel, those
//! with volumes one after the other in the order of their priority; both groups at the same time.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use super::{
    EVICTION_RETRY,
    budgets::BudgetState,
    observe::{DrainObservation, NodePresence, PodFacts},
    order::Force,
    pods::PodClass,
    progress::{Attempt, End, Failure, Listed, PodAnswer, PodProgress, Progress},
    volumes::{Presence, VolumePlace},
    waiting::{Waiting, waiting_for},
};
use crate::times::{after, since};
use controller_runtime::key::ObjectKey;

/// Time beyond its grace period that a pod may take to go.
const BEYOND_GRACE: Duration = Duration::from_secs(30);
/// A volume that no new pod asks for after this time is not waited for (decisions.md 11).
const REATTACH_UNWANTED: Duration = Duration::from_secs(10);
/// How often a wait looks again without an event.
const POLL: Duration = Duration::from_secs(5);
/// Pods named in a failure.
const NAMED_PODS: usize = 5;

/// What a step wants done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrainStep {
    /// Evictions and deletions to be sent; their answers come with a later step.
    pub actions: Vec<PodAction>,
    /// What is remembered from here on; answers are added to it.
    pub progress: Progress,
    /// Where the drain stands.
    pub result: DrainResult,
}

/// Something done to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodAction {
    /// Which pod.
    #[serde(serialize_with = "displayed")]
    pub key: ObjectKey,
    /// Which incarnation of it.
    pub uid: String,
    /// What is done.
    pub how: How,
}

fn displayed<S: serde::Serializer>(key: &ObjectKey, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(key)
}

/// How a pod is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum How {
    /// Asked for, within its budget.
    Evict,
    /// Deleted with its own grace period.
    Delete,
    /// Deleted at once.
    DeleteNow,
}

/// Where a drain stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DrainResult {
    /// Under way; step again after this time at the latest.
    Running {
        /// For people.
        progress: String,
        /// Budgets that refuse.
        blocked_by: Option<String>,
        /// Whom it waits for.
        waiting: Option<Waiting>,
        /// How it stands against the attempt before.
        attempt: Attempt,
        /// When to step again.
        wake: Duration,
    },
    /// All pods that had to go are gone.
    Drained,
    /// The attempt failed.
    Failed(Failure),
}

/// One step of a drain.
pub fn drain_step(seen: &DrainObservation) -> DrainStep {
    let mut progress = seen.progress.clone();
    if seen.node == NodePresence::Gone {
        // Pods of a vanished node are the pod garbage collector's; volumes are free with the node (fast track).
        return DrainStep { actions: Vec::new(), progress: Progress::default(), result: DrainResult::Drained };
    }
    if progress.listed == Listed::No && progress.awaits_names(seen.now) && seen.limits.force == Force::No {
        return names_awaited(progress);
    }
    list_pods(seen, &mut progress);
    settle_lingering(seen, &mut progress);
    let mut actions = Vec::new();
    if seen.limits.force == Force::Yes {
        delete_all(seen, &mut progress, &mut actions);
    } else {
        parallel_group(seen, &mut progress, &mut actions);
        serial_group(seen, &mut progress, &mut actions);
    }
    for action in &actions {
        if let Some(pod) = progress.pods.get_mut(&action.uid) {
            pod.asked = Some(action.how);
        }
    }
    let result = result_of(seen, &progress);
    DrainStep { actions, progress, result }
}

/// Before the pods are listed it must be known which of their volumes can be waited for.
fn names_awaited(progress: Progress) -> DrainStep {
    let result = DrainResult::Running {
        progress: "Names of volumes are asked for.".to_owned(),
        blocked_by: None,
        waiting: Some(Waiting::VolumeNames),
        attempt: progress.attempt(None),
        wake: POLL,
    };
    DrainStep { actions: Vec::new(), progress, result }
}

/// How many more pods may be asked to go now.
fn free_slots(seen: &DrainObservation, progress: &Progress, actions: &[PodAction]) -> usize {
    let asked = progress.pods.values().filter(|pod| pod.asked.is_some()).count();
    seen.limits.parallel.saturating_sub(asked + actions.len())
}

/// Time that a pod without tracked volumes may take to go.
pub(super) fn pod_limit(seen: &DrainObservation, facts: &PodFacts) -> Duration {
    facts.grace.min(seen.limits.timeout) + BEYOND_GRACE
}

/// Time that a pod and its volumes may take to leave the node.
pub(super) fn volume_limit(seen: &DrainObservation, facts: Option<&PodFacts>) -> Duration {
    facts.map(|facts| facts.grace).unwrap_or_default() + seen.limits.detach
}

/// Takes the pods that have to go, and the volumes that others left behind, into the attempt, once.
fn list_pods(seen: &DrainObservation, progress: &mut Progress) {
    if progress.listed == Listed::Yes {
        return;
    }
    progress.listed = Listed::Yes;
    for pod in seen.pods.iter().filter(|pod| !pod.class.stays()) {
        let entry = PodProgress {
            name: pod.key.to_string(),
            volumes: pod.volumes.clone(),
            accepted: pod.deleting_since.map(|_| seen.now),
            ..PodProgress::default()
        };
        progress.pods.insert(pod.uid.clone(), entry);
    }
    // What has lingered is in memory only: after a restart the attachments tell (M-43).
    progress.lingering.extend(seen.left_attached.iter().cloned());
}

/// Volumes that did not detach in an earlier attempt, and have by now.
fn settle_lingering(seen: &DrainObservation, progress: &mut Progress) {
    progress.lingering.retain(|pv| is_here(seen, pv));
}

fn is_here(seen: &DrainObservation, pv: &str) -> bool {
    seen.volumes.get(pv).is_some_and(|place| place.here == Presence::Yes)
}

fn facts<'a>(seen: &'a DrainObservation, uid: &str) -> Option<&'a PodFacts> {
    seen.pods.iter().find(|pod| pod.uid == uid)
}

/// Forced: everything is deleted at once and nothing is waited for.
fn delete_all(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut free = free_slots(seen, progress, actions);
    for (uid, pod) in &mut progress.pods {
        let due = pod.end.is_none() && pod.asked.is_none() && pod.next_try.is_none_or(|at| at <= seen.now);
        match facts(seen, uid) {
            None => pod.end = Some(End::Done),
            // What an earlier, gentler attempt has accepted is deleted once more, with no grace.
            Some(facts) if due && free > 0 => {
                free -= 1;
                actions.push(action(facts, How::DeleteNow));
            }
            Some(_) => {}
        }
    }
}

fn action(pod: &PodFacts, how: How) -> PodAction {
    PodAction { key: pod.key.clone(), uid: pod.uid.clone(), how }
}

/// Pods without volumes.
fn parallel_group(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut free = free_slots(seen, progress, actions);
    for (uid, pod) in progress.pods.iter_mut().filter(|(_, pod)| pod.end.is_none()) {
        let Some(facts) = facts(seen, uid) else {
            // Pods with tracked volumes end in the serial group.
            if pod.volumes.is_empty() {
                pod.end = Some(End::Done);
            }
            continue;
        };
        if facts.class != PodClass::Plain {
            continue;
        }
        match next_for(seen, facts, pod) {
            NextForPod::Act(how) if free > 0 => {
                free -= 1;
                actions.push(action(facts, how));
            }
            NextForPod::Act(_) | NextForPod::Wait => {}
            NextForPod::Fail(error) => pod.end = Some(End::Failed(error)),
        }
    }
}

/// What is next for a pod that is still there.
enum NextForPod {
    Act(How),
    Wait,
    Fail(String),
}

fn next_for(seen: &DrainObservation, facts: &PodFacts, pod: &PodProgress) -> NextForPod {
    if pod.asked.is_some() {
        return NextForPod::Wait;
    }
    if let Some(accepted) = pod.accepted {
        return if since(seen.now, accepted) > pod_limit(seen, facts) {
            NextForPod::Fail(format!("timeout expired while waiting for pod \"{}\" terminating", facts.key))
        } else {
            NextForPod::Wait
        };
    }
    if pod.next_try.is_some_and(|at| at > seen.now) {
        return NextForPod::Wait;
    }
    if pod.refusals > 0
        && let BudgetState::Misconfigured(budget) = &facts.budget
    {
        return NextForPod::Fail(format!(
            "error while evicting pod \"{}\": pod disruption budget {budget} is misconfigured and requires zero voluntary evictions",
            facts.key
        ));
    }
    NextForPod::Act(if pod.refusals >= seen.limits.retries { How::Delete } else { How::Evict })
}

/// Pods with volumes: one at a time from eviction to reattachment, in the order of their priority; while one is refused
/// the next may go.
fn serial_group(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut lingering = Vec::new();
    for (uid, pod) in progress.pods.iter_mut().filter(|(_, pod)| pod.end.is_none() && !is_plain(seen, pod)) {
        if facts(seen, uid).is_some() && pod.accepted.is_none() {
            continue;
        }
        // Accepted, or gone without our doing.
        pod.accepted.get_or_insert(seen.now);
        wait_for_volumes(seen, uid, pod, &mut lingering);
    }
    progress.lingering.extend(lingering);
    let one_is_moving = progress.pods.values().any(|pod| is_moving(seen, pod));
    if one_is_moving {
        return;
    }
    let mut waiting: Vec<&PodFacts> = seen
        .pods
        .iter()
        .filter(|facts| facts.class == PodClass::WithVolumes)
        .filter(|facts| progress.pods.get(&facts.uid).is_some_and(|pod| pod.end.is_none() && pod.accepted.is_none()))
        .collect();
    waiting.sort_by_key(|facts| (Reverse(facts.priority), facts.key.clone()));
    for facts in waiting {
        let Some(pod) = progress.pods.get_mut(&facts.uid) else { continue };
        match next_for(seen, facts, pod) {
            NextForPod::Act(how) => {
                actions.push(action(facts, how));
                return;
            }
            NextForPod::Wait => {}
            NextForPod::Fail(error) => pod.end = Some(End::Failed(error)),
        }
    }
}

/// Whether a pod with volumes is on its way, so that the next one has to wait.
fn is_moving(seen: &DrainObservation, pod: &PodProgress) -> bool {
    pod.end.is_none() && (pod.accepted.is_some() || pod.asked.is_some()) && !is_plain(seen, pod)
}

/// Whether the pod is in the parallel group: it is there and has no claims.
fn is_plain(seen: &DrainObservation, pod: &PodProgress) -> bool {
    pod.volumes.is_empty()
        && !seen.pods.iter().any(|facts| facts.class == PodClass::WithVolumes && facts.key.to_string() == pod.name)
}

/// A pod with volumes whose eviction was accepted: gone, then detached, then attached elsewhere.
fn wait_for_volumes(seen: &DrainObservation, uid: &str, pod: &mut PodProgress, lingering: &mut Vec<String>) {
    let Some(accepted) = pod.accepted else { return };
    let there = facts(seen, uid);
    if pod.volumes.is_empty() {
        match there.map(|facts| next_for(seen, facts, pod)) {
            None => pod.end = Some(End::Done),
            Some(NextForPod::Fail(error)) => pod.end = Some(End::Failed(error)),
            Some(NextForPod::Wait | NextForPod::Act(_)) => {}
        }
        return;
    }
    let here: Vec<String> = pod.volumes.iter().filter(|pv| is_here(seen, pv)).cloned().collect();
    if there.is_some() || !here.is_empty() {
        if since(seen.now, accepted) > volume_limit(seen, there) {
            lingering.extend(here);
            pod.end =
                Some(End::Failed(format!("timeout while waiting for PVs of pod \"{}\" to detach from node", pod.name)));
        }
        return;
    }
    let detached = *pod.detached.get_or_insert(seen.now);
    let waited = since(seen.now, detached);
    let places: Vec<&VolumePlace> = pod.volumes.iter().filter_map(|pv| seen.volumes.get(pv)).collect();
    let all_moved = places.iter().all(|place| place.elsewhere == Presence::Yes);
    let unwanted = places.iter().all(|place| place.elsewhere == Presence::Yes || place.wanted == Presence::No);
    if all_moved || waited >= seen.limits.reattach || (unwanted && waited >= REATTACH_UNWANTED) {
        pod.end = Some(End::Done);
    }
}

fn result_of(seen: &DrainObservation, progress: &Progress) -> DrainResult {
    let by_uid: Vec<(&String, &PodProgress)> = progress.pods.iter().filter(|(_, pod)| pod.end.is_none()).collect();
    let pending: Vec<&PodProgress> = by_uid.iter().map(|(_, pod)| *pod).collect();
    let forced = seen.limits.force == Force::Yes;
    if pending.is_empty() {
        let errors: Vec<String> = progress
            .pods
            .values()
            .filter_map(|pod| match &pod.end {
                Some(End::Failed(error)) => Some(error.clone()),
                Some(End::Done) | None => None,
            })
            .collect();
        return match (errors.is_empty(), progress.lingering.is_empty() || forced) {
            (true, true) => DrainResult::Drained,
            (true, false) => failed(
                progress,
                format!(
                    "volumes still attached to the node: {}",
                    progress.lingering.iter().cloned().collect::<Vec<_>>().join(", ")
                ),
            ),
            (false, _) => failed(progress, errors.join("; ")),
        };
    }
    let asking = pending.iter().any(|pod| pod.asked.is_some());
    if seen.now >= seen.limits.deadline && !asking {
        return failed(progress, format!("deadline passed with {}", named(&pending)));
    }
    let blocked: Vec<&PodProgress> =
        pending.iter().filter(|pod| pod.refused_by.is_some() && pod.accepted.is_none()).copied().collect();
    let blocked_by = blocked.first().and_then(|pod| pod.refused_by.clone());
    let mut text = format!("{} of {} pods left", pending.len(), progress.pods.len());
    if let Some(budget) = &blocked_by {
        use std::fmt::Write;
        // Writing to a String can't fail.
        let _ = write!(text, ", {} blocked by PodDisruptionBudget {budget}", blocked.len());
    }
    let waiting = waiting_for(seen, &by_uid);
    let attempt = progress.attempt(waiting.as_ref());
    DrainResult::Running { progress: format!("{text}."), blocked_by, waiting, attempt, wake: wake(seen, &pending) }
}

fn failed(progress: &Progress, text: String) -> DrainResult {
    DrainResult::Failed(Failure { text, on: progress.failed_on() })
}

/// Pods by name, the first few.
fn named(pods: &[&PodProgress]) -> String {
    let names: Vec<&str> = pods.iter().take(NAMED_PODS).map(|pod| pod.name.as_str()).collect();
    format!("{} pods pending: {}", pods.len(), names.join(", "))
}

/// The next time something is due without an event: a retry, the deadline, or the next look of a wait.
fn wake(seen: &DrainObservation, pending: &[&PodProgress]) -> Duration {
    let until = |at: Timestamp| since(at, seen.now);
    let retries = pending.iter().filter_map(|pod| pod.next_try).filter(|at| *at > seen.now).map(until);
    // Answers wake the machine; the look in between is for an answer that got lost.
    let waits = pending.iter().filter(|pod| pod.accepted.is_some() || pod.asked.is_some()).map(|_| POLL);
    // Pods with volumes wait for the one that is moving, and all pods for a free slot; an answer lets them go on.
    let one_is_moving = pending.iter().any(|pod| is_moving(seen, pod));
    let all_asked = pending.iter().filter(|pod| pod.asked.is_some()).count() >= seen.limits.parallel;
    let due = pending
        .iter()
        .filter(|pod| pod.accepted.is_none() && pod.asked.is_none() && pod.next_try.is_none() && !all_asked)
        .filter(|pod| is_plain(seen, pod) || !one_is_moving)
        .map(|_| Duration::ZERO);
    retries
        .chain(waits)
        .chain(due)
        .chain([until(seen.limits.deadline)])
        .min()
        .unwrap_or(POLL)
        .max(Duration::from_millis(50))
}

/// Takes in what the API server said about an action.
pub fn learn(progress: &mut Progress, seen: &DrainObservation, action: &PodAction, answer: PodAnswer, now: Timestamp) {
    let budget = facts(seen, &action.uid).map(|facts| facts.budget.clone());
    let with_volumes = facts(seen, &action.uid).is_some_and(|facts| facts.class == PodClass::WithVolumes);
    let Some(pod) = progress.pods.get_mut(&action.uid) else { return };
    let later = |pause: Duration| Some(after(now, pause));
    pod.asked = None;
    if pod.end.is_some() {
        // An answer that came after its attempt had ended.
        return;
    }
    match (answer, action.how) {
        (PodAnswer::Accepted, How::Evict | How::Delete) => pod.accepted = Some(now),
        (PodAnswer::Gone, How::Evict | How::Delete) if with_volumes => pod.accepted = Some(now),
        // A forced deletion is not waited for.
        (PodAnswer::Accepted | PodAnswer::Gone, How::DeleteNow) | (PodAnswer::Gone, How::Evict | How::Delete) => {
            pod.end = Some(End::Done);
        }
        (PodAnswer::Busy(pause), _) => pod.next_try = later(pause),
        (PodAnswer::Refused, _) => {
            pod.refusals = pod.refusals.saturating_add(1);
            pod.refused_since.get_or_insert(now);
            pod.refused_by = budget.and_then(|budget| budget.names()).or_else(|| Some("unknown".to_owned()));
            pod.next_try = later(EVICTION_RETRY);
            if let Some(BudgetState::Misconfigured(_)) = facts(seen, &action.uid).map(|facts| &facts.budget) {
                // Told at once and not asked again in this attempt.
                pod.next_try = None;
            }
        }
        (PodAnswer::Failed(_), How::Evict) if with_volumes => {
            pod.refusals = pod.refusals.saturating_add(1);
            pod.refused_since.get_or_insert(now);
            pod.refused_by = budget.and_then(|budget| budget.names());
            pod.next_try = later(EVICTION_RETRY);
        }
        (PodAnswer::Failed(error), how) => {
            if how == How::Evict {
                pod.refusals = pod.refusals.saturating_add(1);
            }
            let budgets = match budget {
                Some(BudgetState::Several(names)) => format!(
                    ": it is covered by PodDisruptionBudgets {}, and no pod with more than one is ever evicted",
                    names.join(" and ")
                ),
                _ => String::new(),
            };
            pod.end = Some(End::Failed(format!("error when evicting pod \"{}\"{budgets}: {error}", pod.name)));
        }
    }
}
