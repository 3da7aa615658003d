//! Counts the pods of a drain by state for `mcm_drain_pods`, which sums over all running drains.
//!
//! Source: spec/machine-controller §13.1.

use super::{
    observe::DrainObservation,
    progress::{End, PodProgress, Progress},
};
use mcm_metrics::{DrainPodState, DrainPods, Metrics};

/// The state of a pod in a drain; `None` when the drain has finished with it. A budget that never allows an eviction ends the attempt of
/// its pod, which is refused until the next attempt.
pub fn state_of(seen: &DrainObservation, uid: &str, pod: &PodProgress) -> Option<DrainPodState> {
    let is_there = seen.pods.iter().any(|facts| facts.uid == uid);
    let is_refused = pod.accepted.is_none() && pod.refused_by.is_some();
    match pod.end {
        Some(End::Failed(_)) if is_there && is_refused => return Some(DrainPodState::Refused),
        Some(End::Failed(_) | End::Done) => return None,
        None => {}
    }
    Some(match (pod.accepted, is_there) {
        (Some(_), true) => DrainPodState::Terminating,
        (Some(_), false) => DrainPodState::Detaching,
        (None, _) if is_refused => DrainPodState::Refused,
        (None, _) => DrainPodState::Pending,
    })
}

/// Numbers of pods of a drain, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts([u32; DrainPodState::ALL.len()]);

impl PodCounts {
    /// Counts the pods of this attempt.
    pub fn of(seen: &DrainObservation, progress: &Progress) -> Self {
        let mut counts = Self::default();
        for state in progress.pods.iter().filter_map(|(uid, pod)| state_of(seen, uid, pod)) {
            if let Some(count) = counts.0.get_mut(state as usize) {
                *count += 1;
            }
        }
        counts
    }

    fn get(&self, state: DrainPodState) -> u32 {
        self.0.get(state as usize).copied().unwrap_or_default()
    }
}

/// The pods of one drain in the metric. They are subtracted when the drain is dropped.
pub struct CountedPods {
    metrics: Metrics,
    shown: PodCounts,
}

impl CountedPods {
    /// The counts of a drain that has not started.
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, shown: PodCounts::default() }
    }

    /// Replaces the counts in the metric.
    pub fn show(&mut self, counts: PodCounts) {
        for state in DrainPodState::ALL {
            let change = f64::from(counts.get(*state)) - f64::from(self.shown.get(*state));
            if change != 0.0 {
                self.metrics.machine.drain_pods.add(&DrainPods { state: *state }, change);
            }
        }
        self.shown = counts;
    }
}

impl Drop for CountedPods {
    fn drop(&mut self) {
        self.show(PodCounts::default());
    }
}

impl std::fmt::Debug for CountedPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CountedPods").field(&self.shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[test]
    fn a_drain_takes_its_share_back_when_it_is_forgotten() {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let shown = |state: &str| {
            let text = metrics.render().unwrap();
            let start = format!("mcm_drain_pods{{state=\"{state}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned)).unwrap()
        };
        let mut one = CountedPods::new(metrics.clone());
        let mut other = CountedPods::new(metrics.clone());
        one.show(PodCounts([2, 1, 0, 0]));
        other.show(PodCounts([1, 0, 0, 0]));
        assert_eq!((shown("pending"), shown("refused")), ("3".to_owned(), "1".to_owned()));
        one.show(PodCounts([0, 0, 3, 0]));
        assert_eq!((shown("pending"), shown("terminating")), ("1".to_owned(), "3".to_owned()));
        drop((one, other));
        for state in ["pending", "refused", "terminating", "detaching"] {
            assert_eq!(shown(state), "0");
        }
    }
}
