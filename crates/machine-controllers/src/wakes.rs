//! What a change wakes: keys of loops, and how soon they are looked at.
//!
//! Which change wakes which key is decided in each room's `routing.rs`; [`Wakes`] gathers that for a loop. Pure.

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

/// The pause before a pass in which further changes may gather.
pub const SOON: Duration = Duration::from_millis(20);

/// Whether a wake-up is stronger than the back-off of a key whose last pass failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// What was refused about the object may be granted now, such as a creation after a change of the class: it is tried at once.
    EndsRefusals,
    /// Something has changed that the next pass may depend on: it runs at once.
    EndsBackOff,
    /// The change may come from the failed pass itself: its back-off holds.
    KeepsBackOff,
}

/// A key to look at, and how soon: machines come and go in crowds, and one pass can deal with many of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wake {
    /// The key.
    pub key: ObjectKey,
    /// After this time.
    pub after: Duration,
    /// What it means for a key whose last pass failed.
    pub strength: Strength,
}

impl Wake {
    /// A wake-up without delay.
    pub fn now(key: ObjectKey) -> Self {
        Self { key, after: Duration::ZERO, strength: Strength::EndsBackOff }
    }

    /// A wake-up by the object itself. A pass that fails says so in the status, and that is no reason to run it again.
    pub fn by_itself<S: Snapshot>(change: &Change<S>, is_status_alone: impl Fn(&S, &S) -> bool) -> Option<Self> {
        let object = change.newest()?;
        let strength = match (&change.old, &change.new) {
            (Some(old), Some(new)) if is_status_alone(old, new) => Strength::KeepsBackOff,
            _ => Strength::EndsBackOff,
        };
        Some(Self { strength, ..Self::now(object.key()) })
    }

    /// A wake-up in which further changes may gather.
    pub fn soon(key: ObjectKey) -> Self {
        Self { after: SOON, ..Self::now(key) }
    }

    /// A wake-up a moment later, by something that may have been the reason of a refusal.
    pub fn by_grant(key: ObjectKey) -> Self {
        Self { strength: Strength::EndsRefusals, ..Self::soon(key) }
    }
}

/// What changes of a kind wake.
pub type Route<S> = Arc<dyn Fn(&Change<S>, &ControlViews) -> Vec<Wake> + Send + Sync>;

/// What wakes a loop, kind by kind. A kind without a route wakes nobody.
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

/// The route that this function is, whatever keys it gives.
pub fn route<S, I>(of: impl Fn(&Change<S>, &ControlViews) -> I + Send + Sync + 'static) -> Option<Route<S>>
where
    I: IntoIterator<Item: Into<Wake>>,
{
    Some(Arc::new(move |change, views| of(change, views).into_iter().map(Into::into).collect()))
}

/// A listener that does this with each key that a change wakes.
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
