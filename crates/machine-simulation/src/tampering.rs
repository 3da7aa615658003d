//! Edits of machines, sets and Nodes by users.

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{
    api::{Api, Kind},
    checks::Checks,
    cloud::machine_of,
    edits::class,
    facts::{is_terminating, label_of},
    history::{Edit, Keep, Place, Priority},
    nodes::is_strange,
};
use machine_api::{
    names::{annotation, label, preserve_value},
    v1alpha1::{Machine, MachineSet, MachineStatus, controller_of},
};

/// The value of a selector label after an edit.
const ELSEWHERE: &str = "elsewhere";
/// The original value.
const AT_HOME: &str = "md";

/// Applies an edit.
pub fn apply(api: &mut Api, checks: &mut Checks, edit: Edit, now: Timestamp) {
    match edit {
        Edit::DeleteMachine(pick) => {
            if let Some(name) = some(&api.machines, pick, |_| true) {
                // The machine exists: it was just looked up.
                let _ = api.delete::<Machine>(&name, None, None, now);
            }
        }
        Edit::Keep(pick, Place::Machine, keep) => {
            change(api, pick, |machine: &mut Machine| say(&mut machine.metadata.annotations, keep));
        }
        Edit::Keep(pick, Place::Node, keep) => {
            if let Some(name) = some(&api.nodes, pick, |node| !is_strange(node)) {
                api.edit(&name, |node: &mut Node| say(&mut node.metadata.annotations, keep));
            }
        }
        Edit::Orphan(pick) => change(api, pick, |machine: &mut Machine| machine.metadata.owner_references = None),
        Edit::OrphanSet(pick) => change(api, pick, |set: &mut MachineSet| set.metadata.owner_references = None),
        Edit::Relabel(pick) => change(api, pick, |machine: &mut Machine| relabel(&mut machine.metadata)),
        Edit::Unlink(pick) => {
            let is_linked = |machine: &Machine| label_of(machine, label::NODE).is_some();
            if let Some(name) = some(&api.machines, pick, is_linked) {
                api.edit(&name, |machine: &mut Machine| {
                    machine.metadata.labels.get_or_insert_default().remove(label::NODE);
                });
            }
        }
        Edit::Force(pick) => change(api, pick, |machine: &mut Machine| {
            machine.metadata.labels.get_or_insert_default().insert(label::FORCE_DELETION.to_owned(), "True".to_owned());
        }),
        Edit::Strays(pick, count) => strays(api, pick, count, now),
        Edit::PickNode(pick) => pick_node(api, checks, pick),
        Edit::Prioritise(pick, priority) => {
            if let Some(name) = some(&api.machines, pick, |_| true) {
                checks.prioritised_by_user(name.clone());
                api.edit(&name, |machine: &mut Machine| prioritise(machine, priority));
            }
        }
        Edit::ScaleSet(pick, replicas) => scale_set(api, checks, pick, replicas.into()),
        Edit::ClassOfSet(pick, number) => {
            change(api, pick, |set: &mut MachineSet| set.spec.template.spec.class.name = class(number));
        }
        Edit::RelabelSet(pick) => change(api, pick, |set: &mut MachineSet| relabel(&mut set.metadata)),
        Edit::DeleteSet(pick) => {
            if let Some(name) = some(&api.sets, pick, |_| true) {
                checks.set_ends(api, &name);
                // The set exists: it was just looked up.
                let _ = api.delete::<MachineSet>(&name, None, None, now);
            }
        }
        _ => {}
    }
}

/// The name of one of the matching objects.
fn some<K>(
    table: &std::collections::BTreeMap<String, std::sync::Arc<K>>,
    pick: u16,
    fits: impl Fn(&K) -> bool,
) -> Option<String> {
    let names: Vec<&String> = table.iter().filter(|(_, object)| fits(object)).map(|(name, _)| name).collect();
    names.get(usize::from(pick) % names.len().max(1)).map(|name| (*name).clone())
}

fn change<K: Kind>(api: &mut Api, pick: u16, change: impl FnOnce(&mut K)) {
    if let Some(name) = some(K::table(api), pick, |_| true) {
        api.edit(&name, change);
    }
}

fn say(annotations: &mut Option<std::collections::BTreeMap<String, String>>, keep: Keep) {
    let value = match keep {
        Keep::Now => preserve_value::NOW,
        Keep::WhenFailed => preserve_value::WHEN_FAILED,
        Keep::No => preserve_value::FALSE,
    };
    annotations.get_or_insert_default().insert(annotation::PRESERVE.to_owned(), value.to_owned());
}

