//! The driver of a simulated process. What it is asked lies here until the history lets the provider answer
//! ([`crate::cloud::Cloud`]).

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use jiff::Timestamp;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, Findings, ListRequest, ListedVm, MachineRequest,
    OpContext, SameInstance, Status, VmIdentity, VolumeIdsRequest, async_trait, same_instance::by_last_segment,
};

use super::PlayedClock;
use controller_runtime::{
    clock::Clock,
    key::{ObjectKey, Target},
};
use machine_controllers::machine::observation::{Answer, Call, CreationGuarantee};

/// What classes of the simulation name.
pub const PROVIDER: &str = "simulated";

/// A driver call under way.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// Which.
    pub call: Call,
    /// For this machine.
    pub machine: Target,
    /// Of the VM with this identity, if it is about one.
    pub provider_id: String,
    /// When it began.
    pub began: Timestamp,
}

struct Asked {
    call: PendingCall,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

/// The driver calls of a process that have no answer yet. Clones are the same calls.
#[derive(Clone, Default)]
pub struct UnderWay(Arc<Mutex<BTreeMap<ObjectKey, Asked>>>);

impl UnderWay {
    /// The calls, in the order of their machines.
    pub fn all(&self) -> Vec<(ObjectKey, PendingCall)> {
        let is_open = |(_, asked): &(&ObjectKey, &Asked)| asked.answer.is_none();
        self.lock().iter().filter(is_open).map(|(key, asked)| (key.clone(), asked.call.clone())).collect()
    }

    /// The provider answers. The task that asked takes it when it is polled.
    pub fn answer(&self, key: &ObjectKey, answer: Answer) {
        if let Some(asked) = self.lock().get_mut(key) {
            asked.answer = Some(answer);
            if let Some(waker) = asked.waker.take() {
                waker.wake();
            }
        }
    }

    async fn ask(&self, call: PendingCall) -> Option<Answer> {
        let key = call.machine.key.clone();
        self.lock().insert(key.clone(), Asked { call, answer: None, waker: None });
        let _forgotten = Forgotten(self, &key);
        poll_fn(|context| {
            let mut all = self.lock();
            let Some(asked) = all.get_mut(&key) else { return Poll::Ready(None) };
            match asked.answer.take() {
                Some(answer) => Poll::Ready(Some(answer)),
                None => {
                    asked.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Asked>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets a call that has ended or was dropped.
struct Forgotten<'a>(&'a UnderWay, &'a ObjectKey);

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.0.lock().remove(self.1);
    }
}

/// The driver of a simulated process.
pub struct PlayedDriver {
    info: DriverInfo,
    under_way: UnderWay,
    clock: Arc<PlayedClock>,
}

impl PlayedDriver {
    /// One whose calls lie with `under_way`.
    pub fn new(under_way: UnderWay, clock: Arc<PlayedClock>, creation: CreationGuarantee) -> Self {
        let capabilities =
            Capabilities { create_is_idempotent: creation == CreationGuarantee::Idempotent, lists_creation_time: true };
        let info = DriverInfo { name: PROVIDER, providers: vec![PROVIDER.to_owned()], schema: None, capabilities };
        Self { info, under_way, clock }
    }

    async fn ask(&self, call: Call, request: MachineRequest) -> Option<Answer> {
        let MachineRequest { machine, .. } = request;
        let provider_id = machine.spec.provider_id.clone();
        let began = self.clock.now();
        self.under_way.ask(PendingCall { call, machine: Target::of(&*machine), provider_id, began }).await
    }
}

/// The answer to something else than what was asked: a mistake of the simulation.
fn mistaken<T>() -> Result<T, Status> {
    Err(Status::new(Code::Internal, "the simulation answers something else than it was asked"))
}

#[async_trait]
impl Driver for PlayedDriver {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn validate(&self, _: &MachineClass, _: &mut Findings) {}

    async fn create_machine(&self, _: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        match self.ask(Call::Create, request).await {
            Some(Answer::Created(answer)) => answer,
            _ => mistaken(),
        }
    }

    async fn initialize_machine(&self, _: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        match self.ask(Call::Initialize, request).await {
            Some(Answer::Initialized(answer)) => answer,
            _ => mistaken(),
        }
    }

    async fn delete_machine(&self, _: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        // A VM that a living machine is to lose is one that it can't use.
        let is_stale = request.machine.metadata.deletion_timestamp.is_none();
        match self.ask(if is_stale { Call::DeleteStale } else { Call::Delete }, request).await {
            Some(Answer::Deleted(answer) | Answer::DeletedStale(answer)) => answer,
            _ => mistaken(),
        }
    }

    async fn get_machine_status(&self, _: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        match self.ask(Call::Status, request).await {
            Some(Answer::Status(answer)) => answer,
            _ => mistaken(),
        }
    }

    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        // The collector is played.
        mistaken()
    }

    /// Ids end in what names the instance.
    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}
