//! The state of the project, and what each method does to it. All of it is synchronous: the clock comes with each call.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};

use crate::{
    Call, Timing,
    accounts::Tokens,
    catalogue::{self, PROJECT, url},
    errors::{OperationError, Refusal},
    instances::{self, Place},
    lists,
    model::Method,
    operations::{Effect, Operation, Target},
};

/// Zone and name.
type Key = (String, String);

/// An answer without a body is `Value::Null`.
pub type Answer = Result<Value, Refusal>;

/// A fault that waits for its calls.
struct Fault {
    method: Method,
    what: FaultKind,
    left: usize,
}

enum FaultKind {
    Refuse(Refusal),
    Fail(Vec<OperationError>),
}

struct Instance {
    value: Value,
    /// When lists show it.
    listed_at: Instant,
}

/// The project.
pub struct Cloud {
    pub timing: Timing,
    pub tokens: Tokens,
    pub calls: Vec<Call>,
    pub violations: Vec<String>,
    /// The names of all instances that have been created, one for each creation.
    pub inserted: Vec<String>,
    held: bool,
    instances: BTreeMap<Key, Instance>,
    disks: BTreeMap<Key, Value>,
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
            inserted: Vec::new(),
            held: false,
            instances: BTreeMap::new(),
            disks: BTreeMap::new(),
            operations: Vec::new(),
            faults: Vec::new(),
            number: 4_000_000_000_000_000,
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

    pub fn fail(&mut self, method: Method, errors: &[OperationError], times: usize) {
        self.faults.push(Fault { method, what: FaultKind::Fail(errors.to_vec()), left: times });
    }

    pub fn hold(&mut self) {
        self.held = true;
    }

    pub fn release(&mut self) {
        self.held = false;
    }

    pub fn instances(&mut self) -> Vec<Value> {
        self.settle();
        self.instances.values().map(|instance| instance.value.clone()).collect()
    }

    pub fn disks(&mut self) -> Vec<Value> {
        self.settle();
        self.disks.values().cloned().collect()
    }

    pub fn operations(&mut self) -> Vec<Value> {
        self.settle();
        self.operations.iter().map(Operation::value).collect()
    }

    /// Changes an instance of any zone. Panics if there is none with this name.
    pub fn change_instance(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.settle();
        let found = self.instances.iter_mut().find(|((_, own), _)| own == name);
        let (_, instance) = found.unwrap_or_else(|| panic!("there is no instance {name}"));
        change(&mut instance.value);
    }

    /// Creates an instance at once, as another user. Panics if the project can't have it.
    pub fn put_instance(&mut self, zone: &str, body: &Value) {
        self.insert(zone, body, &BTreeMap::new(), "somebody@else").expect("a possible instance");
        let name = body["name"].as_str().unwrap_or_default();
        if let Some(instance) = self.instances.get_mut(&(zone.to_owned(), name.to_owned())) {
            instance.listed_at = Instant::now();
        }
        self.finish(self.operations.len() - 1);
    }

