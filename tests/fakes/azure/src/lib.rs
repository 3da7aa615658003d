//! A small Azure Resource Manager in this process, for tests: VMs, network interfaces, disks, long-running operations, Resource Graph, the terms of
//! plans, and the token endpoint of Entra.
//!
//! ```text
//! let azure = FakeAzure::start().await?;
//! azure.fail(Method::CreateVm, &OperationError::zonal_allocation_failed(), 1);
//! // … a driver with the endpoint `azure.url()` and the credentials of this crate …
//! assert_eq!(azure.vms().len(), 1);
//! ```
//!
//! Every request and every answer is checked against the models of Microsoft's own clients (`model`). A violation fails the test in which the fake
//! lives: [`FakeAzure`] panics when it is dropped. How the service behaves is our reading of its documentation; README.md says what that means.
//!
//! Other faults than those here, such as lost replies, come from `crates/fault-proxy` in front of the fake.

#![forbid(unsafe_code)]

mod accounts;
mod catalogue;
mod cloud;
mod errors;
mod graph;
mod inventory;
mod kql;
mod model;
mod operations;
mod parts;
mod vms;
mod wire;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

pub use accounts::{CLIENT, CLIENT_SECRET, FEDERATED_TOKEN, SECOND_CLIENT_SECRET, SECOND_SECRET, SUBSCRIPTION, TENANT};
pub use catalogue::{
    AVAILABILITY_SET, CAPACITY_RESERVATION_GROUP, COMMUNITY_IMAGE, GALLERY_IMAGE_ID, IDENTITY, IMAGE_ID, LOCATION,
    OTHER_VM_SIZE, RESOURCE_GROUP, SCALE_SET, SHARED_IMAGE, SUBNET, UNIFORM_SCALE_SET, URN, URN_WITH_PLAN, VM_SIZE,
    VNET, VNET_RESOURCE_GROUP,
};
pub use errors::{OperationError, Refusal};
pub use inventory::subnet_id;
pub use model::Method;

use cloud::Cloud;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the beginning of an operation to its end.
    pub operation: Duration,
    /// What `Retry-After` asks for, in whole seconds.
    pub retry_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { operation: Duration::from_millis(20), retry_after: Duration::ZERO }
    }
}

/// A request to a method.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// The parameters in the path.
    pub parameters: BTreeMap<String, String>,
    /// The parameters in the query.
    pub query: BTreeMap<String, String>,
    /// The body, if it is JSON.
    pub body: Option<Value>,
    /// Some of the headers, by their names in lower case: conditions, the id of the request, and the caller's program.
    pub headers: BTreeMap<String, String>,
    /// The credential behind the caller's token: `secret`, [`SECOND_SECRET`] or `federated`. Empty if the authorization is not accepted.
    pub by: String,
}

impl Call {
    fn empty() -> Self {
        Self {
            method: Method::GetSubscription,
            path: String::new(),
            parameters: BTreeMap::new(),
            query: BTreeMap::new(),
            body: None,
            headers: BTreeMap::new(),
            by: String::new(),
        }
    }
}

/// What the connections share.
struct Shared {
    cloud: Mutex<Cloud>,
}

impl Shared {
    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        self.cloud.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fake. It ends when it is dropped.
pub struct FakeAzure {
    url: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl FakeAzure {
    /// A subscription without machines, on its own port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub async fn start() -> io::Result<Self> {
        Self::with(Timing::default()).await
    }

