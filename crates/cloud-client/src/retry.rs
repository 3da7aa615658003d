//! What follows from a failed request: the next try, or the end. Pure; the clock and the draw come from outside.

use std::time::Duration;

use crate::failure::{Failure, Trouble};

/// A call sends its request at most so often.
pub const MOST_TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whether a request may be sent a second time although the first may have been carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// A read, or a deletion.
    Safe,
    /// It changes something: only what the cloud certainly has not done is sent again.
    Unsafe,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The request is sent again after this time.
    In(Duration),
    /// The failure is the answer of the call.
    GiveUp,
}

/// What follows from a failure after so many tries, with so much time left. `draw` is a random number of `0..1`, so that
/// clients that failed together do not come back together.
pub fn after(failure: &Failure, tries: u32, repeat: Repeat, left: Duration, draw: f64) -> Next {
    let may_succeed = match failure.trouble {
        Trouble::Throttled | Trouble::NotSent => true,
        Trouble::Passing => repeat == Repeat::Safe,
        Trouble::Lasting => false,
    };
    if !may_succeed || tries >= MOST_TRIES {
        return Next::GiveUp;
    }
    let ceiling = FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE);
    let pause = FIRST_PAUSE + ceiling.saturating_sub(FIRST_PAUSE).mul_f64(draw.clamp(0.0, 1.0));
    let pause = failure.retry_after.map_or(pause, |asked| asked.max(FIRST_PAUSE));
    // A try that can't be answered in time costs the cloud a request and brings nobody anything.
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

    use super::{Next::*, Repeat::*, Trouble::*, *};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[rstest]
    #[case::a_read_is_repeated(Passing, Safe, 1, None, 0.0, In(ms(200)))]
    #[case::the_pause_is_drawn(Passing, Safe, 1, None, 1.0, In(ms(400)))]
    #[case::it_grows(Passing, Safe, 3, None, 1.0, In(ms(1600)))]
    #[case::a_write_of_unknown_outcome_is_not_repeated(Passing, Unsafe, 1, None, 0.0, GiveUp)]
    #[case::a_write_that_was_throttled_is_repeated(Throttled, Unsafe, 1, None, 0.0, In(ms(200)))]
    #[case::a_write_that_was_never_sent_is_repeated(NotSent, Unsafe, 1, None, 0.0, In(ms(200)))]
    #[case::what_lasts_is_not_repeated(Lasting, Safe, 1, None, 0.0, GiveUp)]
    #[case::four_tries_are_enough(Throttled, Safe, 4, None, 0.0, GiveUp)]
    #[case::c11_the_cloud_says_when(Throttled, Safe, 1, Some(ms(3000)), 0.5, In(ms(3000)))]
    #[case::at_once_is_too_soon(Throttled, Safe, 1, Some(ms(0)), 0.5, In(ms(200)))]
    #[case::there_is_no_time_for_another(Throttled, Safe, 1, Some(ms(10_000)), 0.5, GiveUp)]
    fn what_follows(
        #[case] trouble: Trouble,
        #[case] repeat: Repeat,
        #[case] tries: u32,
        #[case] retry_after: Option<Duration>,
        #[case] draw: f64,
        #[case] expected: Next,
    ) {
        let failure = Failure { retry_after, ..Failure::new(Code::Unavailable, "no", trouble) };
        assert_eq!(after(&failure, tries, repeat, ms(10_000), draw), expected);
    }
}
