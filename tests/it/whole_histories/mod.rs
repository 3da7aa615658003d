//! Random histories of the whole program: two processes, the embedded API server and the virtual cloud in one thread on paused time.
//!
//! `machine-simulation` draws the histories, and its checks define what must hold ([`book`]). These tests run them on the program as it is built, so
//! that serialisation, watches, admission, leader election and the wiring of the manager are included ([`world`]). Steps that pass orders by hand in
//! the simulation let time pass here.

mod book;
mod cloud;
mod gateway;
mod world;

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use machine_simulation::{checks::Violation, history::History};

use self::{
    book::Lines,
    world::{Broken, World},
};
use crate::support::{one_thread::play, scratch::count_ran};

/// The number of histories, unless the environment sets it.
const HISTORIES: u64 = 12;

/// The result of a history.
struct Played {
    violation: Option<Violation>,
    lines: Vec<String>,
    writes: Vec<String>,
}

fn play_history(history: &History, lines_kept: Lines, broken: Broken) -> Played {
    play(async {
        let mut world = World::begin(history, lines_kept, broken).await;
        'rounds: for round in &history.rounds {
            world.start_faults();
            for step in round {
                if world.is_violated() {
                    break 'rounds;
                }
                world.step(*step).await;
            }
            world.end_faults().await;
        }
        let mut pages = world.book.read();
        let writes = std::mem::take(&mut pages.writes);
        Played { violation: pages.mirror.violation().cloned(), lines: pages.take_lines(), writes }
    })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Prints each failed seed with its steps. `MCM_WHOLE_HISTORY=SEED` prints all lines of one history.
#[test]
fn whole_histories_hold() {
    count_ran("whole_histories::whole_histories_hold");
    if let Some(seed) = number("MCM_WHOLE_HISTORY") {
        let history = History::of_seed(seed);
        let played = play_history(&history, Lines::Kept, Broken::Not);
        println!("seed {seed}: {}\n{}", history.setup, played.lines.join("\n"));
        assert_eq!(played.violation, None);
        return;
    }
    let first = number("MCM_WHOLE_SEED").unwrap_or(1);
    let count = number("MCM_WHOLE_HISTORIES").unwrap_or(HISTORIES);
    let began = std::time::Instant::now();
    let (next, failed) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    let plays = || {
        while let seed = next.fetch_add(1, Ordering::Relaxed)
            && seed < first + count
        {
            let history = History::of_seed(seed);
            if let Some(violation) = play_history(&history, Lines::Off, Broken::Not).violation {
                println!("seed {seed}: {}: {}\n{:?}", violation.rule, violation.text, history.rounds);
                failed.lock().expect("no holder of the lock panics").push(seed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(plays);
        }
    });
    let failed = failed.into_inner().expect("no holder of the lock panics");
    println!("{count} whole histories in {:.1} s", began.elapsed().as_secs_f64());
    let again = "MCM_WHOLE_HISTORY=SEED cargo test --test it whole_histories_hold -- --nocapture";
    assert!(failed.is_empty(), "seeds {failed:?} fail; to print one: {again}");
}

#[test]
fn a_seed_is_one_whole_history() {
    count_ran("whole_histories::a_seed_is_one_whole_history");
    let writes = |seed| play_history(&History::of_seed(seed), Lines::Off, Broken::Not).writes;
    let (first, second) = (writes(2), writes(2));
    if let Some(at) = first.iter().zip(&second).position(|(one, two)| one != two) {
        panic!("write {at} differs:\n{}\n{}", first[at], second[at]);
    }
    assert_eq!(first.len(), second.len());
}

/// Checks that the histories can find a defect.
#[rstest::rstest]
#[case::two_leaders(Broken::LeasesForAll, "an effect without leadership")]
#[case::vms_that_stay(Broken::VmsStay, "nothing comes to rest")]
fn on_a_broken_stage_a_whole_history_goes_wrong(#[case] broken: Broken, #[case] expected: &str) {
    count_ran("whole_histories::on_a_broken_stage");
    let shows = |seed| {
        let played = play_history(&History::of_seed(seed), Lines::Off, broken);
        played.violation.is_some_and(|violation| violation.rule == expected)
    };
    assert!((1..10).any(shows), "{broken:?}");
}
