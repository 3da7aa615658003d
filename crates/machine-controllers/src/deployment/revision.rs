//! Finds, updates or creates the set of the present template; and the revisions of sets.
//!
//! Source: spec/deployment-and-set §7.2, §7.5 with D-13 (the history grows only when the revision does). Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::{
    fleet::{Fleet, SetState, owner},
    observe::DeploymentObservation,
    patches,
    plan::{Effect, Next, Plan},
    scaling,
    template_hash::new_set_identity,
};
use crate::snapshots::{DeploymentSnapshot, Metadata, SetSnapshot};
use controller_runtime::{
    events::EventNote,
    snapshot::{Snapshot, Whole},
};
use kube_values::selector;
use machine_api::{
    names::{UNSELECTED_TEMPLATE, annotation, deployment_reason, finalizer, label},
    v1alpha1::{MachineSet, MachineSetSpec},
};

/// Annotations that are never copied between deployment and set (spec/deployment-and-set §2.3). Requests to admission
/// and the data of conversions belong to the object that has them.
const NOT_COPIED: [&str; 11] = [
    annotation::ADMISSION_SKIP,
    annotation::CONVERSION_V1ALPHA1,
    annotation::CONVERSION_V1BETA1,
    annotation::KUBECTL_LAST_APPLIED,
    annotation::REVISION,
    annotation::REVISION_HISTORY,
    annotation::DESIRED_REPLICAS,
    annotation::MAX_REPLICAS,
    annotation::PREFER_NO_SCHEDULE,
    annotation::UNFREEZE,
    annotation::TRIGGER_DELETION,
];
/// Maximum length of the revision history in bytes; the oldest entries are removed first (D-13).
const LONGEST_HISTORY: usize = 2000;

/// State of the new set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSet {
    /// It exists and is up to date; the pass goes on.
    InLine,
    /// It is about to be created or changed; the next pass observes it.
    Pending,
}

/// The revision of a set; absent means 0, unreadable means none.
pub fn revision_of(meta: Metadata<'_>) -> Option<i64> {
    match meta.annotations.get(annotation::REVISION) {
        None => Some(0),
        Some(text) => text.parse().ok(),
    }
}

/// The minimum revision of the new set: one more than the highest revision of the old sets.
pub fn next_revision(old: &[SetState<'_>]) -> i64 {
    old.iter().filter_map(|set| revision_of(set.set.metadata())).max().unwrap_or(0).max(0).saturating_add(1)
}

/// Updates an existing new set and the deployment's revision.
pub fn keep_in_line(fleet: &Fleet<'_>, new: &SetState<'_>, plan: &mut Plan) -> NewSet {
    let mut wanted = in_line(fleet.deployment, new.set, next_revision(&fleet.old));
    if scaling::awaits_size(fleet, new) {
        keep_time_of_scaler(&mut wanted, new);
    }
    if patches::changes_set(new.set, &wanted) {
        let (set, wanted) = (new.set.clone(), Box::new(wanted));
        plan.push("revision/sync", Effect::SyncSet { set, wanted });
        return NewSet::Pending;
    }
    let revision = new.annotation(annotation::REVISION);
    let told = fleet.deployment.annotation(annotation::REVISION);
    if let Some(revision) = revision.filter(|revision| told != Some(revision)) {
        plan.push("revision/deployment", Effect::WriteRevision(revision.to_owned()));
    }
    NewSet::InLine
}

/// Delays the scaler's time until the set has its new size. With the time alone, the set would delete the marked
/// machines and replace them at its old size; then the smaller size would delete machines that the scaler has not
/// named.
fn keep_time_of_scaler(wanted: &mut MachineSet, new: &SetState<'_>) {
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    match new.annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER) {
        Some(before) => annotations.insert(annotation::LAST_REPLICA_CHANGE_BY_SCALER.to_owned(), before.to_owned()),
        None => annotations.remove(annotation::LAST_REPLICA_CHANGE_BY_SCALER),
    };
}

/// Updates the machine configuration of old sets (D-51); their machines follow.
pub fn sync_old_sets(fleet: &Fleet<'_>, plan: &mut Plan) {
    for set in &fleet.old {
        let configuration = &fleet.deployment.template().spec.configuration;
        if set.set.template().spec.configuration == *configuration {
            continue;
        }
        let mut wanted = Box::new(MachineSet::clone(set.set.whole_object()));
        wanted.spec.template.spec.configuration.clone_from(configuration);
        if patches::changes_set(set.set, &wanted) {
            plan.push("revision/sync-old", Effect::SyncSet { set: set.set.clone(), wanted });
        }
    }
}

