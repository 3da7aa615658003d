//! What a clock says, and what may be concluded from that. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::offset::MOST_APART;

/// How long verdicts and creations rest after a step.
pub const REST_AFTER_STEP: Duration = Duration::from_secs(60);
/// So much of a limit that began before a step must have been watched since, unless the limit is shorter.
pub const WATCHED_AFTER_STEP: Duration = Duration::from_secs(10 * 60);

/// What a clock says, and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The time, with the offset added if it counts.
    pub now: Timestamp,
    /// The time as if none of the steps had happened that this process has seen. What a process remembers is compared with this,
    /// so that no step makes a pause longer or shorter; what is stored, or was stamped by somebody else, is compared with `now`.
    pub steady: Timestamp,
    /// What the API server's clock shows more than this host's.
    pub offset: SignedDuration,
    /// The last step, if this process has seen any.
    pub step: Option<Step>,
    /// Steps that this process has seen.
    pub steps: u64,
}

/// A step of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The time that has passed since, by a clock that nobody sets.
    pub watched: Duration,
}

/// Why nothing may be concluded from the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ClockTrouble {
    /// The API server's clock shows so much more than this host's: one of them is wrong.
    Apart(SignedDuration),
    /// The clock was set a moment ago.
    Stepped,
}

impl Reading {
    /// The reading of a clock that nothing is known against.
    pub fn trusted(now: Timestamp) -> Self {
        Self { now, steady: now, offset: SignedDuration::ZERO, step: None, steps: 0 }
    }

    /// The same at another moment close by.
    #[must_use]
    pub fn told_at(self, now: Timestamp) -> Self {
        let steady = self.steady.checked_add(now.duration_since(self.now)).unwrap_or(now);
        Self { now, steady, ..self }
    }

    /// Why nothing may be concluded from the time now.
    pub fn trouble(&self) -> Option<ClockTrouble> {
        if self.offset.abs() > MOST_APART {
            Some(ClockTrouble::Apart(self.offset))
        } else if self.step.is_some_and(|step| step.watched < REST_AFTER_STEP) {
            Some(ClockTrouble::Stepped)
        } else {
            None
        }
    }
}

/// How much of a limit counts as passed, when the clock says `elapsed`: a limit that began before a step is not over before
/// this process has watched it for its length, or for ten minutes.
pub fn as_watched(elapsed: Duration, length: Duration, step: Option<Step>) -> Duration {
    match step {
        Some(Step { watched }) if elapsed > watched => {
            let unwatched = length.min(WATCHED_AFTER_STEP).saturating_sub(watched);
            if unwatched.is_zero() { elapsed } else { elapsed.min(length.saturating_sub(unwatched)) }
        }
        _ => elapsed,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[rstest]
    #[case::no_step(minutes(200), minutes(10), None, minutes(200))]
    #[case::a_step_of_two_hours_a_minute_ago(minutes(122), minutes(10), Some(1), minutes(1))]
    #[case::almost_watched_for_its_length(minutes(130), minutes(10), Some(9), minutes(9))]
    #[case::watched_for_its_length(minutes(131), minutes(10), Some(10), minutes(131))]
    #[case::a_long_limit_is_watched_for_ten_minutes(minutes(121), minutes(20), Some(1), minutes(11))]
    #[case::and_then_counts(minutes(131), minutes(20), Some(10), minutes(131))]
    #[case::one_that_is_young_anyhow(minutes(3), minutes(20), Some(1), minutes(3))]
    #[case::one_that_began_after_the_step(minutes(5), minutes(4), Some(6), minutes(5))]
    fn of_a_limit_counts(
        #[case] elapsed: Duration,
        #[case] length: Duration,
        #[case] stepped_ago: Option<u64>,
        #[case] expected: Duration,
    ) {
        let step = stepped_ago.map(|ago| Step { watched: minutes(ago) });
        assert_eq!(as_watched(elapsed, length, step), expected);
    }

    #[rstest]
    #[case::steady(0, None, None)]
    #[case::a_little_apart_is_put_right(299, None, None)]
    #[case::half_an_hour_apart(-1800, None, Some(ClockTrouble::Apart(SignedDuration::from_secs(-1800))))]
    #[case::just_stepped(0, Some(59), Some(ClockTrouble::Stepped))]
    #[case::stepped_a_minute_ago(0, Some(60), None)]
    fn nothing_is_concluded(#[case] offset: i64, #[case] ago: Option<u64>, #[case] expected: Option<ClockTrouble>) {
        let reading = Reading {
            now: Timestamp::UNIX_EPOCH,
            steady: Timestamp::UNIX_EPOCH,
            offset: SignedDuration::from_secs(offset),
            step: ago.map(|ago| Step { watched: Duration::from_secs(ago) }),
            steps: u64::from(ago.is_some()),
        };
        assert_eq!(reading.trouble(), expected);
    }
}
