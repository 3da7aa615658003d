//! Histories made by hand for guards that drawn ones show too seldom: each goes wrong without its guard, and only then.

use super::{
    calls::{Fault, Misfortune},
    guards::Guard,
    history::{Edit, History, Keep, NodeEvent, Picks, Place, Setup, Step, Strategy},
    *,
};

const DEPLOYMENT: u8 = 2;
const NODES: u8 = 3;
const MACHINES: u8 = 0;

fn history(replicas: u8, strategy: Strategy, steps: Vec<Step>) -> History {
    History { seed: 1, setup: Setup { replicas, strategy }, rounds: vec![steps], without: None }
}

fn rolling() -> Strategy {
    Strategy::Rolling { surge: 1, unavailable: 0 }
}

/// Rule of the violation with and without the guard.
fn shown(history: &History, guard: Guard) -> [Option<&'static str>; 2] {
    [None, Some(guard)].map(|without| {
        let history = History { without, ..history.clone() };
        run(&history, Telling::Silent).violation.map(|violation| violation.rule)
    })
}

/// Jobs that are due are in the order deployment, set, machines, guard.
#[test]
fn versions_keep_a_machine_that_somebody_has_asked_to_stay() {
    let steps = vec![
        Step::Node(0, NodeEvent::Sickens),
        Step::Watch(NODES, 9),
        // The machine becomes Unknown, and Failed after its health timeout.
        Step::Pass(2, None),
        Step::Wait(700),
        Step::Pass(2, None),
        Step::Edit(Edit::Keep(0, Place::Machine, Keep::Now)),
        // The set has not seen that.
        Step::Pass(1, None),
    ];
    let found = shown(&history(1, rolling(), steps), Guard::Versions);
    assert_eq!(found, [None, Some("a machine is replaced that somebody keeps")]);
}

#[test]
fn a_set_that_was_sized_without_an_answer_takes_room() {
    // Seed 213408.
    let steps = vec![
        Step::Edit(Edit::Scale(3)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, Some(Misfortune { call: 0, fault: Fault::LoseAnswer })),
        Step::Edit(Edit::Class(1)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
    ];
    let found = shown(&history(0, Strategy::Recreate, steps), Guard::Unanswered);
    assert_eq!(found, [None, Some("there are too many machines")]);
}

#[test]
fn a_node_that_was_picked_without_an_answer_is_missing() {
    // Seed 154399.
    let strategy = Strategy::InPlace { surge: 0, unavailable: 0, picks: Picks::Controller };
    let back = vec![
        Step::Edit(Edit::Class(0)),
        Step::Watch(DEPLOYMENT, 9),
        // The old set is the new one again, Nodes become candidates, and one of them is picked.
        Step::Pass(0, None),
        Step::Pass(0, None),
        Step::Pass(0, Some(Misfortune { call: 0, fault: Fault::LoseAnswer })),
        // The scaler would rather have another one go.
        Step::Edit(Edit::Mark(3)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
        Step::Pass(0, None),
    ];
    let mut history = history(5, strategy, vec![Step::Edit(Edit::Class(1))]);
    history.rounds.push(back);
    let found = shown(&history, Guard::Unanswered);
    assert_eq!(found, [None, Some("too few machines are available through an update of our choice")]);
}

#[test]
fn a_machine_whose_deletion_got_no_answer_is_not_joined_by_another_one() {
    let steps = vec![
        // The first one of three is preserved for an hour, so that it goes last.
        Step::Edit(Edit::Keep(0, Place::Machine, Keep::Now)),
        Step::Watch(MACHINES, 9),
        Step::Pass(2, None),
        Step::Edit(Edit::Scale(2)),
        Step::Watch(DEPLOYMENT, 9),
        Step::Pass(0, None),
        Step::Wait(3599),
        // The set deletes the second one and gets no answer; then the hour is over and the first one would be chosen.
        Step::Pass(1, Some(Misfortune { call: 0, fault: Fault::LoseAnswer })),
        Step::Wait(5),
        Step::Pass(0, None),
        Step::Pass(0, None),
    ];
    let found = shown(&history(3, rolling(), steps), Guard::Unread);
    assert_eq!(found, [None, Some("too few machines are available through a deletion of ours")]);
}
