//! Random histories of single machines, and tests that they fail when a guard is missing. `MCM_HISTORIES` sets their
//! number.

use rstest::rstest;

use super::{
    guards::Guard,
    history::{Edit, History, Keep, Luck, Margin, NodeEvent, Place, Provider, Setup, Step, Strategy},
    *,
};
use machine_controllers::deployment::AvailabilityRule;

/// Number of histories among which one must fail if a guard is missing.
const SEEDS: u64 = 400;

/// The violation of this history, if it is the expected one.
fn broken_by(seed: u64, without: Option<Guard>, expected: Option<&str>) -> Option<(u64, Violation)> {
    let history = History { without, ..History::life_of_seed(seed) };
    let violation = run(&history, TraceMode::Off).violation?;
    expected.is_none_or(|rule| violation.rule == rule).then_some((seed, violation))
}

/// The first violation among this number of histories.
fn broken(count: u64, without: Option<Guard>, expected: Option<&str>) -> Option<(u64, Violation)> {
    let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get() as u64);
    let worker = |first: u64| {
        let mut seeds = (first..count).step_by(usize::try_from(threads).unwrap_or(1));
        seeds.find_map(|seed| broken_by(seed, without, expected))
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|first| scope.spawn(move || worker(first))).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).min_by_key(|(seed, _)| *seed)
    })
}

#[test]
fn mc_284_no_history_loses_a_vm_or_a_finalizer_or_ends_nowhere() {
    let count = std::env::var("MCM_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    if let Some((seed, violation)) = broken(count, None, None) {
        let short = shortened(&History::life_of_seed(seed), &violation);
        let report = run(&short, TraceMode::Full);
        panic!("seed {seed}: {violation:?}\n{short:#?}\n{}", report.lines.join("\n"));
    }
}

/// Histories that once failed.
#[rstest]
#[case::a_machine_is_deleted_in_the_pass_that_has_drained_its_node_for_a_preservation(24_606)]
#[case::the_view_shows_the_node_of_another_instance_when_the_machine_is_let_go(17_743)]
fn a_life_that_went_wrong_goes_well(#[case] seed: u64) {
    assert_eq!(run(&History::life_of_seed(seed), TraceMode::Off).violation, None);
}

/// The number is the seed that is tried first. If that history does not show it any more, others are searched, and the test prints a new number.
#[rstest]
#[case(Guard::LastLook, "a VM is made for a machine that is being deleted and never had one", 6)]
#[case(Guard::Calls, "a driver call begins while another one is under way", 0)]
#[case(Guard::Answers, "a machine is let go before the driver has said that its VM is gone", 38)]
#[case(Guard::Question, "a second VM is made for a machine", 1)]
// The effects check the owner of a Node too, so hiding it from the decision alone does no harm.
#[case(Guard::Ownership, "a pass goes in circles", 3)]
#[case(Guard::Cordon, "pods are evicted from a Node that takes new ones", 0)]
#[case(Guard::Frozen, "a driver is called while the controller is frozen", 0)]
#[case(Guard::Frozen, "a machine is made or given up while nobody sees the Nodes", 5)]
#[case(Guard::Absence, "a machine is deleted whose Node nobody has deleted", 0)]
#[case(Guard::NodeLook, "a healthy machine is given up", 24)]
#[case(Guard::Reasons, "the rest is not what the specification wants", 0)]
#[case(Guard::Adoption, "a VM that was taken over is given up before its time", 64)]
#[case(Guard::Initialisation, "an initialisation that failed is not repeated", 58)]
#[case(Guard::HealthTimeout, "the rest is not what the specification wants", 10)]
#[case(Guard::CreationTimeout, "the rest is not what the specification wants", 3)]
fn without_a_guard_a_life_goes_wrong(#[case] guard: Guard, #[case] expected: &str, #[case] shown_by: u64) {
    if broken_by(shown_by, Some(guard), Some(expected)).is_some() {
        return;
    }
    let found = broken(SEEDS, Some(guard), Some(expected));
    assert!(found.is_some(), "{guard}");
    println!("history {} shows it at once: {guard}", found.map_or(0, |(seed, _)| seed));
}

/// Numbers of the watches.
const MACHINES: u8 = 0;
const DEPLOYMENT: u8 = 2;
const NODES: u8 = 3;

fn life(replicas: u8, provider: Provider, steps: impl IntoIterator<Item = Step>) -> History {
    History {
        seed: 1,
        setup: Setup {
            replicas,
            strategy: Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) },
        },
        provider,
        counts: AvailabilityRule::default(),
        volumes: 0,
        rounds: vec![steps.into_iter().collect()],
        without: None,
    }
}

/// Runs passes over everything that is due; driver calls end with these outcomes one after the other, with this number
/// of seconds between them.
fn calls_apart(seconds: u16, lucks: impl IntoIterator<Item = Luck>) -> Vec<Step> {
    // A pass that would be held up after this many calls runs to its end, and does not wait for later jobs.
    let turn =
        |luck| std::iter::repeat_n(Step::Begin(0, u8::MAX), 8).chain([Step::Cloud(0, luck), Step::Wait(seconds)]);
    lucks.into_iter().flat_map(turn).collect()
}

/// Runs passes over due jobs; driver calls end with these outcomes one after the other.
fn calls(lucks: impl IntoIterator<Item = Luck>) -> Vec<Step> {
    let turn = |luck| std::iter::repeat_n(Step::Pass(0, None), 6).chain([Step::Cloud(0, luck)]);
    lucks.into_iter().flat_map(turn).collect()
}

