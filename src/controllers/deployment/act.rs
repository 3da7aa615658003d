//! Carries a plan about a deployment out. Decides nothing: what fails is reported, and the next observation sees the truth.

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use kube::ResourceExt;

use super::{
    DeploymentController,
    observe::DeploymentObservation,
    plan::{Effect, OnFailure, Step},
    status::Report,
};
use crate::{
    api::{
        names::deployment_reason as reason,
        v1alpha1::{MachineDeployment, MachineSet, controller_of},
    },
    cluster::{
        error::ApiError,
        events::EventNote,
        gate::Destruction,
        key::{ObjectKey, Target},
        objects::{DeleteHow, Part},
    },
};

/// Patches of Nodes under way at once; the client's rate limits them beyond that.
const NODE_PATCHES_AT_ONCE: usize = 25;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Done {
    /// The first error.
    pub error: Option<ApiError>,
    /// What a status tells of.
    pub report: Report,
    /// A set whose creation got no answer.
    pub unanswered: Option<ObjectKey>,
}

impl DeploymentController {
    /// Carries the steps out in their order; patches of Nodes that follow each other run together.
    pub(super) async fn act(&self, seen: &DeploymentObservation, steps: &[Step]) -> Done {
        let mut done = Done::default();
        let mut reread = false;
        let mut rest = steps;
        while let Some(step) = rest.first() {
            tracing::debug!(deployment = %ObjectKey::of(&*seen.deployment), rule = step.rule, "act");
            let is_node = |step: &&Step| matches!(step.effect, Effect::PatchNode { .. });
            let run = rest.iter().take_while(is_node).count().max(1);
            let (these, tail) = rest.split_at(run.min(rest.len()));
            rest = tail;
            let result = match &step.effect {
                Effect::PatchNode { .. } => self.patch_nodes(these, &mut done).await,
                Effect::CreateSet(set) => self.create_set(&seen.deployment, set, &mut done).await,
                Effect::AdoptSet { set, patch } => {
                    let allowed = if reread { Ok(()) } else { self.may_adopt(&seen.deployment).await };
                    reread = true;
                    match allowed {
                        Ok(()) => gone_is_fine(self.deps.sets.patch(set, Part::Main, patch.clone()).await.map(drop)),
                        refused => refused,
                    }
                }
                effect => self.act_one(&seen.deployment, step.rule, effect).await,
            };
            if let Err(error) = result {
                done.error = Some(error);
                return done;
            }
        }
        done
    }

    async fn act_one(
        &self,
        deployment: &MachineDeployment,
        rule: &'static str,
        effect: &Effect,
    ) -> Result<(), ApiError> {
        match effect {
            Effect::PatchDeployment { part, patch } => {
                gone_is_fine(self.deps.deployments.patch(&Target::of(deployment), *part, patch.clone()).await.map(drop))
            }
            Effect::PatchSet { set, patch } => {
                gone_is_fine(self.deps.sets.patch(set, Part::Main, patch.clone()).await.map(drop))
            }
            Effect::ScaleSet { set, from, to, patch } => {
                self.deps.sets.patch(set, Part::Main, patch.clone()).await?;
                self.tell_scaled(deployment, &set.key.name, *from, *to);
                Ok(())
            }
            Effect::ReleaseSet { set, patch } => {
                // A failed test means that the reference is not ours any more.
                match gone_is_fine(self.deps.sets.patch(set, Part::Main, patch.clone()).await.map(drop)) {
                    Err(ApiError::Invalid(_)) => Ok(()),
                    other => other,
                }
            }
            Effect::DeleteSet(set) => {
                self.deps.gate.permit(Destruction::MachineSet, rule, set)?;
                self.deps.sets.delete(set, DeleteHow::default()).await.map(drop)
            }
            Effect::PatchMachine { machine, patch } => {
                gone_is_fine(self.deps.machines.patch(machine, Part::Main, patch.clone()).await.map(drop))
            }
            Effect::Tell(note) => {
                self.deps.recorder.note(deployment, note.clone());
                Ok(())
            }
            // Carried out above, where their results are needed.
            Effect::PatchNode { .. } | Effect::CreateSet(_) | Effect::AdoptSet { .. } => Ok(()),
        }
    }

