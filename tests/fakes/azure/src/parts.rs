//! Network interfaces and disks: whether a request for one can be fulfilled, and what it makes.

use serde_json::{Value, json};

use crate::{
    catalogue::{self, ETAG, LOCATION, ZONES},
    errors::Refusal,
    inventory::{DISK, NIC, list, text},
};

/// The state of an interface and of its addresses.
pub fn set_nic_state(nic: &mut Value, state: &Value) {
    nic["properties"]["provisioningState"] = state.clone();
    for configuration in nic["properties"]["ipConfigurations"].as_array_mut().into_iter().flatten() {
        configuration["properties"]["provisioningState"] = state.clone();
    }
}

fn check_location(kind: &str, body: &Value) -> Result<(), Refusal> {
    let location = text(body, "location");
    if catalogue::is_here(location) {
        return Ok(());
    }
    if location.is_empty() {
        let message = "The location property is required for this definition.";
        return Err(Refusal::new(400, "LocationRequired", message));
    }
    let message = format!("The provided location '{location}' is not available for resource type '{kind}'.");
    Err(Refusal::new(400, "LocationNotAvailableForResourceType", &message))
}

/// The network interface that a request asks for. An earlier one keeps its addresses and its VM.
pub fn make_nic(body: &Value, group: &str, name: &str, number: u64, earlier: Option<&Value>) -> Result<Value, Refusal> {
    check_location(NIC, body)?;
    let id = catalogue::id(group, NIC, name);
    let configurations = list(&body["properties"]["ipConfigurations"]);
    if configurations.is_empty() {
        let message = format!("Network Interface {id} must have at least one IP configuration.");
        return Err(Refusal::new(400, "NetworkInterfaceMustHaveOneIpConfiguration", &message));
    }
    for configuration in configurations {
        let subnet = text(&configuration["properties"]["subnet"], "id");
        if !catalogue::is_subnet(subnet) {
            let message = format!(
                "Resource {subnet} referenced by resource {id} was not found. Please make sure that the referenced resource exists, and that \
                 both resources are in the same region."
            );
            return Err(Refusal::new(400, "InvalidResourceReference", &message));
        }
    }
    let mut nic = body.clone();
    nic["location"] = json!(LOCATION);
    for (field, value) in [("id", json!(id)), ("name", json!(name)), ("type", json!(NIC)), ("etag", json!(ETAG))] {
        nic[field] = value;
    }
    let properties = &mut nic["properties"];
    properties["resourceGuid"] = json!(format!("0a1b2c3d-0000-4000-d000-{number:012x}"));
    properties["macAddress"] = json!(format!("00-0D-3A-00-{:02X}-{:02X}", number / 250 % 250, number % 250));
    properties["nicType"] = json!("Standard");
    properties["hostedWorkloads"] = json!([]);
    properties["dnsSettings"] = json!({"dnsServers": [], "appliedDnsServers": []});
    for field in ["enableAcceleratedNetworking", "enableIPForwarding"] {
        if properties[field].is_null() {
            properties[field] = json!(false);
        }
    }
    for (index, configuration) in properties["ipConfigurations"].as_array_mut().into_iter().flatten().enumerate() {
        let own_name = text(configuration, "name").to_owned();
        configuration["id"] = json!(format!("{id}/ipConfigurations/{own_name}"));
        configuration["type"] = json!("Microsoft.Network/networkInterfaces/ipConfigurations");
        configuration["etag"] = json!(ETAG);
        let address = &mut configuration["properties"];
        let version = address["privateIPAddressVersion"].as_str().unwrap_or("IPv4").to_owned();
        address["privateIPAddress"] = match version.as_str() {
            "IPv6" => json!(format!("fd00:db8::{number:x}")),
            _ => json!(format!("10.250.{}.{}", number / 250 % 250, number % 250 + 4)),
        };
        address["privateIPAddressVersion"] = json!(version);
        if address["primary"].is_null() {
            address["primary"] = json!(index == 0);
        }
    }
    if let Some(earlier) = earlier {
        for field in ["virtualMachine", "resourceGuid", "macAddress", "ipConfigurations"] {
            if !earlier["properties"][field].is_null() {
                properties[field] = earlier["properties"][field].clone();
            }
        }
    }
    set_nic_state(&mut nic, &json!("Updating"));
    Ok(nic)
}

/// The disk that a request asks for.
pub fn make_disk(
    body: &Value,
    group: &str,
    name: &str,
    number: u64,
    earlier: Option<&Value>,
) -> Result<Value, Refusal> {
    check_location(DISK, body)?;
    for zone in list(&body["zones"]) {
        if !ZONES.iter().any(|known| zone == known) {
            let message = format!("The zone(s) {zone} for resource '{DISK}/{name}' is not supported.");
            return Err(Refusal::new(400, "AvailabilityZoneNotSupported", &message));
        }
    }
    let creation = &body["properties"]["creationData"];
    match text(creation, "createOption") {
        "FromImage" if catalogue::is_disk_source(creation) => {}
        "FromImage" => {
            let message = format!("The image of the disk was not found: {creation}");
            return Err(Refusal::new(404, "ImageNotFound", &message));
        }
        "Empty" if body["properties"]["diskSizeGB"].is_i64() => {}
        other => {
            let message = format!("The fake makes no disk with the option '{other}', or its size is missing.");
            return Err(Refusal::invalid("creationData.createOption", &message));
        }
    }
    let mut disk = body.clone();
    disk["location"] = json!(LOCATION);
    let properties = &mut disk["properties"];
    properties["provisioningState"] = json!("Creating");
    properties["diskState"] = json!("Unattached");
    properties["timeCreated"] = json!(jiff::Timestamp::now().to_string());
    properties["uniqueId"] = json!(format!("0a1b2c3d-0000-4000-b000-{number:012x}"));
    if properties["diskSizeGB"].is_null() {
        properties["diskSizeGB"] = json!(30);
    }
    if let Some(earlier) = earlier {
        if earlier["properties"]["creationData"] != properties["creationData"] {
            return Err(Refusal::unchangeable("creationData"));
        }
        for field in ["diskState", "timeCreated", "uniqueId"] {
            properties[field] = earlier["properties"][field].clone();
        }
        properties["provisioningState"] = json!("Updating");
        if !earlier["managedBy"].is_null() {
            disk["managedBy"] = earlier["managedBy"].clone();
        }
    }
    for (field, value) in
        [("id", json!(catalogue::id(group, DISK, name))), ("name", json!(name)), ("type", json!(DISK))]
    {
        disk[field] = value;
    }
    Ok(disk)
}
