//! The rules for the fields of a `providerSpec` for Azure (spec/providers §4.2).
//!
//! The kinds and texts of the errors are the same as in the Go original. The paths name the fields as users write them. The schema reports fields of the
//! wrong type, so the rules ignore them.

use std::collections::BTreeMap;

use kube_values::field::{FieldPath, Findings, RuleId};
use machine_api::validation::{CLS_6, Node};
use machine_driver::OwnerTags;

use crate::names::{id_segments, id_type, is_location, is_name};

/// The rule id of all findings in this file.
const RULE: RuleId = CLS_6.id;
/// The begin of the key of the tag that names a cluster.
pub const CLUSTER_TAG: &str = "kubernetes.io-cluster-";
/// The begin of the key of the tag that names a role.
pub const ROLE_TAG: &str = "kubernetes.io-role-";
/// The names of the three clouds.
pub const CLOUDS: [&str; 3] = ["AzureChina", "AzureGovernment", "AzurePublic"];
/// The kind of a machine set that is an availability set.
pub const AVAILABILITY_SET: &str = "availabilityset";
/// The kind of a machine set that is a scale set.
pub const SCALE_SET: &str = "vmo";
const CONTROLLER_TYPES: [&str; 2] = ["NVMe", "SCSI"];
const CACHING: [&str; 3] = ["None", "ReadOnly", "ReadWrite"];
const ENCRYPTION_TYPES: [&str; 3] = ["DiskWithVMGuestState", "NonPersistedTPM", "VMGuestStateOnly"];
const SECURITY_TYPES: [&str; 2] = ["ConfidentialVM", "TrustedLaunch"];
const PRIORITIES: [&str; 2] = ["Regular", "Spot"];
const EVICTION_POLICIES: [&str; 2] = ["Deallocate", "Delete"];
const RESERVATION_GROUPS: &str = "CapacityReservationGroups";
/// The four ways to name an image.
const IMAGES: [&str; 4] = ["id", "urn", "communityGalleryImageID", "sharedGalleryImageID"];
const NAME_DETAIL: &str = "must consist of at most 90 letters, digits and the characters -._()";

