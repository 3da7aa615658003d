//! Carries the turns of a run out. Decides nothing; a failure with one object stops no other (D-17).

use jiff::Timestamp;

use super::{
    OvershootController,
    decide::Turn,
    freeze::{frozen_deployment, frozen_set, thawed_deployment, thawed_set},
};
use crate::outcomes::gone_is_fine;
use controller_runtime::{
    error::ApiError,
    events::EventNote,
    key::Target,
    objects::{Part, Patch},
};
use machine_api::names::freeze_reason;

impl OvershootController {
    /// Carries all turns out and returns what failed.
    pub(super) async fn act(&self, turns: &[Turn], now: Timestamp) -> Vec<ApiError> {
        let mut errors = Vec::new();
        for turn in turns {
            tracing::debug!(rule = turn.rule(), "act");
            let done = match turn {
                Turn::FreezeSet(set, why) => {
                    let done = self.patch_set(&Target::of(&**set), frozen_set(set, why, now)).await;
                    let name = set.metadata.name.as_deref().unwrap_or_default();
                    let text = format!("SafetyController: Froze MachineSet {name} due to replica overshooting");
                    self.tell(done, set, EventNote::normal(freeze_reason::FROZE_SET, text))
                }
                Turn::ThawSet(set) => {
                    let done = self.patch_set(&Target::of(&**set), thawed_set(set)).await;
                    let name = set.metadata.name.as_deref().unwrap_or_default();
                    let text = format!("SafetyController: Unfroze MachineSet {name}");
                    self.tell(done, set, EventNote::normal(freeze_reason::UNFROZE_SET, text))
                }
                Turn::FreezeDeployment(deployment, why) => {
                    self.patch_deployment(&Target::of(&**deployment), frozen_deployment(deployment, why, now)).await
                }
                Turn::ThawDeployment(deployment) => {
                    self.patch_deployment(&Target::of(&**deployment), thawed_deployment(deployment)).await
                }
            };
            errors.extend(done.err());
        }
        errors
    }

    fn tell(
        &self,
        done: Result<(), ApiError>,
        set: &machine_api::v1alpha1::MachineSet,
        note: EventNote,
    ) -> Result<(), ApiError> {
        if done.is_ok() {
            self.deps.recorder.note(set, note);
        }
        done
    }

    async fn patch_set(&self, set: &Target, patches: Vec<(Part, Patch)>) -> Result<(), ApiError> {
        for (part, patch) in patches {
            gone_is_fine(self.deps.sets.patch(set, part, patch).await)?;
        }
        Ok(())
    }

    async fn patch_deployment(&self, deployment: &Target, patches: Vec<(Part, Patch)>) -> Result<(), ApiError> {
        for (part, patch) in patches {
            gone_is_fine(self.deps.deployments.patch(deployment, part, patch).await)?;
        }
        Ok(())
    }
}
