//! Carries out a plan for a set. Decides nothing: errors are reported, and the next pass observes the result.

use machine_api::v1alpha1::Machine;
use std::sync::Mutex;

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream,
};

use super::{
    SetController,
    counts::is_failed,
    deletion_reason::deletion_reason,
    observe::{ReplicaFailure, SetObservation},
    patches::{patch_of_machine, patch_of_set},
    plan::{Effect, Step},
    unanswered::{Doubt, Unanswered},
};
use crate::{
    outcomes::{gone_is_fine, may_adopt, released, taken_by_us},
    snapshots::{Described, SetSnapshot},
};
use controller_runtime::{
    error::ApiError,
    events::EventNote,
    gate::Destruction,
    key::{ObjectKey, Target},
    objects::{DeleteHow, Part},
    snapshot::Snapshot,
};
use machine_api::{
    names::set_reason,
    v1alpha1::{OperationType, controller_of},
};
use mcm_traces::PassSpan;

/// Maximum number of concurrent deletions (D-31). The rate limit of the client applies as well.
const DELETIONS_AT_ONCE: usize = 25;

/// The result of a plan.
#[derive(Debug, Default)]
pub struct Done {
    /// The first error.
    pub error: Option<ApiError>,
    /// The first refusal that did not end the plan. The pass is repeated all the same.
    pub passed_over: Option<ApiError>,
    /// Set when machines could not be created or deleted.
    pub failure: Option<ReplicaFailure>,
    /// Calls about machines that got no answer, and deleted machines that could not be read afterwards.
    pub unanswered: Unanswered,
}

/// Sizes of the batches for this number of calls: each batch is twice as large as the one before.
fn slow_start_batches(count: usize, first: usize) -> Vec<usize> {
    let mut batches = Vec::new();
    let (mut left, mut size) = (count, first);
    while left > 0 && size > 0 {
        let batch = size.min(left);
        batches.push(batch);
        left -= batch;
        size = size.saturating_mul(2);
    }
    batches
}

/// Makes the calls in slowly growing batches. After a batch with a failure no further batch starts. Returns the number
/// of successes and the first error.
async fn slow_start<'a, T>(
    items: &[T],
    first: usize,
    call: impl Fn(&T) -> BoxFuture<'a, Result<(), ApiError>>,
) -> (usize, Option<ApiError>) {
    let mut rest = items;
    let mut succeeded = 0;
    for size in slow_start_batches(items.len(), first) {
        let (batch, tail) = rest.split_at(size.min(rest.len()));
        rest = tail;
        let results = join_all(batch.iter().map(&call).collect::<Vec<_>>()).await;
        succeeded += results.iter().filter(|result| result.is_ok()).count();
        if let Some(error) = results.into_iter().find_map(Result::err) {
            return (succeeded, Some(error));
        }
    }
    (succeeded, None)
}

/// Whether the stores may be outdated about an object after this error: there was no answer, or the object had changed.
fn must_be_read_again(error: &ApiError) -> bool {
    error.outcome_unknown() || matches!(error, ApiError::Conflict(_))
}

/// Handles the result of an effect whose refusal must not stop the other effects. Errors that do not concern the
/// object, such as an unreachable API server, end the plan in any case.
///
/// # Errors
/// The error, if it ends the plan.
fn passed_over(result: Result<(), ApiError>, done: &mut Done) -> Result<(), ApiError> {
    match result {
        Err(error) if error.is_refusal() => {
            done.passed_over.get_or_insert(error);
            Ok(())
        }
        result => result,
    }
}

/// The number of next steps that run together: consecutive creations, or consecutive deletions.
fn together(steps: &[Step]) -> usize {
    match steps.first() {
        Some(step) if is_creation(step) => steps.iter().take_while(|step| is_creation(step)).count(),
        Some(step) if is_deletion(step) => steps.iter().take_while(|step| is_deletion(step)).count(),
        Some(_) => 1,
        None => 0,
    }
}

