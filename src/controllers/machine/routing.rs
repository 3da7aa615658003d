//! What wakes a machine: changes of itself, its siblings, its Node, its class, its Secrets, and the pods of its Node.
//!
//! Pure functions from a change to keys; [`MachineController`]'s `*_changed` methods put the keys into the queue. Source:
//! spec/machine-controller §2.3, §2.5.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Pod, Secret},
    storage::v1::VolumeAttachment,
};
use kube::ResourceExt;

use super::{
    MachineController, health::conditions_changed, health::is_critical_component_missing,
    health_timeout::stands_in_the_way, in_place, node_metadata, node_ownership::provider_id,
    observation::conditions_of,
};
use crate::{
    api::{
        names::{annotation, finalizer, label},
        v1alpha1::{Machine, MachineClass, MachinePhase},
    },
    cluster::{key::ObjectKey, store::Change},
    controllers::views::{BY_CLASS, BY_INSTANCE, BY_NODE, BY_SECRET, ControlViews, UNHEALTHY_BY_NAME_LABEL, qualified},
    driver::same_instance::instance_key,
};

/// Machines to look at after a change of a machine.
pub fn after_machine(change: &Change<Machine>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let mut keys = BTreeSet::new();
    let Some(newest) = change.newest() else { return keys };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => machine_update_matters(old, new),
        _ => true,
    };
    if matters {
        keys.insert(ObjectKey::of(&**newest));
    }
    if may_hold_up_others(change.old.as_deref()) && !may_hold_up_others(change.new.as_deref()) {
        let group = newest.labels().get(label::NAME).cloned().unwrap_or_default();
        let group = qualified(&newest.namespace().unwrap_or_default(), &group);
        let waiting = views.machines.by_index(UNHEALTHY_BY_NAME_LABEL, &group);
        keys.extend(waiting.iter().map(|machine| ObjectKey::of(&**machine)));
    }
    keys.extend(after_claim(change, views));
    keys
}

/// Machines with the same Node on their label or the same instance, when one of them gives its claim up, learns its id or is
/// deleted: whose Node and VM are may be known now.
fn after_claim(change: &Change<Machine>, views: &ControlViews) -> Vec<ObjectKey> {
    let claim = |machine: &Arc<Machine>| {
        (
            machine.labels().get(label::NODE).cloned().unwrap_or_default(),
            machine.spec.provider_id.clone(),
            machine.metadata.deletion_timestamp.is_some(),
        )
    };
    let (old, new) = (change.old.as_ref().map(claim), change.new.as_ref().map(claim));
    if old == new {
        return Vec::new();
    }
    let claims = old.into_iter().chain(new).flat_map(|(node, id, _)| {
        let instance = instance_key(&id);
        let node = Some(node).filter(|node| !node.is_empty());
        [node.map(|node| (BY_NODE, node)), instance.map(|instance| (BY_INSTANCE, instance))]
    });
    let claims: BTreeSet<_> = claims.flatten().collect();
    let machines = claims.iter().flat_map(|(index, value)| views.machines.by_index(index, value));
    machines.map(|machine| ObjectKey::of(&*machine)).collect()
}

/// Whether an update of a machine may change a decision. Status is written by us alone, apart from hands that reach in.
fn machine_update_matters(old: &Machine, new: &Machine) -> bool {
    let label = |machine: &Machine, key: &str| machine.labels().get(key).cloned();
    let note = |machine: &Machine, key: &str| machine.annotations().get(key).cloned();
    let had_finalizer = old.finalizers().iter().any(|name| name == finalizer::MACHINE);
    let has_finalizer = new.finalizers().iter().any(|name| name == finalizer::MACHINE);
    let preserved = new.annotations().contains_key(annotation::PRESERVE)
        && old.status.current_status.phase != new.status.current_status.phase;
    old.metadata.uid != new.metadata.uid
        || old.metadata.generation != new.metadata.generation
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
        || (had_finalizer && !has_finalizer)
        || preserved
        || [label::NODE, label::FORCE_DELETION, label::FORCE_DRAIN, label::NAME]
            .iter()
            .any(|key| label(old, key) != label(new, key))
        || [annotation::PRESERVE, annotation::EFFECTIVE_CREATION_TIMEOUT]
            .iter()
            .any(|key| note(old, key) != note(new, key))
}

