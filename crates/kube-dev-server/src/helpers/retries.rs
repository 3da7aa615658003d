//! The retries of failed tasks, with a backoff, until the task succeeds or is not needed any more.
//!
//! All retry times are in one sorted set. The timer of the controllers waits for the first of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::work::Task;

/// The time before the second attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest time between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
struct Retry {
    attempts: u32,
    at: Instant,
}

/// The failed tasks and the times of their retries.
#[derive(Debug, Default)]
pub(super) struct Retries {
    known: BTreeMap<Task, Retry>,
    queue: BTreeSet<(Instant, Task)>,
}

/// The time until the next attempt after a number of failed attempts.
fn pause(attempts: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(MAX_PAUSE)
}

impl Retries {
    /// Schedules the next attempt of a failed task.
    pub(super) fn failed(&mut self, task: Task, now: Instant) {
        let attempts = self.known.get(&task).map_or(0, |retry| retry.attempts) + 1;
        self.done(&task);
        let at = now + pause(attempts);
        self.queue.insert((at, task.clone()));
        self.known.insert(task, Retry { attempts, at });
    }

    /// Removes a task that has succeeded or is not needed any more.
    pub(super) fn done(&mut self, task: &Task) {
        if let Some(retry) = self.known.remove(task) {
            self.queue.remove(&(retry.at, task.clone()));
        }
    }

    /// Whether a task has failed and its retry is not due yet.
    pub(super) fn is_waiting(&self, task: &Task, now: Instant) -> bool {
        self.known.get(task).is_some_and(|retry| retry.at > now)
    }

    /// The time of the next retry.
    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Takes the tasks whose retry is due. The number of their attempts is remembered until they are done.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Task> {
        let mut due = Vec::new();
        while self.queue.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, task)) = self.queue.pop_first()
        {
            due.push(task);
        }
        due
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
    fn pauses_double_up_to_a_limit(#[case] attempts: u32, #[case] milliseconds: u64) {
        assert_eq!(pause(attempts), Duration::from_millis(milliseconds));
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_waits_longer_after_each_attempt_until_it_is_done() {
        let (now, task) = (Instant::now(), Task::CreateAccount("a".to_owned()));
        let mut retries = Retries::default();
        assert_eq!(retries.next(), None);
        retries.failed(task.clone(), now);
        retries.failed(task.clone(), now);
        assert_eq!(retries.next(), Some(now + 2 * FIRST_PAUSE), "the later time replaces the earlier time");
        assert!(retries.is_waiting(&task, now) && !retries.is_waiting(&task, now + 2 * FIRST_PAUSE));
        assert_eq!(retries.due(now), []);
        let now = now + 2 * FIRST_PAUSE;
        assert_eq!((retries.due(now), retries.next()), (vec![task.clone()], None));
        retries.failed(task.clone(), now);
        assert_eq!(retries.next(), Some(now + 4 * FIRST_PAUSE), "the attempts are counted");
        retries.done(&task);
        assert!(retries.known.is_empty() && retries.queue.is_empty());
    }
}
