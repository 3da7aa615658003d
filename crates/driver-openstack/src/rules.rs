//! The rules for the fields of a `providerSpec` for `OpenStack` (spec/providers §6.1).
//!
//! The kinds and texts of the errors are those of the Go original. The paths name the fields as users write them. The
//! schema reports fields of the wrong type, so the rules ignore them.

use std::net::IpAddr;

use kube_values::{
    field::{FieldPath, Findings, RuleId},
    json::{Json, Members},
};
use machine_api::validation::{CLS_6, Node};
use machine_driver::OwnerTags;

/// The rule id of all findings in this file.
const RULE: RuleId = CLS_6.id;
/// The parts of the tag keys that identify the owner of a server.
pub const CLUSTER_TAG: &str = "kubernetes.io-cluster-";
pub const ROLE_TAG: &str = "kubernetes.io-role-";

/// Runs all rules.
pub fn provider_spec(config: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if config.members().is_none() {
        return;
    }
    let (spec, path) = (config.get("spec"), path.child("spec"));
    if config.get("spec").is_present() && spec.members().is_none() {
        return;
    }
    if is_empty(spec.get("imageID")) && is_empty(spec.get("imageName")) {
        found.required(RULE, path.child("imageName"), "ImageName is required if no ImageID is given");
    }
    for (field, detail) in [
        ("region", "Region is required"),
        ("flavorName", "Flavor is required"),
        ("availabilityZone", "AvailabilityZone name is required"),
        ("keyName", "KeyName is required"),
    ] {
        if is_empty(spec.get(field)) {
            found.required(RULE, path.child(field), detail);
        }
    }
    // The region becomes a part of provider ids.
    if let Some(region) = spec.get("region").text().filter(|region| region.contains('/')) {
        found.invalid(RULE, path.child("region"), region, "must not contain a slash");
    }
    networks(spec, &path, found);
    pod_networks(spec, &path, found);
    if let Some(size) = spec.get("rootDiskSize").integer().filter(|size| *size < 0) {
        found.invalid(RULE, path.child("rootDiskSize"), size, "RootDiskSize can not be negative");
    }
    tags_prove_ownership(spec.get("tags"), &path.child("tags"), found);
}

/// Whether a field is absent or an empty text. A value of another type is not empty.
fn is_empty(field: Node<'_>) -> bool {
    field.text_or_empty() == Some("")
}

fn has_elements(list: Node<'_>) -> bool {
    !list.elements().is_empty()
}

fn networks(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let (id, list, path) = (spec.get("networkID"), spec.get("networks"), path.child("networks"));
    match (is_empty(id), has_elements(list)) {
        (false, true) => {
            let detail = "\"networks\" list should not be specified along with \"providerConfig.Spec.NetworkID\"";
            found.given(&list.value_or_null()).forbidden(RULE, path.clone(), detail);
        }
        (true, false) if list.is_absent() || list.value().is_some_and(|list| list.as_array().is_some()) => {
            found.given(&list.value_or_null()).forbidden(
                RULE,
                path.clone(),
                "both \"networks\" and \"networkID\" should not be empty",
            );
        }
        _ => {}
    }
    let has_pod_network = has_pod_network(spec);
    for (index, network) in list.elements().iter().enumerate() {
        let (network, path) = (Node::of(network), path.index(index));
        match (is_empty(network.get("id")), is_empty(network.get("name"))) {
            (true, true) => {
                let detail = "at least one of network \"id\" or \"name\" is required";
                found.required(RULE, path.clone(), detail);
            }
            (false, false) => {
                let detail = "simultaneous use of network \"id\" and \"name\" is forbidden";
                found.given(&network.value_or_null()).forbidden(RULE, path.clone(), detail);
            }
            _ => {}
        }
        if network.get("podNetwork").is_true() && !has_pod_network {
            let detail = "\"podNetwork\" switch should not be used in absence of \"spec.podNetworkCidr\"";
            found.given(&network.value_or_null()).forbidden(RULE, path.child("podNetwork"), detail);
        }
    }
}

fn has_pod_network(spec: Node<'_>) -> bool {
    !is_empty(spec.get("podNetworkCidr")) || has_elements(spec.get("podNetworkCIDRs"))
}

fn pod_networks(spec: Node<'_>, path: &FieldPath, found: &mut Findings) {
    let list = path.child("podNetworkCIDRs");
    let given = spec.get("podNetworkCIDRs");
    if !has_pod_network(spec) && (given.is_absent() || given.value().is_some_and(|list| list.as_array().is_some())) {
        found.required(RULE, list.clone(), "PodNetworkCIDRs is required");
    }
    let listed = given.elements().iter().enumerate().map(|(index, cidr)| (list.index(index), cidr.as_str()));
    let one = (path.child("podNetworkCidr"), spec.get("podNetworkCidr").text().filter(|cidr| !cidr.is_empty()));
    for (path, cidr) in listed.chain([one]) {
        if let Some(cidr) = cidr.filter(|cidr| network_of(cidr).is_none()) {
            found.invalid(RULE, path, cidr, "must be an address and the length of its prefix, such as 100.64.0.0/10");
        }
    }
}

/// The network address and the prefix length of a CIDR. The host bits of the address are cleared. An address without a
/// prefix length is a network with one address.
pub fn network_of(cidr: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = cidr.split_once('/').map_or((cidr, None), |(address, length)| (address, Some(length)));
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => bits,
        Some(length) => length.parse().ok().filter(|length| *length <= bits)?,
    };
    let rest = u32::from(bits - length);
    let network = match address {
        IpAddr::V4(address) => IpAddr::V4((address.to_bits() & u32::MAX.checked_shl(rest).unwrap_or(0)).into()),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & u128::MAX.checked_shl(rest).unwrap_or(0)).into()),
    };
    Some((network, length))
}

/// The driver finds the servers of a machine, and deletes them, by these tags.
fn tags_prove_ownership(tags: Node<'_>, path: &FieldPath, found: &mut Findings) {
    if !tags.is_absent() && tags.members().is_none() {
        return;
    }
    let keys = || tags.members().into_iter().flat_map(Members::iter).map(|(key, _): (&str, &Json<'_>)| key);
    let names_cluster = |key: &str| OwnerTags::names(key, CLUSTER_TAG);
    let has_role = keys().any(|key| OwnerTags::names(key, ROLE_TAG) && !names_cluster(key));
    for (part, is_there) in [(CLUSTER_TAG, keys().any(names_cluster)), (ROLE_TAG, has_role)] {
        if !is_there {
            found.required(RULE, path.clone(), format!("Tag required of the form {part}****"));
        }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
