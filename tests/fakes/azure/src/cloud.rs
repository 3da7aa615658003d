//! The state of the subscription, and what each method does to it. All of it is synchronous.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    Call, Timing,
    accounts::{SUBSCRIPTION, Tokens},
    catalogue::{self, RESOURCE_GROUP, VNET_RESOURCE_GROUP},
    errors::{OperationError, Refusal},
    graph::Graph,
    inventory::{DISK, Inventory, NIC, VM, text},
    model::Method,
    operations::{Key, Links, Operation},
    parts,
    vms::{self, Place},
};

/// A successful answer.
#[derive(Clone, Debug)]
pub struct Done {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Value>,
}

impl Done {
    pub fn ok(body: Value) -> Self {
        Self { status: 200, headers: Vec::new(), body: Some(body) }
    }

    fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: None }
    }
}

pub type Answer = Result<Done, Refusal>;

/// A fault that waits for its calls.
struct Fault {
    method: Method,
    what: FaultKind,
    left: usize,
}

enum FaultKind {
    Refuse(Refusal),
    Fail(OperationError),
}

/// The subscription.
pub struct Cloud {
    pub timing: Timing,
    pub tokens: Tokens,
    pub calls: Vec<Call>,
    pub violations: Vec<String>,
    /// The names of all VMs that have been created, one for each creation.
    pub created: Vec<String>,
    pub graph: Graph,
    pub inventory: Inventory,
    held: bool,
    groups: BTreeSet<String>,
    operations: Vec<Operation>,
    faults: Vec<Fault>,
    /// The last number that was used in an id.
    number: u64,
}

