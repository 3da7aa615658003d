//! Two processes that think an object is theirs.
//!
//! Managers that share a webhook configuration but not the certificate Secret each write their own authorities into it, and
//! each finds them replaced. Neither can tell who is right. So the later a repair comes, the more often it was undone, and it is
//! said once what is wrong; a bundle that was replaced by chance is still repaired within seconds. A tool that puts an old bundle
//! back every few minutes (Argo CD, Flux) is another matter: a repair that lasted minutes is worth making soon again.

use std::time::Duration;

use tokio::time::Instant;

/// The first repair waits so long.
const FIRST: Duration = Duration::from_secs(1);
/// No repair waits longer.
const LONGEST: Duration = Duration::from_secs(300);
/// After such a time without a contest the next one is the first.
const FORGET: Duration = Duration::from_secs(1800);
/// A repair that lasted so long was not undone by another manager, which answers within seconds.
const LASTING: Duration = Duration::from_secs(60);
/// The next repair waits for no more than such a part of the time that the last one lasted.
const PART: u32 = 60;
/// So many repairs in a row are no chance any more.
const SUSPICIOUS: u32 = 3;

/// How often our bundle was replaced by a foreign one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    repairs: u32,
    last: Option<Instant>,
    /// How long the last repair lasted.
    lasted: Option<Duration>,
}

/// What a repair means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It may be a chance, or it has been told.
    Nothing,
    /// Somebody else writes the field, too; it is time to say so.
    Contested,
    /// The same, minutes after each repair: more likely a tool than a manager.
    PutBack,
}

impl Contest {
    /// Our bundle was found replaced; answers how long its repair waits.
    pub(super) fn patience(&mut self, now: Instant) -> Duration {
        if self.is_forgotten(now) {
            return FIRST;
        }
        let lasted = self.last.map(|last| now.saturating_duration_since(last));
        self.lasted = lasted;
        let growing = (FIRST * (1 << self.repairs.min(10))).min(LONGEST);
        match lasted {
            Some(lasted) if lasted >= LASTING => growing.min((lasted / PART).max(FIRST)),
            _ => growing,
        }
    }

    /// A foreign bundle was replaced.
    pub(super) fn repaired(&mut self, now: Instant) -> Meaning {
        self.repairs = if self.is_forgotten(now) { 1 } else { self.repairs.saturating_add(1) };
        self.last = Some(now);
        if self.repairs != SUSPICIOUS {
            Meaning::Nothing
        } else if self.lasted.is_some_and(|lasted| lasted >= LASTING) {
            Meaning::PutBack
        } else {
            Meaning::Contested
        }
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now >= last + FORGET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repairs_that_are_undone_come_ever_later_and_are_told_once() {
        let mut contest = Contest::default();
        let began = Instant::now();
        let mut told = 0;
        let mut waits = Vec::new();
        for _ in 0..12 {
            let wait = contest.patience(Instant::now());
            waits.push(wait.as_secs());
            tokio::time::advance(wait).await;
            told += u32::from(contest.repaired(Instant::now()) == Meaning::Contested);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        assert_eq!(told, 1);
        assert!(began.elapsed() > Duration::from_secs(1_000), "{:?}", began.elapsed());
        tokio::time::advance(FORGET).await;
        assert_eq!(contest.patience(Instant::now()), FIRST, "a later one is a new one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_tool_that_puts_an_old_bundle_back_every_three_minutes_does_not_win() {
        let mut contest = Contest::default();
        let period = Duration::from_secs(180);
        let mut told = Vec::new();
        // A day of it.
        for _ in 0..480 {
            let patience = contest.patience(Instant::now());
            assert!(patience <= Duration::from_secs(3), "{patience:?}");
            tokio::time::advance(patience).await;
            told.extend(Some(contest.repaired(Instant::now())).filter(|meaning| *meaning != Meaning::Nothing));
            tokio::time::advance(period.saturating_sub(patience)).await;
        }
        assert_eq!(told, [Meaning::PutBack]);
    }
}
