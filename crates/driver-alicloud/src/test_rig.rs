//! A driver with a fake ECS, a class and a machine, and a way to ECS on which answers are lost or replaced.

#![allow(clippy::needless_pass_by_value, reason = "tests build the values they pass")]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, Client, HttpOptions, HttpTransport, Limits, NoAnswer, Transport,
    http::{HeaderMap, Request, StatusCode},
};
use fake_ecs::FakeEcs;
use kube_values::field::Findings;
use machine_driver::{
    CreatedVm, DeletedVm, Driver, ErrorCodes, ListRequest, ListedVm, Machine, MachineClass, MachineRequest, OpContext,
    SecretData, Status, VmIdentity, async_trait,
};
use serde_json::{Value, json};

use crate::{ALICLOUD, AlicloudDriver, AlicloudOptions, credentials::tests::secret, state::Kept};

pub const CLUSTER: &str = "kubernetes.io/cluster/shoot";
pub const ROLE: &str = "kubernetes.io/role/node";
/// The tags of the class.
pub const TAGS: [(&str, &str); 2] = [(CLUSTER, "1"), (ROLE, "1")];
/// The user data.
pub const USER_DATA: &str = "#!/bin/sh\necho a-secret-of-the-node";

/// A class that the fake can fulfil, with a change.
pub fn class(patch: Value) -> MachineClass {
    let mut spec = json!({
        "imageID": fake_ecs::IMAGE, "instanceType": fake_ecs::INSTANCE_TYPE, "region": fake_ecs::REGION, "zoneID": fake_ecs::ZONE,
        "securityGroupID": fake_ecs::SECURITY_GROUP, "vSwitchID": fake_ecs::V_SWITCH, "keyPairName": fake_ecs::KEY_PAIR,
        "systemDisk": {"category": "cloud_essd", "size": 50}, "tags": {CLUSTER: "1", ROLE: "1"},
    });
    json_patch::merge(&mut spec, &patch);
    MachineClass { provider: ALICLOUD.to_owned(), provider_spec: spec, ..MachineClass::default() }
}

/// What happens to a request on its way.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Its answer is lost.
    Lost,
    /// It does not arrive, and this is answered.
    Answered(u16, String),
}

/// A way on which the next requests of an action meet faults.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<VecDeque<(&'static str, Fault)>>>);

impl Faults {
    /// The next request of this action meets this fault.
    pub fn add(&self, action: &'static str, fault: Fault) {
        self.0.lock().unwrap().push_back((action, fault));
    }

    /// The next requests meet no faults.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    fn of(&self, action: &str) -> Option<Fault> {
        let mut faults = self.0.lock().unwrap();
        let position = faults.iter().position(|(of, _)| *of == action)?;
        faults.remove(position).map(|(_, fault)| fault)
    }
}

struct FaultyWay {
    http: HttpTransport,
    faults: Faults,
}

#[async_trait]
impl Transport for FaultyWay {
    async fn send(&self, request: Request<Bytes>) -> Result<Answer, NoAnswer> {
        let action = request.headers()["x-acs-action"].to_str().unwrap().to_owned();
        match self.faults.of(&action) {
            Some(Fault::Answered(status, body)) => {
                let status = StatusCode::from_u16(status).unwrap();
                Ok(Answer { status, headers: HeaderMap::new(), body: body.into() })
            }
            Some(Fault::Lost) => {
                self.http.send(request).await?;
                Err(NoAnswer::Lost("the answer is lost".to_owned()))
            }
            None => self.http.send(request).await,
        }
    }
}

/// A driver with its fake cloud, a machine and a change of the class.
pub struct Rig {
    pub ecs: FakeEcs,
    pub faults: Faults,
    pub driver: AlicloudDriver,
    pub patch: Value,
    pub machine: Machine,
    pub secret: SecretData,
}

impl Rig {
    pub async fn new() -> Self {
        Self::with_codes(ErrorCodes::Fine).await
    }

