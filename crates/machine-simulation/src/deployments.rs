//! A pass over a deployment: the real decisions, carried out as `controllers::deployment` carries them out.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{
    calls::Calls,
    guards::{Guard, cleans, deployment_without},
    process::Process,
};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    objects::Part,
    queue::Outcome,
};
use machine_api::v1alpha1::{Machine, MachineDeployment, MachineSet};
use machine_controllers::{
    checked::Checked,
    deployment::{
        Done,
        decide::decide,
        observe::DeploymentObservation,
        plan::{Counted, Effect, Next, OnFailure, Plan, Step},
        settling::Looks,
        status::{Report, decide_status},
    },
    outcomes::{gone_is_fine, may_adopt, released, taken_by_us},
};

/// What a process remembers of a deployment.
#[derive(Clone, Debug, Default)]
pub struct DeploymentMemory {
    uid: Option<String>,
    status_written: Option<Timestamp>,
    checked: Option<Checked<MachineDeployment>>,
    looks: Looks,
    unanswered: BTreeSet<Counted>,
}

/// What was decided about a deployment, and on what.
pub struct DeploymentDecided {
    seen: DeploymentObservation,
    plan: Plan,
}

impl Process {
    /// One pass over a deployment.
    pub fn deployment_pass(&mut self, calls: &mut Calls<'_>, key: &ObjectKey) -> Outcome {
        match self.decide_on_deployment(calls, key) {
            Ok(decided) => self.carry_out_deployment(calls, key, decided),
            Err(outcome) => outcome,
        }
    }

    /// The first half of a pass.
    ///
    /// # Errors
    /// How the pass ends when nothing can be decided.
    pub(super) fn decide_on_deployment(
        &mut self,
        calls: &mut Calls<'_>,
        key: &ObjectKey,
    ) -> Result<DeploymentDecided, Outcome> {
        let unanswered = self.deployments.get(key).map(|memory| memory.unanswered.clone()).unwrap_or_default();
        for counted in unanswered {
            let read = match &counted {
                Counted::Set(set) => calls.get(&self.views.sets, set).map(drop),
                Counted::Machine(machine) => calls.get(&self.views.machines, machine).map(drop),
                Counted::Node(node) => calls.get(&self.nodes, node).map(drop),
            };
            if read.is_err() {
                return Err(Outcome::Retry(format!("{counted} can't be read again")));
            }
            if let Some(memory) = self.deployments.get_mut(key) {
                memory.unanswered.remove(&counted);
            }
        }
        let Some(seen) = self.see_deployment(calls, key) else {
            self.deployments.remove(key);
            return Err(Outcome::Settled);
        };
        let mut plan = decide(&deployment_without(calls.around.without, &seen));
        if calls.lacks(Guard::Cleaning) {
            plan.steps.retain(|step| !cleans(step.rule));
        }
        calls.checks.deployment_decides(&seen, &plan, calls.trace);
        Ok(DeploymentDecided { seen, plan })
    }

    /// The second half of a pass.
    pub(super) fn carry_out_deployment(
        &mut self,
        calls: &mut Calls<'_>,
        key: &ObjectKey,
        decided: DeploymentDecided,
    ) -> Outcome {
        let DeploymentDecided { seen, plan } = decided;
        let done = self.act_on_deployment(calls, &seen, &plan.steps);
        if !done.unanswered.is_empty() && !calls.lacks(Guard::Unanswered) {
            self.deployments.entry(key.clone()).or_default().unanswered.extend(done.unanswered.iter().cloned());
        }
        let after = if plan.steps.is_empty() { Some(seen) } else { self.see_deployment(calls, key) };
        let told = match after {
            Some(after) => self.tell_deployment(calls, key, &after, &done.report),
            None => Ok(Next::OnChange),
        };
        match (done.error, told) {
            (Some(error), _) | (None, Err(error)) => Outcome::after(&error, error.to_string()),
            (None, Ok(next)) => plan.next.or_earlier(next).into(),
        }
    }

    fn see_deployment(&mut self, calls: &Calls<'_>, key: &ObjectKey) -> Option<DeploymentObservation> {
        let mut seen = DeploymentObservation::look_up(&self.views, Some(&*self.nodes), key, calls.now)?;
        seen.settings = self.settings;
        let memory = self.deployments.entry(key.clone()).or_default();
        if memory.uid != seen.deployment.metadata.uid {
            *memory = DeploymentMemory { uid: seen.deployment.metadata.uid.clone(), ..DeploymentMemory::default() };
        }
        memory.checked = Some(Self::checked(self.origin, &seen.deployment, memory.checked.as_ref()));
        seen.checked.clone_from(&memory.checked);
        seen.status_written = memory.status_written;
        seen.unsettled = memory.looks.take(&seen.sets, calls.now);
        Some(seen)
    }

