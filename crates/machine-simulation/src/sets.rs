//! A pass over a set: the real decisions, carried out as `controllers::set` carries them out.

use jiff::Timestamp;

use super::{
    calls::Calls,
    guards::{Guard, set_without, told_without},
    process::Process,
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::Part,
    queue::Outcome,
};
use machine_api::{
    names::set_reason,
    v1alpha1::{Machine, MachineSet, controller_of},
};
use machine_controllers::{
    checked::Checked,
    outcomes::{gone_is_fine, may_adopt, released, taken_by_us},
    set::{
        Done,
        back_off::{self, BackOff},
        decide::decide,
        must_be_read_again,
        observe::{ReplicaFailure, SetObservation, preserve_of_node},
        passed_over,
        plan::{Effect, Plan, Step},
        preservation::NodePreserve,
        replica_failure, slow_start_batches,
        status::decide_status,
        together,
        unanswered::{Doubt, Unanswered},
    },
};

/// What a process remembers of a set.
#[derive(Clone, Debug, Default)]
pub struct SetMemory {
    uid: Option<String>,
    status_written: Option<Timestamp>,
    unanswered: Unanswered,
    failure: Option<ReplicaFailure>,
    back_off: BackOff,
    checked: Option<Checked<MachineSet>>,
}

/// What was decided about a set, and on what.
pub struct SetDecided {
    seen: SetObservation,
    plan: Plan,
}

impl Process {
    /// One pass over a set.
    pub fn set_pass(&mut self, calls: &mut Calls<'_>, key: &ObjectKey) -> Outcome {
        match self.decide_on_set(calls, key) {
            Ok(decided) => self.carry_out_set(calls, key, decided),
            Err(outcome) => outcome,
        }
    }

    /// The first half of a pass.
    ///
    /// # Errors
    /// How the pass ends when nothing can be decided.
    pub(super) fn decide_on_set(&mut self, calls: &mut Calls<'_>, key: &ObjectKey) -> Result<SetDecided, Outcome> {
        let unread = self.sets.get(key).map(|memory| memory.unanswered.to_read()).unwrap_or_default();
        for machine in unread {
            if calls.get(&self.views.machines, &ObjectKey::new(key.namespace.clone(), machine.clone())).is_err() {
                return Err(Outcome::Retry("a machine can't be read again".to_owned()));
            }
            if let Some(memory) = self.sets.get_mut(key) {
                memory.unanswered.was_read(&machine);
            }
        }
        let Some(seen) = self.see_set(calls, key) else {
            self.sets.remove(key);
            return Err(Outcome::Settled);
        };
        let plan = decide(&set_without(calls.around.without, &seen));
        calls.checks.set_decides(&seen, &plan, calls.trace);
        Ok(SetDecided { seen, plan })
    }

    /// The second half of a pass.
    pub(super) fn carry_out_set(&mut self, calls: &mut Calls<'_>, key: &ObjectKey, decided: SetDecided) -> Outcome {
        let SetDecided { seen, plan } = decided;
        let done = self.act_on_set(calls, &seen, &plan.steps);
        let memory = self.sets.entry(key.clone()).or_default();
        if done.error.is_none() {
            memory.unanswered.carried_out(&plan.steps);
        }
        memory.unanswered.extend(done.unanswered);
        memory.failure.clone_from(&done.failure);
        let after = if plan.steps.is_empty() {
            SetObservation { failure: None, ..seen }
        } else {
            let Some(after) = self.see_set(calls, key) else { return Outcome::Settled };
            after
        };
        let told = self.tell_set(calls, key, &after);
        match (done.error, told) {
            (Some(error), _) | (None, Err(error)) => Outcome::after(&error, error.to_string()),
            (None, Ok(status)) => plan.next.or_earlier(status.next).into(),
        }
    }

    fn see_set(&mut self, calls: &Calls<'_>, key: &ObjectKey) -> Option<SetObservation> {
        let mut seen = SetObservation::look_up(&self.views, Some(&*self.nodes), key, calls.now)?;
        seen.name_seed = self.draw();
        let memory = self.sets.entry(key.clone()).or_default();
        if memory.uid != seen.set.metadata.uid {
            *memory = SetMemory { uid: seen.set.metadata.uid.clone(), ..SetMemory::default() };
        }
        for machine in &seen.machines {
            memory.unanswered.is_shown(machine.metadata.name.as_deref().unwrap_or_default());
        }
        memory.checked = Some(Self::checked(self.origin, &seen.set, memory.checked.as_ref()));
        seen.checked.clone_from(&memory.checked);
        seen.unanswered = memory.unanswered.names();
        seen.status_written = memory.status_written;
        seen.failure.clone_from(&memory.failure);
        seen.hold = memory.back_off.look(&seen, || back_off::given(&self.views, &seen.set));
        Some(seen)
    }

    fn tell_set(&mut self, calls: &mut Calls<'_>, key: &ObjectKey, seen: &SetObservation) -> Result<Plan, ApiError> {
        let plan = decide_status(&told_without(calls.around.without, seen));
        if let Some(error) = self.act_on_set(calls, seen, &plan.steps).error {
            return Err(error);
        }
        if plan.steps.iter().any(|step| matches!(step.effect, Effect::PatchSet { part: Part::Status, .. })) {
            self.sets.entry(key.clone()).or_default().status_written = Some(seen.now);
        }
        Ok(plan)
    }

