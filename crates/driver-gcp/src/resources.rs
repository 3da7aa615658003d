//! The parts of GCE's resources that the driver reads. A field that is absent has its empty value, because GCE leaves empty fields out.

use std::collections::BTreeMap;

use machine_driver::Timestamp;
use serde::Deserialize;

/// An instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instance {
    pub name: String,
    pub status: String,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_protection: bool,
    pub tags: Tags,
    pub network_interfaces: Vec<Interface>,
}

impl Instance {
    /// Whether it has this network tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.items.iter().any(|one| one == tag)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Tags {
    pub items: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Interface {
    #[serde(rename = "networkIP")]
    pub address: String,
    #[serde(rename = "ipv6Address")]
    pub ipv6_address: String,
    #[serde(rename = "accessConfigs")]
    pub external: Vec<External>,
    #[serde(rename = "ipv6AccessConfigs")]
    pub external_ipv6: Vec<External>,
}

/// The external address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct External {
    #[serde(rename = "natIP")]
    pub address: String,
    #[serde(rename = "externalIpv6")]
    pub ipv6_address: String,
}

/// A page of a list of instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceList {
    pub items: Vec<Instance>,
    pub next_page_token: Option<String>,
    pub warning: Option<Warning>,
}

/// A page of a list of the instances of all zones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregatedList {
    /// The instances by zone: `zones/NAME`.
    pub items: BTreeMap<String, ScopedList>,
    pub next_page_token: Option<String>,
    pub unreachables: Vec<String>,
    pub warning: Option<Warning>,
}

/// The instances of one zone on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ScopedList {
    pub instances: Vec<Instance>,
    pub warning: Option<Warning>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Warning {
    pub code: String,
    pub message: String,
}

/// A change that GCE carries out after its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Operation {
    pub name: String,
    pub status: String,
    pub error: Option<OperationError>,
    pub http_error_status_code: Option<u16>,
    pub http_error_message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OperationError {
    pub errors: Vec<ErrorEntry>,
}

/// A reason why an operation failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ErrorEntry {
    pub code: String,
    pub message: String,
}

impl Operation {
    /// Whether the operation has ended, successfully or not.
    pub fn is_done(&self) -> bool {
        self.status == "DONE"
    }

    /// The reasons of the failure. Empty for a success. A failure without reasons has the HTTP status of the operation as its reason.
    pub fn failures(&self) -> Vec<ErrorEntry> {
        let reasons = self.error.as_ref().map(|error| error.errors.clone()).unwrap_or_default();
        let Some(status) = self.http_error_status_code.filter(|status| reasons.is_empty() && *status >= 400) else {
            return reasons;
        };
        let message = format!("the operation failed with HTTP status {status} {}", self.http_error_message);
        vec![ErrorEntry { code: String::new(), message }]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_instance_is_read_as_google_writes_it() {
        let written = json!({
            "kind": "compute#instance", "id": "4567", "name": "m", "creationTimestamp": "2026-01-07T03:14:15.926-08:00", "status": "RUNNING",
            "tags": {"items": ["a"], "fingerprint": "x="}, "deletionProtection": true,
            "networkInterfaces": [{"networkIP": "10.0.0.2", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}, {"natIP": "203.0.113.2"}]}],
        });
        let read: Instance = serde_json::from_value(written).unwrap();
        assert_eq!(read.creation_timestamp, Some("2026-01-07T11:14:15.926Z".parse().unwrap()));
        assert_eq!((read.tags.items, read.deletion_protection), (vec!["a".to_owned()], true));
        let external: Vec<_> = read.network_interfaces[0].external.iter().map(|one| one.address.as_str()).collect();
        assert_eq!(external, ["", "203.0.113.2"]);
        assert_eq!(serde_json::from_value::<Instance>(json!({})).unwrap(), Instance::default());
    }

    #[test]
    fn an_operation_fails_with_all_its_reasons() {
        let failed = json!({"name": "op", "status": "DONE", "error": {"errors": [{"code": "A", "message": "a"}, {"code": "B"}]}});
        let read: Operation = serde_json::from_value(failed).unwrap();
        let failures = read.failures();
        let codes: Vec<_> = failures.iter().map(|entry| entry.code.as_str()).collect();
        assert!(read.is_done() && codes == ["A", "B"]);
        let silent =
            json!({"name": "op", "status": "DONE", "httpErrorStatusCode": 403, "httpErrorMessage": "FORBIDDEN"});
        let read: Operation = serde_json::from_value(silent).unwrap();
        assert_eq!(read.failures()[0].message, "the operation failed with HTTP status 403 FORBIDDEN");
        let running: Operation = serde_json::from_value(json!({"name": "op", "status": "PENDING"})).unwrap();
        assert!(!running.is_done() && running.failures().is_empty());
    }
}
