//! A condition that becomes true once.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A condition that becomes true once and stays true. Waiting tasks are woken in the order in which they began to wait, so that a
/// simulated process runs the same way each time. The channels of tokio wake tasks in any order.
#[derive(Debug, Default)]
pub struct Latch {
    is_open: AtomicBool,
    waiting: Notify,
}

impl Latch {
    /// A condition that is true from the start.
    pub fn opened_before() -> Self {
        Self { is_open: AtomicBool::new(true), waiting: Notify::new() }
    }

    /// Makes the condition true.
    pub fn open(&self) {
        self.is_open.store(true, Ordering::Release);
        self.waiting.notify_waiters();
    }

    /// Whether it is true.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Waits until it is true.
    pub async fn opened(&self) {
        let mut woken = std::pin::pin!(self.waiting.notified());
        // Enabled before the check, so that an `open` between check and wait is not missed.
        woken.as_mut().enable();
        if !self.is_open() {
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test]
    async fn waiting_tasks_are_woken_in_their_order() {
        let (latch, order) = (Arc::new(Latch::default()), Arc::new(Mutex::new(Vec::new())));
        let waits: Vec<_> = (0..40)
            .map(|number| {
                let (latch, order) = (Arc::clone(&latch), Arc::clone(&order));
                tokio::spawn(async move {
                    latch.opened().await;
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        // All tasks begin to wait before this returns: the scheduler runs more than 40 tasks before it runs this one again.
        tokio::task::yield_now().await;
        assert!(!latch.is_open());
        latch.open();
        for wait in waits {
            wait.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn an_open_latch_is_not_waited_for() {
        let latch = Latch::default();
        latch.open();
        latch.opened().await;
        Latch::opened_before().opened().await;
    }
}
