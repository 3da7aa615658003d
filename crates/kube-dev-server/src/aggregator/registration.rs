//! The contents of an `APIService`, the address of its server, and its condition: pure functions.
//!
//! Source: spec/extension-apiserver §5.1, §5.3, §6.2.

use std::{fmt, net::IpAddr};

use jiff::Timestamp;
use kube_protocol::openapi::document_path;
use serde_json::{Value, json};

use crate::{
    kinds::{Registry, Served},
    object::{self, text},
};

/// The API group of registrations.
pub(crate) const GROUP: &str = "apiregistration.k8s.io";
/// The plural name of registrations.
pub(crate) const RESOURCE: &str = "apiservices";
/// The label of registrations that this server creates for its own groups.
pub(super) const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// The priorities of groups in kube-apiserver: the core group, the other built-in groups, the groups of custom resource definitions.
const CORE_GROUP: i64 = 18_000;
const BUILT_IN_GROUP: i64 = 17_000;
const CUSTOM_GROUP: i64 = 1000;
/// The priorities of versions within their groups.
const BUILT_IN_VERSION: i64 = 15;
const CUSTOM_VERSION: i64 = 100;
const AVAILABLE: &str = "Available";

/// A version of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupVersion {
    pub(crate) group: String,
    pub(crate) version: String,
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.group, self.version)
    }
}

impl GroupVersion {
    /// The path: `/apis/<group>/<version>`.
    pub(super) fn path(&self) -> String {
        format!("/{}", document_path(&self.group, &self.version))
    }
}

/// The Service of an extension API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceReference {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) port: u16,
}

impl ServiceReference {
    /// The name in the certificate of the server.
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

/// A group-version of an extension API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    /// Name of the `APIService`.
    pub(super) name: String,
    pub(super) serves: GroupVersion,
    pub(super) service: ServiceReference,
    /// The certificate authorities of the server: PEM in Base64.
    pub(super) bundle: String,
    pub(super) group_priority: i64,
    pub(super) version_priority: i64,
}

impl Registration {
    /// Reads an `APIService`. `None` if this server serves the group-version itself.
    pub(super) fn of(object: &Value) -> Option<Self> {
        let service = object["spec"].get("service").filter(|service| service.is_object())?;
        let part = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
        let priority = |key: &str| object["spec"][key].as_i64().unwrap_or(0);
        Some(Self {
            name: object::name(object).to_owned(),
            serves: GroupVersion {
                group: text(object, "/spec/group").to_owned(),
                version: text(object, "/spec/version").to_owned(),
            },
            service: ServiceReference {
                namespace: part("namespace"),
                name: part("name"),
                port: service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443),
            },
            bundle: text(object, "/spec/caBundle").to_owned(),
            group_priority: priority("groupPriorityMinimum"),
            version_priority: priority("versionPriority"),
        })
    }
}

/// The reason why a server is unavailable, as in the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unavailable {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Unavailable {
    pub(super) fn failed_check(message: impl Into<String>) -> Self {
        Self { reason: "FailedDiscoveryCheck", message: message.into() }
    }
}

