//! The shared state of the driver, the kubelet, the timers and the admin API: the cloud with its lock, its clock and its storage.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use controller_runtime::{latch::Latch, lock};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    clock::Clock,
    cloud::{Cloud, NodeNotice, VmRef},
    latest::Latest,
    persistence::{Keeper, StateError},
};

/// How long a driver call waits after the start until the VMs are restored.
const REBUILD_TIMEOUT: Duration = Duration::from_secs(10);

/// One simulation.
#[derive(Debug)]
pub struct Shared {
    cloud: Mutex<Cloud>,
    /// The clock.
    pub clock: Clock,
    keeper: Keeper,
    deadline_moved: Notify,
    /// The notices for the kubelet, if there is one. The newest one of a VM is enough: `Show` shows the present state, `Gone` includes `Stop`.
    notices: Option<Latest<VmRef, NodeNotice>>,
    /// Whether the cloud knows its VMs. If not, it is restoring them from the Nodes of the target cluster.
    knows_its_vms: Latch,
}

impl Shared {
    /// Creates a simulation without a kubelet.
    pub fn new(cloud: Cloud, clock: Clock, keeper: Keeper) -> Self {
        Self {
            cloud: Mutex::new(cloud),
            clock,
            keeper,
            deadline_moved: Notify::new(),
            notices: None,
            knows_its_vms: Latch::opened_before(),
        }
    }

    /// Collects notices for a kubelet. Without stored state, the cloud knows its VMs only after the kubelet has read the Nodes.
    #[must_use]
    pub fn with_kubelet(self) -> Self {
        let knows_its_vms = if self.keeps() { Latch::opened_before() } else { Latch::default() };
        Self { notices: Some(Latest::new()), knows_its_vms, ..self }
    }

    fn lock(&self) -> MutexGuard<'_, Cloud> {
        // After a panic, a few VMs may be inconsistent. The loss of the whole cloud would be worse.
        lock(&self.cloud)
    }

    /// Calls a function with the cloud and the current time, and delivers the results.
    pub fn with<R>(&self, act: impl FnOnce(&mut Cloud, Timestamp) -> R) -> R {
        let mut cloud = self.lock();
        let before = cloud.next_deadline();
        let result = act(&mut cloud, self.clock.now());
        // Added under the lock, so that notices keep their order.
        for notice in cloud.take_notices() {
            if let Some(notices) = &self.notices {
                notices.put(notice.vm, notice);
            }
        }
        let after = cloud.next_deadline();
        drop(cloud);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.deadline_moved.notify_one();
        }
        result
    }

    /// Waits for the next notices for the kubelet. Safe to drop.
    pub async fn notices(&self) -> Vec<NodeNotice> {
        let Some(notices) = &self.notices else { return std::future::pending().await };
        let first = notices.next().await;
        std::iter::once(first).chain(std::iter::from_fn(|| notices.try_next())).collect()
    }

    /// Waits until all changes are stored.
    ///
    /// # Errors
    /// If the changes could not be written.
    pub async fn commit(&self) -> Result<(), StateError> {
        self.keeper.commit(|| self.lock()).await
    }

    /// Whether VMs are stored.
    pub const fn keeps(&self) -> bool {
        self.keeper.keeps()
    }

    /// Sets that the cloud knows its VMs.
    pub fn has_rebuilt(&self) {
        self.knows_its_vms.open();
    }

    /// Waits for some time until the cloud knows its VMs. Returns whether it does.
    pub async fn knows_its_vms(&self) -> bool {
        tokio::time::timeout(REBUILD_TIMEOUT, self.knows_its_vms.opened()).await.is_ok()
    }

    /// Waits by the clock of the simulation. Safe to drop.
    pub async fn sleep(&self, length: Duration) {
        if !length.is_zero() {
            self.clock.sleep_until(super::clock::later(self.clock.now(), length)).await;
        }
    }
}

/// Runs the steps that are due until the shutdown. All VMs share this task.
pub async fn run_timers(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        let next = shared.with(|cloud, now| {
            cloud.advance(now);
            cloud.next_deadline()
        });
        if let Err(error) = shared.commit().await {
            tracing::error!(%error, "the simulation's state is not kept");
        }
        let due = async {
            match next {
                Some(next) => shared.clock.sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = due => {}
            () = shared.deadline_moved.notified() => {}
        }
    }
}
