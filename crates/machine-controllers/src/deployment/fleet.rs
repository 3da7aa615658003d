//! The sets of a deployment in a rollout: the new one, the old ones, and the machines of each.
//!
//! Source: spec/deployment-and-set §7.2 (steps 2 and 3), §9.2, §9.4. Pure.

use jiff::Timestamp;

use super::{
    availability::Availability,
    cuts::{AvailableBySize, in_order_of_deletion},
    fenceposts::Fenceposts,
    in_place::marks::is_handed_over,
    observe::{DeploymentObservation, SetSeen},
    settling::{Unsettled, knows_its_size},
    template_equality::is_equal,
};
use crate::{
    set::{
        counts::{Counts, is_failed},
        ownership::{Owner, Standing},
        ranking::{is_marked, is_named, is_preserved},
    },
    snapshots::{DeploymentSnapshot, MachineSnapshot, SetSnapshot},
};
use controller_runtime::snapshot::Snapshot;
use machine_api::v1alpha1::StrategyType;

/// A set with its counts.
#[derive(Clone, Debug)]
pub struct SetState<'a> {
    /// The set.
    pub set: &'a SetSnapshot,
    /// Its machines.
    pub machines: &'a [MachineSnapshot],
    /// Its machines, counted.
    pub counts: Counts,
    /// Machines that remain after the set has deleted its surplus and the machines that the scaler has marked.
    pub kept: Vec<&'a MachineSnapshot>,
    /// The available machines among `kept`. Machines about to be deleted must not be counted, or they would be spent
    /// twice.
    pub kept_available: i32,
    /// The machines among `kept` that the scaler has named and that the set deletes next. A rolling update does not
    /// count them as available.
    pub named: Vec<&'a MachineSnapshot>,
    /// Set while the set controller has not observed its size and the rollout still waits for that.
    pub unsettled: Option<Unsettled>,
}

impl<'a> SetState<'a> {
    fn of(seen: &'a SetSeen, all: &'a DeploymentObservation, availability: Availability) -> Self {
        let now = all.now;
        let labels = seen.set.template().metadata.labels.as_ref();
        let counts = Counts::of(&seen.machines, labels);
        let unsettled = (!knows_its_size(&seen.set)).then(|| {
            let known = all.unsettled.get(seen.set.uid());
            known.copied().unwrap_or(Unsettled { since: now, deleting: 0, making_for: 0 })
        });
        let unsettled = unsettled.filter(|one| one.time_left(now).is_some());
        let kept = kept(seen, unsettled, now);
        let named = named(&kept, all);
        let mut set =
            Self { set: &seen.set, machines: &seen.machines, counts, kept, kept_available: 0, named, unsettled };
        let is_counted_on = |machine: &&&MachineSnapshot| availability.holds(machine, now) && !set.loses(machine);
        set.kept_available = i32::try_from(set.kept.iter().filter(is_counted_on).count()).unwrap_or(i32::MAX);
        set
    }

    /// Whether the set deletes this machine next because the scaler has named it.
    pub fn loses(&self, machine: &MachineSnapshot) -> bool {
        self.named.iter().any(|named| named.name() == machine.name())
    }

    /// The wanted number of machines.
    pub fn spec(&self) -> i32 {
        self.set.replicas()
    }

    /// Whether the set wants machines.
    pub fn is_active(&self) -> bool {
        self.spec() > 0
    }

    /// Machines that exist or are wanted: the larger number (D-12).
    pub fn committed(&self) -> i32 {
        self.spec().max(self.counts.replicas)
    }

    /// The number of machines that the set may have, which no other set can use: the largest of its remaining machines,
    /// its wanted machines, and the machines that it may be creating.
    pub fn taken(&self) -> i32 {
        self.spec().max(self.counts.staying).max(self.making_for())
    }

    /// Whether the set controller has observed the present size.
    pub fn knows_its_size(&self) -> bool {
        knows_its_size(self.set)
    }

    /// The earlier size for which the set controller may still be creating machines.
    fn making_for(&self) -> i32 {
        self.unsettled.map_or(0, |one| one.making_for)
    }

    /// Whether the set controller may be creating more machines than wanted.
    pub fn may_be_making(&self) -> bool {
        self.making_for() > self.spec()
    }

    /// An annotation of the set.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        self.set.annotation(key)
    }

    /// The name of the set.
    pub fn name(&self) -> &'a str {
        self.set.name()
    }
}

/// The machines that the set controller will not delete, whether it acts on the present size or an earlier one. It
/// deletes in the same order for both.
fn kept(seen: &SetSeen, unsettled: Option<Unsettled>, now: Timestamp) -> Vec<&MachineSnapshot> {
    let (handed_over, mut candidates) = in_order_of_deletion(&seen.machines, now);
    let surplus = candidates.len().saturating_sub(usize::try_from(seen.set.replicas()).unwrap_or(0));
    let deleting = unsettled.map_or(0, |one| usize::try_from(one.deleting).unwrap_or(0));
    candidates.drain(..surplus.max(deleting).min(candidates.len()));
    candidates.retain(|machine| !is_marked(machine, &seen.set));
    candidates.extend(handed_over);
    candidates
}