/// The first `good` calls succeed, then calls end with these outcomes.
fn after(good: usize, lucks: &[Luck]) -> Vec<Step> {
    calls(std::iter::repeat_n(Luck::Good, good).chain(lucks.iter().copied()))
}

fn wanted() -> [Step; 2] {
    [Step::Edit(Edit::Scale(1)), Step::Watch(DEPLOYMENT, 9)]
}

/// None of these histories fails with the guard, and one fails without it.
fn shows(guard: Guard, expected: &str, histories: impl IntoIterator<Item = History>) {
    let mut found = Vec::new();
    for history in histories {
        assert_eq!(run(&history, TraceMode::Off).violation, None, "{:?}", history.rounds);
        let without = History { without: Some(guard), ..history };
        match run(&without, TraceMode::Off).violation {
            Some(violation) if violation.rule == expected => return,
            other => found.push(other),
        }
    }
    panic!("{guard}: {found:?}");
}

#[test]
fn our_finalizer_is_on_a_machine_before_its_vm_is_made() {
    let histories = (0..6).map(|pick| {
        let strays = [Step::Edit(Edit::Strays(0, 1)), Step::Watch(MACHINES, 9)];
        let turns = std::iter::repeat_n([Step::Pass(pick, None), Step::Cloud(0, Luck::Good)], 4);
        life(1, Provider::default(), strays.into_iter().chain(turns.flatten()))
    });
    shows(Guard::Finalizer, "a VM is made for a machine without our finalizer", histories);
}

#[test]
fn an_error_of_the_driver_is_no_absence() {
    let histories = (0..4).map(|good| {
        let lucks =
            std::iter::repeat_n(Luck::Good, good).chain([Luck::Lost, Luck::Busy, Luck::Busy, Luck::Busy, Luck::Good]);
        life(0, Provider::MakesAnother, wanted().into_iter().chain(calls_apart(30, lucks)))
    });
    shows(Guard::Errors, "a second VM is made for a machine", histories);
}

#[test]
fn a_failed_machine_of_a_set_makes_no_vm() {
    let histories = (0..4).flat_map(|pick| {
        (0..3).map(move |good| {
            let lucks = std::iter::repeat_n(Luck::Good, good).chain([Luck::Full]);
            // The creation timeout is over, and the pass over the machine comes before the pass over its set.
            let given_up = [Step::Wait(1300)].into_iter().chain([Step::Begin(0, u8::MAX); 8]).chain([Step::Wait(601)]);
            let again = std::iter::repeat_n([Step::Begin(pick, u8::MAX), Step::Cloud(0, Luck::Good)], 3).flatten();
            let steps = calls_apart(0, lucks).into_iter().chain(given_up).chain(again);
            life(0, Provider::default(), wanted().into_iter().chain(steps))
        })
    });
    shows(Guard::Failure, "a Failed machine that a set replaces makes a VM", histories);
}

#[test]
fn a_write_of_something_else_ends_no_preservation() {
    let histories = (0..4).map(|pick| {
        let kept = [Step::Edit(Edit::Keep(0, Place::Machine, Keep::Now)), Step::Watch(MACHINES, 9)];
        let sick = [Step::Node(0, NodeEvent::Sickens), Step::Watch(NODES, 9)];
        let passes = || std::iter::repeat_n(Step::Pass(pick, None), 4);
        life(1, Provider::default(), kept.into_iter().chain(passes()).chain(sick).chain(passes()))
    });
    shows(Guard::Fields, "a write of something else ends a preservation", histories);
}

#[test]
fn only_a_machine_that_is_being_deleted_loses_its_vm() {
    let histories = (0..4).map(|pick| {
        let sick = [Step::Node(0, NodeEvent::Sickens), Step::Watch(NODES, 9)];
        let rest = std::iter::repeat_n([Step::Pass(pick, None), Step::Cloud(0, Luck::Good), Step::Wait(30)], 12);
        life(1, Provider::default(), sick.into_iter().chain(rest.flatten()))
    });
    shows(Guard::DeletionTimestamp, "the VM of a machine is deleted that nobody has deleted", histories);
}

#[test]
fn a_deletion_that_failed_is_tried_again() {
    let histories = (0..5).map(|good| {
        let made = [Step::Begin(0, u8::MAX); 8];
        let deleted = [Step::Edit(Edit::DeleteMachine(0)), Step::Watch(MACHINES, 9)];
        let lucks = std::iter::repeat_n(Luck::Good, good).chain([Luck::Busy]);
        let steps = wanted().into_iter().chain(made).chain(deleted).chain(calls_apart(0, lucks));
        life(0, Provider::default(), steps)
    });
    shows(Guard::Repetition, "the rest is not what the specification wants", histories);
}

#[test]
fn a_node_that_joins_at_the_last_moment_goes_with_its_machine() {
    let histories = (1..7).map(|good| {
        let joins =
            [Step::Node(0, NodeEvent::JoinsNamed), Step::Edit(Edit::DeleteMachine(0)), Step::Watch(MACHINES, 9)];
        let steps = wanted().into_iter().chain(after(good, &[])).chain(joins).chain(after(8, &[]));
        life(0, Provider::default(), steps)
    });
    shows(Guard::LastNode, "the Node of a machine that is gone is left behind", histories);
}

/// Histories that once failed.
#[rstest]
#[case::a_set_kept_again_and_again_what_its_node_gives_up(664)]
fn a_life_that_once_failed_passes(#[case] seed: u64) {
    assert_eq!(run(&History::life_of_seed(seed), TraceMode::Off).violation, None);
}
