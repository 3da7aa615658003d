//! The Nodes: kubelets that join and become unhealthy, and the agents that update Nodes in place.

use std::sync::Arc;

use controller_runtime::snapshot::Snapshot;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus};

use super::{
    api::{Api, stamp},
    cloud::{self, Cloud},
    history::NodeEvent,
    pods,
};
use machine_api::names::{label, update_result};
use machine_controllers::{
    machine::in_place::{UpdateStage, result_of},
    snapshots::NodeSnapshot,
};

/// Applies an event to a Node; returns the name of the Node if the event was possible.
pub fn happens(api: &mut Api, cloud: &Cloud, pick: u16, event: NodeEvent, now: Timestamp) -> Option<String> {
    let one_of = |names: Vec<String>| names.get(usize::from(pick) % names.len().max(1)).cloned();
    let fits = |node: &Arc<Node>| match event {
        NodeEvent::Updated | NodeEvent::UpdateFailed => is_ready_for_update(node),
        _ => true,
    };
    let name = match event {
        NodeEvent::Joins | NodeEvent::JoinsNamed => {
            let alive = cloud.vms.values().filter(|vm| vm.joins_at != Timestamp::MAX);
            one_of(alive.map(|vm| vm.provider_id.clone()).collect())?
        }
        _ => one_of(api.nodes.iter().filter(|(_, node)| fits(node)).map(|(name, _)| name.clone()).collect())?,
    };
    match event {
        NodeEvent::Joins => return join(api, cloud, &name, now),
        NodeEvent::JoinsNamed => {
            let name = join(api, cloud, &name, now)?;
            let machine = cloud::machine_of(&name).to_owned();
            api.edit::<Node>(&name, |node| {
                node.metadata.labels.get_or_insert_default().insert(label::MACHINE_NAME.to_owned(), machine);
            });
            return Some(name);
        }
        NodeEvent::Deleted => {
            // The Node exists: it was just looked up.
            let _ = api.delete::<Node>(&name, None, None, now);
            pods::end_lost(api);
        }
        NodeEvent::Sickens | NodeEvent::Recovers => {
            let is_ready = event == NodeEvent::Recovers && cloud.runs(&name);
            let readiness = if is_ready { Readiness::Ready } else { Readiness::NotReady };
            api.edit::<Node>(&name, |node| {
                set_ready(node, readiness, now);
                if is_ready {
                    empty(node);
                }
            });
        }
        NodeEvent::FillsUp => {
            api.edit::<Node>(&name, |node| {
                empty(node);
                set_condition(node, DISK_PRESSURE, "True", now);
            });
        }
        NodeEvent::Supplanted => supplant(api, &name, now),
        NodeEvent::Updated => set_update_result(api, &name, update_result::SUCCESSFUL),
        NodeEvent::UpdateFailed => set_update_result(api, &name, update_result::FAILED),
    }
    Some(name)
}

/// The provider id of a Node that belongs to another provider.
const STRANGE: &str = "elsewhere://zone-a/";

/// Another instance registers under the name of a Node, which disappears.
fn supplant(api: &mut Api, name: &str, now: Timestamp) {
    api.edit::<Node>(name, |node| node.metadata.finalizers = None);
    // The Node exists: it was just looked up.
    let _ = api.delete::<Node>(name, None, None, now);
    pods::end_lost(api);
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node.spec = Some(NodeSpec { provider_id: Some(format!("{STRANGE}{name}")), ..NodeSpec::default() });
    set_ready(&mut node, Readiness::Ready, now);
    let _ = api.create(&node, now);
    pods::schedule(api, now);
}

/// Whether a Node belongs to a foreign instance.
pub fn is_strange(node: &Node) -> bool {
    let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
    id.is_some_and(|id| id.starts_with(STRANGE))
}

