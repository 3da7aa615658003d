//! Carries out a plan for a deployment. Decides nothing: errors are reported, and the next pass observes the result.

use std::collections::BTreeSet;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use kube::ResourceExt;

use super::{
    DeploymentController, conditions,
    observe::DeploymentObservation,
    patches,
    plan::{Counted, Effect, OnFailure, Step},
    status::Report,
};
use crate::{
    outcomes::{gone_is_fine, may_adopt, released, taken_by_us},
    snapshots::{DeploymentSnapshot, SetSnapshot},
};
use controller_runtime::{
    error::ApiError,
    events::EventNote,
    gate::Destruction,
    key::ObjectKey,
    objects::{DeleteHow, Part},
    snapshot::Snapshot,
};
use machine_api::{names::deployment_reason as reason, v1alpha1::MachineSet};
use mcm_traces::PassSpan;

/// Maximum number of concurrent patches of Nodes. The rate limit of the client applies as well.
const NODE_PATCHES_AT_ONCE: usize = 25;

/// A patch of a Node, what its failure means for the plan, and its result.
type Patched<'a> = (&'a Effect, OnFailure, Result<(), ApiError>);

/// The result of a plan.
#[derive(Debug, Default)]
pub struct Done {
    /// The first error.
    pub error: Option<ApiError>,
    /// The report about this pass for the status.
    pub report: Report,
    /// The objects of effects that got no answer.
    pub unanswered: BTreeSet<Counted>,
}

impl Done {
    /// Records an effect that got no answer.
    pub fn note(&mut self, effect: &Effect, answer: &Result<(), ApiError>) {
        if answer.as_ref().is_err_and(ApiError::outcome_unknown) {
            self.unanswered.extend(counted(effect));
        }
    }

    /// Records the answer to the creation of a set: its name, or the reason of the refusal.
    pub fn creation(&mut self, set: &MachineSet, answer: &Result<(), ApiError>) {
        match answer {
            Ok(()) => self.report.created_set.clone_from(&set.metadata.name),
            Err(error) if !error.is_explained() => {}
            // The next pass handles a collision. Without the lease, no request was sent.
            Err(ApiError::AlreadyExists(_) | ApiError::NotLeading(_)) => {}
            Err(error) => {
                let name = set.metadata.name.as_deref().unwrap_or_default();
                self.report.create_error = Some(format!("Failed to create new machine set \"{name}\": {error}"));
            }
        }
    }
}

impl DeploymentController {
    /// Carries out the steps in order. Consecutive patches of Nodes run concurrently.
    pub(super) async fn act(&self, seen: &DeploymentObservation, steps: &[Step], span: &mut PassSpan) -> Done {
        let mut done = Done::default();
        let mut reread = false;
        let mut rest = steps;
        while let Some(step) = rest.first() {
            tracing::debug!(deployment = %seen.deployment.key(), rule = step.rule, "act");
            let is_node = |step: &&Step| matches!(step.effect, Effect::ChangeNode { .. });
            let run = rest.iter().take_while(is_node).count().max(1);
            let (these, tail) = rest.split_at(run.min(rest.len()));
            rest = tail;
            let result = match &step.effect {
                Effect::ChangeNode { .. } => self.patch_nodes(these, &mut done).await,
                Effect::CreateSet(set) => self.create_set(&seen.deployment, set, &mut done).await,
                effect @ Effect::AdoptSet(_) => {
                    let allowed = if reread { Ok(()) } else { self.may_adopt(&seen.deployment).await };
                    reread = true;
                    match allowed {
                        Ok(()) => gone_is_fine(self.write_set(&seen.deployment, effect).await),
                        refused => refused,
                    }
                }
                effect => self.act_one(&seen.deployment, step.rule, effect).await,
            };
            if !is_node(&step) {
                // Patches of Nodes record their results themselves.
                done.note(&step.effect, &result);
            }
            record(these, &result, span);
            if let Err(error) = result {
                done.error = Some(error);
                return done;
            }
        }
        done
    }

