//! The sets of a deployment as a rollout sees them: which is the new one, which are old, and how many machines each has.
//!
//! Source: spec/deployment-and-set §7.2 (steps 2 and 3), §9.2, §9.4. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    fenceposts::Fenceposts,
    observe::{DeploymentObservation, SetSeen},
    template_equality::is_equal,
};
use crate::{
    api::v1alpha1::{Machine, MachineDeployment, MachineSet},
    controllers::set::{
        counts::{Counts, is_available, is_terminating},
        ownership::{Owner, Standing},
        ranking::sort_for_deletion,
    },
};

/// A set with its counts.
#[derive(Clone, Debug)]
pub struct SetState<'a> {
    /// The set.
    pub set: &'a Arc<MachineSet>,
    /// Its machines.
    pub machines: &'a [Arc<Machine>],
    /// What its machines count as.
    pub counts: Counts,
    /// Available machines that will be left once the set has deleted what it has too many already. Counting the others
    /// would spend them twice.
    pub kept_available: i32,
}

impl<'a> SetState<'a> {
    fn of(seen: &'a SetSeen, now: Timestamp) -> Self {
        let labels = seen.set.spec.template.metadata.labels.as_ref();
        let counts = Counts::of(seen.machines.iter().map(AsRef::as_ref), labels);
        let surplus = counts.staying.saturating_sub(seen.set.spec.replicas.max(0));
        let kept_available = if surplus > 0 {
            let mut staying: Vec<Arc<Machine>> =
                seen.machines.iter().filter(|machine| !is_terminating(machine)).cloned().collect();
            sort_for_deletion(&mut staying, now);
            let skipped = usize::try_from(surplus).unwrap_or(0);
            staying.iter().skip(skipped).map(|machine| i32::from(is_available(machine))).sum()
        } else {
            counts.available
        };
        Self { set: &seen.set, machines: &seen.machines, counts, kept_available }
    }

    /// The wanted machines.
    pub fn spec(&self) -> i32 {
        self.set.spec.replicas
    }

    /// Whether the set wants machines.
    pub fn is_active(&self) -> bool {
        self.spec() > 0
    }

    /// Machines that are there or will be: the larger of wanted and existing (D-12).
    pub fn committed(&self) -> i32 {
        self.spec().max(self.counts.replicas)
    }

    /// An annotation of the set.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.set.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The name of the set.
    pub fn name(&self) -> &'a str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }
}

/// A deployment with its sets.
#[derive(Clone, Debug)]
pub struct Fleet<'a> {
    /// The deployment.
    pub deployment: &'a MachineDeployment,
    /// Its limits.
    pub limits: Fenceposts,
    /// The set that the present template asks for.
    pub new: Option<SetState<'a>>,
    /// All others, oldest first.
    pub old: Vec<SetState<'a>>,
}

impl<'a> Fleet<'a> {
    /// Sorts the sets that belong to the deployment.
    pub fn of(seen: &'a DeploymentObservation) -> Self {
        let deployment = &*seen.deployment;
        let owner = owner(deployment);
        let mut sets: Vec<&SetSeen> =
            seen.sets.iter().filter(|set| owner.standing(&set.set.metadata) == Standing::Claimed).collect();
        sets.sort_by_key(|seen| {
            let meta = &seen.set.metadata;
            (meta.creation_timestamp.as_ref().map(|time| time.0), meta.name.clone())
        });
        let place = sets.iter().position(|seen| is_equal(&seen.set.spec.template, &deployment.spec.template));
        let new = place.map(|place| SetState::of(sets.remove(place), seen.now));
        let old = sets.into_iter().map(|set| SetState::of(set, seen.now)).collect();
        Self { deployment, limits: Fenceposts::of(deployment), new, old }
    }

    /// All sets: old ones first, the new one last.
    pub fn all(&self) -> impl Iterator<Item = &SetState<'a>> {
        self.old.iter().chain(&self.new)
    }

    /// A sum over all sets.
    pub fn sum(&self, of: impl Fn(&SetState<'a>) -> i32) -> i32 {
        self.all().map(of).fold(0, i32::saturating_add)
    }

    /// The wanted machines of the deployment.
    pub fn replicas(&self) -> i32 {
        self.deployment.spec.replicas
    }

    /// The least number of available machines.
    pub fn min_available(&self) -> i32 {
        self.replicas() - self.limits.max_unavailable(self.replicas())
    }

    /// Whether machines of old sets are still there or wanted (D-49).
    pub fn is_rolling(&self) -> bool {
        self.old.iter().any(|set| set.committed() > 0)
    }

    /// Whether all machines are of the new set, available, and as many as wanted.
    pub fn is_complete(&self) -> bool {
        let updated = self.new.as_ref().map_or(0, |set| set.counts.replicas);
        let replicas = self.replicas();
        updated == replicas
            && self.sum(|set| set.counts.replicas) == replicas
            && self.sum(|set| set.counts.available) == replicas
    }
}

/// The deployment as an owner of sets.
pub fn owner(deployment: &MachineDeployment) -> Owner<'_> {
    Owner { kind: "MachineDeployment", meta: &deployment.metadata, selector: deployment.spec.selector.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::deployment::testing::*;

    #[test]
    fn s_rev_08_of_two_equal_sets_the_older_is_the_new_one() {
        let twin = seen_set(set_of_class("md-twin", "new", 0, -500), 0);
        let seen = seeing_sets(deployment(3, 1, 0).build(), vec![twin, new(3, 3)]);
        let fleet = Fleet::of(&seen);
        assert_eq!(fleet.new.unwrap().name(), "md-new");
        assert_eq!(fleet.old[0].name(), "md-twin");
    }

    #[test]
    fn machines_that_a_set_will_delete_are_not_counted_on() {
        let mut shrunk = old(10, 10);
        Arc::make_mut(&mut shrunk.set).spec.replicas = 8;
        let seen = seeing_sets(deployment(10, 3, 2).build(), vec![shrunk]);
        let fleet = Fleet::of(&seen);
        assert_eq!((fleet.old[0].kept_available, fleet.old[0].committed()), (8, 10));
    }
}
