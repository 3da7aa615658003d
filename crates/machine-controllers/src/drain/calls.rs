//! The pending calls of a drain: evictions, deletions, names of volumes.
//!
//! Each call is a separate task, so that no worker waits for it. An answer wakes the machine, and is kept in the
//! drain's inbox until the next step.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::PersistentVolumeSpec;

use tokio::sync::Semaphore;

use super::{act::Evictor, progress::PodAnswer, step::PodAction};
use controller_runtime::{gate::Gate, lock, tasks::SharedTasks};
use machine_driver::{Code, Driver, OpContext, VolumeIdsRequest, answered};
use mcm_traces::{Key, OpenSpan, Outcome, Place, Value};

/// Maximum number of concurrent requests for names of volumes, over all drains of the process.
const PARALLEL_NAMES: usize = 32;

/// An answer to a call of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainAnswer {
    /// The API server's answer about a pod.
    Pod(PodAction, PodAnswer),
    /// The driver's answer about a PV.
    Volume(String, VolumeAnswer),
}

/// The driver's answer about a PV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeAnswer {
    /// The provider's ids of the volume. Empty if the volume does not belong to the provider, or if the driver can't
    /// name it (MC-221).
    Ids(Vec<String>),
    /// No answer: the driver was throttled, unavailable or late, or could not be called. It is called again.
    Later,
}

/// The reaction to a failed `GetVolumeIDs`.
enum NamingReaction {
    /// The driver can't name the volume, so the drain does not wait for it (MC-221).
    NotNamed,
    /// The driver was throttled, unavailable or late. It is called again; until then the volume may belong to the
    /// provider.
    AskAgain,
}

/// The reaction to a failed `GetVolumeIDs` with this code.
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

/// Holds answers until the next step. All clones share one inbox.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Mutex<Vec<DrainAnswer>>>);

impl Inbox {
    /// Takes all answers out.
    pub fn take(&self) -> Vec<DrainAnswer> {
        std::mem::take(&mut *lock(&self.0))
    }

    fn put(&self, news: DrainAnswer) {
        lock(&self.0).push(news);
    }
}

/// Wakes the machine whose drain gets an answer.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Starts the action of a step on a pod.
pub(super) fn remove((tasks, evictor): (&SharedTasks, &Arc<Evictor>), action: PodAction, inbox: &Inbox, wake: &Wake) {
    let (evictor, inbox, wake) = (Arc::clone(evictor), inbox.clone(), Arc::clone(wake));
    tasks.spawn(Box::pin(async move {
        let answer = evictor.remove(&action).await;
        inbox.put(DrainAnswer::Pod(action, answer));
        wake();
    }));
}

/// Asks drivers for the provider's names of PVs. The concurrency is limited, because a large drain must not use up the
/// provider's rate limit, which creations need.
pub(super) struct Namer {
    slots: Arc<Semaphore>,
    gate: Gate,
    tasks: SharedTasks,
    deadline: Duration,
}

impl Namer {
    /// A namer that makes calls only while this gate is open. `deadline` is the time limit of each call, counted from
    /// the start of the call.
    pub(super) fn new(gate: Gate, tasks: SharedTasks, deadline: Duration) -> Self {
        Self { slots: Arc::new(Semaphore::new(PARALLEL_NAMES)), gate, tasks, deadline }
    }

    /// Asks the driver for the provider's names of a PV.
    pub(super) fn ask(
        &self,
        driver: &Arc<dyn Driver>,
        (name, spec): (String, PersistentVolumeSpec),
        inbox: &Inbox,
        wake: &Wake,
        place: Place,
    ) {
        let (driver, inbox, wake) = (Arc::clone(driver), inbox.clone(), Arc::clone(wake));
        let (slots, gate, deadline) = (Arc::clone(&self.slots), self.gate.clone(), self.deadline);
        self.tasks.spawn(Box::pin(async move {
            // The semaphore is never closed. Even without a slot, the call would still be correct.
            let _slot = slots.acquire_owned().await.ok();
            let span = place.call("GetVolumeIDs");
            let cx = OpContext::within(deadline).traced(span.as_ref().map(OpenSpan::parent_of_others));
            let call = driver.get_volume_ids(&cx, VolumeIdsRequest { volumes: vec![spec] });
            let answered = gate.call(answered(deadline, call)).await;
            match (span, &answered) {
                (Some(span), Ok(Err(status))) => {
                    span.with(Key::Code, Value::text(status.code.as_str())).end(Outcome::Failed);
                }
                (Some(span), Ok(Ok(_))) => span.end(Outcome::Fine),
                (Some(_), Err(_)) | (None, _) => {}
            }
            let answer = match answered {
                Err(error) => {
                    tracing::info!(
                        kind = "PersistentVolume", name, %error,
                        "the driver is not asked for the name of a volume"
                    );
                    VolumeAnswer::Later
                }
                Ok(Ok(ids)) => VolumeAnswer::Ids(ids),
                Ok(Err(status)) => match after_failed_naming(status.code) {
                    NamingReaction::NotNamed => {
                        tracing::warn!(
                            kind = "PersistentVolume", name, error = %status,
                            "volume is not waited for: the driver can't name it"
                        );
                        VolumeAnswer::Ids(Vec::new())
                    }
                    NamingReaction::AskAgain => {
                        tracing::info!(
                            kind = "PersistentVolume", name, error = %status,
                            "the driver can't name the volume yet; it is asked again"
                        );
                        VolumeAnswer::Later
                    }
                },
            };
            inbox.put(DrainAnswer::Volume(name, answer));
            wake();
        }));
    }
}
