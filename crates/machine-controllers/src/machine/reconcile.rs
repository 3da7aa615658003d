//! The pass over one machine: observe, decide, act; repeated until nothing more can be done at once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use jiff::Timestamp;

use super::{
    GoodClass, MachineController,
    act::Acted,
    creation::{outcome::AskedBefore, user_data::filled_in},
    driver_calls::{Order, Tracked, failed},
    measures::Measurement,
    memory::{Memory, Pass},
    observation::{Answer, Call, DrainState, Inputs, LastGood, NodeStep, Observation, Permit, StepFailure},
    observe::{ClassSecrets, Sources, TargetSources, class_of, inputs_of, observe, secrets_of},
    plan::{Next, reporting::REPORTED_AFTER, waits::Wait},
    retry::{RetryPeriod, tried_again},
    settings::CallDeadlines,
    stages::{self, Stretch},
};
use crate::{
    drain::{self, Drain, Run, observe::DrainLimits, order::DrainOrder, step::DrainResult},
    snapshots::MachineSnapshot,
    times::since,
    views::{BY_CLASS, qualified},
};
use controller_runtime::{
    error::ApiError,
    events::EventNote,
    key::ObjectKey,
    lock,
    queue::Outcome,
    snapshot::{Snapshot, Whole},
    store::Store,
};
use kube_values::duration::GoDuration;
use machine_api::names::{label, machine_reason};
use machine_driver::{Code, Driver, MachineRequest, Status};
use mcm_traces::PassSpan;

/// Answers that a stopping process records at the same time.
const RECORDED_AT_ONCE: usize = 20;
/// More steps than any flow has; a pass that needs more steps is in an endless loop.
const MOST_STEPS: usize = 32;

impl MachineController {
    /// One pass over a machine. Never called for the same key twice at once.
    pub async fn reconcile(&self, key: ObjectKey) -> Outcome {
        let Some(machine) = self.views.machines.get(&key) else {
            self.forget(&key);
            return Outcome::Settled;
        };
        let mut memory = self.take_memory(&key, &machine);
        memory.span = PassSpan::of_life(&self.tracer, stages::PASS, machine.uid());
        let outcome = self.pass(&key, &mut memory).await;
        std::mem::take(&mut memory.span).end((stages::KIND, &key.namespace, &key.name));
        if self.views.machines.get(&key).is_some() {
            lock(&self.memories).insert(key, memory);
        } else {
            self.forget(&key);
        }
        outcome
    }

    /// Lets driver calls end, for as long as the gate permits, and records their answers. Called after the queue has stopped
    /// and while the lease is still held.
    pub async fn finish(&self) {
        let record = async |key: ObjectKey| {
            if let Outcome::Retry(error) | Outcome::Refused(error) = self.reconcile(key.clone()).await {
                tracing::warn!(
                    kind = "Machine",
                    namespace = key.namespace,
                    name = key.name,
                    error,
                    "what the driver answered is not recorded; it is found by name later"
                );
            }
        };
        stream::iter(self.calls.finish().await).for_each_concurrent(RECORDED_AT_ONCE, record).await;
    }

