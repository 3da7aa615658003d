//! The wait of a drain, as a message on which a user of the cluster can act.
//!
//! The message names the pending item that is least likely to end by itself. It contains the start and the limit of the
//! wait and does not change from step to step, so that an unchanged wait costs no write. Source: decisions.md 30.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    EVICTION_RETRY,
    observe::DrainObservation,
    progress::PodProgress,
    step::{pod_limit, volume_limit},
};
use crate::times::{after, rfc3339};
use kube_values::duration::GoDuration;

/// The wait of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Waiting {
    /// A disruption budget that refuses the eviction of a pod.
    Budget {
        /// Namespace and name of the pod that has been refused for the longest time.
        pod: String,
        /// Namespace and name of the budget, or of several budgets.
        budget: String,
        /// Number of pods that it delays.
        held: usize,
        /// Start of the wait.
        since: Timestamp,
    },
    /// A volume that must detach from the node.
    Detach {
        /// Name of the PV.
        volume: String,
        /// The pod that used it.
        pod: String,
        /// Start of the wait.
        since: Timestamp,
        /// When the wait fails.
        until: Timestamp,
    },
    /// A volume that must attach to another node.
    Reattach {
        /// Name of the PV.
        volume: String,
        /// The pod that used it.
        pod: String,
        /// Start of the wait.
        since: Timestamp,
        /// End of the wait.
        until: Timestamp,
    },
    /// A pod that is terminating.
    Pod {
        /// Namespace and name.
        pod: String,
        /// Start of the wait.
        since: Timestamp,
        /// When the wait fails.
        until: Timestamp,
    },
    /// The driver's answer about names of volumes.
    VolumeNames,
}

impl Waiting {
    /// The awaited object, as a phrase.
    pub fn whom(&self) -> String {
        match self {
            Self::Budget { pod, budget, held, .. } => {
                let others = match held {
                    0 | 1 => String::new(),
                    more => format!(" ({more} pods are held up)"),
                };
                format!("PodDisruptionBudget {budget} to allow the eviction of pod {pod}{others}")
            }
            Self::Detach { volume, pod, .. } => {
                format!("the VolumeAttachment of PersistentVolume {volume} (pod {pod}) to be detached from the node")
            }
            Self::Reattach { volume, pod, .. } => {
                format!("PersistentVolume {volume} (pod {pod}) to be attached to another node")
            }
            Self::Pod { pod, .. } => format!("pod {pod} to terminate"),
            Self::VolumeNames => "the driver to name the volumes of pods".to_owned(),
        }
    }

    /// Start of the wait.
    pub const fn since(&self) -> Option<Timestamp> {
        match self {
            Self::Budget { since, .. }
            | Self::Detach { since, .. }
            | Self::Reattach { since, .. }
            | Self::Pod { since, .. } => Some(*since),
            Self::VolumeNames => None,
        }
    }

    /// The limit of the wait, or the period of the retries, as a phrase.
    pub fn bounds(&self) -> Option<String> {
        match self {
            Self::Budget { .. } => Some(format!("asked again every {}", GoDuration::from(EVICTION_RETRY))),
            Self::Detach { until, .. } | Self::Pod { until, .. } => Some(format!("until {}", rfc3339(*until))),
            Self::Reattach { until, .. } => Some(format!("at most until {}", rfc3339(*until))),
            Self::VolumeNames => None,
        }
    }

    /// The names under which a failure lists it.
    pub(super) fn names(&self) -> Vec<&str> {
        match self {
            // A pod that could not be moved before may now be delayed by a budget.
            Self::Budget { budget, .. } => vec![budget],
            Self::Detach { volume, pod, .. } | Self::Reattach { volume, pod, .. } => vec![volume, pod],
            Self::Pod { pod, .. } => vec![pod],
            Self::VolumeNames => Vec::new(),
        }
    }

    /// The whole message.
    pub fn text(&self) -> String {
        let since = self.since().map(|began| format!(", since {}", rfc3339(began))).unwrap_or_default();
        let bounds = self.bounds().map(|bounds| format!(", {bounds}")).unwrap_or_default();
        format!("{}{since}{bounds}", self.whom())
    }
}

/// The wait of the drain: for a budget rather than for a volume, for a volume rather than for a pod. Among several, the
/// longest wait.
pub(super) fn waiting_for(seen: &DrainObservation, pending: &[(&String, &PodProgress)]) -> Option<Waiting> {
    let pods = || pending.iter().map(|(_, pod)| *pod);
    let refused = || pods().filter(|pod| pod.refused_by.is_some() && pod.accepted.is_none());
    if let Some(longest) = refused().min_by_key(|pod| (pod.refused_since, &pod.name)) {
        return Some(Waiting::Budget {
            pod: longest.name.clone(),
            budget: longest.refused_by.clone().unwrap_or_default(),
            held: refused().filter(|pod| pod.refused_by == longest.refused_by).count(),
            since: longest.refused_since.unwrap_or(seen.now),
        });
    }
    let mut accepted: Vec<_> =
        pending.iter().filter_map(|(uid, pod)| pod.accepted.map(|since| (since, *uid, *pod))).collect();
    accepted.sort_by_key(|(since, _, pod)| (*since, pod.name.clone()));
    let there = |uid: &str| seen.pods.iter().find(|pod| pod.uid == uid);
    let volume_at = |pod: &PodProgress, place: fn(&super::volumes::VolumePlace) -> bool| {
        pod.volumes.iter().find(|pv| seen.volumes.get(*pv).is_some_and(place)).cloned()
    };
    for (since, uid, pod) in &accepted {
        if pod.volumes.is_empty() || there(uid).is_some() {
            continue;
        }
        let pod_name = || pod.name.clone();
        if let Some(volume) = volume_at(pod, |place| place.here) {
            let until = after(*since, volume_limit(seen, None));
            return Some(Waiting::Detach { volume, pod: pod_name(), since: *since, until });
        }
        if let (Some(since), Some(volume)) = (pod.detached, volume_at(pod, |place| !place.elsewhere)) {
            let until = after(since, seen.limits.reattach);
            return Some(Waiting::Reattach { volume, pod: pod_name(), since, until });
        }
    }
    accepted.iter().find_map(|(since, uid, pod)| {
        let facts = there(uid)?;
        let limit = if pod.volumes.is_empty() { pod_limit(seen, facts) } else { volume_limit(seen, Some(facts)) };
        Some(Waiting::Pod { pod: pod.name.clone(), since: *since, until: after(*since, limit) })
    })
}
