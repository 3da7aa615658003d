//! The `providerSpec` of a class as the driver reads it (spec/providers §6.1).

#![allow(clippy::struct_field_names, reason = "the fields have the names of providerSpec")]

use std::collections::{BTreeMap, BTreeSet};

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Code, OwnerTags, Status, provider_spec};
use serde::Deserialize;

use crate::{
    API_VERSION, CLASSES, KIND, OPENSTACK,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    api_version: String,
    kind: String,
    spec: Spec,
}

/// The `spec` in the `providerSpec` of a class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    #[serde(rename = "imageID")]
    pub image_id: String,
    pub image_name: String,
    pub region: String,
    pub availability_zone: String,
    pub flavor_name: String,
    pub key_name: String,
    pub security_groups: Vec<String>,
    pub tags: BTreeMap<String, String>,
    #[serde(rename = "networkID")]
    pub network_id: String,
    pub networks: Vec<Network>,
    #[serde(rename = "subnetID")]
    subnet_id: String,
    #[serde(rename = "subnetIDs")]
    subnet_ids: Vec<String>,
    pod_network_cidr: String,
    #[serde(rename = "podNetworkCIDRs")]
    pod_network_cidrs: Vec<String>,
    pub root_disk_size: i64,
    pub root_disk_type: String,
    pub use_config_drive: Option<bool>,
    #[serde(rename = "serverGroupID")]
    pub server_group_id: String,
}

/// A network of a class, named by id or by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    pub id: String,
    pub name: String,
    pub pod_network: bool,
}

/// The keys that identify an owner: those of clusters and roles. `None` if there is no key of a cluster or none of a role.
pub fn owner_tags<'t>(keys: impl Iterator<Item = &'t String>) -> Option<OwnerTags> {
    OwnerTags::of(keys, CLUSTER_TAG, ROLE_TAG)
}

/// The keys of clusters among these keys.
pub fn keys_of_clusters<'t>(keys: impl Iterator<Item = &'t String>) -> Vec<&'t str> {
    keys.map(String::as_str).filter(|key| OwnerTags::names(key, CLUSTER_TAG)).collect()
}

/// The disk that a server boots from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootDisk<'s> {
    /// The disk of the flavor.
    OfFlavor,
    /// A volume of this size in GiB. Nova makes it from the image and deletes it with the server.
    MadeByNova(i64),
    /// A volume that the driver makes.
    Own {
        /// The size in GiB.
        size: i64,
        /// The volume type.
        kind: &'s str,
    },
}

