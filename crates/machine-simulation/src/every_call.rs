//! Histories that are repeated once per call, and in each repetition one call is the last one of its process. The
//! process dies before or after the call or during a driver call, or another replica takes the lease before it while
//! the first process continues. All properties must hold, and everything must come to rest (spec/trust.md TR-115).

use super::{
    TraceMode,
    calls::{Calls, Fault, PlannedFault},
    checks::Violation,
    guards::Guard,
    history::{DroppedCalls, Edit, History, Margin, Picks, Provider, Setup, Step, Strategy},
    run_with_fault,
};
use machine_controllers::deployment::AvailabilityRule;

/// A history whose calls are tested one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Story {
    /// The name of the history.
    pub name: &'static str,
    replicas: u8,
    strategy: Strategy,
    wanted: Edit,
    provider: Provider,
}

/// A call whose fault violated a property.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The call and its fault.
    pub planned_fault: String,
    /// The violation.
    pub violation: Violation,
    /// The trace of the history.
    pub lines: Vec<String>,
}

/// The faults of a call to an API server.
const FAULTS: [Fault; 4] = [Fault::DieBefore, Fault::DieAfter, Fault::LoseLease, Fault::LoseAnswer];
/// Whether and when a driver call is carried out whose process dies.
const DROPPED_CALLS: [DroppedCalls; 3] = [DroppedCalls::Never, DroppedCalls::AtOnce, DroppedCalls::Later];

impl Story {
    /// All stories.
    pub fn all() -> Vec<Self> {
        let rolling = Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) };
        let in_place = Strategy::InPlace {
            surge: Margin::Machines(0),
            unavailable: Margin::Machines(1),
            picks: Picks::Controller,
        };
        let stories = [
            ("a creation", 0, rolling, Edit::Scale(1)),
            ("a drain and a deletion", 2, rolling, Edit::Scale(1)),
            ("a rollout", 2, rolling, Edit::Class(1)),
            ("an update in place", 2, in_place, Edit::Class(1)),
        ];
        let with = |provider: Provider| {
            stories.into_iter().map(move |(name, replicas, strategy, wanted)| Self {
                name,
                replicas,
                strategy,
                wanted,
                provider,
            })
        };
        with(Provider::AnswersTheSame).chain(with(Provider::MakesAnother)).collect()
    }

    fn history(self, without: Option<Guard>) -> History {
        History {
            seed: 1,
            setup: Setup { replicas: self.replicas, strategy: self.strategy },
            provider: self.provider,
            counts: AvailabilityRule::default(),
            volumes: 0,
            rounds: vec![vec![Step::Edit(self.wanted)]],
            without,
        }
    }

    fn calls(self) -> Calls {
        run_with_fault(&self.history(None), TraceMode::Off, None).1
    }

    /// Plays the story once for each call and each fault; returns the number of runs and the violations.
    pub fn played(self, without: Option<Guard>) -> (usize, Vec<Broken>) {
        let (history, calls) = (self.history(without), self.calls());
        let at_servers = (0..calls.api).flat_map(|call| FAULTS.map(|fault| PlannedFault::Call(call, fault)));
        let at_drivers =
            (0..calls.driver).flat_map(|call| DROPPED_CALLS.map(|dropped| PlannedFault::DriverCall(call, dropped)));
        let dooms: Vec<PlannedFault> = at_servers.chain(at_drivers).collect();
        let broken = dooms.iter().filter_map(|planned_fault| broken(&history, *planned_fault)).collect();
        (dooms.len(), broken)
    }
}

fn broken(history: &History, planned_fault: PlannedFault) -> Option<Broken> {
    let violation = run_with_fault(history, TraceMode::Off, Some(planned_fault)).0.violation?;
    let lines = run_with_fault(history, TraceMode::Full, Some(planned_fault)).0.lines;
    Some(Broken { planned_fault: format!("{planned_fault:?}"), violation, lines })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_a_creation(0, 3)]
    #[case::of_a_drain_and_a_deletion(1, 1)]
    #[case::of_a_rollout(2, 3)]
    #[case::of_an_update_in_place(3, 0)]
    fn tr_115_a_process_may_end_at_every_call(#[case] place: usize, #[case] least: u32) {
        let both = Story::all().into_iter().skip(place).step_by(4);
        for story in both {
            let calls = story.calls();
            assert!(calls.api > 10 && calls.driver >= least, "{calls:?}");
            let (times, broken) = story.played(None);
            assert!(times > 4 * 10, "{times}");
            if let Some(Broken { planned_fault, violation, lines }) = broken.first() {
                panic!("{story:?}: {planned_fault}: {violation:?}\n{}", lines.join("\n"));
            }
        }
    }

    #[rstest]
    #[case::a_replica_that_acts_without_the_lease(Guard::Leadership, 0)]
    #[case::a_second_vm_that_a_forgotten_call_has_made(Guard::Intent, 4)]
    fn without_a_guard_something_breaks(#[case] guard: Guard, #[case] story: usize) {
        assert!(!Story::all()[story].played(Some(guard)).1.is_empty());
    }
}
