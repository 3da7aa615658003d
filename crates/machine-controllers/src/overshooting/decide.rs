//! Decides which sets and deployments to freeze and unfreeze in this run. A failure with one object does not affect the
//! others (D-17). Pure.
//!
//! A set is too full when the set alone, or all sets of its deployment together (D-52), reach the limit. The original
//! also counts all terminating machines of a set; here only terminating machines that never had a Node count. In the
//! sum over the sets of a deployment no terminating machines count: otherwise every rollout with slow drains would be
//! frozen.
//!
//! A request to unfreeze a deployment is fulfilled in one run: its sets are unfrozen first and the deployment last, so
//! that the request stays on the deployment until everything is done. The original takes a detour over annotations of
//! the sets.

use std::collections::BTreeMap;

use super::{
    freeze::{Marks, marks_of_deployment, marks_of_set},
    limits::Limits,
    observe::{GuardedSet, OvershootObservation},
};
use crate::snapshots::{DeploymentSnapshot, SetSnapshot};
use controller_runtime::snapshot::Snapshot;
use machine_api::names::freeze_reason;

/// An effect on one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The set may not create machines.
    FreezeSet(SetSnapshot, Why),
    /// The set may create machines again.
    ThawSet(SetSnapshot),
    /// The deployment may not grow.
    FreezeDeployment(DeploymentSnapshot, Why),
    /// The deployment may grow again.
    ThawDeployment(DeploymentSnapshot),
}

/// The reason of a freeze, as in the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// Reason in CamelCase.
    pub reason: &'static str,
    /// Message for users.
    pub message: String,
}

/// Message of the condition of a deployment that is frozen because its set is frozen.
pub const STATE_SYNC_MESSAGE: &str =
    "MachineDeployment State was inconsistent, hence safety controller has fixed this and frozen it";

/// How the number of machines compares with the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    TooFull,
    Between,
    LowEnough,
}

impl Fill {
    fn of(machines: i64, limits: Limits) -> Self {
        if machines >= limits.upper {
            Self::TooFull
        } else if machines <= limits.lower {
            Self::LowEnough
        } else {
            Self::Between
        }
    }
}

/// A deployment with the total of its sets.
struct Family<'a> {
    deployment: &'a DeploymentSnapshot,
    limits: Limits,
    staying: i64,
}

/// Decides what to freeze and unfreeze.
pub fn decide(seen: &OvershootObservation) -> Vec<Effect> {
    let families = families(seen);
    let mut effects = Vec::new();
    // The reason for each deployment that has a frozen set.
    let mut frozen: BTreeMap<&str, Why> = BTreeMap::new();
    for guarded in &seen.sets {
        let family = owner_uid(&guarded.set).and_then(|uid| Some((uid, families.get(uid)?)));
        let verdict = verdict(guarded, family.map(|(_, family)| family), seen);
        if let (Some((uid, _)), Verdict::Freeze(_) | Verdict::StayFrozen) = (family, &verdict) {
            let why = match &verdict {
                Verdict::Freeze(why) => why.clone(),
                _ => Why { reason: freeze_reason::STATE_SYNC, message: STATE_SYNC_MESSAGE.to_owned() },
            };
            frozen.entry(uid).or_insert(why);
        }
        match verdict {
            Verdict::Freeze(why) => effects.push(Effect::FreezeSet(guarded.set.clone(), why)),
            Verdict::Thaw => effects.push(Effect::ThawSet(guarded.set.clone())),
            Verdict::StayFrozen | Verdict::Nothing => {}
        }
    }
    for (uid, family) in &families {
        let marks = marks_of_deployment(family.deployment);
        match frozen.remove(uid) {
            Some(why) if !marks.is_complete() => {
                effects.push(Effect::FreezeDeployment(family.deployment.clone(), why));
            }
            None if marks.is_any() => effects.push(Effect::ThawDeployment(family.deployment.clone())),
            Some(_) | None => {}
        }
    }
    effects
}

