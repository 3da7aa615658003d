//! Counts the machines whose deletion begins, by reason (`mcm_machine_deletions_total`).
//!
//! The set controller announces each machine that it is about to delete, with the reason ([`crate::set::deletion_reason`]). A
//! deletion that nobody announced comes from a user, or from another program. A deletion counts when the store first shows it,
//! so that a deletion whose answer was lost counts once. Source: spec/packaging §4.1.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::snapshots::MachineSnapshot;
use controller_runtime::{lock, snapshot::Snapshot, store::Change};
use mcm_metrics::{Counters, Deletion, DeletionReason};

/// Counts deletions. Clones share their counts and announcements.
#[derive(Clone)]
pub struct Deletions {
    counter: Counters<Deletion<'static>>,
    /// Reasons by the UID of the machine.
    announced: Arc<Mutex<BTreeMap<String, DeletionReason>>>,
}

impl Deletions {
    /// Counts into `counter`. Every reason for which a machine of `namespace` can be deleted is shown from the start.
    pub fn new(counter: Counters<Deletion<'static>>, namespace: &str) -> Self {
        for reason in DeletionReason::ALL.iter().filter(|reason| **reason != DeletionReason::Orphan) {
            counter.add(&Deletion { namespace, reason: *reason }, 0);
        }
        Self { counter, announced: Arc::default() }
    }

    /// The machine with this UID is about to be deleted for this reason.
    pub fn announce(&self, uid: &str, reason: DeletionReason) {
        lock(&self.announced).insert(uid.to_owned(), reason);
    }

    /// The machine with this UID was certainly not deleted.
    pub fn withdraw(&self, uid: &str) {
        lock(&self.announced).remove(uid);
    }

    /// Counts the deletion that begins with this change, if one does.
    pub fn see(&self, change: &Change<MachineSnapshot>) {
        let Some(machine) = begins_to_go(change) else { return };
        let announced = lock(&self.announced).remove(machine.uid());
        let reason = announced.unwrap_or(DeletionReason::User);
        self.counter.inc(&Deletion { namespace: machine.namespace(), reason });
    }
}

/// The machine whose deletion this change shows first. A machine without finalizers is gone at once.
fn begins_to_go(change: &Change<MachineSnapshot>) -> Option<&MachineSnapshot> {
    let before = change.old.as_ref().filter(|machine| !machine.is_deleting())?;
    let stays = change.new.as_ref().is_some_and(|now| now.uid() == before.uid() && !now.is_deleting());
    (!stays).then_some(before)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::Machine;
    use mcm_metrics::Metrics;

    /// The namespace of the machines of [`machine`].
    const NAMESPACE: &str = "ns";

    fn other(name: &str) -> Building<Machine> {
        machine(name).with(|machine| machine.metadata.uid = Some("another".to_owned()))
    }

    #[rstest]
    #[case::its_deletion_begins(Some(machine("m")), Some(machine("m").deleting()), true)]
    #[case::it_is_gone_at_once(Some(machine("m")), None, true)]
    #[case::another_has_its_name(Some(machine("m")), Some(other("m")), true)]
    #[case::it_changes(Some(machine("m")), Some(running("m")), false)]
    #[case::it_is_new(None, Some(machine("m")), false)]
    #[case::it_was_being_deleted_before_this_process_saw_it(None, Some(machine("m").deleting()), false)]
    #[case::its_deletion_goes_on(Some(machine("m").deleting()), Some(machine("m").deleting()), false)]
    #[case::its_deletion_ends(Some(machine("m").deleting()), None, false)]
    fn a_deletion_begins_once(
        #[case] old: Option<Building<Machine>>,
        #[case] new: Option<Building<Machine>>,
        #[case] begins: bool,
    ) {
        let snapshot = Building::<Machine>::snapshot;
        let change = Change { old: old.map(snapshot), new: new.map(snapshot) };
        assert_eq!(begins_to_go(&change).is_some(), begins);
    }

    #[test]
    fn a_deletion_counts_for_its_announced_reason_or_as_a_users() {
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let deletions = Deletions::new(metrics.machine.deletions.clone(), NAMESPACE);
        let count = |reason: &str| {
            let start = format!("mcm_machine_deletions_total{{namespace=\"{NAMESPACE}\",reason=\"{reason}\"}} ");
            let text = metrics.render().unwrap();
            text.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned)).unwrap_or_default()
        };
        for reason in ["rollout", "scale-down", "unhealthy", "user", "autoscaler"] {
            assert_eq!(count(reason), "0", "{reason} is shown from the start");
        }
        let goes = |name: &str| {
            deletions
                .see(&Change { old: Some(machine(name).snapshot()), new: Some(machine(name).deleting().snapshot()) });
        };
        deletions.announce(machine("a").snapshot().uid(), DeletionReason::Rollout);
        deletions.announce(machine("b").snapshot().uid(), DeletionReason::Unhealthy);
        deletions.withdraw(machine("b").snapshot().uid());
        goes("a");
        goes("b");
        goes("c");
        assert_eq!((count("rollout"), count("unhealthy"), count("user")), ("1".into(), "0".into(), "2".into()));
    }
}
