//! Sets whose controller may still act on an earlier size.
//!
//! A set that lacked machines when it was shrunk may be creating them right now. If another set took its replica at
//! once, there would be a machine too many (decisions.md 39). So the replica counts as used until the set controller
//! has observed the new size (`status.observedGeneration`). A set that has just grown again, because the template was
//! changed back to it, may still be deleting machines for the smaller size; those machines must not be counted as
//! available. In both cases the rollout waits at most [`SETTLING_LIMIT`], even if the set controller does not answer.
//! The original does not wait.
//!
//! This file holds what is remembered from one pass to the next. Its uses: [`super::fleet::SetState::taken`] and
//! [`super::fleet::SetState::kept`]. Updates in place wait for every set, because machines move between sets meanwhile.
//! Pure.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::Serialize;

use super::observe::SetSeen;
use crate::{set::counts::is_terminating, snapshots::SetSnapshot};
use controller_runtime::snapshot::Snapshot;

/// How long a rollout waits for a set controller to observe the size.
pub const SETTLING_LIMIT: Duration = Duration::from_secs(10);

/// A set whose controller has not observed the present size, and what it may still be doing for an earlier size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Unsettled {
    /// When the set got this size, or when this process first observed it.
    pub since: Timestamp,
    /// The number of machines that it may be deleting; [`i32::MAX`] if the set was not observed before.
    pub deleting: i32,
    /// The largest size for which it may be creating machines; 0 if it lacked none, [`i32::MAX`] if the set was not
    /// observed before.
    pub making_for: i32,
}

impl Unsettled {
    /// How long the rollout still waits; `None` when the time is over.
    pub fn time_left(self, now: Timestamp) -> Option<Duration> {
        let waited = Duration::try_from(now.duration_since(self.since)).unwrap_or_default();
        SETTLING_LIMIT.checked_sub(waited).filter(|left| !left.is_zero())
    }
}

/// Whether the set controller has observed the present size. A set that is being deleted creates no machines.
pub fn knows_its_size(set: &SetSnapshot) -> bool {
    set.is_deleting() || set.status().observed_generation >= set.generation().unwrap_or_default()
}

/// An earlier observation of a set.
#[derive(Clone, Copy, Debug)]
struct SetRecord {
    generation: i64,
    /// The wanted number of machines.
    wanted: i32,
    /// The number of machines that were not being deleted.
    staying: i32,
    unsettled: Option<Unsettled>,
}

/// The observations of a deployment's sets in the last pass.
#[derive(Clone, Debug, Default)]
pub struct SettlingMemory(BTreeMap<String, SetRecord>);

impl SettlingMemory {
    /// Records the present sets; returns the sets that have not observed their size, by UID.
    pub fn take(&mut self, sets: &[SetSeen], now: Timestamp) -> BTreeMap<String, Unsettled> {
        let looks: BTreeMap<String, SetRecord> = sets
            .iter()
            .map(|seen| {
                let uid = seen.set.uid().to_owned();
                let look = SetRecord::of(seen, self.0.get(&uid), now);
                (uid, look)
            })
            .collect();
        self.0 = looks;
        self.0.iter().filter_map(|(uid, look)| Some((uid.clone(), look.unsettled?))).collect()
    }
}

impl SetRecord {
    fn of(seen: &SetSeen, known: Option<&Self>, now: Timestamp) -> Self {
        let generation = seen.set.generation().unwrap_or_default();
        let staying = seen.machines.iter().filter(|machine| !is_terminating(machine)).count();
        let unsettled = (!knows_its_size(&seen.set)).then(|| {
            let nothing = Unsettled { since: now, deleting: 0, making_for: 0 };
            match known {
                // The set never had another size.
                None if generation <= 1 => Unsettled { making_for: seen.set.replicas(), ..nothing },
                None => Unsettled { deleting: i32::MAX, making_for: i32::MAX, ..nothing },
                Some(known) if known.generation == generation => known.unsettled.unwrap_or(nothing).not_after(now),
                Some(known) => known.unsettled.unwrap_or(nothing).and(known, now),
            }
        });
        Self { generation, wanted: seen.set.replicas(), staying: i32::try_from(staying).unwrap_or(i32::MAX), unsettled }
    }
}

impl Unsettled {
    /// Starts the wait again if the clock was set back; otherwise the rollout would wait until the old time comes
    /// again.
    fn not_after(self, now: Timestamp) -> Self {
        Self { since: self.since.min(now), ..self }
    }

    /// Adds what the set had to do when it was observed before its size changed. It may be doing that only now.
    fn and(self, look: &SetRecord, now: Timestamp) -> Self {
        let lacked = if look.staying < look.wanted { look.wanted } else { 0 };
        Self {
            since: now,
            deleting: self.deleting.max(look.staying - look.wanted),
            making_for: self.making_for.max(lacked),
        }
    }
}

