//! Defaults and rules of built-in kinds that clients lean on; all else is accepted as it is.
//!
//! Source: spec/extension-apiserver §6.2.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{
    access::User,
    kinds::Served,
    object::{metadata, name, text},
    quality,
    schema::validate,
    write_rules::remove,
};
use crate::protocol::status::{ApiStatus, Cause};

/// Data of one `ConfigMap` or Secret.
const DATA_LIMIT: usize = 1024 * 1024;
/// What a kubelet tells of its node; empty until it does.
const INFO: [&str; 10] = [
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];
/// Namespaces that stay.
pub(super) const PERMANENT_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

fn set_default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// Refuses what could not be decoded into the kind's type, and brings it into its stored form.
pub(super) fn decode(served: &Served, object: &mut Value) -> Result<(), ApiStatus> {
    let mut found = Vec::new();
    validate::check(object, None, &served.schema, "", &mut found);
    if let Some(cause) = found.iter().find(|cause| cause.reason == "FieldValueTypeInvalid") {
        let (kind, version) = (served.kind(), &served.resource.kind.version);
        let message = format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: json: cannot unmarshal field {}: {}",
            cause.field, cause.message
        );
        return Err(ApiStatus::bad_request(message));
    }
    if served.is("", "secrets") {
        secret_data(object)?;
    }
    Ok(())
}

/// `stringData` becomes data; data must be base64.
fn secret_data(secret: &mut Value) -> Result<(), ApiStatus> {
    let plain = secret["stringData"].take();
    remove(secret, "stringData");
    if let Value::Object(plain) = plain {
        for (key, value) in plain {
            if !secret["data"].is_object() {
                secret["data"] = json!({});
            }
            secret["data"][&key] = json!(BASE64_STANDARD.encode(value.as_str().unwrap_or_default()));
        }
    }
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        if let Some(Err(error)) = value.as_str().map(|text| BASE64_STANDARD.decode(text)) {
            return Err(ApiStatus::bad_request(format!(
                "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data in data.{key}: {error}"
            )));
        }
    }
    set_default(secret, "type", json!("Opaque"));
    Ok(())
}