    fn tell_deployment(
        &mut self,
        calls: &mut Calls<'_>,
        key: &ObjectKey,
        seen: &DeploymentObservation,
        report: &Report,
    ) -> Result<Next, ApiError> {
        let plan = decide_status(seen, report);
        if let Some(error) = self.act_on_deployment(calls, seen, &plan.steps).error {
            return Err(error);
        }
        if plan.steps.iter().any(|step| matches!(step.effect, Effect::PatchDeployment { part: Part::Status, .. })) {
            self.deployments.entry(key.clone()).or_default().status_written = Some(seen.now);
        }
        Ok(plan.next)
    }

    fn act_on_deployment(&self, calls: &mut Calls<'_>, seen: &DeploymentObservation, steps: &[Step]) -> Done {
        let mut done = Done::default();
        let mut reread = false;
        for step in steps {
            let result = match &step.effect {
                Effect::PatchNode { node, patch, on_failure } => {
                    let patched = gone_is_fine(calls.patch(&self.nodes, node, Part::Main, patch));
                    done.note(&step.effect, &patched);
                    if step.rule == "in-place/select" {
                        calls.checks.picked(calls.api, &node.key.name);
                    }
                    match (patched, on_failure) {
                        (Err(error), OnFailure::GoOn) => {
                            done.error.get_or_insert(error);
                            Ok(())
                        }
                        (result, _) => result,
                    }
                }
                Effect::CreateSet(set) => self.create_set(calls, &seen.deployment, set, &mut done),
                Effect::AdoptSet { set, patch } => {
                    let allowed = if reread { Ok(()) } else { self.may_adopt_sets(calls, &seen.deployment) };
                    reread = true;
                    allowed.and_then(|()| gone_is_fine(calls.patch(&self.views.sets, set, Part::Main, patch)))
                }
                effect => self.act_once(calls, &seen.deployment, effect),
            };
            done.note(&step.effect, &result);
            if let Err(error) = result {
                done.error = Some(error);
                return done;
            }
        }
        done
    }

    fn act_once(&self, calls: &mut Calls<'_>, deployment: &MachineDeployment, effect: &Effect) -> Result<(), ApiError> {
        match effect {
            Effect::PatchDeployment { part, patch } => {
                gone_is_fine(calls.patch(&self.views.deployments, &Target::of(deployment), *part, patch))
            }
            Effect::PatchSet { set, patch } => gone_is_fine(calls.patch(&self.views.sets, set, Part::Main, patch)),
            Effect::ScaleSet { set, patch, .. } => {
                calls.patch::<MachineSet>(&self.views.sets, set, Part::Main, patch).map(drop)
            }
            Effect::ReleaseSet { set, patch } => released(calls.patch(&self.views.sets, set, Part::Main, patch)),
            Effect::DeleteSet { set, version } => {
                calls.delete::<MachineSet>(&self.views.sets, set, version.as_deref()).map(drop)
            }
            Effect::PatchMachine { machine, patch } => {
                gone_is_fine(calls.patch::<Machine>(&self.views.machines, machine, Part::Main, patch))
            }
            Effect::Tell(note) => {
                calls.trace.say(|| format!("    event {}: {}", note.reason, note.message));
                calls.checks.costs("MachineDeployment", deployment.metadata.name.as_deref().unwrap_or_default());
                Ok(())
            }
            // Carried out above.
            Effect::PatchNode { .. } | Effect::CreateSet(_) | Effect::AdoptSet { .. } => Ok(()),
        }
    }

    fn create_set(
        &self,
        calls: &mut Calls<'_>,
        deployment: &MachineDeployment,
        set: &MachineSet,
        done: &mut Done,
    ) -> Result<(), ApiError> {
        let answer = match calls.create(&self.views.sets, set) {
            Err(ApiError::AlreadyExists(message)) => match calls.get(&self.views.sets, &ObjectKey::of(set)) {
                Ok(there) => {
                    let there = there.as_deref().map(|there| &there.metadata);
                    taken_by_us(there, deployment.metadata.uid.as_deref(), message)
                }
                Err(error) => {
                    done.unanswered.insert(Counted::Set(ObjectKey::of(set)));
                    return Err(error);
                }
            },
            other => other.map(drop),
        };
        done.creation(set, &answer);
        answer
    }

    fn may_adopt_sets(&self, calls: &mut Calls<'_>, deployment: &MachineDeployment) -> Result<(), ApiError> {
        let fresh = calls.get(&self.views.deployments, &ObjectKey::of(deployment))?;
        may_adopt(&deployment.metadata, fresh.as_deref().map(|fresh| &fresh.metadata))
    }
}