/// Runs all rules.
pub fn provider_spec(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.members().is_none() {
        return;
    }
    match spec.get("location").text_or_empty() {
        Some(location) if is_blank(location) => {
            found.required(RULE, path.child("location"), "must provide a location");
        }
        Some(location) if !is_location(location) => {
            let detail = "must consist of at most 90 letters, digits and spaces";
            found.invalid(RULE, path.child("location"), location, detail);
        }
        _ => {}
    }
    named(spec.get("resourceGroup"), || path.child("resourceGroup"), "must provide a resourceGroup", found);
    let cloud = spec.at(&["cloudConfiguration", "name"]);
    one_of(cloud, &CLOUDS, found, || path.child("cloudConfiguration").child("name"));
    subnet(spec.get("subnetInfo"), &path.child("subnetInfo"), found);
    properties(spec.get("properties"), &path.child("properties"), found);
    tags(spec.get("tags"), &path.child("tags"), found);
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// A field that must not be blank.
fn required(field: Node<'_>, path: impl FnOnce() -> FieldPath, detail: &'static str, found: &mut Findings) {
    if field.text_or_empty().is_some_and(is_blank) {
        found.required(RULE, path(), detail);
    }
}

/// A required name, which becomes a part of URLs.
fn named(field: Node<'_>, path: impl Fn() -> FieldPath, detail: &'static str, found: &mut Findings) {
    required(field, &path, detail, found);
    well_formed(field, path, found);
}

/// A name, if there is one.
fn well_formed(field: Node<'_>, path: impl FnOnce() -> FieldPath, found: &mut Findings) {
    if let Some(name) = field.text().filter(|name| !is_blank(name) && !is_name(name)) {
        found.invalid(RULE, path(), name, NAME_DETAIL);
    }
}

/// A word of a fixed list. An empty word passes.
fn one_of(word: Node<'_>, words: &[&str], found: &mut Findings, path: impl FnOnce() -> FieldPath) {
    if let Some(word) = word.text().filter(|word| !word.is_empty() && !words.contains(word)) {
        found.not_supported(RULE, path(), word, words);
    }
}

/// The id of a resource, if there is one.
fn resource_id(id: Node<'_>, path: impl FnOnce() -> FieldPath, found: &mut Findings) {
    if let Some(id) = id.text().filter(|id| !id.is_empty() && id_segments(id).is_none()) {
        found.invalid(RULE, path(), id, format!("invalid Azure resource ID: {id}"));
    }
}

/// A size in GiB.
fn size(field: Node<'_>, path: impl FnOnce() -> FieldPath, detail: &'static str, found: &mut Findings) {
    if let Some(size) = field.integer_or_zero().filter(|size| *size <= 0) {
        found.invalid(RULE, path(), size, detail);
    }
}

fn subnet(subnet: Node<'_>, path: &FieldPath, found: &mut Findings) {
    named(subnet.get("vnetName"), || path.child("vnetName"), "must provide vnetName", found);
    named(subnet.get("subnetName"), || path.child("subnetName"), "must provide subnetName", found);
    well_formed(subnet.get("vnetResourceGroup"), || path.child("vnetResourceGroup"), found);
}

fn properties(properties: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let size = properties.at(&["hardwareProfile", "vmSize"]);
    required(size, || path.child("hardwareProfile").child("vmSize"), "must provide vmSize", found);
    storage(properties.get("storageProfile"), &path.child("storageProfile"), found);
    let user = properties.at(&["osProfile", "adminUsername"]);
    required(user, || path.child("osProfile").child("adminUsername"), "adminUsername must be provided", found);
    placement(properties, path, found);
    resource_id(properties.get("identityID"), || path.child("identityID"), found);
    let security = properties.at(&["securityProfile", "securityType"]);
    one_of(security, &SECURITY_TYPES, found, || path.child("securityProfile").child("securityType"));
    reservation(properties, path, found);
    one_of(properties.get("priority"), &PRIORITIES, found, || path.child("priority"));
    one_of(properties.get("evictionPolicy"), &EVICTION_POLICIES, found, || path.child("evictionPolicy"));
}

fn reservation(properties: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let group = properties.at(&["capacityReservation", "capacityReservationGroupID"]);
    let Some(id) = group.text().filter(|id| !id.is_empty()) else { return };
    let path = path.child("capacityReservation").child("capacityReservationGroupID");
    match id_type(id) {
        None => found.invalid(RULE, path, id, format!("invalid Azure resource ID: {id}")),
        Some(kind) if !kind.eq_ignore_ascii_case(RESERVATION_GROUPS) => {
            let detail = format!("provided resource ID must be of type '{RESERVATION_GROUPS}', got '{kind}'");
            found.invalid(RULE, path, id, detail);
        }
        Some(_) => {}
    }
}

/// A VM has a zone or belongs to a set. The fields of an old machine set count as the set of its kind.
fn placement(properties: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let set = properties.get("machineSet");
    let kind = set.get("kind").text_or_empty();
    if set.members().is_some()
        && let Some(kind) = kind.filter(|kind| ![AVAILABILITY_SET, SCALE_SET].contains(kind))
    {
        let detail = format!("must provide one of {AVAILABILITY_SET}, {SCALE_SET}");
        found.invalid(RULE, path.child("machineSet").child("kind"), kind, detail);
    }
    let is_set =
        |name: &str, old: &str| properties.get(name).is_present() || (set.members().is_some() && kind == Some(old));
    let sets = [is_set("availabilitySet", AVAILABILITY_SET), is_set("virtualMachineScaleSet", SCALE_SET)];
    let given = usize::from(properties.get("zone").is_present()) + sets.into_iter().filter(|is_set| *is_set).count();
    if given != 1 {
        let detail = "Only one of Zone, AvailabilitySet and VirtualMachineScaleSet can be set.";
        let path = path.child("zone|.availabilitySet|.virtualMachineScaleSet");
        found.given(&given).forbidden(RULE, path, detail);
    }
    for name in ["availabilitySet", "virtualMachineScaleSet", "machineSet"] {
        resource_id(properties.get(name).get("id"), || path.child(name).child("id"), found);
    }
}

fn storage(storage: Node<'_>, path: &FieldPath, found: &mut Findings) {
    image(storage.get("imageReference"), &path.child("imageReference"), found);
    let controller = storage.get("diskControllerType");
    one_of(controller, &CONTROLLER_TYPES, found, || path.child("diskControllerType"));
    let (disk, at) = (storage.get("osDisk"), path.child("osDisk"));
    required(disk.get("createOption"), || at.child("createOption"), "must provide createOption", found);
    let detail = "OSDisk size must be positive and greater than 0";
    size(disk.get("diskSizeGB"), || at.child("diskSizeGB"), detail, found);
    one_of(disk.get("caching"), &CACHING, found, || at.child("caching"));
    let encryption = disk.at(&["managedDisk", "securityProfile", "securityEncryptionType"]);
    one_of(encryption, &ENCRYPTION_TYPES, found, || {
        at.child("managedDisk").child("securityProfile").child("securityEncryptionType")
    });
    data_disks(storage.get("dataDisks"), &path.child("dataDisks"), found);
}

fn data_disks(disks: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let mut luns: BTreeMap<i64, usize> = BTreeMap::new();
    for (index, disk) in disks.elements().iter().enumerate() {
        let (disk, path) = (Node::of(disk), path.index(index));
        if disk.members().is_none() {
            continue;
        }
        // Go requires the field, because an absent one has no number.
        match disk.get("lun").integer() {
            Some(lun) if lun >= 0 => *luns.entry(lun).or_default() += 1,
            Some(lun) => found.invalid(RULE, path.child("lun"), lun, "lun must be a positive number"),
            None if disk.get("lun").is_absent() => {
                found.required(RULE, path.child("lun"), "lun must be a positive number");
            }
            None => {}
        }
        let detail = "DataDisk size must be positive and greater than 0";
        size(disk.get("diskSizeGB"), || path.child("diskSizeGB"), detail, found);
        let account = disk.get("storageAccountType");
        required(account, || path.child("storageAccountType"), "must provide storageAccountType", found);
        one_of(disk.get("caching"), &CACHING, found, || path.child("caching"));
        well_formed(disk.get("name"), || path.child("name"), found);
        if disk.get("imageRef").members().is_some() {
            image(disk.get("imageRef"), &path.child("imageRef"), found);
        }
    }
    for (lun, times) in luns.into_iter().filter(|(_, times)| *times > 1) {
        let detail = format!("DataDisk Lun '{lun}' duplicated {times} times, Lun must be unique");
        found.given(&times).invalid(RULE, path.clone(), lun, detail);
    }
}

/// An image is named in one of four ways.
fn image(image: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if image.is_present() && image.members().is_none() {
        return;
    }
    let is_given = |name: &&str| image.get(name).text_or_empty().is_none_or(|text| !is_blank(text));
    let given = IMAGES.iter().filter(|name| is_given(name)).count();
    if given != 1 {
        let path = path.child("id|.urn|.communityGalleryImageID|.sharedGalleryImageID");
        let detail = "must specify only one of image id, community gallery image id, shared gallery image id or an urn";
        found.given(&given).forbidden(RULE, path, detail);
        return;
    }
    resource_id(image.get("id"), || path.child("id"), found);
    if let Some(urn) = image.get("urn").text().filter(|urn| !is_blank(urn)) {
        image_urn(urn, &path.child("urn"), found);
    }
}

fn image_urn(urn: &str, path: &FieldPath, found: &mut Findings) {
    let parts: Vec<&str> = urn.split(':').collect();
    if parts.len() != URN_PARTS.len() {
        let detail = "invalid urn format, urn should be of the format publisher:offer:sku:version";
        found.invalid(RULE, path.clone(), urn, detail);
        return;
    }
    for (name, part) in URN_PARTS.iter().zip(parts) {
        if is_blank(part) {
            found.given(name).invalid(RULE, path.clone(), urn, format!("urn must have {name}"));
        } else if !is_name(part) {
            found.given(name).invalid(RULE, path.clone(), urn, format!("the {name} {NAME_DETAIL}"));
        }
    }
}

/// The parts of an urn.
const URN_PARTS: [&str; 4] = ["publisher", "offer", "sku", "version"];

/// The driver finds the resources of a class, and deletes them, by these tags. Go requires that the key begins with the text.
fn tags(tags: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if tags.is_absent() {
        let detail = format!("Tags starting with '{CLUSTER_TAG}' and '{ROLE_TAG}' must be set");
        found.required(RULE, path.clone(), detail);
        return;
    }
    let Some(members) = tags.members() else { return };
    let keys: Vec<&str> = members.iter().map(|(key, _)| key).collect();
    for prefix in [CLUSTER_TAG, ROLE_TAG] {
        // A key without a name after it can't distinguish two clusters.
        if !keys.iter().any(|key| key.strip_prefix(prefix).is_some_and(|name| !name.is_empty())) {
            let detail = format!("Tag starting with {prefix} must be set");
            found.given(&prefix).required(RULE, path.clone(), detail);
        }
    }
}

/// The owner that tag keys name. `None` unless there is one for the cluster and one for the role.
#[cfg_attr(not(feature = "driver"), allow(dead_code, reason = "only the driver looks for resources"))]
pub fn owner_tags<'k>(keys: impl Iterator<Item = &'k str>) -> Option<OwnerTags> {
    let is_owning = |key: &&str| key.starts_with(CLUSTER_TAG) || key.starts_with(ROLE_TAG);
    let mut owning: Vec<String> = keys.filter(is_owning).map(str::to_owned).collect();
    owning.sort_unstable();
    OwnerTags::of(owning.iter(), CLUSTER_TAG, ROLE_TAG)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
