//! One step of a drain: decides what to evict or delete now, what to wait for, and whether the drain is complete.
//!
//! Pure. Source: spec/machine-controller §7.3–7.9, §15.4; decisions.md 11. Pods without volumes are evicted
//! concurrently, pods with volumes one after the other in the order of their priority; both groups at the same time.

use std::{cmp::Reverse, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use super::{
    EVICTION_RETRY,
    budgets::BudgetState,
    observe::{DrainObservation, NodePresence, PodFacts},
    order::Force,
    pods::PodClass,
    progress::{Attempt, End, Failure, PodAnswer, PodProgress, Progress},
    volumes::VolumePlace,
    waiting::{Waiting, waiting_for},
};
use crate::times::{after, since};
use controller_runtime::key::ObjectKey;

/// Time that a pod may take to disappear, in addition to its grace period.
const BEYOND_GRACE: Duration = Duration::from_secs(30);
/// After this time the drain stops waiting for a volume that no new pod wants (decisions.md 11).
const REATTACH_UNWANTED: Duration = Duration::from_secs(10);
/// Period of the checks while waiting without an event.
const POLL: Duration = Duration::from_secs(5);
/// Maximum number of pods named in a failure.
const NAMED_PODS: usize = 5;

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrainStep {
    /// Evictions and deletions to send; their answers arrive in a later step.
    pub actions: Vec<PodAction>,
    /// The new progress; answers are added to it.
    pub progress: Progress,
    /// The state of the drain.
    pub result: DrainResult,
}

/// An action on a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodAction {
    /// The pod.
    #[serde(serialize_with = "displayed")]
    pub key: ObjectKey,
    /// The UID of the pod.
    pub uid: String,
    /// The action.
    pub how: How,
}

fn displayed<S: serde::Serializer>(key: &ObjectKey, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(key)
}

/// How a pod is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum How {
    /// Evicted, within its budget.
    Evict,
    /// Deleted with its own grace period.
    Delete,
    /// Deleted at once.
    DeleteNow,
}

/// The state of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DrainResult {
    /// Running; the next step is due after `wake` at the latest.
    Running {
        /// The message.
        progress: String,
        /// Budgets that refuse evictions.
        blocked_by: Option<String>,
        /// The wait of the drain.
        waiting: Option<Waiting>,
        /// The comparison with the previous attempt.
        attempt: Attempt,
        /// Time until the next step.
        wake: Duration,
    },
    /// All pods that had to go are gone.
    Drained,
    /// The attempt failed.
    Failed(Failure),
}

/// Decides one step of a drain.
pub fn drain_step(seen: &DrainObservation) -> DrainStep {
    let mut progress = seen.progress.clone();
    if seen.node == NodePresence::Gone {
        // If the node is gone, the pod garbage collector deletes its pods, and the volumes are free (fast track).
        return DrainStep { actions: Vec::new(), progress: Progress::default(), result: DrainResult::Drained };
    }
    if !progress.is_listed && progress.awaits_names(seen.now) && seen.limits.force == Force::No {
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

/// The pods are listed only when it is known which of their volumes the drain waits for.
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

/// How many more pods may be evicted now.
fn free_slots(seen: &DrainObservation, progress: &Progress, actions: &[PodAction]) -> usize {
    let asked = progress.pods.values().filter(|pod| pod.asked.is_some()).count();
    seen.limits.parallel.saturating_sub(asked + actions.len())
}

/// Time that a pod without tracked volumes may take to disappear.
pub(super) fn pod_limit(seen: &DrainObservation, facts: &PodFacts) -> Duration {
    facts.grace.min(seen.limits.timeout) + BEYOND_GRACE
}

/// Time that a pod and its volumes may take to leave the node.
pub(super) fn volume_limit(seen: &DrainObservation, facts: Option<&PodFacts>) -> Duration {
    facts.map(|facts| facts.grace).unwrap_or_default() + seen.limits.detach
}

/// Adds the pods to move, and the volumes left behind by others, to the attempt; once per attempt.
fn list_pods(seen: &DrainObservation, progress: &mut Progress) {
    if progress.is_listed {
        return;
    }
    progress.is_listed = true;
    for pod in seen.pods.iter().filter(|pod| !pod.class.stays()) {
        let entry = PodProgress {
            name: pod.key.to_string(),
            volumes: pod.volumes.clone(),
            accepted: pod.deleting_since.map(|_| seen.now),
            ..PodProgress::default()
        };
        progress.pods.insert(pod.uid.clone(), entry);
    }
    // The list of late volumes is in memory only. After a restart it is rebuilt from the attachments (M-43).
    progress.lingering.extend(seen.left_attached.iter().cloned());
}

/// Removes the late volumes that have detached by now.
fn settle_lingering(seen: &DrainObservation, progress: &mut Progress) {
    progress.lingering.retain(|pv| is_here(seen, pv));
}

fn is_here(seen: &DrainObservation, pv: &str) -> bool {
    seen.volumes.get(pv).is_some_and(|place| place.here)
}

fn facts<'a>(seen: &'a DrainObservation, uid: &str) -> Option<&'a PodFacts> {
    seen.pods.iter().find(|pod| pod.uid == uid)
}

