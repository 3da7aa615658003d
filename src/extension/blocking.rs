//! Long computations: bounded in number, on their own threads, and abandoned once the caller has gone.

use std::{
    num::NonZeroUsize,
    sync::{Arc, LazyLock},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use kube_protocol::status::ApiStatus;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum number of objects of one computation. More objects are divided among several computations.
pub const AT_ONCE: usize = 256;

/// Limits the computations over many objects to the number of processors, for all callers together.
static PROCESSORS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, NonZeroUsize::get)));

/// Runs the work while the permit is held. The function that the work receives returns whether its caller still waits.
async fn run<T: Send + 'static>(
    permit: impl Send + 'static,
    work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
) -> Result<T, ApiStatus> {
    let abandoned = CancellationToken::new();
    let _guard = abandoned.clone().drop_guard();
    let work = tokio::task::spawn_blocking(move || {
        let done = work(&|| !abandoned.is_cancelled());
        drop(permit);
        done
    });
    match work.await {
        Ok(done) => Ok(done),
        // The server counts panics, and logs them.
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ApiStatus::internal("the process is ending")),
        },
    }
}

/// Does the same with each object, and returns the results in the same order. Many objects are divided among the processors.
///
/// # Errors
/// 500 when the process ends meanwhile.
pub async fn each<A, T>(all: &[A], work: impl Fn(&A) -> T + Clone + Send + 'static) -> Result<Vec<T>, ApiStatus>
where
    A: Clone + Send + 'static,
    T: Send + 'static,
{
    if all.len() <= AT_ONCE {
        return Ok(all.iter().map(work).collect());
    }
    let shares = all.chunks(AT_ONCE).map(|some| {
        let (some, work) = (some.to_vec(), work.clone());
        async move {
            // The semaphore is never closed. Without a permit the work would only be less bounded.
            let permit = PROCESSORS.acquire().await.ok();
            // Results may be missing only after the caller has gone.
            run(permit, move |is_wanted| some.iter().take_while(|_| is_wanted()).map(work).collect::<Vec<T>>()).await
        }
    });
    Ok(try_join_all(shares).await?.into_iter().flatten().collect())
}

/// How long a request waits for the computations of other requests.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Seconds after which another try may succeed.
const RETRY_AFTER: u32 = 2;

/// Limits how many plans are computed at a time, and for how long.
pub struct Limiter(Arc<Semaphore>);

impl Limiter {
    /// Longest time of one computation.
    pub const BUDGET: Duration = Duration::from_secs(2);

    /// At most `at_a_time` computations at a time, but at least one.
    pub fn new(at_a_time: usize) -> Self {
        Self(Arc::new(Semaphore::new(at_a_time.max(1))))
    }

    /// Runs the work once there is a permit for it. The function that the work receives returns whether the work may go on.
    ///
    /// # Errors
    /// 429 when other computations take too long, 500 when the process ends meanwhile.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Result<T, ApiStatus> {
        let permit = self.acquire().await?;
        run(permit, |is_wanted| {
            let began = Instant::now();
            work(&|| began.elapsed() < Self::BUDGET && is_wanted())
        })
        .await
    }

    /// The permit for one computation, which ends when the permit is dropped.
    ///
    /// # Errors
    /// 429 when other computations take too long.
    pub async fn acquire(&self) -> Result<OwnedSemaphorePermit, ApiStatus> {
        let permit = tokio::time::timeout(MAX_WAIT, Arc::clone(&self.0).acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(|| {
            let message = "other plans are being computed; try again shortly";
            ApiStatus::new(429, "TooManyRequests", message).retry_after(RETRY_AFTER)
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn th_44_a_panic_is_propagated_and_its_permit_is_returned() {
        let limiter = Limiter::new(2);
        for _ in 0..=2 {
            let ran = limiter.run(|_| panic!("a plan that panics"));
            assert!(std::panic::AssertUnwindSafe(ran).catch_unwind().await.is_err());
        }
        assert_eq!(limiter.run(|go_on| go_on()).await, Ok(true));
    }

    #[tokio::test]
    async fn a_plan_is_abandoned_once_its_caller_has_gone() {
        let limiter = Limiter::new(1);
        let (began, begins) = tokio::sync::oneshot::channel();
        let (ended, ends) = tokio::sync::oneshot::channel();
        let mut ran = Box::pin(limiter.run(move |go_on| {
            began.send(()).unwrap();
            let since = Instant::now();
            while go_on() {
                std::thread::yield_now();
            }
            ended.send(since.elapsed()).unwrap();
        }));
        tokio::select! {
            _ = &mut ran => panic!("it goes on until its budget is used"),
            begun = begins => begun.unwrap(),
        }
        drop(ran);
        assert!(ends.await.unwrap() < Limiter::BUDGET);
    }
}
