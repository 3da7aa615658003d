//! What was refused and is tried again: later each time, until it succeeds or there is nothing left to do.
//!
//! All of it stands in one ordered set, served by the helpers' one timer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::work::Task;

/// Before the second attempt.
const SHORTEST: Duration = Duration::from_millis(250);
/// Between later ones, however many there were.
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Retry {
    attempts: u32,
    at: Instant,
}

/// What waits for its next attempt.
#[derive(Debug, Default)]
pub(super) struct Retries {
    known: BTreeMap<Task, Retry>,
    due: BTreeSet<(Instant, Task)>,
}

/// How long to wait after so many attempts that failed.
fn pause(attempts: u32) -> Duration {
    SHORTEST.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LONGEST)
}

impl Retries {
    /// An attempt has failed: the next one comes later.
    pub(super) fn failed(&mut self, task: Task, now: Instant) {
        let attempts = self.known.get(&task).map_or(0, |retry| retry.attempts) + 1;
        self.done(&task);
        let at = now + pause(attempts);
        self.due.insert((at, task.clone()));
        self.known.insert(task, Retry { attempts, at });
    }

    /// Nothing is left to be tried.
    pub(super) fn done(&mut self, task: &Task) {
        if let Some(retry) = self.known.remove(task) {
            self.due.remove(&(retry.at, task.clone()));
        }
    }

    /// Whether a task has failed and its time has not come yet.
    pub(super) fn holds(&self, task: &Task, now: Instant) -> bool {
        self.known.get(task).is_some_and(|retry| retry.at > now)
    }

    /// When to look again.
    pub(super) fn wakes(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Those whose time has come. How often they failed is remembered until they are done.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Task> {
        let mut taken = Vec::new();
        while self.due.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, task)) = self.due.pop_first()
        {
            taken.push(task);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first(1, 250)]
    #[case::second(2, 500)]
    #[case::fifth(5, 4_000)]
    #[case::many(8, 30_000)]
    #[case::very_many(u32::MAX, 30_000)]
    fn pauses_double_up_to_a_bound(#[case] attempts: u32, #[case] milliseconds: u64) {
        assert_eq!(pause(attempts), Duration::from_millis(milliseconds));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_waits_longer_each_time_and_is_forgotten_when_it_is_done() {
        let (now, task) = (Instant::now(), Task::Account("a".to_owned()));
        let mut retries = Retries::default();
        assert_eq!(retries.wakes(), None);
        retries.failed(task.clone(), now);
        retries.failed(task.clone(), now);
        assert_eq!(retries.wakes(), Some(now + 2 * SHORTEST), "one entry, the later one");
        assert!(retries.holds(&task, now) && !retries.holds(&task, now + 2 * SHORTEST));
        assert_eq!(retries.take(now), []);
        let now = now + 2 * SHORTEST;
        assert_eq!((retries.take(now), retries.wakes()), (vec![task.clone()], None));
        retries.failed(task.clone(), now);
        assert_eq!(retries.wakes(), Some(now + 4 * SHORTEST), "it is known how often it failed");
        retries.done(&task);
        assert!(retries.known.is_empty() && retries.due.is_empty());
    }
}