enum Verdict {
    Freeze(Why),
    StayFrozen,
    Thaw,
    Nothing,
}

fn verdict(guarded: &GuardedSet, family: Option<&Family<'_>>, seen: &OvershootObservation) -> Verdict {
    let set = &guarded.set;
    if set.is_deleting() {
        // A set that is being deleted creates no machines, and its machines are deleted with it.
        return Verdict::Nothing;
    }
    let marks = marks_of_set(set);
    let asked = marks.thaw_asked || family.is_some_and(|family| marks_of_deployment(family.deployment).thaw_asked);
    if asked {
        return if marks.is_any() { Verdict::Thaw } else { Verdict::Nothing };
    }
    let limits = family.map_or_else(|| Limits::of_lone_set(set, seen.margins), |family| family.limits);
    let own = Fill::of(guarded.machines, limits);
    let sum = family.map_or(Fill::LowEnough, |family| Fill::of(family.staying, limits));
    match (own, sum) {
        _ if marks.is_frozen() && (own, sum) == (Fill::LowEnough, Fill::LowEnough) => Verdict::Thaw,
        _ if marks.is_frozen() => Verdict::StayFrozen,
        (Fill::TooFull, _) => Verdict::Freeze(too_full(set, guarded.machines, limits)),
        (_, Fill::TooFull) => Verdict::Freeze(sum_too_full(family, limits)),
        _ => Verdict::Nothing,
    }
}

fn too_full(set: &SetSnapshot, machines: i64, limits: Limits) -> Why {
    let name = set.name();
    let message = format!(
        "The number of machines backing MachineSet: {name} is {machines} >= {} which is the Max-ScaleUp-Limit",
        limits.upper
    );
    Why { reason: freeze_reason::OVERSHOOTING, message }
}

fn sum_too_full(family: Option<&Family<'_>>, limits: Limits) -> Why {
    let name = family.map_or("", |family| family.deployment.name());
    let machines = family.map_or(0, |family| family.staying);
    let message = format!(
        "The number of machines backing all MachineSets of MachineDeployment: {name} is {machines} >= {} which is the \
         Max-ScaleUp-Limit",
        limits.upper
    );
    Why { reason: freeze_reason::OVERSHOOTING, message }
}

fn owner_uid(set: &SetSnapshot) -> Option<&str> {
    set.controller().filter(|owner| owner.kind == "MachineDeployment").map(|owner| owner.uid.as_str())
}

/// The deployments that are not being deleted, by UID.
fn families(seen: &OvershootObservation) -> BTreeMap<&str, Family<'_>> {
    let mut families: BTreeMap<&str, Family<'_>> = seen
        .deployments
        .iter()
        .filter(|deployment| !deployment.is_deleting())
        .map(|deployment| {
            let limits = Limits::of_deployment(deployment, seen.margins);
            (deployment.uid(), Family { deployment, limits, staying: 0 })
        })
        .collect();
    for guarded in &seen.sets {
        if let Some(family) = owner_uid(&guarded.set).and_then(|uid| families.get_mut(uid)) {
            family.staying += guarded.staying;
        }
    }
    families
}

impl Effect {
    /// Name of the rule, for logs and the journal.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::FreezeSet(..) => "overshooting/freeze",
            Self::ThawSet(_) => "overshooting/thaw",
            Self::FreezeDeployment(..) => "overshooting/freeze-deployment",
            Self::ThawDeployment(_) => "overshooting/thaw-deployment",
        }
    }
}

impl Marks {
    /// Whether both label and condition say that the object is frozen.
    fn is_complete(self) -> bool {
        self.label && self.condition
    }

    /// Whether label or condition says that the object is frozen.
    fn is_frozen(self) -> bool {
        self.label || self.condition
    }

    /// Whether there is anything for a thaw to remove.
    fn is_any(self) -> bool {
        self.is_frozen() || self.thaw_asked
    }
}
