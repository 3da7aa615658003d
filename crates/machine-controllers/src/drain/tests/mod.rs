//! Tests of the steps of a drain, and of whole drains with stores.

mod step;
mod views;

use rstest::rstest;

use super::{progress::PodProgress, *};

#[rstest]
#[case::the_first_failure_is_tried_again_soon(0, 0, 5)]
#[case::then_ever_more_slowly(0, 1, 10)]
#[case::up_to_the_time_between_evictions(0, 9, 20)]
#[case::a_pod_that_was_refused_is_not_asked_again_before(1, 0, 20)]
#[case::nor_later_than_any_other(3, 9, 20)]
fn the_next_attempt_waits(#[case] refusals: u32, #[case] failures_before: u32, #[case] seconds: u64) {
    let pods = [("a", refusals), ("b", 0)]
        .map(|(uid, refusals)| (uid.to_owned(), PodProgress { refusals, ..PodProgress::default() }));
    let attempt = Progress { pods: pods.into(), ..Progress::default() };
    assert_eq!(pause_after(&attempt, failures_before), Duration::from_secs(seconds));
}
