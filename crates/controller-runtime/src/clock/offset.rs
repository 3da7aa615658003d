//! The offset between the clock of this host and the clock of the API server, from the `Date` headers of its answers. Pure.

use std::{collections::VecDeque, time::Duration};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};

/// The number of `Date` headers that are used.
const COUNTED: usize = 5;
/// Smaller differences are not corrected, because a header has whole seconds only.
const MIN_CORRECTED: SignedDuration = SignedDuration::from_secs(5);
/// A larger difference is a fault of one of the clocks, to be repaired by an administrator.
pub const MAX_OFFSET: SignedDuration = SignedDuration::from_mins(5);
/// A difference in use changes only by more than this; otherwise the time would change with every answer.
const HYSTERESIS: SignedDuration = SignedDuration::from_secs(2);
/// Slower answers are too inexact to be used.
const SLOWEST_ANSWER: Duration = Duration::from_secs(5);

/// The time in a `Date` header.
pub fn date_of(header: &str) -> Option<Timestamp> {
    rfc2822::parse(header).ok().map(|date| date.timestamp())
}

/// How far the API server's clock is ahead of this host's, from one answer. `wall` is the time of this host when the answer
/// arrived, `took` the time since the request was sent. A header is truncated to whole seconds and was written between request and
/// answer.
pub(super) fn difference(date: Timestamp, wall: Timestamp, took: Duration) -> Option<SignedDuration> {
    if took > SLOWEST_ANSWER {
        return None;
    }
    let halfway = SignedDuration::try_from(took).ok()? / 2;
    Some(date.duration_since(wall) + SignedDuration::from_millis(500) + halfway)
}

/// The offset according to the last answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Offset {
    differences: VecDeque<SignedDuration>,
    measured: SignedDuration,
}

impl Offset {
    /// Records the difference of one answer. Returns the change of the correction.
    pub(super) fn learn(&mut self, difference: SignedDuration) -> SignedDuration {
        let (first, before) = (self.differences.is_empty(), self.added());
        self.differences.push_back(difference);
        if self.differences.len() > COUNTED {
            self.differences.pop_front();
        }
        let median = median(&self.differences);
        if first || (median - self.measured).abs() > HYSTERESIS {
            self.measured = median;
        }
        // The first difference is no change.
        if first { SignedDuration::ZERO } else { self.added() - before }
    }

    /// This host's clock was set forward by `by`, so the difference becomes smaller by it until the next answer.
    pub(super) fn stepped(&mut self, by: SignedDuration) {
        if self.differences.is_empty() {
            return;
        }
        for difference in &mut self.differences {
            *difference -= by;
        }
        self.measured -= by;
    }

    /// The offset, also if it is too small to be corrected.
    pub(super) fn measured(&self) -> SignedDuration {
        self.measured
    }

    /// The correction that is added to the time of this host.
    pub(super) fn added(&self) -> SignedDuration {
        if self.measured.abs() > MIN_CORRECTED { self.measured } else { SignedDuration::ZERO }
    }
}

fn median(differences: &VecDeque<SignedDuration>) -> SignedDuration {
    let mut sorted: Vec<SignedDuration> = differences.iter().copied().collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn after(differences: &[i64]) -> Offset {
        let mut offset = Offset::default();
        for seconds in differences {
            offset.learn(SignedDuration::from_secs(*seconds));
        }
        offset
    }

    #[rstest]
    #[case::no_answer(&[], 0)]
    #[case::a_little(&[3, 4, 5, 5, 5], 0)]
    #[case::half_a_minute(&[30, 30, 30, 30, 30], 30)]
    #[case::the_first_answer_counts(&[-7200], -7200)]
    #[case::one_wrong_answer_does_not(&[0, 0, 0, 7200, 0], 0)]
    #[case::three_of_five_do(&[0, 0, 60, 60, 60], 60)]
    #[case::older_ones_are_forgotten(&[60, 60, 60, 60, 60, 0, 0, 0], 0)]
    #[case::small_changes_are_ignored(&[30, 31, 32, 31, 32], 30)]
    fn is_added(#[case] differences: &[i64], #[case] seconds: i64) {
        assert_eq!(after(differences).added(), SignedDuration::from_secs(seconds));
    }

    #[rstest]
    #[case::a_wrong_clock_is_set_right(&[-1800, -1800, -1800], -1800, 0)]
    #[case::a_right_clock_is_set_wrong(&[0, 0, 0], 7200, -7200)]
    fn after_a_step_of_this_host(#[case] differences: &[i64], #[case] by: i64, #[case] seconds: i64) {
        let mut offset = after(differences);
        offset.stepped(SignedDuration::from_secs(by));
        assert_eq!(offset.added(), SignedDuration::from_secs(seconds));
    }

    #[test]
    fn a_header_is_truncated_to_seconds_and_was_written_before_the_answer_arrived() {
        let date = date_of("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(date.to_string(), "1994-11-06T08:49:37Z");
        let difference = |took| difference(date, date + SignedDuration::from_secs(1), took);
        assert_eq!(difference(Duration::from_secs(1)), Some(SignedDuration::ZERO));
        assert_eq!(difference(Duration::from_secs(6)), None);
        assert_eq!(date_of("yesterday"), None);
    }
}
