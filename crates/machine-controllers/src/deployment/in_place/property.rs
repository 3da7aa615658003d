//! Properties of updates in place, checked on histories of a simulated cluster.
//!
//! The real decisions about deployments and sets run in any order. A pass may end after any write, set controllers may
//! run between two writes, and observations may be outdated. Machines start, are drained, updated and deleted in any
//! order, and the template changes and changes back in between. The properties: only machines that surge added are
//! deleted; there are never more machines than wanted plus surge; no deletion or update of our choice leaves fewer
//! available machines than allowed; the scaler's named machines are deleted and no others in their place; at the end
//! all machines belong to the new set, are updated, and no mark is left.

mod happenings;
mod world;

use std::collections::BTreeSet;

use proptest::prelude::*;
use rstest::rstest;

use self::{
    happenings::{
        Happens::{self, IsDrained, IsUpdated, Joins, Recovers, Set, SetDecides},
        happenings,
    },
    world::World,
};
use crate::deployment::{in_place::marks::Marks, template_equality::is_equal, testing::a_quarter_of_the_cases};
use controller_runtime::snapshot::Snapshot;
use machine_api::{
    names::label,
    v1alpha1::{
        MachinePhase,
        OrchestrationType::{Auto, Manual},
    },
};

impl World {
    /// Plays the events one after the other.
    fn happen(&mut self, history: &[Happens]) {
        for what in history {
            self.happens(what);
        }
    }

    /// Plays until nothing changes any more.
    fn settle(&mut self) {
        // Passes that have started are finished. A set whose objects changed in between gets another pass.
        for index in 0..self.sets.len() {
            self.set_pass(index);
        }
        for _ in 0..2000 {
            let mut moved = self.happens(&Happens::Deployment { writes: usize::MAX, between: None });
            for index in 0..self.sets.len() {
                moved |= self.set_pass(index);
            }
            for what in [
                Happens::Joins(0),
                Happens::IsDrained(0),
                Happens::IsUpdated(0),
                Happens::Recovers(0),
                Happens::Ends(0),
            ] {
                moved |= self.happens(&what);
            }
            if !moved && !self.happens(&Happens::UserPicks(0)) {
                return;
            }
        }
        let sizes: Vec<(&str, i32)> = self.sets.iter().map(|set| (set.name(), set.replicas())).collect();
        panic!("no rest: {sizes:?}\n{:#?}", self.nodes);
    }

    fn check_end(&self) {
        assert_eq!(self.staying(), self.deployment.replicas());
        let new = self.sets.iter().find(|set| is_equal(set.template(), self.deployment.template())).unwrap();
        for machine in &self.machines {
            assert_eq!(machine.controller().map(|owner| owner.uid.as_str()), Some(new.uid()));
            assert_eq!(machine.label(label::UPDATE_RESULT), None);
            assert_eq!(*machine.phase(), MachinePhase::Running);
        }
        for node in self.nodes.values() {
            let marks = Marks::of(node);
            assert!(!marks.candidate && !marks.selected && marks.result.is_none(), "{node:?}");
            assert!(!node.is_cordoned(), "{node:?}");
        }
        assert!(!new.labels().contains_key(label::SCALE_UP_DISABLED));
    }
}

/// A complete pass of the deployment.
const WHOLE: Happens = writes(usize::MAX);

/// A pass of the deployment that ends after this number of writes.
const fn writes(writes: usize) -> Happens {
    Happens::Deployment { writes, between: None }
}

/// The same, with a pass of this set after each write.
const fn between(writes: usize, set: usize) -> Happens {
    Happens::Deployment { writes, between: Some(set) }
}

/// A history that once failed: the template turns back to a set that has decided to delete a machine but has not done
/// so. Grown again, the set seems to have that machine, and another machine was selected for its update.
#[test]
fn a_set_that_is_turned_back_to_is_not_counted_on_for_whom_it_is_about_to_delete() {
    let there = [
        writes(1),
        Set(1),
        Joins(0),
        WHOLE,
        Joins(0),
        WHOLE,
        writes(1),
        IsDrained(0),
        IsUpdated(0),
        writes(3),
        writes(2),
        SetDecides(2),
        Set(1),
        writes(2),
        Recovers(0),
        between(usize::MAX, 2),
        SetDecides(2),
    ];
    let back = [writes(2), WHOLE, writes(1), writes(1), writes(0), IsDrained(0)];
    let mut world = World::new(3, 2, 0, Auto);
    world.least_available = Some(3);
    for (class, history) in [("second", &there[..]), ("first", &back[..])] {
        world.turn_to(class);
        world.happen(history);
    }
    world.settle();
    world.check_end();
}

