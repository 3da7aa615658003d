//! The rules for the fields of a `providerSpec` for EC2 (spec/providers §3.2).
//!
//! The kinds and texts of the errors are those of the Go original. So are the paths, except that a path inside a
//! network interface contains the index of the interface. The schema reports fields of the wrong type, so the rules
//! ignore them.

use std::collections::BTreeMap;

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    json::Members,
};
use machine_api::validation::{CLS_6, Node};
use machine_driver::OwnerTags;
use serde_json::{Value, json};

use crate::regions::{is_known, is_region};

/// The rule id of all findings here.
const RULE: RuleId = CLS_6.id;
const ROOT_DEVICE: &str = "/root";
const DATA_DEVICE: &str = "^/dev/(sd[a-z]|xvd[a-c][a-z]?)$";
const VOLUME_TYPES: [&str; 6] = ["gp2", "gp3", "io1", "st1", "sc1", "standard"];
const INTERFACE_TYPES: [&str; 3] = ["interface", "efa", "efa-only"];
const MARKET_TYPES: [&str; 3] = ["spot", "capacity-block", "interruptible-capacity-reservation"];
/// The part of a tag's key before the name of a cluster.
pub const CLUSTER_TAG: &str = "kubernetes.io/cluster/";
/// The part of a tag's key before the name of a role.
pub const ROLE_TAG: &str = "kubernetes.io/role/";

/// Runs all rules.
pub fn provider_spec(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.members().is_none() {
        return;
    }
    for (field, detail) in
        [("ami", "AMI is required"), ("region", "Region is required"), ("machineType", "MachineType is required")]
    {
        if spec.get(field).text_or_empty() == Some("") {
            found.required(RULE, path.child(field), detail);
        }
    }
    // It becomes a part of the host that requests are sent to.
    match spec.get("region").text() {
        Some(region) if !region.is_empty() && !is_region(region) => {
            let detail = "must consist of at most 40 lower case letters, digits and hyphens between them";
            found.invalid(RULE, path.child("region"), region, detail);
        }
        Some(region) if !region.is_empty() && !is_known(region) => {
            let detail = format!("no region is known by the name {region:?}; a zone is no region");
            found.warn(RULE, path.child("region"), region, detail);
        }
        _ => {}
    }
    instance_profile_is_named_once(spec.get("iam"), &path.child("iam"), found);
    block_devices(spec.get("blockDevices"), &path.child("blockDevices"), found);
    capacity_reservation(spec.get("capacityReservation"), &path.child("capacityReservation"), found);
    network_interfaces(spec.get("networkInterfaces"), &path.child("networkInterfaces"), found);
    tags_prove_ownership(spec.get("tags"), path, found);
    one_of(spec.get("instanceMarketOptions").get("marketType"), "", &MARKET_TYPES, found, || {
        path.child("instanceMarketOptions").child("marketType")
    });
    // The original's path, not the field's name.
    metadata_options(spec.get("instanceMetadataOptions"), &path.child("instanceMetadata"), found);
    cpu_options(spec.get("cpuOptions"), &path.child("cpuOptions"), found);
    placement(spec.get("placement"), &path.child("placement"), found);
}

/// The error names no value, so that what was there is noted for the comparison of updates.
fn required(path: FieldPath, detail: impl std::fmt::Display, looked_at: &Value, found: &mut Findings) {
    found.given(looked_at).required(RULE, path, detail);
}

/// A word of a fixed list; `default` passes too.
fn one_of(word: Node<'_>, default: &str, words: &[&str], found: &mut Findings, path: impl FnOnce() -> FieldPath) {
    if let Some(word) = word.text().filter(|word| *word != default && !words.contains(word)) {
        found.not_supported(RULE, path(), word, words);
    }
}

fn instance_profile_is_named_once(iam: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (Some(name), Some(arn)) = (iam.get("name").text_or_empty(), iam.get("arn").text_or_empty()) else { return };
    if name.is_empty() == arn.is_empty() {
        let value = json!({"name": name, "arn": arn});
        found.invalid(RULE, path.clone(), value, "either IAM Name or ARN must be set");
    }
}

