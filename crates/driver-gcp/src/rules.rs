//! The rules for the fields of a `providerSpec` for GCE (spec/providers §5.2).
//!
//! The kinds and texts of the errors are the same as in the Go original. The paths name the fields as users write them. The schema reports fields of the
//! wrong type, so the rules ignore them.

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    json::Json,
};
use machine_api::validation::{CLS_6, Node};
use machine_driver::OwnerTags;
use serde_json::Value;

use crate::names::is_name;

/// The rule id of all findings in this file.
const RULE: RuleId = CLS_6.id;
/// The part of a network tag before the name of a cluster.
pub const CLUSTER_TAG: &str = "kubernetes-io-cluster-";
/// The part of a network tag before the name of a role.
pub const ROLE_TAG: &str = "kubernetes-io-role-";
/// The type of a local SSD.
pub const SCRATCH: &str = "SCRATCH";
/// The stack type with IPv6 addresses.
pub const DUAL_STACK: &str = "IPV4_IPV6";
/// The IPv6 access type with addresses of the internet.
pub const EXTERNAL: &str = "EXTERNAL";
/// The metadata key of user data for cloud-init. The driver sets it.
pub const USER_DATA_KEY: &str = "user-data";
/// The metadata key of user data that is a script. The driver sets it for user data that does not begin with `#cloud-config`.
pub const STARTUP_SCRIPT_KEY: &str = "startup-script";
/// The only maintenance policy of VMs with GPUs.
pub const TERMINATE: &str = "TERMINATE";
const MIGRATE: &str = "MIGRATE";
const DISK_INTERFACES: [&str; 2] = ["NVME", "SCSI"];
const SPOT: &str = "SPOT";
const PROVISIONING_MODELS: [&str; 2] = [SPOT, "STANDARD"];
const TERMINATION_ACTIONS: [&str; 2] = ["DELETE", "STOP"];
const RESERVATIONS: [&str; 3] = ["ANY_RESERVATION", "NO_RESERVATION", "SPECIFIC_RESERVATION"];

/// Runs all rules.
pub fn provider_spec(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.members().is_none() {
        return;
    }
    disks(spec.get("disks"), &path.child("disks"), found);
    if is_empty(spec.get("machineType")) {
        found.required(RULE, path.child("machineType"), "machineType is required");
    }
    for (field, missing) in [("region", "region is required"), ("zone", "zone is required")] {
        match spec.get(field).text_or_empty() {
            Some("") => found.required(RULE, path.child(field), missing),
            // Zone and region become parts of URLs and provider ids.
            Some(name) if !is_name(name) => {
                let detail =
                    "must consist of at most 63 lower case letters, digits and hyphens, and begin with a letter";
                found.invalid(RULE, path.child(field), name, detail);
            }
            _ => {}
        }
    }
    network_interfaces(spec.get("networkInterfaces"), &path.child("networkInterfaces"), found);
    metadata(spec.get("metadata"), &path.child("metadata"), found);
    gpu(spec.get("gpu"), &path.child("gpu"), found);
    scheduling(spec, &path.child("scheduling"), found);
    let (affinity, at) = (spec.get("reservationAffinity"), path.child("reservationAffinity"));
    one_of(affinity.get("consumeReservationType"), &RESERVATIONS, found, || at.child("consumeReservationType"));
    tags_prove_ownership(spec.get("tags"), &path.child("tags"), found);
}

/// Whether a field is absent or an empty text. A value of another type is not empty.
fn is_empty(field: Node<'_>) -> bool {
    field.text_or_empty() == Some("")
}

/// Whether a list is absent or empty. A value of another type is not empty.
fn is_empty_list(list: Node<'_>) -> bool {
    list.is_absent() || list.value().is_some_and(|list| list.as_array().is_some_and(<[_]>::is_empty))
}

/// A word of a fixed list. An empty word passes.
fn one_of(word: Node<'_>, words: &[&str], found: &mut Findings, path: impl FnOnce() -> FieldPath) {
    if let Some(word) = word.text().filter(|word| !word.is_empty() && !words.contains(word)) {
        found.not_supported(RULE, path(), word, words);
    }
}

fn disks(disks: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if is_empty_list(disks) {
        found.required(RULE, path.clone(), "at least one disk is required");
    }
    for (index, disk) in disks.elements().iter().enumerate() {
        let (disk, path) = (Node::of(disk), path.index(index));
        if disk.get("type").text() == Some(SCRATCH) {
            let interface = disk.get("interface").text_or_empty();
            if let Some(interface) = interface.filter(|interface| !DISK_INTERFACES.contains(interface)) {
                found.not_supported(RULE, path.child("interface"), interface, &DISK_INTERFACES);
            }
        }
        if disk.get("boot").is_true() && is_empty(disk.get("image")) {
            found.required(RULE, path.child("image"), "image is required for boot disk");
        }
        encryption(disk.get("encryption"), &path.child("encryption"), found);
    }
}

fn encryption(encryption: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if encryption.members().is_none() {
        return;
    }
    let is_blank = |text: &str| text.trim().is_empty();
    if encryption.get("kmsKeyName").text_or_empty().is_some_and(is_blank) {
        found.required(RULE, path.child("kmsKeyName"), "kmsKeyName is required to be specified");
    }
    if let Some(account) =
        encryption.get("kmsKeyServiceAccount").text().filter(|text| !text.is_empty() && is_blank(text))
    {
        let detail = "kmsKeyServiceAccount should either be explicitly specified without spaces or left un-specified to default to the \
                      Compute Service Agent";
        found.invalid(RULE, path.child("kmsKeyServiceAccount"), account, detail);
    }
}

