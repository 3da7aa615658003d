//! How long a watch rests after something went wrong.

use std::time::Duration;

/// The first pause; each further one is twice as long.
const FIRST: Duration = Duration::from_millis(800);
/// The longest pause after an error that may pass by itself.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest pause after a refusal: rights come by somebody's hand.
const LONGEST_REFUSED: Duration = Duration::from_secs(60);
/// The most that a server's own wish for a pause counts.
const MOST_WISHED: Duration = Duration::from_secs(5 * 60);

/// Why a list or watch went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// 401 or 403.
    Refused,
    /// The API server can't tell what happened since. Nothing is wrong with it: the first time a list is asked for at once.
    Behind,
    /// The API server ended the watch at once and without a word, as it does when a definition changes. The first time the watch is
    /// opened at once.
    Ended,
    /// Anything else, with the pause that the server wishes for.
    Other(Option<Duration>),
}

/// The pauses of one watch: they grow until it works again.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    failures: u32,
    behind: u32,
    ended: u32,
}

impl Pauses {
    /// The pause after one more failure; up to a quarter more by chance, so that watches don't come all at once.
    pub(super) fn after(&mut self, cause: Cause, random: u64) -> Duration {
        let again = match cause {
            Cause::Behind => Some(&mut self.behind),
            Cause::Ended => Some(&mut self.ended),
            Cause::Refused | Cause::Other(_) => None,
        };
        if let Some(times) = again {
            *times = times.saturating_add(1);
            if *times == 1 {
                return Duration::ZERO;
            }
        }
        let longest = match cause {
            Cause::Refused => LONGEST_REFUSED,
            Cause::Behind | Cause::Ended | Cause::Other(_) => LONGEST,
        };
        let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.failures.min(16))).min(longest);
        self.failures = self.failures.saturating_add(1);
        let chance = u32::try_from(random % 256).unwrap_or_default();
        let pause = pause + pause / 1024 * chance;
        match cause {
            Cause::Other(Some(wished)) => pause.max(wished.min(MOST_WISHED)),
            Cause::Other(None) | Cause::Refused | Cause::Behind | Cause::Ended => pause,
        }
    }

    /// It works.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(cause: Cause) -> Vec<u128> {
        let mut pauses = Pauses::default();
        (0..9).map(|_| pauses.after(cause, 0).as_millis()).collect()
    }

    #[test]
    fn pauses_double_up_to_half_a_minute_and_after_refusals_to_a_minute() {
        let mut expected = vec![800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000];
        assert_eq!(seconds(Cause::Other(None)), expected);
        expected.splice(6.., [51_200, 60_000, 60_000]);
        assert_eq!(seconds(Cause::Refused), expected);
    }

    #[test]
    fn a_server_may_wish_for_a_longer_pause_within_bounds() {
        let wished = |seconds| Pauses::default().after(Cause::Other(Some(Duration::from_secs(seconds))), 0);
        assert_eq!((wished(0), wished(7), wished(86_400)), (FIRST, Duration::from_secs(7), MOST_WISHED));
    }

    #[test]
    fn whoever_is_behind_lists_at_once_and_the_next_times_not_before_something_was_heard() {
        let mut pauses = Pauses::default();
        let mut behind = || pauses.after(Cause::Behind, 0).as_millis();
        assert_eq!([behind(), behind(), behind()], [0, 800, 1600]);
        pauses.reset();
        // As at the end of an outage.
        for _ in 0..9 {
            pauses.after(Cause::Other(None), 0);
        }
        assert_eq!(pauses.after(Cause::Behind, 0), Duration::ZERO);
        assert_eq!(pauses.after(Cause::Behind, 0), LONGEST);
    }

    #[test]
    fn a_watch_that_ends_is_opened_at_once_and_the_next_times_not_before_something_was_heard() {
        let mut pauses = Pauses::default();
        let mut ended = || pauses.after(Cause::Ended, 0).as_millis();
        assert_eq!([ended(), ended(), ended()], [0, 800, 1600]);
        pauses.reset();
        assert_eq!(pauses.after(Cause::Ended, 0), Duration::ZERO);
        assert_eq!(pauses.after(Cause::Behind, 0), Duration::ZERO, "another cause has a first time of its own");
    }

    #[test]
    fn chance_adds_a_quarter_at_most_and_success_begins_anew() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.after(Cause::Refused, 255).as_millis(), 999);
        pauses.after(Cause::Refused, 0);
        pauses.reset();
        assert_eq!(pauses.after(Cause::Refused, 0), FIRST);
    }
}