    fn tell_scaled(&self, deployment: &MachineDeployment, set: &str, from: i32, to: i32) {
        if from == to {
            return;
        }
        let direction = if to > from { "up" } else { "down" };
        let message = format!("Scaled {direction} machine set {set} to {to}");
        self.deps.recorder.note(deployment, EventNote::normal(reason::SCALING_SET, message));
    }

    async fn create_set(
        &self,
        deployment: &MachineDeployment,
        set: &MachineSet,
        done: &mut Done,
    ) -> Result<(), ApiError> {
        let name = set.name_any();
        match self.deps.sets.create(set).await {
            Ok(_) => {
                self.tell_scaled(deployment, &name, 0, set.spec.replicas);
                done.report.created_set = Some(name);
                Ok(())
            }
            Err(ApiError::AlreadyExists(message)) => {
                // Ours when an answer was lost; else the next pass sees the collision.
                let there = match self.deps.sets.get(&ObjectKey::of(set)).await {
                    Ok(there) => there,
                    Err(error) => {
                        done.unanswered = Some(ObjectKey::of(set));
                        return Err(error);
                    }
                };
                let is_ours = there.is_some_and(|there| {
                    controller_of(&there.metadata).map(|owner| &owner.uid) == deployment.metadata.uid.as_ref()
                });
                if !is_ours {
                    return Err(ApiError::AlreadyExists(message));
                }
                done.report.created_set = Some(name);
                Ok(())
            }
            Err(error) if error.outcome_unknown() => {
                done.unanswered = Some(ObjectKey::of(set));
                Err(error)
            }
            Err(error) => {
                if !matches!(error, ApiError::NotLeading(_)) {
                    let message = format!("Failed to create new machine set \"{name}\": {error}");
                    self.deps.recorder.note(deployment, EventNote::warning(reason::SET_CREATE_ERROR, message.clone()));
                    done.report.create_error = Some(message);
                }
                Err(error)
            }
        }
    }

    /// An orphan is only taken over by a deployment that exists and stays (spec/deployment-and-set §5).
    async fn may_adopt(&self, deployment: &MachineDeployment) -> Result<(), ApiError> {
        let key = ObjectKey::of(deployment);
        let fresh = self.deps.deployments.get(&key).await?;
        let stays = fresh.is_some_and(|fresh| {
            fresh.metadata.uid == deployment.metadata.uid && fresh.metadata.deletion_timestamp.is_none()
        });
        if stays {
            return Ok(());
        }
        Err(ApiError::Conflict(format!("machinedeployment {key} adopts no sets: it was replaced or is being deleted")))
    }

    async fn patch_nodes(&self, steps: &[Step], done: &mut Done) -> Result<(), ApiError> {
        let Some(nodes) = &self.deps.nodes else { return Ok(()) };
        let calls = steps.iter().filter_map(|step| match &step.effect {
            Effect::PatchNode { node, patch, on_failure } => Some((node, patch, *on_failure)),
            _ => None,
        });
        // Boxed, so that their lifetime has a name and the pass may run on any worker.
        let calls: Vec<BoxFuture<'_, (OnFailure, Result<(), ApiError>)>> = calls
            .map(|(node, patch, on_failure)| {
                let patched = nodes.patch(node, Part::Main, patch.clone());
                async move { (on_failure, gone_is_fine(patched.await.map(drop))) }.boxed()
            })
            .collect();
        let results: Vec<_> = stream::iter(calls).buffer_unordered(NODE_PATCHES_AT_ONCE).collect().await;
        for (on_failure, result) in results {
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

fn gone_is_fine(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}
