//! A few histories in every test run. `.ci/run` runs thousands.

use rstest::rstest;

use super::{
    guards::Guard,
    history::{Edit, History, Margin, Provider, Setup, Step, Strategy},
    *,
};
use machine_controllers::deployment::AvailabilityRule;

/// Number of histories among which one must fail if a guard is missing.
const SEEDS: u64 = 2000;

#[test]
fn histories_hold() {
    for seed in 0..150 {
        let history = History::of_seed(seed);
        if let Some(violation) = run(&history, TraceMode::Off).violation {
            let short = shortened(&history, &violation);
            let report = run(&short, TraceMode::Full);
            panic!("seed {seed}: {violation:?}\n{short:#?}\n{}", report.lines.join("\n"));
        }
    }
}

/// Histories that once failed.
#[rstest]
#[case::a_preserved_unhealthy_machine_cost_a_healthy_one(61_494)]
#[case::so_it_did_while_the_new_ones_started(69_920)]
#[case::and_among_strays(76_770)]
#[case::a_node_that_a_user_had_picked_counted_as_gone(501_214)]
#[case::two_old_sets_stayed_frozen_for_ever(501_271)]
#[case::marks_stayed_where_a_set_was_never_tainted(61_918)]
fn a_history_that_once_failed_passes(#[case] seed: u64) {
    assert_eq!(run(&History::prompt(seed), TraceMode::Off).violation, None);
}

/// The same for histories with split passes, and for those with the later additions.
#[rstest]
#[case::a_machine_that_recovered_was_kept_for_ever(History::prompt(33_257).with_delays())]
#[case::a_machine_came_up_in_a_set_that_somebody_had_taken_away(History::prompt(71_614).with_delays())]
#[case::a_set_that_was_refused_was_told_of_at_each_try(History::prompt(8_122).with_delays().with_more())]
#[case::a_drained_node_was_drained_again_and_again(History::prompt(3_770).with_delays().with_more())]
#[case::a_set_that_grew_was_refused_too_often(History::of_seed(1_298))]
#[case::so_was_one_that_took_machines_over(History::of_seed(17_190))]
#[case::a_user_gave_a_set_one_machine_too_many_and_that_one_a_high_priority(History::prompt(15_746).with_delays().with_more())]
#[case::a_driver_was_believed_what_it_had_said_minutes_before(History::of_seed(45_995))]
#[case::a_set_said_that_it_waits_while_it_had_all_machines(History::of_seed(988))]
#[case::a_priority_kept_a_machine_that_was_no_use_yet(History::of_seed(23_373))]
#[case::a_set_came_back_and_made_what_it_lacked(History::of_seed(25_870))]
#[case::a_set_was_scaled_before_its_deployment_was(History::of_seed(10_171))]
#[case::a_forced_drain_looked_for_names_of_volumes_without_pause(History::of_seed(17_997))]
#[case::a_rollout_that_went_on_cost_too_much_while_new_sets_were_refused(History::of_seed(23_393))]
#[case::a_volume_was_forgotten_with_the_class_of_its_driver(History::of_seed(29_749))]
#[case::a_node_joined_unseen_when_its_machine_had_lost_its_label(History::of_seed(65_268))]
#[case::so_did_one_whose_vm_was_being_deleted(History::of_seed(95_896))]
#[case::a_user_scaled_a_set_of_a_paused_deployment(History::of_seed(85_177))]
#[case::a_token_of_an_earlier_process_had_expired(History::of_seed(136_646))]
#[case::a_set_had_seen_the_priority_before(History::of_seed(109_498))]
#[case::a_machine_that_was_picked_lost_its_label(History::of_seed(117_995))]
#[case::another_trouble_came_after_a_creation_without_outcome(History::of_seed(8_851))]
fn a_later_history_that_once_failed_passes(#[case] history: History) {
    assert_eq!(run(&history, TraceMode::Off).violation, None);
}

#[test]
fn a_history_is_a_function_of_its_seed() {
    let report = |seed| run(&History::of_seed(seed), TraceMode::Full).lines;
    assert_eq!(report(3), report(3));
    assert_ne!(report(3), report(4));
}

#[test]
fn the_trace_of_a_plain_rollout_is_readable() {
    let history = History {
        seed: 1,
        setup: Setup {
            replicas: 2,
            strategy: Strategy::Rolling { surge: Margin::Machines(1), unavailable: Margin::Machines(0) },
        },
        provider: Provider::default(),
        counts: AvailabilityRule::default(),
        volumes: 0,
        rounds: vec![vec![Step::Edit(Edit::Class(1))]],
        without: None,
    };
    let report = run(&history, TraceMode::Full);
    assert_eq!(report.violation, None);
    let text = report.lines.join("\n");
    for part in ["a user wants machines of class 1", "joins", "everything is at rest"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Guards that few histories test have tests of their own (docs/testing.md). The number is the seed that is tried first: a search takes up to a
/// minute. If that history does not show it any more, others are searched, and the test prints a new number.
#[rstest]
#[case(Guard::Leadership, "an effect without leadership", 3)]
#[case(Guard::CatchUp, "there are too many machines", 9)]
#[case(Guard::OwnWrites, "there are too many machines", 7)]
#[case(Guard::Marks, "an unmarked healthy machine dies while a marked one lives", 50)]
#[case(Guard::Ranking, "too few machines are available through a deletion of ours", 17)]
#[case(Guard::Freeze, "a set makes machines that must not grow", 27)]
#[case(Guard::MaxUnavailable, "too few machines are available through a deletion of ours", 1)]
#[case(Guard::MaxSurge, "there are too many machines", 0)]
#[case(Guard::Availability, "too few machines are available through a deletion of ours", 1)]
#[case(Guard::Selection, "too few machines are available through an update of our choice", 18)]
#[case(Guard::Unanswered, "there are too many machines", 126)]
#[case(Guard::Rounding, "too few machines are available through a deletion of ours", 5)]
#[case(Guard::Priorities, "a machine goes before one of a lower priority", 0)]
#[case(Guard::Intent, "a second VM is made for a machine", 366)]
#[case(Guard::Orphans, "the rest is not what the specification wants", 188)]
#[case(Guard::Tokens, "a VM is made with a token that is not its machine's", 838)]
#[case(Guard::Confirmation, "the VM of a machine is deleted that nobody has deleted", 182)]
#[case(Guard::Cleaning, "the rest is not what the specification wants", 0)]
#[case(Guard::Quotes, "an object costs too many writes while something is refused", 25)]
#[case(Guard::Refusals, "an object costs too many writes while something is refused", 0)]
#[case(Guard::Volumes, "the VM of a drained Node ends with a volume that is still attached", 4)]
#[case(Guard::AbandonedDrain, "a Node counts as drained with a pod that nobody has asked to go", 59)]
#[case(Guard::Pause, "a paused deployment begins a rollout", 85)]
fn without_a_guard_a_history_goes_wrong(#[case] guard: Guard, #[case] expected: &str, #[case] shown_by: u64) {
    let shows = |seed| {
        let history = History { without: Some(guard), ..History::of_seed(seed) };
        run(&history, TraceMode::Off).violation.is_some_and(|violation| violation.rule == expected)
    };
    if shows(shown_by) {
        return;
    }
    let found = (0..SEEDS).find(|seed| shows(*seed));
    assert!(found.is_some(), "{guard}");
    println!("history {} shows it at once: {guard}", found.unwrap_or_default());
}