    async fn pass(&self, key: &ObjectKey, memory: &mut Memory) -> Outcome {
        if memory.reread {
            if let Err(error) = self.machines.get(key).await {
                return Outcome::Retry(format!("machine {key} can't be read again after a lost answer: {error}"));
            }
            memory.reread = false;
        }
        let mut pass = Pass::default();
        let mut permit = None;
        for _ in 0..MOST_STEPS {
            let Some(machine) = self.views.machines.get(key) else { return Outcome::Settled };
            if machine.uid() != memory.uid {
                // A new machine of the same name; its own pass follows.
                (self.wake)(key.clone());
                return Outcome::Settled;
            }
            self.take_answer(&machine, memory);
            let seen = self.observe(&machine, memory, &pass);
            memory.keep(&seen);
            if self.tracer.is_on() {
                memory.stage = Stretch::of(&machine, memory.stage);
            }
            let plan = (self.decision)(&seen);
            tracing::debug!(
                kind = "Machine",
                namespace = key.namespace,
                name = key.name,
                rule = plan.rule,
                count = plan.effects.len(),
                "decided"
            );
            match self.act(&plan, &seen, memory, &mut pass).await {
                Acted::Done => {}
                Acted::Void => continue,
                Acted::StepFailed(failure) => {
                    tracing::debug!(
                        kind = "Machine",
                        namespace = key.namespace,
                        name = key.name,
                        rule = plan.rule,
                        error = ?failure,
                        "effect failed"
                    );
                    memory.span.failed();
                    self.report_step_failure(&seen, &failure, memory);
                    pass.step_failures.push(failure);
                    continue;
                }
                Acted::Failed(error) => {
                    memory.span.failed();
                    self.report_refusal(&machine, Some(&error), memory);
                    return failure(key, plan.rule, &error);
                }
            }
            if plan.next.ends_pass() {
                self.report_refusal(&machine, None, memory);
                memory.rested(&pass, self.drain_memory);
            }
            match plan.next {
                Next::Again => {}
                Next::Settled => return Outcome::Settled,
                // The answer wakes the machine; a call that takes long is reported before its answer.
                Next::AwaitCall => return Outcome::LookAgain(REPORTED_AFTER, Wait::SlowCall.as_str()),
                Next::LookAgain(after, why) => return Outcome::LookAgain(after, why.as_str()),
                // A stopping process evicts no pod and asks the driver for no volumes.
                Next::StepDrain(_) if self.gate.may_call().is_err() => return Outcome::Settled,
                Next::StepDrain(order) => {
                    pass.drain_flow = Some(order.flow);
                    pass.drain = self.step_drain(&order, &seen, memory);
                }
                Next::TakePermit => {
                    permit = Some(self.permit_of(&machine).lock_owned().await);
                    pass.permit = Permit::Held;
                }
            }
        }
        drop(permit);
        Outcome::Retry(format!(
            "the pass over machine {key} did not come to an end; this is a defect of the controller"
        ))
    }

    fn take_memory(&self, key: &ObjectKey, machine: &MachineSnapshot) -> Memory {
        let uid = machine.uid().to_owned();
        let known = lock(&self.memories).remove(key).filter(|memory| memory.uid == uid);
        known.unwrap_or_else(|| {
            // What was seen of an earlier machine's Node says nothing about this machine.
            lock(&self.vanished).remove(key);
            let now = self.clock.now();
            Memory::new(uid, now, AskedBefore::of(machine, *self.began.get_or_init(|| now)))
        })
    }

    fn forget(&self, key: &ObjectKey) {
        lock(&self.memories).remove(key);
        lock(&self.vanished).remove(key);
        self.calls.forget(key);
        self.forget_unused_classes();
    }

    fn forget_unused_classes(&self) {
        keep_used(&mut lock(&self.last_good), &self.views.machines);
    }

    fn take_answer(&self, machine: &MachineSnapshot, memory: &mut Memory) {
        match self.calls.take(&machine.target()) {
            Tracked::None => memory.flow.in_flight = None,
            Tracked::InFlight(call) => memory.flow.in_flight = Some(call),
            Tracked::Answered(answer, took) => {
                self.measure_answer(machine, &answer, took);
                memory.learn(answer, self.clock.now());
            }
        }
    }

    fn report_step_failure(&self, seen: &Observation, failure: &StepFailure, memory: &mut Memory) {
        if let Some(text) = step_failure_text(seen, failure)
            && memory.is_news(machine_reason::NODE_NOT_UPDATED, &text, seen.steady)
        {
            self.recorder.note(&seen.machine, EventNote::warning(machine_reason::NODE_NOT_UPDATED, text));
        }
    }

