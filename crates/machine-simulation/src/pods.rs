//! The pods: on each Node that takes any there is one, so that drains have something to do. It has no budget that could be seen;
//! whether it may be evicted is part of the weather.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};

use super::{api::Api, played::target::node_of, process::later};

/// Stands for the kubelet: while it is there, a pod that is being deleted has not ended.
const KUBELET: &str = "simulated/kubelet";
/// How long a pod takes to end.
pub const ENDING: Duration = Duration::from_secs(20);

/// Puts a pod on each Node that takes pods and has none.
pub fn schedule(api: &mut Api, now: Timestamp) {
    for node in free_nodes(api) {
        put(api, &node, now);
    }
}

/// Nodes that take pods and have none of their own.
pub fn free_nodes(api: &Api) -> Vec<String> {
    let mut free = free(api);
    free.retain(|node| !api.pods.contains_key(&name_on(node)));
    free
}

/// The Nodes that take pods.
pub fn free(api: &Api) -> Vec<String> {
    let takes_any = |node: &Node| {
        let spec = node.spec.as_ref();
        node.metadata.deletion_timestamp.is_none() && spec.is_none_or(|spec| spec.unschedulable != Some(true))
    };
    api.nodes.iter().filter(|(_, node)| takes_any(node)).map(|(name, _)| name.clone()).collect()
}

/// Puts a pod on this Node, unless it has one.
pub fn put(api: &mut Api, node: &str, now: Timestamp) {
    make(api, &name_on(node), PodSpec { node_name: Some(node.to_owned()), ..PodSpec::default() }, now);
}

/// Makes a pod, unless there is one of this name.
pub fn make(api: &mut Api, name: &str, spec: PodSpec, now: Timestamp) {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("pods".to_owned());
    pod.metadata.finalizers = Some(vec![KUBELET.to_owned()]);
    pod.spec = Some(spec);
    // One that is there is as good.
    let _ = api.create(&pod, now);
}

/// The name of the pod on a Node.
pub fn name_on(node: &str) -> String {
    format!("pod-on-{node}")
}

/// Puts another pod in the place of each that nobody has asked to go, on Nodes that take pods.
pub fn replace(api: &mut Api, now: Timestamp) {
    let nodes = free(api);
    remove(api, |pod| {
        deleted_at(pod).is_none() && node_of(pod).is_some_and(|node| nodes.iter().any(|name| name == node))
    });
    schedule(api, now);
}

/// Pods that have taken their time are gone; whether there were any.
pub fn end(api: &mut Api, takes: Duration, now: Timestamp) -> bool {
    let is_over = |pod: &Pod| deleted_at(pod).is_some_and(|deleted| later(deleted, takes) <= now);
    remove(api, is_over)
}

/// When the next pod that is being deleted is gone.
pub fn next_end(api: &Api, takes: Duration) -> Option<Timestamp> {
    api.pods.values().filter_map(|pod| deleted_at(pod)).map(|deleted| later(deleted, takes)).min()
}

/// Pods of Nodes that are gone are gone as well.
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
        // It is there, or was gone with its finalizer.
        let _ = api.delete::<Pod>(name, None, None, Timestamp::UNIX_EPOCH);
    }
    !over.is_empty()
}
