//! Makes the parameters of `RunInstances` from `providerSpec`, image and machine. Pure functions.

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_api::v1alpha1::Machine;
use machine_driver::{Code, Status};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    actions,
    query::Query,
    spec::{BlockDevice, NetworkInterface, Placement, Spec, filled},
};

/// The annotation of the Node template with the placement of the instance. It is used if the spec has none.
const PLACEMENT_ANNOTATION: &str = "machine.sapcloud.io/awsPlacement";
const ROOT_DEVICE: &str = "/root";
/// The resources that get the tags.
const TAGGED: [&str; 3] = ["instance", "volume", "network-interface"];

/// The input of a launch request.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub spec: &'a Spec,
    pub machine: &'a Machine,
    /// The name of the image's root device.
    pub root_device: &'a str,
    pub user_data: &'a [u8],
    /// The client token. EC2 never makes a second instance for the same token.
    pub token: &'a str,
}

/// The request for one instance.
///
/// # Errors
/// `InvalidArgument` without block devices, `Internal` for an unreadable annotation.
pub fn run_instances(launch: Launch<'_>) -> Result<Query, Status> {
    let Launch { spec, machine, root_device, user_data, token } = launch;
    if spec.block_devices.is_empty() {
        return Err(Status::new(Code::InvalidArgument, "no block devices passed"));
    }
    let mut query = actions::query("RunInstances");
    query.set("ImageId", &spec.ami);
    query.set("InstanceType", &spec.machine_type);
    query.set("MinCount", 1);
    query.set("MaxCount", 1);
    query.set("ClientToken", token);
    query.set("UserData", BASE64_STANDARD.encode(user_data));
    query.set_some("KeyName", filled(spec.key_name.as_ref()));
    query.nested("IamInstanceProfile", |query| {
        query.set_some("Name", Some(&spec.iam.name).filter(|name| !name.is_empty()));
        query.set_some("Arn", Some(&spec.iam.arn).filter(|arn| !arn.is_empty()));
    });
    let only_one = spec.block_devices.len() == 1;
    query.list("BlockDeviceMapping", &spec.block_devices, |query, device| {
        let is_root = only_one || device.device_name == ROOT_DEVICE;
        query.set("DeviceName", if is_root { root_device } else { &device.device_name });
        volume(query, device);
    });
    query.list("NetworkInterface", spec.network_interfaces.iter().enumerate(), |query, (position, interface)| {
        network_interface(query, position, interface);
    });
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    query.list("TagSpecification", TAGGED, |query, resource| {
        query.set("ResourceType", resource);
        let tags = spec.tags.iter().filter(|(key, _)| *key != "Name");
        let tags = tags.map(|(key, value)| (key.as_str(), value.as_str())).chain([("Name", name)]);
        query.list("Tag", tags, |query, (key, value)| {
            query.set("Key", key);
            query.set("Value", value);
        });
    });
    options(&mut query, spec);
    place(&mut query, spec, machine)?;
    Ok(query)
}

fn volume(query: &mut Query, device: &BlockDevice) {
    let ebs = &device.ebs;
    query.nested("Ebs", |query| {
        query.set("VolumeType", &ebs.volume_type);
        query.set("VolumeSize", ebs.volume_size);
        query.set_some("Iops", Some(ebs.iops).filter(|iops| *iops != 0));
        query.set_some("Throughput", ebs.throughput);
        query.set("Encrypted", ebs.encrypted);
        query.set("DeleteOnTermination", ebs.delete_on_termination.unwrap_or(true));
        query.set_some("SnapshotId", filled(ebs.snapshot_id.as_ref()));
        // The Go driver drops the key, so its volumes are encrypted with the account's default key.
        query.set_some("KmsKeyId", filled(ebs.kms_key_id.as_ref()).filter(|_| ebs.encrypted));
    });
}

fn network_interface(query: &mut Query, position: usize, interface: &NetworkInterface) {
    match interface.device_index {
        Some(index) => query.set("DeviceIndex", index),
        None => query.set("DeviceIndex", position),
    }
    query.set("SubnetId", &interface.subnet_id);
    query.values("SecurityGroupId", &interface.security_group_ids);
    query.set("DeleteOnTermination", interface.delete_on_termination.unwrap_or(true));
    query.set_some("AssociatePublicIpAddress", interface.associate_public_ip_address);
    query.set_some("Description", filled(interface.description.as_ref()));
    query.set_some("NetworkCardIndex", interface.network_card_index);
    query.set_some("InterfaceType", filled(interface.interface_type.as_ref()));
    if let Some(count) = interface.ipv6_address_count {
        query.set("Ipv6AddressCount", count);
        query.set("PrimaryIpv6", interface.primary_ipv6.unwrap_or(true));
    }
}

