//! What a smaller size costs: how many of the machines that a rollout counts on go with those that a set deletes.
//!
//! A set deletes in its own order (spec/deployment-and-set §6.4), and that order is not always "useless ones first": what
//! somebody preserves goes last, healthy or not, and a low priority goes first. The original takes it that a set shrunk by
//! as many machines as are unavailable loses those; where a preserved machine is among them, a healthy one goes instead
//! and fewer are left than `maxUnavailable` allows. Here a cut costs what the set's order makes it cost. Pure.

use jiff::Timestamp;

use super::in_place::marks::is_handed_over;
use crate::{
    set::{
        counts::is_terminating,
        ranking::{is_marked, sort_for_deletion},
    },
    snapshots::{MachineSnapshot, SetSnapshot},
};

/// Machines that are not on their way out, as the set's controller sees them (spec/deployment-and-set §6.2): those just
/// handed over, which it never chooses, and the others in the order in which it deletes them.
pub fn in_order_of_deletion(
    machines: &[MachineSnapshot],
    now: Timestamp,
) -> (Vec<&MachineSnapshot>, Vec<&MachineSnapshot>) {
    let staying = machines.iter().filter(|machine| !is_terminating(machine));
    let (handed_over, mut candidates): (Vec<_>, Vec<_>) = staying.partition(|machine| is_handed_over(machine));
    sort_for_deletion(&mut candidates, now);
    (handed_over, candidates)
}

/// A smaller size and its price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// So many machines fewer.
    pub machines: i32,
    /// So many of those that count go with them.
    pub cost: i32,
}

/// How many machines that a rollout counts on a set keeps with each size that it may get.
#[derive(Clone, Debug)]
pub struct AvailableBySize(Vec<i32>);

impl AvailableBySize {
    /// Of a set with these machines; `counts` says which of them the rollout counts on.
    pub fn of(
        set: &SetSnapshot,
        machines: &[MachineSnapshot],
        now: Timestamp,
        counts: impl Fn(&MachineSnapshot) -> bool,
    ) -> Self {
        let (handed_over, candidates) = in_order_of_deletion(machines, now);
        let mut left: i32 = handed_over.iter().map(|machine| i32::from(counts(machine))).sum();
        let mut by_size = vec![left];
        for machine in candidates.into_iter().rev() {
            // One that the scaler has marked goes with every size.
            left += i32::from(!is_marked(machine, set) && counts(machine));
            by_size.push(left);
        }
        Self(by_size)
    }

    /// With this size.
    pub fn at(&self, size: i32) -> i32 {
        let size = usize::try_from(size).unwrap_or(0);
        self.0.get(size).or(self.0.last()).copied().unwrap_or(0)
    }

    /// The largest cut from this size, of `most` machines at most, that costs no more than `budget`.
    pub fn cut(&self, size: i32, most: i32, budget: i32) -> Cut {
        let cost = |machines: i32| self.at(size) - self.at(size - machines);
        let machines = (1..=most.min(size)).take_while(|machines| cost(*machines) <= budget).last().unwrap_or(0);
        Cut { machines, cost: cost(machines) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::{
        counts::is_available,
        testing::{Building, failed, machine, now, running, set},
    };
    use machine_api::v1alpha1::Machine;
    use machine_api::{names::annotation, v1alpha1::MachinePhase};

    fn unknown(name: &str) -> Building<Machine> {
        machine(name).phase(MachinePhase::Unknown)
    }

    fn kept(machine: Building<Machine>) -> Building<Machine> {
        machine.preserved_until(600)
    }

    #[rstest]
    #[case::useless_ones_go_first(vec![running("a"), unknown("b")], 1, 0, (1, 0))]
    #[case::no_further_than_asked(vec![unknown("a"), unknown("b")], 1, 0, (1, 0))]
    #[case::a_healthy_one_costs(vec![running("a"), running("b")], 1, 0, (0, 0))]
    #[case::and_may_be_spared(vec![running("a"), running("b")], 2, 1, (1, 1))]
    // Seed 61494: the unhealthy one is preserved, so that a healthy one would go.
    #[case::a_preserved_one_goes_last(vec![running("a"), kept(unknown("b"))], 1, 0, (0, 0))]
    #[case::also_a_failed_one(vec![running("a"), kept(failed("b"))], 1, 0, (0, 0))]
    #[case::and_costs_what_goes_before_it(vec![running("a"), kept(failed("b"))], 2, 1, (2, 1))]
    #[case::one_of_low_priority_goes_first(
        vec![unknown("a"), running("b").annotation(annotation::MACHINE_PRIORITY, "1")], 1, 0, (0, 0))]
    #[case::a_set_that_lacks_machines_loses_none(vec![], 2, 0, (2, 0))]
    fn a_cut_costs_what_the_order_of_deletion_says(
        #[case] machines: Vec<Building<Machine>>,
        #[case] most: i32,
        #[case] budget: i32,
        #[case] (fewer, cost): (i32, i32),
    ) {
        let machines: Vec<MachineSnapshot> = machines.into_iter().map(Building::<Machine>::snapshot).collect();
        let size = 2;
        let available = AvailableBySize::of(&set(size).snapshot(), &machines, now(), |machine: &MachineSnapshot| {
            is_available(machine)
        });
        assert_eq!(available.cut(size, most, budget), Cut { machines: fewer, cost });
    }
}