/// Whether the machine may keep a sibling from being declared Failed.
fn may_hold_up_others(machine: Option<&Machine>) -> bool {
    machine.is_some_and(|machine| {
        let current = &machine.status.current_status;
        stands_in_the_way(&current.phase, current.preserve_expiry_time.is_some())
    })
}

/// What became of the Node of machines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NodeNews {
    /// Machines to look at.
    pub wake: BTreeSet<ObjectKey>,
    /// Machines whose Node was removed.
    pub vanished: BTreeSet<ObjectKey>,
    /// Machines whose Node came up.
    pub appeared: BTreeSet<ObjectKey>,
}

/// Machines to look at after a change of a Node.
pub fn after_node(change: &Change<Node>, views: &ControlViews) -> NodeNews {
    let mut news = NodeNews::default();
    let Some(newest) = change.newest() else { return news };
    let is_ignored = newest.annotations().contains_key(annotation::NOT_MANAGED);
    // With the annotation gone or a machine linked the node is somebody's again; only its removal is ignored for good.
    for machine in views.machines.by_index(BY_NODE, &newest.name_any()) {
        let key = ObjectKey::of(&*machine);
        match (&change.old, &change.new) {
            (None, Some(_)) => {
                news.appeared.insert(key.clone());
                news.wake.insert(key);
            }
            (Some(_), None) if !is_ignored => {
                news.vanished.insert(key.clone());
                news.wake.insert(key);
            }
            (Some(old), Some(new)) if !is_ignored && node_update_matters(old, new, &machine) => {
                news.wake.insert(key);
            }
            _ => {}
        }
    }
    if leads_otherwise(change) {
        news.wake.extend(unlinked_with_the_instance_of(newest, views));
    }
    news
}

/// Whether the Node leads to another machine than before, or to one at all.
fn leads_otherwise(change: &Change<Node>) -> bool {
    let Some(new) = &change.new else { return false };
    let leads = |node: &Node| (provider_id(node).to_owned(), node.labels().get(label::MACHINE_NAME).cloned());
    change.old.as_ref().is_none_or(|old| leads(old) != leads(new))
}

/// Machines with the instance of this Node that have lost their link.
fn unlinked_with_the_instance_of(node: &Node, views: &ControlViews) -> impl Iterator<Item = ObjectKey> {
    let instance = instance_key(provider_id(node));
    let machines = instance.map(|instance| views.machines.by_index(BY_INSTANCE, &instance)).unwrap_or_default();
    let is_unlinked = |machine: &Arc<Machine>| machine.labels().get(label::NODE).is_none_or(String::is_empty);
    machines.into_iter().filter(is_unlinked).map(|machine| ObjectKey::of(&*machine))
}

/// Whether an update of a Node may change a decision about its machine.
fn node_update_matters(old: &Node, new: &Node, machine: &Machine) -> bool {
    let label = |node: &Node, key: &str| node.labels().get(key).cloned();
    let note = |node: &Node, key: &str| node.annotations().get(key).cloned();
    let appeared = |key: &str| label(old, key).is_none() && label(new, key).is_some();
    // Also when it is taken off: a node may become a candidate again only then (MC-142).
    let result_changed = label(new, label::UPDATE_RESULT) != label(old, label::UPDATE_RESULT);
    let attached = |node: &Node| node.status.as_ref().and_then(|status| status.volumes_attached.clone());
    let capacity = |node: &Node| node.status.as_ref().and_then(|status| status.capacity.clone());
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone());
    let phase = &machine.status.current_status.phase;
    let by_conditions = !matches!(phase, MachinePhase::CrashLoopBackOff | MachinePhase::Terminating)
        && conditions_changed(conditions_of(old), conditions_of(new));
    let is_dressed_otherwise = old.labels() != new.labels()
        || old.annotations() != new.annotations()
        || old.finalizers() != new.finalizers()
        || taints(old) != taints(new);
    old.metadata.uid != new.metadata.uid
        || provider_id(old) != provider_id(new)
        || old.metadata.deletion_timestamp.is_some() != new.metadata.deletion_timestamp.is_some()
        || is_critical_component_missing(old) != is_critical_component_missing(new)
        || appeared(label::CANDIDATE_FOR_UPDATE)
        || appeared(label::SELECTED_FOR_UPDATE)
        || result_changed
        || note(old, annotation::PRESERVE) != note(new, annotation::PRESERVE)
        || by_conditions
        || capacity(old) != capacity(new)
        || (may_be_drained(machine) && attached(old) != attached(new))
        || (is_dressed_otherwise
            && node_metadata::wanted(&machine.name_any(), &machine.spec.node_template, new).patch.is_some())
}

