//! Driver calls under way: at most one per machine name. A call does not occupy a worker of the queue.
//!
//! A call runs as a task of its own with a deadline. Its answer wakes the machine and is kept until the machine's next pass
//! takes it. Calls are tracked by name, not by UID: while a call for a machine runs, no call for another machine of the same
//! name begins. The gate is asked only when a slot is free: a call that waited for a slot while the lease was lost, or while
//! the process was asked to stop, never begins. Source: spec/machine-controller §2.5, §4.1; spec/providers §2.3;
//! decisions.md 56.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{
    Wake,
    observation::{Answer, Call},
};
use controller_runtime::{
    error::ApiError,
    gate::{Destruction, Gate},
    key::{ObjectKey, Target},
    lock,
    tasks::SharedTasks,
};
use machine_driver::{Code, Driver, MachineRequest, OpContext, Status, answered};
use mcm_traces::{Key, OpenSpan, Outcome, Place, Value};

/// A driver call that is to be made.
pub struct Order {
    /// The rule that ordered the call.
    pub rule: &'static str,
    /// The operation.
    pub call: Call,
    /// The driver to call.
    pub driver: Arc<dyn Driver>,
    /// The request for the driver.
    pub request: MachineRequest,
    /// The longest time that the call may take.
    pub deadline: Duration,
    /// Where the call is recorded.
    pub place: Place,
}

/// The state of a machine's driver call.
#[derive(Clone, Debug, PartialEq)]
pub enum Tracked {
    /// There is no call.
    None,
    /// The call is not answered yet.
    InFlight(Call),
    /// The call was answered after this time. The caller now owns the answer; it is forgotten here.
    Answered(Answer, Duration),
}

/// The driver calls of this process.
pub struct DriverCalls {
    calls: Arc<Mutex<BTreeMap<ObjectKey, Entry>>>,
    slots: Arc<Semaphore>,
    under_way: TaskTracker,
    tasks: SharedTasks,
    wake: Wake,
    gate: Gate,
}

struct Entry {
    uid: String,
    call: Call,
    answer: Option<(Answer, Duration)>,
}

impl DriverCalls {
    /// Runs at most `at_once` calls at the same time as tasks of `tasks`, while `gate` permits it, and wakes a machine when
    /// its call is answered.
    pub fn new(at_once: usize, tasks: SharedTasks, wake: Wake, gate: Gate) -> Self {
        Self {
            calls: Arc::default(),
            slots: Arc::new(Semaphore::new(at_once.max(1))),
            under_way: TaskTracker::new(),
            tasks,
            wake,
            gate,
        }
    }

    /// Starts a call; returns `false` when a call for this name is under way.
    pub fn start(&self, target: &Target, order: Order) -> bool {
        {
            let mut calls = lock(&self.calls);
            if calls.get(&target.key).is_some_and(|entry| entry.answer.is_none()) {
                return false;
            }
            calls.insert(target.key.clone(), Entry { uid: target.uid.clone(), call: order.call, answer: None });
        }
        let (calls, slots, wake) = (Arc::clone(&self.calls), Arc::clone(&self.slots), Arc::clone(&self.wake));
        let (gate, target) = (self.gate.clone(), target.clone());
        let task = async move {
            // The semaphore is never closed; if it were, the call would only run without this limit.
            let _slot = slots.acquire_owned().await.ok();
            let began = Instant::now();
            match carry_out(order, &target, &gate).await {
                Ok(answer) => {
                    if let Some(entry) = lock(&calls).get_mut(&target.key) {
                        entry.answer = Some((answer, began.elapsed()));
                    }
                    wake(target.key);
                }
                // The process is ending: the next leader asks for the VM by name.
                Err(error) => {
                    tracing::info!(
                        kind = "Machine", namespace = target.key.namespace, name = target.key.name, %error,
                        "a driver call has no answer"
                    );
                    lock(&calls).remove(&target.key);
                }
            }
        };
        self.tasks.spawn(Box::pin(self.under_way.track_future(task.in_current_span())));
        true
    }

    /// Takes the state of this machine's call. An answer for an earlier machine of the same name is dropped.
    pub fn take(&self, target: &Target) -> Tracked {
        let mut calls = lock(&self.calls);
        match calls.get(&target.key) {
            None => Tracked::None,
            Some(entry) if entry.answer.is_none() => Tracked::InFlight(entry.call),
            Some(_) => match calls.remove(&target.key) {
                Some(Entry { uid, answer: Some((answer, took)), .. }) if uid == target.uid => {
                    Tracked::Answered(answer, took)
                }
                _ => Tracked::None,
            },
        }
    }