    async fn act_one(
        &self,
        deployment: &DeploymentSnapshot,
        rule: &'static str,
        effect: &Effect,
    ) -> Result<(), ApiError> {
        match effect {
            Effect::AddFinalizer
            | Effect::RemoveFinalizer
            | Effect::WriteRevision(_)
            | Effect::WriteTriggerList(_)
            | Effect::RollBack(_)
            | Effect::CountCollision(_)
            | Effect::WriteStatus(_) => match patches::of_deployment(effect, deployment) {
                Some((part, patch)) => {
                    gone_is_fine(self.deps.deployments.patch(&deployment.target(), part, patch).await)
                }
                None => Ok(()),
            },
            Effect::SyncSet { .. } | Effect::SetGrowth(..) | Effect::MarkTainted(..) => {
                gone_is_fine(self.write_set(deployment, effect).await)
            }
            Effect::ScaleSet { set, to, .. } => {
                self.write_set(deployment, effect).await?;
                self.note_scaled(deployment, set.name(), set.replicas(), *to);
                Ok(())
            }
            Effect::ReleaseSet(_) => released(self.write_set(deployment, effect).await),
            Effect::DeleteSet { set, version } => {
                self.deps.gate.permit(Destruction::MachineSet, rule, set)?;
                match version {
                    Some(version) => self.deps.sets.delete_unchanged(set, version).await.map(drop),
                    None => self.deps.sets.delete(set, DeleteHow::default()).await.map(drop),
                }
            }
            Effect::MarkMachine { .. } | Effect::HandOver { .. } => match patches::of_machine(effect) {
                Some((machine, patch)) => gone_is_fine(self.deps.machines.patch(&machine, Part::Main, patch).await),
                None => Ok(()),
            },
            Effect::Tell(note) => {
                self.deps.recorder.note(deployment, note.clone());
                Ok(())
            }
            // The caller carries these out, because it needs their results.
            Effect::ChangeNode { .. } | Effect::CreateSet(_) | Effect::AdoptSet(_) => Ok(()),
        }
    }

    /// Writes the change that an effect makes to a set; returns `None` if there is nothing to write.
    async fn write_set(
        &self,
        deployment: &DeploymentSnapshot,
        effect: &Effect,
    ) -> Result<Option<SetSnapshot>, ApiError> {
        match patches::of_set(effect, deployment) {
            Some((set, patch)) => self.deps.sets.patch(&set, Part::Main, patch).await.map(Some),
            None => Ok(None),
        }
    }

    fn note_scaled(&self, deployment: &DeploymentSnapshot, set: &str, from: i32, to: i32) {
        if from == to {
            return;
        }
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} machine set {set} to {to}");
        self.deps.recorder.note(deployment, EventNote::normal(reason::SCALING_SET, message));
    }

    async fn create_set(
        &self,
        deployment: &DeploymentSnapshot,
        set: &MachineSet,
        done: &mut Done,
    ) -> Result<(), ApiError> {
        let answer = match self.deps.sets.create(set).await {
            Ok(_) => {
                self.note_scaled(deployment, &set.name_any(), 0, set.spec.replicas);
                Ok(())
            }
            Err(ApiError::AlreadyExists(message)) => match self.deps.sets.get(&ObjectKey::of(set)).await {
                Ok(there) => {
                    let there = there.as_ref().map(SetSnapshot::metadata);
                    taken_by_us(there, Some(deployment.uid()), message)
                }
                Err(error) => {
                    done.unanswered.insert(Counted::Set(ObjectKey::of(set)));
                    return Err(error);
                }
            },
            Err(error) => Err(error),
        };
        done.creation(set, &answer);
        if let Some(error) = &done.report.create_error
            && conditions::is_new_create_error(deployment.status(), error)
        {
            self.deps.recorder.note(deployment, EventNote::warning(reason::SET_CREATE_ERROR, error.clone()));
        }
        answer
    }

    async fn may_adopt(&self, deployment: &DeploymentSnapshot) -> Result<(), ApiError> {
        let fresh = self.deps.deployments.get(&deployment.key()).await?;
        may_adopt(deployment.metadata(), fresh.as_ref().map(DeploymentSnapshot::metadata))
    }

    async fn patch_nodes(&self, steps: &[Step], done: &mut Done) -> Result<(), ApiError> {
        let Some(nodes) = &self.deps.nodes else { return Ok(()) };
        let calls = steps.iter().filter_map(|step| match &step.effect {
            Effect::ChangeNode { node, change, on_failure } => {
                Some((&step.effect, node.target(), patches::of_node(change, node)?, *on_failure))
            }
            _ => None,
        });
        // Boxed, so that the lifetime has a name and the future is `Send`.
        let calls: Vec<BoxFuture<'_, Patched<'_>>> = calls
            .map(|(effect, node, patch, on_failure)| {
                async move { (effect, on_failure, gone_is_fine(nodes.patch(&node, Part::Main, patch).await)) }.boxed()
            })
            .collect();
        let results: Vec<_> = stream::iter(calls).buffer_unordered(NODE_PATCHES_AT_ONCE).collect().await;
        for (effect, _, result) in &results {
            done.note(effect, result);
        }
        for (_, on_failure, result) in results {
            match (on_failure, result) {
                (_, Ok(())) => {}
                (OnFailure::EndPlan, Err(error)) => return Err(error),
                (OnFailure::GoOn, Err(error)) => {
                    tracing::warn!(%error, "taint of a node");
                    done.error.get_or_insert(error);
                }
            }
        }
        Ok(())
    }
}

