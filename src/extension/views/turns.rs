//! Turns for what takes the processor for a while: a few at once, each for a short time, beside the other work of the process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube_protocol::status::ApiStatus;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// How long somebody waits for a turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Seconds after which another try may help.
const ASK_AGAIN: u32 = 2;

/// Turns for the plans of a view.
pub struct Turns(Arc<Semaphore>);

impl Turns {
    /// So many turns at a time.
    pub fn at_a_time(turns: usize) -> Self {
        Self(Arc::new(Semaphore::new(turns.max(1))))
    }

    /// How long a turn takes.
    pub const BUDGET: Duration = Duration::from_secs(2);

    /// Does the work when its turn comes; it is told whether it may go on, which it may not once nobody waits for it any more.
    ///
    /// # Errors
    /// 429 when others are busy for too long, 500 when the process ends meanwhile.
    pub async fn play<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, ApiStatus> {
        let turn = self.take().await?;
        let forgotten = CancellationToken::new();
        let _asked = forgotten.clone().drop_guard();
        let work = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let done = work(&|| began.elapsed() < Self::BUDGET && !forgotten.is_cancelled());
            drop(turn);
            done
        });
        match work.await {
            Ok(done) => Ok(done),
            // Whoever answers requests counts panics, and says so.
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ApiStatus::internal("the process is ending")),
            },
        }
    }

    /// A turn; it ends when the permit is dropped.
    ///
    /// # Errors
    /// 429 when others are busy for too long.
    pub async fn take(&self) -> Result<OwnedSemaphorePermit, ApiStatus> {
        let turn = tokio::time::timeout(PATIENCE, Arc::clone(&self.0).acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let message = "other plans are being computed; try again shortly";
            ApiStatus::new(429, "TooManyRequests", message).retry_after(ASK_AGAIN)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn th_44_a_panic_is_handed_on_and_its_turn_ends() {
        let turns = Turns::at_a_time(2);
        for _ in 0..=2 {
            let played = turns.play(|_| panic!("a plan that panics"));
            assert!(std::panic::AssertUnwindSafe(played).catch_unwind().await.is_err());
        }
        assert_eq!(turns.play(|go_on| go_on()).await, Ok(true));
    }

    #[tokio::test]
    async fn a_plan_that_nobody_waits_for_is_given_up() {
        let turns = Turns::at_a_time(1);
        let (began, begins) = tokio::sync::oneshot::channel();
        let (ended, ends) = tokio::sync::oneshot::channel();
        let mut played = Box::pin(turns.play(move |go_on| {
            began.send(()).unwrap();
            let since = Instant::now();
            while go_on() {
                std::thread::yield_now();
            }
            ended.send(since.elapsed()).unwrap();
        }));
        tokio::select! {
            _ = &mut played => panic!("it goes on until its time is over"),
            begun = begins => begun.unwrap(),
        }
        drop(played);
        assert!(ends.await.unwrap() < Turns::BUDGET);
    }
}
