//! The rules for the fields of a `providerSpec` for Alibaba Cloud.
//!
//! Errors are the rules that the Go original had for its `AlicloudMachineClass`, with the same texts. Its successor checks nothing, so that classes exist
//! that these rules would not have let in. What only ECS itself refuses is a warning. The schema reports fields of the wrong type, so the rules
//! ignore them.

use std::collections::BTreeMap;

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    json::Members,
};
use machine_api::validation::{CLS_6, Node};
use machine_driver::OwnerTags;
use serde_json::{Value, json};

use crate::names::is_name;

/// The rule id of all findings in this file.
const RULE: RuleId = CLS_6.id;
/// The part of a tag's key before the name of a cluster.
pub const CLUSTER_TAG: &str = "kubernetes.io/cluster/";
/// The part of a tag's key before the name of a role.
pub const ROLE_TAG: &str = "kubernetes.io/role/";
/// The most tags of an instance.
const MOST_TAGS: usize = 20;
const SPOT_STRATEGIES: [&str; 3] = ["NoSpot", "SpotAsPriceGo", "SpotWithPriceLimit"];
const SUBSCRIPTION: &str = "PrePaid";
const CHARGE_TYPES: [&str; 2] = ["PostPaid", SUBSCRIPTION];
const INTERNET_CHARGE_TYPES: [&str; 2] = ["PayByBandwidth", "PayByTraffic"];

/// Runs all rules.
pub fn provider_spec(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.members().is_none() {
        return;
    }
    let required = [
        ("imageID", "ImageID is required"),
        ("region", "Region is required"),
        ("instanceType", "InstanceType is required"),
        ("vSwitchID", "VSwitchID is required"),
        ("keyPairName", "KeyPairName is required"),
    ];
    for (field, missing) in required {
        if spec.get(field).text_or_empty() == Some("") {
            found.required(RULE, path.child(field), missing);
        }
    }
    // The region becomes a part of a host name and of provider ids.
    if let Some(region) = spec.get("region").text().filter(|region| !region.is_empty() && !is_name(region)) {
        let detail = "must consist of at most 63 lower case letters, digits and hyphens, and begin with a letter";
        found.invalid(RULE, path.child("region"), region, detail);
    }
    data_disks(spec.get("dataDisks"), &path.child("dataDisks"), found);
    tags_prove_ownership(spec.get("tags"), &path.child("tags"), found);
    ecs_refuses(spec, path, found);
}

fn data_disks(disks: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, disk) in disks.elements().iter().enumerate() {
        let (disk, path) = (Node::of(disk), path.index(index));
        let name = disk.get("name").text_or_empty();
        if let Some(name) = name {
            *names.entry(name).or_default() += 1;
        }
        if name == Some("") {
            found.required(RULE, path.child("name"), "Data Disk name is required");
        }
        if let Some(size) = disk.get("size").integer_or_zero().filter(|size| *size <= 0) {
            found.given(&Value::from(size)).required(RULE, path.child("size"), "Data Disk size must be positive");
        }
        if disk.get("category").text_or_empty() == Some("") {
            found.required(RULE, path.child("category"), "Data Disk category is required");
        }
    }
    for (name, count) in names.into_iter().filter(|(_, count)| *count > 1) {
        let detail = format!("Data Disk Name '{name}' duplicated {count} times, Name must be unique");
        found.invalid(RULE, path.clone(), name, detail);
    }
}

/// The driver finds the instances of a class, and deletes them, by these tags.
fn tags_prove_ownership(tags: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if !tags.is_absent() && tags.members().is_none() {
        return;
    }
    let keys = || tags.members().into_iter().flat_map(Members::iter).map(|(key, _)| key);
    let names_cluster = |key: &str| OwnerTags::names(key, CLUSTER_TAG);
    let has_role = keys().any(|key| OwnerTags::names(key, ROLE_TAG) && !names_cluster(key));
    for (prefix, is_there) in [(CLUSTER_TAG, keys().any(names_cluster)), (ROLE_TAG, has_role)] {
        if !is_there {
            found.required(RULE, path.child(prefix), format!("Tag required of the form {prefix}****"));
        }
    }
    let count = keys().count();
    if count > MOST_TAGS {
        found.warn(RULE, path.clone(), json!(count), format!("ECS allows at most {MOST_TAGS} tags"));
    }
}

/// Warns of fields that ECS refuses, or that prevent a deletion.
fn ecs_refuses(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if spec.get("securityGroupID").text_or_empty() == Some("") {
        let detail = "ECS creates no instance without a security group";
        found.warn(RULE, path.child("securityGroupID"), "", detail);
    }
    let words: [(&str, &[&str]); 3] = [
        ("spotStrategy", &SPOT_STRATEGIES),
        ("instanceChargeType", &CHARGE_TYPES),
        ("internetChargeType", &INTERNET_CHARGE_TYPES),
    ];
    for (field, words) in words {
        if let Some(word) = spec.get(field).text().filter(|word| !word.is_empty() && !words.contains(word)) {
            found.warn(RULE, path.child(field), word, format!("ECS knows {}", words.join(", ")));
        }
    }
    if spec.get("instanceChargeType").text() == Some(SUBSCRIPTION) {
        let detail = "ECS releases no subscription before its end, so machines of this class can't be deleted";
        found.warn(RULE, path.child("instanceChargeType"), SUBSCRIPTION, detail);
    }
    for (field, lowest) in [("internetMaxBandwidthIn", 1), ("internetMaxBandwidthOut", 0)] {
        if let Some(rate) = spec.get(field).integer().filter(|rate| !(lowest..=100).contains(rate)) {
            found.warn(RULE, path.child(field), rate, format!("ECS allows {lowest} to 100 Mbit/s"));
        }
    }
    let disk = spec.get("systemDisk");
    if let Some(size) = disk.get("size").integer_or_zero().filter(|size| disk.members().is_some() && *size <= 0) {
        found.warn(RULE, path.child("systemDisk").child("size"), size, "ECS refuses a disk without a size");
    }
    let address = spec.get("privateIPAddress");
    if let Some(address) = address.text().filter(|address| !address.is_empty()) {
        let detail = "only one machine of the class can have this address";
        found.warn(RULE, path.child("privateIPAddress"), address, detail);
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
