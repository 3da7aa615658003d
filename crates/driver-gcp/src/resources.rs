//! The parts of GCE's resources that the driver reads. A field that is absent has its empty value, because GCE leaves empty fields out.

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

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Warning {
    pub code: String,
    pub message: String,
}

/// A change that GCE carries out after its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Operation {
    pub name: String,
    pub status: String,
    pub error: Option<OperationError>,
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

    /// The reasons of the failure. Empty for a success.
    pub fn failures(&self) -> &[ErrorEntry] {
        self.error.as_ref().map_or(&[], |error| &error.errors)
    }
}