impl Cloud {
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            tokens: Tokens::default(),
            calls: Vec::new(),
            violations: Vec::new(),
            created: Vec::new(),
            graph: Graph::default(),
            inventory: Inventory { terms: catalogue::terms(), ..Inventory::default() },
            held: false,
            groups: [RESOURCE_GROUP, VNET_RESOURCE_GROUP].map(str::to_owned).into(),
            operations: Vec::new(),
            faults: Vec::new(),
            number: 0,
        }
    }

    pub fn refuse(&mut self, method: Method, refusal: Refusal, times: usize) {
        self.faults.push(Fault { method, what: FaultKind::Refuse(refusal), left: times });
    }

    /// The refusal that waits for a call of this method. It is used up.
    pub fn next_refusal(&mut self, method: Method) -> Option<Refusal> {
        self.faults.iter_mut().find_map(|fault| match &fault.what {
            FaultKind::Refuse(refusal) if fault.left > 0 && fault.method == method => {
                fault.left -= 1;
                Some(refusal.clone())
            }
            _ => None,
        })
    }

    pub fn fail(&mut self, method: Method, error: OperationError, times: usize) {
        self.faults.push(Fault { method, what: FaultKind::Fail(error), left: times });
    }

    fn next_failure(&mut self, method: Method) -> Option<OperationError> {
        self.faults.iter_mut().find_map(|fault| match &fault.what {
            FaultKind::Fail(error) if fault.left > 0 && fault.method == method => {
                fault.left -= 1;
                Some(error.clone())
            }
            _ => None,
        })
    }

    pub fn hold(&mut self) {
        self.settle();
        self.held = true;
    }

    pub fn release(&mut self) {
        self.held = false;
    }

    pub fn delete_group(&mut self) {
        self.groups.remove(RESOURCE_GROUP);
        let of_group = |key: &Key| key.0 == RESOURCE_GROUP;
        self.inventory.vms.retain(|key, _| !of_group(key));
        self.inventory.nics.retain(|key, _| !of_group(key));
        self.inventory.disks.retain(|key, _| !of_group(key));
    }

    pub fn operations(&mut self) -> Vec<Value> {
        self.settle();
        self.operations.iter().map(Operation::value).collect()
    }

    /// The latest number for an id.
    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Ends the operations whose time is over.
    pub fn settle(&mut self) {
        if self.held {
            return;
        }
        let now = Instant::now();
        let mut due: Vec<_> = (0..self.operations.len()).filter(|index| self.operations[*index].is_due(now)).collect();
        due.sort_by_key(|index| self.operations[*index].ends);
        for index in due {
            self.finish(index);
        }
    }

    /// Ends all operations at once.
    pub fn finish_all(&mut self) {
        (0..self.operations.len()).for_each(|index| self.finish(index));
    }

    fn finish(&mut self, index: usize) {
        let operation = &mut self.operations[index];
        if !operation.is_running() {
            return;
        }
        operation.end();
        let (method, key, failed) = (operation.method, operation.target.clone(), operation.error.is_some());
        let failure = operation.error.as_ref().map(|error| error.value().clone());
        let state = json!(if failed { "Failed" } else { "Succeeded" });
        match method {
            Method::DeleteVm if !failed => self.inventory.remove_vm(&key),
            Method::DeleteNic if !failed => drop(self.inventory.nics.remove(&key)),
            Method::DeleteDisk if !failed => drop(self.inventory.disks.remove(&key)),
            Method::CreateVm | Method::UpdateVm | Method::DeleteVm => {
                if let Some(vm) = self.inventory.vms.get_mut(&key) {
                    vm.value["properties"]["provisioningState"] = state;
                    vm.failure = failure;
                }
            }
            Method::CreateNic | Method::DeleteNic => {
                if let Some(nic) = self.inventory.nics.get_mut(&key) {
                    parts::set_nic_state(nic, &state);
                }
            }
            _ => {
                if let Some(disk) = self.inventory.disks.get_mut(&key) {
                    disk["properties"]["provisioningState"] = state;
                }
            }
        }
    }

    /// Begins an operation.
    fn begin(&mut self, method: Method, key: &Key, links: Links, version: &str, error: Option<OperationError>) {
        let number = self.next_number();
        let ends = Instant::now() + self.timing.operation;
        let mut operation = Operation::new(number, method, key.clone(), links, version, ends);
        operation.error = error;
        self.operations.push(operation);
    }

    /// An accepted request with the headers of the last operation.
    fn accepted(&self, status: u16, body: Option<Value>, base: &str) -> Done {
        let mut headers = self.operations.last().map(|last| last.headers(base)).unwrap_or_default();
        headers.push(self.pause());
        Done { status, headers, body }
    }

    /// How long a caller waits before it asks again.
    fn pause(&self) -> (&'static str, String) {
        ("retry-after", self.timing.retry_after.as_secs().to_string())
    }

    /// Does what a call asks for. The caller has been checked. `base` is scheme and host of the request.
    pub fn answer(&mut self, call: &Call, base: &str) -> Answer {
        self.settle();
        let method = call.method;
        if method.is_poll() {
            return self.poll(call, base);
        }
        if method == Method::QueryGraph {
            let rows = self.inventory.rows();
            return self.graph.answer(call.body.as_ref().unwrap_or(&Value::Null), rows).map(Done::ok);
        }
        let parameter = |name: &str| call.parameters.get(name).map(String::as_str).unwrap_or_default();
        let subscription = parameter("subscriptionId");
        if subscription != SUBSCRIPTION {
            let message = format!("The subscription '{subscription}' could not be found.");
            return Err(Refusal::new(404, "SubscriptionNotFound", &message));
        }
        let group = parameter("resourceGroupName");
        let exists = self.groups.contains(&group.to_ascii_lowercase());
        if method == Method::CheckResourceGroup {
            return Ok(Done::empty(if exists { 204 } else { 404 }));
        }
        if !group.is_empty() && !exists {
            return Err(Refusal::no_group(group));
        }
        let names = ["vmName", "networkInterfaceName", "diskName"].map(parameter);
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let request = Request { call, group, name, key: (group.to_ascii_lowercase(), name.to_ascii_lowercase()), base };
        match method {
            Method::GetVm | Method::GetInstanceView => self.get_vm(&request),
            Method::CreateVm => self.create_vm(&request),
            Method::UpdateVm => self.update_vm(&request),
            Method::DeleteVm => Ok(self.delete_vm(&request)),
            Method::ListVms => {
                let vms = self.inventory.vms.iter().filter(|(key, _)| key.0 == request.key.0);
                Ok(listed(vms.map(|(_, vm)| shown(&vm.value))))
            }
            Method::GetNic => {
                let nic = self.inventory.nics.get(&request.key);
                nic.cloned().map(Done::ok).ok_or_else(|| Refusal::not_found(NIC, name, group))
            }
            Method::CreateNic => self.create_nic(&request),
            Method::DeleteNic => self.delete_nic(&request),
            Method::ListNics => {
                let nics = self.inventory.nics.iter().filter(|(key, _)| key.0 == request.key.0);
                Ok(listed(nics.map(|(_, nic)| nic.clone())))
            }
            Method::GetDisk => {
                let disk = self.inventory.disks.get(&request.key);
                disk.cloned().map(Done::ok).ok_or_else(|| Refusal::not_found(DISK, name, group))
            }
            Method::CreateDisk => self.create_disk(&request),
            Method::DeleteDisk => self.delete_disk(&request),
            Method::ListDisks => {
                let disks = self.inventory.disks.iter().filter(|(key, _)| key.0 == request.key.0);
                Ok(listed(disks.map(|(_, disk)| disk.clone())))
            }
            Method::GetAgreement | Method::AcceptAgreement => self.agreement(call),
            _ => catalogue::read(method, &call.parameters).map(Done::ok),
        }
    }

    fn poll(&self, call: &Call, base: &str) -> Answer {
        let id = call.parameters.get("operation").map(String::as_str).unwrap_or_default();
        let Some(operation) = self.operations.iter().find(|operation| operation.id == id) else {
            return Err(Refusal::new(404, "NotFound", &format!("The entity {id} was not found.")));
        };
        let by_location = call.method == Method::GetNetworkResult || call.query.contains_key("monitor");
        let mut headers = Vec::new();
        if operation.is_running() {
            headers = operation.headers(base);
            headers.push(self.pause());
        }
        if !by_location {
            return Ok(Done { status: 200, headers, body: Some(operation.value()) });
        }
        match (&operation.error, operation.is_running()) {
            (_, true) => Ok(Done { status: 202, headers, body: None }),
            (Some(error), false) => Err(error.refusal()),
            (None, false) => {
                let found = match operation.method {
                    Method::CreateNic => self.inventory.nics.get(&operation.target).cloned(),
                    Method::CreateDisk => self.inventory.disks.get(&operation.target).cloned(),
                    _ => None,
                };
                Ok(found.map_or_else(|| Done::empty(204), Done::ok))
            }
        }
    }

    fn agreement(&mut self, call: &Call) -> Answer {
        let plan = catalogue::plan();
        let parameter = |name: &str| call.parameters.get(name).map(String::as_str).unwrap_or_default();
        let same = |name: &str, field: &str| parameter(name).eq_ignore_ascii_case(text(&plan, field));
        if !same("publisherId", "publisher") || !same("offerId", "product") || !same("planId", "name") {
            let message = format!(
                "Unable to find legal terms for the plan '{}' of this publisher and offer.",
                parameter("planId")
            );
            return Err(Refusal::new(404, "BadRequest", &message));
        }
        if let Some(body) = &call.body {
            if body["properties"]["signature"] != self.inventory.terms["properties"]["signature"] {
                return Err(Refusal::new(400, "BadRequest", "The signature of the terms is not the current one."));
            }
            self.inventory.terms["properties"]["accepted"] = body["properties"]["accepted"].clone();
        }
        Ok(Done::ok(self.inventory.terms.clone()))
    }

    fn get_vm(&self, request: &Request<'_>) -> Answer {
        let found = self.inventory.vms.get(&request.key);
        let vm = found.ok_or_else(|| Refusal::not_found(VM, request.name, request.group))?;
        let view = vms::instance_view(vm);
        if request.call.method == Method::GetInstanceView {
            return Ok(Done::ok(view));
        }
        let mut shown = shown(&vm.value);
        if request.call.query.get("$expand").is_some_and(|expand| expand.eq_ignore_ascii_case("instanceView")) {
            shown["properties"]["instanceView"] = view;
        }
        Ok(Done::ok(shown))
    }

    fn create_vm(&mut self, request: &Request<'_>) -> Answer {
        let body = request.body();
        let earlier = self.inventory.vms.get(&request.key);
        let precondition = request.call.headers.get("if-none-match").is_some_and(|value| value == "*");
        if earlier.is_some() && precondition {
            return Err(precondition_failed());
        }
        if earlier.is_some_and(|vm| vm.value["properties"]["provisioningState"] == "Deleting") {
            return Err(marked_for_deletion("Create/Update VM", request.name));
        }
        let number = self.number + 1;
        let created = jiff::Timestamp::now().to_string();
        // An existing VM keeps the case of its name.
        let known = earlier.map(|vm| text(&vm.value, "name").to_owned());
        let name = known.as_deref().unwrap_or(request.name);
        let place = Place { group: request.group, name, number, created: &created };
        let mut vm = vms::make(body, &place, &self.inventory)?;
        if let Some(earlier) = self.inventory.vms.get(&request.key) {
            vms::check_change(earlier, &vm, body)?;
            let tags = vm.value["tags"].take();
            let size = vm.value["properties"]["hardwareProfile"].take();
            vm.value.clone_from(&earlier.value);
            vm.value["tags"] = tags;
            vm.value["properties"]["hardwareProfile"] = size;
            vm.value["properties"]["provisioningState"] = json!("Updating");
        } else {
            self.created.push(request.name.to_owned());
        }
        self.number = number;
        vm.value["etag"] = etag(number);
        let error = self.next_failure(Method::CreateVm);
        if error.as_ref().is_none_or(OperationError::makes_disks) {
            vms::make_disks(&mut vm.value, &place, &mut self.inventory);
        }
        self.inventory.connect(&vm.value, &place.reference());
        let answer = shown(&vm.value);
        let status = if self.inventory.vms.insert(request.key.clone(), vm).is_some() { 200 } else { 201 };
        self.begin(Method::CreateVm, &request.key, Links::Async, request.version(), error);
        Ok(self.accepted(status, Some(answer), request.base))
    }

    fn update_vm(&mut self, request: &Request<'_>) -> Answer {
        let change = request.body();
        let number = self.number + 1;
        let found = self.inventory.vms.get_mut(&request.key);
        let vm = found.ok_or_else(|| Refusal::not_found(VM, request.name, request.group))?;
        if request.call.headers.get("if-match").is_some_and(|given| vm.value["etag"] != *given) {
            return Err(precondition_failed());
        }
        match text(&vm.value["properties"], "provisioningState") {
            "Deleting" => return Err(marked_for_deletion("Update VM", request.name)),
            "Creating" | "Updating" => return Err(Refusal::conflict()),
            _ => {}
        }
        let before: BTreeSet<_> = crate::inventory::disk_ids(&vm.value).map(str::to_ascii_lowercase).collect();
        let nics: Vec<_> = crate::inventory::nic_ids(&vm.value).map(str::to_ascii_lowercase).collect();
        let mut changed = vm.value.clone();
        json_patch::merge(&mut changed, change);
        if crate::inventory::nic_ids(&changed).map(str::to_ascii_lowercase).collect::<Vec<_>>() != nics {
            let message = "Network interfaces can't be added to or removed from a VM that is not deallocated.";
            return Err(Refusal::new(409, "OperationNotAllowed", message));
        }
        changed["properties"]["provisioningState"] = json!("Updating");
        changed["etag"] = etag(number);
        vm.value = changed;
        let answer = shown(&vm.value);
        // A list in the request takes the place of the list: a disk that is not in it is detached.
        let after: BTreeSet<_> = crate::inventory::disk_ids(&answer).map(str::to_ascii_lowercase).collect();
        for gone in before.difference(&after) {
            if let Some(key) = catalogue::parse(gone, DISK) {
                self.inventory.release_disk(&key);
            }
        }
        let error = self.next_failure(Method::UpdateVm);
        self.begin(Method::UpdateVm, &request.key, Links::Async, request.version(), error);
        Ok(self.accepted(200, Some(answer), request.base))
    }

    fn delete_vm(&mut self, request: &Request<'_>) -> Done {
        let Some(vm) = self.inventory.vms.get_mut(&request.key) else { return Done::empty(204) };
        vm.value["properties"]["provisioningState"] = json!("Deleting");
        let mut ends = None;
        for operation in &mut self.operations {
            if operation.is_running() && operation.target == request.key {
                match operation.method {
                    // A second deletion ends with the first one.
                    Method::DeleteVm => ends = Some(operation.ends),
                    Method::CreateVm | Method::UpdateVm => operation.fail(OperationError::preempted()),
                    _ => {}
                }
            }
        }
        let error = self.next_failure(Method::DeleteVm);
        self.begin(Method::DeleteVm, &request.key, Links::Both, request.version(), error);
        if let (Some(ends), Some(last)) = (ends, self.operations.last_mut()) {
            last.ends = ends;
        }
        self.accepted(202, None, request.base)
    }

    fn create_nic(&mut self, request: &Request<'_>) -> Answer {
        let earlier = self.inventory.nics.get(&request.key);
        if earlier.is_some_and(|nic| nic["properties"]["provisioningState"] == "Deleting") {
            return Err(another_operation(NIC, request.name));
        }
        let number = self.number + 1;
        let nic = parts::make_nic(request.body(), request.group, request.name, number, earlier)?;
        self.number = number;
        let status = if earlier.is_some() { 200 } else { 201 };
        self.inventory.nics.insert(request.key.clone(), nic.clone());
        let error = self.next_failure(Method::CreateNic);
        self.begin(Method::CreateNic, &request.key, Links::Async, request.version(), error);
        Ok(self.accepted(status, Some(nic), request.base))
    }

    fn delete_nic(&mut self, request: &Request<'_>) -> Answer {
        let Some(nic) = self.inventory.nics.get_mut(&request.key) else { return Ok(Done::empty(204)) };
        let user = text(&nic["properties"]["virtualMachine"], "id");
        if !user.is_empty() {
            let message = format!(
                "Network Interface {} is used by existing resource {user}. In order to delete the network interface, it must be dissociated \
                 from the resource. To learn more, see aka.ms/deletenic.",
                text(nic, "id")
            );
            return Err(Refusal::new(400, "NicInUse", &message));
        }
        parts::set_nic_state(nic, &json!("Deleting"));
        let error = self.next_failure(Method::DeleteNic);
        self.begin(Method::DeleteNic, &request.key, Links::Both, request.version(), error);
        Ok(self.accepted(202, None, request.base))
    }

    fn create_disk(&mut self, request: &Request<'_>) -> Answer {
        let earlier = self.inventory.disks.get(&request.key);
        if earlier.is_some_and(|disk| disk["properties"]["provisioningState"] == "Deleting") {
            return Err(another_operation(DISK, request.name));
        }
        let number = self.number + 1;
        let disk = parts::make_disk(request.body(), request.group, request.name, number, earlier)?;
        self.number = number;
        self.inventory.disks.insert(request.key.clone(), disk.clone());
        let error = self.next_failure(Method::CreateDisk);
        self.begin(Method::CreateDisk, &request.key, Links::Both, request.version(), error);
        Ok(self.accepted(202, Some(disk), request.base))
    }

    fn delete_disk(&mut self, request: &Request<'_>) -> Answer {
        let Some(disk) = self.inventory.disks.get_mut(&request.key) else { return Ok(Done::empty(204)) };
        let owner = text(disk, "managedBy");
        if !owner.is_empty() {
            let message = format!("Disk {} is attached to VM {owner}.", request.name);
            return Err(Refusal::new(409, "OperationNotAllowed", &message));
        }
        disk["properties"]["provisioningState"] = json!("Deleting");
        let error = self.next_failure(Method::DeleteDisk);
        self.begin(Method::DeleteDisk, &request.key, Links::Location, request.version(), error);
        Ok(self.accepted(202, None, request.base))
    }

    /// Calls a method as another user, whose operation ends at once. Panics if the subscription refuses it.
    pub fn put(&mut self, method: Method, name: &str, body: &Value) {
        let mut operation = Duration::ZERO;
        std::mem::swap(&mut operation, &mut self.timing.operation);
        let call = Call { method, body: Some(body.clone()), ..Call::empty() };
        let key = (RESOURCE_GROUP.to_owned(), name.to_ascii_lowercase());
        let request = Request { call: &call, group: RESOURCE_GROUP, name, key, base: "" };
        let answer = match method {
            Method::CreateVm => self.create_vm(&request),
            Method::CreateNic => self.create_nic(&request),
            _ => self.create_disk(&request),
        };
        self.timing.operation = operation;
        answer.unwrap_or_else(|refusal| panic!("{name} can't be created: {}", refusal.body()));
        self.finish(self.operations.len() - 1);
    }
}

