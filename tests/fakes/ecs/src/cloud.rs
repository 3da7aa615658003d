//! The state of the account, and what each action does to it. All of it is synchronous.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    Call, Timing,
    catalogue::{self, ACCOUNT_ID},
    errors::Refusal,
    instances, lists,
    model::Action,
    signature::{Callers, Parameters},
};

/// The most items of a page.
const MOST_ITEMS: usize = 100;

/// An answer without the id of the request.
pub type Answer = Result<Value, Refusal>;

/// A refusal that waits for its calls.
struct Fault {
    action: Action,
    refusal: Refusal,
    left: usize,
}

/// What happens to an instance next.
#[derive(Clone, Copy)]
enum Step {
    Start,
    Run,
    Vanish,
}

struct Instance {
    value: Value,
    /// When lists show it.
    listed_at: Instant,
    next: Option<(Instant, Step)>,
}

/// The request with a client token, and its answer.
struct Remembered {
    parameters: Parameters,
    answer: Answer,
}

/// The account.
pub struct Cloud {
    pub timing: Timing,
    pub callers: Callers,
    pub calls: Vec<Call>,
    pub violations: Vec<String>,
    /// The names of all instances that have been created, one for each creation.
    pub created: Vec<String>,
    /// The most items of a page.
    pub page_limit: usize,
    held: bool,
    instances: BTreeMap<String, Instance>,
    disks: BTreeMap<String, Value>,
    tokens: HashMap<String, Remembered>,
    faults: Vec<Fault>,
    /// The next instances that end before they start.
    vanishing: usize,
    /// The last number that was used in an id of an instance.
    number: u64,
    /// The number of requests.
    requests: u64,
}

