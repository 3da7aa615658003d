//! The built-in kinds: their schemas from a pinned Kubernetes minor version, and the cells of their tables.
//!
//! `scripts/dev-server-schemas` creates `builtin/kubernetes.json.gz` from the discovery, tables and `OpenAPI` documents of a kube-apiserver.
//! Source: spec/extension-apiserver §6.2.

use std::{collections::BTreeMap, io::Read, sync::OnceLock};

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{jsonpath::JsonPath, table::Cell};

const DOCUMENT: &[u8] = include_bytes!("builtin/kubernetes.json.gz");

/// The contents of the pinned document.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    /// The version of the kube-apiserver.
    pub(super) version: String,
    pub(super) resources: Vec<BuiltInResource>,
    /// The schemas by name, in the format of `OpenAPI` v3.
    pub(super) schemas: BTreeMap<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BuiltInResource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) kind: String,
    pub(super) singular: String,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    #[serde(default)]
    pub(super) short_names: Vec<String>,
    #[serde(default)]
    pub(super) categories: Vec<String>,
    #[serde(default)]
    pub(super) subresources: Vec<BuiltInSubresource>,
    #[serde(default)]
    pub(super) columns: Vec<BuiltInColumn>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BuiltInSubresource {
    pub(super) name: String,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) verbs: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BuiltInColumn {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) value_type: String,
    pub(super) format: String,
    pub(super) priority: i64,
    pub(super) description: String,
}

/// The pinned document. It is decoded once.
///
/// # Panics
/// If the file in the source tree is invalid, which every test finds.
pub(super) fn document() -> &'static Document {
    static READ: OnceLock<Document> = OnceLock::new();
    READ.get_or_init(|| {
        let mut text = String::new();
        GzDecoder::new(DOCUMENT).read_to_string(&mut text).expect("the pinned document is gzip");
        serde_json::from_str(&text).expect("the pinned document is as its script writes it")
    })
}

/// The cells of a column of a built-in kind.
pub(super) fn cell(resource: &str, column: &str) -> Cell {
    let path = |text: &str| Cell::Path(JsonPath::parse(text).unwrap_or_else(|_| unreachable!("a path of this file")));
    let age = |text: &str| Cell::Age(JsonPath::parse(text).unwrap_or_else(|_| unreachable!("a path of this file")));
    match (resource, column) {
        (_, "Age") => age(".metadata.creationTimestamp"),
        (_, "Created At") => path(".metadata.creationTimestamp"),
        (_, "Name") => path(".metadata.name"),
        ("pods", "Ready") => Cell::Computed(pod_ready),
        ("pods", "Status") => Cell::Computed(pod_status),
        ("pods", "Restarts") => Cell::Computed(pod_restarts),
        ("pods", "IP") => path(".status.podIP"),
        ("pods" | "volumeattachments", "Node") => path(".spec.nodeName"),
        ("nodes", "Status") => Cell::Computed(node_status),
        ("nodes", "Roles") => Cell::Computed(node_roles),
        ("nodes", "Version") => path(".status.nodeInfo.kubeletVersion"),
        ("nodes", "Internal-IP") => path(".status.addresses[?(@.type==\"InternalIP\")].address"),
        ("nodes", "External-IP") => path(".status.addresses[?(@.type==\"ExternalIP\")].address"),
        ("nodes", "OS-Image") => path(".status.nodeInfo.osImage"),
        ("nodes", "Kernel-Version") => path(".status.nodeInfo.kernelVersion"),
        ("nodes", "Container-Runtime") => path(".status.nodeInfo.containerRuntimeVersion"),
        ("configmaps" | "secrets", "Data") => Cell::Computed(data_count),
        ("events", "Last Seen") => Cell::Age(JsonPath::parse(".lastTimestamp").unwrap_or_else(|_| unreachable!())),
        ("events", "First Seen") => Cell::Age(JsonPath::parse(".firstTimestamp").unwrap_or_else(|_| unreachable!())),
        ("events", "Object") => Cell::Computed(event_object),
        ("events" | "secrets", "Type") => path(".type"),
        ("events", "Reason") => path(".reason"),
        ("events", "Message") => path(".message"),
        ("events", "Count") => path(".count"),
        ("events", "Source") => path(".source.component"),
        ("events", "Subobject") => path(".involvedObject.fieldPath"),
        ("poddisruptionbudgets", "Min Available") => path(".spec.minAvailable"),
        ("poddisruptionbudgets", "Max Unavailable") => path(".spec.maxUnavailable"),
        ("poddisruptionbudgets", "Allowed Disruptions") => path(".status.disruptionsAllowed"),
        ("leases", "Holder") => path(".spec.holderIdentity"),
        ("volumeattachments", "Attacher") => path(".spec.attacher"),
        ("volumeattachments", "PV") => path(".spec.source.persistentVolumeName"),
        ("volumeattachments", "Attached") => path(".status.attached"),
        ("persistentvolumeclaims", "Volume") => path(".spec.volumeName"),
        ("persistentvolumeclaims" | "persistentvolumes", "StorageClass") => path(".spec.storageClassName"),
        ("persistentvolumeclaims", "Capacity") => path(".status.capacity.storage"),
        ("persistentvolumes", "Capacity") => path(".spec.capacity.storage"),
        ("persistentvolumes", "Claim") => Cell::Computed(volume_claim),
        ("persistentvolumes", "Reclaim Policy") => path(".spec.persistentVolumeReclaimPolicy"),
        (_, "Status") => path(".status.phase"),
        (_, "Webhooks") => Cell::Computed(|object| json!(object["webhooks"].as_array().map_or(0, Vec::len))),
        (_, "Role") => Cell::Computed(|object| {
            json!(format!(
                "{}/{}",
                super::object::text(object, "/roleRef/kind"),
                super::object::text(object, "/roleRef/name")
            ))
        }),
        ("services", "Type") => path(".spec.type"),
        ("services", "Cluster-IP") => path(".spec.clusterIP"),
        ("priorityclasses", "Value") => path(".value"),
        ("storageclasses", "Provisioner") => path(".provisioner"),
        ("apiservices", "Available") => Cell::Computed(registration_availability),
        ("apiservices", "Service") => Cell::Computed(registration_service),
        (_, "Desired") => path(".spec.replicas"),
        (_, "Current") => path(".status.replicas"),
        (_, "Available") => path(".status.availableReplicas"),
        (_, "Up-to-date") => path(".status.updatedReplicas"),
        _ => Cell::Computed(|_| json!("<none>")),
    }
}