#[cfg(test)]
mod tests {

    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::testing::*,
        set::testing::{at, now},
    };
    use controller_runtime::snapshot::Whole;

    /// A set with this size, this number of machines, this generation, and this observed generation.
    fn looking(wanted: i32, has: usize, (generation, observed): (i64, i64)) -> SetSeen {
        let mut seen = old(wanted, 0);
        let set = seen.set.to_mut();
        set.metadata.generation = Some(generation);
        set.status.observed_generation = observed;
        seen.machines = machines_of(seen.set.whole_object(), has, has);
        seen
    }

    #[rstest]
    #[case::nothing_is_open(vec![looking(5, 4, (1, 1))], None)]
    #[case::it_had_all(vec![looking(5, 5, (1, 1)), looking(4, 5, (2, 1))], Some(0))]
    #[case::it_lacked_one(vec![looking(5, 4, (1, 1)), looking(4, 4, (2, 1))], Some(5))]
    #[case::it_still_has_not_seen_it(
        vec![looking(5, 4, (1, 1)), looking(4, 4, (2, 1)), looking(3, 4, (3, 1))], Some(5))]
    #[case::it_lacked_one_the_second_time(
        vec![looking(5, 5, (1, 1)), looking(4, 3, (2, 1)), looking(3, 3, (3, 1))], Some(4))]
    #[case::it_loses_one_afterwards(
        vec![looking(5, 5, (1, 1)), looking(4, 4, (2, 1)), looking(4, 3, (2, 1))], Some(0))]
    #[case::it_has_seen_it(vec![looking(5, 4, (1, 1)), looking(4, 4, (2, 1)), looking(4, 4, (2, 2))], None)]
    #[case::nobody_looked_before(vec![looking(4, 4, (2, 1))], Some(i32::MAX))]
    fn the_largest_size_that_a_set_may_be_making_machines_for_is_remembered(
        #[case] looks: Vec<SetSeen>,
        #[case] expected: Option<i32>,
    ) {
        let mut memory = SettlingMemory::default();
        let found = looks.into_iter().map(|seen| memory.take(&[seen], now())).last().unwrap();
        assert_eq!(found.get("uid-md-old").map(|unsettled| unsettled.making_for), expected);
    }

    #[rstest]
    #[case::shrunk(vec![looking(5, 5, (1, 1)), looking(4, 5, (2, 1))], Some(0))]
    #[case::grown(vec![looking(4, 4, (1, 1)), looking(5, 4, (2, 1))], Some(0))]
    #[case::shrunk_and_grown_again(
        vec![looking(5, 5, (1, 1)), looking(4, 5, (2, 1)), looking(5, 5, (3, 1))], Some(1))]
    #[case::it_has_seen_the_smaller_size(
        vec![looking(5, 5, (1, 1)), looking(4, 5, (2, 1)), looking(5, 5, (3, 2))], Some(1))]
    #[case::it_has_seen_both(
        vec![looking(5, 5, (1, 1)), looking(4, 5, (2, 1)), looking(5, 5, (3, 3))], None)]
    #[case::it_repeats_deletions_for_the_smaller_size(vec![looking(4, 5, (2, 2)), looking(5, 5, (3, 2))], Some(1))]
    #[case::nobody_looked_before(vec![looking(4, 4, (2, 1))], Some(i32::MAX))]
    #[case::it_never_had_another_size(vec![looking(4, 4, (1, 0))], Some(0))]
    fn how_many_machines_a_set_may_be_deleting_is_remembered(
        #[case] looks: Vec<SetSeen>,
        #[case] expected: Option<i32>,
    ) {
        let mut memory = SettlingMemory::default();
        let found = looks.into_iter().map(|seen| memory.take(&[seen], now())).last().unwrap();
        assert_eq!(found.get("uid-md-old").map(|unsettled| unsettled.deleting), expected);
    }

    #[test]
    fn no_wait_is_without_end() {
        let mut memory = SettlingMemory::default();
        let mut left = |seconds| {
            let found = memory.take(&[looking(4, 4, (2, 1))], at(seconds));
            found["uid-md-old"].time_left(at(seconds))
        };
        assert_eq!(left(0), Some(SETTLING_LIMIT));
        assert_eq!(left(4), Some(Duration::from_secs(6)));
        assert_eq!(left(10), None);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_wait_longer() {
        let mut memory = SettlingMemory::default();
        let mut left = |seconds| {
            let found = memory.take(&[looking(4, 4, (2, 1))], at(seconds));
            found["uid-md-old"].time_left(at(seconds))
        };
        assert_eq!(left(7200), Some(SETTLING_LIMIT));
        assert_eq!(left(0), Some(SETTLING_LIMIT));
        assert_eq!(left(10), None);
    }

    #[test]
    fn with_another_size_the_wait_begins_again() {
        // Seed 227196: a set that had not been observed for minutes started to create machines when it was shrunk.
        let mut memory = SettlingMemory::default();
        let mut left = |seen, seconds| memory.take(&[seen], at(seconds))["uid-md-old"].time_left(at(seconds));
        assert_eq!(left(looking(1, 0, (2, 1)), 0), Some(SETTLING_LIMIT));
        assert_eq!(left(looking(1, 0, (2, 1)), 700), None);
        assert_eq!(left(looking(0, 0, (3, 1)), 700), Some(SETTLING_LIMIT));
    }
}