/// What a new object gets.
pub(super) fn default_new(served: &Served, object: &mut Value, user: &User) {
    if served.is_custom() {
        return;
    }
    match (served.group(), served.plural()) {
        ("", "namespaces") => {
            let own = name(object).to_owned();
            if !metadata(object).contains_key("labels") {
                metadata(object).insert("labels".to_owned(), json!({}));
            }
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(own);
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        ("", "nodes") => default_node(object),
        ("", "pods") => default_pod(object),
        ("", "events") => set_default(object, "type", json!("Normal")),
        ("policy", "poddisruptionbudgets") => {
            // As the budget's controller finds it: not counted yet.
            object["status"] = json!({
                "disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            });
        }
        ("", "persistentvolumeclaims") => object["status"] = json!({"phase": "Pending"}),
        ("", "persistentvolumes") => {
            set_default(&mut object["spec"], "persistentVolumeReclaimPolicy", json!("Retain"));
            set_default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            object["status"] = json!({"phase": "Pending"});
        }
        ("storage.k8s.io", "volumeattachments") => {
            remove(object, "status");
            object["status"] = json!({"attached": false});
        }
        ("apiextensions.k8s.io", "customresourcedefinitions") => {
            remove(object, "status");
            super::crd::default(object);
        }
        ("admissionregistration.k8s.io", _) => default_webhooks(object),
        ("certificates.k8s.io", _) => object["spec"]["username"] = json!(user.name),
        _ => {}
    }
}

/// What a new object gets once webhooks have had their say: what they have added to a pod has defaults too, and counts.
pub(super) fn default_admitted(served: &Served, object: &mut Value) {
    if served.is("", "pods") {
        default_pod(object);
    }
}

fn default_webhooks(object: &mut Value) {
    for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
        set_default(webhook, "failurePolicy", json!("Fail"));
        set_default(webhook, "matchPolicy", json!("Equivalent"));
        set_default(webhook, "namespaceSelector", json!({}));
        set_default(webhook, "objectSelector", json!({}));
        set_default(webhook, "timeoutSeconds", json!(10));
        for rule in webhook["rules"].as_array_mut().into_iter().flatten() {
            set_default(rule, "scope", json!("*"));
        }
        if webhook["clientConfig"]["service"].is_object() {
            set_default(&mut webhook["clientConfig"]["service"], "port", json!(443));
        }
    }
}

fn default_node(node: &mut Value) {
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = &mut node["spec"]["taints"];
    match taints.as_array_mut() {
        Some(taints) => {
            if !taints.iter().any(|taint| taint["key"] == not_ready["key"] && taint["effect"] == not_ready["effect"]) {
                taints.push(not_ready);
            }
        }
        None => *taints = json!([not_ready]),
    }
    set_default(&mut node["status"], "daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
    for field in INFO {
        set_default(&mut node["status"]["nodeInfo"], field, json!(""));
    }
}

fn default_pod(pod: &mut Value) {
    let spec = &mut pod["spec"];
    set_default(spec, "restartPolicy", json!("Always"));
    set_default(spec, "terminationGracePeriodSeconds", json!(30));
    set_default(spec, "dnsPolicy", json!("ClusterFirst"));
    set_default(spec, "schedulerName", json!("default-scheduler"));
    set_default(spec, "securityContext", json!({}));
    set_default(spec, "enableServiceLinks", json!(true));
    set_default(spec, "priority", json!(0));
    set_default(spec, "preemptionPolicy", json!("PreemptLowerPriority"));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            set_default(container, "resources", json!({}));
            quality::default_requests(container);
            set_default(container, "imagePullPolicy", json!("IfNotPresent"));
            set_default(container, "terminationMessagePath", json!("/dev/termination-log"));
            set_default(container, "terminationMessagePolicy", json!("File"));
        }
    }
    let mut tolerations = spec["tolerations"].as_array().cloned().unwrap_or_default();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = |toleration: &Value| {
            let same_key =
                toleration["key"] == key || toleration["key"].is_null() && toleration["operator"] == "Exists";
            same_key && (toleration["effect"].is_null() || toleration["effect"] == "NoExecute")
        };
        if !tolerations.iter().any(tolerated) {
            tolerations
                .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    spec["tolerations"] = json!(tolerations);
    let class = quality::class(&pod["spec"]);
    pod["status"] = json!({"phase": "Pending", "qosClass": class});
}

/// The finalizers that a namespace has in its spec.
pub(super) fn namespace_finalizers(namespace: &Value) -> Vec<&Value> {
    namespace["spec"]["finalizers"].as_array().into_iter().flatten().collect()
}

/// What is wrong with an object of a built-in kind.
pub(super) fn check(served: &Served, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut found = Vec::new();
    match (served.group(), served.plural()) {
        ("", "nodes") => check_node(object, old, &mut found),
        ("", "pods") => check_pod(object, old, &mut found),
        ("", "secrets" | "configmaps") => check_data(object, old, &mut found),
        ("policy", "poddisruptionbudgets")
            if !object["spec"]["minAvailable"].is_null() && !object["spec"]["maxUnavailable"].is_null() =>
        {
            let why = "minAvailable and maxUnavailable cannot be both set";
            found.push(Cause::invalid("spec", &object["spec"], why));
        }
        ("coordination.k8s.io", "leases")
            if object["spec"]["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) =>
        {
            let value = &object["spec"]["leaseDurationSeconds"];
            found.push(Cause::invalid("spec.leaseDurationSeconds", value, "must be greater than 0"));
        }
        _ => {}
    }
    found
}

fn check_node(node: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    for (at, taint) in node["spec"]["taints"].as_array().into_iter().flatten().enumerate() {
        let effects = [json!("NoSchedule"), json!("PreferNoSchedule"), json!("NoExecute")];
        if !effects.contains(&taint["effect"]) {
            found.push(Cause::not_supported(format!("metadata.taints[{at}].effect"), &taint["effect"], &effects));
        }
        if text(taint, "/key").is_empty() {
            found.push(Cause::invalid(
                format!("metadata.taints[{at}].key"),
                &taint["key"],
                "name part must be non-empty",
            ));
        }
    }
    if let Some(old) = old {
        let before = text(old, "/spec/providerID");
        if !before.is_empty() && before != text(node, "/spec/providerID") {
            let why = "node updates may not change providerID except from \"\" to valid";
            found.push(Cause::forbidden("spec.providerID", why));
        }
    }
}

fn check_pod(pod: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    if pod["spec"]["containers"].as_array().is_none_or(Vec::is_empty) {
        found.push(Cause::required("spec.containers", ""));
    }
    if let Some(old) = old {
        let fixed = |pod: &Value| {
            let mut spec = pod["spec"].clone();
            for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"] {
                remove(&mut spec, field);
            }
            for container in spec["containers"].as_array_mut().into_iter().flatten() {
                remove(container, "image");
            }
            spec
        };
        if fixed(old) != fixed(pod) && !text(old, "/spec/nodeName").is_empty() {
            let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                       `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                       existing tolerations),`spec.terminationGracePeriodSeconds`";
            found.push(Cause::forbidden("spec", why));
        }
    }
}

fn check_data(object: &Value, old: Option<&Value>, found: &mut Vec<Cause>) {
    let size: usize = ["data", "binaryData"]
        .iter()
        .flat_map(|field| object[*field].as_object().into_iter().flatten())
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    // Base64 is a third longer than what it holds.
    if size > DATA_LIMIT * 4 / 3 {
        found.push(Cause::too_long("data", "may not be more than 1048576 bytes"));
    }
    if let Some(old) = old.filter(|old| old["immutable"] == json!(true)) {
        for field in ["data", "binaryData", "immutable"] {
            if old[field] != object[field] {
                found.push(Cause::forbidden(field, "field is immutable when `immutable` is set"));
            }
        }
    }
}
