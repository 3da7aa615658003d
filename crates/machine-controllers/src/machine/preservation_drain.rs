//! The drain of a failed machine that is preserved: as of a deletion, but behind a taint instead of a cordon.
//!
//! Source: spec/machine-controller §5.6 (f)–(h).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

use super::{
    deletion_drain::{is_worth_a_write, told, told_failure, tries_again},
    observation::{DrainState, Force, Observation, condition, conditions_of},
    plan::{DrainFlow, DrainOrder, Effect, Next, Say},
    preservation::{ends, explained, tell_preserved},
    retry::RetryPeriod,
    status_change::rfc3339,
    time_limit::{TimeLimit, node_limit},
    waiting::{after, awaits_views, views_wait},
    waits::Wait,
};
use kube_values::duration::GoDuration;
use machine_api::names::{label, machine_condition, machine_reason, node_condition};

/// A forced drain may take this long.
const FORCED_DRAIN: Duration = Duration::from_secs(60);

/// Whether the condition says that the drain is over.
pub(super) fn is_drained(condition: Option<&NodeCondition>) -> bool {
    condition
        .and_then(|condition| condition.message.as_deref())
        .is_some_and(|message| message.contains(node_condition::MESSAGE_PRESERVED_DRAINED))
}

/// When the machine failed or its preservation began.
fn began(seen: &Observation) -> Timestamp {
    seen.machine.status.current_status.last_update_time.as_ref().map_or(seen.now, |began| began.0)
}

/// The limit before pods are deleted instead of evicted: a drain timeout after that.
fn limit(seen: &Observation) -> TimeLimit {
    node_limit(seen, seen.limits.drain, began(seen))
}

/// When that is over.
fn by_force_from(seen: &Observation) -> Timestamp {
    limit(seen).ends_at_since(began(seen), seen.now)
}

fn force(seen: &Observation) -> Force {
    let asked = seen.machine.labels().get(label::FORCE_DRAIN).is_some_and(|value| value == "True");
    if asked || limit(seen).has_passed() || seen.is_node_lastingly_ill() { Force::Yes } else { Force::No }
}

/// Steps the drain and writes what became of it into the Node's condition.
pub(super) fn drain_if_due(seen: &Observation, node: &Node, reason: &'static str) -> Say {
    match &seen.drain {
        DrainState::Due => {
            let force = force(seen);
            let left = match force {
                Force::No => limit(seen).left(),
                Force::Yes => FORCED_DRAIN,
            };
            let failed = seen.machine.status.current_status.last_update_time.as_ref().map(|time| time.0);
            let order = DrainOrder {
                node: node.name_any(),
                node_uid: node.uid().unwrap_or_default(),
                flow: DrainFlow::Preservation(failed),
                force,
                deadline: after(seen.steady, left),
            };
            Say::act("drain-preserved", Vec::new(), Next::StepDrain(order))
        }
        DrainState::Warming => {
            let began = seen.machine.status.current_status.last_update_time.as_ref();
            let began = began.map_or(seen.first_seen, |began| began.0);
            let next = Next::LookAgain(views_wait(seen, began), Wait::PreservationViews);
            Say::act("drain-awaits-views", awaits_views(seen, began, None), next)
        }
        DrainState::Running { progress, waiting, headway, wake, .. } => {
            let end = format!("; pods are deleted by force from {} on", rfc3339(by_force_from(seen)));
            let told = told(progress, waiting.as_ref(), &end);
            let message = format!("{}{end}", told.waits_for.trim_end_matches('.'));
            let mut effects = Vec::new();
            if !tries_again(told_failure(seen), waiting.as_ref(), *headway)
                && is_worth_a_write(seen, told.reason, &message)
                && let Some(write) = explained(seen, told.reason, &message)
            {
                effects.push(write);
                effects.extend(told.warning);
            }
            Say::act("drain-preserved", effects, Next::LookAgain(*wake, Wait::PreservationDrain))
        }
        DrainState::Drained => ended(seen, node, reason, "True", node_condition::MESSAGE_PRESERVED_DRAINED, None),
        DrainState::Failed(error) => {
            ended(seen, node, reason, "False", node_condition::MESSAGE_PRESERVED_NOT_DRAINED, Some(error))
        }
    }
}

/// The end of an attempt. A failed one is told on the Node and on the machine, and repeated.
fn ended(
    seen: &Observation,
    node: &Node,
    reason: &'static str,
    status: &str,
    text: &str,
    error: Option<&String>,
) -> Say {
    let until = ends(seen).map(rfc3339).unwrap_or_default();
    let message = format!("{text} Machine preserved until {until}.");
    let stored = condition(conditions_of(node), node_condition::PRESERVED);
    let is_told = stored.is_some_and(|stored| {
        stored.status == status
            && stored.reason.as_deref() == Some(reason)
            && stored.message.as_deref() == Some(message.as_str())
    });
    let mut effects = Vec::new();
    if !is_told {
        effects.push(tell_preserved(node, status, reason, &message, seen.now));
    }
    let Some(error) = error else { return Say::act("preserved-and-drained", effects, Next::Again) };
    let pause = RetryPeriod::Short.length(seen.limits.resource_exhausted_retry);
    let waits_for = format!(
        "its node to be drained, which failed: {error}. Attempts go on every {}; pods are deleted by force from {} on",
        GoDuration::from(pause),
        rfc3339(by_force_from(seen))
    );
    if let Some(write) = explained(seen, machine_condition::REASON_DRAIN_FAILED, &waits_for) {
        effects.push(write);
        effects.push(Effect::Warn { reason: machine_reason::DRAIN_BLOCKED, message: format!("drain failed: {error}") });
    }
    Say::act("preserved-not-drained", effects, Next::LookAgain(pause, Wait::PreservationDrainFailed))
}