    fn report_refusal(&self, machine: &MachineSnapshot, error: Option<&ApiError>, memory: &mut Memory) {
        if let Some(text) = memory.refused.after_pass(error, self.clock.reading().steady) {
            self.recorder.note(machine, EventNote::warning(machine_reason::WRITE_REFUSED, text));
        }
    }

    /// Records how long the machine took to get this far.
    fn measure_answer(&self, machine: &MachineSnapshot, answer: &Answer, took: Duration) {
        let now = self.clock.now();
        let elapsed = |stamp: Option<Timestamp>| stamp.map(|stamp| since(now, stamp)).unwrap_or_default();
        let what = match answer {
            Answer::Created(Ok(_)) => Measurement::Created(elapsed(machine.created())),
            Answer::Initialized(Ok(_)) => Measurement::Initialized(took),
            Answer::Deleted(Ok(_)) => Measurement::Deleted(elapsed(machine.deleting_since())),
            Answer::Status(_)
            | Answer::Created(Err(_))
            | Answer::Initialized(Err(_))
            | Answer::Deleted(Err(_))
            | Answer::DeletedStale(_) => return,
        };
        self.measures.machine(what, machine, class_of(&self.views, machine).as_deref());
    }

    fn observe(&self, machine: &MachineSnapshot, memory: &Memory, pass: &Pass) -> Observation {
        let class = ObjectKey::new(machine.namespace(), machine.class_ref().name.clone());
        let key = machine.key();
        let sources = Sources {
            views: &self.views,
            target: self.target.as_ref().map(|target| TargetSources {
                nodes: &target.node_store,
                drains: target.drainer.views(),
                starts_drain_views: true,
            }),
            drivers: &self.drivers,
            settings: &self.settings,
            freeze: self.freeze.of(&key),
            silence: self.freeze.silence(),
            last_good: self.remembers_class(&class),
            node_vanished: self.saw_node_vanish(&key),
        };
        observe(&sources, machine.clone(), memory, pass, self.clock.reading())
    }

    /// The failure permit of the machine's group. Permits that are not held are removed at the same time.
    fn permit_of(&self, machine: &MachineSnapshot) -> Arc<tokio::sync::Mutex<()>> {
        let group = machine.labels().get(label::NAME).cloned().unwrap_or_default();
        let group = format!("{}/{group}", machine.namespace());
        let mut permits = lock(&self.permits);
        permits.retain(|_, permit| Arc::strong_count(permit) > 1);
        Arc::clone(permits.entry(group).or_default())
    }

    /// Starts a driver call. An obstacle to the start becomes an answer like a driver's.
    pub(super) fn start(
        &self,
        rule: &'static str,
        call: Call,
        inputs: Inputs,
        seen: &Observation,
        memory: &mut Memory,
    ) -> Acted {
        let target = seen.machine.target();
        if let Err(error) = self.gate.may_call() {
            return Acted::Failed(error);
        }
        let (driver, request) = match self.request(call, seen, memory) {
            Ok(ready) => ready,
            Err(status) => {
                memory.flow.not_started(failed(call, status));
                return Acted::Void;
            }
        };
        memory.flow.ask(call, inputs, seen.now);
        let (deadline, place) = (deadline(call, self.settings.deadlines), memory.span.place());
        let order = Order { rule, call, driver, request, deadline, place };
        if !self.calls.start(&target, order) {
            tracing::debug!(
                kind = "Machine", namespace = target.key.namespace, name = target.key.name, operation = ?call,
                "a call for a machine of this name is still under way"
            );
        }
        Acted::Done
    }

    /// The current inputs of a driver call for the machine.
    pub(super) fn inputs_of(&self, machine: &MachineSnapshot) -> Inputs {
        let class = class_of(&self.views, machine);
        let secrets = secrets_of(&self.views.secrets, machine, class.as_deref());
        inputs_of(machine, class.as_deref(), secrets.versions)
    }

