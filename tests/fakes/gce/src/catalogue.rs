//! What the project has before a test begins: zones, machine types, networks, images. It never changes.

use serde_json::{Value, json};

use crate::{errors::Refusal, model::Method};

/// The project.
pub const PROJECT: &str = "shoot-project";
/// Its region.
pub const REGION: &str = "europe-west1";
/// A zone of the region, which has all machine types.
pub const ZONE: &str = "europe-west1-b";
/// Another zone of the region. It lacks [`OTHER_MACHINE_TYPE`].
pub const OTHER_ZONE: &str = "europe-west1-c";
/// A machine type of both zones.
pub const MACHINE_TYPE: &str = "n1-standard-2";
/// A machine type of [`ZONE`] only.
pub const OTHER_MACHINE_TYPE: &str = "n2-standard-4";
/// An accelerator of both zones.
pub const GPU: &str = "nvidia-tesla-t4";
/// An image for boot disks of at least [`IMAGE_GB`].
pub const IMAGE: &str = "projects/shoot-project/global/images/gardenlinux-1592";
/// The family of [`IMAGE`].
pub const IMAGE_FAMILY: &str = "gardenlinux";
/// The smallest size of a boot disk with [`IMAGE`], in GB.
pub const IMAGE_GB: i64 = 10;
/// A network.
pub const NETWORK: &str = "shoot";
/// A subnetwork with IPv4 addresses only. Its secondary range is [`SECONDARY_RANGE`].
pub const SUBNETWORK: &str = "nodes";
/// A subnetwork with both kinds of addresses. Its secondary range is [`SECONDARY_RANGE`].
pub const DUAL_SUBNETWORK: &str = "nodes-dual";
/// The secondary range of the subnetworks.
pub const SECONDARY_RANGE: &str = "pods";

const HOST: &str = "https://www.googleapis.com/compute/v1";
const CREATED: &str = "2026-01-07T03:14:15.926-08:00";
pub const ZONES: [&str; 2] = [ZONE, OTHER_ZONE];
const DISK_TYPES: [&str; 5] = ["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced", "local-ssd"];

/// The URL of a resource, as answers have it.
pub fn url(resource: &str) -> String {
    format!("{HOST}/{resource}")
}

/// The path of a resource in a reference of a request: a URL, or a path with or without the project.
pub fn resource_path(reference: &str) -> String {
    let path = reference
        .strip_prefix("https://")
        .map_or(reference, |url| url.split_once("/compute/v1/").map_or(url, |(_, path)| path));
    if path.starts_with("projects/") { path.to_owned() } else { format!("projects/{PROJECT}/{path}") }
}

/// Whether the region has this zone.
pub fn has_zone(zone: &str) -> bool {
    ZONES.contains(&zone)
}

/// Whether the zone has this machine type.
pub fn has_machine_type(zone: &str, machine_type: &str) -> bool {
    machine_type == MACHINE_TYPE || (machine_type == OTHER_MACHINE_TYPE && zone == ZONE)
}

/// Whether a path names a resource of the project: a disk type, accelerator, image, network, subnetwork or storage pool.
pub fn has(path: &str) -> bool {
    let Some(path) = path.strip_prefix(&format!("projects/{PROJECT}/")) else { return false };
    let parts: Vec<_> = path.split('/').collect();
    match *parts {
        ["zones", zone, "diskTypes", name] => has_zone(zone) && DISK_TYPES.contains(&name),
        ["zones", zone, "acceleratorTypes", name] => has_zone(zone) && name == GPU,
        ["global", "images", "family", name] => name == IMAGE_FAMILY,
        ["global", "images", name] => IMAGE.ends_with(&format!("/{name}")),
        ["global", "networks", name] => name == NETWORK,
        ["regions", region, "subnetworks", name] => region == REGION && [SUBNETWORK, DUAL_SUBNETWORK].contains(&name),
        _ => false,
    }
}

/// The answer to a read of one of these resources. `path` is the path of the resource, and `name` the last part of it.
pub fn read(method: Method, path: &str, name: &str) -> Result<Value, Refusal> {
    let zone = path.split('/').skip_while(|part| *part != "zones").nth(1).unwrap_or_default();
    let absent = || Refusal::not_found(path);
    let common = |kind: &str| json!({"kind": format!("compute#{kind}"), "id": "1000", "name": name, "creationTimestamp": CREATED, "selfLink": url(path)});
    let zone_url = || url(&format!("projects/{PROJECT}/zones/{zone}"));
    let network = url(&format!("projects/{PROJECT}/global/networks/{NETWORK}"));
    let region = url(&format!("projects/{PROJECT}/regions/{REGION}"));
    let (exists, mut resource, own) = match method {
        Method::GetMachineType => {
            let own =
                json!({"guestCpus": 2, "memoryMb": 7680, "isSharedCpu": false, "zone": zone, "architecture": "X86_64"});
            (has_machine_type(zone, name), common("machineType"), own)
        }
        Method::GetDiskType => (has(path), common("diskType"), json!({"zone": zone_url()})),
        Method::GetAcceleratorType => {
            (has(path), common("acceleratorType"), json!({"zone": zone_url(), "maximumCardsPerInstance": 4}))
        }
        Method::GetImage | Method::GetImageFromFamily => {
            let own = json!({
                "name": IMAGE.rsplit('/').next(), "selfLink": url(IMAGE), "family": IMAGE_FAMILY, "status": "READY",
                "diskSizeGb": IMAGE_GB.to_string(), "architecture": "X86_64",
            });
            (has(path), common("image"), own)
        }
        Method::GetNetwork => (has(path), common("network"), json!({"autoCreateSubnetworks": false})),
        Method::GetSubnetwork => {
            let ranges = json!([{"rangeName": SECONDARY_RANGE, "ipCidrRange": "100.96.0.0/11"}]);
            let stack = if name == DUAL_SUBNETWORK { "IPV4_IPV6" } else { "IPV4_ONLY" };
            let own = json!({
                "network": network, "region": region, "ipCidrRange": "10.250.0.0/16", "stackType": stack, "secondaryIpRanges": ranges,
            });
            (has(path), common("subnetwork"), own)
        }
        Method::GetZone => (has_zone(name), common("zone"), json!({"status": "UP", "region": region})),
        Method::GetRegion => {
            let zones = ZONES.map(|zone| url(&format!("projects/{PROJECT}/zones/{zone}")));
            (name == REGION, common("region"), json!({"status": "UP", "zones": zones}))
        }
        Method::GetProject => (true, common("project"), json!({"defaultNetworkTier": "PREMIUM"})),
        _ => return Err(absent()),
    };
    if !exists {
        return Err(absent());
    }
    for (field, value) in own.as_object().into_iter().flatten() {
        resource[field] = value.clone();
    }
    Ok(resource)
}
