//! A watch that starts at its first use, so that a rarely used kind costs nothing before.

use std::{fmt::Debug, sync::Arc, time::Duration};

use kube::Resource;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Watches, Watching};
use crate::{error::ApiError, snapshot::Snapshot, store::Store};

/// A store whose watch starts at its first use. Cheap to clone.
pub struct Lazy<S> {
    store: Arc<Store<S>>,
    wanted: Arc<watch::Sender<bool>>,
}

impl<S> Clone for Lazy<S> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), wanted: Arc::clone(&self.wanted) }
    }
}

impl<S: Snapshot> Lazy<S> {
    /// A store whose watch has not started.
    pub fn new(store: Arc<Store<S>>) -> Self {
        Self { store, wanted: Arc::new(watch::Sender::new(false)) }
    }

    /// The store; empty until the watch has started.
    pub fn store(&self) -> &Arc<Store<S>> {
        &self.store
    }

    /// Starts the watch if it has not started. Returns whether its first list is complete.
    pub fn begin(&self) -> bool {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
        self.store.is_synced()
    }

    /// Starts the watch if it has not started, and waits for its first complete list.
    ///
    /// # Errors
    /// [`ApiError::TimedOut`] when the list is not complete in time; the watch continues.
    pub async fn ensure_started(&self, within: Duration) -> Result<&Arc<Store<S>>, ApiError> {
        self.begin();
        tokio::time::timeout(within, self.store.wait_synced()).await.map_err(|_| ApiError::TimedOut(within))?;
        Ok(&self.store)
    }

    /// Waits for the first use of the store, then keeps it equal to the API server until `shutdown`. The supervisor should own the
    /// future.
    pub async fn keep<W>(
        self,
        watches: Watches,
        kind: &'static str,
        client: kube::Client,
        watching: Watching<W, S::Object>,
        shutdown: CancellationToken,
    ) where
        W: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as `self`, so waiting can't fail.
        if shutdown.run_until_cancelled(wanted.wait_for(|wanted| *wanted)).await.is_none() {
            return;
        }
        watches.keep(kind, client, watching, Arc::clone(&self.store), shutdown).await;
    }
}
