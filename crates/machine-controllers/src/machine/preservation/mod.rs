//! Keeping a failed machine, its VM and its Node, so that people can look at them.
//!
//! This module decides what the annotations on Machine and Node ask for together, and what follows: the end of the
//! preservation, the marks on the Node, the drain of a failed machine, and how all of this is undone. The module `set`
//! chooses machines to preserve by itself, and does not delete them. Source: spec/machine-controller §5.6, M-12, M-19.

mod drain;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;

use self::drain::{drain_if_due, is_drained};
use super::{
    health::timeout::failed_wait,
    node::steps::condition_now,
    observation::{NodeStep, Observation, condition},
    plan::{
        Effect, Next, Plan, RuleResult, VersionGuard,
        node_dress::NodeDress,
        reporting::{Worth, write_if},
        status_change::{StatusChange, progressing},
        waits::Wait,
    },
    retry::{RetryPeriod, tried_again},
    standing::{Course, Waiting},
};
use crate::{
    snapshots::NodeSnapshot,
    times::{after, rfc3339, since},
};
use controller_runtime::clock::as_watched;
use kube_values::duration::GoDuration;
use machine_api::{
    names::{annotation, machine_condition, machine_reason, node_condition, preserve_value, taint},
    v1alpha1::MachinePhase,
};

/// The wish in an annotation `preserve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing: there is no annotation, or it is empty.
    Nothing,
    /// `false`.
    No,
    /// `now`.
    Now,
    /// `when-failed`.
    WhenFailed,
    /// `auto-preserved`, which the set controller writes.
    Auto,
}

impl Wish {
    /// The meaning of a value; `None` for an unknown value.
    pub fn of(value: &str) -> Option<Self> {
        match value {
            "" => Some(Self::Nothing),
            preserve_value::FALSE => Some(Self::No),
            preserve_value::NOW => Some(Self::Now),
            preserve_value::WHEN_FAILED => Some(Self::WhenFailed),
            preserve_value::AUTO_PRESERVED => Some(Self::Auto),
            _ => None,
        }
    }
}

/// The annotation that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WishSource {
    /// The annotation of the Machine.
    Machine,
    /// The annotation of the Node, also when it was removed.
    Node,
}

/// Whether the annotations stay when a preservation stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotations {
    /// They stay.
    Stay,
    /// They have had their effect and are removed.
    Go,
}

/// The decision about a machine's preservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stops, if it had begun.
    Stop(Annotations),
    /// It begins or goes on.
    Preserve,
}

/// Decides from the wish, from whether the time of the preservation is over, and from whether the machine has failed.
fn verdict(wish: Wish, is_over: bool, phase: &MachinePhase) -> Verdict {
    let has_failed = *phase == MachinePhase::Failed;
    match (wish, is_over) {
        (Wish::Now, false) => Verdict::Preserve,
        (Wish::WhenFailed | Wish::Auto, false) if has_failed => Verdict::Preserve,
        (Wish::Nothing | Wish::No, _) | (Wish::WhenFailed, false) => Verdict::Stop(Annotations::Stay),
        (Wish::Now | Wish::WhenFailed, true) | (Wish::Auto, _) => Verdict::Stop(Annotations::Go),
    }
}

/// The annotations about the preservation, as text.
struct WishTexts<'a> {
    machine: Option<&'a str>,
    node: Option<&'a str>,
    last_applied: &'a str,
}

fn wish_texts(seen: &Observation) -> WishTexts<'_> {
    let own = seen.machine.annotations();
    WishTexts {
        machine: own.get(annotation::PRESERVE).map(String::as_str),
        node: seen.node.ours().and_then(|node| node.annotation(annotation::PRESERVE)),
        last_applied: own.get(annotation::LAST_APPLIED_NODE_PRESERVE_VALUE).map(String::as_str).unwrap_or_default(),
    }
}

/// The end of the preservation, if it has begun.
pub(super) fn ends(seen: &Observation) -> Option<Timestamp> {
    seen.machine.preserve_expiry_time()
}

/// The remaining time of the preservation, if it has begun. After a step of the clock this process must have watched the
/// machine for a while.
fn time_left(seen: &Observation) -> Option<Duration> {
    let end = ends(seen)?;
    if end > seen.now {
        return Some(since(end, seen.now));
    }
    let length = seen.limits.preserve;
    Some(length.saturating_sub(as_watched(length.saturating_add(since(seen.now, end)), length, seen.step)))
}

