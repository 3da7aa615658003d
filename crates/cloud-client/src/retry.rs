//! Decides what follows from a failed request: another try, or the end. Pure; time and random number are arguments.

use std::time::Duration;

use crate::failure::{Failure, FailureKind};

/// Maximum number of tries of one call.
pub const MAX_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause that a cloud may ask for. After a longer one, users would wait for a word of the cloud.
const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(60);

/// Whether a request may be sent again although the first one may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// A read, or a deletion.
    Safe,
    /// The request changes something. It is sent again only if the cloud has certainly not carried it out.
    Unsafe,
}

/// The next step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the request again after this time.
    In(Duration),
    /// Return the failure.
    GiveUp,
}

/// The next step after this failure, after `tries` tries, with the time `left`. `draw` is a random number of `0..1`, so that
/// clients that failed together do not retry together.
pub fn after(failure: &Failure, tries: u32, repeat: Repeat, left: Duration, draw: f64) -> Next {
    let may_succeed = match failure.kind {
        FailureKind::Throttled | FailureKind::NotSent => true,
        FailureKind::Temporary => repeat == Repeat::Safe,
        FailureKind::Permanent => false,
    };
    if !may_succeed || tries >= MAX_TRIES {
        return Next::GiveUp;
    }
    let ceiling = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
    let pause = FIRST_PAUSE + ceiling.saturating_sub(FIRST_PAUSE).mul_f64(draw.clamp(0.0, 1.0));
    let pause = failure.retry_after.map_or(pause, |asked| asked.clamp(FIRST_PAUSE, LONGEST_ASKED_PAUSE));
    // Without enough time for an answer, another try would only cost the cloud a request.
    if pause < left { Next::In(pause) } else { Next::GiveUp }
}

/// A random number of `0..1`, for jitter.
pub fn draw() -> f64 {
    rand::random()
}

#[cfg(test)]
mod tests {
    use machine_driver::Code;
    use rstest::rstest;

    use super::{FailureKind::*, Next::*, Repeat::*, *};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[rstest]
    #[case::a_read_is_repeated(Temporary, Safe, 1, None, 0.0, In(ms(200)))]
    #[case::the_pause_is_drawn(Temporary, Safe, 1, None, 1.0, In(ms(400)))]
    #[case::it_grows(Temporary, Safe, 3, None, 1.0, In(ms(1600)))]
    #[case::a_write_of_unknown_outcome_is_not_repeated(Temporary, Unsafe, 1, None, 0.0, GiveUp)]
    #[case::a_write_that_was_throttled_is_repeated(Throttled, Unsafe, 1, None, 0.0, In(ms(200)))]
    #[case::a_write_that_was_never_sent_is_repeated(NotSent, Unsafe, 1, None, 0.0, In(ms(200)))]
    #[case::a_permanent_failure_is_not_repeated(Permanent, Safe, 1, None, 0.0, GiveUp)]
    #[case::four_tries_are_enough(Throttled, Safe, 4, None, 0.0, GiveUp)]
    #[case::c11_the_cloud_says_when(Throttled, Safe, 1, Some(ms(3000)), 0.5, In(ms(3000)))]
    #[case::at_once_is_too_soon(Throttled, Safe, 1, Some(ms(0)), 0.5, In(ms(200)))]
    #[case::there_is_no_time_for_another(Throttled, Safe, 1, Some(ms(100_000)), 0.5, GiveUp)]
    fn the_next_step(
        #[case] kind: FailureKind,
        #[case] repeat: Repeat,
        #[case] tries: u32,
        #[case] retry_after: Option<Duration>,
        #[case] draw: f64,
        #[case] expected: Next,
    ) {
        let failure = Failure { retry_after, ..Failure::new(Code::Unavailable, "no", kind) };
        assert_eq!(after(&failure, tries, repeat, ms(10_000), draw), expected);
    }

    #[test]
    fn no_cloud_asks_for_more_than_a_minute() {
        let asked = Some(Duration::from_secs(900));
        let failure = Failure { retry_after: asked, ..Failure::new(Code::Unavailable, "no", Throttled) };
        assert_eq!(after(&failure, 1, Safe, Duration::from_secs(1200), 0.5), In(Duration::from_secs(60)));
    }
}