/// The `host:port` of a Service. There is no service network, so the Service must be an external name, and the name must mean this host.
///
/// # Errors
/// If the Service is missing or has another address, with advice.
pub(super) fn address(reference: &ServiceReference, service: Option<&Value>) -> Result<String, Unavailable> {
    let ServiceReference { namespace, name, port } = reference;
    let Some(service) = service else {
        let message = format!("service/{name} in {namespace:?} is not present");
        return Err(Unavailable { reason: "ServiceNotFound", message });
    };
    if text(service, "/spec/type") != "ExternalName" {
        let message = format!(
            "the development server has no service network; give service/{name} in {namespace:?} the type ExternalName \
             and the externalName localhost"
        );
        return Err(Unavailable { reason: "MissingEndpoints", message });
    }
    let host = text(service, "/spec/externalName");
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if !is_here {
        let message = format!(
            "service/{name} in {namespace:?} is at {host:?}; the development server calls loopback addresses only"
        );
        return Err(Unavailable { reason: "ServiceAccessError", message });
    }
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// The `APIService` with its new condition. `None` if the condition is unchanged.
pub(super) fn with_condition(object: &Value, state: Result<(), &Unavailable>, now: Timestamp) -> Option<Value> {
    let (status, reason, message) = match state {
        Ok(()) => ("True", "Passed", "all checks passed"),
        Err(why) => ("False", why.reason, why.message.as_str()),
    };
    let before = condition(object);
    if before["status"] == status && before["reason"] == reason && before["message"] == message {
        return None;
    }
    let since = if before["status"] == status { before["lastTransitionTime"].clone() } else { object::time(now) };
    let condition = json!({
        "type": AVAILABLE, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    let mut changed = object.clone();
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != AVAILABLE);
    conditions.push(condition);
    changed["status"]["conditions"] = json!(conditions);
    Some(changed)
}

fn condition(object: &Value) -> &Value {
    static NONE: Value = Value::Null;
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == AVAILABLE).unwrap_or(&NONE)
}

/// The priority of a group of this server.
pub(super) fn local_group_priority(served: &Served) -> i64 {
    match (served.is_custom(), served.group()) {
        (true, _) => CUSTOM_GROUP,
        (false, "") => CORE_GROUP,
        (false, _) => BUILT_IN_GROUP,
    }
}

/// The registrations of the group-versions of this server.
pub(super) fn local_registrations(registry: &Registry, now: Timestamp) -> Vec<Value> {
    let mut made: Vec<Value> = Vec::new();
    for served in registry.all().iter().filter(|served| !served.resource.verbs.is_empty()) {
        let (group, version) = (served.group(), served.resource.kind.version.as_str());
        let name = format!("{version}.{group}");
        if made.iter().any(|object| object::name(object) == name) {
            continue;
        }
        let (managed, version_priority) =
            if served.is_custom() { ("true", CUSTOM_VERSION) } else { ("onstart", BUILT_IN_VERSION) };
        let mut spec = json!({
            "version": version, "groupPriorityMinimum": local_group_priority(served),
            "versionPriority": version_priority,
        });
        if !group.is_empty() {
            spec["group"] = json!(group);
        }
        made.push(json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "APIService",
            "metadata": {"name": name, "labels": {AUTOMANAGED: managed}},
            "spec": spec,
            "status": {"conditions": [{
                "type": AVAILABLE, "status": "True", "reason": "Local",
                "message": "Local APIServices are always available", "lastTransitionTime": object::time(now),
            }]},
        }));
    }
    made
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn reference() -> ServiceReference {
        ServiceReference { namespace: "n".to_owned(), name: "s".to_owned(), port: 9443 }
    }

    #[rstest]
    #[case::by_name("ExternalName", "localhost", Ok("localhost:9443"))]
    #[case::by_address("ExternalName", "127.0.0.1", Ok("127.0.0.1:9443"))]
    #[case::by_v6("ExternalName", "::1", Ok("[::1]:9443"))]
    #[case::th_40_another_host("ExternalName", "169.254.169.254", Err("ServiceAccessError"))]
    #[case::th_40_a_name_that_looks_local("ExternalName", "localhost.example.com", Err("ServiceAccessError"))]
    #[case::no_name("ExternalName", "", Err("ServiceAccessError"))]
    #[case::a_cluster_address("ClusterIP", "", Err("MissingEndpoints"))]
    fn services_are_on_this_host(#[case] kind: &str, #[case] host: &str, #[case] expected: Result<&str, &str>) {
        let service = json!({"spec": {"type": kind, "externalName": host}});
        let found = address(&reference(), Some(&service)).map_err(|why| why.reason);
        assert_eq!(found, expected.map(str::to_owned));
    }

    #[test]
    fn the_error_names_a_missing_service() {
        let why = address(&reference(), None).unwrap_err();
        assert_eq!((why.reason, why.message.as_str()), ("ServiceNotFound", "service/s in \"n\" is not present"));
    }

    #[test]
    fn a_condition_is_written_when_it_changes_and_keeps_the_time_of_its_status() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let object = json!({"metadata": {"name": "v1.g"}});
        let why = Unavailable::failed_check("refused");
        let down = with_condition(&object, Err(&why), at(1)).unwrap();
        assert_eq!(condition(&down)["reason"], "FailedDiscoveryCheck");
        assert_eq!(with_condition(&down, Err(&why), at(2)), None);
        let other = with_condition(&down, Err(&Unavailable::failed_check("silent")), at(3)).unwrap();
        assert_eq!(condition(&other)["lastTransitionTime"], condition(&down)["lastTransitionTime"]);
        let up = with_condition(&other, Ok(()), at(4)).unwrap();
        assert_eq!((&condition(&up)["status"], &condition(&up)["reason"]), (&json!("True"), &json!("Passed")));
        assert_ne!(condition(&up)["lastTransitionTime"], condition(&down)["lastTransitionTime"]);
    }

    #[test]
    fn every_own_group_version_is_registered_once() {
        let made = local_registrations(&Registry::new(Vec::new()), Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = made.iter().map(object::name).collect();
        assert!(names.contains(&"v1.") && names.contains(&"v1.apps"), "{names:?}");
        let mut unique = names.clone();
        unique.dedup();
        assert_eq!(names.len(), unique.len());
        assert!(made.iter().all(|object| Registration::of(object).is_none()));
    }
}