/// Decides about the machine's preservation, step by step.
pub fn preservation(seen: &Observation) -> RuleResult {
    let texts = wish_texts(seen);
    if ends(seen).is_none() && texts.machine.is_none() && texts.node.is_none() && texts.last_applied.is_empty() {
        return RuleResult::NOTHING;
    }
    if let Some(unknown) = texts.node.filter(|value| Wish::of(value).is_none()) {
        // A user has a wish, which is not known yet. Nothing is changed before it is known.
        return warn_of_unknown_value(seen, unknown, "Node");
    }
    if let Some(unknown) = texts.machine.filter(|value| Wish::of(value).is_none())
        && ends(seen).is_none()
        && texts.node.is_none()
        && texts.last_applied.is_empty()
    {
        return warn_of_unknown_value(seen, unknown, "Machine");
    }
    if seen.step_failures.at(NodeStep::Preservation).is_some() {
        return retry_marks(seen);
    }
    let (wish, source) = wish(seen, &texts);
    let is_over = time_left(seen).is_some_and(|left| left.is_zero());
    match verdict(wish, is_over, seen.phase()) {
        Verdict::Stop(annotations) if ends(seen).is_some() => stop(seen, annotations),
        Verdict::Stop(Annotations::Go) => release_recovered(seen),
        Verdict::Stop(_) => store_node_wish(&texts, source).unwrap_or(RuleResult::NOTHING),
        Verdict::Preserve => preserve(seen, wish)
            .or_else(|| lift_taint(seen))
            .or_else(|| store_node_wish(&texts, source))
            .unwrap_or_else(|| RuleResult::Pass(time_left(seen))),
    }
}

/// The wish that counts: the Node's, unless the Node has no annotation and had none before.
fn wish(seen: &Observation, texts: &WishTexts<'_>) -> (Wish, WishSource) {
    let node = texts.node.unwrap_or_default();
    let (value, source) = if seen.node.ours().is_none() || (node.is_empty() && texts.last_applied.is_empty()) {
        (texts.machine.unwrap_or_default(), WishSource::Machine)
    } else {
        (node, WishSource::Node)
    };
    // An unknown value on the machine counts as none.
    (Wish::of(value).unwrap_or(Wish::Nothing), source)
}

/// Reports an unknown value once, without delaying a creation.
fn warn_of_unknown_value(seen: &Observation, value: &str, place: &str) -> RuleResult {
    if seen.machine.provider_id().is_empty() {
        return RuleResult::NOTHING;
    }
    let message = format!(
        "annotation {} on the {place} is {value:?} and changes nothing; known values are now, when-failed and false",
        annotation::PRESERVE
    );
    let warn = Effect::Warn { reason: machine_reason::PRESERVE_VALUE_UNKNOWN, message };
    let pause = RetryPeriod::Long.length(seen.limits.resource_exhausted_retry);
    RuleResult::act("preserve-value-unknown", vec![warn], Next::LookAgain(pause, Wait::PreserveValue))
}

/// A write on the Node failed: report it, and try again soon.
fn retry_marks(seen: &Observation) -> RuleResult {
    let error = seen.step_failures.at(NodeStep::Preservation).map(|failure| failure.error.as_str()).unwrap_or_default();
    let pause = RetryPeriod::Short.length(seen.limits.resource_exhausted_retry);
    let wait = wait_in_preservation(seen, machine_condition::REASON_PRESERVED, "its Node to be marked as preserved")
        .seen(error)
        .ended_by(format!("a write succeeds; {}", tried_again(GoDuration::from(pause))));
    let next = Next::LookAgain(pause, Wait::PreservationMarks);
    let change = StatusChange::new().waits(wait);
    RuleResult::Act(Plan::reporting("preservation-failed", seen, change, Worth::NewValues, next))
}

/// A wait of a machine that is preserved.
pub(super) fn wait_in_preservation(seen: &Observation, reason: &'static str, on: impl Into<String>) -> Waiting {
    Waiting::on(reason, on).in_course_of(course(seen))
}

/// The [`Course`] of a machine that is preserved.
pub(super) fn course(seen: &Observation) -> Course {
    Course::Preservation { until: ends(seen), since: kept_since(seen) }
}