/// Machines to look at after a change of a class.
pub fn after_class(change: &Change<MachineClass>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let Some(newest) = change.newest() else { return BTreeSet::new() };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            let has = |class: &MachineClass| class.finalizers().iter().any(|name| name == finalizer::MACHINE);
            old.metadata.generation != new.metadata.generation
                || has(old) != has(new)
                || old.provider != new.provider
                || old.node_template != new.node_template
                || old.secret_ref != new.secret_ref
                || old.credentials_secret_ref != new.credentials_secret_ref
        }
        _ => true,
    };
    if matters { machines_of_class(newest, views).collect() } else { BTreeSet::new() }
}

fn machines_of_class(class: &MachineClass, views: &ControlViews) -> impl Iterator<Item = ObjectKey> {
    let name = qualified(&class.namespace().unwrap_or_default(), &class.name_any());
    views.machines.by_index(BY_CLASS, &name).into_iter().map(|machine| ObjectKey::of(&*machine))
}

/// Machines to look at after a change of a Secret: those that may wait for it.
pub fn after_secret(change: &Change<Secret>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let Some(newest) = change.newest() else { return BTreeSet::new() };
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.data != new.data,
        _ => true,
    };
    if !matters {
        return BTreeSet::new();
    }
    let name = qualified(&newest.namespace().unwrap_or_default(), &newest.name_any());
    let classes = views.classes.by_index(BY_SECRET, &name);
    classes
        .iter()
        .flat_map(|class| {
            let name = qualified(&class.namespace().unwrap_or_default(), &class.name_any());
            views.machines.by_index(BY_CLASS, &name)
        })
        .filter(|machine| {
            matches!(
                machine.status.current_status.phase,
                MachinePhase::Unset | MachinePhase::CrashLoopBackOff | MachinePhase::Terminating
            )
        })
        .map(|machine| ObjectKey::of(&*machine))
        .collect()
}

/// Machines to look at after a change of a pod: those whose node it is on, while they are drained.
pub fn after_pod(change: &Change<Pod>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    // Only a pod that goes lets a drain go on.
    if change.new.is_some() {
        return BTreeSet::new();
    }
    let node = change.old.as_ref().and_then(|pod| pod.spec.as_ref()?.node_name.clone()).unwrap_or_default();
    drained_on(&node, views)
}

/// Machines to look at after a change of a volume attachment on their node.
pub fn after_attachment(change: &Change<VolumeAttachment>, views: &ControlViews) -> BTreeSet<ObjectKey> {
    change.newest().map(|attachment| drained_on(&attachment.spec.node_name, views)).unwrap_or_default()
}

fn drained_on(node: &str, views: &ControlViews) -> BTreeSet<ObjectKey> {
    let machines = views.machines.by_index(BY_NODE, node);
    machines.iter().filter(|machine| may_be_drained(machine)).map(|machine| ObjectKey::of(&**machine)).collect()
}

/// Whether a drain of the machine's node may be under way: it is being deleted, updated in place, or has failed and is
/// preserved.
fn may_be_drained(machine: &Machine) -> bool {
    let current = &machine.status.current_status;
    let is_kept = current.phase == MachinePhase::Failed && current.preserve_expiry_time.is_some();
    machine.metadata.deletion_timestamp.is_some() || is_kept || in_place::is_selected(machine)
}

impl MachineController {
    /// To be told of every change of a machine.
    pub fn machine_changed(&self, change: &Change<Machine>) {
        self.wake(after_machine(change, &self.views));
    }

    /// To be told of every change of a Node.
    pub fn node_changed(&self, change: &Change<Node>) {
        let news = after_node(change, &self.views);
        for key in &news.vanished {
            self.node_vanished(key);
        }
        for key in &news.appeared {
            self.node_appeared(key);
        }
        self.wake(news.wake);
    }

    /// To be told of every change of a class.
    pub fn class_changed(&self, change: &Change<MachineClass>) {
        self.wake(after_class(change, &self.views));
    }

    /// To be told of every change of a Secret.
    pub fn secret_changed(&self, change: &Change<Secret>) {
        self.wake(after_secret(change, &self.views));
    }

