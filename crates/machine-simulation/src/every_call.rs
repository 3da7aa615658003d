//! Stories in which every single call is the last one of its process: it dies before or after it, or another replica takes the
//! lease before it, while the first one goes on; or it dies while a driver call is under way. All must hold, and everything must
//! come to rest (spec/trust.md TR-115).

use super::{
    Telling,
    calls::{Calls, Doom, Fault},
    checks::Violation,
    guards::Guard,
    history::{Edit, History, Margin, Picks, Provider, Setup, Step, Strategy, Unheard},
    run_doomed,
};
use machine_controllers::deployment::AvailabilityRule;

/// A story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Story {
    /// What happens in it.
    pub name: &'static str,
    replicas: u8,
    strategy: Strategy,
    wanted: Edit,
    provider: Provider,
}

/// A call of a story that was one too many.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What happened at which call.
    pub doom: String,
    /// What followed.
    pub violation: Violation,
    /// What happened, line by line.
    pub lines: Vec<String>,
}

/// How processes end at a call to an API server.
const FAULTS: [Fault; 4] = [Fault::DieBefore, Fault::DieAfter, Fault::LoseLease, Fault::LoseAnswer];
/// What becomes of a driver call whose process dies.
const UNHEARD: [Unheard; 3] = [Unheard::Never, Unheard::AtOnce, Unheard::Later];

impl Story {
    /// All of them.
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
        run_doomed(&self.history(None), Telling::Silent, None).1
    }

    /// Plays the story once for each of its calls and each way to end there: how often that was, and what broke.
    pub fn played(self, without: Option<Guard>) -> (usize, Vec<Broken>) {
        let (history, calls) = (self.history(without), self.calls());
        let at_servers = (0..calls.api).flat_map(|call| FAULTS.map(|fault| Doom::Call(call, fault)));
        let at_drivers = (0..calls.driver).flat_map(|call| UNHEARD.map(|unheard| Doom::DriverCall(call, unheard)));
        let dooms: Vec<Doom> = at_servers.chain(at_drivers).collect();
        let broken = dooms.iter().filter_map(|doom| broken(&history, *doom)).collect();
        (dooms.len(), broken)
    }
}

fn broken(history: &History, doom: Doom) -> Option<Broken> {
    let violation = run_doomed(history, Telling::Silent, Some(doom)).0.violation?;
    let lines = run_doomed(history, Telling::Aloud, Some(doom)).0.lines;
    Some(Broken { doom: format!("{doom:?}"), violation, lines })
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
            if let Some(Broken { doom, violation, lines }) = broken.first() {
                panic!("{story:?}: {doom}: {violation:?}\n{}", lines.join("\n"));
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