/// The wait of a failed machine that has been kept since then.
fn kept(since: Timestamp, end: Timestamp) -> Waiting {
    Waiting::on(machine_condition::REASON_PRESERVED, "somebody to look at the machine, which has failed")
        .in_course_of(Course::Preservation { until: Some(end), since })
        .ended_by(format!("its node recovers, or annotation {} is set to false", annotation::PRESERVE))
        .at_most_until(end, "it is not kept any longer")
}

/// The time since which the machine is kept: the time of its failure, or the start of its preservation.
fn kept_since(seen: &Observation) -> Timestamp {
    seen.machine.last_update_time().unwrap_or(seen.now)
}

/// One step towards a preserved machine; `None` when there is none left.
fn preserve(seen: &Observation, wish: Wish) -> Option<RuleResult> {
    let has_failed = *seen.phase() == MachinePhase::Failed;
    let Some(end) = ends(seen) else { return Some(begin(seen, has_failed)) };
    if let Some(node) = seen.node.ours()
        && !node.is_deleting()
    {
        let stored = condition(node.conditions(), node_condition::PRESERVED);
        let is_due = has_failed && !is_drained(stored);
        if is_due || stored.is_none_or(|stored| stored.status != "True") {
            if let Some(dress) = marks(node, is_due) {
                let mark = dressing(dress);
                return Some(RuleResult::act("mark-preserved", vec![mark], Next::Again));
            }
            if is_due {
                return Some(drain_if_due(seen, node, reason_of(wish)));
            }
            let text = format!("Machine preserved until {}.", rfc3339(end));
            let reported = write_preserved(node, "True", reason_of(wish), &text, seen.now);
            return Some(RuleResult::act("tell-preserved", vec![reported], Next::Again));
        }
    }
    if !has_failed {
        return None;
    }
    let change = StatusChange::new().rests(kept(kept_since(seen), end));
    write_if(seen, &change, Worth::NewValues)
        .map(|reported| RuleResult::act("explain-preserved", vec![reported], Next::Again))
}

/// The preservation begins.
fn begin(seen: &Observation, has_failed: bool) -> RuleResult {
    let end = after(seen.now, seen.limits.preserve);
    let mut change = StatusChange::new().preserved_until(end);
    if has_failed {
        change = change.rests(kept(seen.now, end));
    }
    let reported = format!("the machine is preserved until {}", rfc3339(end));
    RuleResult::act(
        "begin-preservation",
        vec![change.effect(seen), Effect::Tell { reason: machine_reason::PRESERVED, message: reported }],
        Next::Again,
    )
}

fn reason_of(wish: Wish) -> &'static str {
    match wish {
        Wish::Auto => node_condition::REASON_PRESERVED_BY_MCM,
        Wish::Nothing | Wish::No | Wish::Now | Wish::WhenFailed => node_condition::REASON_PRESERVED_BY_USER,
    }
}

/// The missing marks on the Node of a preserved machine: cluster-autoscaler's annotation, unless it is set already, and the taint once the machine
/// has failed.
fn marks(node: &NodeSnapshot, is_due: bool) -> Option<NodeDress> {
    let mut dress = NodeDress::default();
    if node.annotation(annotation::SCALE_DOWN_DISABLED) != Some("true") {
        for key in [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM] {
            dress.annotations.insert(key.to_owned(), Some("true".to_owned()));
        }
    }
    if is_due && !is_tainted(node) {
        let mut taints = node.taints().to_vec();
        taints.push(Taint { key: taint::PRESERVED.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() });
        dress.taints = Some(taints);
    }
    dress.unless_empty()
}

/// The write on a Node for a preservation.
fn dressing(dress: NodeDress) -> Effect {
    Effect::Dress { step: NodeStep::Preservation, dress: Box::new(dress) }
}

fn is_tainted(node: &NodeSnapshot) -> bool {
    node.taints().iter().any(|mark| mark.key == taint::PRESERVED)
}

fn without_taint(node: &NodeSnapshot) -> Vec<Taint> {
    node.taints().iter().filter(|mark| mark.key != taint::PRESERVED).cloned().collect()
}

