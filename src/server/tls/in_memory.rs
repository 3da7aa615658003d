//! Mode `dev`: the same steps as the Secret's, on a value that is lost with the process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tracing::{error, info};

use super::{
    authority::CertSecret,
    plan::{CertPlan, PlanSettings, carry_out, plan},
    shared::{LONGEST_WAIT, Shared, look_again_at},
};
use controller_runtime::{lock, queue::Outcome};

pub(super) struct InMemory {
    pub(super) settings: PlanSettings,
    pub(super) shared: Arc<Shared>,
    pub(super) content: Mutex<Option<CertSecret>>,
}

impl InMemory {
    /// Takes the step that is due.
    pub(super) fn pass(&self) -> Outcome {
        let shared = &self.shared;
        let mut content = lock(&self.content);
        let (now, settings) = ((shared.clock)(), shared.with_hosts(&self.settings));
        let step = plan(content.as_ref(), shared.publication_of(content.as_ref()), now, &settings);
        match (&step, carry_out(&step, content.clone(), now, &settings, || (shared.entropy)())) {
            (CertPlan::Keep { until }, _) => look_again_at(*until, now),
            (_, Ok(Some(next))) => {
                if let Err(error) = shared.load(&next.serving) {
                    error!(%error, "the ephemeral certificate cannot be used");
                }
                shared.publish(&next);
                info!(name = %next.bundle_pem(), "made an ephemeral certificate; callers must trust this authority");
                *content = Some(next);
                // Another step may be due.
                look_again_at(now, now)
            }
            (_, Ok(None)) => Outcome::LookAgain(LONGEST_WAIT, "there was nothing to do"),
            (_, Err(error)) => {
                error!(%error, "no ephemeral certificate was made; trying again in a minute");
                Outcome::LookAgain(Duration::from_secs(60), "making failed")
            }
        }
    }
}