    fn request(
        &self,
        call: Call,
        seen: &Observation,
        memory: &Memory,
    ) -> Result<(Arc<dyn Driver>, MachineRequest), Status> {
        let good = self.class_for(call, seen)?;
        let driver = Arc::clone(self.drivers.driver_for(&good.class.provider)?);
        let secret = match call {
            Call::Create | Call::Initialize => {
                let token = memory.token.as_ref().map(|held| held.token.value());
                filled_in(&good.secrets, seen.name(), token.as_deref())
            }
            Call::Status | Call::Delete | Call::DeleteStale => good.secrets,
        };
        let machine = match &memory.flow.vm {
            Some(vm) if call == Call::DeleteStale => seen.machine.with_provider_id(&vm.identity.provider_id),
            _ => seen.machine.clone(),
        };
        let machine = Arc::clone(machine.whole_object());
        Ok((driver, MachineRequest { machine, class: good.class, secret }))
    }

    /// Class and Secrets for a call: the current objects. For a deletion, if the current objects are missing, the objects that were last used.
    fn class_for(&self, call: Call, seen: &Observation) -> Result<GoodClass, Status> {
        let machine = &seen.machine;
        let key = ObjectKey::new(machine.namespace(), machine.class_ref().name.clone());
        let class = class_of(&self.views, machine);
        let ClassSecrets { data, missing, .. } = secrets_of(&self.views.secrets, machine, class.as_deref());
        match class {
            Some(class) if missing.is_empty() => {
                let good = GoodClass { class, secrets: data };
                let is_new = lock(&self.last_good).insert(key, good.clone()).is_none();
                if is_new {
                    // An in-place update changes the class of a machine, so that the old class may be unused now.
                    self.forget_unused_classes();
                }
                Ok(good)
            }
            _ => {
                let remembered = lock(&self.last_good).get(&key).cloned();
                remembered.filter(|_| machine.is_deleting()).ok_or_else(|| {
                    Status::new(
                        Code::FailedPrecondition,
                        format!("{call:?} needs MachineClass {key} and its Secrets; {} missing", missing.join(" and ")),
                    )
                })
            }
        }
    }

    fn step_drain(&self, order: &DrainOrder, seen: &Observation, memory: &mut Memory) -> DrainState {
        let Some(target) = &self.target else { return DrainState::Drained };
        if !target.drainer.views().ready() {
            return DrainState::Warming;
        }
        let mut run = Run::ordered(memory.drain.take(), order.clone(), self.drain_memory)
            .counted_by(self.measures.metrics())
            .recorded_at(memory.span.place());
        let driver = class_of(&self.views, &seen.machine)
            .and_then(|class| self.drivers.driver_for(&class.provider).ok().cloned());
        let (wake, key) = (Arc::clone(&self.wake), seen.machine.key());
        let drain = Drain {
            node_name: &order.node,
            node: seen.node.ours(),
            limits: DrainLimits {
                force: order.force,
                deadline: order.deadline,
                timeout: seen.limits.drain,
                retries: seen.limits.evict_retries,
                detach: seen.limits.detach,
                reattach: seen.limits.reattach,
                parallel: self.settings.evictions_per_node,
            },
            driver: driver.as_ref(),
            now: seen.steady,
            wake: Arc::new(move || wake(key.clone())),
        };
        let state = match target.drainer.step(&drain, &mut run) {
            DrainResult::Running { progress, blocked_by, waiting, attempt, wake } => {
                DrainState::Running { progress, blocked_by, waiting, attempt, wake }
            }
            DrainResult::Drained => {
                let class = class_of(&self.views, &seen.machine);
                let took = run.took(self.clock.reading().steady);
                self.measures.machine(Measurement::Drained(took), &seen.machine, class.as_deref());
                return DrainState::Drained;
            }
            DrainResult::Failed(error) => DrainState::Failed(error),
        };
        memory.drain = Some(run);
        state
    }

    /// Notes that this process saw the removal of a Node: the machines of the Node go with it (spec §2.3).
    pub fn node_vanished(&self, machine: &ObjectKey) {
        lock(&self.vanished).insert(machine.clone());
    }