    fn act_on_set(&self, calls: &mut Calls<'_>, seen: &SetObservation, steps: &[Step]) -> Done {
        let mut done = Done::default();
        let mut reread = false;
        let mut rest = steps;
        while let Some(step) = rest.first() {
            let (these, tail) = rest.split_at(together(rest));
            rest = tail;
            let result = match &step.effect {
                Effect::CreateMachine(_) | Effect::CreateUnlessThere(_) => {
                    self.create_machines(calls, seen, these, &mut done)
                }
                Effect::DeleteMachine { .. } => self.delete_machines(calls, seen, these, &mut done),
                Effect::PatchSet { part, patch } => {
                    gone_is_fine(calls.patch(&self.views.sets, &Target::of(&*seen.set), *part, patch))
                }
                Effect::PatchMachine { machine, patch, on_failure } => {
                    let patched = gone_is_fine(calls.patch(&self.views.machines, machine, Part::Main, patch));
                    passed_over(patched, *on_failure, &mut done)
                }
                Effect::ReleaseMachine { machine, patch } => {
                    released(calls.patch(&self.views.machines, machine, Part::Main, patch))
                }
                Effect::AdoptMachine { machine, patch } => {
                    let allowed = if reread { Ok(()) } else { self.may_adopt_machines(calls, &seen.set) };
                    reread = true;
                    allowed.and_then(|()| gone_is_fine(calls.patch(&self.views.machines, machine, Part::Main, patch)))
                }
                Effect::Tell(note) => {
                    calls.trace.say(|| format!("    event {}: {}", note.reason, note.message));
                    calls.checks.costs("MachineSet", seen.set.metadata.name.as_deref().unwrap_or_default());
                    Ok(())
                }
            };
            if let Err(error) = result {
                done.error = Some(error);
                return done;
            }
        }
        done.error = done.passed_over.take();
        done
    }

    fn may_adopt_machines(&self, calls: &mut Calls<'_>, set: &MachineSet) -> Result<(), ApiError> {
        let fresh = calls.get(&self.views.sets, &ObjectKey::of(set))?;
        may_adopt(&set.metadata, fresh.as_deref().map(|fresh| &fresh.metadata))
    }

    fn create_machines(
        &self,
        calls: &mut Calls<'_>,
        seen: &SetObservation,
        steps: &[Step],
        done: &mut Done,
    ) -> Result<(), ApiError> {
        let mut rest = steps;
        for size in slow_start_batches(steps.len(), 1) {
            let (batch, tail) = rest.split_at(size.min(rest.len()));
            rest = tail;
            let mut failed = None;
            for step in batch {
                let (machine, asked_before) = match &step.effect {
                    Effect::CreateMachine(machine) => (machine, false),
                    Effect::CreateUnlessThere(machine) => (machine, true),
                    _ => continue,
                };
                if let Err(error) = self.create_machine(calls, machine, asked_before) {
                    if error.outcome_unknown() && !calls.lacks(Guard::Unanswered) {
                        done.unanswered.doubt(machine.metadata.name.clone().unwrap_or_default(), Doubt::Creation);
                    }
                    failed.get_or_insert(error);
                }
            }
            if let Some(error) = failed {
                done.failure = failure(calls, seen, set_reason::FAILED_CREATE, "Error creating", &error);
                return Err(error);
            }
        }
        Ok(())
    }

    fn create_machine(&self, calls: &mut Calls<'_>, machine: &Machine, asked_before: bool) -> Result<(), ApiError> {
        let key = ObjectKey::of(machine);
        if asked_before && calls.get(&self.views.machines, &key)?.is_some() {
            return Ok(());
        }
        match calls.create(&self.views.machines, machine) {
            Ok(_) => Ok(()),
            Err(ApiError::AlreadyExists(message)) => {
                let there = calls.get(&self.views.machines, &key)?;
                let mine = controller_of(&machine.metadata).map(|owner| owner.uid.as_str());
                taken_by_us(there.as_deref().map(|there| &there.metadata), mine, message)
            }
            Err(error) => Err(error),
        }
    }

    fn delete_machines(
        &self,
        calls: &mut Calls<'_>,
        seen: &SetObservation,
        steps: &[Step],
        done: &mut Done,
    ) -> Result<(), ApiError> {
        let mut failed = None;
        for step in steps {
            let Effect::DeleteMachine { machine: target, version } = &step.effect else { continue };
            let before = calls.api.get::<Machine>(&target.key.name);
            let node =
                before.as_ref().map_or(NodePreserve::NoNode, |machine| preserve_of_node(machine, Some(&self.nodes)));
            let result = calls.delete(&self.views.machines, target, version.as_deref());
            calls.checks.set_deleted((calls.api, calls.now), (before.as_deref(), &node), step.rule, calls.trace);
            if let Err(error) = result {
                let known = self.views.machines.get(&target.key);
                let is_shown =
                    known.is_some_and(|known| version.is_none() || known.metadata.resource_version == *version);
                let is_in_doubt = must_be_read_again(&error) && is_shown && !calls.lacks(Guard::Unread);
                if is_in_doubt && calls.get(&self.views.machines, &target.key).is_err() {
                    done.unanswered.doubt(target.key.name.clone(), Doubt::Deletion);
                }
                failed.get_or_insert(error);
            }
        }
        let Some(error) = failed else { return Ok(()) };
        done.failure = failure(calls, seen, set_reason::FAILED_DELETE, "Error deleting", &error);
        Err(error)
    }
}

/// What the set tells of calls that failed; an event goes with it when it is news.
fn failure(
    calls: &mut Calls<'_>,
    seen: &SetObservation,
    reason: &'static str,
    what: &str,
    error: &ApiError,
) -> Option<ReplicaFailure> {
    let failure = replica_failure(seen, reason, what, error)?;
    if failure.is_news(seen) {
        calls.trace.say(|| format!("    event {reason}: {}", failure.message));
        calls.checks.costs("MachineSet", seen.set.metadata.name.as_deref().unwrap_or_default());
    }
    Some(failure)
}