/// The controller of the second set has decided to create the surge machines when the template changes again. The size
/// of that set is no reason to delete machines of the first one: it will get no more machines than it is creating.
#[rstest]
#[case::of_two((2, 1), vec![writes(1), writes(2), SetDecides(1)], vec![writes(1), WHOLE, writes(1)])]
#[case::of_five((5, 2), vec![writes(1), WHOLE], vec![SetDecides(1), writes(1), WHOLE, writes(1)])]
fn no_machine_goes_beside_one_that_an_old_set_wants_and_will_not_make(
    #[case] (replicas, surge): (i32, i32),
    #[case] first: Vec<Happens>,
    #[case] second: Vec<Happens>,
) {
    let mut world = World::new(replicas, surge, 1, Auto);
    world.least_available = Some(replicas - 1);
    for (class, history) in [("second", first), ("third", second)] {
        world.turn_to(class);
        world.happen(&history);
    }
    world.settle();
    world.check_end();
    assert!(world.deleted <= 2 * surge, "{} deleted", world.deleted);
}

/// The first set has chosen the machines that it deletes. Until they are gone, its order of deletion changes with each
/// Node that is drained or updated: an unavailable machine seems to be next, and a machine that is about to be deleted
/// seems to stay.
#[rstest]
#[case::the_chosen_one_is_updated_meanwhile(
    (5, 2),
    vec![writes(1), Set(1)],
    vec![
        Joins(0), Joins(0), writes(1), WHOLE, SetDecides(0), writes(1), Set(0), writes(1), IsDrained(0), writes(1),
        SetDecides(3), IsUpdated(0), Recovers(0), WHOLE, writes(0), IsDrained(0), IsDrained(0),
    ],
)]
#[case::another_one_is_drained_meanwhile(
    (3, 1),
    vec![writes(1), Set(1), Joins(0), WHOLE, WHOLE],
    vec![
        WHOLE, Set(2), IsDrained(0), WHOLE, IsUpdated(0), Recovers(0), SetDecides(0), IsDrained(0), WHOLE, IsDrained(0),
        Set(0),
    ],
)]
fn no_node_is_picked_beside_machines_that_a_set_has_chosen_in_another_order(
    #[case] (replicas, surge): (i32, i32),
    #[case] first: Vec<Happens>,
    #[case] second: Vec<Happens>,
) {
    let mut world = World::new(replicas, surge, 1, Auto);
    world.least_available = Some(replicas - 1);
    for (class, history) in [("second", first), ("third", second)] {
        world.turn_to(class);
        world.happen(&history);
    }
    world.settle();
    world.check_end();
}

/// The controller of the second set has decided to create the surge machine. Then an updated machine moves to it, and
/// the template changes again before the set has its size. For a while the set has one machine more than it wants.
#[test]
fn a_third_set_makes_none_while_the_second_may_make_the_one_whose_place_a_moved_machine_takes() {
    let mut world = World::new(3, 1, 1, Auto);
    world.turn_to("second");
    world.happen(&[writes(1), WHOLE, writes(1), SetDecides(1), IsDrained(0), IsUpdated(0), writes(1)]);
    world.turn_to("third");
    for what in [writes(2), Set(0), between(1, 1), between(1, 2)] {
        world.happens(&what);
        assert!(world.staying() <= 4, "{} machines", world.staying());
    }
    world.settle();
    world.check_end();
}

