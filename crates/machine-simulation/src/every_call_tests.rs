//! Stories in which every single call is the last one of its process: it dies before or after it, or another replica takes the
//! lease before it, while the first one goes on. All must hold, and everything must come to rest (TR-115).

use std::collections::BTreeSet;

use rstest::rstest;

use super::{
    calls::{Calls, Doom, Fault},
    guards::Guard,
    history::{Edit, History, Margin, Picks, Provider, Setup, Step, Strategy, Unheard},
    *,
};
use machine_controllers::deployment::AvailabilityRule;

fn rolling() -> Strategy {
    Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) }
}

fn in_place() -> Strategy {
    Strategy::InPlace { surge: Margin::Machines(0), unavailable: Margin::Machines(1), picks: Picks::Controller }
}

/// A story of this many machines in which these things are wanted, one after the other.
fn story(replicas: u8, strategy: Strategy, provider: Provider, edits: &[Edit]) -> History {
    History {
        seed: 1,
        setup: Setup { replicas, strategy },
        provider,
        counts: AvailabilityRule::default(),
        rounds: edits.iter().map(|edit| vec![Step::Edit(*edit)]).collect(),
        without: None,
    }
}

fn stories() -> Vec<(&'static str, u8, Strategy, Edit)> {
    vec![
        ("a creation", 0, rolling(), Edit::Scale(1)),
        ("a drain and a deletion", 2, rolling(), Edit::Scale(1)),
        ("a rollout", 2, rolling(), Edit::Class(1)),
        ("an update in place", 2, in_place(), Edit::Class(1)),
    ]
}

/// Lets a story happen with this doom; tells all of it if that breaks a rule.
fn holds(history: &History, doom: Doom) {
    if let Some(violation) = run_doomed(history, Telling::Silent, Some(doom)).0.violation {
        let (told, _) = run_doomed(history, Telling::Aloud, Some(doom));
        panic!("{doom:?}: {violation:?}\n{}", told.lines.join("\n"));
    }
}

fn counted(history: &History) -> Calls {
    let (told, calls) = run_doomed(history, Telling::Silent, None);
    assert_eq!(told.violation.map(|violation| violation.rule), None, "without any misfortune");
    assert!(calls.api > 10, "{calls:?}");
    calls
}

#[rstest]
fn tr_115_a_process_may_end_at_every_call_to_an_api_server(
    #[values(Provider::AnswersTheSame, Provider::MakesAnother)] provider: Provider,
    #[values(Fault::DieBefore, Fault::DieAfter, Fault::LoseLease, Fault::LoseAnswer)] fault: Fault,
) {
    for (_, replicas, strategy, edit) in stories() {
        let history = story(replicas, strategy, provider, &[edit]);
        for call in 0..counted(&history).api {
            holds(&history, Doom::Call(call, fault));
        }
    }
}

#[rstest]
fn tr_115_a_process_may_end_during_every_call_to_the_driver(
    #[values(Provider::AnswersTheSame, Provider::MakesAnother)] provider: Provider,
    #[values(Unheard::Never, Unheard::AtOnce, Unheard::Later)] unheard: Unheard,
) {
    let mut ended = Vec::new();
    for (what, replicas, strategy, edit) in stories() {
        let history = story(replicas, strategy, provider, &[edit]);
        let calls = counted(&history).driver;
        for call in 0..calls {
            holds(&history, Doom::DriverCall(call, unheard));
        }
        ended.push((what, calls));
    }
    let with_calls = ["a creation", "a drain and a deletion", "a rollout"];
    assert!(with_calls.iter().all(|what| ended.iter().any(|(story, calls)| story == what && *calls > 0)), "{ended:?}");
}

/// What goes wrong in a story without a guard, at any of these dooms.
fn found(history: &History, guard: Guard, dooms: impl Iterator<Item = Doom>) -> BTreeSet<&'static str> {
    let history = History { without: Some(guard), ..history.clone() };
    let told = |doom| run_doomed(&history, Telling::Silent, Some(doom)).0.violation;
    dooms.filter_map(told).map(|violation| violation.rule).collect()
}

#[test]
fn a_replica_that_acts_without_the_lease_is_seen() {
    let history = story(3, rolling(), Provider::AnswersTheSame, &[Edit::Class(1)]);
    let dooms = (0..counted(&history).api).map(|call| Doom::Call(call, Fault::LoseLease));
    assert_ne!(found(&history, Guard::Leadership, dooms), BTreeSet::new());
}

#[test]
fn a_second_vm_is_seen_that_a_forgotten_call_has_made() {
    let history = story(0, rolling(), Provider::MakesAnother, &[Edit::Scale(1)]);
    let dooms = (0..counted(&history).driver).map(|call| Doom::DriverCall(call, Unheard::Later));
    assert_ne!(found(&history, Guard::Intent, dooms), BTreeSet::new());
}
