//! Something that comes true once, and those who wait for it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A condition that comes true once and stays true. Those who wait are woken in the order in which they came, so that one
/// history of a process can be told twice; the channels of tokio wake them in any order.
#[derive(Debug, Default)]
pub struct Latch {
    is_open: AtomicBool,
    waiting: Notify,
}

impl Latch {
    /// It is true from the beginning.
    pub fn opened_before() -> Self {
        Self { is_open: AtomicBool::new(true), waiting: Notify::new() }
    }

    /// It is true from now on.
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
        // Enlisted before the look: what opens between the two wakes, too.
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
    async fn those_who_wait_are_woken_in_their_order() {
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
        // All of them come before: a scheduler runs more tasks than these before it comes back.
        tokio::task::yield_now().await;
        assert!(!latch.is_open());
        latch.open();
        for wait in waits {
            wait.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..40).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn who_comes_late_does_not_wait() {
        let latch = Latch::default();
        latch.open();
        latch.opened().await;
        Latch::opened_before().opened().await;
    }
}