/// The set as it should be: hot parts of the template, annotations, revision.
fn in_line(deployment: &DeploymentSnapshot, set: &SetSnapshot, revision: i64) -> MachineSet {
    let mut wanted = MachineSet::clone(set.whole_object());
    let (template, from) = (&mut wanted.spec.template.spec, &deployment.template().spec);
    template.node_template = from.node_template.clone();
    template.configuration = from.configuration.clone();
    template.class.kind.clone_from(&from.class.kind);
    wanted.spec.min_ready_seconds = deployment.min_ready_seconds();
    wanted.spec.auto_preserve_failed_machine_max = deployment.auto_preserve_failed_machine_max();
    if let Some(labels) = &mut wanted.metadata.labels {
        // Left from the time when this was an old set of an in-place rollout; with the label it could never grow
        // (D-14).
        labels.remove(label::SCALE_UP_DISABLED);
    }
    let annotations = wanted.metadata.annotations.get_or_insert_default();
    annotations.extend(copied_annotations(deployment.metadata()));
    let before = annotations.get(annotation::REVISION).cloned();
    match before.as_deref().map(str::parse::<i64>) {
        Some(Ok(known)) if known < revision => {
            let history = annotations.entry(annotation::REVISION_HISTORY.to_owned()).or_default();
            *history = with_entry(history, &known.to_string());
            annotations.insert(annotation::REVISION.to_owned(), revision.to_string());
        }
        // An unreadable value comes from another program and stays.
        Some(_) => {}
        None => {
            annotations.insert(annotation::REVISION.to_owned(), revision.to_string());
        }
    }
    wanted
}

/// A history with one more entry: without duplicates, and without its oldest entries if it is too long.
fn with_entry(history: &str, entry: &str) -> String {
    let mut entries: Vec<&str> = Vec::new();
    for known in history.split(',').chain([entry]).filter(|known| !known.is_empty()) {
        if entries.last() != Some(&known) {
            entries.push(known);
        }
    }
    let mut text = entries.join(",");
    while text.len() > LONGEST_HISTORY {
        match text.split_once(',') {
            Some((_, rest)) => text = rest.to_owned(),
            None => break,
        }
    }
    text
}

/// Whether an annotation is copied from deployment to set, and back by a rollback.
pub fn is_copied(key: &str) -> bool {
    !NOT_COPIED.contains(&key)
}

