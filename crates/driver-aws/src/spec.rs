//! The `providerSpec` of a class as the driver reads it (spec/providers §3.1).
//!
//! The fields `ebsOptimized`, `monitoring`, `noDevice` and `virtualName` are missing here: they are accepted and never sent.

#![allow(clippy::struct_field_names, reason = "the fields have the names of providerSpec")]

use std::collections::BTreeMap;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Code, OwnerTags, Status, provider_spec};
use serde::Deserialize;

use crate::{
    AWS, CLASSES, regions,
    rules::{CLUSTER_TAG, ROLE_TAG},
};

/// The `providerSpec` of a class.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub ami: String,
    pub region: String,
    pub machine_type: String,
    pub iam: InstanceProfile,
    pub block_devices: Vec<BlockDevice>,
    pub network_interfaces: Vec<NetworkInterface>,
    pub tags: BTreeMap<String, String>,
    pub key_name: Option<String>,
    pub src_and_dst_checks_enabled: Option<bool>,
    pub capacity_reservation: Option<CapacityReservation>,
    pub instance_market_options: Option<MarketOptions>,
    pub spot_price: Option<String>,
    pub instance_metadata_options: Option<MetadataOptions>,
    pub cpu_options: Option<CpuOptions>,
    pub placement: Option<Placement>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct InstanceProfile {
    pub name: String,
    pub arn: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BlockDevice {
    pub device_name: String,
    pub ebs: Volume,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub volume_type: String,
    pub volume_size: i32,
    pub iops: i32,
    pub throughput: Option<i32>,
    pub encrypted: bool,
    pub delete_on_termination: Option<bool>,
    #[serde(rename = "snapshotID")]
    pub snapshot_id: Option<String>,
    #[serde(rename = "kmsKeyID")]
    pub kms_key_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkInterface {
    #[serde(rename = "subnetID")]
    pub subnet_id: String,
    #[serde(rename = "securityGroupIDs")]
    pub security_group_ids: Vec<String>,
    #[serde(rename = "associatePublicIPAddress")]
    pub associate_public_ip_address: Option<bool>,
    pub delete_on_termination: Option<bool>,
    pub description: Option<String>,
    pub device_index: Option<i32>,
    pub network_card_index: Option<i32>,
    pub interface_type: Option<String>,
    pub ipv6_address_count: Option<i32>,
    pub primary_ipv6: Option<bool>,
    pub ipv6_prefix_count: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityReservation {
    pub capacity_reservation_preference: Option<String>,
    pub capacity_reservation_id: Option<String>,
    pub capacity_reservation_resource_group_arn: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MarketOptions {
    pub market_type: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MetadataOptions {
    pub http_endpoint: Option<String>,
    pub http_tokens: Option<String>,
    pub http_put_response_hop_limit: Option<i32>,
    pub http_protocol_ipv6: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CpuOptions {
    pub core_count: Option<i32>,
    pub threads_per_core: Option<i32>,
    pub amd_sev_snp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    pub group_id: Option<String>,
    pub tenancy: Option<String>,
    pub host_id: Option<String>,
    pub partition_number: Option<i32>,
    pub affinity: Option<String>,
}

impl Spec {
    /// Reads the spec of a class. The rules are checked by [`Self::checked`] only.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another driver and for an invalid region, `Internal` for fields of other types, as in the Go driver.
    pub fn read(class: &MachineClass) -> Result<Self, Status> {
        if class.provider != AWS {
            let message = format!("requested for Provider '{}', we only support '{AWS}'", class.provider);
            return Err(Status::new(Code::InvalidArgument, message));
        }
        if !class.provider_spec.is_object() {
            return Err(Status::new(Code::Internal, "providerSpec: must be an object"));
        }
        let as_read = MachineClass { provider_spec: CLASSES.as_go_reads(class), ..MachineClass::default() };
        let spec: Self = provider_spec(&as_read).map_err(|status| Status { code: Code::Internal, ..status })?;
        check_region(&spec.region)?;
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
        if found.denies() {
            let message = format!("error while validating ProviderSpec {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        Ok(spec)
    }

    /// The keys of the tags that identify the owner of an instance. `None` if one of them is missing.
    pub fn owner_tags(&self) -> Option<OwnerTags> {
        OwnerTags::of(self.tags.keys(), CLUSTER_TAG, ROLE_TAG)
    }
}

/// Refuses an invalid region. The region becomes a part of a host name.
fn check_region(region: &str) -> Result<(), Status> {
    if regions::is_region(region) {
        return Ok(());
    }
    Err(Status::new(Code::InvalidArgument, format!("providerSpec.region: {region:?} can't be a region")))
}

/// A text that is not empty.
pub fn filled(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
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
    #[case::c_01_another_provider("aws", json!({}), Code::InvalidArgument, "requested for Provider 'aws', we only support 'AWS'")]
    #[case::c_03_a_list("AWS", json!([]), Code::Internal, "providerSpec: must be an object")]
    #[case::a_field_of_another_type("AWS", json!({"region": "eu-west-1", "ami": 4}), Code::Internal, "providerSpec.ami: invalid type: integer `4`, expected a string")]
    #[case::a_host_as_region("AWS", json!({"region": "x.evil.example/"}), Code::InvalidArgument, "providerSpec.region: \"x.evil.example/\" can't be a region")]
    fn a_class_is_refused(#[case] provider: &str, #[case] spec: Value, #[case] code: Code, #[case] message: &str) {
        let refused = Spec::read(&class(provider, spec)).unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (code, message));
    }

    #[test]
    fn fields_are_read_as_go_reads_them() {
        let spec = json!({
            "REGION": "eu-west-1", "ami": null, "later": [1],
            "networkInterfaces": [{"subnetId": "s", "securityGroupIDs": ["g"]}],
            "tags": {"kubernetes.io/cluster/shoot--a": "1", "kubernetes.io/role/node": "1", "x": "y"},
        });
        let spec = Spec::read(&class("AWS", spec)).unwrap();
        assert_eq!((spec.region.as_str(), spec.ami.as_str()), ("eu-west-1", ""));
        assert_eq!(spec.network_interfaces[0].subnet_id, "s");
        assert_eq!(*spec.owner_tags().unwrap().owner(), Owner::new("shoot--a", "node"));
    }
}
