//! The settings of a class and a machine for the simulated cloud: place, type, owner, and the content of the Node.
//!
//! Reads the classes of every provider leniently, because the virtual cloud may impersonate a provider: unknown fields are ignored, and each value is
//! read from the fields of AWS, Azure, GCP, `OpenStack` and the virtual provider (spec/providers §3.1, §4.1, §5.1, §6.1, §7.1). Also writes provider
//! ids in the format of the impersonated provider.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rules::Subject;
use kube_values::quantity;
use machine_api::v1alpha1::{Machine, MachineClass, NodeTemplate};
use machine_driver::same_instance::last_segment;

/// The name of the virtual cloud as a provider.
pub const VIRTUAL: &str = "virtual";

/// The data that VMs with the same class and node template share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VmTemplate {
    /// The provider, which may be impersonated.
    pub provider: String,
    /// The name of the class.
    pub class: String,
    /// The region.
    pub region: String,
    /// The zone.
    pub zone: String,
    /// The machine type.
    pub machine_type: String,
    /// The project. Only provider ids of GCP contain it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// The cluster that owns the VMs. Empty if unknown.
    pub cluster: String,
    /// The role of the VMs. Empty if unknown.
    pub role: String,
    /// The CPU architecture.
    pub architecture: String,
    /// The resources of the Node.
    pub capacity: BTreeMap<String, Quantity>,
    /// The labels of the Node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The annotations of the Node.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The taints of the Node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The overrides of the class for the configuration of the simulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sim: Option<Value>,
}

impl VmTemplate {
    /// The template of a class.
    pub fn of_class(class: &MachineClass) -> Self {
        let spec = &class.provider_spec;
        let node = class.node_template.clone().unwrap_or_default();
        let name = class.metadata.name.clone().unwrap_or_default();
        let namespace = class.metadata.namespace.clone().unwrap_or_default();
        let or = |found: Option<String>, node: &str, default: &str| {
            found.unwrap_or_else(|| if node.is_empty() { default.to_owned() } else { node.to_owned() })
        };
        let region = text_at(spec, &["/region", "/location", "/spec/region"]);
        let zone = text_at(spec, &["/zone", "/availabilityZone", "/spec/availabilityZone", "/properties/zone"]);
        let types = ["/machineType", "/properties/hardwareProfile/vmSize", "/flavorName", "/spec/flavorName"];
        Self {
            provider: class.provider.clone(),
            region: or(region, &node.region, "sim-1"),
            zone: or(zone, &node.zone, "sim-1a"),
            machine_type: or(text_at(spec, &types), &node.instance_type, "sim.small"),
            project: text_at(spec, &["/project", "/projectID"]).unwrap_or_else(|| "sim".to_owned()),
            cluster: tag(spec, "cluster").unwrap_or_else(|| format!("namespace {namespace}")),
            role: tag(spec, "role").unwrap_or_else(|| format!("class {name}")),
            architecture: node.architecture.clone().unwrap_or_else(|| "amd64".to_owned()),
            capacity: capacity_of(&node),
            sim: spec.get("sim").filter(|sim| !sim.is_null()).cloned(),
            class: name,
            ..Self::default()
        }
    }

    /// The template of a class, with the data of a machine for its Node.
    pub fn of_machine(class: &MachineClass, machine: &Machine) -> Self {
        let wanted = &machine.spec.node_template;
        Self {
            labels: wanted.metadata.labels.clone().unwrap_or_default(),
            annotations: wanted.metadata.annotations.clone().unwrap_or_default(),
            taints: wanted.spec.taints.clone().unwrap_or_default(),
            ..Self::of_class(class)
        }
    }

    /// The template of a VM with only its provider id.
    pub fn of_provider_id(provider_id: &str) -> Self {
        let (scheme, rest) = provider_id.split_once("://").unwrap_or(("", provider_id));
        let parts: Vec<&str> = rest.trim_start_matches('/').split('/').collect();
        let part = |at: usize, default: &str| {
            parts
                .get(at)
                .filter(|part| parts.len() > at + 1 && !part.is_empty())
                .map_or(default, |part| *part)
                .to_owned()
        };
        let (provider, region, zone, project) = match scheme {
            "aws" => ("AWS", part(0, "sim-1"), "sim-1a".to_owned(), String::new()),
            "azure" => ("Azure", part(0, "sim-1"), "sim-1a".to_owned(), String::new()),
            "gce" => ("GCP", "sim-1".to_owned(), part(1, "sim-1a"), part(0, "sim")),
            "openstack" => ("OpenStack", part(0, "sim-1"), "sim-1a".to_owned(), String::new()),
            _ => (VIRTUAL, part(0, "sim-1"), part(1, "sim-1a"), String::new()),
        };
        Self {
            provider: provider.to_owned(),
            region,
            zone,
            project,
            machine_type: "sim.small".to_owned(),
            architecture: "amd64".to_owned(),
            capacity: capacity_of(&NodeTemplate::default()),
            ..Self::default()
        }
    }

    /// Whether the owner of the VMs is known.
    pub const fn has_owner(&self) -> bool {
        !self.cluster.is_empty()
    }

