//! The objects that a simulated kubelet writes: the Node, its status, its Lease, and the status of its Pods.
//!
//! Pure functions from the data of a VM and the time to JSON (spec/providers §7.4, §7.5).

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::watched::{ContainerFacts, PodFacts, Readiness, Watched};
use crate::{
    NodeIdSpelling,
    cloud::{NodeStage, NodeView},
    template::{VmTemplate, thousandths},
};
use machine_api::names::{annotation, label};

/// The readiness that a Node should show.
pub const fn wanted_readiness(stage: NodeStage) -> Readiness {
    match stage {
        NodeStage::Ready => Readiness::Ready,
        NodeStage::Absent | NodeStage::Registered | NodeStage::Broken => Readiness::NotReady,
    }
}

/// The whole Node with its status, so that a ready Node needs only one write.
pub fn node(view: &NodeView, version: &str, now: Timestamp) -> Value {
    let (vm, template) = (&view.vm, &view.template);
    let mut labels = BTreeMap::from([
        ("kubernetes.io/hostname", vm.node_name()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", &template.architecture),
        ("node.kubernetes.io/instance-type", &template.machine_type),
        ("beta.kubernetes.io/instance-type", &template.machine_type),
        ("topology.kubernetes.io/region", &template.region),
        ("topology.kubernetes.io/zone", &template.zone),
        (label::MACHINE_NAME, vm.machine()),
    ]);
    // Names may be longer than the values of labels. A real kubelet could not register such a Node at all.
    labels.retain(|_, value| value.len() <= 63);
    labels.extend(template.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let owner = owner_of(template);
    let mut annotations = BTreeMap::from([
        ("volumes.kubernetes.io/controller-managed-attach-detach", "true"),
        (annotation::SIMULATED_NODE, "true"),
        (annotation::SIMULATED_NAMESPACE, vm.namespace()),
        (annotation::SIMULATED_OWNER, &owner),
        (annotation::SIMULATED_PROVIDER_ID, &vm.provider_id),
    ]);
    let provider_id = match view.config.nodes.provider_id {
        NodeIdSpelling::Cloud => template.node_provider_id(&vm.provider_id),
        NodeIdSpelling::Machine => vm.provider_id.to_string(),
    };
    annotations.extend(template.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": vm.node_name(), "labels": labels, "annotations": annotations},
        "spec": {"providerID": provider_id, "taints": template.taints},
        "status": {
            "capacity": template.capacity,
            "allocatable": allocatable(view),
            "addresses": [
                {"type": "InternalIP", "address": view.address.to_string()},
                {"type": "Hostname", "address": vm.node_name()},
            ],
            "conditions": conditions(vm.node, now),
            "nodeInfo": {
                "architecture": template.architecture, "operatingSystem": "linux", "osImage": "virtual",
                "kernelVersion": "virtual", "containerRuntimeVersion": "virtual://1", "kubeletVersion": version,
                "kubeProxyVersion": version, "machineID": "", "systemUUID": "", "bootID": "",
            },
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        },
    })
}

/// The owner of the VM, for a restart without stored state. Data that other fields of the Node contain is left out.
fn owner_of(template: &VmTemplate) -> String {
    let mut owner = json!({
        "provider": template.provider, "class": template.class, "region": template.region, "zone": template.zone,
        "machineType": template.machine_type, "cluster": template.cluster, "role": template.role,
    });
    if let (Some(sim), Some(fields)) = (&template.sim, owner.as_object_mut()) {
        fields.insert("sim".to_owned(), sim.clone());
    }
    owner.to_string()
}

fn allocatable(view: &NodeView) -> BTreeMap<&str, Quantity> {
    let reserved = &view.config.nodes.allocatable_reserved;
    let left =
        |name: &String, have: &Quantity| reserved.get(name).map_or_else(|| have.clone(), |less| minus(have, less));
    view.template.capacity.iter().map(|(name, have)| (name.as_str(), left(name, have))).collect()
}

/// The rest of a resource, at least zero: in thousandths if it is not an integer, and in `Ki` if it is a multiple of 1024.
fn minus(capacity: &Quantity, reserved: &Quantity) -> Quantity {
    let (Some(have), Some(less)) = (thousandths(capacity), thousandths(reserved)) else { return capacity.clone() };
    let left = (have - less).max(0);
    Quantity(match left / 1000 {
        _ if left % 1000 != 0 => format!("{left}m"),
        whole if whole > 0 && whole % 1024 == 0 => format!("{}Ki", whole / 1024),
        whole => whole.to_string(),
    })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, at: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
           "lastHeartbeatTime": at, "lastTransitionTime": at})
}

