//! A small cloud for the tests of the whole controller: a driver that can fail, crash, be slow and finish late.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::time::Instant;

use super::cluster::{NODES, lock};
use crate::testing_api::TestApi;
use machine_api::v1alpha1::{Machine, MachineClass};
use machine_driver::{
    Code, CreatedVm, DeletedVm, Driver, DriverInfo, ListRequest, ListedVm, MachineRequest, OpContext, SameInstance,
    Status, VmIdentity, VolumeIdsRequest,
    same_instance::{by_last_segment, last_segment},
};

/// The VMs of the cloud by machine name.
#[derive(Default)]
pub struct Vms {
    pub by_name: BTreeMap<String, VmIdentity>,
    pub creates: usize,
    pub deletes: usize,
    /// VMs that existed and are gone.
    pub ended: usize,
    /// VMs that were made while another VM of that name existed.
    pub doubles: usize,
    /// Deletions of VMs whose machine was not being deleted.
    pub wrong_deletes: usize,
    /// VMs that are still being made although their call has timed out.
    late: BTreeSet<String>,
    /// When VMs were made, by machine name.
    born: BTreeMap<String, Instant>,
}

/// The driver over the small cloud.
pub struct SmallCloud {
    pub info: DriverInfo,
    pub(crate) api: TestApi,
    pub vms: Arc<Mutex<Vms>>,
    pub faults: Mutex<Option<ChaCha8Rng>>,
    /// Every call takes this long.
    pub pause: Duration,
    /// The mishap of the next creation.
    pub mishap: Mutex<Option<Mishap>>,
    /// A VM's Node registers this long after the VM was made.
    pub joins_after: Mutex<Duration>,
    /// Calls that have begun.
    pub calls: Mutex<usize>,
    /// A new VM is not found by its machine's name for this long.
    pub lag: Mutex<Duration>,
}

/// Something that happens once, to a creation.
#[derive(Clone, Copy, Debug)]
pub enum Mishap {
    /// The driver crashes.
    Crash,
    /// The call times out, and the VM exists this much later.
    Late(Duration),
    /// The call takes this long and fails: the provider has no more VMs.
    Full(Duration),
    /// The call takes this long and succeeds; no VM is made when the caller drops it.
    Slow(Duration),
    /// The call takes this long and succeeds, also when its caller is gone.
    Unattended(Duration),
}

impl SmallCloud {
    /// Whether the VM of this machine can be found by that name yet.
    fn shows(&self, name: &str) -> bool {
        lock(&self.vms).born.get(name).is_none_or(|born| born.elapsed() >= *lock(&self.lag))
    }

    /// Takes some time, and may fail before anything happened.
    async fn work(&self) -> Result<Reply, Status> {
        let (pause, luck) = match lock(&self.faults).as_mut() {
            Some(random) => (random.random_range(0..3000), random.random_range(0..10)),
            None => (0, 9),
        };
        *lock(&self.calls) += 1;
        tokio::time::sleep(self.pause + Duration::from_millis(pause)).await;
        match luck {
            0 => Err(Status::new(Code::Unavailable, "busy")),
            1 => Err(Status::new(Code::ResourceExhausted, "full")),
            2 => Ok(Reply::Lost),
            _ => Ok(Reply::Arrives),
        }
    }
}

/// The name of a machine's VM: the end of its provider ID, or else its own name.
fn named(machine: &Machine) -> String {
    let by_id = last_segment(&machine.spec.provider_id).map(str::to_owned);
    by_id.or_else(|| machine.metadata.name.clone()).unwrap_or_default()
}

