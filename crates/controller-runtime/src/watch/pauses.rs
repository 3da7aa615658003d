//! How long a watch waits after an error before the next try.

use std::time::Duration;

/// The first pause. Each next pause is twice as long.
const FIRST: Duration = Duration::from_millis(800);
/// The longest pause after an error that can pass without a change of configuration.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest pause after a refusal, which lasts until an administrator grants the rights.
const LONGEST_REFUSED: Duration = Duration::from_secs(60);
/// The longest pause that a server may ask for.
const MAX_REQUESTED: Duration = Duration::from_secs(5 * 60);

/// Why a list or watch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// 401 or 403.
    Refused,
    /// The API server no longer has the events since the last version. This is not a fault: the first new list starts at once.
    Behind,
    /// The API server ended the watch at once and sent no event, as it does when a CRD changes. The first new watch starts at once.
    Ended,
    /// Any other cause, with the pause that the server asks for.
    Other(Option<Duration>),
}

/// The pauses of one watch. They grow until the watch works again.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    failures: u32,
    behind: u32,
    ended: u32,
}

impl Pauses {
    /// The pause after the next failure. Up to a quarter is added at random, so that watches do not all retry at the same time.
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
            Cause::Other(Some(requested)) => pause.max(requested.min(MAX_REQUESTED)),
            Cause::Other(None) | Cause::Refused | Cause::Behind | Cause::Ended => pause,
        }
    }

    /// The watch works again.
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
    fn a_server_may_ask_for_a_longer_pause_within_bounds() {
        let requested = |seconds| Pauses::default().after(Cause::Other(Some(Duration::from_secs(seconds))), 0);
        assert_eq!((requested(0), requested(7), requested(86_400)), (FIRST, Duration::from_secs(7), MAX_REQUESTED));
    }

    #[test]
    fn a_watch_that_is_behind_lists_at_once_the_first_time_and_after_pauses_until_it_works() {
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
    fn a_watch_that_ends_is_opened_at_once_the_first_time_and_after_pauses_until_it_works() {
        let mut pauses = Pauses::default();
        let mut ended = || pauses.after(Cause::Ended, 0).as_millis();
        assert_eq!([ended(), ended(), ended()], [0, 800, 1600]);
        pauses.reset();
        assert_eq!(pauses.after(Cause::Ended, 0), Duration::ZERO);
        assert_eq!(pauses.after(Cause::Behind, 0), Duration::ZERO, "another cause has a first time of its own");
    }

    #[test]
    fn jitter_adds_at_most_a_quarter_and_a_success_resets_the_pause() {
        let mut pauses = Pauses::default();
        assert_eq!(pauses.after(Cause::Refused, 255).as_millis(), 999);
        pauses.after(Cause::Refused, 0);
        pauses.reset();
        assert_eq!(pauses.after(Cause::Refused, 0), FIRST);
    }
}
