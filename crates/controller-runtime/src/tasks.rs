//! Where work beside the passes runs: driver calls, evictions. A simulation runs it itself.

use std::sync::Arc;

use futures::future::BoxFuture;

/// Runs tasks to their end, on threads that it chooses.
pub trait Tasks: Send + Sync {
    /// Begins a task. It is dropped with the process.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Tasks of a process. Clones run them at the same place.
pub type SharedTasks = Arc<dyn Tasks>;

/// Tasks on tokio's runtime, the one that [`Tasks::spawn`] is called on.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTasks;

impl Tasks for TokioTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}