fn block_devices(devices: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let devices = devices.elements();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, device) in devices.iter().enumerate() {
        let (device, path) = (Node::of(device), path.index(index));
        let name = device.get("deviceName").text_or_empty().unwrap_or_default();
        *names.entry(name).or_default() += 1;
        if devices.len() > 1 && name != ROOT_DEVICE && !is_data_device(name) {
            let detail = format!(
                "Device name given: {name} does not match the expected pattern (regex used for validation is '{DATA_DEVICE}')"
            );
            found.invalid(RULE, path.child("deviceName"), name, detail);
        }
        volume(device.get("ebs"), &path.child("ebs"), found);
    }
    let roots = names.get(ROOT_DEVICE).copied().unwrap_or_default();
    if roots > 1 || (roots == 0 && devices.len() > 1) {
        required(path.clone(), "Only one device can be specified as root", &json!([roots, devices.len()]), found);
    }
    for (name, count) in names.into_iter().filter(|(_, count)| *count > 1) {
        let detail = format!("Device name '{name}' duplicated {count} times, DeviceName must be unique");
        required(path.clone(), detail, &json!([name, count]), found);
    }
}

/// `/dev/sd[a-z]`, or `/dev/xvd[a-c]` with at most one more letter.
fn is_data_device(name: &str) -> bool {
    match name.strip_prefix("/dev/").map(str::as_bytes) {
        Some([b'x', b'v', b'd', b'a'..=b'c']) => true,
        Some([b's', b'd', last] | [b'x', b'v', b'd', b'a'..=b'c', last]) => last.is_ascii_lowercase(),
        _ => false,
    }
}

fn volume(ebs: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let volume_type = ebs.get("volumeType").text_or_empty();
    if let Some(name) = volume_type.filter(|name| !VOLUME_TYPES.contains(name)) {
        let detail = format!("Please mention a valid EBS volume type: [{}]", VOLUME_TYPES.join(" "));
        required(path.child("volumeType"), detail, &Value::from(name), found);
    }
    if let Some(size) = ebs.get("volumeSize").integer_or_zero().filter(|size| *size <= 0) {
        required(path.child("volumeSize"), "Please mention a valid EBS volume size", &Value::from(size), found);
    }
    if let Some(iops) = ebs.get("iops").integer_or_zero()
        && (iops < 0 || (iops == 0 && volume_type == Some("io1")))
    {
        required(path.child("iops"), "Please mention a valid EBS volume iops", &Value::from(iops), found);
    }
    if let Some(throughput) = ebs.get("throughput").integer().filter(|throughput| *throughput <= 0) {
        found.invalid(RULE, path.child("throughput"), throughput, "Throughput should be a positive value");
    }
}

fn capacity_reservation(reservation: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let preference = reservation.get("capacityReservationPreference").text_or_empty();
    let by_id = reservation.get("capacityReservationId").is_present();
    let by_group = reservation.get("capacityReservationResourceGroupArn").is_present();
    let detail = match preference {
        Some("") if by_id && by_group => {
            "CapacityReservationResourceGroupArn or CapacityReservationId are optional but only one should be used"
        }
        Some("") | None => return,
        Some(_) if by_id || by_group => {
            "CapacityReservationPreference cannot be set when also providing a CapacityReservationID or CapacityReservationResourceGroupArn"
        }
        Some(_) => return,
    };
    required(path.clone(), detail, &reservation.value_or_null(), found);
}

fn network_interfaces(interfaces: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if interfaces.is_absent() || interfaces.value().is_some_and(|list| list.as_array().is_some_and(<[_]>::is_empty)) {
        found.required(RULE, FieldPath::new(format!("{path}.")), "Mention at least one NetworkInterface");
    }
    for (index, interface) in interfaces.elements().iter().enumerate() {
        network_interface(Node::of(interface), index, &path.index(index), found);
    }
}