    /// Ends the operations whose time is over.
    fn settle(&mut self) {
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

    fn finish(&mut self, index: usize) {
        let operation = &mut self.operations[index];
        // An operation that ended before in the same moment may have ended this one, too.
        if operation.is_running() {
            operation.end();
            let (effect, target, failed) = (operation.effect, operation.target.clone(), !operation.errors.is_empty());
            self.take_effect(effect, &target, failed);
        }
    }

    fn take_effect(&mut self, effect: Effect, target: &Target, failed: bool) {
        let key = (target.zone.clone(), target.name.clone());
        match (effect, failed) {
            (Effect::Insert, true) | (Effect::Delete, false) => self.remove(&key, &target.id, failed),
            (Effect::Insert, false) | (Effect::Delete, true) => {
                self.change_target(&key, &target.id, "status", json!("RUNNING"));
            }
            (Effect::Protect(protected), false) => {
                self.change_target(&key, &target.id, "deletionProtection", json!(protected));
            }
            (Effect::DeleteDisk, false) => drop(self.disks.remove(&key)),
            (Effect::Protect(_) | Effect::DeleteDisk, true) => {}
        }
    }

    fn change_target(&mut self, key: &Key, id: &str, field: &str, value: Value) {
        if let Some(instance) = self.instances.get_mut(key).filter(|instance| instance.value["id"] == id) {
            instance.value[field] = value;
        }
    }

    /// Removes an instance. Its disks go if they are deleted with it, or if it has never run.
    fn remove(&mut self, key: &Key, id: &str, never_ran: bool) {
        if self.instances.get(key).is_none_or(|instance| instance.value["id"] != id) {
            return;
        }
        let Some(gone) = self.instances.remove(key) else { return };
        for disk in gone.value["disks"].as_array().into_iter().flatten() {
            let Some(name) = disk["source"].as_str().and_then(|source| source.rsplit('/').next()) else { continue };
            let disk_key = (key.0.clone(), name.to_owned());
            if never_ran || disk["autoDelete"] == true {
                self.disks.remove(&disk_key);
            } else if let Some(disk) = self.disks.get_mut(&disk_key) {
                disk.as_object_mut().map(|disk| disk.remove("users"));
            }
        }
        // The creation of an instance that is deleted meanwhile does not succeed.
        for operation in &mut self.operations {
            if operation.is_running() && operation.target.id == id && operation.effect == Effect::Insert {
                operation.errors = vec![OperationError::canceled()];
                operation.end();
            }
        }
    }

    /// Does what a call asks for. The caller has been checked.
    pub fn answer(&mut self, method: Method, call: &Call) -> Answer {
        self.settle();
        let parameter = |name: &str| call.parameters.get(name).map(String::as_str).unwrap_or_default();
        let (zone, query) = (parameter("zone"), &call.query);
        if parameter("project") != PROJECT {
            return Err(Refusal::forbidden());
        }
        if !zone.is_empty() && method != Method::GetZone && !catalogue::has_zone(zone) {
            return Err(Refusal::invalid("zone", zone, "Unknown zone."));
        }
        match method {
            Method::InsertInstance => {
                self.insert(zone, call.body.as_ref().unwrap_or(&Value::Null), query, &call.caller)
            }
            Method::GetInstance => Ok(self.instance(zone, parameter("instance"))?.1.value.clone()),
            Method::DeleteInstance => self.delete(zone, parameter("instance"), query, &call.caller),
            Method::SetDeletionProtection => {
                let protected = query.get("deletionProtection").is_none_or(|value| value == "true");
                let (key, instance) = self.instance(zone, parameter("resource"))?;
                let target = Target::of(&key, "instances", &instance.value);
                Ok(self.start(Effect::Protect(protected), target, query, &call.caller))
            }
            Method::ListInstances => {
                let now = Instant::now();
                let of_zone = self.instances.iter().filter(|((own, _), one)| own == zone && one.listed_at <= now);
                let all = of_zone.map(|((_, name), one)| (name.clone(), one.value.clone())).collect();
                listed("instance", zone, "instances", all, query)
            }
            Method::AggregatedInstances => {
                let now = Instant::now();
                let visible = self.instances.iter().filter(|(_, one)| one.listed_at <= now);
                let all = visible.map(|((zone, name), one)| (format!("{zone}/{name}"), one.value.clone())).collect();
                aggregated(all, query)
            }
            Method::GetOperation | Method::WaitOperation => {
                let name = parameter("operation");
                let found = self.operations.iter().find(|operation| {
                    operation.target.zone == zone && (operation.name == name || operation.id == name)
                });
                let absent = || Refusal::not_found(&format!("projects/{PROJECT}/zones/{zone}/operations/{name}"));
                found.map(Operation::value).ok_or_else(absent)
            }
            Method::ListOperations => {
                let of_zone = self.operations.iter().filter(|operation| operation.target.zone == zone);
                let all = of_zone.map(|operation| (operation.name.clone(), operation.value())).collect();
                listed("operation", zone, "operations", all, query)
            }
            Method::GetDisk => self.disk(zone, parameter("disk")).cloned(),
            Method::ListDisks => {
                let of_zone = self.disks.iter().filter(|((own, _), _)| own == zone);
                let all = of_zone.map(|((_, name), disk)| (name.clone(), disk.clone())).collect();
                listed("disk", zone, "disks", all, query)
            }
            Method::DeleteDisk => {
                let disk = self.disk(zone, parameter("disk"))?;
                if let Some(user) = disk["users"].get(0) {
                    let message = format!("The disk resource is already being used by {user}");
                    return Err(Refusal::new(400, "resourceInUseByAnotherResource", &message));
                }
                let key = (zone.to_owned(), parameter("disk").to_owned());
                let target = Target::of(&key, "disks", disk);
                Ok(self.start(Effect::DeleteDisk, target, query, &call.caller))
            }
            other => {
                let path = call.path.trim_start_matches("/compute/v1/");
                catalogue::read(other, path, path.rsplit('/').next().unwrap_or_default())
            }
        }
    }

    /// An instance by its name or id.
    fn instance(&self, zone: &str, name: &str) -> Result<(Key, &Instance), Refusal> {
        let found = self
            .instances
            .iter()
            .find(|((of_zone, own), instance)| of_zone == zone && (own == name || instance.value["id"] == name));
        let absent = || Refusal::not_found(&format!("projects/{PROJECT}/zones/{zone}/instances/{name}"));
        found.map(|(key, instance)| (key.clone(), instance)).ok_or_else(absent)
    }

    fn disk(&self, zone: &str, name: &str) -> Result<&Value, Refusal> {
        let found = self.disks.get(&(zone.to_owned(), name.to_owned()));
        found.ok_or_else(|| Refusal::not_found(&format!("projects/{PROJECT}/zones/{zone}/disks/{name}")))
    }

    fn insert(&mut self, zone: &str, body: &Value, query: &BTreeMap<String, String>, caller: &str) -> Answer {
        let name = body["name"].as_str().unwrap_or_default();
        let key = (zone.to_owned(), name.to_owned());
        if let Some(earlier) = self.repeated("insert", &key, query)? {
            return Ok(earlier);
        }
        let path = format!("projects/{PROJECT}/zones/{zone}");
        if self.instances.contains_key(&key) {
            return Err(Refusal::already_exists(&format!("{path}/instances/{name}")));
        }
        self.number += 1;
        let created = jiff::Timestamp::now().to_string();
        let made = instances::make(body, &Place { zone, number: self.number, created: &created })?;
        for (disk, _) in &made.disks {
            if self.disks.contains_key(&(zone.to_owned(), disk.clone())) {
                return Err(Refusal::already_exists(&format!("{path}/disks/{disk}")));
            }
        }
        for (disk, value) in made.disks {
            self.disks.insert((zone.to_owned(), disk), value);
        }
        let target = Target::of(&key, "instances", &made.instance);
        let listed_at = Instant::now() + self.timing.visible_after;
        self.inserted.push(name.to_owned());
        self.instances.insert(key, Instance { value: made.instance, listed_at });
        Ok(self.start(Effect::Insert, target, query, caller))
    }

    fn delete(&mut self, zone: &str, name: &str, query: &BTreeMap<String, String>, caller: &str) -> Answer {
        let (key, instance) = match self.instance(zone, name) {
            Ok(found) => found,
            Err(absent) => {
                let key = (zone.to_owned(), name.to_owned());
                return self.repeated("delete", &key, query)?.ok_or(absent);
            }
        };
        if let Some(earlier) = self.repeated("delete", &key, query)? {
            return Ok(earlier);
        }
        let path = format!("projects/{PROJECT}/zones/{zone}/instances/{name}");
        if instance.value["deletionProtection"] == true {
            let message = "Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion.'.";
            return Err(Refusal::new(400, "invalidResourceUsage", message));
        }
        if instance.value["status"] == "STOPPING" {
            return Err(Refusal::not_ready(&path));
        }
        let target = Target::of(&key, "instances", &instance.value);
        self.change_target(&key, &target.id.clone(), "status", json!("STOPPING"));
        Ok(self.start(Effect::Delete, target, query, caller))
    }

    /// The operation of an earlier request with the same request id. Google: "the server … will ignore the second request". A failed operation is
    /// answered, too.
    fn repeated(&self, kind: &str, key: &Key, query: &BTreeMap<String, String>) -> Result<Option<Value>, Refusal> {
        let Some(id) = query.get("requestId") else { return Ok(None) };
        let digits = id.chars().filter(char::is_ascii_hexdigit).count();
        let dashes: Vec<_> = id.match_indices('-').map(|(index, _)| index).collect();
        if id.len() != 36 || digits != 32 || dashes != [8, 13, 18, 23] || id.chars().all(|c| c == '0' || c == '-') {
            return Err(Refusal::invalid(
                "requestId",
                id,
                "The request ID must be a valid UUID, and not the zero UUID.",
            ));
        }
        let earlier = self.operations.iter().find(|operation| {
            operation.request_id.as_deref() == Some(id)
                && operation.effect.kind() == kind
                && (&operation.target.zone, &operation.target.name) == (&key.0, &key.1)
        });
        Ok(earlier.map(Operation::value))
    }

    /// Begins an operation, and returns it.
    fn start(&mut self, effect: Effect, target: Target, query: &BTreeMap<String, String>, caller: &str) -> Value {
        let method = effect.method();
        let failing = self.faults.iter_mut().find_map(|fault| match &fault.what {
            FaultKind::Fail(errors) if fault.left > 0 && fault.method == method => {
                fault.left -= 1;
                Some(errors.clone())
            }
            _ => None,
        });
        self.number += 1;
        let ends = Instant::now() + self.timing.operation;
        let mut operation = Operation::new(self.number, effect, target, caller, ends);
        operation.errors = failing.unwrap_or_default();
        operation.request_id = query.get("requestId").cloned();
        self.operations.push(operation);
        self.operations.last().map_or(Value::Null, Operation::value)
    }

    /// How long a call of `zoneOperations.wait` waits.
    pub fn longest_wait(&self) -> Duration {
        self.timing.wait
    }
}

/// A page of a list of the instances of all zones. A zone without instances has a warning.
fn aggregated(all: Vec<(String, Value)>, query: &BTreeMap<String, String>) -> Answer {
    let page = lists::page(all, query)?;
    let path = format!("projects/{PROJECT}/aggregated/instances");
    let mut scopes = Map::new();
    for zone in catalogue::ZONES {
        let of_zone =
            page.items.iter().filter(|one| one["zone"].as_str().is_some_and(|url| url.ends_with(&format!("/{zone}"))));
        let instances: Vec<_> = of_zone.cloned().collect();
        let scope = if instances.is_empty() {
            let message = format!("There are no results for scope 'zones/{zone}' on this page.");
            let data = [json!({"key": "scope", "value": format!("zones/{zone}")})];
            json!({"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}})
        } else {
            json!({ "instances": instances })
        };
        scopes.insert(format!("zones/{zone}"), scope);
    }
    let mut answer =
        json!({"kind": "compute#instanceAggregatedList", "id": path, "selfLink": url(&path), "items": scopes});
    if let Some(next) = page.next {
        answer["nextPageToken"] = json!(next);
    }
    Ok(answer)
}

/// A page of a list.
fn listed(
    kind: &str,
    zone: &str,
    collection: &str,
    all: Vec<(String, Value)>,
    query: &BTreeMap<String, String>,
) -> Answer {
    let page = lists::page(all, query)?;
    let path = format!("projects/{PROJECT}/zones/{zone}/{collection}");
    let mut answer = json!({"kind": format!("compute#{kind}List"), "id": path, "selfLink": url(&path)});
    if !page.items.is_empty() {
        answer["items"] = json!(page.items);
    }
    if let Some(next) = page.next {
        answer["nextPageToken"] = json!(next);
    }
    Ok(answer)
}