/// Lets the Node of a VM join; returns its name, unless it had joined before.
pub fn join(api: &mut Api, cloud: &Cloud, provider_id: &str, now: Timestamp) -> Option<String> {
    let vm = cloud.vms.get(provider_id).filter(|vm| !api.nodes.contains_key(&vm.node))?;
    let mut node = Node::default();
    node.metadata.name = Some(vm.node.clone());
    node.spec = Some(NodeSpec { provider_id: Some(cloud::as_the_node_has_it(&vm.provider_id)), ..NodeSpec::default() });
    set_ready(&mut node, Readiness::Ready, now);
    let _ = api.create(&node, now);
    pods::schedule(api, now);
    node.metadata.name
}

/// The VM of a Node is gone, so its kubelet reports nothing any more.
pub fn goes_silent(api: &mut Api, name: &str, now: Timestamp) {
    api.edit::<Node>(name, |node| set_ready(node, Readiness::NotReady, now));
}

/// Makes Nodes with running VMs ready again, with pods.
pub fn heal(api: &mut Api, cloud: &Cloud, now: Timestamp) {
    pods::schedule(api, now);
    let alive: Vec<String> = api.nodes.keys().filter(|name| cloud.runs(name)).cloned().collect();
    for name in alive {
        api.edit::<Node>(&name, |node| {
            set_ready(node, Readiness::Ready, now);
            empty(node);
        });
    }
}

/// Agents update the Nodes that are ready for it, and failed Nodes are repaired; returns whether there were any.
pub fn go_on_updating(api: &mut Api) -> bool {
    let changes = api.changes;
    let has_failed = |node: &Node| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(label::UPDATE_RESULT)).is_some_and(|result| result == update_result::FAILED)
    };
    let waiting: Vec<String> = api
        .nodes
        .iter()
        .filter(|(_, node)| is_ready_for_update(node) || has_failed(node))
        .map(|(name, _)| name.clone())
        .collect();
    for name in waiting {
        set_update_result(api, &name, update_result::SUCCESSFUL);
    }
    api.changes != changes
}

/// Whether the Node's agent may update it.
pub fn is_ready_for_update(node: &Arc<Node>) -> bool {
    let node = NodeSnapshot::of(Arc::clone(node));
    UpdateStage::of(&node) == Some(UpdateStage::ReadyForUpdate) && result_of(&node).is_none()
}

/// Writes the result of an update.
pub fn set_update_result(api: &mut Api, name: &str, result: &str) {
    api.edit::<Node>(name, |node| {
        node.metadata.labels.get_or_insert_default().insert(label::UPDATE_RESULT.to_owned(), result.to_owned());
    });
}

/// The report of a kubelet about its Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The Node is healthy.
    Ready,
    /// The Node is not healthy.
    NotReady,
}

/// Sets the Node's `Ready` condition and its time.
pub fn set_ready(node: &mut Node, readiness: Readiness, now: Timestamp) {
    let conditions = conditions_of(node);
    let is = match readiness {
        Readiness::Ready => "True",
        Readiness::NotReady => "False",
    };
    if conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == is) {
        return;
    }
    conditions.retain(|condition| condition.type_ != "Ready");
    set_condition(node, "Ready", is, now);
}

/// The condition of a Node with a full disk.
const DISK_PRESSURE: &str = "DiskPressure";

/// Removes that condition.
fn empty(node: &mut Node) {
    conditions_of(node).retain(|condition| condition.type_ != DISK_PRESSURE);
}

fn set_condition(node: &mut Node, kind: &str, status: &str, now: Timestamp) {
    conditions_of(node).push(NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(stamp(now)),
        ..NodeCondition::default()
    });
}

fn conditions_of(node: &mut Node) -> &mut Vec<NodeCondition> {
    let status: &mut NodeStatus = node.status.get_or_insert_default();
    status.conditions.get_or_insert_default()
}

/// Whether the kubelet of a Node reports that it is healthy.
pub fn is_ready(node: &Node) -> bool {
    let conditions = || node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let tells = |kind: &str| conditions().any(|condition| condition.type_ == kind && condition.status == "True");
    tells("Ready") && !tells(DISK_PRESSURE)
}
