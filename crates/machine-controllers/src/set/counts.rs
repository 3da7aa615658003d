//! Predicates on machines, and the counts of a set.
//!
//! Source: spec/deployment-and-set §2.6 (predicates), §6.8 (counts), D-46 (a machine with a deletion timestamp is
//! terminating whatever its phase says). Availability counts as the original counts it (decisions.md 4).

use serde::Serialize;

use crate::snapshots::MachineSnapshot;
use kube_values::selector::Labels;
use machine_api::{
    names::{annotation, preserve_value},
    v1alpha1::MachinePhase,
};

/// Whether the machine is being deleted.
pub fn is_terminating(machine: &MachineSnapshot) -> bool {
    machine.is_deleting() || *machine.phase() == MachinePhase::Terminating
}

/// Whether the machine is Failed and will be replaced.
pub fn is_failed(machine: &MachineSnapshot) -> bool {
    *machine.phase() == MachinePhase::Failed
}

/// Whether the machine is neither Failed nor terminating. Template changes are synced to active machines.
pub fn is_active(machine: &MachineSnapshot) -> bool {
    !is_failed(machine) && !is_terminating(machine)
}

/// Whether the VM exists; the Node need not have joined (D-22).
pub fn is_available(machine: &MachineSnapshot) -> bool {
    !is_terminating(machine) && matches!(machine.phase(), MachinePhase::Available | MachinePhase::Running)
}

/// Whether the Node is healthy.
pub fn is_ready(machine: &MachineSnapshot) -> bool {
    !is_terminating(machine) && *machine.phase() == MachinePhase::Running
}

/// Whether the machine is Failed and preserved, even if the preservation has ended.
pub fn is_preserved_failed(machine: &MachineSnapshot) -> bool {
    is_failed(machine) && machine.preserve_expiry_time().is_some()
}

/// Whether the set preserves the machine automatically.
pub fn is_auto_preserved(machine: &MachineSnapshot) -> bool {
    machine.annotation(annotation::PRESERVE) == Some(preserve_value::AUTO_PRESERVED)
}

/// The counts of a set's machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// All machines, terminating ones included.
    pub replicas: i32,
    /// Machines that are not terminating.
    pub staying: i32,
    /// Machines with all labels of the template.
    pub fully_labeled: i32,
    /// Available machines.
    pub available: i32,
    /// Ready machines.
    pub ready: i32,
    /// Preserved Failed machines.
    pub preserved_failed: i32,
    /// Machines preserved automatically by the set.
    pub auto_preserved: i32,
}

impl Counts {
    /// Counts the machines of a set with these template labels.
    pub fn of<'a>(machines: impl IntoIterator<Item = &'a MachineSnapshot>, template_labels: Option<&Labels>) -> Self {
        let mut counts = Self::default();
        for machine in machines {
            let labels = machine.labels();
            let has_all = template_labels.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
            counts.replicas += 1;
            counts.staying += i32::from(!is_terminating(machine));
            counts.fully_labeled += i32::from(has_all);
            counts.available += i32::from(is_available(machine));
            counts.ready += i32::from(is_ready(machine));
            counts.preserved_failed += i32::from(is_preserved_failed(machine));
            counts.auto_preserved += i32::from(is_auto_preserved(machine));
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::testing::*;

    #[test]
    fn s_msst_01_every_phase_counts_as_the_original_counts_it() {
        use MachinePhase::{Available, Failed, Pending, Running, Terminating};
        let machines =
            [Running, Available, Pending, Failed, Terminating].map(|phase| machine("m").phase(phase).snapshot());
        let counts = Counts::of(&machines, None);
        assert_eq!((counts.replicas, counts.staying, counts.available, counts.ready), (5, 4, 2, 1));
    }

    #[test]
    fn s_msst_02_a_machine_that_lacks_a_template_label_is_not_fully_labeled() {
        let machines = [machine("a").label("pool", "x").snapshot(), machine("b").snapshot()];
        let template = Labels::from([("pool".to_owned(), "x".to_owned())]);
        assert_eq!(Counts::of(&machines, Some(&template)).fully_labeled, 1);
    }

    #[test]
    fn d_46_a_machine_being_deleted_is_neither_ready_nor_staying() {
        let counts = Counts::of([&machine("a").phase(MachinePhase::Running).deleting().snapshot()], None);
        assert_eq!((counts.replicas, counts.staying, counts.available, counts.ready), (1, 0, 0, 0));
    }
}