fn ready(stage: NodeStage, now: Timestamp) -> Value {
    let at = seconds(now);
    match wanted_readiness(stage) {
        Readiness::Ready => condition("Ready", "True", "KubeletReady", "kubelet is posting ready status", &at),
        _ => condition("Ready", "False", "KubeletNotReady", "container runtime network not ready", &at),
    }
}

fn conditions(stage: NodeStage, now: Timestamp) -> Vec<Value> {
    let at = seconds(now);
    let condition = |kind, status, reason, message| condition(kind, status, reason, message, &at);
    vec![
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("NetworkUnavailable", "False", "RouteCreated", "the virtual cloud routes everything"),
        ready(stage, now),
    ]
}

/// The patch that makes a Node show its stage. The other conditions stay as they are, with their transition times.
pub fn node_readiness(stage: NodeStage, now: Timestamp) -> Value {
    json!({"status": {"conditions": [ready(stage, now)]}})
}

/// The patch that renews only the times of the conditions.
pub fn node_heartbeat(stage: NodeStage, now: Timestamp) -> Value {
    let renewed = conditions(stage, now).into_iter().map(|mut condition| {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("lastTransitionTime");
        }
        condition
    });
    json!({"status": {"conditions": renewed.collect::<Vec<_>>()}})
}

/// The Lease of a Node. It is deleted with the Node.
pub fn lease(node: &str, uid: &str, duration_seconds: u64, now: Timestamp) -> Value {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid});
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease", "ownerReferences": [owner]},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": duration_seconds, "renewTime": micros(now)},
    })
}

/// The patch that renews a Lease.
pub fn lease_renewal(now: Timestamp) -> Value {
    json!({"spec": {"renewTime": micros(now)}})
}

/// The phase that a Pod shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodShows {
    /// The Pod runs and is ready.
    Running,
    /// The Pod has finished.
    Succeeded,
}

/// The patch of a Pod's status.
pub fn pod_status(
    pod: &Watched<PodFacts>,
    shows: PodShows,
    host: Ipv4Addr,
    address: Ipv4Addr,
    now: Timestamp,
) -> Value {
    let at = seconds(now);
    let condition = |kind: &str, ready: bool| {
        let status = if ready { "True" } else { "False" };
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": at});
        if !ready {
            condition["reason"] = json!("PodCompleted");
        }
        condition
    };
    let running = shows == PodShows::Running;
    let completed = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at}});
    let status = |container: &ContainerFacts, runs: bool| {
        json!({
            "name": container.name, "image": container.image, "imageID": format!("virtual://{}", container.image),
            "containerID": format!("virtual://{}/{}", pod.uid, container.name), "ready": runs, "started": runs,
            "restartCount": 0, "state": if runs { json!({"running": {"startedAt": at}}) } else { completed.clone() },
        })
    };
    let init_status = |container: &ContainerFacts| {
        let mut shown = status(container, running && container.stays);
        if !container.stays {
            shown["ready"] = json!(true);
        }
        shown
    };
    let mut conditions = vec![
        condition("PodReadyToStartContainers", running),
        condition("Initialized", true),
        condition("Ready", running),
        condition("ContainersReady", running),
        condition("PodScheduled", true),
    ];
    conditions.extend(pod.facts.gates.iter().map(|gate| condition(gate, true)));
    json!({
        "metadata": {"uid": pod.uid},
        "status": {
            "phase": if running { "Running" } else { "Succeeded" },
            "conditions": conditions,
            "hostIP": host.to_string(),
            "hostIPs": [{"ip": host.to_string()}],
            "podIP": address.to_string(),
            "podIPs": [{"ip": address.to_string()}],
            "startTime": at,
            "initContainerStatuses": pod.facts.init.iter().map(init_status).collect::<Vec<_>>(),
            "containerStatuses": pod.facts.containers.iter().map(|container| status(container, running)).collect::<Vec<_>>(),
        },
    })
}

/// The time format of Kubernetes, in seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The time format of Kubernetes, in microseconds.
fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::cores("4", "80m", "3920m")]
    #[case::memory("8Gi", "1Gi", "7340032Ki")]
    #[case::not_below_zero("512Mi", "1Gi", "0")]
    #[case::whole_cores("4", "1", "3")]
    #[case::no_number("many", "1", "many")]
    fn reserved_amounts_are_subtracted(#[case] capacity: &str, #[case] reserved: &str, #[case] left: &str) {
        assert_eq!(minus(&Quantity(capacity.to_owned()), &Quantity(reserved.to_owned())).0, left);
    }
}