impl Spec {
    /// Reads the spec of a class. The rules are checked by [`Self::checked`] only.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, for another kind, and for fields of other types.
    pub fn read(class: &MachineClass) -> Result<Self, Status> {
        let refused = |message: String| Err(Status::new(Code::InvalidArgument, message));
        if class.provider != OPENSTACK {
            return refused(format!("requested for Provider '{}', we only support '{OPENSTACK}'", class.provider));
        }
        if !class.provider_spec.is_object() {
            return refused("failed to decode provider spec: providerSpec: must be an object".to_owned());
        }
        let as_read = MachineClass { provider_spec: CLASSES.as_go_reads(class), ..MachineClass::default() };
        let Config { api_version, kind, spec } = provider_spec(&as_read).map_err(|status| Status {
            message: format!("failed to decode provider spec: {}", status.message),
            ..status
        })?;
        if (api_version.as_str(), kind.as_str()) != (API_VERSION, KIND) {
            return refused(format!(
                "failed to decode provider spec: providerSpec: kind {kind:?} of {api_version:?} is not {KIND:?} of {API_VERSION:?}"
            ));
        }
        Ok(spec)
    }

    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// The errors of [`Self::read`], and `InvalidArgument` with all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        let spec = Self::read(class)?;
        let mut found = Findings::new();
        CLASSES.validate(class, &mut found);
        if found.denies() { Err(Status::new(Code::InvalidArgument, found.aggregate())) } else { Ok(spec) }
    }

    /// The keys that identify the owner: in the metadata of servers and volumes, and as tags of ports.
    ///
    /// # Errors
    /// `InvalidArgument` if a key is missing, because servers can't be found without them.
    pub fn owner_tags(&self) -> Result<OwnerTags, Status> {
        owner_tags(self.tags.keys()).ok_or_else(|| {
            Status::new(
                Code::InvalidArgument,
                format!("providerSpec.spec.tags: tags of the form {CLUSTER_TAG}**** and {ROLE_TAG}**** are required"),
            )
        })
    }

    /// The metadata that identifies the owner, with the values in the class.
    ///
    /// # Errors
    /// Those of [`Self::owner_tags`].
    pub fn owner_metadata(&self) -> Result<BTreeMap<&str, &str>, Status> {
        let owner = self.owner_tags()?;
        let is_of_owner = |key: &str| owner.keys().any(|known| known == key);
        let tags = self.tags.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Ok(tags.filter(|(key, _)| is_of_owner(key)).collect())
    }

    /// The subnets of the server's port, without duplicates.
    pub fn subnets(&self) -> BTreeSet<&str> {
        self.subnet_ids.iter().chain([&self.subnet_id]).map(String::as_str).filter(|id| !id.is_empty()).collect()
    }

    /// Whether the driver makes the server's port. Otherwise Nova makes the ports.
    pub fn has_own_port(&self) -> bool {
        !self.network_id.is_empty() && !self.subnets().is_empty()
    }

    /// The networks of pods, without duplicates.
    pub fn pod_networks(&self) -> BTreeSet<&str> {
        let all = self.pod_network_cidrs.iter().chain([&self.pod_network_cidr]);
        all.map(String::as_str).filter(|cidr| !cidr.is_empty()).collect()
    }

    /// The disk that the server boots from.
    pub fn root_disk(&self) -> RootDisk<'_> {
        match (self.root_disk_size, self.root_disk_type.as_str()) {
            (..=0, _) => RootDisk::OfFlavor,
            (size, "") => RootDisk::MadeByNova(size),
            (size, kind) => RootDisk::Own { size, kind },
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn class(provider: &str, provider_spec: Value) -> MachineClass {
        MachineClass { provider: provider.to_owned(), provider_spec, ..MachineClass::default() }
    }

    fn of_kind(spec: &Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "spec": spec})
    }

    #[rstest]
    #[case::c_01_another_provider("openstack", json!({}), "requested for Provider 'openstack', we only support 'OpenStack'")]
    #[case::c_03_a_list("OpenStack", json!([]), "failed to decode provider spec: providerSpec: must be an object")]
    #[case::o_08_no_kind("OpenStack", json!({"apiVersion": API_VERSION, "spec": {}}), "failed to decode provider spec: providerSpec: kind \"\" of")]
    #[case::another_version("OpenStack", json!({"apiVersion": "v1", "kind": KIND}), "failed to decode provider spec: providerSpec: kind \"MachineProviderConfig\" of \"v1\"")]
    #[case::another_type("OpenStack", of_kind(&json!({"region": 4})), "failed to decode provider spec: providerSpec.spec.region: invalid type: integer `4`")]
    fn a_class_is_refused(#[case] provider: &str, #[case] spec: Value, #[case] begins: &str) {
        let refused = Spec::read(&class(provider, spec)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(refused.message.starts_with(begins), "{}", refused.message);
    }

    #[test]
    fn deprecated_fields_count_beside_their_successors() {
        let spec = Spec::read(&class(
            "OpenStack",
            of_kind(&json!({
                "networkID": "n", "subnetID": "s-2", "subnetIDs": ["s-3", "s-1", "s-2"], "rootDiskSize": 5, "rootDiskType": null,
                "podNetworkCidr": "10.0.0.0/8", "podNetworkCIDRs": ["100.64.0.0/10", "10.0.0.0/8"], "fieldOfALaterVersion": 1,
                "tags": {"kubernetes.io-cluster-shoot--a--b": "1", "kubernetes.io-role-node": "1"},
            })),
        ))
        .unwrap();
        assert!(spec.has_own_port());
        assert_eq!(spec.subnets().into_iter().collect::<Vec<_>>(), ["s-1", "s-2", "s-3"]);
        assert_eq!(spec.pod_networks().into_iter().collect::<Vec<_>>(), ["10.0.0.0/8", "100.64.0.0/10"]);
        assert_eq!(spec.root_disk(), RootDisk::MadeByNova(5));
        assert_eq!(*spec.owner_tags().unwrap().owner(), machine_driver::Owner::new("shoot--a--b", "node"));
    }
}
