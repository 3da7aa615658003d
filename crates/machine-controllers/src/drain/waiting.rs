//! Whom a drain waits for, in words that a person at the cluster can act on.
//!
//! Of all that is pending one thing is named: what is least likely to end by itself. The words hold the time since when and
//! until when, and stay the same from step to step, so that an unchanged wait costs no write. Source: decisions.md 30.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    observe::DrainObservation,
    progress::PodProgress,
    step::{pod_limit, volume_limit},
    volumes::Presence,
};
use crate::machine::{settings::EVICTION_RETRY, status_change::rfc3339, waiting::after};
use kube_values::duration::GoDuration;

/// Whom a drain waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Waiting {
    /// A disruption budget that refuses the eviction of a pod.
    Budget {
        /// Namespace and name of the pod that is refused longest.
        pod: String,
        /// Namespace and name of the budget, or of several.
        budget: String,
        /// Pods that it holds up.
        held: usize,
        /// Since when.
        since: Timestamp,
    },
    /// A volume that has to be detached from the node.
    Detach {
        /// Name of the PV.
        volume: String,
        /// The pod that used it.
        pod: String,
        /// Since when.
        since: Timestamp,
        /// When the wait has failed.
        until: Timestamp,
    },
    /// A volume that has to be attached to another node.
    Reattach {
        /// Name of the PV.
        volume: String,
        /// The pod that used it.
        pod: String,
        /// Since when.
        since: Timestamp,
        /// When it is not waited for any longer.
        until: Timestamp,
    },
    /// A pod that is terminating.
    Pod {
        /// Namespace and name.
        pod: String,
        /// Since when.
        since: Timestamp,
        /// When the wait has failed.
        until: Timestamp,
    },
    /// Names of volumes that the driver was asked for.
    VolumeNames,
}

impl Waiting {
    /// Whether a text names whom it is for. Names of volumes are asked for by every attempt and tell nothing by themselves.
    pub fn is_named_in(&self, text: &str) -> bool {
        match self {
            Self::Budget { budget, .. } => names(text, budget),
            Self::Detach { volume, pod, .. } | Self::Reattach { volume, pod, .. } => {
                names(text, volume) || names(text, pod)
            }
            Self::Pod { pod, .. } => names(text, pod),
            Self::VolumeNames => true,
        }
    }

    /// The wait in words.
    pub fn text(&self) -> String {
        match self {
            Self::Budget { pod, budget, held, since } => {
                let others = match held {
                    0 | 1 => String::new(),
                    more => format!(" ({more} pods are held up)"),
                };
                format!(
                    "PodDisruptionBudget {budget} to allow the eviction of pod {pod}{others}, since {}; asked again every {}",
                    rfc3339(*since),
                    GoDuration::from(EVICTION_RETRY)
                )
            }
            Self::Detach { volume, pod, since, until } => format!(
                "the VolumeAttachment of PersistentVolume {volume} (pod {pod}) to be detached from the node, since {}, until {}",
                rfc3339(*since),
                rfc3339(*until)
            ),
            Self::Reattach { volume, pod, since, until } => format!(
                "PersistentVolume {volume} (pod {pod}) to be attached to another node, since {}, at most until {}",
                rfc3339(*since),
                rfc3339(*until)
            ),
            Self::Pod { pod, since, until } => {
                format!("pod {pod} to terminate, since {}, until {}", rfc3339(*since), rfc3339(*until))
            }
            Self::VolumeNames => "the driver to name the volumes of pods".to_owned(),
        }
    }
}

/// Whether the text has this name, and not only a longer one that holds it.
fn names(text: &str, name: &str) -> bool {
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '-' | '/');
    // A dot may end the sentence or go on with the name.
    let is_end = |rest: &str| {
        let mut chars = rest.chars();
        match chars.next() {
            Some('.') => !chars.next().is_some_and(char::is_alphanumeric),
            first => !first.is_some_and(goes_on),
        }
    };
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| goes_on(c) || c == '.') && is_end(&text[at + name.len()..])
    })
}

/// Whom the drain waits for: a budget before a volume, a volume before a pod; of several the one that waits longest.
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
        if let Some(volume) = volume_at(pod, |place| place.here == Presence::Yes) {
            let until = after(*since, volume_limit(seen, None));
            return Some(Waiting::Detach { volume, pod: pod_name(), since: *since, until });
        }
        if let (Some(since), Some(volume)) = (pod.detached, volume_at(pod, |place| place.elsewhere == Presence::No)) {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::at_the_end("held by ns/web", true)]
    #[case::before_a_full_stop("held by ns/web. Tried again", true)]
    #[case::in_quotes("pod \"ns/web\" terminating", true)]
    #[case::a_longer_name("held by ns/web-1", false)]
    #[case::a_name_with_a_dot("held by ns/web.v2", false)]
    #[case::another_namespace("held by my-ns/web", false)]
    #[case::the_second_one_is_it("held by ns/web-1 and ns/web", true)]
    fn a_text_names_somebody(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(names(text, "ns/web"), expected);
    }
}