/// Whether an extension API server is available, with the reason if it is not.
fn registration_availability(object: &Value) -> Value {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(available) = conditions.iter().find(|condition| condition["type"] == "Available") else {
        return json!("Unknown");
    };
    let status = available["status"].as_str().unwrap_or_default();
    match available["reason"].as_str().filter(|reason| status != "True" && !reason.is_empty()) {
        Some(reason) => json!(format!("{status} ({reason})")),
        None => json!(status),
    }
}

fn registration_service(object: &Value) -> Value {
    match &object["spec"]["service"] {
        Value::Null => json!("Local"),
        service => json!(format!(
            "{}/{}",
            service["namespace"].as_str().unwrap_or_default(),
            service["name"].as_str().unwrap_or_default()
        )),
    }
}

fn data_count(object: &Value) -> Value {
    let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    json!(count("data") + count("binaryData"))
}

fn statuses(pod: &Value) -> &[Value] {
    pod["status"]["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn pod_ready(pod: &Value) -> Value {
    let ready = statuses(pod).iter().filter(|status| status["ready"] == json!(true)).count();
    json!(format!("{ready}/{}", pod["spec"]["containers"].as_array().map_or(0, Vec::len)))
}

fn pod_status(pod: &Value) -> Value {
    if super::object::is_deleting(pod) {
        return json!("Terminating");
    }
    match super::object::text(pod, "/status/reason") {
        "" => json!(super::object::text(pod, "/status/phase")),
        reason => json!(reason),
    }
}

fn pod_restarts(pod: &Value) -> Value {
    let restarts: i64 = statuses(pod).iter().filter_map(|status| status["restartCount"].as_i64()).sum();
    json!(restarts.to_string())
}

fn node_status(node: &Value) -> Value {
    let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let mut words = vec![match ready.map(|ready| &ready["status"]) {
        Some(Value::String(status)) if status == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node["spec"]["unschedulable"] == json!(true) {
        words.push("SchedulingDisabled");
    }
    json!(words.join(","))
}

fn node_roles(node: &Value) -> Value {
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { json!("<none>") } else { json!(roles.join(",")) }
}

fn event_object(event: &Value) -> Value {
    let object = if event["involvedObject"].is_null() { &event["regarding"] } else { &event["involvedObject"] };
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    json!(format!("{kind}/{}", object["name"].as_str().unwrap_or_default()))
}

fn volume_claim(volume: &Value) -> Value {
    let claim = &volume["spec"]["claimRef"];
    match (claim["namespace"].as_str(), claim["name"].as_str()) {
        (Some(namespace), Some(name)) => json!(format!("{namespace}/{name}")),
        _ => json!(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_document_has_the_served_resources() {
        let document = document();
        assert!(document.version.starts_with("v1."), "{}", document.version);
        for wanted in ["nodes", "pods", "secrets", "leases", "customresourcedefinitions", "poddisruptionbudgets"] {
            assert!(document.resources.iter().any(|resource| resource.resource == wanted), "{wanted}");
        }
        assert!(DOCUMENT.len() < 400 * 1024);
    }
}
