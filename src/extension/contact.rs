//! Whether the API server of the control cluster still answers.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longer than this without an answer, and the server counts as lost.
const SILENCE: Duration = Duration::from_secs(60);
/// How often it is asked when nobody else does.
const PERIOD: Duration = Duration::from_secs(20);

/// When the API server answered last. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Contact(Arc<Mutex<Option<Instant>>>);

impl Contact {
    /// It answered just now.
    pub fn made(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Why it counts as lost, if it does.
    pub fn lost(&self) -> Option<String> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            None => Some("the API server has not answered yet".to_owned()),
            Some(last) if last.elapsed() > SILENCE => {
                Some(format!("the API server has not answered for {}s", last.elapsed().as_secs()))
            }
            Some(_) => None,
        }
    }

    /// Asks for its version now and then, until `stop`.
    pub async fn keep(self, client: kube::Client, stop: CancellationToken) {
        loop {
            match client.apiserver_version().await {
                Ok(_) => self.made(),
                Err(error) => tracing::debug!("the API server does not answer: {error}"),
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
    async fn a_minute_of_silence_is_too_long() {
        let contact = Contact::default();
        assert!(contact.lost().is_some());
        contact.made();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(contact.lost(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(contact.lost().is_some_and(|why| why.contains("61s")));
    }
}