    pub async fn with_codes(codes: ErrorCodes) -> Self {
        let ecs = FakeEcs::start().await.unwrap();
        let faults = Faults::default();
        let way = FaultyWay { http: HttpTransport::new(HttpOptions::default()), faults: faults.clone() };
        let client = Client::new(way, Limits { rate: 1000.0, burst: 1000.0 });
        let driver = AlicloudDriver::through(client, AlicloudOptions { endpoint: Some(ecs.url().to_owned()), codes });
        let secret = credentials(fake_ecs::ACCESS_KEY_ID, fake_ecs::ACCESS_KEY_SECRET);
        let mut machine = Machine::default();
        machine.metadata.name = Some("m-1".to_owned());
        machine.metadata.uid = Some("uid-1".to_owned());
        Self { ecs, faults, driver, patch: json!({}), machine, secret }
    }

    pub fn with(mut self, patch: Value) -> Self {
        self.patch = patch;
        self
    }

    /// The machine has this provider id.
    pub fn set_id(&mut self, instance: &str) {
        self.machine.spec.provider_id = id(instance);
    }

    /// The controllers keep the state of a call.
    pub fn keep(&mut self, state: Option<&String>) {
        self.machine.status.last_known_state = state.cloned().unwrap_or_default();
    }

    /// The controllers keep the state of a call that a time ago has asked for an instance.
    pub fn keep_as_if_asked(&mut self, state: Option<&String>, ago: Duration) {
        let kept = Kept::of(state.unwrap()).unwrap();
        let asked = kept.asked.map(|asked| asked.checked_sub(jiff::SignedDuration::try_from(ago).unwrap()).unwrap());
        self.machine.status.last_known_state = Kept { asked, ..kept }.state();
    }

    /// The machine is being deleted.
    pub fn set_deleting(&mut self) {
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::now());
        self.machine.metadata.deletion_timestamp = Some(now);
    }

    pub fn request(&self) -> MachineRequest {
        MachineRequest {
            machine: Arc::new(self.machine.clone()),
            class: Arc::new(class(self.patch.clone())),
            secret: self.secret.clone(),
        }
    }

    pub fn of_class(&self) -> ListRequest {
        ListRequest { class: Arc::new(class(self.patch.clone())), secret: self.secret.clone() }
    }

    pub async fn create_within(&self, limit: Duration) -> Result<CreatedVm, Status> {
        self.driver.create_machine(&OpContext::within(limit), self.request()).await
    }

    pub async fn create(&self) -> Result<CreatedVm, Status> {
        self.create_within(Duration::from_secs(1200)).await
    }

    /// Creates the instance, and writes its id and the state to the machine. Returns the id of the instance.
    pub async fn created(&mut self) -> String {
        let created = self.create().await.unwrap();
        self.keep(created.last_known_state.as_ref());
        self.machine.spec.provider_id.clone_from(&created.vm.provider_id);
        let (_, id) = created.vm.provider_id.split_once('.').unwrap();
        id.to_owned()
    }

    pub async fn status(&self) -> Result<VmIdentity, Status> {
        self.driver.get_machine_status(&cx(), self.request()).await
    }

    pub async fn delete(&self) -> Result<DeletedVm, Status> {
        self.driver.delete_machine(&cx(), self.request()).await
    }

    pub async fn list(&self) -> Result<Vec<ListedVm>, Status> {
        self.driver.list_machines(&cx(), self.of_class()).await
    }

    pub async fn ask(&self) -> Result<Findings, Status> {
        self.driver.ask_about_class(&cx(), self.of_class()).await
    }

    /// The client tokens of all launch requests, in their order.
    pub fn tokens(&self) -> Vec<String> {
        let calls = self.ecs.requests().into_iter();
        let launches = calls.filter(|call| call.action == fake_ecs::Action::RunInstances);
        launches.map(|call| call.parameters["ClientToken"].clone()).collect()
    }
}

pub fn cx() -> OpContext {
    OpContext::within(Duration::from_secs(60))
}

/// A Secret with this access key.
pub fn credentials(id: &str, key: &str) -> SecretData {
    secret(&[("accessKeyID", id), ("accessKeySecret", key), ("userData", USER_DATA)])
}

/// The provider id of an instance in the region of the class.
pub fn id(instance: &str) -> String {
    format!("{}.{instance}", fake_ecs::REGION)
}
