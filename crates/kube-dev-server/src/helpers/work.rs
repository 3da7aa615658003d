//! The queue of tasks of the controllers. Several tasks run at the same time, but only a few of the same class. A slow request, for example with a
//! webhook that takes half a minute, delays only tasks of the same class.
//!
//! The queue has no clock and makes no requests. [`super::retries`] decides when failed tasks are retried.

use std::collections::{BTreeMap, VecDeque};

use super::Place;
use crate::store::Collection;

/// The maximum number of tasks that run at the same time.
const MAX_RUNNING: usize = 256;
/// The maximum number of tasks of a class that run at the same time.
const MAX_RUNNING_IN_CLASS: usize = 8;

/// A task. It contains all data that a later retry needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    /// Delete an object if its owners are deleted.
    Collect(Place),
    /// Do the next step for an object that is being deleted.
    Finalize(Place),
    /// Create the default account of a namespace.
    CreateAccount(String),
    /// Delete the pods of a deleted node.
    DeletePods(String),
    /// Post an event, which is JSON text. A failed event is not retried.
    PostEvent(String),
}

/// A class of tasks. The tasks of a class are likely to be slow for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Objects of the same resource, because webhooks are registered for resources.
    Collect(Collection),
    Finalize(Place),
    CreateAccount,
    DeletePods(String),
    PostEvent,
}

impl Task {
    fn class(&self) -> Class {
        match self {
            Self::Collect((collection, _)) => Class::Collect(collection.clone()),
            Self::Finalize(place) => Class::Finalize(place.clone()),
            Self::CreateAccount(_) => Class::CreateAccount,
            Self::DeletePods(node) => Class::DeletePods(node.clone()),
            Self::PostEvent(_) => Class::PostEvent,
        }
    }
}

/// The stage of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Running,
    /// The task was added again while it ran. It runs again, because the running task may have read an old state.
    RunsAgain,
}

#[derive(Debug, Default)]
struct ClassQueue {
    queued: VecDeque<Task>,
    running: usize,
}

/// The queued and the running tasks. It contains each task only once.
#[derive(Debug, Default)]
pub(super) struct WorkQueue {
    stages: BTreeMap<Task, Stage>,
    /// The classes with queued or running tasks.
    classes: BTreeMap<Class, ClassQueue>,
    running: usize,
}

impl WorkQueue {
    /// Adds a task.
    pub(super) fn add(&mut self, task: Task) {
        match self.stages.get(&task) {
            None => {
                self.classes.entry(task.class()).or_default().queued.push_back(task.clone());
                self.stages.insert(task, Stage::Queued);
            }
            Some(Stage::Running) => {
                self.stages.insert(task, Stage::RunsAgain);
            }
            Some(Stage::Queued | Stage::RunsAgain) => {}
        }
    }

    /// Takes the next task that the limits allow to run. The task counts as running until [`Self::end`].
    pub(super) fn start(&mut self) -> Option<Task> {
        if self.running == MAX_RUNNING {
            return None;
        }
        let can_start = |queue: &&mut ClassQueue| queue.running < MAX_RUNNING_IN_CLASS && !queue.queued.is_empty();
        let queue = self.classes.values_mut().find(can_start)?;
        let task = queue.queued.pop_front()?;
        queue.running += 1;
        self.running += 1;
        self.stages.insert(task.clone(), Stage::Running);
        Some(task)
    }

    /// Ends a running task, whether it succeeded or failed.
    pub(super) fn end(&mut self, task: &Task) {
        let class = task.class();
        if let Some(queue) = self.classes.get_mut(&class) {
            queue.running -= 1;
            self.running -= 1;
            if queue.running == 0 && queue.queued.is_empty() {
                self.classes.remove(&class);
            }
        }
        if self.stages.remove(task) == Some(Stage::RunsAgain) {
            self.add(task.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(resource: &str, name: usize) -> Task {
        Task::Collect((Collection::new("", resource), name.to_string()))
    }

    fn started(work: &mut WorkQueue) -> Vec<Task> {
        std::iter::from_fn(|| work.start()).collect()
    }

    #[test]
    fn few_tasks_of_a_class_run_together_and_delay_no_other_class() {
        let mut work = WorkQueue::default();
        for name in 0..100 {
            work.add(collect("configmaps", name));
        }
        let first = started(&mut work);
        assert_eq!(first, (0..MAX_RUNNING_IN_CLASS).map(|name| collect("configmaps", name)).collect::<Vec<_>>());
        work.add(collect("secrets", 0));
        work.add(Task::CreateAccount("a".to_owned()));
        assert_eq!(started(&mut work), [collect("secrets", 0), Task::CreateAccount("a".to_owned())]);
        work.end(&first[3]);
        assert_eq!(started(&mut work), [collect("configmaps", MAX_RUNNING_IN_CLASS)]);
    }

    #[test]
    fn a_task_is_queued_once_and_runs_again_if_it_was_added_while_it_ran() {
        let mut work = WorkQueue::default();
        let task = Task::Finalize((Collection::new("", "namespaces"), "a".to_owned()));
        work.add(task.clone());
        work.add(task.clone());
        assert_eq!(started(&mut work), std::slice::from_ref(&task));
        work.add(task.clone());
        work.add(task.clone());
        assert_eq!(started(&mut work), [], "a task never runs twice at the same time");
        work.end(&task);
        assert_eq!(started(&mut work), std::slice::from_ref(&task));
        work.end(&task);
        assert_eq!(started(&mut work), []);
        assert!(work.stages.is_empty() && work.classes.is_empty() && work.running == 0);
    }

    #[test]
    fn the_number_of_running_tasks_is_limited() {
        let mut work = WorkQueue::default();
        for node in 0..=MAX_RUNNING {
            work.add(Task::DeletePods(format!("{node:04}")));
        }
        let first = started(&mut work);
        assert_eq!(first.len(), MAX_RUNNING);
        work.end(&first[0]);
        assert_eq!(started(&mut work).len(), 1);
    }
}