fn prioritise(machine: &mut Machine, priority: Priority) {
    let value = match priority {
        Priority::Number(number) => number.to_string(),
        Priority::Word => "first".to_owned(),
    };
    machine.metadata.annotations.get_or_insert_default().insert(annotation::MACHINE_PRIORITY.to_owned(), value);
}

fn relabel(meta: &mut ObjectMeta) {
    let labels = meta.labels.get_or_insert_default();
    let is_home = labels.get(label::NAME).is_some_and(|value| value == AT_HOME);
    labels.insert(label::NAME.to_owned(), if is_home { ELSEWHERE } else { AT_HOME }.to_owned());
}

fn scale_set(api: &mut Api, checks: &mut Checks, pick: u16, replicas: i32) {
    if let Some(name) = some(&api.sets, pick, |_| true) {
        let before = api.sets.get(&name).map_or(0, |set| set.spec.replicas);
        checks.set_is_scaled(api, &name, replicas - before);
        api.edit(&name, |set: &mut MachineSet| set.spec.replicas = replicas);
    }
}

/// Creates machines without owner that are otherwise equal to one machine.
fn strays(api: &mut Api, pick: u16, count: u8, now: Timestamp) {
    let Some(name) = some(&api.machines, pick, |machine| !is_terminating(machine)) else { return };
    let Some(model) = api.get::<Machine>(&name) else { return };
    let mut stray = (*model).clone();
    stray.metadata.owner_references = None;
    stray.metadata.annotations = None;
    stray.metadata.finalizers = None;
    for made_for_it in [label::NODE, label::UPDATE_RESULT] {
        stray.metadata.labels.get_or_insert_default().remove(made_for_it);
    }
    stray.spec.provider_id.clear();
    stray.status = MachineStatus::default();
    for number in 0..count {
        stray.metadata.name = Some(format!("stray-{}-{number}", api.changes));
        // The name is new, so the creation succeeds.
        let _ = api.create(&stray, now);
    }
}

fn pick_node(api: &mut Api, checks: &mut Checks, pick: u16) {
    let has = |node: &Node, key: &str| node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    let may_be = |node: &Node| has(node, label::CANDIDATE_FOR_UPDATE) && !has(node, label::SELECTED_FOR_UPDATE);
    if let Some(name) = some(&api.nodes, pick, may_be) {
        api.edit(&name, |node: &mut Node| {
            let labels = node.metadata.labels.get_or_insert_default();
            labels.insert(label::SELECTED_FOR_UPDATE.to_owned(), "true".to_owned());
        });
        checks.picked_by_user(machine_of(&name).to_owned());
    }
}

/// After the random steps, users continue to select Nodes for updates, one Node at a time. Returns whether a Node was
/// selected.
pub fn go_on_picking(api: &mut Api, checks: &mut Checks) -> bool {
    let changes = api.changes;
    let is_under_way = |node: &Node| {
        node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label::SELECTED_FOR_UPDATE))
    };
    if !api.nodes.values().any(|node| is_under_way(node)) {
        pick_node(api, checks, 0);
    }
    api.changes != changes
}

/// Restores changed labels after the random steps.
pub fn mend_labels(api: &mut Api) {
    fn mend<K: Kind>(api: &mut Api) {
        let is_away = |object: &K| {
            let labels = object.meta().labels.as_ref();
            labels.and_then(|labels| labels.get(label::NAME)).is_some_and(|at| at == ELSEWHERE)
        };
        let away: Vec<String> =
            K::table(api).iter().filter(|(_, object)| is_away(object)).map(|(name, _)| name.clone()).collect();
        for name in away {
            api.edit(&name, |object: &mut K| relabel(object.meta_mut()));
        }
    }
    mend::<Machine>(api);
    mend::<MachineSet>(api);
}

/// Deletes machines and sets that no controller adopts; returns whether there were any.
pub fn sweep(api: &mut Api, now: Timestamp) -> bool {
    fn strays<K: Kind>(api: &Api) -> Vec<String> {
        let is_stray =
            |object: &K| controller_of(object.meta()).is_none() && object.meta().deletion_timestamp.is_none();
        K::table(api).iter().filter(|(_, object)| is_stray(object)).map(|(name, _)| name.clone()).collect()
    }
    let changes = api.changes;
    for name in strays::<Machine>(api) {
        // The machine exists: it was just looked up.
        let _ = api.delete::<Machine>(&name, None, None, now);
    }
    for name in strays::<MachineSet>(api) {
        // The set exists: it was just looked up.
        let _ = api.delete::<MachineSet>(&name, None, None, now);
    }
    api.changes != changes
}