/// The annotations that are copied between deployment and set.
pub fn copied_annotations(from: Metadata<'_>) -> BTreeMap<String, String> {
    let all = from.annotations.iter().filter(|(key, _)| is_copied(key));
    all.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Adds the creation of the set of the present template with `replicas` machines. If another set has its name, the
/// collision is counted and the next pass uses another name.
pub fn make(seen: &DeploymentObservation, fleet: &Fleet<'_>, replicas: i32, plan: &mut Plan) -> NewSet {
    if seen.namesake.is_some() {
        // If the existing set were ours and had this template, it would have been found as the new set.
        let collisions = fleet.deployment.status().collision_count.unwrap_or(0).saturating_add(1);
        plan.push("revision/collision", Effect::CountCollision(collisions));
        plan.next = Next::After(std::time::Duration::ZERO, "the name of the new set is taken");
        return NewSet::Pending;
    }
    let set = new_set(fleet, replicas);
    let labels = set.metadata.labels.clone().unwrap_or_default();
    if set.spec.selector.as_ref().is_some_and(|selector| selector::matches(selector, &labels)) {
        plan.push("revision/create", Effect::CreateSet(Box::new(set)));
    } else {
        let note = EventNote::warning(deployment_reason::SET_CREATE_ERROR, UNSELECTED_TEMPLATE);
        plan.push("revision/unselected", Effect::Tell(note));
    }
    NewSet::Pending
}

fn new_set(fleet: &Fleet<'_>, replicas: i32) -> MachineSet {
    let deployment = fleet.deployment;
    let (name, hash) = new_set_identity(deployment);
    let mut template = deployment.template().clone();
    let mut labels = template.metadata.labels.clone().unwrap_or_default();
    labels.insert(label::MACHINE_TEMPLATE_HASH.to_owned(), hash.clone());
    template.metadata.labels = Some(labels.clone());
    let base = deployment.selector().cloned().unwrap_or_default();
    let mut match_labels = base.match_labels.unwrap_or_default();
    match_labels.insert(label::MACHINE_TEMPLATE_HASH.to_owned(), hash);
    let mut annotations = copied_annotations(deployment.metadata());
    annotations.insert(annotation::REVISION.to_owned(), next_revision(&fleet.old).to_string());
    annotations.extend(fleet.size_annotations().map(|(key, value)| (key.to_owned(), value)));
    MachineSet {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(deployment.namespace().to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: Some(vec![finalizer::MACHINE.to_owned()]),
            owner_references: Some(vec![owner(deployment).reference()]),
            ..ObjectMeta::default()
        },
        spec: MachineSetSpec {
            replicas,
            selector: Some(LabelSelector { match_labels: Some(match_labels), ..base }),
            template,
            min_ready_seconds: deployment.min_ready_seconds(),
            auto_preserve_failed_machine_max: deployment.auto_preserve_failed_machine_max(),
            ..MachineSetSpec::default()
        },
        ..MachineSet::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
    use rstest::rstest;

    use controller_runtime::objects::Patch;
    use serde_json::json;

    use super::*;
    use crate::{
        deployment::{observe::SetSeen, testing::*},
        set::testing::Building,
    };
    use machine_api::v1alpha1::{MachineDeploymentStrategy, OrchestrationType};

    fn revised(name: &str, revision: &str) -> MachineSet {
        Building(set_of_class(name, "old", 0, -2000)).annotation(annotation::REVISION, revision).build()
    }

    fn annotated(set: &MachineSet, key: &str) -> Option<String> {
        set.metadata.annotations.as_ref()?.get(key).cloned()
    }

    #[test]
    fn s_rev_03_the_next_revision_is_one_more_than_the_highest_readable() {
        let sets = [revised("a", "1"), revised("b", "4"), revised("c", "x")];
        let seen = seeing_sets(deployment(1, 1, 0).build(), sets.map(|set| seen_set(set, 0)).into());
        assert_eq!(next_revision(&Fleet::of(&seen).old), 5);
    }

    /// The set would be created again and again under new names, because the deployment could not find it.
    #[test]
    fn a_set_that_the_deployment_would_not_select_is_not_made() {
        let expression = LabelSelectorRequirement {
            key: "pool".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec!["elsewhere".to_owned()]),
        };
        let deployment = deployment(1, 1, 0).with(|deployment| {
            deployment.spec.selector.as_mut().unwrap().match_expressions = Some(vec![expression]);
        });
        let seen = seeing_sets(deployment.build(), vec![]);
        let mut plan = Plan::default();
        make(&seen, &Fleet::of(&seen), 1, &mut plan);
        assert!(matches!(&plan.steps[..], [step] if matches!(step.effect, Effect::Tell(_))), "{plan:?}");
    }

    #[rstest]
    #[case::of_a_user("example.com/owner", true)]
    #[case::a_request_to_admission(annotation::ADMISSION_SKIP, false)]
    #[case::what_v1beta1_can_not_say(annotation::CONVERSION_V1ALPHA1, false)]
    #[case::what_v1alpha1_can_not_say(annotation::CONVERSION_V1BETA1, false)]
    fn annotations_of_a_deployment_that_its_sets_carry(#[case] key: &str, #[case] copied: bool) {
        assert_eq!(is_copied(key), copied);
    }

    #[test]
    fn s_rev_01_hot_parts_and_the_revision_reach_the_new_set() {
        let mut wanted =
            deployment(1, 1, 0).annotation("team", "x").annotation(annotation::TRIGGER_DELETION, "m~t").snapshot();
        wanted.to_mut().spec.template.spec.node_template.metadata.labels =
            Some([("a".to_owned(), "b".to_owned())].into());
        let changed = in_line(&wanted, &set_of_class("md-new", "new", 1, 0).into(), 2);
        let annotations = changed.metadata.annotations.unwrap();
        assert_eq!(changed.spec.template.spec.node_template, wanted.template().spec.node_template);
        assert_eq!(annotations[annotation::REVISION], "2");
        assert_eq!(annotations[annotation::REVISION_HISTORY], "1");
        assert_eq!(annotations["team"], "x");
        assert!(!annotations.contains_key(annotation::TRIGGER_DELETION));
    }

    #[rstest]
    #[case::s_rev_02_nothing_to_change("1", 1, "1", None)]
    #[case::s_rev_05_an_unreadable_revision_is_left_alone("abc", 4, "abc", None)]
    #[case::d_13_a_lower_revision_than_known_adds_nothing("5", 2, "5", None)]
    #[case::a_raised_revision_is_remembered("1", 3, "3", Some("1"))]
    fn revisions_only_grow(#[case] known: &str, #[case] next: i64, #[case] then: &str, #[case] history: Option<&str>) {
        let annotations = in_line(&deployment(1, 1, 0).snapshot(), &revised("md-new", known).into(), next)
            .metadata
            .annotations
            .unwrap();
        assert_eq!(annotations[annotation::REVISION], then);
        assert_eq!(annotations.get(annotation::REVISION_HISTORY).map(String::as_str), history);
    }

    #[test]
    fn s_md_20_an_annotation_taken_off_the_deployment_stays_on_the_set() {
        let set = Building(set_of_class("md-new", "new", 1, 0)).annotation("team", "x").snapshot();
        assert_eq!(in_line(&deployment(1, 1, 0).snapshot(), &set, 1), **set.whole_object());
    }

    #[test]
    fn s_md_13_the_time_of_the_scaler_reaches_the_set_and_its_list_does_not() {
        let built = deployment(1, 1, 0)
            .annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, "2026-11-21T08:00:00Z")
            .annotation(annotation::TRIGGER_DELETION, "md-new-0~2026-11-21T08:00:00Z")
            .snapshot();
        let set = set_of_class("md-new", "new", 1, 0);
        let annotations = in_line(&built, &set.into(), 1).metadata.annotations.unwrap();
        assert_eq!(annotations[annotation::LAST_REPLICA_CHANGE_BY_SCALER], "2026-11-21T08:00:00Z");
        assert!(!annotations.contains_key(annotation::TRIGGER_DELETION));
    }

    const SCALED_AT: &str = "2026-11-21T08:00:00Z";

    /// Whether the set gets the scaler's time, in a deployment of this strategy that the scaler has shrunk to two.
    /// `sized_for` is the deployment size that the set remembers.
    fn gets_scaler_time(strategy: MachineDeploymentStrategy, sized_for: Option<&str>, sets: Vec<SetSeen>) -> bool {
        let scaled = deployment(2, 1, 0)
            .annotation(annotation::LAST_REPLICA_CHANGE_BY_SCALER, SCALED_AT)
            .with(|deployment| deployment.spec.strategy = strategy);
        let mut seen = seeing_sets(scaled.build(), sets);
        for set in &mut seen.sets {
            let annotations = set.set.to_mut().metadata.annotations.get_or_insert_default();
            match sized_for {
                Some(size) => _ = annotations.insert(annotation::DESIRED_REPLICAS.to_owned(), size.to_owned()),
                None => _ = annotations.remove(annotation::DESIRED_REPLICAS),
            }
        }
        let fleet = Fleet::of(&seen);
        let mut plan = Plan::default();
        keep_in_line(&fleet, fleet.new.as_ref().unwrap(), &mut plan);
        plan.steps.iter().any(|step| match &step.effect {
            Effect::SyncSet { set, wanted } => {
                let told = |set: &MachineSet| annotated(set, annotation::LAST_REPLICA_CHANGE_BY_SCALER);
                told(set.whole_object()) != told(wanted) && told(wanted).as_deref() == Some(SCALED_AT)
            }
            _ => false,
        })
    }

    #[rstest]
    #[case::not_before_the_set_has_its_size(rolling(1, 0), Some("4"), vec![new(4, 4)], false)]
    #[case::then_it_does(rolling(1, 0), Some("2"), vec![new(2, 2)], true)]
    #[case::nor_while_another_set_waits_for_its_size(rolling(1, 0), Some("4"), vec![old(1, 1), new(1, 1)], false)]
    #[case::nor_while_a_set_is_larger_for_surge(rolling(1, 0), Some("2"), vec![old(1, 1), new(3, 3)], false)]
    #[case::a_set_that_remembers_nothing_is_too_large(rolling(1, 0), None, vec![new(4, 4)], false)]
    #[case::and_then_is_not(rolling(1, 0), None, vec![new(2, 2)], true)]
    #[case::one_without_machines_has_none_to_lose(rolling(1, 0), Some("4"), vec![old(2, 2), new(0, 0)], false)]
    #[case::in_the_middle_of_an_update_in_place(
        in_place(0, 1, OrchestrationType::Auto), Some("4"), vec![old(2, 2), new(2, 2)], false)]
    #[case::where_nothing_is_remembered(in_place(0, 1, OrchestrationType::Auto), None, vec![old(1, 1), new(3, 3)], false)]
    #[case::once_the_update_has_taken_it_into_account(
        in_place(0, 1, OrchestrationType::Auto), Some("2"), vec![old(1, 1), new(1, 1)], true)]
    fn s_md_13_the_time_of_the_scaler_reaches_the_set_with_its_size(
        #[case] strategy: MachineDeploymentStrategy,
        #[case] sized_for: Option<&str>,
        #[case] sets: Vec<SetSeen>,
        #[case] told: bool,
    ) {
        assert_eq!(gets_scaler_time(strategy, sized_for, sets), told);
    }

    #[test]
    fn s_rev_07_a_template_without_a_set_gets_one_with_another_name() {
        let seen = seeing_sets(deployment(5, 1, 1).build(), vec![old(5, 5)]);
        let fleet = Fleet::of(&seen);
        assert!(fleet.new.is_none());
        let made = new_set(&fleet, 1);
        assert_ne!(made.metadata.name.as_deref(), Some(fleet.old[0].set.name()));
        assert!(made.metadata.name.unwrap().starts_with("md-"));
    }

    #[test]
    fn d_51_old_sets_get_new_timeouts_and_nothing_else() {
        let built = deployment(5, 1, 1).with(|d| {
            d.spec.template.spec.configuration.drain_timeout = Some(kube_values::duration::GoDuration::from_secs(9));
        });
        let seen = seeing_sets(built.build(), vec![old(5, 5), new(1, 1)]);
        let mut plan = Plan::default();
        sync_old_sets(&Fleet::of(&seen), &mut plan);
        let [step] = plan.steps.as_slice() else { panic!("{plan:?}") };
        let (set, patch) = patches::of_set(&step.effect, &seen.deployment).unwrap();
        let Patch::Merge(patch) = patch else { panic!("{patch:?}") };
        assert_eq!(set.key.name, "md-old");
        assert_eq!(patch["spec"], json!({ "template": { "spec": { "drainTimeout": "9s" } } }));
    }

    #[test]
    fn d_14_a_set_that_becomes_the_new_one_may_grow_again() {
        let set = Building(set_of_class("md-new", "new", 1, 0)).label(label::SCALE_UP_DISABLED, "true").snapshot();
        let changed = in_line(&deployment(1, 1, 0).snapshot(), &set, 1);
        assert!(!changed.metadata.labels.unwrap().contains_key(label::SCALE_UP_DISABLED));
    }

    #[test]
    fn repetitions_in_a_history_are_compacted() {
        assert_eq!(with_entry("1,1,1,2,2", "3"), "1,2,3");
        assert!(with_entry("12345", &"9".repeat(3000)).starts_with('9'));
    }

    #[test]
    fn s_rev_09_a_new_set_remembers_the_size_of_its_deployment() {
        let seen = seeing_sets(deployment(5, 1, 1).build(), vec![]);
        let made = new_set(&Fleet::of(&seen), 5);
        let annotations = made.metadata.annotations.unwrap();
        assert_eq!(
            (annotations[annotation::DESIRED_REPLICAS].as_str(), annotations[annotation::MAX_REPLICAS].as_str()),
            ("5", "6")
        );
        let labels = made.metadata.labels.unwrap();
        let selector = made.spec.selector.unwrap().match_labels.unwrap();
        assert_eq!(labels[label::MACHINE_TEMPLATE_HASH], selector[label::MACHINE_TEMPLATE_HASH]);
        assert_eq!(made.spec.template.metadata.labels.unwrap(), labels);
    }

    #[test]
    fn s_rev_10_surge_of_an_in_place_update_is_not_remembered() {
        use machine_api::v1alpha1::OrchestrationType::Auto;
        let built = deployment(5, 1, 1).with(|d| d.spec.strategy = in_place(2, 1, Auto)).build();
        let seen = seeing_sets(built, vec![]);
        assert_eq!(new_set(&Fleet::of(&seen), 5).metadata.annotations.unwrap()[annotation::MAX_REPLICAS], "5");
    }
}