fn network_interfaces(interfaces: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if is_empty_list(interfaces) {
        found.required(RULE, path.clone(), "at least one network interface is required");
    }
    for (index, interface) in interfaces.elements().iter().enumerate() {
        let (interface, path) = (Node::of(interface), path.index(index));
        if is_empty(interface.get("network")) && is_empty(interface.get("subnetwork")) {
            found.required(RULE, path.clone(), "either network or subnetwork or both is required");
        }
        let words = [
            ("stackType", [DUAL_STACK, "IPV4_ONLY"], "StackType must be either IPV4_IPV6 or IPV4_ONLY"),
            ("ipv6accessType", [EXTERNAL, "INTERNAL"], "IPv6 AccessType must be either EXTERNAL or INTERNAL"),
        ];
        for (field, words, detail) in words {
            if let Some(word) = interface.get(field).text().filter(|word| !word.is_empty() && !words.contains(word)) {
                found.invalid(RULE, path.child(field), word, detail);
            }
        }
        if let Some(range) = interface.get("ipCidrRange").text().filter(|range| !range.is_empty())
            && let Err(detail) = mask(range)
        {
            found.invalid(RULE, path.child("ipCidrRange"), range, detail);
        }
    }
}

/// Checks the size of an alias range, such as `/24`.
fn mask(range: &str) -> Result<(), String> {
    let Some(size) = range.strip_prefix('/') else { return Err("CIDR range must start with '/'".to_owned()) };
    match size.parse::<i64>() {
        Ok(0..=32) => Ok(()),
        Ok(_) => Err("CIDR mask size must be between 0 and 32".to_owned()),
        Err(_) => Err(format!("invalid CIDR mask size: {size}")),
    }
}

/// The Go original allows the key of scripts, which only user data for cloud-config leaves free. The class does not show its user data.
fn metadata(metadata: Node<'_>, path: &FieldPath, found: &mut Findings) {
    for (index, entry) in metadata.elements().iter().enumerate() {
        let path = path.index(index).child("key");
        match Node::of(entry).get("key").text() {
            Some(USER_DATA_KEY) => found.given(entry).forbidden(RULE, path, "user-data key is forbidden in metadata"),
            Some(STARTUP_SCRIPT_KEY) => {
                let detail = "no instance is created with it unless the user data begins with #cloud-config";
                found.warn(RULE, path, STARTUP_SCRIPT_KEY, detail);
            }
            _ => {}
        }
    }
}

fn gpu(gpu: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if gpu.members().is_none() {
        return;
    }
    if is_empty(gpu.get("acceleratorType")) {
        found.required(RULE, path.child("acceleratorType"), "accelerator type needs to be provided");
    }
    if let Some(count) = gpu.get("count").integer_or_zero().filter(|count| *count <= 0) {
        found.invalid(RULE, path.child("count"), count, "gpu count must be > 0");
    }
}

fn scheduling(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let scheduling = spec.get("scheduling");
    let maintenance = path.child("onHostMaintenance");
    match scheduling.get("onHostMaintenance").text_or_empty() {
        Some(MIGRATE) if spec.get("gpu").members().is_some() => {
            let detail = "liveMigration is not allowed for VMs with gpu attached, use \"TERMINATE\" instead";
            found.invalid(RULE, maintenance, MIGRATE, detail);
        }
        Some(MIGRATE | TERMINATE) | None => {}
        Some(policy) => found.not_supported(RULE, maintenance, policy, &[MIGRATE, TERMINATE]),
    }
    one_of(scheduling.get("provisioningModel"), &PROVISIONING_MODELS, found, || path.child("provisioningModel"));
    may_be_stopped(scheduling, path, found);
    let action = scheduling.get("instanceTerminationAction");
    one_of(action, &TERMINATION_ACTIONS, found, || path.child("instanceTerminationAction"));
}

/// GCE refuses instances that it may stop and that must run on. This is a warning, because the Go driver creates classes with these fields.
fn may_be_stopped(scheduling: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let is_spot = scheduling.get("provisioningModel").text() == Some(SPOT);
    if !is_spot && !scheduling.get("preemptible").is_true() {
        return;
    }
    if scheduling.get("automaticRestart").is_true() {
        let detail = "GCE refuses it for preemptible and spot instances";
        found.warn(RULE, path.child("automaticRestart"), Value::Bool(true), detail);
    }
    if scheduling.get("onHostMaintenance").text() == Some(MIGRATE) {
        let detail = "GCE refuses it for preemptible and spot instances, use \"TERMINATE\" instead";
        found.warn(RULE, path.child("onHostMaintenance"), MIGRATE, detail);
    }
}

/// The driver finds the instances of a class, and deletes them, by these tags.
fn tags_prove_ownership(tags: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if !tags.is_absent() && tags.value().is_none_or(|tags| tags.as_array().is_none()) {
        return;
    }
    let tags: Vec<String> = tags.elements().iter().filter_map(Json::as_str).map(str::to_owned).collect();
    if OwnerTags::of(tags.iter(), CLUSTER_TAG, ROLE_TAG).is_none() {
        let detail = format!("tags must contain entries starting with {CLUSTER_TAG} and {ROLE_TAG}");
        found.given(&tags).required(RULE, path.clone(), detail);
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
