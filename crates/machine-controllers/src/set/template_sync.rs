//! Writes hot parts of the template to existing machines.
//!
//! Node template and machine configuration are synced to active machines, the kind of the class to all
//! (spec/deployment-and-set §6.6, D-02). The name of the class is never synced; a change of it is a rollout. Pure.

use super::{
    counts::is_active,
    plan::{Effect, Plan},
};
use crate::snapshots::{MachineSnapshot, SetSnapshot};
use machine_api::{names::annotation, v1alpha1::MachineSpec};

/// Adds the steps that sync the machines with the template.
pub fn sync_template(set: &SetSnapshot, claimed: &[MachineSnapshot], plan: &mut Plan) {
    for machine in claimed {
        if let Some(wanted) = wanted_spec(set, machine).filter(|wanted| wanted != machine.spec()) {
            let spec = Box::new(wanted);
            plan.push("template/sync", Effect::SyncTemplate { machine: machine.clone(), spec });
        }
    }
}

fn wanted_spec(set: &SetSnapshot, machine: &MachineSnapshot) -> Option<MachineSpec> {
    let template = &set.template().spec;
    let kind_differs = machine.class_ref().kind != template.class.kind;
    let active = is_active(machine);
    let hot_parts_differ =
        *machine.node_template() != template.node_template || *machine.configuration() != template.configuration;
    if !(kind_differs || active && hot_parts_differ) {
        return None;
    }
    let mut wanted = machine.spec().clone();
    wanted.class.kind.clone_from(&template.class.kind);
    if active {
        wanted.node_template = template.node_template.clone();
        wanted.configuration = template.configuration.clone();
        // The annotation overrides the template as long as the machine exists.
        let own = machine.annotation(annotation::EFFECTIVE_CREATION_TIMEOUT).and_then(|text| text.parse().ok());
        if let Some(timeout) = own {
            wanted.configuration.creation_timeout = Some(timeout);
        }
    }
    Some(wanted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use controller_runtime::snapshot::Snapshot;
    use kube_values::duration::GoDuration;
    use machine_api::v1alpha1::MachineSet;

    fn synced(set: &SetSnapshot) -> Vec<String> {
        let machines: Vec<MachineSnapshot> =
            vec![running("active").snapshot(), failed("failed").snapshot(), running("gone").deleting().snapshot()];
        let mut plan = Plan::default();
        sync_template(set, &machines, &mut plan);
        plan.steps
            .iter()
            .map(|step| match &step.effect {
                Effect::SyncTemplate { machine, .. } => machine.name().to_owned(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[rstest]
    #[case::nothing_changed(set(3), &[])]
    #[case::s_ms_38_node_template_reaches_active_machines(set(3).with(|s| {
        s.spec.template.spec.node_template.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    }), &["active"])]
    #[case::configuration_reaches_active_machines(
        set(3).with(|s| s.spec.template.spec.configuration.drain_timeout = Some(GoDuration::from_mins(1))), &["active"])]
    #[case::s_ms_39_class_kind_reaches_all(
        set(3).with(|s| s.spec.template.spec.class.kind = "Other".to_owned()), &["active", "failed", "gone"])]
    #[case::s_ms_40_class_name_reaches_none(
        set(3).with(|s| s.spec.template.spec.class.name = "other".to_owned()), &[])]
    fn the_template_reaches_machines(#[case] set: Building<MachineSet>, #[case] expected: &[&str]) {
        assert_eq!(synced(&set.snapshot()), expected);
    }

    #[test]
    fn an_override_of_the_creation_timeout_is_kept() {
        let machine = running("m")
            .annotation(annotation::EFFECTIVE_CREATION_TIMEOUT, "30m")
            .with(|machine| machine.spec.configuration.creation_timeout = Some(GoDuration::from_mins(30)))
            .build();
        let mut plan = Plan::default();
        sync_template(&set(1).snapshot(), &[machine.into()], &mut plan);
        assert_eq!(plan.steps, []);
    }
}
