//! The `providerSpec` of a class as the driver reads it (spec/providers §4.1).
//!
//! A creation needs the whole [`Spec`], checked by all rules. All other calls need only [`Essentials`], which are read whatever else is wrong with a
//! class: a mistake in an edited class must not keep its machines from being found and deleted.

use std::collections::BTreeMap;

use kube_values::field::Findings;
use machine_api::v1alpha1::MachineClass;
use machine_driver::{Code, OwnerTags, Status, provider_spec};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    AZURE, CLASSES,
    api::{Cloud, MarketplaceImage},
    names::{is_location, is_name},
    resources::text,
    rules::{AVAILABILITY_SET, SCALE_SET, owner_tags},
};

/// The `providerSpec` of a class.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    pub location: String,
    pub resource_group: String,
    pub tags: BTreeMap<String, String>,
    pub subnet_info: SubnetInfo,
    pub properties: Properties,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubnetInfo {
    pub vnet_name: String,
    pub vnet_resource_group: String,
    pub subnet_name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Properties {
    pub hardware_profile: HardwareProfile,
    pub storage_profile: StorageProfile,
    pub os_profile: OsProfile,
    pub network_profile: NetworkProfile,
    pub zone: Option<i64>,
    pub availability_set: Option<Named>,
    pub virtual_machine_scale_set: Option<Named>,
    pub machine_set: Option<MachineSet>,
    #[serde(rename = "identityID")]
    pub identity_id: String,
    pub diagnostics_profile: Option<DiagnosticsProfile>,
    pub security_profile: Option<SecurityProfile>,
    pub capacity_reservation: CapacityReservation,
    pub priority: String,
    pub eviction_policy: String,
    pub billing_profile: BillingProfile,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HardwareProfile {
    pub vm_size: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageProfile {
    pub image_reference: Image,
    pub disk_controller_type: String,
    pub os_disk: OsDisk,
    pub data_disks: Vec<DataDisk>,
}

/// An image, named in one of four ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Image {
    pub id: String,
    pub urn: String,
    #[serde(rename = "communityGalleryImageID")]
    pub community_gallery_image_id: String,
    #[serde(rename = "sharedGalleryImageID")]
    pub shared_gallery_image_id: String,
    pub skip_marketplace_agreement: bool,
}

impl Image {
    /// The image of the marketplace that the urn names. `None` without an urn.
    pub fn marketplace(&self) -> Option<MarketplaceImage<'_>> {
        let mut parts = self.urn.trim().split(':');
        let (publisher, offer, sku, version) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(MarketplaceImage { publisher, offer, sku, version })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OsDisk {
    pub caching: String,
    pub create_option: String,
    #[serde(rename = "diskSizeGB")]
    pub disk_size_gb: i32,
    pub managed_disk: ManagedDisk,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedDisk {
    pub storage_account_type: String,
    pub security_profile: DiskSecurity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskSecurity {
    pub security_encryption_type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataDisk {
    pub name: String,
    pub lun: i64,
    pub caching: String,
    pub storage_account_type: String,
    #[serde(rename = "diskSizeGB")]
    pub disk_size_gb: i32,
    pub image_ref: Option<Image>,
}

impl DataDisk {
    /// The name of the disk, as a part of the names of its resources.
    pub fn key(&self) -> DiskKey {
        DiskKey { name: self.name.trim().to_owned(), lun: self.lun }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OsProfile {
    pub admin_username: String,
    pub linux_configuration: LinuxConfiguration,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinuxConfiguration {
    pub disable_password_authentication: bool,
    pub ssh: Ssh,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ssh {
    pub public_keys: PublicKey,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PublicKey {
    pub path: String,
    pub key_data: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkProfile {
    pub accelerated_networking: Option<bool>,
    pub ipv6: bool,
}

/// A resource that the class names by its id.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Named {
    pub id: String,
}

/// The deprecated form of the two sets.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MachineSet {
    pub id: String,
    pub kind: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DiagnosticsProfile {
    pub enabled: bool,
    #[serde(rename = "storageURI")]
    pub storage_uri: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityProfile {
    pub security_type: String,
    pub uefi_settings: Option<UefiSettings>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UefiSettings {
    pub vtpm_enabled: Option<bool>,
    pub secure_boot_enabled: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityReservation {
    #[serde(rename = "capacityReservationGroupID")]
    pub capacity_reservation_group_id: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BillingProfile {
    pub max_price: Option<f64>,
}

impl Spec {
    /// Reads the spec of a class and checks the rules. A creation needs this, because the class may be older than the webhook.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another provider, for fields of other types, and for all broken rules.
    pub fn checked(class: &MachineClass) -> Result<Self, Status> {
        is_for_azure(class)?;
        if !class.provider_spec.is_object() {
            return Err(Status::new(Code::InvalidArgument, "providerSpec: must be an object"));
        }
        let mut found = Findings::new();
        CLASSES.validate(class, &mut found);
        let as_read = MachineClass { provider_spec: CLASSES.as_go_reads(class), ..MachineClass::default() };
        let mut spec: Self = provider_spec(&as_read)?;
        if found.denies() {
            let message = format!("error in validation of AzureProviderSpec: {}", found.aggregate());
            return Err(Status::new(Code::InvalidArgument, message));
        }
        spec.move_machine_set();
        Ok(spec)
    }

    /// A set in the deprecated form becomes a set of its kind.
    fn move_machine_set(&mut self) {
        let Properties { availability_set, virtual_machine_scale_set, machine_set, .. } = &mut self.properties;
        let Some(MachineSet { id, kind }) = machine_set.take() else { return };
        match kind.as_str() {
            AVAILABILITY_SET => drop(availability_set.get_or_insert(Named { id })),
            SCALE_SET => drop(virtual_machine_scale_set.get_or_insert(Named { id })),
            _ => {}
        }
    }
}

fn is_for_azure(class: &MachineClass) -> Result<(), Status> {
    if class.provider == AZURE {
        return Ok(());
    }
    let message = format!(
        "error validating provider provider: Invalid value: {0:?}: Request for provider {0} cannot be fulfilled. Only {AZURE} provider is \
         supported.",
        class.provider
    );
    Err(Status::new(Code::InvalidArgument, message))
}

/// What distinguishes the data disks of a VM: they become parts of the names of disks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskKey {
    pub name: String,
    pub lun: i64,
}

/// What is needed to find and delete the machines of a class. Fields that are missing or have a mistake are empty.
#[derive(Debug, Default)]
pub struct Essentials {
    pub location: String,
    pub resource_group: String,
    /// `None` if the class names an unknown cloud.
    pub cloud: Option<Cloud>,
    /// The tags that identify the owner of resources. `None` if the class lacks one for the cluster or the role.
    pub owner: Option<OwnerTags>,
    pub disks: Vec<DiskKey>,
}

impl Essentials {
    /// Reads them.
    ///
    /// # Errors
    /// `InvalidArgument` for a class of another provider.
    pub fn of(class: &MachineClass) -> Result<Self, Status> {
        is_for_azure(class)?;
        let spec = CLASSES.as_go_reads(class);
        let cloud = &spec["cloudConfiguration"]["name"];
        let disks = spec["properties"]["storageProfile"]["dataDisks"].as_array();
        let keys = spec["tags"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        Ok(Self {
            location: name(&spec["location"], is_location),
            resource_group: name(&spec["resourceGroup"], is_name),
            cloud: if cloud.is_null() { Some(Cloud::Public) } else { cloud.as_str().and_then(Cloud::named) },
            owner: owner_tags(keys),
            disks: disks.into_iter().flatten().filter_map(disk_key).collect(),
        })
    }
}

/// The text of a field, or an empty text if it can't be a part of a URL.
fn name(field: &Value, is_valid: fn(&str) -> bool) -> String {
    Some(text(field).trim()).filter(|name| is_valid(name)).unwrap_or_default().to_owned()
}

fn disk_key(disk: &Value) -> Option<DiskKey> {
    let lun = disk["lun"].as_i64().filter(|lun| *lun >= 0)?;
    Some(DiskKey { name: name(&disk["name"], is_name), lun })
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