    /// Whether VMs of the other template belong to the same cluster and role. VMs without a known owner belong to every owner.
    pub fn owns(&self, other: &Self) -> bool {
        !other.has_owner() || (self.cluster == other.cluster && self.role == other.role)
    }

    /// The data for rules.
    pub fn subject<'a>(&'a self, machine: &'a str) -> Subject<'a> {
        Subject {
            class: &self.class,
            machine,
            region: &self.region,
            zone: &self.zone,
            machine_type: &self.machine_type,
        }
    }

    /// The number of cores, in thousandths.
    pub fn milli_cores(&self) -> u64 {
        let cores = self.capacity.get("cpu").and_then(thousandths).unwrap_or(1000);
        u64::try_from(cores).unwrap_or(0)
    }

    /// The provider id of a VM of this template.
    pub fn provider_id(&self, machine: &str, instance: InstanceId) -> String {
        match self.provider.as_str() {
            "AWS" => format!("aws:///{}/{}", self.region, instance.hex()),
            "Azure" => format!("azure:///{}/{machine}", self.region),
            "GCP" => format!("gce:///{}/{}/{machine}", self.project, self.zone),
            "OpenStack" => format!("openstack:///{}/{}", self.region, instance.uuid()),
            _ => format!("virtual:///{}/{}/{}", self.region, self.zone, instance.hex()),
        }
    }
    /// The provider id in the format of the cloud controller manager on the Node. For every provider this format differs from the format of
    /// [`Self::provider_id`], so that tests find code that compares the ids as texts.
    pub fn node_provider_id(&self, provider_id: &str) -> String {
        let (scheme, path) = provider_id.split_once("://").unwrap_or((VIRTUAL, provider_id));
        let instance = last_segment(provider_id).unwrap_or_default();
        let (zone, cluster) = (&self.zone, last_segment(&self.cluster).unwrap_or("sim"));
        match scheme {
            "aws" => format!("aws:///{zone}/{instance}"),
            "azure" => format!(
                "azure:///subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/{cluster}/providers/\
                 Microsoft.Compute/virtualMachines/{instance}"
            ),
            "openstack" => format!("openstack:///{instance}"),
            // Two slashes instead of three, as on GCP, or three instead of two.
            _ => match path.strip_prefix('/') {
                Some(path) => format!("{scheme}://{path}"),
                None => format!("{scheme}:///{path}"),
            },
        }
    }
}

/// Sixty-eight bits that identify a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceId(pub [u64; 2]);

impl InstanceId {
    /// The format of EC2: `i-` and 17 hexadecimal digits.
    fn hex(self) -> String {
        format!("i-{:016x}{:x}", self.0[0], self.0[1] & 0xf)
    }

    /// The format of Nova.
    fn uuid(self) -> String {
        let [a, b] = self.0;
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            b >> 52,
            b & 0xffff_ffff_ffff
        )
    }
}

/// A resource in thousandths. `None` if it is no quantity.
pub fn thousandths(resource: &Quantity) -> Option<i128> {
    quantity::Quantity::try_from(resource).ok()?.thousandths()
}

/// The resources of a Node: the resources of the class, with `gpu` under its real name and only if it is not zero.
fn capacity_of(node: &NodeTemplate) -> BTreeMap<String, Quantity> {
    let mut capacity = BTreeMap::new();
    for (name, value) in [("cpu", "1"), ("memory", "4Gi"), ("pods", "110"), ("ephemeral-storage", "50Gi")] {
        capacity.insert(name.to_owned(), Quantity(value.to_owned()));
    }
    for (name, value) in node.capacity.iter().chain(&node.virtual_capacity) {
        if name == "gpu" {
            if thousandths(value).is_none_or(|count| count > 0) {
                capacity.insert("nvidia.com/gpu".to_owned(), value.clone());
            }
        } else {
            capacity.insert(name.clone(), value.clone());
        }
    }
    capacity
}

