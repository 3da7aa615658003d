//! Adds the label that distinguishes sibling sets to sets that were created without it.
//!
//! There are three changes, one per pass; each waits until the one before has been observed everywhere (D-21: no worker
//! blocks). First the template, and with it all new machines; then the existing machines; last the set's own labels and
//! its selector. In this order every machine always matches the selector of its set. Source: spec/deployment-and-set
//! §7.4. Pure.

use super::{
    fleet::{Fleet, SetState},
    plan::{Effect, Plan},
    template_hash::template_hash,
};
use crate::changes::{self, Changes};
use controller_runtime::snapshot::Whole;
use kube_values::selector::Labels;
use machine_api::{names::label::MACHINE_TEMPLATE_HASH, v1alpha1::MachineSet};

/// Progress of the labelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labelling {
    /// All sets have the label, or none needs it.
    Done,
    /// A set is being labelled. The pass does nothing else.
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
    let Some(selector) = &set.set.selector() else { return false };
    let labels = selector.match_labels.as_ref();
    !set.set.is_deleting() && value_of(labels).is_none()
}

fn value_of(labels: Option<&Labels>) -> Option<&String> {
    labels.and_then(|labels| labels.get(MACHINE_TEMPLATE_HASH)).filter(|value| !value.is_empty())
}

fn label(fleet: &Fleet<'_>, set: &SetState<'_>, plan: &mut Plan) {
    let sync = |change: &dyn Fn(&mut MachineSet)| {
        let mut wanted = Box::new(MachineSet::clone(set.set.whole_object()));
        change(&mut wanted);
        Effect::SyncSet { set: set.set.clone(), wanted }
    };
    let own = |hash: &str| (MACHINE_TEMPLATE_HASH.to_owned(), hash.to_owned());
    let Some(hash) = value_of(set.set.template().metadata.labels.as_ref()) else {
        let hash = template_hash(set.set.template(), fleet.deployment.status().collision_count);
        let labelled = sync(&|set| set.spec.template.metadata.labels.get_or_insert_default().extend([own(&hash)]));
        return plan.push("hash-label/template", labelled);
    };
    if set.set.status().observed_generation < set.set.generation().unwrap_or_default() {
        // The set controller may be creating machines without the label. The change of its status starts the next pass.
        return;
    }
    let mut all_labelled = true;
    for machine in set.machines.iter().filter(|machine| machine.label(MACHINE_TEMPLATE_HASH) != Some(hash)) {
        all_labelled = false;
        let (machine, labels) = (machine.clone(), [changes::set(MACHINE_TEMPLATE_HASH, hash)].into());
        plan.push("hash-label/machine", Effect::MarkMachine { machine, labels, annotations: Changes::new() });
    }
    if all_labelled {
        let selecting = sync(&|set| {
            set.metadata.labels.get_or_insert_default().extend([own(hash)]);
            let selector = set.spec.selector.get_or_insert_default();
            selector.match_labels.get_or_insert_default().extend([own(hash)]);
        });
        plan.push("hash-label/selector", selecting);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::deployment::{decide::decide, observe::SetSeen, testing::*};

    /// How far the labelling has come.
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
        let set: &mut MachineSet = seen.set.to_mut();
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
                machine.to_mut().metadata.labels.as_mut().unwrap().remove(MACHINE_TEMPLATE_HASH);
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