    /// Notes that a machine's Node exists (again).
    pub fn node_appeared(&self, machine: &ObjectKey) {
        lock(&self.vanished).remove(machine);
    }

    /// The memory of this process about a machine, and the wait of its drain. `None` while a pass works on the machine, and before its first pass.
    pub(super) fn remembered(&self, key: &ObjectKey, uid: &str) -> Option<(Memory, Option<drain::waiting::Waiting>)> {
        let memories = lock(&self.memories);
        let memory = memories.get(key).filter(|memory| memory.uid == uid)?;
        let waiting = memory.drain.as_ref().and_then(Run::waiting).cloned();
        let mut outlook_copy = memory.outlook_copy();
        drop(memories);
        if outlook_copy.flow.in_flight.is_none() && outlook_copy.flow.answer.is_none() {
            outlook_copy.flow.in_flight = self.calls.under_way(key);
        }
        Some((outlook_copy, waiting))
    }

    /// Whether the removal of the machine's Node was seen.
    pub(super) fn saw_node_vanish(&self, key: &ObjectKey) -> bool {
        lock(&self.vanished).contains(key)
    }

    /// Whether a class and its Secrets are remembered as they were when last used.
    pub(super) fn remembers_class(&self, class: &ObjectKey) -> LastGood {
        if lock(&self.last_good).contains_key(class) { LastGood::Remembered } else { LastGood::Unknown }
    }
}

/// Forgets classes that no machine names any more, together with their credentials.
fn keep_used<T>(classes: &mut BTreeMap<ObjectKey, T>, machines: &Store<MachineSnapshot>) {
    classes.retain(|class, _| machines.is_indexed(BY_CLASS, &qualified(&class.namespace, &class.name)));
}

/// How long a call may take.
fn deadline(call: Call, deadlines: CallDeadlines) -> Duration {
    match call {
        Call::Status => deadlines.status,
        Call::Create => deadlines.create,
        Call::Initialize => deadlines.initialize,
        Call::Delete | Call::DeleteStale => deadlines.delete,
    }
}

/// The outcome for a key after a failed write to the control cluster.
fn failure(key: &ObjectKey, rule: &'static str, error: &ApiError) -> Outcome {
    match error {
        ApiError::NotLeading(_) => Outcome::Settled,
        ApiError::Conflict(_) => Outcome::LookAgain(RetryPeriod::Conflict.length(Duration::ZERO), "conflict"),
        ApiError::TooManyRequests(Some(after)) => Outcome::LookAgain(*after, "the API server is busy"),
        _ => Outcome::after(error, format!("machine {key}: {rule}: {error}")),
    }
}

/// The text of the event about a failed write to the Node of a living machine. The failure stops nothing, so that only the
/// event reports it.
fn step_failure_text(seen: &Observation, failure: &StepFailure) -> Option<String> {
    let stops_nothing =
        matches!(failure.step, NodeStep::Metadata | NodeStep::InPlaceCondition | NodeStep::Preservation);
    let every = GoDuration::from(RetryPeriod::Short.length(Duration::ZERO));
    stops_nothing.then(|| {
        let (node, again, error) = (seen.node_label(), tried_again(every), &failure.error);
        format!("Node {node} can't be brought in line with the machine, {again}: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::{super::testing, *};
    use crate::views::ControlViews;

    #[test]
    fn a_class_is_remembered_for_as_long_as_a_machine_names_it() {
        let views = ControlViews::default();
        let machine = testing::running();
        views.machines.apply(machine.clone());
        let mut classes = BTreeMap::from([(ObjectKey::new("ns", "c"), 1), (ObjectKey::new("ns", "old"), 2)]);
        keep_used(&mut classes, &views.machines);
        assert_eq!(classes.keys().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["c"]);
        views.machines.delete(&machine);
        keep_used(&mut classes, &views.machines);
        assert!(classes.is_empty());
    }
}
