//! The `providerSpec` of a class as the driver reads it.

use std::collections::BTreeMap;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Code, OwnerTags, Status, provider_spec};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    ALICLOUD, CLASSES,
    names::is_name,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

/// The `providerSpec` of a class.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    #[serde(rename = "imageID")]
    pub image_id: String,
    pub instance_type: String,
    pub region: String,
    #[serde(rename = "zoneID")]
    pub zone_id: String,
    #[serde(rename = "securityGroupID")]
    pub security_group_id: String,
    #[serde(rename = "vSwitchID")]
    pub v_switch_id: String,
    #[serde(rename = "privateIPAddress")]
    pub private_ip_address: String,
    pub system_disk: Option<SystemDisk>,
    pub data_disks: Vec<DataDisk>,
    pub instance_charge_type: String,
    pub internet_charge_type: String,
    pub internet_max_bandwidth_in: Option<i64>,
    pub internet_max_bandwidth_out: Option<i64>,
    pub spot_strategy: String,
    #[serde(rename = "IoOptimized")]
    pub io_optimized: String,
    pub tags: BTreeMap<String, String>,
    pub key_pair_name: String,
}

/// The disk with the operating system. It is always deleted with its instance.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct SystemDisk {
    pub category: String,
    /// GiB.
    pub size: i64,
}

/// Another disk.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataDisk {
    pub name: String,
    pub category: String,
    pub description: String,
    pub encrypted: bool,
    pub delete_with_instance: Option<bool>,
    /// GiB.
    pub size: i64,
}

impl Spec {
    /// Reads what is needed to find and delete the machines of a class: region and tags. Other fields are empty, so that a mistake in them does not
    /// matter. A region or a tag of another type is read as absent: the machines of the class may say themselves where their instances are.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver.
    pub fn of_machines(class: &MachineClass) -> Result<Self, Status> {
        check_provider(class)?;
        let fields = CLASSES.as_go_reads(class);
        let region = fields.get("region").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tags = fields.get("tags").and_then(Value::as_object).into_iter().flatten();
        let tags = tags.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        Ok(Self { region, tags, ..Self::default() })
    }

    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver, for fields of other types, and with all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        check_provider(class)?;
        if !class.provider_spec.is_object() {
            return Err(Status::new(Code::InvalidArgument, "providerSpec: must be an object"));
        }
        let as_read = MachineClass { provider_spec: CLASSES.as_go_reads(class), ..MachineClass::default() };
        let spec: Self = provider_spec(&as_read)?;
        let mut found = Findings::new();
        CLASSES.validate(class, &mut found);
        if found.denies() {
            let message = format!("error while validating ProviderSpec {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }

    /// The region, if it can be the name of one.
    pub fn valid_region(&self) -> Option<&str> {
        Some(self.region.as_str()).filter(|region| is_name(region))
    }

    /// The keys of the tags that identify the owner of an instance. `None` if the class lacks one for the cluster or the role.
    pub fn owner_tags(&self) -> Option<OwnerTags> {
        OwnerTags::of(self.tags.keys(), CLUSTER_TAG, ROLE_TAG)
    }

    /// The tags of the owner, with their values. `None` if the class lacks one for the cluster or the role.
    pub fn tags_of_owner(&self) -> Option<BTreeMap<String, String>> {
        let owner = self.owner_tags()?;
        let tag = |key: &str| Some((key.to_owned(), self.tags.get(key)?.clone()));
        Some(owner.keys().filter_map(tag).collect())
    }
}

fn check_provider(class: &MachineClass) -> Result<(), Status> {
    if class.provider == ALICLOUD {
        return Ok(());
    }
    let message = format!("requested for Provider '{}', we only support '{ALICLOUD}'", class.provider);
    Err(Status::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use machine_driver::Owner;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn class(provider: &str, provider_spec: Value) -> MachineClass {
        MachineClass { provider: provider.to_owned(), provider_spec, ..MachineClass::default() }
    }

    #[rstest]
    #[case::c_01_another_provider("alicloud", json!({}), "requested for Provider 'alicloud', we only support 'Alicloud'")]
    #[case::c_03_a_list("Alicloud", json!([]), "providerSpec: must be an object")]
    #[case::a_field_of_another_type("Alicloud", json!({"imageID": 4}), "providerSpec.imageID: invalid type: integer `4`, expected a string")]
    fn a_class_is_refused(#[case] provider: &str, #[case] spec: Value, #[case] message: &str) {
        let refused = Spec::checked(&class(provider, spec)).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (Code::InvalidArgument, message));
    }

    #[test]
    fn only_a_creation_checks_all_rules() {
        let refused = Spec::checked(&class("Alicloud", json!({"region": "cn-x"}))).unwrap_err();
        assert!(refused.message.starts_with("error while validating ProviderSpec "), "{}", refused.message);
        assert!(refused.message.contains("ImageID is required"), "{}", refused.message);
        assert!(Spec::of_machines(&class("Alicloud", json!({"region": "cn-x"}))).is_ok());
    }

    #[test]
    fn fields_are_read_as_go_reads_them() {
        let spec = json!({"REGION": "cn-x", "iooptimized": "optimized", "zoneID": null, "later": [1], "dataDisks": [{"SIZE": 4}]});
        let read: Spec = provider_spec(&class("", CLASSES.as_go_reads(&class("Alicloud", spec)))).unwrap();
        assert_eq!((read.region.as_str(), read.io_optimized.as_str()), ("cn-x", "optimized"));
        assert_eq!((read.zone_id.as_str(), read.data_disks[0].size), ("", 4));
    }

    #[rstest]
    #[case::both(json!({"kubernetes.io/cluster/shoot--a": "1", "kubernetes.io/role/node": "2", "x": "3"}), Some(2))]
    #[case::no_role(json!({"kubernetes.io/cluster/shoot--a": "1"}), None)]
    #[case::no_map(json!([1]), None)]
    #[case::a_value_of_another_type(json!({"kubernetes.io/cluster/shoot--a": 1, "kubernetes.io/role/node": "1"}), None)]
    fn y10_machines_are_found_also_if_the_class_is_broken(#[case] tags: Value, #[case] expected: Option<usize>) {
        let class = class("Alicloud", json!({"region": 7, "tags": tags, "dataDisks": "x"}));
        let read = Spec::of_machines(&class).unwrap();
        assert_eq!(read.valid_region(), None);
        assert_eq!(read.tags_of_owner().map(|tags| tags.len()), expected);
        if expected.is_some() {
            assert_eq!(*read.owner_tags().unwrap().owner(), Owner::new("shoot--a", "node"));
        }
        for other in [json!([]), json!("x"), Value::Null] {
            assert!(Spec::of_machines(&MachineClass { provider_spec: other, ..class.clone() }).is_ok());
        }
    }
}