/// The report of a set about calls that failed. Errors from the API server are reported. A lost answer (S-MS-28), a
/// conflict with another writer, and the loss of the lease are no failures.
fn replica_failure(
    seen: &SetObservation,
    reason: &'static str,
    what: &str,
    error: &ApiError,
) -> Option<ReplicaFailure> {
    let is_told = error.is_explained() && !matches!(error, ApiError::Conflict(_) | ApiError::NotLeading(_));
    is_told.then(|| ReplicaFailure::after(reason, format!("{what}: {error}"), seen))
}

/// The name of an effect, for spans.
const fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::AddFinalizer => "AddFinalizer",
        Effect::RemoveFinalizer => "RemoveFinalizer",
        Effect::WriteStatus(_) => "PatchMachineSetStatus",
        Effect::Adopt(_) => "AdoptMachine",
        Effect::Release(_) => "ReleaseMachine",
        Effect::Keep(..) | Effect::SyncTemplate { .. } => "PatchMachine",
        Effect::CreateMachine(_) | Effect::CreateUnlessThere(_) => "CreateMachine",
        Effect::DeleteMachine { .. } => "DeleteMachine",
        Effect::Tell(_) => "RecordEvent",
    }
}

fn is_creation(step: &Step) -> bool {
    matches!(step.effect, Effect::CreateMachine(_) | Effect::CreateUnlessThere(_))
}

fn is_deletion(step: &Step) -> bool {
    matches!(step.effect, Effect::DeleteMachine { .. })
}

impl SetController {
    /// Carries out the steps in order. Consecutive creations run together, and so do consecutive deletions.
    pub(super) async fn act(&self, seen: &SetObservation, steps: &[Step], span: &mut PassSpan) -> Done {
        let mut done = Done::default();
        let mut reread = false;
        let mut rest = steps;
        while let Some(step) = rest.first() {
            tracing::debug!(set = %seen.set.key(), rule = step.rule, "act");
            let (these, tail) = rest.split_at(together(rest));
            rest = tail;
            let result = match &step.effect {
                Effect::CreateMachine(_) | Effect::CreateUnlessThere(_) => self.create(seen, these, &mut done).await,
                Effect::DeleteMachine { .. } => self.delete(seen, these, &mut done).await,
                Effect::AddFinalizer | Effect::RemoveFinalizer | Effect::WriteStatus(_) => {
                    gone_is_fine(self.patch_set(&seen.set, &step.effect).await)
                }
                Effect::Keep(..) => gone_is_fine(self.patch_machine(&seen.set, &step.effect).await),
                Effect::SyncTemplate { .. } => {
                    let synced = gone_is_fine(self.patch_machine(&seen.set, &step.effect).await);
                    passed_over(synced, &mut done)
                }
                Effect::Release(_) => released(self.patch_machine(&seen.set, &step.effect).await),
                Effect::Adopt(_) => {
                    let allowed = if reread { Ok(()) } else { self.may_adopt(&seen.set).await };
                    reread = true;
                    match allowed {
                        Ok(()) => gone_is_fine(self.patch_machine(&seen.set, &step.effect).await),
                        refused => refused,
                    }
                }
                Effect::Tell(note) => {
                    self.deps.recorder.note(&seen.set, note.clone());
                    Ok(())
                }
            };
            if span.is_on() {
                self.record(these, &result, span);
            }
            if let Err(error) = result {
                done.error = Some(error);
                return done;
            }
        }
        done.error = done.passed_over.take();
        done
    }

    /// Records steps in the span of the pass, with links to the lives of their machines.
    fn record(&self, steps: &[Step], result: &Result<(), ApiError>, span: &mut PassSpan) {
        for step in steps {
            span.did(step.rule, name_of(&step.effect));
            match &step.effect {
                // The store has the machines that were created.
                Effect::CreateMachine(machine) | Effect::CreateUnlessThere(machine) => {
                    if let Some(machine) = self.deps.views.machines.get(&ObjectKey::of(&**machine)) {
                        span.link(machine.uid());
                    }
                }
                Effect::DeleteMachine { machine, .. } => span.link(&machine.uid),
                Effect::Adopt(machine) | Effect::Release(machine) => span.link(machine.uid()),
                _ => {}
            }
        }
        if result.is_err() {
            span.failed();
        }
    }

