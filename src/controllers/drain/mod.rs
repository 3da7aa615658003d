//! Draining a node: moving its pods away within their disruption budgets, and by force where nothing else helps.
//!
//! A drain is stepped: `observe` builds a plain value, [`step::drain_step`] decides, `act` evicts. No worker waits for a
//! pod; what is waited for wakes the machine, or a time does. Cordon, conditions and what comes after the drain are the
//! machine room's. Source: spec/machine-controller §7.

pub mod act;
pub mod budgets;
pub mod observe;
pub mod pods;
pub mod progress;
pub mod step;
#[cfg(test)]
mod step_tests;
pub mod volumes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use self::{
    act::Evictor,
    observe::{DrainLimits, DrainViews, volumes_of},
    progress::Progress,
    step::{DrainResult, drain_step, learn},
};
use crate::driver::{Driver, OpContext, VolumeIdsRequest};

/// Steps drains.
pub struct Drainer {
    views: Arc<dyn DrainViews>,
    evictor: Evictor,
    volumes_deadline: Duration,
}

/// The drain to step.
pub struct Drain<'a> {
    /// Name of the node.
    pub node_name: &'a str,
    /// The node, if it is there.
    pub node: Option<&'a Node>,
    /// Limits and mode.
    pub limits: DrainLimits,
    /// Tells the provider's names of volumes; without it volumes are not waited for.
    pub driver: Option<&'a Arc<dyn Driver>>,
    /// The time of the step.
    pub now: Timestamp,
}

impl Drainer {
    /// Drains with these views through this evictor; `volumes_deadline` bounds the driver's `get_volume_ids`.
    pub fn new(views: Arc<dyn DrainViews>, evictor: Evictor, volumes_deadline: Duration) -> Self {
        Self { views, evictor, volumes_deadline }
    }

    /// The views of pods and volumes.
    pub fn views(&self) -> &dyn DrainViews {
        &*self.views
    }

    /// The evictor, for volume attachments.
    pub fn evictor(&self) -> &Evictor {
        &self.evictor
    }

    /// One step. What was done is in the progress that comes back.
    pub async fn step(&self, drain: &Drain<'_>, mut progress: Progress) -> (Progress, DrainResult) {
        self.look_up_volumes(drain, &mut progress).await;
        let seen = observe::observe(
            &*self.views,
            drain.node_name,
            drain.node,
            drain.limits.clone(),
            &progress,
            &progress.volume_ids,
            drain.now,
        );
        let step = drain_step(&seen);
        let answers = join_all(step.actions.iter().map(|action| self.evictor.remove(action))).await;
        let mut progress = step.progress;
        let acted = !answers.is_empty();
        for (action, answer) in step.actions.iter().zip(answers) {
            learn(&mut progress, &seen, action, answer, drain.now);
        }
        // What the answers changed is judged by the next step, soon.
        let result = match step.result {
            DrainResult::Running { progress, blocked_by, wake } if acted => {
                DrainResult::Running { progress, blocked_by, wake: wake.min(Duration::from_millis(100)) }
            }
            other => other,
        };
        (progress, result)
    }

    /// Asks the driver once per volume what the provider calls it; a volume it can't name is not tracked (MC-221).
    async fn look_up_volumes(&self, drain: &Drain<'_>, progress: &mut Progress) {
        let mut unknown = BTreeMap::new();
        for pod in self.views.pods_on(drain.node_name) {
            for name in volumes_of(&*self.views, &pod) {
                let claims = pods::claims_of(&pod);
                progress.claims.entry(name.clone()).or_insert(claims);
                if !progress.volume_ids.contains_key(&name)
                    && let Some(spec) = self.views.volume(&name).and_then(|volume| volume.spec.clone())
                {
                    unknown.insert(name, spec);
                }
            }
        }
        for (name, spec) in unknown {
            let ids = match drain.driver {
                None => Vec::new(),
                Some(driver) => {
                    let cx = OpContext { deadline: self.volumes_deadline };
                    let asked = driver.get_volume_ids(&cx, VolumeIdsRequest { volumes: vec![spec] });
                    match tokio::time::timeout(self.volumes_deadline, asked).await {
                        Ok(Ok(ids)) => ids,
                        Ok(Err(status)) => {
                            tracing::warn!(volume = name, %status, "volume is not waited for: the driver can't name it");
                            Vec::new()
                        }
                        Err(_) => Vec::new(),
                    }
                }
            };
            progress.volume_ids.insert(name, ids);
        }
    }
}
