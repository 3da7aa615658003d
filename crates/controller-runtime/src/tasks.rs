//! Runs work beside the passes: driver calls, evictions. A simulation has its own implementation.

use std::sync::Arc;

use futures::future::BoxFuture;

/// Runs tasks to their end, on threads of its choice.
pub trait Tasks: Send + Sync {
    /// Starts a task. It is dropped with the process.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Shared tasks. Clones use the same implementation.
pub type SharedTasks = Arc<dyn Tasks>;

/// Tasks on the tokio runtime that [`Tasks::spawn`] is called on.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTasks;

impl Tasks for TokioTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}