impl Cloud {
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            callers: Callers::default(),
            calls: Vec::new(),
            violations: Vec::new(),
            created: Vec::new(),
            page_limit: MOST_ITEMS,
            held: false,
            instances: BTreeMap::new(),
            disks: BTreeMap::new(),
            tokens: HashMap::new(),
            faults: Vec::new(),
            vanishing: 0,
            number: 0,
            requests: 0,
        }
    }

    /// The id of the next request.
    pub fn next_request(&mut self) -> String {
        self.requests += 1;
        format!("0FA4E5C0-0000-4000-8000-{:012X}", self.requests)
    }

    pub fn refuse(&mut self, action: Action, refusal: Refusal, times: usize) {
        self.faults.push(Fault { action, refusal, left: times });
    }

    /// The refusal that waits for a call of this action. It is used up.
    fn next_refusal(&mut self, action: Action) -> Option<Refusal> {
        let fault = self.faults.iter_mut().find(|fault| fault.left > 0 && fault.action == action)?;
        fault.left -= 1;
        Some(fault.refusal.clone())
    }

    pub fn vanish(&mut self, times: usize) {
        self.vanishing += times;
    }

    pub fn hold(&mut self) {
        self.settle();
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

    /// Changes an instance. Panics if there is none with this id.
    pub fn change_instance(&mut self, id: &str, change: impl FnOnce(&mut Value)) {
        self.settle();
        change(&mut self.instances.get_mut(id).unwrap_or_else(|| panic!("there is no instance {id}")).value);
    }

    /// Creates a running instance at once. Panics if the account can't have it.
    pub fn put_instance(&mut self, parameters: &Parameters) -> String {
        instances::check(parameters).expect("a possible instance");
        let id = self.create(parameters);
        if let Some(instance) = self.instances.get_mut(&id) {
            (instance.listed_at, instance.next) = (Instant::now(), None);
            instance.value["Status"] = json!("Running");
        }
        id
    }

    /// Lets everything happen whose time has come.
    fn settle(&mut self) {
        let now = Instant::now();
        while !self.held {
            let due = self.instances.iter().filter_map(|(id, instance)| {
                let (due, step) = instance.next.filter(|(due, _)| *due <= now)?;
                Some((due, id.clone(), step))
            });
            let Some((due, id, step)) = due.min_by_key(|(due, ..)| *due) else { break };
            self.happens(&id, step, due);
        }
    }

    fn happens(&mut self, id: &str, step: Step, at: Instant) {
        let starting = self.timing.starting;
        let Some(instance) = self.instances.get_mut(id) else { return };
        match step {
            Step::Start => {
                instance.value["Status"] = json!("Starting");
                instance.next = Some((at + starting, Step::Run));
            }
            Step::Run => {
                instance.value["Status"] = json!("Running");
                instance.next = None;
            }
            Step::Vanish => self.remove(id),
        }
    }

    /// Removes an instance. Its disks go if they are deleted with it.
    pub fn remove(&mut self, id: &str) {
        self.instances.remove(id);
        self.disks.retain(|_, disk| disk["InstanceId"] != id || disk["DeleteWithInstance"] != true);
        for disk in self.disks.values_mut().filter(|disk| disk["InstanceId"] == id) {
            (disk["InstanceId"], disk["Device"], disk["Status"]) = (json!(""), json!(""), json!("Available"));
        }
    }

    /// Does what a call asks for. The caller has been checked.
    pub fn answer(&mut self, call: &Call) -> Answer {
        self.settle();
        let parameters = &call.parameters;
        // A creation looks at its token first.
        if call.action != Action::RunInstances
            && let Some(refusal) = self.next_refusal(call.action)
        {
            return Err(refusal);
        }
        match call.action {
            Action::RunInstances => self.run(parameters),
            Action::DescribeInstances => self.describe_instances(parameters),
            Action::DeleteInstance => self.delete_instance(parameters),
            Action::DescribeDisks => self.describe_disks(parameters),
            Action::DeleteDisk => self.delete_disk(parameters),
            Action::GetCallerIdentity => Ok(json!({
                "AccountId": ACCOUNT_ID, "Arn": format!("acs:ram::{ACCOUNT_ID}:user/machines"), "IdentityType": "RAMUser",
                "PrincipalId": "216959339000000001", "UserId": "216959339000000001",
            })),
        }
    }

    /// Creates instances. A repeated token has the answer of the first request with it.
    fn run(&mut self, parameters: &Parameters) -> Answer {
        let mut without_token = parameters.clone();
        let token = without_token.remove("ClientToken").filter(|token| !token.is_empty());
        if let Some(earlier) = token.as_ref().and_then(|token| self.tokens.get(token)) {
            if earlier.parameters == without_token {
                return earlier.answer.clone();
            }
            let message = "The request uses a client token in a previous request but is not identical to that request.";
            return Err(Refusal::invalid("IdempotentParameterMismatch", message));
        }
        let refusal = self.next_refusal(Action::RunInstances);
        let answer = match refusal {
            Some(refusal) => Err(refusal),
            None => instances::check(parameters).and_then(|()| self.create_all(parameters)),
        };
        let remembered = answer.as_ref().map_or_else(Refusal::is_of_capacity, |_| true);
        if let Some(token) = token.filter(|_| remembered) {
            self.tokens.insert(token, Remembered { parameters: without_token, answer: answer.clone() });
        }
        answer
    }

    fn create_all(&mut self, parameters: &Parameters) -> Answer {
        let amount = instances::amount(parameters)?;
        let used = |address: &String| {
            let pointer = "/VpcAttributes/PrivateIpAddress/IpAddress/0";
            self.instances.values().any(|one| one.value.pointer(pointer) == Some(&json!(address)))
        };
        if parameters.get("PrivateIpAddress").is_some_and(used) {
            let message = "The specified IP address is already used.";
            return Err(Refusal::new(403, "InvalidIPAddress.AlreadyUsed", message));
        }
        if instances::is_dry_run(parameters) {
            return Err(Refusal::dry_run());
        }
        let ids: Vec<_> = (0..amount).map(|_| self.create(parameters)).collect();
        Ok(json!({"InstanceIdSets": {"InstanceIdSet": ids}, "OrderId": "", "TradePrice": 0.165}))
    }

    /// Creates an instance, and returns its id.
    fn create(&mut self, parameters: &Parameters) -> String {
        self.number += 1;
        let made = instances::make(parameters, self.number, Timestamp::now());
        let id = instances::instance_id(self.number);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.created.push(text(&made.instance["InstanceName"]));
        self.disks.extend(made.disks.into_iter().map(|disk| (text(&disk["DiskId"]), disk)));
        let now = Instant::now();
        let step = if self.vanishing > 0 { Step::Vanish } else { Step::Start };
        self.vanishing = self.vanishing.saturating_sub(1);
        let instance = Instance {
            value: made.instance,
            listed_at: now + self.timing.visible_after,
            next: Some((now + self.timing.pending, step)),
        };
        self.instances.insert(id.clone(), instance);
        id
    }

    fn describe_instances(&self, parameters: &Parameters) -> Answer {
        let region = parameters.get("RegionId").map(String::as_str).unwrap_or_default();
        if !catalogue::has_region(region) {
            return Err(Refusal::not_found("RegionId"));
        }
        // A rehearsal shows a missing right, for which the list itself would be empty.
        if instances::is_dry_run(parameters) {
            return Err(Refusal::dry_run());
        }
        let now = Instant::now();
        let mut selected = Vec::new();
        for instance in self.instances.values().filter(|instance| instance.listed_at <= now) {
            if lists::selects_instance(parameters, &instance.value)? {
                selected.push(instance.value.clone());
            }
        }
        self.listed("Instance", selected, parameters)
    }

    fn describe_disks(&self, parameters: &Parameters) -> Answer {
        let mut selected = Vec::new();
        for disk in self.disks.values() {
            if lists::selects_disk(parameters, disk)? {
                selected.push(disk.clone());
            }
        }
        self.listed("Disk", selected, parameters)
    }

    /// A page of a list.
    fn listed(&self, kind: &str, all: Vec<Value>, parameters: &Parameters) -> Answer {
        let page = lists::page(all, &format!("{kind}Id"), self.page_limit, parameters)?;
        Ok(json!({
            format!("{kind}s"): {kind: page.items}, "NextToken": page.next, "PageNumber": page.number, "PageSize": page.size, "TotalCount": page.total,
        }))
    }

    fn delete_instance(&mut self, parameters: &Parameters) -> Answer {
        let force = parameters.get("Force").is_some_and(|force| force.eq_ignore_ascii_case("true"));
        let id = parameters.get("InstanceId").cloned().unwrap_or_default();
        let stopping = self.timing.stopping;
        let instance = self.instances.get_mut(&id).ok_or_else(|| Refusal::not_found("InstanceId"))?;
        if instance.value["DeletionProtection"] == true {
            let message = "The operation is not allowed due to deletion protection.";
            return Err(Refusal::new(403, "InvalidOperation.DeletionProtection", message));
        }
        match instance.value["Status"].as_str().unwrap_or_default() {
            "Stopped" => {}
            "Running" if force => {}
            "Pending" => return Err(Refusal::incorrect_status("IncorrectInstanceStatus.Initializing")),
            _ => return Err(Refusal::incorrect_status("IncorrectInstanceStatus")),
        }
        instance.value["Status"] = json!("Stopping");
        instance.next = Some((Instant::now() + stopping, Step::Vanish));
        if stopping == Duration::ZERO {
            self.settle();
        }
        Ok(json!({}))
    }

    fn delete_disk(&mut self, parameters: &Parameters) -> Answer {
        let id = parameters.get("DiskId").cloned().unwrap_or_default();
        let disk = self.disks.get(&id).ok_or_else(|| Refusal::not_found("DiskId"))?;
        if disk["Status"] != "Available" {
            return Err(Refusal::incorrect_status("IncorrectDiskStatus"));
        }
        self.disks.remove(&id);
        Ok(json!({}))
    }
}
