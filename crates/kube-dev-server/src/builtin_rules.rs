//! The defaults and rules of built-in kinds that clients rely on. Other rules of kube-apiserver are not checked.
//!
//! Source: spec/extension-apiserver §6.2.

use serde_json::{Value, json};

use super::{
    access::User,
    data_rules,
    kinds::Served,
    object::{name, text},
    quality,
    schema::validate,
    write_rules::remove,
};
use kube_protocol::status::{ApiStatus, Cause};

/// The label of a namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";
/// The fields of `nodeInfo`, which the kubelet sets. A new Node has empty texts.
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
/// The namespaces that can't be deleted.
pub(super) const PERMANENT_NAMESPACES: [&str; 3] = ["default", "kube-system", "kube-public"];

fn set_default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// Refuses values of a wrong type, and converts the object to its stored form.
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
    match (served.group(), served.plural()) {
        ("", "secrets" | "configmaps") => data_rules::decode(served, object),
        ("coordination.k8s.io", "leases") => lease_times(object),
        _ => Ok(()),
    }
}

/// Checks the times of a Lease. They have exactly six decimals, the format of `MicroTime` in Kubernetes.
fn lease_times(lease: &Value) -> Result<(), ApiStatus> {
    for field in ["acquireTime", "renewTime"] {
        let Some(time) = lease["spec"][field].as_str() else { continue };
        let fraction = time.split_once('.').map_or("", |(_, rest)| rest);
        let digits = fraction.chars().take_while(char::is_ascii_digit).count();
        if digits != 6 || time.parse::<jiff::Timestamp>().is_err() {
            return Err(ApiStatus::bad_request(format!(
                "Lease in version \"v1\" cannot be handled as a Lease: parsing time {time:?} as \
                 \"2006-01-02T15:04:05.000000Z07:00\" failed in spec.{field}"
            )));
        }
    }
    Ok(())
}

/// Sets the fields of a built-in kind that no writer can change.
pub(super) fn set_fixed(served: &Served, object: &mut Value) {
    if served.is("", "namespaces") {
        let own = name(object).to_owned();
        if !object["metadata"]["labels"].is_object() {
            object["metadata"]["labels"] = json!({});
        }
        object["metadata"]["labels"][NAMESPACE_NAME] = json!(own);
    }
}

/// Sets the defaults of a new object.
pub(super) fn default_new(served: &Served, object: &mut Value, user: &User) {
    if served.is_custom() {
        return;
    }
    match (served.group(), served.plural()) {
        ("", "namespaces") => {
            set_fixed(served, object);
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        ("", "nodes") => default_node(object),
        ("", "pods") => default_pod(object),
        ("", "events") => set_default(object, "type", json!("Normal")),
        ("policy", "poddisruptionbudgets") => {
            // The disruption controller has not counted the pods yet.
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

/// Sets the defaults of a new object again after the webhooks, because containers that they have added need defaults, too.
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

/// The finalizers in the spec of a namespace.
pub(super) fn namespace_finalizers(namespace: &Value) -> Vec<&Value> {
    namespace["spec"]["finalizers"].as_array().into_iter().flatten().collect()
}

/// Validates an object of a built-in kind.
pub(super) fn check(served: &Served, object: &Value, old: Option<&Value>) -> Vec<Cause> {
    let mut found = Vec::new();
    match (served.group(), served.plural()) {
        ("", "nodes") => check_node(object, old, &mut found),
        ("", "pods") => check_pod(object, old, &mut found),
        ("", "secrets" | "configmaps") => data_rules::check(served, object, old, &mut found),
        ("policy", "poddisruptionbudgets")
            if !object["spec"]["minAvailable"].is_null() && !object["spec"]["maxUnavailable"].is_null() =>
        {
            let why = "minAvailable and maxUnavailable cannot be both set";
            found.push(Cause::invalid("spec", &object["spec"], why));
        }
        ("coordination.k8s.io", "leases") => check_lease(object, &mut found),
        _ => {}
    }
    found
}

fn check_lease(lease: &Value, found: &mut Vec<Cause>) {
    let bounds = [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ];
    for (field, least, why) in bounds {
        let value = &lease["spec"][field];
        if value.as_i64().is_some_and(|number| number < least) {
            found.push(Cause::invalid(format!("spec.{field}"), value, why));
        }
    }
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
