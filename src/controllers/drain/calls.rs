//! What a drain has asked for and not heard of yet: evictions, deletions, names of volumes.
//!
//! Each call is a task of its own, so that no worker waits for one. Answers lie in the drain's inbox until its next step, and
//! wake whoever steps it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeSpec;

use super::{act::Evictor, progress::PodAnswer, step::PodAction};
use crate::driver::{Driver, OpContext, VolumeIdsRequest};

/// What has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The API server's answer about a pod.
    Pod(PodAction, PodAnswer),
    /// What the provider calls a PV; empty when the driver can't tell (MC-221).
    Volume(String, Vec<String>),
}

/// Where answers lie until the next step. Clones are the same inbox.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Mutex<Vec<News>>>);

impl Inbox {
    /// Takes out what has come.
    pub fn take(&self) -> Vec<News> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, news: News) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(news);
    }
}

/// Wakes whoever steps the drain.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Sends what a step wants done to a pod.
pub(super) fn remove(evictor: &Arc<Evictor>, action: PodAction, inbox: &Inbox, wake: &Wake) {
    let (evictor, inbox, wake) = (Arc::clone(evictor), inbox.clone(), Arc::clone(wake));
    tokio::spawn(async move {
        let answer = evictor.remove(&action).await;
        inbox.put(News::Pod(action, answer));
        wake();
    });
}

/// Asks the driver what the provider calls a PV.
pub(super) fn name_volume(
    driver: &Arc<dyn Driver>,
    (name, spec): (String, PersistentVolumeSpec),
    deadline: Duration,
    inbox: &Inbox,
    wake: &Wake,
) {
    let (driver, inbox, wake) = (Arc::clone(driver), inbox.clone(), Arc::clone(wake));
    tokio::spawn(async move {
        let cx = OpContext::within(deadline);
        let asked = driver.get_volume_ids(&cx, VolumeIdsRequest { volumes: vec![spec] });
        let ids = match tokio::time::timeout(deadline, asked).await {
            Ok(Ok(ids)) => ids,
            Ok(Err(status)) => {
                tracing::warn!(volume = name, %status, "volume is not waited for: the driver can't name it");
                Vec::new()
            }
            Err(_) => {
                tracing::warn!(volume = name, ?deadline, "volume is not waited for: the driver did not answer");
                Vec::new()
            }
        };
        inbox.put(News::Volume(name, ids));
        wake();
    });
}