/// The condition `Preserved`; its transition time stays while status and reason do.
pub(super) fn write_preserved(
    node: &NodeSnapshot,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Effect {
    let kind = node_condition::PRESERVED;
    let condition = Box::new(condition_now(node, kind, status, reason, message.to_owned(), now));
    Effect::SetNodeCondition { step: NodeStep::Preservation, condition }
}

/// Undoes everything that a preservation has done. The machine's own status comes last, so that a step that fails is
/// repeated.
fn stop(seen: &Observation, annotations: Annotations) -> RuleResult {
    let mut effects = Vec::new();
    if let Some(node) = seen.node.ours() {
        let is_preserved = condition(node.conditions(), node_condition::PRESERVED)
            .is_some_and(|stored| stored.reason.as_deref() != Some(node_condition::REASON_PRESERVATION_STOPPED));
        if is_preserved {
            let reason = node_condition::REASON_PRESERVATION_STOPPED;
            effects.push(write_preserved(node, "False", reason, "", seen.now));
        }
        effects.extend(unmarked(node, annotations).map(dressing));
    }
    effects.extend(own_annotations_go(seen, VersionGuard::Any).filter(|_| annotations == Annotations::Go));
    let mut change = StatusChange::new().preservation_stops();
    if progressing(&seen.machine).is_some_and(|stored| stored.reason == machine_condition::REASON_PRESERVED) {
        let (reason, text) = (machine_reason::PRESERVATION_STOPPED, "the machine is not preserved any longer");
        change = if *seen.phase() == MachinePhase::Failed {
            change.waits(failed_wait(seen, reason, text))
        } else {
            change.settled(reason, text)
        };
    }
    effects.push(change.effect(seen));
    effects.push(Effect::Tell {
        reason: machine_reason::PRESERVATION_STOPPED,
        message: "the machine is not preserved any longer".to_owned(),
    });
    RuleResult::act("stop-preservation", effects, Next::Again)
}

/// A machine that its set wanted to keep runs again before its preservation has begun. The annotations are removed all the
/// same: they would use up the set's allowance for as long as the machine lives (MC-149). The original leaves them.
fn release_recovered(seen: &Observation) -> RuleResult {
    let node = seen.node.ours().and_then(|node| unmarked(node, Annotations::Go));
    // A user may change the annotation at this moment.
    let effects = node.map(dressing).into_iter().chain(own_annotations_go(seen, VersionGuard::Observed));
    RuleResult::act("let-recovered-go", effects.collect(), Next::Again)
}

/// Removes the machine's own preservation annotations.
fn own_annotations_go(seen: &Observation, guard: VersionGuard) -> Option<Effect> {
    let own = seen.machine.annotations();
    let mine = [annotation::PRESERVE, annotation::LAST_APPLIED_NODE_PRESERVE_VALUE];
    if !mine.iter().any(|key| own.contains_key(*key)) {
        return None;
    }
    Some(Effect::ForgetPreservation(guard))
}

/// Removes from the Node what a preservation has added. A user's own annotation for cluster-autoscaler stays.
fn unmarked(node: &NodeSnapshot, annotations: Annotations) -> Option<NodeDress> {
    let has = |key: &str| node.annotation(key);
    let mut dress = NodeDress::default();
    let mut gone = |key: &str| dress.annotations.insert(key.to_owned(), None);
    if has(annotation::SCALE_DOWN_DISABLED_BY_MCM) == Some("true") {
        gone(annotation::SCALE_DOWN_DISABLED);
        gone(annotation::SCALE_DOWN_DISABLED_BY_MCM);
    }
    if annotations == Annotations::Go && has(annotation::PRESERVE).is_some() {
        gone(annotation::PRESERVE);
    }
    dress.taints = is_tainted(node).then(|| without_taint(node));
    dress.unless_empty()
}

/// Removes the taint from a machine that runs again, preserved or not, so that it takes pods again.
fn lift_taint(seen: &Observation) -> Option<RuleResult> {
    let node = seen.node.ours().filter(|node| *seen.phase() == MachinePhase::Running && is_tainted(node))?;
    let lift = dressing(NodeDress::of_taints(without_taint(node)));
    Some(RuleResult::act("lift-preserved-taint", vec![lift], Next::Again))
}

/// Stores the Node's value on the machine, so that another process notices its removal, too. The machine's own annotation is
/// removed, as it does not count any longer.
fn store_node_wish(texts: &WishTexts<'_>, source: WishSource) -> Option<RuleResult> {
    let value = texts.node.unwrap_or_default();
    if source == WishSource::Machine || (texts.machine.is_none() && texts.last_applied == value) {
        return None;
    }
    let remember = Effect::RememberNodesWish(value.to_owned());
    Some(RuleResult::act("remember-preserve-value", vec![remember], Next::Again))
}
