//! Carries out the effects of a run. Decides nothing. A failure with one object does not stop the others (D-17).

use jiff::Timestamp;

use super::{OvershootController, decide::Effect, patches};
use crate::{outcomes::gone_is_fine, snapshots::SetSnapshot};
use controller_runtime::{error::ApiError, events::EventNote, snapshot::Snapshot};
use machine_api::names::freeze_reason;

impl OvershootController {
    /// Carries out all effects and returns the errors.
    pub(super) async fn act(&self, effects: &[Effect], now: Timestamp) -> Vec<ApiError> {
        let mut errors = Vec::new();
        for effect in effects {
            tracing::debug!(rule = effect.rule(), "act");
            match self.write(effect, now).await {
                Ok(()) => self.record_event(effect),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    async fn write(&self, effect: &Effect, now: Timestamp) -> Result<(), ApiError> {
        for (part, patch) in patches::of_effect(effect, now) {
            match effect {
                Effect::FreezeSet(set, _) | Effect::ThawSet(set) => {
                    gone_is_fine(self.deps.sets.patch(&set.target(), part, patch).await)?;
                }
                Effect::FreezeDeployment(deployment, _) | Effect::ThawDeployment(deployment) => {
                    gone_is_fine(self.deps.deployments.patch(&deployment.target(), part, patch).await)?;
                }
            }
        }
        Ok(())
    }

    fn record_event(&self, effect: &Effect) {
        let name = |set: &SetSnapshot| set.name().to_owned();
        let (set, note) = match effect {
            Effect::FreezeSet(set, _) => {
                let text = format!("SafetyController: Froze MachineSet {} due to replica overshooting", name(set));
                (set, EventNote::normal(freeze_reason::FROZE_SET, text))
            }
            Effect::ThawSet(set) => {
                let text = format!("SafetyController: Unfroze MachineSet {}", name(set));
                (set, EventNote::normal(freeze_reason::UNFROZE_SET, text))
            }
            Effect::FreezeDeployment(..) | Effect::ThawDeployment(_) => return,
        };
        self.deps.recorder.note(set, note);
    }
}
