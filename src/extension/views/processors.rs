//! Work on many objects, shared among the processors, beside the other work of the process.

use std::{num::NonZeroUsize, sync::Arc, thread::available_parallelism};

use futures::future::try_join_all;
use kube_protocol::status::ApiStatus;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// So many are done in one go. More are shared.
pub(super) const AT_ONCE: usize = 256;

/// Processors that may be at work at once, whoever asks.
#[derive(Clone)]
pub(super) struct Processors(Arc<Semaphore>);

impl Default for Processors {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(available_parallelism().map_or(1, NonZeroUsize::get))))
    }
}

impl Processors {
    /// Does the same with each, and answers in their order.
    ///
    /// # Errors
    /// 500 when the process ends meanwhile.
    pub(super) async fn each<A, T>(
        &self,
        all: &[A],
        work: impl Fn(&A) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, ApiStatus>
    where
        A: Clone + Send + 'static,
        T: Send + 'static,
    {
        if all.len() <= AT_ONCE {
            return Ok(all.iter().map(work).collect());
        }
        let shares = all.chunks(AT_ONCE).map(|some| self.share(some.to_vec(), work.clone()));
        Ok(try_join_all(shares).await?.into_iter().flatten().collect())
    }

    /// Does a share where it holds up nobody.
    async fn share<A, T>(&self, some: Vec<A>, work: impl Fn(&A) -> T + Send + 'static) -> Result<Vec<T>, ApiStatus>
    where
        A: Send + 'static,
        T: Send + 'static,
    {
        // The semaphore is never closed; without a permit the work would only be less bounded.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok();
        let forgotten = CancellationToken::new();
        let _asked = forgotten.clone().drop_guard();
        let done = tokio::task::spawn_blocking(move || {
            // Nobody sees what is left out once nobody waits.
            let done = some.iter().take_while(|_| !forgotten.is_cancelled()).map(work).collect();
            drop(permit);
            done
        });
        match done.await {
            Ok(done) => Ok(done),
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ApiStatus::internal("the process is ending")),
            },
        }
    }
}