    /// To be told of every change of a pod in the target cluster.
    pub fn pod_changed(&self, change: &Change<Pod>) {
        self.wake(after_pod(change, &self.views));
    }

    /// To be told of every change of a volume attachment.
    pub fn attachment_changed(&self, change: &Change<VolumeAttachment>) {
        self.wake(after_attachment(change, &self.views));
    }

    fn wake(&self, keys: BTreeSet<ObjectKey>) {
        for key in keys {
            self.queue().add(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::core::v1::NodeCondition;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;
    use crate::{api::names::taint, controllers::machine::testing::*};

    fn update(change: fn(&mut Machine)) -> bool {
        let old = running();
        let mut new = running();
        change(&mut new);
        let views = ControlViews::default();
        !after_machine(&Change { old: Some(Arc::new(old)), new: Some(Arc::new(new)) }, &views).is_empty()
    }

    #[rstest]
    #[case::mc_011_status_alone(update(|new| new.status.last_known_state = "x".to_owned()), false)]
    #[case::mc_012_the_specification(update(|new| new.metadata.generation = Some(2)), true)]
    #[case::mc_013_a_deletion_by_force(update(|new| drop(new.labels_mut().insert(label::FORCE_DELETION.to_owned(), "true".to_owned()))), true)]
    #[case::mc_015_preservation(update(|new| drop(new.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned()))), true)]
    #[case::a_priority(update(|new| drop(new.annotations_mut().insert(annotation::MACHINE_PRIORITY.to_owned(), "1".to_owned()))), false)]
    #[case::a_deletion(update(|new| new.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))), true)]
    #[case::our_finalizer_was_taken_off(update(|new| new.metadata.finalizers = None), true)]
    fn an_update_of_a_machine_wakes_it(#[case] woken: bool, #[case] expected: bool) {
        assert_eq!(woken, expected);
    }

    #[test]
    fn mc_014_a_phase_change_wakes_a_machine_with_preservation() {
        let with = |phase| {
            let mut machine = running();
            machine.annotations_mut().insert(annotation::PRESERVE.to_owned(), "now".to_owned());
            machine.status.current_status.phase = phase;
            Some(Arc::new(machine))
        };
        let change = Change { old: with(MachinePhase::Running), new: with(MachinePhase::Failed) };
        assert_eq!(after_machine(&change, &ControlViews::default()).len(), 1);
    }

    #[test]
    fn mc_031_a_machine_that_a_relist_no_longer_shows_is_looked_at_like_one_whose_deletion_was_seen() {
        let change = Change { old: Some(Arc::new(running())), new: None };
        assert_eq!(after_machine(&change, &ControlViews::default()), BTreeSet::from([ObjectKey::new("ns", "m-abcde")]));
        assert_eq!(crate::controllers::class::after_machine(&change).len(), 1, "its class is looked at, too");
    }

    #[test]
    fn mc_265_a_class_whose_virtual_capacity_changes_wakes_its_machines() {
        let views = ControlViews::default();
        views.machines.apply(running());
        let of_another_class = |machine: &mut Machine| machine.spec.class.name = "other".to_owned();
        let mut other = running();
        other.metadata.name = Some("m-other".to_owned());
        other.metadata.uid = Some("uid-2".to_owned());
        of_another_class(&mut other);
        views.machines.apply(other);
        let class = |capacity: &str| {
            let mut class = MachineClass::default();
            class.metadata.name = Some("c".to_owned());
            class.metadata.namespace = Some("ns".to_owned());
            let template = class.node_template.get_or_insert_default();
            let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(capacity.to_owned());
            template.virtual_capacity.insert("x.io/y".to_owned(), quantity);
            Some(Arc::new(class))
        };
        let woken = |old: &str, new: &str| after_class(&Change { old: class(old), new: class(new) }, &views).len();
        assert_eq!((woken("4", "5"), woken("4", "4")), (1, 0));
        // One that is being deleted is woken, too: its deletion may wait for a change of the class. Its Node is not dressed.
        views.machines.apply(deleted_at(running(), 1));
        assert_eq!(woken("4", "5"), 1);
    }

    #[test]
    fn mc_016_a_machine_that_is_there_at_the_start_is_looked_at() {
        let change = Change { old: None, new: Some(Arc::new(deleted_at(running(), 1))) };
        assert_eq!(after_machine(&change, &ControlViews::default()).len(), 1);
    }

    #[test]
    fn mc_114_a_sibling_that_becomes_running_wakes_those_that_wait_for_their_turn() {
        let views = ControlViews::default();
        let named = |mut machine: Machine, name: &str, phase: MachinePhase| {
            machine.metadata.name = Some(name.to_owned());
            machine.labels_mut().insert(label::NAME.to_owned(), "md".to_owned());
            machine.status.current_status.phase = phase;
            machine
        };
        views.machines.apply(named(running(), "waiting", MachinePhase::Unknown));
        let change = Change {
            old: Some(Arc::new(named(pending(), "other", MachinePhase::Pending))),
            new: Some(Arc::new(named(running(), "other", MachinePhase::Running))),
        };
        assert_eq!(after_machine(&change, &views), BTreeSet::from([ObjectKey::new("ns", "waiting")]));
    }

    #[test]
    fn a_failed_machine_that_is_preserved_from_now_on_wakes_those_that_wait_for_their_turn() {
        let views = ControlViews::default();
        let of_group = |mut machine: Machine, name: &str, phase: MachinePhase| {
            machine.metadata.name = Some(name.to_owned());
            machine.labels_mut().insert(label::NAME.to_owned(), "md".to_owned());
            machine.status.current_status.phase = phase;
            machine
        };
        views.machines.apply(of_group(running(), "waiting", MachinePhase::Unknown));
        let preserved = |mut machine: Machine| {
            machine.status.current_status.preserve_expiry_time = Some(Time(at(1_000_000)));
            Some(Arc::new(machine))
        };
        let woken = |phase: MachinePhase| {
            let machine = of_group(running(), "other", phase);
            let change = Change { old: Some(Arc::new(machine.clone())), new: preserved(machine) };
            after_machine(&change, &views)
        };
        assert_eq!(woken(MachinePhase::Failed), BTreeSet::from([ObjectKey::new("ns", "waiting")]));
        assert_eq!(woken(MachinePhase::Terminating), BTreeSet::new(), "it stands in the way even then");
        assert_eq!(woken(MachinePhase::Running), BTreeSet::new(), "it did not before");
    }

    #[test]
    fn a_machine_that_gives_up_its_claim_on_a_node_wakes_the_others_that_have_it_on_their_label() {
        let views = ControlViews::default();
        let named = |name: &str, id: &str| {
            let mut machine = running();
            machine.metadata.name = Some(name.to_owned());
            machine.spec.provider_id = id.to_owned();
            machine
        };
        views.machines.apply(named("loser", "x"));
        let loser = || BTreeSet::from([ObjectKey::new("ns", "loser")]);
        let one = |machine: Machine| Some(Arc::new(machine));
        let mut elsewhere = named("winner", "y");
        elsewhere.labels_mut().insert(label::NODE.to_owned(), "n2".to_owned());
        for (old, new) in [
            (one(named("winner", "y")), None),
            (one(named("winner", "")), one(named("winner", "y"))),
            (one(named("winner", "y")), one(elsewhere)),
            (one(named("winner", "y")), one(deleted_at(named("winner", "y"), 1))),
        ] {
            assert!(after_machine(&Change { old, new }, &views).is_superset(&loser()));
        }
        let same = Change { old: one(named("winner", "y")), new: one(named("winner", "y")) };
        assert_eq!(after_machine(&same, &views), BTreeSet::new());
    }

    fn node_update(machine: Machine, change: fn(&mut Node)) -> bool {
        let views = ControlViews::default();
        views.machines.apply(machine);
        let old = node(vec![condition("Ready", "True")]);
        let mut new = old.clone();
        change(&mut new);
        !after_node(&Change { old: Some(Arc::new(old)), new: Some(Arc::new(new)) }, &views).wake.is_empty()
    }

    fn with_reason(kind: &str, reason: &str) -> NodeCondition {
        NodeCondition { reason: Some(reason.to_owned()), ..condition(kind, "True") }
    }

    #[rstest]
    #[case::mc_019_the_reason_of_a_condition("Ready", false)]
    #[case::mc_019_the_reason_of_an_update_in_place("InPlaceUpdate", true)]
    fn a_reason_that_changes_wakes_the_machine(#[case] kind: &str, #[case] expected: bool) {
        let views = ControlViews::default();
        views.machines.apply(running());
        let with = |reason: &str| Some(Arc::new(node(vec![with_reason(kind, reason)])));
        let change = Change { old: with("One"), new: with("Another") };
        assert_eq!(!after_node(&change, &views).wake.is_empty(), expected);
    }

    fn set_ready(node: &mut Node, status: &str) {
        node.status.get_or_insert_default().conditions = Some(vec![condition("Ready", status)]);
    }

    fn add_taint(node: &mut Node, key: &str) {
        *node = tainted(node.clone(), key);
    }

    #[rstest]
    #[case::mc_018_a_heartbeat(node_update(running(), |new| {
        let status = new.status.get_or_insert_default();
        status.conditions.get_or_insert_default()[0].last_heartbeat_time = Some(Time(Timestamp::UNIX_EPOCH));
    }), false)]
    #[case::a_condition(node_update(running(), |new| set_ready(new, "False")), true)]
    #[case::the_cloud_says_which_instance_it_is(node_update(running(), |new| {
        new.spec.get_or_insert_default().provider_id = Some("cloud://zone-b/n".to_owned());
    }), true)]
    #[case::mc_021_a_condition_of_a_terminating_machine(
        node_update(in_phase_terminating(), |new| set_ready(new, "False")), false
    )]
    #[case::mc_022_the_critical_components(
        node_update(pending(), |new| add_taint(new, taint::CRITICAL_COMPONENTS_NOT_READY)), true
    )]
    #[case::mc_023_another_taint(node_update(running(), |new| add_taint(new, "other")), false)]
    #[case::mc_024_an_update_result(node_update(running(), |new| {
        new.labels_mut().insert(label::UPDATE_RESULT.to_owned(), "failed".to_owned());
    }), true)]
    #[case::mc_025_not_managed(node_update(running(), |new| {
        new.annotations_mut().insert(annotation::NOT_MANAGED.to_owned(), "1".to_owned());
        set_ready(new, "False");
    }), false)]
    #[case::mc_026_a_deletion(
        node_update(running(), |new| new.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH))), true
    )]
    #[case::our_finalizer_was_taken_off(node_update(running(), |new| new.metadata.finalizers = None), true)]
    fn an_update_of_a_node_wakes_its_machine(#[case] woken: bool, #[case] expected: bool) {
        assert_eq!(woken, expected);
    }

    fn in_phase_terminating() -> Machine {
        let mut machine = running();
        machine.status.current_status.phase = MachinePhase::Terminating;
        machine
    }

    #[test]
    fn mc_027_mc_029_a_node_that_comes_or_goes_is_told_of() {
        let views = ControlViews::default();
        views.machines.apply(running());
        let node = Some(Arc::new(node(Vec::new())));
        let key = BTreeSet::from([ObjectKey::new("ns", "m-abcde")]);
        assert_eq!(after_node(&Change { old: None, new: node.clone() }, &views).appeared, key);
        assert_eq!(after_node(&Change { old: node, new: None }, &views).vanished, key);
    }

    #[test]
    fn mc_030_a_node_without_a_linked_machine_wakes_nobody() {
        let change = Change { old: None, new: Some(Arc::new(node(Vec::new()))) };
        assert_eq!(after_node(&change, &ControlViews::default()), NodeNews::default());
    }

    #[rstest]
    #[case::mc_048_one_that_failed(MachinePhase::CrashLoopBackOff, 1)]
    #[case::one_that_runs(MachinePhase::Running, 0)]
    fn new_credentials_wake_machines_that_may_wait_for_them(#[case] phase: MachinePhase, #[case] woken: usize) {
        let views = ControlViews::default();
        let mut machine = running();
        machine.status.current_status.phase = phase;
        views.machines.apply(machine);
        let mut class = MachineClass::default();
        class.metadata.name = Some("c".to_owned());
        class.metadata.namespace = Some("ns".to_owned());
        class.credentials_secret_ref =
            Some(crate::api::v1alpha1::SecretReference { name: "s".to_owned(), namespace: String::new() });
        views.classes.apply(class);
        let mut secret = Secret::default();
        secret.metadata.name = Some("s".to_owned());
        secret.metadata.namespace = Some("ns".to_owned());
        assert_eq!(after_secret(&Change { old: None, new: Some(Arc::new(secret)) }, &views).len(), woken);
    }
}
