//! Decides when the machine loops freeze because an API server does not answer, when they unfreeze, and what the thaw
//! does to a machine.
//!
//! While frozen there are no health decisions, no creations and no collection, because all of them would be based on
//! outdated stores. Started deletions, reads and webhooks continue. Source: spec/machine-controller §9.3, M-34, M-35,
//! decision 13.

use std::time::Duration;

use jiff::Timestamp;
use machine_api::v1alpha1::MachinePhase;
use serde::Serialize;

use crate::{machine::observation::Silence, snapshots::MachineSnapshot};

/// Version of the observation's serialised form.
pub const OBSERVATION_VERSION: u32 = 1;
/// The message of a machine after a thaw; the text of the original.
pub const THAW_TEXT: &str = "Machine Health Timeout was reset due to APIServer being unreachable";
/// Time from a thaw to the pass over all machines, so that the first updates can arrive.
pub const LOOK_AFTER_THAW: Duration = Duration::from_secs(30);

/// The state between two probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// The loops run.
    Flowing {
        /// When the first probe was sent that failed since both API servers last answered, on the steady clock.
        failing_since: Option<Timestamp>,
    },
    /// The loops are frozen.
    Frozen {
        /// When the first failed probe was sent; the outage had started by then. A machine that became unhealthy before
        /// that did so while the API servers were reachable, as far as is known.
        outage_began: Timestamp,
    },
}

/// Whether the stores show the present state of the API servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Views {
    /// They do, or no loop is frozen and it does not matter.
    Current,
    /// They do not: a watch that reconnects first replays earlier changes.
    Behind,
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Health {
    /// It answered.
    Up,
    /// It did not answer, for this reason.
    Down(String),
}

/// The limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// How long an API server may be unreachable before the loops freeze.
    pub timeout: Duration,
    /// Pause between two successful probes.
    pub period: Duration,
}

/// Everything that the decision depends on.
#[derive(Clone, Debug, Serialize)]
pub struct Observation {
    /// Version of this structure.
    pub version: u32,
    /// The time of the decision.
    pub now: Timestamp,
    /// The present time on the steady clock, which never steps.
    pub steady: Timestamp,
    /// When the probe was sent, on the steady clock.
    pub asked: Timestamp,
    /// Whether the stores show the present state of the API servers.
    pub views: Views,
    /// The state after the last probe.
    pub state: State,
    /// The API server with the machine objects.
    pub control: Health,
    /// The API server with the Nodes.
    pub target: Health,
    /// The limits.
    pub limits: Limits,
}

/// The action after a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Freeze the loops.
    Freeze,
    /// Reset the machines that became unhealthy in the outage, then let the loops run.
    Thaw {
        /// When the outage was first noticed.
        outage_began: Timestamp,
    },
}

/// The result of the decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The new state; for a thaw, the state once the thaw is done.
    pub state: State,
    /// The action.
    pub step: Step,
    /// Time until the next probe.
    pub next: Duration,
}

/// Decides what follows from a probe.
pub fn decide(seen: &Observation) -> Plan {
    let up = seen.control == Health::Up && seen.target == Health::Up;
    let well = State::Flowing { failing_since: None };
    let soon =
        (seen.limits.timeout / 5).max(Duration::from_secs(1)).min(seen.limits.period.max(Duration::from_secs(1)));
    let period = seen.limits.period.max(Duration::from_secs(1));
    let (state, step, next) = match (seen.state, up) {
        // An outage that was shorter than the timeout is forgotten (M-34).
        (State::Flowing { .. }, true) => (well, Step::Nothing, period),
        (State::Flowing { failing_since }, false) => {
            let since = failing_since.unwrap_or(seen.asked);
            let silent = seen.steady.duration_since(since);
            if Duration::try_from(silent).unwrap_or_default() > seen.limits.timeout {
                // The times in machines come from the wall clock, not from the steady clock.
                let outage_began = seen.now.checked_sub(silent).unwrap_or(since);
                (State::Frozen { outage_began }, Step::Freeze, soon)
            } else {
                (State::Flowing { failing_since: Some(since) }, Step::Nothing, soon)
            }
        }
        (frozen @ State::Frozen { .. }, true) if seen.views == Views::Behind => (frozen, Step::Nothing, soon),
        (State::Frozen { outage_began }, true) => (well, Step::Thaw { outage_began }, period),
        (frozen @ State::Frozen { .. }, false) => (frozen, Step::Nothing, period),
    };
    Plan { state, step, next }
}

