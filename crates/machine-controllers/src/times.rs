//! Points in time and durations.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Time from `earlier` to `later`, or zero.
pub fn since(later: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

/// The time `length` after `start`.
pub fn after(start: Timestamp, length: Duration) -> Timestamp {
    SignedDuration::try_from(length).ok().and_then(|length| start.checked_add(length).ok()).unwrap_or(Timestamp::MAX)
}

/// A time in the format of the API server: whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    // jiff's own printer is many times faster than a pattern, and views and statuses contain thousands of times.
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[rstest]
    #[case::s_util_12_an_hour_is_more_than_half_an_hour(3600, 30, true)]
    #[case::s_util_12_an_hour_is_less_than_one_and_a_half(3600, 90, false)]
    #[case::s_util_12_no_time_has_passed(0, 5, false)]
    fn a_period_is_over(#[case] seconds: i64, #[case] minutes: u64, #[case] over: bool) {
        assert_eq!(since(at(seconds), at(0)) > Duration::from_secs(60 * minutes), over);
    }
}