/// Makes a VM, and its Node after a while.
fn make(api: &TestApi, vms: &Arc<Mutex<Vms>>, name: &str, joins_after: Duration) -> VmIdentity {
    let identity =
        VmIdentity { provider_id: format!("small:///{name}"), node_name: name.to_owned(), addresses: Vec::new() };
    {
        let mut vms = lock(vms);
        vms.creates += 1;
        vms.born.insert(name.to_owned(), Instant::now());
        vms.doubles += usize::from(vms.by_name.insert(name.to_owned(), identity.clone()).is_some());
    }
    let path = format!("{NODES}{name}");
    let node = json!({
        "metadata": { "name": name }, "spec": { "providerID": format!("small://zone-a/{name}") },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    if joins_after.is_zero() {
        join(api, &path, node);
    } else {
        let (api, vms, name) = (api.clone(), Arc::clone(vms), name.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(joins_after).await;
            // Only an existing VM has a kubelet.
            if lock(&vms).by_name.contains_key(&name) {
                join(&api, &path, node);
            }
        });
    }
    identity
}

fn join(api: &TestApi, path: &str, node: serde_json::Value) {
    if api.get(path).is_none() {
        api.put(path, node);
    }
}

enum Reply {
    Arrives,
    Lost,
}

impl Reply {
    fn carry<T>(&self, answer: T) -> Result<T, Status> {
        match self {
            Self::Arrives => Ok(answer),
            Self::Lost => Err(Status::new(Code::DeadlineExceeded, "the reply got lost")),
        }
    }
}

#[async_trait]
impl Driver for SmallCloud {
    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn validate(&self, _class: &MachineClass, _found: &mut kube_values::field::Findings) {}

    fn same_instance(&self, machine: &str, node: &str) -> SameInstance {
        by_last_segment(machine, node)
    }

    async fn create_machine(&self, _: &OpContext, request: MachineRequest) -> Result<CreatedVm, Status> {
        let reply = self.work().await?;
        let name = request.machine.metadata.name.clone().unwrap_or_default();
        let mishap = lock(&self.mishap).take();
        match mishap {
            Some(Mishap::Crash) => panic!("a test's driver crashes"),
            Some(Mishap::Late(delay)) => {
                lock(&self.vms).late.insert(name.clone());
                let (api, vms, joins_after) = (self.api.clone(), Arc::clone(&self.vms), *lock(&self.joins_after));
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    lock(&vms).late.remove(&name);
                    make(&api, &vms, &name, joins_after);
                });
                return Err(Status::new(Code::DeadlineExceeded, "no answer in time"));
            }
            Some(Mishap::Full(time)) => {
                tokio::time::sleep(time).await;
                return Err(Status::new(Code::ResourceExhausted, "no machine type of this class is left"));
            }
            Some(Mishap::Slow(time)) => tokio::time::sleep(time).await,
            Some(Mishap::Unattended(time)) => {
                let (api, vms, joins_after) = (self.api.clone(), Arc::clone(&self.vms), *lock(&self.joins_after));
                let made = tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    make(&api, &vms, &name, joins_after)
                });
                let vm = made.await.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
                return reply.carry(CreatedVm { vm, last_known_state: None });
            }
            None => {}
        }
        if self.info.capabilities.create_is_idempotent && lock(&self.vms).late.contains(&name) {
            // The contract: one VM per machine name, however often it is asked for.
            return Err(Status::new(Code::Aborted, "a creation of this name is under way"));
        }
        let identity = make(&self.api, &self.vms, &name, *lock(&self.joins_after));
        reply.carry(CreatedVm { vm: identity, last_known_state: None })
    }

    async fn delete_machine(&self, _: &OpContext, request: MachineRequest) -> Result<DeletedVm, Status> {
        let reply = self.work().await?;
        let name = named(&request.machine);
        let is_found = !request.machine.spec.provider_id.is_empty() || self.shows(&name);
        let mut vms = lock(&self.vms);
        vms.deletes += 1;
        vms.wrong_deletes += usize::from(request.machine.metadata.deletion_timestamp.is_none());
        if !is_found {
            return Err(Status::new(Code::NotFound, "no VM of this name is shown"));
        }
        if vms.by_name.remove(&name).is_none() {
            return Err(Status::new(Code::NotFound, "no VM"));
        }
        vms.ended += 1;
        reply.carry(DeletedVm::default())
    }

    async fn get_machine_status(&self, _: &OpContext, request: MachineRequest) -> Result<VmIdentity, Status> {
        let reply = self.work().await?;
        let name = named(&request.machine);
        let is_found = !request.machine.spec.provider_id.is_empty() || self.shows(&name);
        let found = lock(&self.vms).by_name.get(&name).filter(|_| is_found).cloned();
        reply.carry(found.ok_or_else(|| Status::new(Code::NotFound, "no VM"))?)
    }

    async fn list_machines(&self, _: &OpContext, _: ListRequest) -> Result<Vec<ListedVm>, Status> {
        Ok(Vec::new())
    }

    async fn get_volume_ids(&self, _: &OpContext, _: VolumeIdsRequest) -> Result<Vec<String>, Status> {
        Ok(Vec::new())
    }
}
