//! The driver of a simulated process. Its calls stay pending until the history lets the provider answer
//! ([`crate::cloud::Cloud`]).

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, Waker},
};

use jiff::Timestamp;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{
    Capabilities, Code, CreatedVm, DeletedVm, Driver, DriverInfo, Findings, ListRequest, ListedVm, MachineRequest,
    OpContext, SameInstance, Status, VmIdentity, VolumeIdsRequest, async_trait, same_instance::by_last_segment,
};

use super::{PlayedClock, Stage};
use crate::cloud::Vm;
use controller_runtime::{
    clock::Clock,
    key::{ObjectKey, Target},
    lock,
};
use machine_controllers::machine::observation::{Answer, Call, CreationGuarantee};

/// The provider in the classes of the simulation.
pub const PROVIDER: &str = "simulated";

/// A pending driver call.
#[derive(Clone, Debug)]
pub struct PendingCall {
    /// The call.
    pub call: Call,
    /// The machine.
    pub machine: Target,
    /// The provider id of the VM, if the call names one.
    pub provider_id: String,
    /// The start of the call.
    pub began: Timestamp,
}

/// Identifies a driver call: the machine, and the number of earlier calls.
pub type CallId = (ObjectKey, u64);

struct Asked {
    call: PendingCall,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

/// The pending driver calls of a process. All clones share them.
#[derive(Clone, Default)]
pub struct UnderWay(Arc<Mutex<Calls>>);

#[derive(Default)]
struct Calls {
    made: u64,
    open: BTreeMap<CallId, Asked>,
}

impl UnderWay {
    /// The pending calls, ordered by machine.
    pub fn all(&self) -> Vec<(CallId, PendingCall)> {
        let is_open = |(_, asked): &(&CallId, &Asked)| asked.answer.is_none();
        self.lock().open.iter().filter(is_open).map(|(id, asked)| (id.clone(), asked.call.clone())).collect()
    }

    /// Answers a call. The task that made the call takes the answer when it is polled.
    pub fn answer(&self, id: &CallId, answer: Answer) {
        if let Some(asked) = self.lock().open.get_mut(id) {
            asked.answer = Some(answer);
            if let Some(waker) = asked.waker.take() {
                waker.wake();
            }
        }
    }

    async fn ask(&self, call: PendingCall) -> Option<Answer> {
        let id = {
            let mut calls = self.lock();
            calls.made += 1;
            let id = (call.machine.key.clone(), calls.made);
            calls.open.insert(id.clone(), Asked { call, answer: None, waker: None });
            id
        };
        let _forgotten = Forgotten(self, &id);
        poll_fn(|context| {
            let mut calls = self.lock();
            let Some(asked) = calls.open.get_mut(&id) else { return Poll::Ready(None) };
            let answer = asked.answer.take();
            if answer.is_none() {
                asked.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(answer)
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        lock(&self.0)
    }
}

/// Removes a call that has ended or was dropped.
struct Forgotten<'a>(&'a UnderWay, &'a CallId);

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.0.lock().open.remove(self.1);
    }
}

/// The driver of a simulated process.
pub struct PlayedDriver {
    info: DriverInfo,
    stage: Stage,
    under_way: UnderWay,
    clock: Arc<PlayedClock>,
}

impl PlayedDriver {
    /// A driver whose calls are kept in `under_way`.
    pub fn new(stage: Stage, under_way: UnderWay, clock: Arc<PlayedClock>, creation: CreationGuarantee) -> Self {
        let capabilities =
            Capabilities { create_is_idempotent: creation == CreationGuarantee::Idempotent, lists_creation_time: true };
        let info = DriverInfo { name: PROVIDER, providers: vec![PROVIDER.to_owned()], schema: None, capabilities };
        Self { info, stage, under_way, clock }
    }

    async fn ask(&self, call: Call, request: MachineRequest) -> Option<Answer> {
        let MachineRequest { machine, .. } = request;
        let provider_id = machine.spec.provider_id.clone();
        let began = self.clock.now();
        self.under_way.ask(PendingCall { call, machine: Target::of(&*machine), provider_id, began }).await
    }
}

/// The answer does not match the call: a bug in the simulation.
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
        self.stage.with(|lent| lent.checks.vm_is_ordered(&lent.api, &request, self.clock.now()));
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
        // A deletion for a machine that exists is about a VM that it can't use. The collector's machines have no UID.
        let meta = &request.machine.metadata;
        if meta.uid.is_some() {
            self.stage.with(|lent| lent.checks.vm_is_given_up(&lent.api, &request));
        }
        let is_stale = meta.uid.is_some() && meta.deletion_timestamp.is_none();
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
        let now = self.clock.now();
        let listed = |vm: &Vm| ListedVm {
            provider_id: vm.provider_id.clone(),
            machine_name: vm.owner.clone(),
            created: Some(vm.made),
        };
        self.stage.with(|lent| lent.cloud.shown(now).map(listed).collect()).map_or_else(mistaken, Ok)
    }

    /// The last segment of an id names the instance.
    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        by_last_segment(machine, node)
    }

    async fn get_volume_ids(&self, _: &OpContext, request: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(request.volumes.into_iter().filter_map(|volume| Some(volume.csi?.volume_handle)).collect())
    }
}
