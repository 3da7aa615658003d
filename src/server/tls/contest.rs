//! How long a repair of a CA bundle waits when another program writes the same field.
//!
//! Managers that share a webhook configuration but not the certificate Secret write their own authorities into it, and each
//! manager finds its authorities replaced. No manager can know which one is right. So each repair that was undone makes the next
//! repair wait longer, and the problem is reported once. A bundle that was replaced by chance is still repaired within seconds. A
//! tool that restores an old bundle every few minutes (Argo CD, Flux) is a different case: if a repair lasted minutes, the next
//! repair is made soon.

use std::time::Duration;

use tokio::time::Instant;

/// The wait before the first repair.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait before a repair.
const MAX_WAIT: Duration = Duration::from_secs(300);
/// After this time without a repair, the next repair counts as the first one.
const FORGET_AFTER: Duration = Duration::from_secs(1800);
/// A repair that lasted this long was not undone by another manager, because a manager reacts within seconds.
const LASTING: Duration = Duration::from_secs(60);
/// After a repair that lasted long, the next repair waits at most this fraction (1/60) of the time that it lasted.
const FRACTION: u32 = 60;
/// After this number of repairs in a row, the replacements are no longer chance.
const SUSPICIOUS_REPAIRS: u32 = 3;

/// Counts how often our bundle was replaced by a foreign bundle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    repairs: u32,
    last: Option<Instant>,
    /// How long the last repair lasted.
    lasted: Option<Duration>,
}

/// What a repair shows about the other program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing. The replacement may be chance, or it has been reported already.
    Nothing,
    /// Another program also writes the field, probably another manager. This must be reported now.
    Contested,
    /// Another program replaces the bundle minutes after each repair. It is probably a tool and not a manager. This must be
    /// reported now.
    PutBack,
}

impl Contest {
    /// Called when our bundle was replaced. Returns how long the repair waits.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        if self.is_forgotten(now) {
            return FIRST_WAIT;
        }
        let lasted = self.last.map(|last| now.saturating_duration_since(last));
        self.lasted = lasted;
        let growing = (FIRST_WAIT * (1 << self.repairs.min(10))).min(MAX_WAIT);
        match lasted {
            Some(lasted) if lasted >= LASTING => growing.min((lasted / FRACTION).max(FIRST_WAIT)),
            _ => growing,
        }
    }

    /// Called when a foreign bundle was replaced by ours.
    pub(super) fn repaired(&mut self, now: Instant) -> Meaning {
        self.repairs = if self.is_forgotten(now) { 1 } else { self.repairs.saturating_add(1) };
        self.last = Some(now);
        if self.repairs != SUSPICIOUS_REPAIRS {
            Meaning::Nothing
        } else if self.lasted.is_some_and(|lasted| lasted >= LASTING) {
            Meaning::PutBack
        } else {
            Meaning::Contested
        }
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + FORGET_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repairs_that_are_undone_wait_longer_each_time_and_are_reported_once() {
        let mut contest = Contest::default();
        let began = Instant::now();
        let mut reports = 0;
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = contest.wait(Instant::now());
            waits.push(wait.as_secs());
            tokio::time::advance(wait).await;
            reports += u32::from(contest.repaired(Instant::now()) == Meaning::Contested);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(reports, 1);
        assert!(began.elapsed() > Duration::from_secs(1_000), "{:?}", began.elapsed());
        tokio::time::advance(FORGET_AFTER).await;
        assert_eq!(contest.wait(Instant::now()), FIRST_WAIT, "a later one is a new one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_puts_an_old_bundle_back_every_three_minutes_does_not_win() {
        let mut contest = Contest::default();
        let period = Duration::from_secs(180);
        let mut reported = Vec::new();
        // A whole day.
        for _ in 0..480 {
            let wait = contest.wait(Instant::now());
            assert!(wait <= Duration::from_secs(3), "{wait:?}");
            tokio::time::advance(wait).await;
            reported.extend(Some(contest.repaired(Instant::now())).filter(|meaning| *meaning != Meaning::Nothing));
            tokio::time::advance(period.saturating_sub(wait)).await;
        }
        assert_eq!(reported, [Meaning::PutBack]);
    }
}
