//! A reading of a clock, and whether decisions may rely on it. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::offset::MAX_OFFSET;

/// How long verdicts and creations are suspended after a step.
pub const REST_AFTER_STEP: Duration = Duration::from_secs(60);
/// A limit that began before a step must have been observed for this time since the step, or for its length if it is shorter.
pub const WATCHED_AFTER_STEP: Duration = Duration::from_secs(10 * 60);

/// A reading of a clock, and how far it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The time, with the correction of the offset.
    pub now: Timestamp,
    /// The time without the steps that this process has observed. Compare it with times that this process remembers, so that a step
    /// does not change the length of a pause. Compare stored times, and times from other clocks, with `now`.
    pub steady: Timestamp,
    /// How far the API server's clock is ahead of this host's.
    pub offset: SignedDuration,
    /// The last step that this process has observed.
    pub step: Option<Step>,
    /// The number of steps that this process has observed.
    pub steps: u64,
}

/// A step of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The time since the step, by the monotonic clock.
    pub watched: Duration,
}

/// Why decisions must not rely on the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ClockTrouble {
    /// The API server's clock is ahead by this much: one of the two clocks is wrong.
    Apart(SignedDuration),
    /// The clock was set a short time ago.
    Stepped,
}

impl Reading {
    /// The reading of a clock without known errors.
    pub fn trusted(now: Timestamp) -> Self {
        Self { now, steady: now, offset: SignedDuration::ZERO, step: None, steps: 0 }
    }

    /// The same reading at another moment close to it.
    #[must_use]
    pub fn told_at(self, now: Timestamp) -> Self {
        let steady = self.steady.checked_add(now.duration_since(self.now)).unwrap_or(now);
        Self { now, steady, ..self }
    }

    /// Why decisions must not rely on the time now, if so.
    pub fn trouble(&self) -> Option<ClockTrouble> {
        if self.offset.abs() > MAX_OFFSET {
            Some(ClockTrouble::Apart(self.offset))
        } else if self.step.is_some_and(|step| step.watched < REST_AFTER_STEP) {
            Some(ClockTrouble::Stepped)
        } else {
            None
        }
    }
}

/// How much of a limit of this `length` counts as elapsed when `elapsed` has passed by the clock. A limit that began before a step
/// ends only after this process has observed it for its length, or for ten minutes.
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
    #[case::one_that_began_recently(minutes(3), minutes(20), Some(1), minutes(3))]
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
