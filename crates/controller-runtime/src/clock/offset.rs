//! How far this host's clock is from the API server's, by the `Date` headers of its answers. Pure.

use std::{collections::VecDeque, time::Duration};

use jiff::{SignedDuration, Timestamp, fmt::rfc2822};

/// `Date` headers that count.
const COUNTED: usize = 5;
/// A smaller difference is left as it is: a header tells whole seconds only.
const LEAST_APART: SignedDuration = SignedDuration::from_secs(5);
/// A greater difference is an error of one of the clocks that somebody has to mend.
pub const MOST_APART: SignedDuration = SignedDuration::from_mins(5);
/// A difference that is in use changes only by more than this, or the time would tremble with every answer.
const TREMBLE: SignedDuration = SignedDuration::from_secs(2);
/// An answer that took longer says too little about the time.
const SLOWEST_ANSWER: Duration = Duration::from_secs(5);

/// The moment that a `Date` header names.
pub fn date_of(header: &str) -> Option<Timestamp> {
    rfc2822::parse(header).ok().map(|date| date.timestamp())
}

/// What the API server's clock shows more than this host's, by one answer that was read at `wall`, so long after the
/// question was sent. A header is cut to whole seconds, and it was written between question and answer.
pub(super) fn difference(date: Timestamp, wall: Timestamp, took: Duration) -> Option<SignedDuration> {
    if took > SLOWEST_ANSWER {
        return None;
    }
    let halfway = SignedDuration::try_from(took).ok()? / 2;
    Some(date.duration_since(wall) + SignedDuration::from_millis(500) + halfway)
}

/// What the last answers say.
#[derive(Clone, Debug, Default)]
pub(super) struct Offset {
    differences: VecDeque<SignedDuration>,
    measured: SignedDuration,
}

impl Offset {
    /// An answer differed by so much. Answers by how much more than before is added to the time from now on.
    pub(super) fn learn(&mut self, difference: SignedDuration) -> SignedDuration {
        let (first, before) = (self.differences.is_empty(), self.added());
        self.differences.push_back(difference);
        if self.differences.len() > COUNTED {
            self.differences.pop_front();
        }
        let median = median(&self.differences);
        if first || (median - self.measured).abs() > TREMBLE {
            self.measured = median;
        }
        // What is learnt first is no change.
        if first { SignedDuration::ZERO } else { self.added() - before }
    }

    /// This host's clock was set forward by so much: the difference is the smaller for it, until the API server's says
    /// otherwise.
    pub(super) fn stepped(&mut self, by: SignedDuration) {
        if self.differences.is_empty() {
            return;
        }
        for difference in &mut self.differences {
            *difference -= by;
        }
        self.measured -= by;
    }

    /// The difference.
    pub(super) fn measured(&self) -> SignedDuration {
        self.measured
    }

    /// What is added to this host's time.
    pub(super) fn added(&self) -> SignedDuration {
        if self.measured.abs() > LEAST_APART { self.measured } else { SignedDuration::ZERO }
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
    #[case::nothing_heard(&[], 0)]
    #[case::a_little(&[3, 4, 5, 5, 5], 0)]
    #[case::half_a_minute(&[30, 30, 30, 30, 30], 30)]
    #[case::the_first_answer_counts(&[-7200], -7200)]
    #[case::one_wrong_answer_does_not(&[0, 0, 0, 7200, 0], 0)]
    #[case::three_of_five_do(&[0, 0, 60, 60, 60], 60)]
    #[case::older_ones_are_forgotten(&[60, 60, 60, 60, 60, 0, 0, 0], 0)]
    #[case::it_does_not_tremble(&[30, 31, 32, 31, 32], 30)]
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
    fn a_header_is_cut_to_seconds_and_was_written_on_the_way() {
        let date = date_of("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(date.to_string(), "1994-11-06T08:49:37Z");
        let difference = |took| difference(date, date + SignedDuration::from_secs(1), took);
        assert_eq!(difference(Duration::from_secs(1)), Some(SignedDuration::ZERO));
        assert_eq!(difference(Duration::from_secs(6)), None);
        assert_eq!(date_of("yesterday"), None);
    }
}