/// A call with its resource.
struct Request<'a> {
    call: &'a Call,
    group: &'a str,
    name: &'a str,
    key: Key,
    base: &'a str,
}

impl Request<'_> {
    fn body(&self) -> &Value {
        self.call.body.as_ref().unwrap_or(&Value::Null)
    }

    fn version(&self) -> &str {
        self.call.query.get("api-version").map(String::as_str).unwrap_or_default()
    }
}

/// A VM as answers show it. What runs in it is shown only on request.
fn shown(vm: &Value) -> Value {
    let mut shown = vm.clone();
    shown["properties"].as_object_mut().map(|properties| properties.remove("instanceView"));
    if let Some(vm) = shown.as_object_mut() {
        vm.retain(|_, value| !value.is_null());
    }
    shown
}

fn listed(all: impl Iterator<Item = Value>) -> Done {
    Done::ok(json!({"value": all.collect::<Vec<_>>()}))
}

/// The mark of a state of a VM.
pub fn etag(number: u64) -> Value {
    json!(format!("\"{number}\""))
}

fn precondition_failed() -> Refusal {
    let message = "The condition specified using HTTP conditional header(s) is not met.";
    Refusal::new(412, "PreconditionFailed", message)
}

fn marked_for_deletion(operation: &str, name: &str) -> Refusal {
    let message = format!(
        "Operation '{operation}' is not allowed on VM '{name}' since the VM is marked for deletion. You can only retry the Delete operation (or \
         wait for an ongoing one to complete)."
    );
    Refusal::new(409, "OperationNotAllowed", &message)
}

fn another_operation(kind: &str, name: &str) -> Refusal {
    let message = format!("Another operation on this or dependent resource is in progress. ({kind}/{name})");
    Refusal::new(409, "AnotherOperationInProgress", &message)
}