/// The machines that the scaler wants deleted and that are first in the set's order of deletion, so that a smaller size
/// deletes them. A named machine that comes after machines of a lower priority, or that is preserved, stays for now and
/// counts as available: the rollout would stop if neither kind counted. Updates in place handle named machines in a
/// separate step.
fn named<'a>(kept: &[&'a MachineSnapshot], all: &DeploymentObservation) -> Vec<&'a MachineSnapshot> {
    if all.deployment.strategy().strategy_type != StrategyType::RollingUpdate {
        return Vec::new();
    }
    let is_next = |machine: &&&MachineSnapshot| {
        is_named(machine, all.deployment.metadata()) && !is_preserved(machine, all.now) && !is_handed_over(machine)
    };
    kept.iter().take_while(is_next).copied().collect()
}

/// A deployment with its sets.
#[derive(Clone, Debug)]
pub struct Fleet<'a> {
    /// The deployment.
    pub deployment: &'a DeploymentSnapshot,
    /// Its limits.
    pub limits: Fenceposts,
    /// The machines that count as available in its rollouts.
    pub availability: Availability,
    /// The time of the observation.
    pub now: Timestamp,
    /// The set with the deployment's present template.
    pub new: Option<SetState<'a>>,
    /// All other sets, oldest first.
    pub old: Vec<SetState<'a>>,
}

impl<'a> Fleet<'a> {
    /// Sorts the sets that belong to the deployment.
    pub fn of(seen: &'a DeploymentObservation) -> Self {
        let deployment = &seen.deployment;
        let owner = owner(deployment);
        let mut sets: Vec<&SetSeen> =
            seen.sets.iter().filter(|set| owner.standing(set.set.metadata()) == Standing::Claimed).collect();
        sets.sort_by_key(|seen| (seen.set.created(), seen.set.name()));
        let availability = Availability::of(seen.settings.availability, deployment);
        let place = sets.iter().position(|seen| is_equal(seen.set.template(), deployment.template()));
        let new = place.map(|place| SetState::of(sets.remove(place), seen, availability));
        let old = sets.into_iter().map(|set| SetState::of(set, seen, availability)).collect();
        Self { deployment, limits: Fenceposts::of(deployment), availability, now: seen.now, new, old }
    }

    /// All sets: old ones first, the new one last.
    pub fn all(&self) -> impl Iterator<Item = &SetState<'a>> {
        self.old.iter().chain(&self.new)
    }

    /// A sum over all sets.
    pub fn sum(&self, of: impl Fn(&SetState<'a>) -> i32) -> i32 {
        self.all().map(of).fold(0, i32::saturating_add)
    }

    /// The wanted number of machines of the deployment.
    pub fn replicas(&self) -> i32 {
        self.deployment.replicas()
    }

    /// The minimum number of available machines.
    pub fn min_available(&self) -> i32 {
        self.replicas() - self.limits.max_unavailable(self.replicas())
    }

    /// Whether old sets still have or want machines (D-49).
    pub fn is_rolling(&self) -> bool {
        self.old.iter().any(|set| set.committed() > 0)
    }

    /// Whether the machine counts as available in a rollout.
    pub fn is_available(&self, machine: &MachineSnapshot) -> bool {
        self.availability.holds(machine, self.now)
    }

    /// The number of available machines that the set keeps, by size.
    pub fn available_by_size(&self, set: &SetState<'_>) -> AvailableBySize {
        AvailableBySize::of(set.set, set.machines, self.now, |machine| {
            self.is_available(machine) && !set.loses(machine)
        })
    }

    /// The number of preserved Failed machines in old sets. They are useless, but a set deletes them last.
    pub fn kept_failed(&self) -> i32 {
        let machines = self.old.iter().flat_map(|set| &set.kept);
        let count = machines.filter(|machine| is_failed(machine) && is_preserved(machine, self.now)).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    }

    /// The longest time that a rollout still waits for sets to observe their size; `None` if it waits for none.
    pub fn settling(&self) -> Option<std::time::Duration> {
        self.all().filter_map(|set| set.unsettled?.time_left(self.now)).max()
    }

    /// Time until the next machine has been Ready for long enough; `None` if no machine waits for that.
    pub fn next_available(&self) -> Option<std::time::Duration> {
        let machines = self.all().flat_map(|set| set.machines);
        machines.filter_map(|machine| self.availability.still_to_wait(machine, self.now)).min()
    }

    /// Whether all machines belong to the new set and are available, and whether their number is the wanted one.
    pub fn is_complete(&self) -> bool {
        let updated = self.new.as_ref().map_or(0, |set| set.counts.replicas);
        let replicas = self.replicas();
        updated == replicas
            && self.sum(|set| set.counts.replicas) == replicas
            && self.sum(|set| set.kept_available) == replicas
    }
}

/// The deployment as owner of its sets.
pub fn owner(deployment: &DeploymentSnapshot) -> Owner<'_> {
    Owner { kind: "MachineDeployment", meta: deployment.metadata(), selector: deployment.selector() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::testing::*;

    #[test]
    fn s_util_13_a_set_is_active_while_it_wants_machines() {
        let seen = seeing_sets(deployment(1, 1, 0).build(), vec![old(0, 0), new(1, 1)]);
        let fleet = Fleet::of(&seen);
        let active: Vec<&str> = fleet.all().filter(|set| set.is_active()).map(SetState::name).collect();
        assert_eq!(active, ["md-new"]);
    }

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
        shrunk.set.to_mut().spec.replicas = 8;
        let seen = seeing_sets(deployment(10, 3, 2).build(), vec![shrunk]);
        let fleet = Fleet::of(&seen);
        assert_eq!((fleet.old[0].kept_available, fleet.old[0].committed()), (8, 10));
    }
}
