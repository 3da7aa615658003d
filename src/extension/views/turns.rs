//! Turns for what takes the processor for a while: a few at once, each for a short time, beside the other work of the process.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::protocol::status::ApiStatus;

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

    /// Does the work when its turn comes; it is told whether it may go on.
    ///
    /// # Errors
    /// 429 when others are busy for too long, 500 when the process ends meanwhile.
    pub async fn play<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, ApiStatus> {
        let turn = self.take().await?;
        let work = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let done = work(&|| began.elapsed() < Self::BUDGET);
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
        let turns = Turns::default();
        for _ in 0..=AT_ONCE {
            let played = turns.play(|_| panic!("a plan that panics"));
            assert!(std::panic::AssertUnwindSafe(played).catch_unwind().await.is_err());
        }
        assert_eq!(turns.play(|go_on| go_on()).await, Ok(true));
    }
}