fn network_interface(interface: Node<'_>, index: usize, path: &FieldPath, found: &mut Findings) {
    if interface.get("subnetID").text_or_empty() == Some("") {
        found.required(RULE, path.child("subnetID"), "SubnetID is required");
    }
    let groups = interface.get("securityGroupIDs");
    if groups.is_absent() || groups.value().is_some_and(|list| list.as_array().is_some_and(<[_]>::is_empty)) {
        found.required(RULE, path.child("securityGroupIDs"), "Mention at least one securityGroupID");
    }
    for (position, group) in groups.elements().iter().enumerate() {
        if group == "" {
            let detail =
                format!("securityGroupIDs cannot be blank for networkInterface:{index} securityGroupID:{position}");
            found.required(RULE, path.child("securityGroupIDs"), detail);
        }
    }
    one_of(interface.get("interfaceType"), "", &INTERFACE_TYPES, found, || path.child("interfaceType"));
    for field in ["deviceIndex", "networkCardIndex"] {
        if let Some(number) = interface.get(field).integer().filter(|number| *number < 0) {
            found.invalid(RULE, path.child(field), number, "must be >= 0");
        }
    }
}

/// VMs are found again, and deleted, by these tags.
fn tags_prove_ownership(tags: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if !tags.is_absent() && tags.members().is_none() {
        return;
    }
    let keys = || tags.members().into_iter().flat_map(Members::iter).map(|(key, _)| key);
    let names_cluster = |key: &str| OwnerTags::names(key, CLUSTER_TAG);
    let has_role = keys().any(|key| OwnerTags::names(key, ROLE_TAG) && !names_cluster(key));
    for (prefix, is_there) in [(CLUSTER_TAG, keys().any(names_cluster)), (ROLE_TAG, has_role)] {
        if !is_there {
            let detail = format!("Tag required of the form {prefix}****");
            found.required(RULE, FieldPath::new(format!("{}.", path.child("tags"))), detail);
        }
    }
}

fn metadata_options(options: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let field = "httpPutResponseHopLimit";
    if let Some(limit) = options.get(field).integer().filter(|limit| !(0..=64).contains(limit)) {
        found.invalid(RULE, path.child(field), limit, "Only values between 0 and 64, both included, are accepted");
    }
    let switches = [
        ("httpEndpoint", ["disabled", "enabled"]),
        ("httpTokens", ["required", "optional"]),
        ("httpProtocolIpv6", ["disabled", "enabled"]),
    ];
    for (field, words) in switches {
        if let Some(word) = options.get(field).text().filter(|word| !word.is_empty() && !words.contains(word)) {
            found.invalid(RULE, path.child(field), word, format!("Accepted values: [{}]", words.join(" ")));
        }
    }
}

fn cpu_options(options: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (cores, threads) = (options.get("coreCount"), options.get("threadsPerCore"));
    if cores.is_absent() && threads.is_present() {
        found.required(RULE, path.child("coreCount"), "CoreCount is required when ThreadsPerCore is set");
    }
    if threads.is_absent() && cores.is_present() {
        found.required(RULE, path.child("threadsPerCore"), "ThreadsPerCore is required when CoreCount is set");
    }
    if let Some(number) = threads.integer().filter(|number| !(1..=2).contains(number)) {
        found.invalid(RULE, path.child("threadsPerCore"), number, "ThreadsPerCore must be 1 or 2");
    }
    let words = ["enabled", "disabled"];
    if let Some(word) = options.get("amdSevSnp").text().filter(|word| !word.is_empty() && !words.contains(word)) {
        found.invalid(RULE, path.child("amdSevSnp"), word, format!("AmdSevSnp must be one of [{}]", words.join(" ")));
    }
}

fn placement(placement: Node<'_>, path: &FieldPath, found: &mut Findings) {
    one_of(placement.get("tenancy"), "", &["default", "dedicated", "host"], found, || path.child("tenancy"));
    one_of(placement.get("affinity"), "", &["default", "host"], found, || path.child("affinity"));
    let host = placement.get("hostId").text().is_some_and(|host| !host.is_empty());
    if host && placement.get("tenancy").text_or_empty().is_some_and(|tenancy| tenancy != "host") {
        let detail = "hostId can only be set when tenancy is \"host\"";
        found.given(&placement.value()).forbidden(RULE, path.child("hostId"), detail);
    }
    if let Some(number) = placement.get("partitionNumber").integer().filter(|number| *number < 1) {
        found.invalid(RULE, path.child("partitionNumber"), number, "must be >= 1");
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