/// The API server that does not answer. Without the API server that stores the machines, no status can be written.
pub fn silence(control: &Health, target: &Health) -> Silence {
    match (control, target) {
        (Health::Up, Health::Up) => Silence::None,
        (Health::Up, Health::Down(_)) => Silence::Target,
        (Health::Down(_), _) => Silence::Control,
    }
}

/// The effect of a thaw on an unhealthy machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Thaw {
    /// The machine became unhealthy during the outage: it counts as Running again.
    Recovers,
    /// The machine was unhealthy before: it stays Unknown, and its health timeout starts again.
    RestartsTimeout,
}

/// Decides the effect of a thaw on this machine. `None` means no effect.
pub fn thawed(machine: &MachineSnapshot, outage_began: Timestamp) -> Option<Thaw> {
    let current = &machine.status().current_status;
    if current.phase != MachinePhase::Unknown || machine.is_deleting() {
        return None;
    }
    let unhealthy_since = current.last_update_time.as_ref().map(|time| time.0);
    // Stored times have whole seconds.
    let was_unhealthy_before = unhealthy_since.is_some_and(|since| since.as_second() < outage_began.as_second());
    Some(if was_unhealthy_before { Thaw::RestartsTimeout } else { Thaw::Recovers })
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use machine_api::v1alpha1::Machine;

    pub(in crate::safety) fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    const LIMITS: Limits = Limits { timeout: Duration::from_secs(30), period: Duration::from_secs(60) };

    fn probe(state: State, control_up: bool, target_up: bool, second: i64) -> Plan {
        probe_with(Views::Current, state, control_up, target_up, second)
    }

    fn probe_with(views: Views, state: State, control_up: bool, target_up: bool, second: i64) -> Plan {
        let health = |up| if up { Health::Up } else { Health::Down("no answer".to_owned()) };
        decide(&Observation {
            version: OBSERVATION_VERSION,
            now: at(second),
            steady: at(second),
            asked: at(second),
            views,
            state,
            control: health(control_up),
            target: health(target_up),
            limits: LIMITS,
        })
    }

    /// Sends probes at these seconds, all with this result; returns the last plan.
    fn probes(mut state: State, up: bool, seconds: &[i64]) -> Plan {
        let mut last = None;
        for second in seconds {
            let plan = probe(state, up, up, *second);
            state = plan.state;
            last = Some(plan);
        }
        last.unwrap()
    }

    const WELL: fn() -> State = || State::Flowing { failing_since: None };
    const FROZEN: fn() -> State = || State::Frozen { outage_began: at(60) };

    #[test]
    fn mc_254_thirty_one_seconds_of_silence_freeze() {
        assert_eq!(probes(WELL(), false, &[60, 66, 72, 78, 84, 90]).step, Step::Nothing);
        let plan = probes(WELL(), false, &[60, 66, 72, 78, 84, 91]);
        assert_eq!((plan.step, plan.state), (Step::Freeze, FROZEN()));
    }

    #[rstest]
    #[case::set_back(-7200)]
    #[case::set_forward(7200)]
    fn a_step_of_the_clock_neither_hides_a_silence_nor_makes_one(#[case] by: i64) {
        let probe = |second: i64| {
            let down = || Health::Down("no answer".to_owned());
            decide(&Observation {
                version: OBSERVATION_VERSION,
                now: at(second + by),
                steady: at(second),
                asked: at(second),
                views: Views::Current,
                state: State::Flowing { failing_since: Some(at(60)) },
                control: down(),
                target: down(),
                limits: LIMITS,
            })
        };
        assert_eq!(probe(90).step, Step::Nothing);
        let plan = probe(91);
        assert_eq!((plan.step, plan.state), (Step::Freeze, State::Frozen { outage_began: at(60 + by) }));
    }

    #[test]
    fn mc_255_short_outages_do_not_add_up() {
        let after_the_first = probes(WELL(), false, &[60, 65]).state;
        let recovered = probe(after_the_first, true, true, 70).state;
        let second = probes(recovered, false, &[3670, 3675]);
        assert_eq!(second.step, Step::Nothing);
        assert_eq!(second.state, State::Flowing { failing_since: Some(at(3670)) });
    }

    #[test]
    fn mc_260_the_silence_of_the_target_alone_is_enough() {
        let failing = State::Flowing { failing_since: Some(at(10)) };
        assert_eq!(probe(failing, true, false, 41).step, Step::Freeze);
        assert_eq!(probe(failing, false, true, 41).step, Step::Freeze);
    }

    #[rstest]
    #[case::well(WELL(), true, Duration::from_secs(60))]
    #[case::failing(WELL(), false, Duration::from_secs(6))]
    #[case::frozen(FROZEN(), false, Duration::from_secs(60))]
    #[case::thawing(FROZEN(), true, Duration::from_secs(60))]
    fn the_next_probe(#[case] state: State, #[case] up: bool, #[case] next: Duration) {
        assert_eq!(probe(state, up, up, 100).next, next);
    }

    #[rstest]
    #[case::all_is_well(true, true, Silence::None)]
    #[case::machines_can_still_be_told(true, false, Silence::Target)]
    #[case::nothing_can_be_told(false, true, Silence::Control)]
    #[case::both(false, false, Silence::Control)]
    fn who_is_silent(#[case] control: bool, #[case] target: bool, #[case] expected: Silence) {
        let health = |up| if up { Health::Up } else { Health::Down("no answer".to_owned()) };
        assert_eq!(silence(&health(control), &health(target)), expected);
    }

    #[test]
    fn a_thaw_resets_failures_after_the_first_probe_without_an_answer() {
        let plan = probe(FROZEN(), true, true, 1200);
        assert_eq!((plan.step, plan.state), (Step::Thaw { outage_began: at(60) }, WELL()));
    }

    #[test]
    fn no_machine_is_thawed_with_outdated_views() {
        let plan = probe_with(Views::Behind, FROZEN(), true, true, 1200);
        assert_eq!((plan.step, plan.state, plan.next), (Step::Nothing, FROZEN(), Duration::from_secs(6)));
        let plan = probe_with(Views::Behind, WELL(), true, true, 1200);
        assert_eq!(plan.state, WELL(), "what flows goes on flowing");
    }

    #[test]
    fn the_outage_begins_with_the_question_and_not_with_the_end_of_the_wait_for_its_answer() {
        let down = || Health::Down("no answer within 10s".to_owned());
        let plan = decide(&Observation {
            version: OBSERVATION_VERSION,
            now: at(70),
            steady: at(70),
            asked: at(60),
            views: Views::Current,
            state: WELL(),
            control: Health::Up,
            target: down(),
            limits: LIMITS,
        });
        assert_eq!(plan.state, State::Flowing { failing_since: Some(at(60)) });
    }

    #[test]
    fn decision_13_a_machine_that_became_unhealthy_before_the_outage_stays_unhealthy() {
        let Step::Thaw { outage_began } = probe(FROZEN(), true, true, 1200).step else { panic!("no thaw") };
        assert_eq!(thawed(&unknown(59).into(), outage_began), Some(Thaw::RestartsTimeout));
        assert_eq!(thawed(&unknown(60).into(), outage_began), Some(Thaw::Recovers));
    }

    pub(in crate::safety) fn unknown(since: i64) -> Machine {
        let mut machine = Machine::default();
        machine.status.current_status.phase = MachinePhase::Unknown;
        machine.status.current_status.last_update_time = Some(Time(at(since)));
        machine
    }

    #[test]
    fn other_machines_are_left_alone() {
        let mut running = unknown(10);
        running.status.current_status.phase = MachinePhase::Running;
        let running = MachineSnapshot::from(running);
        assert_eq!(thawed(&running, at(0)), None);
        let mut deleting = unknown(10);
        deleting.metadata.deletion_timestamp = Some(Time(at(20)));
        let deleting = MachineSnapshot::from(deleting);
        assert_eq!(thawed(&deleting, at(0)), None);
    }
}
