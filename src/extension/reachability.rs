//! Whether the API server of the control cluster answers.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use controller_runtime::{lock, objects::call};

/// After this time without an answer the API server counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between probes.
const PERIOD: Duration = Duration::from_secs(20);

/// The time of the API server's last answer. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Reachability(Arc<Mutex<Option<Instant>>>);

impl Reachability {
    /// Records an answer at this moment.
    pub fn confirm(&self) {
        *lock(&self.0) = Some(Instant::now());
    }

    /// The reason why the API server counts as unreachable, if it does.
    pub fn failure(&self) -> Option<String> {
        let last = *lock(&self.0);
        match last {
            None => Some("the API server has not answered yet".to_owned()),
            Some(last) if last.elapsed() > TIMEOUT => {
                Some(format!("the API server has not answered for {}s", last.elapsed().as_secs()))
            }
            Some(_) => None,
        }
    }

    /// Asks the API server for its version periodically, until `stop`.
    pub async fn probe(self, client: kube::Client, stop: CancellationToken) {
        loop {
            match call(client.apiserver_version()).await {
                Ok(_) => self.confirm(),
                Err(error) => tracing::debug!(%error, "the API server does not answer"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_minute_without_an_answer_is_too_long() {
        let reachability = Reachability::default();
        assert!(reachability.failure().is_some());
        reachability.confirm();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(reachability.failure(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(reachability.failure().is_some_and(|why| why.contains("61s")));
    }
}