/// Forced mode: deletes all pods at once and waits for nothing.
fn delete_all(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut free = free_slots(seen, progress, actions);
    for (uid, pod) in &mut progress.pods {
        let due = pod.end.is_none() && pod.asked.is_none() && pod.next_try.is_none_or(|at| at <= seen.now);
        match facts(seen, uid) {
            None => pod.end = Some(End::Done),
            // A pod whose eviction an earlier attempt requested is deleted again, without grace period.
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

/// Handles pods without volumes.
fn parallel_group(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut free = free_slots(seen, progress, actions);
    for (uid, pod) in progress.pods.iter_mut().filter(|(_, pod)| pod.end.is_none()) {
        let Some(facts) = facts(seen, uid) else {
            // Pods with tracked volumes end in `serial_group`.
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

/// The next action for a pod that still exists.
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

/// Handles pods with volumes: one at a time from eviction to reattachment, in the order of their priority. If an
/// eviction is refused, the next pod is tried.
fn serial_group(seen: &DrainObservation, progress: &mut Progress, actions: &mut Vec<PodAction>) {
    let mut lingering = Vec::new();
    for (uid, pod) in progress.pods.iter_mut().filter(|(_, pod)| pod.end.is_none() && !is_plain(seen, pod)) {
        if facts(seen, uid).is_some() && pod.accepted.is_none() {
            continue;
        }
        // The eviction was accepted, or the pod is gone for another reason.
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

/// Whether a pod with volumes is moving, so that the next one must wait.
fn is_moving(seen: &DrainObservation, pod: &PodProgress) -> bool {
    pod.end.is_none() && (pod.accepted.is_some() || pod.asked.is_some()) && !is_plain(seen, pod)
}

/// Whether the pod is in the parallel group: it exists and has no claims.
fn is_plain(seen: &DrainObservation, pod: &PodProgress) -> bool {
    pod.volumes.is_empty()
        && !seen.pods.iter().any(|facts| facts.class == PodClass::WithVolumes && facts.key.to_string() == pod.name)
}

/// Follows a pod with volumes whose eviction was accepted: it disappears, its volumes detach, then they attach
/// elsewhere.
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
    let all_moved = places.iter().all(|place| place.elsewhere);
    let unwanted = places.iter().all(|place| place.elsewhere || !place.wanted);
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

/// The first pods by name.
fn named(pods: &[&PodProgress]) -> String {
    let names: Vec<&str> = pods.iter().take(NAMED_PODS).map(|pod| pod.name.as_str()).collect();
    format!("{} pods pending: {}", pods.len(), names.join(", "))
}

/// The time until the next timer: a retry, the deadline, or the next check of a wait.
fn wake(seen: &DrainObservation, pending: &[&PodProgress]) -> Duration {
    let until = |at: Timestamp| since(at, seen.now);
    let retries = pending.iter().filter_map(|pod| pod.next_try).filter(|at| *at > seen.now).map(until);
    // Answers wake the machine. The check in between covers a lost answer.
    let waits = pending.iter().filter(|pod| pod.accepted.is_some() || pod.asked.is_some()).map(|_| POLL);
    // Pods with volumes wait for the moving pod, and all pods wait for a free slot; an answer starts the next step.
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

/// Records the API server's answer to an action.
pub fn learn(progress: &mut Progress, seen: &DrainObservation, action: &PodAction, answer: PodAnswer, now: Timestamp) {
    let budget = facts(seen, &action.uid).map(|facts| facts.budget.clone());
    let with_volumes = facts(seen, &action.uid).is_some_and(|facts| facts.class == PodClass::WithVolumes);
    let Some(pod) = progress.pods.get_mut(&action.uid) else { return };
    let later = |pause: Duration| Some(after(now, pause));
    pod.asked = None;
    if pod.end.is_some() {
        // The attempt had ended before the answer arrived.
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
                // Reported at once, and not repeated in this attempt.
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
