//! The cost of a smaller size of a set: how many available machines the set deletes with it.
//!
//! A set deletes in its own order (spec/deployment-and-set §6.4). That order does not always begin with unavailable
//! machines: preserved machines go last, healthy or not, and machines of low priority go first. The original assumes
//! that a set loses its unavailable machines first. If a preserved machine is among them, the set deletes a healthy one
//! instead, and fewer machines are available than `maxUnavailable` allows. Here the cost follows the real order. Pure.

use jiff::Timestamp;

use super::in_place::marks::is_handed_over;
use crate::{
    set::{
        counts::is_terminating,
        ranking::{is_marked, sort_for_deletion},
    },
    snapshots::{MachineSnapshot, SetSnapshot},
};

/// The machines that are not being deleted, as the set controller sees them (spec/deployment-and-set §6.2): first the
/// machines just handed over, which it never deletes, then the others in the order of deletion.
pub fn in_order_of_deletion(
    machines: &[MachineSnapshot],
    now: Timestamp,
) -> (Vec<&MachineSnapshot>, Vec<&MachineSnapshot>) {
    let staying = machines.iter().filter(|machine| !is_terminating(machine));
    let (handed_over, mut candidates): (Vec<_>, Vec<_>) = staying.partition(|machine| is_handed_over(machine));
    sort_for_deletion(&mut candidates, now);
    (handed_over, candidates)
}

/// A reduction of the size and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The reduction, in machines.
    pub machines: i32,
    /// The number of available machines among those deleted.
    pub cost: i32,
}

/// For each possible size of a set, the number of available machines that it keeps.
#[derive(Clone, Debug)]
pub struct AvailableBySize(Vec<i32>);

impl AvailableBySize {
    /// For a set with these machines; `counts` says which of them count as available.
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
            // The set deletes a machine that the scaler has marked, whatever its size.
            left += i32::from(!is_marked(machine, set) && counts(machine));
            by_size.push(left);
        }
        Self(by_size)
    }

    /// The number of available machines with this size.
    pub fn at(&self, size: i32) -> i32 {
        let size = usize::try_from(size).unwrap_or(0);
        self.0.get(size).or(self.0.last()).copied().unwrap_or(0)
    }

    /// The largest reduction from this size, at most `most` machines, that costs at most `budget`.
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
    // Seed 61494: the unhealthy machine is preserved, so a healthy one would be deleted.
    #[case::a_preserved_one_goes_last(vec![running("a"), kept(unknown("b"))], 1, 0, (0, 0))]
    #[case::also_a_failed_one(vec![running("a"), kept(failed("b"))], 1, 0, (0, 0))]
    #[case::and_costs_what_goes_before_it(vec![running("a"), kept(failed("b"))], 2, 1, (2, 1))]
    #[case::one_of_low_priority_goes_first(
        vec![unknown("a"), running("b").annotation(annotation::MACHINE_PRIORITY, "1")], 1, 0, (0, 0))]
    #[case::a_set_that_lacks_machines_loses_none(vec![], 2, 0, (2, 0))]
    fn the_cost_of_a_cut_follows_the_order_of_deletion(
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
