//! Random histories of the whole program: two processes, the embedded API server and the virtual cloud in one thread on paused time.
//!
//! `machine-simulation` draws the steps, and its checks are the invariants ([`book`]). Here the steps happen to the program as it is built, so that
//! serialisation, watches, admission, leader election and the connections inside the manager are tested too ([`world`]). Steps that order passes
//! there only let time pass here.

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
    book::Telling,
    world::{Broken, World},
};
use crate::support::{one_thread::play, scratch::count_ran};

/// The number of histories, if the environment does not set it.
const HISTORIES: u64 = 12;

/// The result of a history.
struct Played {
    violation: Option<Violation>,
    lines: Vec<String>,
    writes: Vec<String>,
}

fn play_history(history: &History, telling: Telling, broken: Broken) -> Played {
    play(async {
        let mut world = World::begin(history, telling, broken).await;
        'rounds: for round in &history.rounds {
            world.storms();
            for step in round {
                if world.is_violated() {
                    break 'rounds;
                }
                world.step(*step).await;
            }
            world.calms().await;
        }
        let mut pages = world.book.read();
        let writes = std::mem::take(&mut pages.writes);
        Played { violation: pages.mirror.violation().cloned(), lines: pages.take_lines(), writes }
    })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A seed that fails is printed with its steps, and `MCM_WHOLE_HISTORY=SEED` prints the whole history.
#[test]
fn whole_histories_hold() {
    count_ran("whole_histories::whole_histories_hold");
    if let Some(seed) = number("MCM_WHOLE_HISTORY") {
        let history = History::of_seed(seed);
        let played = play_history(&history, Telling::Aloud, Broken::Not);
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
            if let Some(violation) = play_history(&history, Telling::Silent, Broken::Not).violation {
                println!("seed {seed}: {}: {}\n{:?}", violation.rule, violation.text, history.rounds);
                failed.lock().expect("nobody panics with it").push(seed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(plays);
        }
    });
    let failed = failed.into_inner().expect("nobody has panicked with it");
    println!("{count} whole histories in {:.1} s", began.elapsed().as_secs_f64());
    let again = "MCM_WHOLE_HISTORY=SEED cargo test --test it whole_histories_hold -- --nocapture";
    assert!(failed.is_empty(), "seeds {failed:?} go wrong; to see one: {again}");
}

#[test]
fn a_seed_is_one_whole_history() {
    count_ran("whole_histories::a_seed_is_one_whole_history");
    let writes = |seed| play_history(&History::of_seed(seed), Telling::Silent, Broken::Not).writes;
    let (first, second) = (writes(2), writes(2));
    if let Some(at) = first.iter().zip(&second).position(|(one, two)| one != two) {
        panic!("write {at} differs:\n{}\n{}", first[at], second[at]);
    }
    assert_eq!(first.len(), second.len());
}

/// The histories would find a fault.
#[rstest::rstest]
#[case::two_leaders(Broken::LeasesForAll, "an effect without leadership")]
#[case::vms_that_stay(Broken::VmsStay, "nothing comes to rest")]
fn on_a_broken_stage_a_whole_history_goes_wrong(#[case] broken: Broken, #[case] expected: &str) {
    count_ran("whole_histories::on_a_broken_stage");
    let shows = |seed| {
        let played = play_history(&History::of_seed(seed), Telling::Silent, broken);
        played.violation.is_some_and(|violation| violation.rule == expected)
    };
    assert!((1..10).any(shows), "{broken:?}");
}
