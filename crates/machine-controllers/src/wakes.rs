//! Wake-ups: the keys that a change queues, and the delay.
//!
//! The `routing.rs` of each folder decides which change wakes which key; [`Wakes`] collects this for a loop. Pure.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;

use crate::{
    snapshots::{AttachmentSnapshot, DeploymentSnapshot, MachineSnapshot, NodeSnapshot, PodSnapshot, SetSnapshot},
    views::ControlViews,
};
use controller_runtime::{
    key::ObjectKey,
    snapshot::Snapshot,
    store::{Change, Listener},
};
use machine_api::v1alpha1::MachineClass;

/// The delay of a pass during which further changes can arrive.
pub const SOON: Duration = Duration::from_millis(20);

/// The effect of a wake-up on the back-off of a key whose last pass failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// The change may make a refused request succeed, such as a creation after a change of the class. The pass runs at
    /// once.
    EndsRefusals,
    /// The change may matter to the next pass. The pass runs at once.
    EndsBackOff,
    /// The failed pass itself may have caused the change. The back-off stays.
    KeepsBackOff,
}

/// A key to queue, and the delay. Machines often change in large numbers at once, and one pass can deal with many
/// changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// The key.
    pub key: ObjectKey,
    /// The delay.
    pub after: Duration,
    /// The effect on the back-off of the key.
    pub strength: Strength,
}

impl Wake {
    /// A wake-up without delay.
    pub fn now(key: ObjectKey) -> Self {
        Self { key, after: Duration::ZERO, strength: Strength::EndsBackOff }
    }

    /// A wake-up by a change of the object itself. A failed pass reports its failure in the status. This change is no
    /// reason to run the pass again.
    pub fn by_itself<S: Snapshot>(change: &Change<S>, is_status_alone: impl Fn(&S, &S) -> bool) -> Option<Self> {
        let object = change.newest()?;
        let strength = match (&change.old, &change.new) {
            (Some(old), Some(new)) if is_status_alone(old, new) => Strength::KeepsBackOff,
            _ => Strength::EndsBackOff,
        };
        Some(Self { strength, ..Self::now(object.key()) })
    }

    /// A wake-up after [`SOON`], so that further changes can arrive first.
    pub fn soon(key: ObjectKey) -> Self {
        Self { after: SOON, ..Self::now(key) }
    }

    /// A wake-up after [`SOON`] by a change that may end a refusal.
    pub fn by_grant(key: ObjectKey) -> Self {
        Self { strength: Strength::EndsRefusals, ..Self::soon(key) }
    }
}

/// Maps a change of an object to the wake-ups that it causes.
pub type Route<S> = Arc<dyn Fn(&Change<S>, &ControlViews) -> Vec<Wake> + Send + Sync>;

/// The changes that wake a loop, by kind. Changes of a kind without a route wake no key.
#[derive(Clone, Default)]
pub struct Wakes {
    /// Changes of machines.
    pub machines: Option<Route<MachineSnapshot>>,
    /// Changes of sets.
    pub sets: Option<Route<SetSnapshot>>,
    /// Changes of deployments.
    pub deployments: Option<Route<DeploymentSnapshot>>,
    /// Changes of classes.
    pub classes: Option<Route<Arc<MachineClass>>>,
    /// Changes of Secrets in the control cluster.
    pub secrets: Option<Route<Arc<Secret>>>,
    /// Changes of Nodes.
    pub nodes: Option<Route<NodeSnapshot>>,
    /// Changes of pods.
    pub pods: Option<Route<PodSnapshot>>,
    /// Changes of volume attachments.
    pub attachments: Option<Route<AttachmentSnapshot>>,
}

/// Makes a route from a function that returns keys or wake-ups.
pub fn route<S, I>(of: impl Fn(&Change<S>, &ControlViews) -> I + Send + Sync + 'static) -> Option<Route<S>>
where
    I: IntoIterator<Item: Into<Wake>>,
{
    Some(Arc::new(move |change, views| of(change, views).into_iter().map(Into::into).collect()))
}

/// A listener that calls `wake` for each key that a change wakes.
pub fn listener<S: 'static>(
    route: Route<S>,
    views: &ControlViews,
    wake: impl Fn(Wake) + Send + Sync + 'static,
) -> Listener<S> {
    let views = views.clone();
    Box::new(move |change| route(change, &views).into_iter().for_each(&wake))
}

impl From<ObjectKey> for Wake {
    fn from(key: ObjectKey) -> Self {
        Self::now(key)
    }
}