/// Records steps in the span of the pass, with links to the lives of machines that change their set.
fn record(steps: &[Step], result: &Result<(), ApiError>, span: &mut PassSpan) {
    for step in steps {
        span.did(step.rule, name_of(&step.effect));
        if let Effect::HandOver { machine, .. } = &step.effect {
            span.link(machine.uid());
        }
    }
    if result.is_err() {
        span.failed();
    }
}

/// The name of an effect, for spans.
const fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::AddFinalizer => "AddFinalizer",
        Effect::RemoveFinalizer => "RemoveFinalizer",
        Effect::WriteRevision(_) | Effect::WriteTriggerList(_) | Effect::CountCollision(_) => "PatchMachineDeployment",
        Effect::RollBack(_) => "RollBack",
        Effect::WriteStatus(_) => "PatchMachineDeploymentStatus",
        Effect::CreateSet(_) => "CreateMachineSet",
        Effect::SyncSet { .. } | Effect::SetGrowth(..) | Effect::MarkTainted(..) => "PatchMachineSet",
        Effect::ScaleSet { .. } => "ScaleMachineSet",
        Effect::AdoptSet(_) => "AdoptMachineSet",
        Effect::ReleaseSet(_) => "ReleaseMachineSet",
        Effect::DeleteSet { .. } => "DeleteMachineSet",
        Effect::MarkMachine { .. } => "PatchMachine",
        Effect::HandOver { .. } => "HandOverMachine",
        Effect::ChangeNode { .. } => "PatchNode",
        Effect::Tell(_) => "RecordEvent",
    }
}

/// The object that must be read again before the next decision if the effect got no answer. A set that may have been
/// created or resized limits the sizes of the other sets, and a selected Node will be unavailable. `None` for events,
/// for optional changes of Nodes, and for writes to the deployment, which are idempotent or guarded by its version.
fn counted(effect: &Effect) -> Option<Counted> {
    match effect {
        Effect::CreateSet(set) => Some(Counted::Set(ObjectKey::of(&**set))),
        Effect::SyncSet { set, .. }
        | Effect::SetGrowth(set, _)
        | Effect::MarkTainted(set, _)
        | Effect::ScaleSet { set, .. }
        | Effect::AdoptSet(set)
        | Effect::ReleaseSet(set) => Some(Counted::Set(set.key())),
        Effect::DeleteSet { set, .. } => Some(Counted::Set(set.key.clone())),
        Effect::MarkMachine { machine, .. } | Effect::HandOver { machine, .. } => Some(Counted::Machine(machine.key())),
        Effect::ChangeNode { node, on_failure: OnFailure::EndPlan, .. } => Some(Counted::Node(node.key())),
        Effect::ChangeNode { on_failure: OnFailure::GoOn, .. }
        | Effect::AddFinalizer
        | Effect::RemoveFinalizer
        | Effect::WriteRevision(_)
        | Effect::WriteTriggerList(_)
        | Effect::RollBack(_)
        | Effect::CountCollision(_)
        | Effect::WriteStatus(_)
        | Effect::Tell(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Resource;
    use rstest::rstest;

    use super::*;
    use crate::{changes::Changes, deployment::plan::Growth};
    use kube_values::selector::Labels;
    use machine_api::v1alpha1::Machine;

    fn key() -> ObjectKey {
        ObjectKey::new("ns", "a")
    }

    fn named<K: Resource<DynamicType = ()> + Default>(namespace: Option<&str>) -> K {
        let mut object = K::default();
        object.meta_mut().name = Some("a".to_owned());
        object.meta_mut().namespace = namespace.map(str::to_owned);
        object
    }

    fn set() -> SetSnapshot {
        named::<MachineSet>(Some("ns")).into()
    }

    fn change(on_failure: OnFailure) -> Effect {
        Effect::ChangeNode { node: named::<Node>(None).into(), change: Box::default(), on_failure }
    }

    #[rstest]
    #[case::a_size(Effect::ScaleSet { set: set(), to: 2, remembered: Labels::new() }, Some(Counted::Set(key())))]
    #[case::a_set(Effect::SetGrowth(set(), Growth::Free), Some(Counted::Set(key())))]
    #[case::its_end(Effect::delete(&set()), Some(Counted::Set(key())))]
    #[case::a_machine(
        Effect::MarkMachine { machine: named::<Machine>(Some("ns")).into(), labels: Changes::new(), annotations: Changes::new() },
        Some(Counted::Machine(key())))]
    #[case::a_picked_node(change(OnFailure::EndPlan), Some(Counted::Node(ObjectKey::cluster_scoped("a"))))]
    #[case::a_taint(change(OnFailure::GoOn), None)]
    #[case::the_deployment(Effect::AddFinalizer, None)]
    fn counted_objects_without_an_answer_are_read_again(#[case] effect: Effect, #[case] expected: Option<Counted>) {
        assert_eq!(counted(&effect), expected);
    }
}
