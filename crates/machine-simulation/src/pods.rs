//! The pods: one on each schedulable Node, so that drains have something to do. There are no budget objects; whether
//! the pod may be evicted is one of the random faults.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use super::{api::Api, played::target::node_of, process::later};

/// Represents the kubelet: a pod with this finalizer is still terminating.
const KUBELET: &str = "simulated/kubelet";
/// How long a pod terminates.
pub const ENDING: Duration = Duration::from_secs(20);

/// Creates a pod on each schedulable Node without pods.
pub fn schedule(api: &mut Api, now: Timestamp) {
    for node in free_nodes(api) {
        put(api, &node, now);
    }
}

/// Schedulable Nodes without such a pod.
pub fn free_nodes(api: &Api) -> Vec<String> {
    let mut free = free(api);
    free.retain(|node| !api.pods.contains_key(&name_on(node)));
    free
}

/// The schedulable Nodes.
pub fn free(api: &Api) -> Vec<String> {
    let takes_any = |node: &Node| {
        let spec = node.spec.as_ref();
        node.metadata.deletion_timestamp.is_none() && spec.is_none_or(|spec| spec.unschedulable != Some(true))
    };
    api.nodes.iter().filter(|(_, node)| takes_any(node)).map(|(name, _)| name.clone()).collect()
}

/// Creates the pod of this Node, unless it exists.
pub fn put(api: &mut Api, node: &str, now: Timestamp) {
    make(api, &name_on(node), PodSpec { node_name: Some(node.to_owned()), ..PodSpec::default() }, now);
}

/// Creates a pod, unless the name exists.
pub fn make(api: &mut Api, name: &str, spec: PodSpec, now: Timestamp) {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("pods".to_owned());
    pod.metadata.finalizers = Some(vec![KUBELET.to_owned()]);
    pod.spec = Some(spec);
    // An existing pod is fine.
    let _ = api.create(&pod, now);
}

/// The name of the pod on a Node.
pub fn name_on(node: &str) -> String {
    format!("pod-on-{node}")
}

/// Replaces each pod on a schedulable Node that is not being deleted.
pub fn replace(api: &mut Api, now: Timestamp) {
    let nodes = free(api);
    remove(api, |pod| {
        deleted_at(pod).is_none() && node_of(pod).is_some_and(|node| nodes.iter().any(|name| name == node))
    });
    schedule(api, now);
}

/// Removes pods whose termination is over; returns whether there were any.
pub fn end(api: &mut Api, takes: Duration, now: Timestamp) -> bool {
    let is_over = |pod: &Pod| deleted_at(pod).is_some_and(|deleted| later(deleted, takes) <= now);
    remove(api, is_over)
}

/// When the next terminating pod is gone.
pub fn next_end(api: &Api, takes: Duration) -> Option<Timestamp> {
    api.pods.values().filter_map(|pod| deleted_at(pod)).map(|deleted| later(deleted, takes)).min()
}

/// Removes the pods of Nodes that are gone.
pub fn end_lost(api: &mut Api) {
    let nodes: Vec<String> = api.nodes.keys().cloned().collect();
    remove(api, |pod| node_of(pod).is_some_and(|node| !nodes.iter().any(|name| name == node)));
}

fn deleted_at(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.deletion_timestamp.as_ref().map(|deleted| deleted.0)
}

fn remove(api: &mut Api, is_over: impl Fn(&Pod) -> bool) -> bool {
    let over: Vec<String> = api.pods.iter().filter(|(_, pod)| is_over(pod)).map(|(name, _)| name.clone()).collect();
    for name in &over {
        api.edit::<Pod>(name, |pod| pod.metadata.finalizers = None);
        // The pod exists, or disappeared with its finalizer.
        let _ = api.delete::<Pod>(name, None, None, Timestamp::UNIX_EPOCH);
    }
    !over.is_empty()
}