    /// A subscription without machines, in which things take as long as this.
    ///
    /// # Errors
    /// No port is available.
    pub async fn with(timing: Timing) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { cloud: Mutex::new(Cloud::new(timing)) });
        let serving = tokio::spawn(wire::serve(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, serving })
    }

    /// The URL before all paths, without a slash at the end: before the paths of ARM, and before `/TENANT/oauth2/v2.0/token` of Entra.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn cloud(&self) -> MutexGuard<'_, Cloud> {
        let mut cloud = self.shared.cloud();
        cloud.settle();
        cloud
    }

    /// Answers the next calls of a method with a refusal. Nothing else happens in them.
    pub fn refuse(&self, method: Method, refusal: Refusal, times: usize) {
        self.cloud().refuse(method, refusal, times);
    }

    /// Lets the next operations of a method end with this error.
    pub fn fail(&self, method: Method, error: &OperationError, times: usize) {
        self.cloud().fail(method, error.clone(), times);
    }

    /// Changes how long things take from now on.
    pub fn set_timing(&self, timing: Timing) {
        self.cloud().timing = timing;
    }

    /// No operation ends from now on.
    pub fn hold_operations(&self) {
        self.cloud().hold();
    }

    /// Operations end again.
    pub fn release_operations(&self) {
        self.cloud().release();
    }

    /// Ends all running operations at once.
    pub fn finish_operations(&self) {
        self.cloud().finish_all();
    }

    /// Ends all access tokens.
    pub fn revoke_tokens(&self) {
        self.cloud().tokens.revoke();
    }

    /// From now on Resource Graph shows the resources as they were this number of queries ago.
    pub fn set_graph_lag(&self, queries: usize) {
        self.cloud().graph.lag = queries;
    }

    /// Removes [`RESOURCE_GROUP`] with everything in it.
    pub fn delete_resource_group(&self) {
        self.cloud().delete_group();
    }

    fn put(&self, method: Method, body: &Value) {
        let mut body = body.clone();
        let name = body["name"].take().as_str().expect("the body has a name").to_owned();
        body.as_object_mut().map(|body| body.remove("name"));
        let wrong = model::check_request(method, "9999-12-31", Some(&body));
        assert!(wrong.is_empty(), "no body of Azure: {}", wrong.join("; "));
        self.cloud().put(method, &name, &body);
    }

    /// Creates a VM in [`RESOURCE_GROUP`], as another user. The body is the body of a `PUT`, with a `name`.
    ///
    /// # Panics
    /// If the body is wrong, or the subscription refuses it.
    pub fn put_vm(&self, body: &Value) {
        self.put(Method::CreateVm, body);
    }

    /// Creates a network interface in [`RESOURCE_GROUP`], as another user.
    ///
    /// # Panics
    /// If the body is wrong, or the subscription refuses it.
    pub fn put_nic(&self, body: &Value) {
        self.put(Method::CreateNic, body);
    }

    /// Creates a disk in [`RESOURCE_GROUP`], as another user.
    ///
    /// # Panics
    /// If the body is wrong, or the subscription refuses it.
    pub fn put_disk(&self, body: &Value) {
        self.put(Method::CreateDisk, body);
    }

    /// Changes a VM behind the driver's back.
    ///
    /// # Panics
    /// If there is no VM with this name.
    pub fn change_vm(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut cloud = self.cloud();
        let mark = cloud::etag(cloud.next_number());
        let found = cloud.inventory.vms.values_mut().find(|vm| vm.value["name"] == name);
        let vm = &mut found.unwrap_or_else(|| panic!("there is no VM {name}")).value;
        change(vm);
        vm["etag"] = mark;
    }

    /// Changes a network interface behind the driver's back.
    ///
    /// # Panics
    /// If there is no network interface with this name.
    pub fn change_nic(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut cloud = self.cloud();
        let found = cloud.inventory.nics.values_mut().find(|nic| nic["name"] == name);
        change(found.unwrap_or_else(|| panic!("there is no network interface {name}")));
    }

    /// Changes a disk behind the driver's back.
    ///
    /// # Panics
    /// If there is no disk with this name.
    pub fn change_disk(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut cloud = self.cloud();
        let found = cloud.inventory.disks.values_mut().find(|disk| disk["name"] == name);
        change(found.unwrap_or_else(|| panic!("there is no disk {name}")));
    }

    /// Stops a VM, as an eviction with the policy `Deallocate` does.
    ///
    /// # Panics
    /// If there is no VM with this name.
    pub fn stop_vm(&self, name: &str) {
        let stopped = json!({"statuses": [{"code": "PowerState/deallocated"}]});
        self.change_vm(name, |vm| vm["properties"]["instanceView"] = stopped);
    }

    /// The VMs of all resource groups.
    pub fn vms(&self) -> Vec<Value> {
        self.cloud().inventory.vms.values().map(|vm| vm.value.clone()).collect()
    }

    /// The custom data of a VM, which no answer shows, in base64.
    pub fn custom_data(&self, name: &str) -> Option<String> {
        let cloud = self.cloud();
        let found = cloud.inventory.vms.values().find(|vm| vm.value["name"] == name);
        found.map(|vm| vm.hidden.custom_data.clone())
    }

    /// The network interfaces of all resource groups.
    pub fn nics(&self) -> Vec<Value> {
        self.cloud().inventory.nics.values().cloned().collect()
    }

    /// The disks of all resource groups.
    pub fn disks(&self) -> Vec<Value> {
        self.cloud().inventory.disks.values().cloned().collect()
    }

    /// The terms of the plan of [`URN_WITH_PLAN`].
    pub fn agreement(&self) -> Value {
        self.cloud().inventory.terms.clone()
    }

    /// All operations, in their order.
    pub fn operations(&self) -> Vec<Value> {
        self.cloud().operations()
    }

    /// The names of all VMs that have ever been created, one for each creation, failed ones included.
    pub fn created(&self) -> Vec<String> {
        self.cloud().created.clone()
    }

    /// All calls of methods, in their order. Refused calls are included.
    pub fn requests(&self) -> Vec<Call> {
        self.cloud().calls.clone()
    }

    /// The number of calls of a method.
    pub fn count(&self, method: Method) -> usize {
        self.cloud().calls.iter().filter(|call| call.method == method).count()
    }

    /// The violations of the models so far. The fake forgets them.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.cloud().violations)
    }
}

impl Drop for FakeAzure {
    fn drop(&mut self) {
        self.serving.abort();
        let violations = self.take_violations();
        // A test that fails already keeps its own message.
        let fine = violations.is_empty() || std::thread::panicking();
        assert!(fine, "requests or answers that Microsoft's clients do not know:\n{}", violations.join("\n"));
    }
}

#[cfg(test)]
mod tests;
