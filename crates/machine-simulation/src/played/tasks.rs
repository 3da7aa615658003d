//! Tasks beside the passes: driver calls and evictions, polled by hand like passes.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    task::{Context, Poll, Waker},
};

use controller_runtime::{lock, tasks::Tasks};
use futures::{Stream, future::BoxFuture, stream::FuturesUnordered};
use tokio::runtime::{Builder, EnterGuard, Runtime};

/// Collects the new tasks of a process.
#[derive(Clone, Default)]
pub struct PlayedTasks(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl Tasks for PlayedTasks {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.lock().push(task);
    }
}

impl PlayedTasks {
    fn take(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut *self.lock())
    }

    fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<BoxFuture<'static, ()>>> {
        lock(&self.0)
    }
}

/// The tasks of a process.
#[derive(Default)]
pub struct Begun {
    new: PlayedTasks,
    running: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Begun {
    /// The place for new tasks.
    pub fn tasks(&self) -> PlayedTasks {
        self.new.clone()
    }

    /// Polls all tasks as far as they get.
    pub fn poll(&mut self) {
        loop {
            self.running.extend(self.new.take());
            let polled = Pin::new(&mut self.running).poll_next(&mut Context::from_waker(Waker::noop()));
            if !matches!(polled, Poll::Ready(Some(()))) && self.new.is_empty() {
                return;
            }
        }
    }
}

/// Deadlines of calls need a runtime for their timers. No thread drives this runtime: on virtual time no call is late
/// unless the history says so.
pub fn timers() -> Option<EnterGuard<'static>> {
    static TIMERS: OnceLock<Option<Runtime>> = OnceLock::new();
    let runtime = TIMERS.get_or_init(|| Builder::new_current_thread().enable_time().build().ok());
    runtime.as_ref().map(Runtime::enter)
}
