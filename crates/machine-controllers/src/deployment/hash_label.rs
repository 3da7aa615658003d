//! The label that tells sibling sets apart, put on sets that were made without it.
//!
//! Three changes, one per pass, each only when what came before has arrived everywhere (D-21: no worker waits): template
//! and so all new machines, machines that exist, and in the end the set's own labels and its selector. In this order no
//! machine ever falls out of the selector of its set. Source: spec/deployment-and-set §7.4. Pure.

use serde_json::json;

use super::{
    fleet::{Fleet, SetState},
    plan::{Effect, Plan},
    template_hash::template_hash,
};
use crate::set::counts::label_of;
use controller_runtime::{key::Target, objects::Patch};
use kube_values::selector::Labels;
use machine_api::names::label::MACHINE_TEMPLATE_HASH;

/// What became of the sets' labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelling {
    /// All sets have the label, or none needs it.
    Done,
    /// A set is being labelled; nothing else is done meanwhile.
    UnderWay,
}

/// Adds the next change for each set whose selector lacks the label.
pub fn step(fleet: &Fleet<'_>, plan: &mut Plan) -> Labelling {
    let mut labelling = Labelling::Done;
    for set in fleet.all().filter(|set| lacks_label(set)) {
        labelling = Labelling::UnderWay;
        label(fleet, set, plan);
    }
    labelling
}

fn lacks_label(set: &SetState<'_>) -> bool {
    let Some(selector) = &set.set.spec.selector else { return false };
    let labels = selector.match_labels.as_ref();
    set.set.metadata.deletion_timestamp.is_none() && value_of(labels).is_none()
}

fn value_of(labels: Option<&Labels>) -> Option<&String> {
    labels.and_then(|labels| labels.get(MACHINE_TEMPLATE_HASH)).filter(|value| !value.is_empty())
}

fn label(fleet: &Fleet<'_>, set: &SetState<'_>, plan: &mut Plan) {
    let target = || Target::of(&**set.set);
    let guarded = |change| Patch::Merge(change).guarded_by(set.set.metadata.resource_version.as_deref());
    let Some(hash) = value_of(set.set.spec.template.metadata.labels.as_ref()) else {
        let hash = template_hash(&set.set.spec.template, fleet.deployment.status.collision_count);
        let labels = json!({ "labels": { MACHINE_TEMPLATE_HASH: hash } });
        let patch = guarded(json!({ "spec": { "template": { "metadata": labels } } }));
        return plan.push("hash-label/template", Effect::PatchSet { set: target(), patch });
    };
    if set.set.status.observed_generation < set.set.metadata.generation.unwrap_or_default() {
        // The set controller may be making machines without the label; its status wakes us.
        return;
    }
    let mut all_labelled = true;
    for machine in set.machines.iter().filter(|machine| label_of(machine, MACHINE_TEMPLATE_HASH) != Some(hash)) {
        all_labelled = false;
        let patch = Patch::Merge(json!({ "metadata": { "labels": { MACHINE_TEMPLATE_HASH: hash } } }));
        plan.push("hash-label/machine", Effect::PatchMachine { machine: Target::of(&**machine), patch });
    }
    if all_labelled {
        let patch = guarded(json!({
            "metadata": { "labels": { MACHINE_TEMPLATE_HASH: hash } },
            "spec": { "selector": { "matchLabels": { MACHINE_TEMPLATE_HASH: hash } } },
        }));
        plan.push("hash-label/selector", Effect::PatchSet { set: target(), patch });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::*;
    use crate::deployment::{decide::decide, observe::SetSeen, testing::*};
    use machine_api::v1alpha1::MachineSet;

    /// How far the label has come.
    #[derive(Clone, Copy, PartialEq, PartialOrd)]
    enum Has {
        Nothing,
        Template,
        TemplateObserved,
        Machines,
        Everything,
    }

    fn without_label(has: Has) -> SetSeen {
        let mut seen = new(2, 2);
        let set: &mut MachineSet = Arc::make_mut(&mut seen.set);
        if has < Has::Everything {
            set.metadata.labels.as_mut().unwrap().remove(MACHINE_TEMPLATE_HASH);
            set.spec.selector.as_mut().unwrap().match_labels.as_mut().unwrap().remove(MACHINE_TEMPLATE_HASH);
        }
        if has < Has::Template {
            set.spec.template.metadata.labels.as_mut().unwrap().remove(MACHINE_TEMPLATE_HASH);
        }
        if has == Has::Template {
            set.metadata.generation = Some(2);
        }
        if has < Has::Machines {
            for machine in &mut seen.machines {
                Arc::make_mut(machine).metadata.labels.as_mut().unwrap().remove(MACHINE_TEMPLATE_HASH);
            }
        }
        seen
    }

    #[rstest]
    #[case::first_the_template(Has::Nothing, &["hash-label/template"])]
    #[case::then_the_set_controller_must_know(Has::Template, &[])]
    #[case::then_the_machines(Has::TemplateObserved, &["hash-label/machine", "hash-label/machine"])]
    #[case::then_labels_and_selector(Has::Machines, &["hash-label/selector"])]
    #[case::then_the_rollout_goes_on(Has::Everything, &["revision/deployment"])]
    fn d_21_a_set_without_the_label_gets_it_step_by_step(#[case] has: Has, #[case] expected: &[&str]) {
        let seen = seeing_sets(deployment(2, 1, 0).build(), vec![without_label(has)]);
        let rules: Vec<&str> = decide(&seen).steps.iter().map(|step| step.rule).collect();
        assert_eq!(rules, expected);
    }
}
