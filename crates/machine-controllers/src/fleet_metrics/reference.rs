//! What the gauges and their labels mean, for the reference.

use super::DECLARATIONS;

/// A declared gauge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetFamily {
    /// Its name.
    pub name: &'static str,
    /// The help text of a scrape.
    pub help: &'static str,
    /// The names of its labels. [`LABELS`] has their meanings.
    pub labels: &'static [&'static str],
}

/// All gauges.
pub fn families() -> impl Iterator<Item = FleetFamily> {
    DECLARATIONS.iter().map(|declared| FleetFamily {
        name: declared.name,
        help: declared.help,
        labels: declared.labels,
    })
}

/// The labels of the gauges, with their meanings.
pub const LABELS: &[(&str, &str)] = &[
    ("name", "Name of the machine, set or deployment."),
    ("namespace", "Its namespace."),
    ("createdAt", "When the object was created, as a Unix time in seconds."),
    ("condition", "Type of the condition."),
    ("phase", "Phase of the machines; empty for new ones."),
    ("reason", "Reason of the condition Progressing of the machines."),
    ("stage", "Stage of the machines, such as Create, Join or Drain."),
    ("node_name", "Name of the Node of the machine."),
    ("spec_provider_id", "The VM of the machine: its `spec.providerID`."),
    ("spec_class_api_group", "API group of the class."),
    ("spec_class_kind", "Kind of the class."),
    ("spec_class_name", "Name of the class."),
    ("spec_machine_class_api_group", "API group of the class in the template of the set."),
    ("spec_machine_class_kind", "Kind of the class in the template of the set."),
    ("spec_machine_class_name", "Name of the class in the template of the set."),
    ("spec_strategy_type", "Strategy of the deployment."),
    ("failed_machine_name", "Name of a Failed machine."),
    ("failed_machine_provider_id", "The VM of the Failed machine: its `spec.providerID`."),
    ("failed_machine_owner_ref", "Name of the set of the Failed machine."),
    ("failed_machine_last_operation_state", "State of the last operation of the Failed machine."),
    ("failed_machine_last_operation_machine_operation_type", "Type of the last operation of the Failed machine."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pk_091_every_label_has_a_meaning_and_no_other() {
        let declared: BTreeSet<_> = families().flat_map(|family| family.labels).copied().collect();
        let described: BTreeSet<_> = LABELS.iter().map(|(label, _)| *label).collect();
        assert_eq!(declared, described);
        assert_eq!(described.len(), LABELS.len());
    }
}
