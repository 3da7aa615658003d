//! The drain of a failed machine that is preserved. It works like the drain of a deletion, but with a taint instead of
//! a cordon.
//!
//! Source: spec/machine-controller §5.6 (f)–(h).

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use super::{course, ends, wait_in_preservation, write_preserved};
use crate::{
    drain::{
        order::{DrainFlow, DrainOrder, Force},
        progress::Failure,
    },
    machine::{
        deletion::drain::{drain_progress_write, drain_wait, tries_again},
        observation::{DrainState, Observation, condition},
        plan::{
            Effect, Next, Plan, RuleResult,
            reporting::{Worth, report_missing_views, views_pause, wait_for_views},
            status_change::StatusChange,
            waits::Wait,
        },
        retry::RetryPeriod,
        time_limit::{TimeLimit, node_limit},
    },
    snapshots::NodeSnapshot,
    times::{after, rfc3339},
};
use controller_runtime::snapshot::Snapshot;
use kube_values::duration::GoDuration;
use machine_api::names::{label, machine_condition, machine_reason, node_condition};

/// A forced drain may take this long.
const FORCED_DRAIN: Duration = Duration::from_secs(60);

/// Whether the condition shows that the drain has ended.
pub(super) fn is_drained(condition: Option<&NodeCondition>) -> bool {
    condition
        .and_then(|condition| condition.message.as_deref())
        .is_some_and(|message| message.contains(node_condition::MESSAGE_PRESERVED_DRAINED))
}

/// When the machine failed or its preservation began.
fn began(seen: &Observation) -> Timestamp {
    seen.machine.last_update_time().unwrap_or(seen.now)
}

/// The limit after which pods are deleted instead of evicted: one drain timeout after that time.
fn limit(seen: &Observation) -> TimeLimit {
    node_limit(seen, seen.limits.drain, began(seen))
}

/// When that limit ends.
fn by_force_from(seen: &Observation) -> Timestamp {
    limit(seen).ends_at_since(began(seen), seen.now)
}

fn force(seen: &Observation) -> Force {
    let asked = seen.machine.labels().get(label::FORCE_DRAIN).is_some_and(|value| value == "True");
    if asked || limit(seen).has_passed() || seen.is_node_lastingly_unhealthy() { Force::Yes } else { Force::No }
}

/// Steps the drain and writes its result into the Node's condition.
pub(super) fn drain_if_due(seen: &Observation, node: &NodeSnapshot, reason: &'static str) -> RuleResult {
    match &seen.drain {
        DrainState::Due => {
            let force = force(seen);
            let left = match force {
                Force::No => limit(seen).left(),
                Force::Yes => FORCED_DRAIN,
            };
            let failed = seen.machine.last_update_time();
            let order = DrainOrder {
                node: node.name().to_owned(),
                node_uid: node.uid().to_owned(),
                flow: DrainFlow::Preservation(failed),
                force,
                deadline: after(seen.steady, left),
            };
            RuleResult::act("drain-preserved", Vec::new(), Next::StepDrain(order))
        }
        DrainState::Warming => {
            let began = seen.machine.last_update_time().unwrap_or(seen.first_seen);
            let next = Next::LookAgain(views_pause(seen, began), Wait::PreservationViews);
            let lists = wait_for_views(seen, began, None);
            let reported = report_missing_views(seen, began, &lists);
            RuleResult::waits("drain-awaits-views", lists, reported, next)
        }
        DrainState::Running { progress, waiting, attempt, wake, .. } => {
            let (wait, warning) = drain_wait(progress, waiting.as_ref(), Some(by_force_from(seen)));
            let wait = wait.in_course_of(course(seen));
            let change = StatusChange::new().waits(wait.clone());
            let mut effects: Vec<Effect> = drain_progress_write(seen, &change, *attempt).into_iter().collect();
            effects.extend(warning.filter(|_| !tries_again(seen, *attempt)));
            RuleResult::waits("drain-preserved", wait, effects, Next::LookAgain(*wake, Wait::PreservationDrain))
        }
        DrainState::Drained => ended(seen, node, reason, "True", node_condition::MESSAGE_PRESERVED_DRAINED, None),
        DrainState::Failed(error) => {
            ended(seen, node, reason, "False", node_condition::MESSAGE_PRESERVED_NOT_DRAINED, Some(error))
        }
    }
}

/// The end of an attempt. A failed attempt is reported on the Node and on the machine, and repeated.
fn ended(
    seen: &Observation,
    node: &NodeSnapshot,
    reason: &'static str,
    status: &str,
    text: &str,
    error: Option<&Failure>,
) -> RuleResult {
    let until = ends(seen).map(rfc3339).unwrap_or_default();
    let message = format!("{text} Machine preserved until {until}.");
    let stored = condition(node.conditions(), node_condition::PRESERVED);
    let is_reported = stored.is_some_and(|stored| {
        stored.status == status
            && stored.reason.as_deref() == Some(reason)
            && stored.message.as_deref() == Some(message.as_str())
    });
    let reported = (!is_reported).then(|| write_preserved(node, status, reason, &message, seen.now));
    let Some(error) = error else {
        return RuleResult::act("preserved-and-drained", reported.into_iter().collect(), Next::Again);
    };
    let pause = RetryPeriod::Short.length(seen.limits.resource_exhausted_retry);
    let wait = wait_in_preservation(
        seen,
        machine_condition::REASON_DRAIN_FAILED,
        error.named_behind("its node to be drained"),
    )
    .seen(&error.text)
    .ended_by(format!("what fails the drain has ended; attempts go on every {}", GoDuration::from(pause)))
    .at_most_until(by_force_from(seen), "pods are deleted by force");
    let next = Next::LookAgain(pause, Wait::PreservationDrainFailed);
    let change = StatusChange::new().waits(wait);
    let mut plan = Plan::reporting("preserved-not-drained", seen, change, Worth::NewValues, next)
        .warning_if_written(machine_reason::DRAIN_BLOCKED, format!("drain failed: {}", error.text));
    // The Node comes first: its condition is part of the preservation.
    plan.effects.splice(0..0, reported);
    RuleResult::Act(plan)
}