    async fn patch_set(&self, set: &SetSnapshot, effect: &Effect) -> Result<(), ApiError> {
        let Some((part, patch)) = patch_of_set(effect, set) else { return Ok(()) };
        self.deps.sets.patch(&set.target(), part, patch).await.map(drop)
    }

    async fn patch_machine(&self, set: &SetSnapshot, effect: &Effect) -> Result<(), ApiError> {
        let Some((machine, patch)) = patch_of_machine(effect, set) else { return Ok(()) };
        self.deps.machines.patch(&machine, Part::Main, patch).await.map(drop)
    }

    async fn may_adopt(&self, set: &SetSnapshot) -> Result<(), ApiError> {
        let fresh = self.deps.sets.get(&set.key()).await?;
        may_adopt(set.metadata(), fresh.as_ref().map(SetSnapshot::metadata))
    }

    async fn create(&self, seen: &SetObservation, steps: &[Step], done: &mut Done) -> Result<(), ApiError> {
        let unanswered = Mutex::<Unanswered>::default();
        let call = |step: &Step| {
            let (machine, asked_before) = match &step.effect {
                Effect::CreateMachine(machine) => (Some(machine.clone()), false),
                Effect::CreateUnlessThere(machine) => (Some(machine.clone()), true),
                _ => (None, false),
            };
            let unanswered = &unanswered;
            let call = async move {
                let Some(machine) = machine else { return Ok(()) };
                let result = self.create_one(&machine, asked_before).await;
                if result.as_ref().is_err_and(ApiError::outcome_unknown)
                    && let Ok(mut unanswered) = unanswered.lock()
                {
                    unanswered.doubt(machine.metadata.name.clone().unwrap_or_default(), Doubt::Creation);
                }
                result
            };
            call.boxed()
        };
        let (_, error) = slow_start(steps, 1, call).await;
        done.unanswered.extend(unanswered.into_inner().unwrap_or_default());
        let Some(error) = error else { return Ok(()) };
        done.failure = self.report_failure(seen, set_reason::FAILED_CREATE, "Error creating", &error);
        Err(error)
    }

