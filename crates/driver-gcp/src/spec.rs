//! The `providerSpec` of a class as the driver reads it (spec/providers §5.1).

use std::collections::BTreeMap;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Code, OwnerTags, Status, provider_spec};
use serde::{Deserialize, Serialize};

use crate::{
    CLASSES, GCP,
    names::is_name,
    resources::Instance,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

/// The `providerSpec` of a class.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub region: String,
    pub zone: String,
    pub machine_type: String,
    pub can_ip_forward: bool,
    pub deletion_protection: bool,
    pub description: String,
    pub labels: BTreeMap<String, String>,
    pub tags: Vec<String>,
    pub metadata: Vec<MetadataEntry>,
    pub min_cpu_platform: String,
    pub disks: Vec<Disk>,
    pub gpu: Option<Gpu>,
    pub network_interfaces: Vec<NetworkInterface>,
    pub scheduling: Scheduling,
    pub reservation_affinity: Option<ReservationAffinity>,
    pub service_accounts: Vec<ServiceAccount>,
    pub shielded_instance_configuration: Option<ShieldedInstance>,
    pub advanced_machine_features: Option<MachineFeatures>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MetadataEntry {
    pub key: String,
    pub value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Disk {
    pub auto_delete: Option<bool>,
    pub boot: bool,
    pub size_gb: i64,
    #[serde(rename = "type")]
    pub kind: String,
    pub interface: String,
    pub image: String,
    pub labels: BTreeMap<String, String>,
    pub encryption: Option<Encryption>,
    pub provisioned_iops: i64,
    pub provisioned_throughput: i64,
    pub storage_pool: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Encryption {
    pub kms_key_name: String,
    pub kms_key_service_account: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gpu {
    pub accelerator_type: String,
    pub count: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkInterface {
    pub network: String,
    pub subnetwork: String,
    #[serde(rename = "disableExternalIP")]
    pub disable_external_ip: bool,
    pub stack_type: String,
    #[serde(rename = "ipv6accessType")]
    pub ipv6_access_type: String,
    pub ip_cidr_range: String,
    pub subnetwork_range_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scheduling {
    pub automatic_restart: bool,
    pub on_host_maintenance: String,
    pub preemptible: bool,
    pub provisioning_model: String,
    pub instance_termination_action: String,
}

/// It has the fields of GCE, and is sent as it is.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservationAffinity {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consume_reservation_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// It has the fields of GCE, and is sent as it is.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ServiceAccount {
    pub email: String,
    pub scopes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ShieldedInstance {
    pub integrity_monitoring: bool,
    pub secure_boot: bool,
    pub vtpm: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineFeatures {
    pub enable_nested_virtualization: bool,
}

/// What the network tags of a class say about the owner of instances.
#[derive(Clone, Debug)]
pub struct ClassTags {
    clusters: Vec<String>,
    owner: Option<OwnerTags>,
}

impl ClassTags {
    fn of(tags: &[String]) -> Self {
        Self {
            clusters: tags.iter().filter(|tag| OwnerTags::names(tag, CLUSTER_TAG)).cloned().collect(),
            owner: OwnerTags::of(tags.iter(), CLUSTER_TAG, ROLE_TAG),
        }
    }

    /// The tags that identify the owner of an instance. `None` if the class lacks one for the cluster or the role.
    pub const fn owner(&self) -> Option<&OwnerTags> {
        self.owner.as_ref()
    }

    /// Whether the tags name a cluster.
    pub fn name_a_cluster(&self) -> bool {
        !self.clusters.is_empty()
    }

    /// Whether an instance has all tags of the owner.
    pub fn own(&self, instance: &Instance) -> bool {
        self.owner().is_some_and(|owner| owner.own(|key| instance.has_tag(key)))
    }

    /// Whether an instance may be of the cluster of the class, with any role. Tags of a class may have been removed: without a cluster in them, every
    /// instance with tags of a cluster and a role may be.
    pub fn may_share_a_cluster_with(&self, instance: &Instance) -> bool {
        if self.name_a_cluster() {
            return self.clusters.iter().any(|key| instance.has_tag(key));
        }
        OwnerTags::of(instance.tags.items.iter(), CLUSTER_TAG, ROLE_TAG).is_some()
    }
}

/// The fields that are needed to find and delete the instance of a machine.
const FIELDS_OF_MACHINES: [&str; 3] = ["zone", "tags", "deletionProtection"];

impl Spec {
    /// Reads what is needed to find and delete the machines of a class. Other fields are empty, so that a mistake in them does not matter.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, for fields of other types, and for a text that is no zone.
    pub fn read(class: &MachineClass) -> Result<Self, Status> {
        Self::of_fields(class, |field| FIELDS_OF_MACHINES.contains(&field))
    }

    /// Reads the fields that a filter selects.
    fn of_fields(class: &MachineClass, is_read: impl Fn(&str) -> bool) -> Result<Self, Status> {
        if class.provider != GCP {
            let message = format!("Requested for Provider '{}', we only support '{GCP}'", class.provider);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        if !class.provider_spec.is_object() {
            return Err(Status::new(Code::InvalidArgument, "providerSpec: must be an object"));
        }
        let mut fields = CLASSES.as_go_reads(class);
        if let Some(fields) = fields.as_object_mut() {
            fields.retain(|field, _| is_read(field));
        }
        let as_read = MachineClass { provider_spec: fields, ..MachineClass::default() };
        let spec: Self = provider_spec(&as_read)?;
        if spec.zone.is_empty() {
            return Err(Status::new(Code::InvalidArgument, "error while validating Zone zone cannot be empty"));
        }
        // The zone becomes a part of a URL.
        if !is_name(&spec.zone) {
            let message = format!("error while validating Zone {:?} can't be the name of a zone", spec.zone);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }

    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// The errors of [`Self::read`] for all fields, and `InvalidArgument` with all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        let mut found = Findings::new();
        if class.provider == GCP {
            CLASSES.validate(class, &mut found);
        }
        let spec = Self::of_fields(class, |_| true)?;
        if found.denies() {
            let message = format!("error while validating ProviderSpec {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }

    /// What the network tags say about the owner of instances.
    pub fn class_tags(&self) -> ClassTags {
        ClassTags::of(&self.tags)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use machine_driver::Owner;

    use super::*;

    fn class(provider: &str, provider_spec: Value) -> MachineClass {
        MachineClass { provider: provider.to_owned(), provider_spec, ..MachineClass::default() }
    }

    #[rstest]
    #[case::c_01_another_provider("gcp", json!({}), "Requested for Provider 'gcp', we only support 'GCP'")]
    #[case::c_03_a_list("GCP", json!([]), "providerSpec: must be an object")]
    #[case::a_field_of_another_type("GCP", json!({"zone": 4}), "providerSpec.zone: invalid type: integer `4`, expected a string")]
    #[case::no_zone("GCP", json!({}), "error while validating Zone zone cannot be empty")]
    #[case::a_path_as_zone("GCP", json!({"zone": "z/../x"}), "error while validating Zone \"z/../x\" can't be the name of a zone")]
    fn a_class_is_refused(#[case] provider: &str, #[case] spec: Value, #[case] message: &str) {
        let refused = Spec::read(&class(provider, spec)).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
    }

    #[test]
    fn fields_are_read_as_go_reads_them() {
        let spec = json!({
            "APIVersion": "mcm.gardener.cloud/v1alpha1", "ZONE": "z", "description": null, "later": [1],
            "networkInterfaces": [{"network": "n", "disableExternalIp": true}],
            "tags": ["kubernetes-io-cluster-shoot--a", "kubernetes-io-role-node", "x"],
        });
        let spec = Spec::of_fields(&class("GCP", spec), |_| true).unwrap();
        assert_eq!((spec.zone.as_str(), spec.description.as_str()), ("z", ""));
        assert!(spec.network_interfaces[0].disable_external_ip);
        assert_eq!(*spec.class_tags().owner().unwrap().owner(), Owner::new("shoot--a", "node"));
    }

    #[test]
    fn only_a_creation_checks_all_rules() {
        let class = class("GCP", json!({"zone": "z", "machineType": "t", "region": "r"}));
        assert!(Spec::read(&class).is_ok());
        let refused = Spec::checked(&class).unwrap_err();
        assert!(refused.message.starts_with("error while validating ProviderSpec "), "{}", refused.message);
        assert!(refused.message.contains("at least one disk is required"), "{}", refused.message);
    }
}
