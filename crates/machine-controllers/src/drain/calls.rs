//! What a drain has asked for and not heard of yet: evictions, deletions, names of volumes.
//!
//! Each call is a task of its own, so that no worker waits for one. Answers lie in the drain's inbox until its next step, and
//! wake whoever steps it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeSpec;

use tokio::sync::Semaphore;

use super::{act::Evictor, progress::PodAnswer, step::PodAction};
use controller_runtime::{gate::Gate, tasks::SharedTasks};
use machine_driver::{Code, Driver, OpContext, VolumeIdsRequest, answered};

/// Names of volumes that all drains of the process ask for at once.
const PARALLEL_NAMES: usize = 32;

/// What has come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The API server's answer about a pod.
    Pod(PodAction, PodAnswer),
    /// What the driver says of a PV.
    Volume(String, VolumeAnswer),
}

/// What a driver says of a PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAnswer {
    /// What the provider calls it; empty when it is not the provider's, or the driver can't tell (MC-221).
    Ids(Vec<String>),
    /// Nothing that counts: it was throttled, away or late, or could not be asked. To be asked again.
    Later,
}

/// What a failed `GetVolumeIDs` says of a volume.
enum NamingReaction {
    /// The driver can't name it: it is not waited for (MC-221).
    NotNamed,
    /// Nothing: the driver was throttled, away or late. It is asked again, and until then the volume may be the provider's.
    AskAgain,
}

/// What a failed `GetVolumeIDs` says of the volume that was asked about.
const fn after_failed_naming(code: Code) -> NamingReaction {
    match code {
        Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Canceled => NamingReaction::AskAgain,
        Code::OK
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated
        | Code::Uninitialized => NamingReaction::NotNamed,
    }
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
pub(super) fn remove((tasks, evictor): (&SharedTasks, &Arc<Evictor>), action: PodAction, inbox: &Inbox, wake: &Wake) {
    let (evictor, inbox, wake) = (Arc::clone(evictor), inbox.clone(), Arc::clone(wake));
    tasks.spawn(Box::pin(async move {
        let answer = evictor.remove(&action).await;
        inbox.put(News::Pod(action, answer));
        wake();
    }));
}

/// Asks drivers what providers call PVs, a few at a time: a large drain must not spend the provider's rate limit that
/// creations need.
pub(super) struct Namer {
    slots: Arc<Semaphore>,
    gate: Gate,
    tasks: SharedTasks,
    deadline: Duration,
}

impl Namer {
    /// Asks while this gate lets it, and bounds each call by this deadline, from when it is sent.
    pub(super) fn new(gate: Gate, tasks: SharedTasks, deadline: Duration) -> Self {
        Self { slots: Arc::new(Semaphore::new(PARALLEL_NAMES)), gate, tasks, deadline }
    }

    /// Asks the driver what the provider calls a PV.
    pub(super) fn ask(
        &self,
        driver: &Arc<dyn Driver>,
        (name, spec): (String, PersistentVolumeSpec),
        inbox: &Inbox,
        wake: &Wake,
    ) {
        let (driver, inbox, wake) = (Arc::clone(driver), inbox.clone(), Arc::clone(wake));
        let (slots, gate, deadline) = (Arc::clone(&self.slots), self.gate.clone(), self.deadline);
        self.tasks.spawn(Box::pin(async move {
            // The semaphore is never closed; without a slot the call would only be less bounded.
            let _slot = slots.acquire_owned().await.ok();
            let cx = OpContext::within(deadline);
            let call = driver.get_volume_ids(&cx, VolumeIdsRequest { volumes: vec![spec] });
            let answer = match gate.call(answered(deadline, call)).await {
                Err(error) => {
                    tracing::info!(volume = name, %error, "the driver is not asked for the name of a volume");
                    VolumeAnswer::Later
                }
                Ok(Ok(ids)) => VolumeAnswer::Ids(ids),
                Ok(Err(status)) => match after_failed_naming(status.code) {
                    NamingReaction::NotNamed => {
                        tracing::warn!(volume = name, %status, "volume is not waited for: the driver can't name it");
                        VolumeAnswer::Ids(Vec::new())
                    }
                    NamingReaction::AskAgain => {
                        tracing::info!(volume = name, %status, "the driver can't name the volume yet; it is asked again");
                        VolumeAnswer::Later
                    }
                },
            };
            inbox.put(News::Volume(name, answer));
            wake();
        }));
    }
}