    async fn create_one(&self, machine: &Machine, asked_before: bool) -> Result<(), ApiError> {
        let key = ObjectKey::of(machine);
        if asked_before && self.deps.machines.get(&key).await?.is_some() {
            return Ok(());
        }
        match self.deps.machines.create(machine).await {
            Ok(_) => Ok(()),
            Err(ApiError::AlreadyExists(message)) => {
                let there = self.deps.machines.get(&key).await?;
                let mine = controller_of(&machine.metadata).map(|owner| owner.uid.as_str());
                taken_by_us(there.as_ref().map(Described::metadata), mine, message)
            }
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, seen: &SetObservation, steps: &[Step], done: &mut Done) -> Result<(), ApiError> {
        let deletions = steps.iter().filter_map(|step| match &step.effect {
            Effect::DeleteMachine { machine, version } => Some((step.rule, machine, version.as_deref())),
            _ => None,
        });
        let targets: Vec<(&'static str, &Target, Option<&str>)> = deletions.collect();
        // Boxed, so that the lifetime has a name and the future is `Send`.
        let calls: Vec<BoxFuture<'_, Result<(), ApiError>>> = targets
            .iter()
            .map(|&(rule, target, version)| {
                async move {
                    self.deps.gate.permit(Destruction::Machine, rule, target)?;
                    self.announce_deletion(seen, target);
                    let deleted = match version {
                        Some(version) => self.deps.machines.delete_unchanged(target, version).await,
                        None => self.deps.machines.delete(target, DeleteHow::default()).await,
                    };
                    if let Err(error) = deleted {
                        self.withdraw_deletion(target, &error);
                        return Err(error);
                    }
                    self.count_if_stale(seen, target);
                    Ok(())
                }
                .boxed()
            })
            .collect();
        let results: Vec<Result<(), ApiError>> = stream::iter(calls).buffered(DELETIONS_AT_ONCE).collect().await;
        for ((_, target, version), result) in targets.iter().zip(&results) {
            if result.as_ref().is_err_and(must_be_read_again) && self.shows(&target.key, *version) {
                self.read_again(&target.key, done).await;
            }
        }
        let Some(error) = results.into_iter().find_map(Result::err) else { return Ok(()) };
        done.failure = self.report_failure(seen, set_reason::FAILED_DELETE, "Error deleting", &error);
        Err(error)
    }

    /// Whether the store still has the version of a machine on which its deletion was decided.
    fn shows(&self, machine: &ObjectKey, version: Option<&str>) -> bool {
        let known = self.deps.views.machines.get(machine);
        known.is_some_and(|known| version.is_none() || known.resource_version() == version)
    }

    /// After a lost answer the store may have an outdated machine. The machine is read again before the next decision.
    async fn read_again(&self, machine: &ObjectKey, done: &mut Done) {
        if self.deps.machines.get(machine).await.is_err() {
            done.unanswered.doubt(machine.name.clone(), Doubt::Deletion);
        }
    }

    fn announce_deletion(&self, seen: &SetObservation, target: &Target) {
        let Some(deletions) = &self.deletions else { return };
        let owner = seen.set.controller();
        let deployment = owner.and_then(|owner| {
            let key = ObjectKey::new(seen.set.namespace(), owner.name.clone());
            self.deps.views.deployments.get(&key).filter(|deployment| deployment.uid() == owner.uid)
        });
        if let Some(machine) = seen.machines.iter().find(|machine| machine.uid() == target.uid) {
            deletions.announce(&target.uid, deletion_reason(machine, &seen.set, deployment.as_ref()));
        }
    }

    /// After a lost answer the machine may be deleted all the same.
    fn withdraw_deletion(&self, target: &Target, error: &ApiError) {
        if let Some(deletions) = self.deletions.as_ref().filter(|_| !error.outcome_unknown()) {
            deletions.withdraw(&target.uid);
        }
    }

    fn count_if_stale(&self, seen: &SetObservation, target: &Target) {
        let mut machines = seen.machines.iter();
        if let Some(machine) = machines.find(|machine| machine.uid() == target.uid)
            && is_failed(machine)
            && machine.last_operation().operation == OperationType::HealthCheck
            && let Some(counter) = &self.stale_machines
        {
            counter.inc(&());
        }
    }

    fn report_failure(
        &self,
        seen: &SetObservation,
        reason: &'static str,
        what: &str,
        error: &ApiError,
    ) -> Option<ReplicaFailure> {
        let failure = replica_failure(seen, reason, what, error)?;
        if failure.is_news(seen) {
            self.deps.recorder.note(&seen.set, EventNote::warning(reason, failure.message.clone()));
        }
        Some(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_hundred(100, 1, &[1, 2, 4, 8, 16, 32, 37])]
    #[case::seven(7, 1, &[1, 2, 4])]
    #[case::s_ms_31_ten_from_two(10, 2, &[2, 4, 4])]
    #[case::s_ms_32_no_first_batch(10, 0, &[])]
    fn batches_double(#[case] count: usize, #[case] first: usize, #[case] expected: &[usize]) {
        assert_eq!(slow_start_batches(count, first), expected);
    }

    #[rstest]
    #[case::s_ms_31_all_succeed(10, 2, usize::MAX, 10, 10)]
    #[case::s_ms_33_all_fail_in_the_first_batch(10, 2, 0, 2, 0)]
    #[case::s_ms_29_one_call_when_the_first_fails(10, 1, 0, 1, 0)]
    #[case::a_failure_in_the_third_batch_ends_there(10, 1, 4, 7, 4)]
    #[tokio::test]
    async fn calls_start_slowly(
        #[case] count: usize,
        #[case] first: usize,
        #[case] succeeding: usize,
        #[case] called: usize,
        #[case] succeeded: usize,
    ) {
        let calls = AtomicUsize::new(0);
        let items: Vec<usize> = (0..count).collect();
        let (successes, error) = slow_start(&items, first, |item| {
            calls.fetch_add(1, Ordering::Relaxed);
            let fails = *item >= succeeding;
            async move { if fails { Err(ApiError::Other("no".to_owned())) } else { Ok(()) } }.boxed()
        })
        .await;
        assert_eq!((calls.into_inner(), successes, error.is_some()), (called, succeeded, called < count));
    }
}
