//! A run of the overshoot guard: the real decisions, carried out as `controllers::overshooting` carries them out.

use std::time::Duration;

use super::{calls::Calls, process::Process};
use controller_runtime::{
    error::ApiError,
    key::{ObjectKey, Target},
    queue::Outcome,
};
use machine_controllers::overshooting::{
    Margins,
    decide::{Turn, decide},
    freeze::{frozen_deployment, frozen_set, thawed_deployment, thawed_set},
    observe::OvershootObservation,
};

/// The defaults of the flags.
const MARGINS: Margins = Margins { up: 2, down: 1 };

impl Process {
    /// One run of the guard.
    pub fn guard_pass(&mut self, calls: &mut Calls<'_>, key: &ObjectKey) -> Outcome {
        let seen = OvershootObservation::look_up(&self.views, &key.namespace, MARGINS, calls.now);
        let mut failed: Option<ApiError> = None;
        for turn in decide(&seen) {
            calls.trace.say(|| format!("    decides {}", turn.rule()));
            let result = match &turn {
                Turn::FreezeSet(set, why) => frozen_set(set, why, calls.now).iter().try_for_each(|(part, patch)| {
                    calls.patch(&self.views.sets, &Target::of(&**set), *part, patch).map(drop)
                }),
                Turn::ThawSet(set) => thawed_set(set).iter().try_for_each(|(part, patch)| {
                    calls.patch(&self.views.sets, &Target::of(&**set), *part, patch).map(drop)
                }),
                Turn::FreezeDeployment(deployment, why) => {
                    frozen_deployment(deployment, why, calls.now).iter().try_for_each(|(part, patch)| {
                        calls.patch(&self.views.deployments, &Target::of(&**deployment), *part, patch).map(drop)
                    })
                }
                Turn::ThawDeployment(deployment) => {
                    thawed_deployment(deployment).iter().try_for_each(|(part, patch)| {
                        calls.patch(&self.views.deployments, &Target::of(&**deployment), *part, patch).map(drop)
                    })
                }
            };
            if let Err(error) = result
                && !error.is_not_found()
            {
                // One error that is no refusal is reason enough to try again soon.
                failed = failed.filter(|known| !known.is_refusal()).or(Some(error));
            }
        }
        match failed {
            Some(error) => Outcome::after(&error, error.to_string()),
            None => Outcome::LookAgain(Duration::from_secs(60), "period"),
        }
    }
}
