//! What the helpers have to do, and what of it is under way: several things at a time, few of a kind. So a request that takes long, for
//! a webhook may take half a minute, holds up its like and nobody else.
//!
//! No clock and no request in here: who is tried again, and when, is in [`super::retries`].

use std::collections::{BTreeMap, VecDeque};

use super::Place;
use crate::store::Collection;

/// Things under way at a time.
const MOST: usize = 256;
/// Of them in one lane.
const MOST_IN_LANE: usize = 8;

/// Something to do that can be done again without knowing how it came up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Look whether an object has lost its owners.
    Collect(Place),
    /// Bring an object forward that waits for others.
    Settle(Place),
    /// Give a namespace its account.
    Account(String),
    /// Take away the pods of a node that is gone.
    Pods(String),
    /// Post an event, written as JSON. Once: events are told whether somebody takes them or not.
    Tell(String),
}

/// Tasks that are likely to take long together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// Objects of one kind, since webhooks judge by kinds.
    Collect(Collection),
    Settle(Place),
    Accounts,
    Pods(String),
    Events,
}

impl Task {
    fn lane(&self) -> Lane {
        match self {
            Self::Collect((collection, _)) => Lane::Collect(collection.clone()),
            Self::Settle(place) => Lane::Settle(place.clone()),
            Self::Account(_) => Lane::Accounts,
            Self::Pods(node) => Lane::Pods(node.clone()),
            Self::Tell(_) => Lane::Events,
        }
    }
}

/// How far a task has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    /// It was asked for while it ran: what it has seen may be old.
    RunsAndAgain,
}

#[derive(Debug, Default)]
struct Traffic {
    queued: VecDeque<Task>,
    running: usize,
}

/// The tasks, each known once.
#[derive(Debug, Default)]
pub(super) struct Work {
    stages: BTreeMap<Task, Stage>,
    /// Those in which something happens.
    lanes: BTreeMap<Lane, Traffic>,
    running: usize,
}

impl Work {
    /// Something is to be done.
    pub(super) fn ask(&mut self, task: Task) {
        match self.stages.get(&task) {
            None => {
                self.lanes.entry(task.lane()).or_default().queued.push_back(task.clone());
                self.stages.insert(task, Stage::Queued);
            }
            Some(Stage::Running) => {
                self.stages.insert(task, Stage::RunsAndAgain);
            }
            Some(Stage::Queued | Stage::RunsAndAgain) => {}
        }
    }

    /// What can be begun now. It runs until [`Self::ended`].
    pub(super) fn begin(&mut self) -> Option<Task> {
        if self.running == MOST {
            return None;
        }
        let with_room = |traffic: &&mut Traffic| traffic.running < MOST_IN_LANE && !traffic.queued.is_empty();
        let traffic = self.lanes.values_mut().find(with_room)?;
        let task = traffic.queued.pop_front()?;
        traffic.running += 1;
        self.running += 1;
        self.stages.insert(task.clone(), Stage::Running);
        Some(task)
    }

    /// A task that has begun is through, however it went.
    pub(super) fn ended(&mut self, task: &Task) {
        let lane = task.lane();
        if let Some(traffic) = self.lanes.get_mut(&lane) {
            traffic.running -= 1;
            self.running -= 1;
            if traffic.running == 0 && traffic.queued.is_empty() {
                self.lanes.remove(&lane);
            }
        }
        if self.stages.remove(task) == Some(Stage::RunsAndAgain) {
            self.ask(task.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(resource: &str, name: usize) -> Task {
        Task::Collect((Collection::new("", resource), name.to_string()))
    }

    fn begun(work: &mut Work) -> Vec<Task> {
        std::iter::from_fn(|| work.begin()).collect()
    }

    #[test]
    fn few_of_a_kind_run_together_and_hold_up_no_other_kind() {
        let mut work = Work::default();
        for name in 0..100 {
            work.ask(collect("configmaps", name));
        }
        let first = begun(&mut work);
        assert_eq!(first, (0..MOST_IN_LANE).map(|name| collect("configmaps", name)).collect::<Vec<_>>());
        work.ask(collect("secrets", 0));
        work.ask(Task::Account("a".to_owned()));
        assert_eq!(begun(&mut work), [collect("secrets", 0), Task::Account("a".to_owned())]);
        work.ended(&first[3]);
        assert_eq!(begun(&mut work), [collect("configmaps", MOST_IN_LANE)]);
    }

    #[test]
    fn a_task_is_known_once_and_runs_again_when_it_was_asked_for_while_it_ran() {
        let mut work = Work::default();
        let task = Task::Settle((Collection::new("", "namespaces"), "a".to_owned()));
        work.ask(task.clone());
        work.ask(task.clone());
        assert_eq!(begun(&mut work), std::slice::from_ref(&task));
        work.ask(task.clone());
        work.ask(task.clone());
        assert_eq!(begun(&mut work), [], "never twice at a time");
        work.ended(&task);
        assert_eq!(begun(&mut work), std::slice::from_ref(&task));
        work.ended(&task);
        assert_eq!(begun(&mut work), []);
        assert!(work.stages.is_empty() && work.lanes.is_empty() && work.running == 0);
    }

    #[test]
    fn so_many_run_at_a_time() {
        let mut work = Work::default();
        for node in 0..=MOST {
            work.ask(Task::Pods(format!("{node:04}")));
        }
        let first = begun(&mut work);
        assert_eq!(first.len(), MOST);
        work.ended(&first[0]);
        assert_eq!(begun(&mut work).len(), 1);
    }
}