/// The first text at these paths.
fn text_at(spec: &Value, pointers: &[&str]) -> Option<String> {
    pointers.iter().find_map(|pointer| match spec.pointer(pointer)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// The owner tag of this kind (`cluster` or `role`), in the format of any provider.
fn tag(spec: &Value, kind: &str) -> Option<String> {
    let spellings =
        [format!("kubernetes.io/{kind}/"), format!("kubernetes.io-{kind}-"), format!("kubernetes-io-{kind}-")];
    let tags = spec.get("tags").or_else(|| spec.pointer("/spec/tags"))?;
    let keys: Vec<&String> = match tags {
        Value::Object(map) => map.keys().collect(),
        Value::Array(list) => {
            list.iter().filter_map(|tag| if let Value::String(tag) = tag { Some(tag) } else { None }).collect()
        }
        _ => return None,
    };
    keys.into_iter().find(|key| spellings.iter().any(|spelling| key.contains(spelling.as_str()))).cloned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn class(provider: &str, spec: Value) -> MachineClass {
        let mut class = MachineClass { provider: provider.to_owned(), provider_spec: spec, ..MachineClass::default() };
        class.metadata.name = Some("pool".to_owned());
        class.metadata.namespace = Some("shoot".to_owned());
        class
    }

    #[rstest]
    #[case::its_own(class("virtual", json!({})), "virtual:///sim-1/sim-1a/i-00000000000000ab7")]
    #[case::aws_has_the_region(class("AWS", json!({"region": "eu-1", "machineType": "m5.large"})), "aws:///eu-1/i-00000000000000ab7")]
    #[case::azure_has_the_name(class("Azure", json!({"location": "westeurope"})), "azure:///westeurope/m-1")]
    #[case::gcp_has_project_and_zone(class("GCP", json!({"zone": "eu-1b"})), "gce:///sim/eu-1b/m-1")]
    #[case::openstack_has_a_uuid(class("OpenStack", json!({"spec": {"region": "r"}})), "openstack:///r/00000000-0000-40ab-8000-000000000007")]
    fn an_identity_is_written_as_the_provider_would(#[case] class: MachineClass, #[case] identity: &str) {
        assert_eq!(VmTemplate::of_class(&class).provider_id("m-1", InstanceId([0xab, 7])), identity);
    }

    #[rstest]
    #[case::its_own("virtual:///sim-1/sim-1a/i-1", "virtual://sim-1/sim-1a/i-1")]
    #[case::aws("aws:///eu-1/i-1", "aws:///sim-1a/i-1")]
    #[case::azure(
        "azure:///westeurope/m-1",
        "azure:///subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/sim/providers/Microsoft.Compute/virtualMachines/m-1"
    )]
    #[case::gcp("gce:///sim/eu-1b/m-1", "gce://sim/eu-1b/m-1")]
    #[case::openstack("openstack:///r/0-1", "openstack:///0-1")]
    #[case::of_a_state_file_with_two_slashes("x://a/m-1", "x:///a/m-1")]
    #[case::of_a_state_file_with_a_name_alone("m-1", "virtual:///m-1")]
    fn the_node_has_another_format(#[case] machine: &str, #[case] node: &str) {
        use machine_driver::{SameInstance, same_instance::by_last_segment};
        let template = VmTemplate { zone: "sim-1a".to_owned(), ..VmTemplate::default() };
        assert_eq!(template.node_provider_id(machine), node);
        assert_eq!(by_last_segment(machine, node), SameInstance::Same);
        assert_ne!(machine, node);
    }

    #[test]
    fn place_and_type_come_from_the_spec_then_the_node_template_then_the_defaults() {
        let mut class = class("virtual", json!({"region": "r"}));
        class.node_template = Some(NodeTemplate { zone: "z".to_owned(), ..NodeTemplate::default() });
        let template = VmTemplate::of_class(&class);
        assert_eq!((template.region.as_str(), template.zone.as_str()), ("r", "z"));
        assert_eq!(template.machine_type, "sim.small");
    }

    #[rstest]
    #[case::implied(json!({}), "namespace shoot", "class pool")]
    #[case::a_map(json!({"tags": {"kubernetes.io/cluster/x": "1", "kubernetes.io/role/node": "1"}}), "kubernetes.io/cluster/x", "kubernetes.io/role/node")]
    #[case::a_list(json!({"tags": ["kubernetes-io-cluster-x", "kubernetes-io-role-node"]}), "kubernetes-io-cluster-x", "kubernetes-io-role-node")]
    fn ownership_is_in_the_tags(#[case] spec: Value, #[case] cluster: &str, #[case] role: &str) {
        let template = VmTemplate::of_class(&class("virtual", spec));
        assert_eq!((template.cluster.as_str(), template.role.as_str()), (cluster, role));
    }

    #[rstest]
    #[case::v10_no_gpus_are_not_shown("0", None)]
    #[case::gpus_have_their_real_name("2", Some("2"))]
    fn capacity_of_gpus(#[case] gpus: &str, #[case] shown: Option<&str>) {
        let quantity = |text: &str| Quantity(text.to_owned());
        let node = NodeTemplate {
            capacity: BTreeMap::from([("cpu".to_owned(), quantity("4")), ("gpu".to_owned(), quantity(gpus))]),
            ..NodeTemplate::default()
        };
        let capacity = capacity_of(&node);
        assert_eq!(capacity.get("nvidia.com/gpu"), shown.map(quantity).as_ref());
        assert_eq!(capacity.get("gpu"), None);
        assert_eq!((&capacity["cpu"].0[..], &capacity["pods"].0[..]), ("4", "110"));
    }

    #[test]
    fn c03_a_provider_spec_that_is_a_list_does_not_cause_a_panic() {
        assert_eq!(VmTemplate::of_class(&class("virtual", json!([1]))).zone, "sim-1a");
    }

    #[test]
    fn the_place_is_read_back_from_an_identity() {
        let template = VmTemplate::of_provider_id("virtual:///sim-2/sim-2c/i-1");
        assert_eq!((template.region.as_str(), template.zone.as_str()), ("sim-2", "sim-2c"));
        assert!(!template.has_owner());
        assert_eq!(VmTemplate::of_provider_id("aws:///eu-1/i-1").region, "eu-1");
    }
}