    /// The call that is under way for this name.
    pub fn under_way(&self, key: &ObjectKey) -> Option<Call> {
        lock(&self.calls).get(key).filter(|entry| entry.answer.is_none()).map(|entry| entry.call)
    }

    /// Forgets the answer for a machine that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        let mut calls = lock(&self.calls);
        if calls.get(key).is_some_and(|entry| entry.answer.is_some()) {
            calls.remove(key);
        }
    }

    /// Waits until all calls have ended, by themselves or because the gate drops them. Returns the names whose answers no
    /// pass has taken yet.
    pub async fn finish(&self) -> Vec<ObjectKey> {
        self.under_way.close();
        self.under_way.wait().await;
        lock(&self.calls).iter().filter(|(_, entry)| entry.answer.is_some()).map(|(key, _)| key.clone()).collect()
    }
}

/// The driver's answer, unless the gate keeps the call from beginning or drops it.
async fn carry_out(order: Order, target: &Target, gate: &Gate) -> Result<Answer, ApiError> {
    let Order { rule, call, driver, request, deadline, place } = order;
    gate.may_call()?;
    if matches!(call, Call::Delete | Call::DeleteStale) {
        gate.permit(Destruction::Vm, rule, target)?;
    }
    gate.call(perform(call, &*driver, request, deadline, &place)).await
}

async fn perform(
    call: Call,
    driver: &dyn Driver,
    request: MachineRequest,
    deadline: Duration,
    place: &Place,
) -> Answer {
    let span = place.call(operation(call)).map(|span| span.with(Key::Provider, Value::text(&request.class.provider)));
    let cx = OpContext::within(deadline).traced(span.as_ref().map(OpenSpan::parent_of_others));
    let answer = match call {
        Call::Status => Answer::Status(answered(deadline, driver.get_machine_status(&cx, request)).await),
        Call::Create => Answer::Created(answered(deadline, driver.create_machine(&cx, request)).await),
        Call::Initialize => Answer::Initialized(answered(deadline, driver.initialize_machine(&cx, request)).await),
        Call::Delete => Answer::Deleted(answered(deadline, driver.delete_machine(&cx, request)).await),
        Call::DeleteStale => Answer::DeletedStale(answered(deadline, driver.delete_machine(&cx, request)).await),
    };
    // Only the code: the text of a refusal could contain anything.
    match (span, refusal(&answer)) {
        (Some(span), Some(status)) => {
            // These are answers, as in the metrics of requests.
            let is_answer = matches!(status.code, Code::NotFound | Code::Uninitialized);
            let outcome = if is_answer { Outcome::Fine } else { Outcome::Failed };
            span.with(Key::Code, Value::text(status.code.as_str())).end(outcome);
        }
        (Some(span), None) => span.end(Outcome::Fine),
        (None, _) => {}
    }
    answer
}

/// The operation of the contract with drivers.
const fn operation(call: Call) -> &'static str {
    match call {
        Call::Status => "GetMachineStatus",
        Call::Create => "CreateMachine",
        Call::Initialize => "InitializeMachine",
        Call::Delete | Call::DeleteStale => "DeleteMachine",
    }
}

/// The status of a call that failed.
const fn refusal(answer: &Answer) -> Option<&Status> {
    match answer {
        Answer::Created(Err(status))
        | Answer::Status(Err(status))
        | Answer::Initialized(Err(status))
        | Answer::Deleted(Err(status))
        | Answer::DeletedStale(Err(status)) => Some(status),
        Answer::Created(Ok(_))
        | Answer::Status(Ok(_))
        | Answer::Initialized(Ok(_))
        | Answer::Deleted(Ok(_))
        | Answer::DeletedStale(Ok(_)) => None,
    }
}

/// The answer of a call that failed with this status.
pub fn failed(call: Call, status: Status) -> Answer {
    match call {
        Call::Status => Answer::Status(Err(status)),
        Call::Create => Answer::Created(Err(status)),
        Call::Initialize => Answer::Initialized(Err(status)),
        Call::Delete => Answer::Deleted(Err(status)),
        Call::DeleteStale => Answer::DeletedStale(Err(status)),
    }
}