/// The hand-over of three machines ends after two have changed their owner. Then the deployment shrinks a lot, and the
/// overshoot guard freezes it.
#[test]
fn a_deployment_that_is_frozen_during_a_hand_over_deletes_its_surplus() {
    let mut world = World::new(6, 0, 3, Auto);
    world.turn_to("second");
    world.happen(&[WHOLE, Set(1), WHOLE, WHOLE]);
    for what in [IsDrained(0), IsUpdated(0), Recovers(0)] {
        world.happen(&[what.clone(), what.clone(), what]);
    }
    world.happen(&[writes(2)]);
    assert_eq!(world.machines_of(&world.sets[1]).len(), 2);
    world.deployment.to_mut().spec.replicas = 1;
    world.freeze(true);
    world.settle();
    assert_eq!(world.staying(), 1);
    world.freeze(false);
    world.settle();
    world.check_end();
}

proptest! {
    #![proptest_config(a_quarter_of_the_cases())]

    #[test]
    fn an_update_in_place_keeps_its_machines_and_ends(
        replicas in 0..7_i32, surge in 0..3_i32, unavailable in 0..4_i32, auto in any::<bool>(), back in any::<bool>(),
        first in happenings(), second in happenings(),
    ) {
        let surge = if auto { surge } else { 0 };
        let mut world = World::new(replicas, surge, unavailable, if auto { Auto } else { Manual });
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        // Machines that the user selects may be unavailable in any case.
        world.least_available = auto.then_some((replicas - unavailable).max(0));
        let mut turns = 0;
        for (class, history) in [("second", first), (if back { "first" } else { "third" }, second)] {
            world.turn_to(class);
            turns += 1;
            for what in &history {
                world.happens(what);
                prop_assert!(world.staying() <= replicas + surge, "{} machines", world.staying());
                prop_assert!(world.deleted <= surge * turns, "{} deleted", world.deleted);
            }
        }
        world.settle();
        world.check_end();
        prop_assert!(world.deleted <= surge * turns, "{} deleted", world.deleted);
    }

    #[test]
    fn the_scaler_takes_only_named_machines_from_an_update_in_place(
        replicas in 1..7_i32, named in prop::collection::vec(0..64_usize, 1..4), surge in 0..3_i32, auto in any::<bool>(),
        first in happenings(), between in happenings(), second in happenings(),
    ) {
        let surge = if auto { surge } else { 0 };
        let mut world = World::new(replicas, surge, 1, if auto { Auto } else { Manual });
        let from_the_start: BTreeSet<String> = world.machines.iter().map(|machine| machine.name().to_owned()).collect();
        world.turn_to("second");
        world.happen(&first);
        let named: BTreeSet<String> = named.iter().filter_map(|index| world.is_named(*index)).collect();
        // The autoscaler makes two separate writes; a machine that it named may move in between.
        world.happen(&between);
        let before = world.deleted;
        let staying = |world: &World| named.iter().filter(|name| world.stays(name)).count();
        let fewer = i32::try_from(staying(&world)).unwrap();
        world.is_scaled_in(fewer.min(replicas));
        for what in &second {
            world.happens(what);
            prop_assert!(world.staying() <= replicas + surge, "{} machines", world.staying());
        }
        world.settle();
        world.check_end();
        prop_assert_eq!(staying(&world), 0);
        // Machines that surge had added may be deleted too, and replacements that surge adds for named ones.
        let added_anew = i32::try_from(named.difference(&from_the_start).count()).unwrap();
        let deleted = world.deleted - before;
        prop_assert!(
            deleted <= fewer + surge + added_anew,
            "{} deleted, {} named, {} of them added by surge", deleted, fewer, added_anew
        );
    }

    #[test]
    fn an_update_in_place_that_is_scaled_ends(
        replicas in 0..7_i32, then in 0..7_i32, surge in 0..3_i32, unavailable in 0..4_i32, auto in any::<bool>(),
        first in happenings(), second in happenings(),
    ) {
        let surge = if auto { surge } else { 0 };
        let mut world = World::new(replicas, surge, unavailable, if auto { Auto } else { Manual });
        world.turn_to("second");
        world.happen(&first);
        world.deployment.to_mut().spec.replicas = then;
        for what in &second {
            world.happens(what);
            prop_assert!(world.staying() <= replicas.max(then) + surge, "{} machines", world.staying());
        }
        world.settle();
        world.check_end();
    }
}