fn options(query: &mut Query, spec: &Spec) {
    if let Some(metadata) = &spec.instance_metadata_options {
        query.nested("MetadataOptions", |query| {
            query.set_some("HttpEndpoint", filled(metadata.http_endpoint.as_ref()));
            query.set_some("HttpTokens", filled(metadata.http_tokens.as_ref()));
            query.set_some("HttpPutResponseHopLimit", metadata.http_put_response_hop_limit);
            query.set_some("HttpProtocolIpv6", filled(metadata.http_protocol_ipv6.as_ref()));
        });
    }
    if let Some(cpu) = &spec.cpu_options {
        query.nested("CpuOptions", |query| {
            query.set_some("CoreCount", cpu.core_count);
            query.set_some("ThreadsPerCore", cpu.threads_per_core);
            query.set_some("AmdSevSnp", filled(cpu.amd_sev_snp.as_ref()));
        });
    }
    if let Some(reservation) = &spec.capacity_reservation {
        query.nested("CapacityReservationSpecification", |query| {
            let preference = filled(reservation.capacity_reservation_preference.as_ref());
            query.set_some("CapacityReservationPreference", preference);
            query.nested("CapacityReservationTarget", |query| {
                let group = filled(reservation.capacity_reservation_resource_group_arn.as_ref());
                query.set_some("CapacityReservationId", filled(reservation.capacity_reservation_id.as_ref()));
                query.set_some("CapacityReservationResourceGroupArn", group);
            });
        });
    }
    let market = spec.instance_market_options.as_ref().and_then(|options| filled(options.market_type.as_ref()));
    match (market, &spec.spot_price) {
        (Some("on-demand"), _) | (None, None) => {}
        (Some(market), _) => query.nested("InstanceMarketOptions", |query| query.set("MarketType", market)),
        (None, Some(price)) => query.nested("InstanceMarketOptions", |query| {
            query.set("MarketType", "spot");
            query.nested("SpotOptions", |query| {
                query.set("SpotInstanceType", "one-time");
                query.set_some("MaxPrice", Some(price).filter(|price| !price.is_empty()));
            });
        }),
    }
}

/// EC2's `Placement` structure in the annotation. The case of field names does not matter, as in the Go driver.
#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase", default)]
struct AnnotatedPlacement {
    affinity: Option<String>,
    availabilityzone: Option<String>,
    availabilityzoneid: Option<String>,
    groupid: Option<String>,
    groupname: Option<String>,
    hostid: Option<String>,
    hostresourcegrouparn: Option<String>,
    partitionnumber: Option<i32>,
    spreaddomain: Option<String>,
    tenancy: Option<String>,
}

/// Sets the placement from the spec, or from the annotation if the spec has none.
fn place(query: &mut Query, spec: &Spec, machine: &Machine) -> Result<(), Status> {
    let place = match &spec.placement {
        Some(Placement { group_id, tenancy, host_id, partition_number, affinity }) => AnnotatedPlacement {
            groupid: group_id.clone(),
            tenancy: tenancy.clone(),
            hostid: host_id.clone(),
            partitionnumber: *partition_number,
            affinity: affinity.clone(),
            ..AnnotatedPlacement::default()
        },
        None => match annotated(machine)? {
            Some(place) => place,
            None => return Ok(()),
        },
    };
    query.nested("Placement", |query| {
        for (name, value) in [
            ("Affinity", &place.affinity),
            ("AvailabilityZone", &place.availabilityzone),
            ("AvailabilityZoneId", &place.availabilityzoneid),
            ("GroupId", &place.groupid),
            ("GroupName", &place.groupname),
            ("HostId", &place.hostid),
            ("HostResourceGroupArn", &place.hostresourcegrouparn),
            ("SpreadDomain", &place.spreaddomain),
            ("Tenancy", &place.tenancy),
        ] {
            query.set_some(name, filled(value.as_ref()));
        }
        query.set_some("PartitionNumber", place.partitionnumber.filter(|number| *number != 0));
    });
    Ok(())
}

fn annotated(machine: &Machine) -> Result<Option<AnnotatedPlacement>, Status> {
    let annotations = machine.spec.node_template.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|annotations| annotations.get(PLACEMENT_ANNOTATION)) else {
        return Ok(None);
    };
    let read = serde_json::from_str::<Map<String, Value>>(text).and_then(|fields| {
        let fields = fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        serde_json::from_value(Value::Object(fields.collect()))
    });
    let unreadable = |error: serde_json::Error| {
        Status::new(Code::Internal, format!("annotation {PLACEMENT_ANNOTATION} can't be read: {error}"))
    };
    read.map(Some).map_err(unreadable)
}

#[cfg(test)]
#[path = "launch_tests.rs"]
mod tests;
