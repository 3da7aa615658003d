//! VMs: whether the subscription can fulfil a request, and the VM and the disks that it makes.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    catalogue::{self, CAPACITY_RESERVATION_GROUP, LOCATION, SIZES, ZONES, same},
    errors::Refusal,
    inventory::{DISK, Hidden, Inventory, VM, Vm, list, nic_ids, text},
};

/// The longest custom data, in characters of base64.
const LONGEST_CUSTOM_DATA: usize = 87_380;
/// The longest name of a Linux VM.
const LONGEST_NAME: usize = 64;

/// What a creation needs besides its request.
pub struct Place<'a> {
    pub group: &'a str,
    pub name: &'a str,
    /// Numbers for ids.
    pub number: u64,
    pub created: &'a str,
}

impl Place<'_> {
    /// The VM in references.
    pub fn reference(&self) -> String {
        Inventory::reference(self.group, VM, self.name)
    }
}

/// The VM that a request asks for. It has no disks yet.
pub fn make(body: &Value, place: &Place<'_>, inventory: &Inventory) -> Result<Vm, Refusal> {
    check_place(body, place)?;
    let properties = &body["properties"];
    check_image_and_plan(body, inventory)?;
    check_os_profile(&properties["osProfile"])?;
    check_interfaces(body, place, inventory)?;
    check_disks(properties, place, inventory)?;
    check_group_members(properties)?;
    check_identity(&body["identity"])?;

    let mut vm = body.clone();
    let custom_data = text(&properties["osProfile"], "customData").to_owned();
    vm["id"] = json!(catalogue::id(place.group, VM, place.name));
    vm["name"] = json!(place.name);
    vm["type"] = json!(VM);
    vm["location"] = json!(LOCATION);
    let made = &mut vm["properties"];
    made["vmId"] = json!(format!("0a1b2c3d-0000-4000-9000-{:012x}", place.number));
    made["timeCreated"] = json!(place.created);
    made["provisioningState"] = json!("Creating");
    if let Some(profile) = made["osProfile"].as_object_mut() {
        profile.remove("customData");
        profile.remove("adminPassword");
        profile.insert("secrets".to_owned(), json!([]));
        profile.insert("allowExtensionOperations".to_owned(), json!(true));
        profile.insert("requireGuestProvisionSignal".to_owned(), json!(true));
    }
    let storage = &mut made["storageProfile"];
    if let Some(version) = storage["imageReference"]["version"].as_str().map(str::to_owned) {
        let exact = if same(&version, "latest") { "1592.1.0".to_owned() } else { version };
        storage["imageReference"]["exactVersion"] = json!(exact);
    }
    storage["osDisk"]["osType"] = json!("Linux");
    if !storage["dataDisks"].is_array() {
        storage["dataDisks"] = json!([]);
    }
    for disk in storage["dataDisks"].as_array_mut().into_iter().flatten() {
        disk["toBeDetached"] = json!(false);
        default(disk, "deleteOption", "Detach");
        default(disk, "caching", "None");
    }
    default(&mut storage["osDisk"], "deleteOption", "Detach");
    default(&mut storage["osDisk"], "caching", "None");
    let identities = vm.pointer_mut("/identity/userAssignedIdentities").and_then(Value::as_object_mut);
    for identity in identities.into_iter().flat_map(serde_json::Map::values_mut) {
        *identity = json!({"principalId": "0a1b2c3d-0000-4000-a000-000000000001", "clientId": "0a1b2c3d-0000-4000-a000-000000000002"});
    }
    Ok(Vm { value: vm, hidden: Hidden { custom_data }, failure: None })
}

fn default(value: &mut Value, field: &str, absent: &str) {
    if value[field].is_null() {
        value[field] = json!(absent);
    }
}

fn check_place(body: &Value, place: &Place<'_>) -> Result<(), Refusal> {
    let location = text(body, "location");
    if !catalogue::is_here(location) {
        let message = format!("The provided location '{location}' is not available for resource type '{VM}'.");
        return Err(Refusal::new(400, "LocationNotAvailableForResourceType", &message));
    }
    if place.name.len() > LONGEST_NAME {
        let message = format!("Linux host name cannot exceed {LONGEST_NAME} characters in length.");
        return Err(Refusal::invalid("computerName", &message));
    }
    for zone in list(&body["zones"]) {
        if !ZONES.iter().any(|known| zone == known) {
            let message = format!("The zone(s) {zone} for resource '{VM}/{}' is not supported.", place.name);
            return Err(Refusal::new(400, "AvailabilityZoneNotSupported", &message));
        }
    }
    let size = text(&body["properties"]["hardwareProfile"], "vmSize");
    if !SIZES.iter().any(|known| same(known, size)) {
        let message = format!(
            "The value {size} provided for the VM size is not valid. The valid sizes in the current region are: {}.",
            SIZES.join(",")
        );
        return Err(Refusal::invalid("vmSize", &message));
    }
    Ok(())
}

fn check_image_and_plan(body: &Value, inventory: &Inventory) -> Result<(), Refusal> {
    let storage = &body["properties"]["storageProfile"];
    if storage["osDisk"]["createOption"] != "FromImage" {
        return Ok(());
    }
    let Some(needs_plan) = catalogue::image_needs_plan(&storage["imageReference"]) else {
        let message = format!(
            "The platform image or the image '{}' is not available. Verify that all fields in the storage profile are correct.",
            storage["imageReference"]
        );
        return Err(Refusal::new(404, "ImageNotFound", &message));
    };
    let plan = &body["plan"];
    if needs_plan && ["name", "product", "publisher"].iter().any(|field| plan[field] != catalogue::plan()[field]) {
        let message = "Creating a virtual machine from Marketplace image or a custom image sourced from a Marketplace image requires Plan \
                       information in the request.";
        return Err(Refusal::new(400, "VMMarketplaceInvalidInput", message));
    }
    if needs_plan && inventory.terms["properties"]["accepted"] != true {
        let message = "User failed validation to purchase resources. Error message: 'You have not accepted the legal terms on this \
                       subscription for this plan. Before the subscription can be used, you need to accept the legal terms of the image.'";
        return Err(Refusal::new(400, "ResourcePurchaseValidationFailed", message));
    }
    if !needs_plan && !plan.is_null() {
        let message = "The plan information in the request is not the plan of the image.";
        return Err(Refusal::new(400, "VMMarketplaceInvalidInput", message));
    }
    Ok(())
}

fn check_os_profile(profile: &Value) -> Result<(), Refusal> {
    let required = |field: &str| {
        let message = format!("Required parameter '{field}' is missing (null).");
        if text(profile, field).is_empty() { Err(Refusal::invalid(field, &message)) } else { Ok(()) }
    };
    required("computerName")?;
    required("adminUsername")?;
    let custom_data = text(profile, "customData");
    if BASE64_STANDARD.decode(custom_data).is_err() || custom_data.len() > LONGEST_CUSTOM_DATA {
        let message = format!(
            "Custom data in OSProfile must be in Base64 encoding and with a maximum length of {LONGEST_CUSTOM_DATA} characters."
        );
        return Err(Refusal::invalid("customData", &message));
    }
    let linux = &profile["linuxConfiguration"];
    if linux["disablePasswordAuthentication"] != true {
        required("adminPassword")?;
    }
    let keys = list(&linux["ssh"]["publicKeys"]);
    if keys.is_empty() && text(profile, "adminPassword").is_empty() {
        let message = "Authentication using either SSH or by user name and password must be enabled in Linux profile.";
        return Err(Refusal::invalid("linuxConfiguration", message));
    }
    let path = format!("/home/{}/.ssh/authorized_keys", text(profile, "adminUsername"));
    for key in keys {
        if text(key, "path") != path {
            let message =
                format!("Destination path for SSH public keys is currently limited to its default value {path}");
            return Err(Refusal::invalid("linuxConfiguration.ssh.publicKeys.path", &message));
        }
        let words: Vec<_> = text(key, "keyData").split_whitespace().collect();
        let known = matches!(words.first(), Some(&"ssh-rsa" | &"ssh-ed25519"));
        if !known || words.get(1).is_none_or(|data| BASE64_STANDARD.decode(data).is_err()) {
            let field = "linuxConfiguration.ssh.publicKeys.keyData";
            return Err(Refusal::invalid(field, &format!("The value of parameter {field} is invalid.")));
        }
    }
    Ok(())
}

fn check_interfaces(body: &Value, place: &Place<'_>, inventory: &Inventory) -> Result<(), Refusal> {
    if nic_ids(body).next().is_none() {
        let message = "Virtual machine must have at least one network interface.";
        return Err(Refusal::invalid("networkProfile", message));
    }
    for nic_id in nic_ids(body) {
        let Some((_, nic)) = inventory.nic(nic_id) else {
            let message = format!(
                "Resource {nic_id} referenced by resource {} was not found. Please make sure that the referenced resource exists, and that \
                 both resources are in the same region.",
                catalogue::id(place.group, VM, place.name)
            );
            return Err(Refusal::new(400, "InvalidResourceReference", &message));
        };
        let user = text(&nic["properties"]["virtualMachine"], "id");
        if !user.is_empty() && !same(user, &place.reference()) {
            let message = format!("Network Interface {nic_id} is used by existing resource {user}.");
            return Err(Refusal::new(400, "NicInUse", &message));
        }
    }
    Ok(())
}

fn check_disks(properties: &Value, place: &Place<'_>, inventory: &Inventory) -> Result<(), Refusal> {
    let storage = &properties["storageProfile"];
    let data_disks = list(&storage["dataDisks"]);
    for (index, disk) in data_disks.iter().enumerate() {
        if data_disks[..index].iter().any(|earlier| earlier["lun"] == disk["lun"]) {
            let message = format!("A disk at LUN {} already exists.", disk["lun"]);
            return Err(Refusal::invalid("dataDisk.lun", &message));
        }
    }
    for disk in data_disks.iter().chain([&storage["osDisk"]]) {
        let attached = text(&disk["managedDisk"], "id");
        if disk["createOption"] == "Attach" {
            let Some((_, found)) = inventory.disk(attached) else {
                let message = format!("Disk {attached} is not found.");
                return Err(Refusal::new(404, "DiskNotFound", &message));
            };
            let owner = text(found, "managedBy");
            if !owner.is_empty() && !same(owner, &place.reference()) {
                let message =
                    format!("Disk '{attached}' cannot be attached as the disk is already owned by VM '{owner}'.");
                return Err(Refusal::new(409, "ConflictingUserInput", &message));
            }
        } else {
            let name = text(disk, "name");
            let taken = inventory.disks.get(&(place.group.to_ascii_lowercase(), name.to_ascii_lowercase()));
            if taken.is_some_and(|disk| !same(text(disk, "managedBy"), &place.reference())) {
                let message = format!(
                    "Disk {name} already exists in resource group {}. Only CreateOption.Attach is supported.",
                    place.group.to_ascii_uppercase()
                );
                return Err(Refusal::new(409, "ConflictingUserInput", &message));
            }
        }
    }
    Ok(())
}

fn check_group_members(properties: &Value) -> Result<(), Refusal> {
    let reservation = &properties["capacityReservation"]["capacityReservationGroup"];
    for (field, reference, known) in [
        ("availabilitySet", &properties["availabilitySet"], catalogue::AVAILABILITY_SET),
        ("virtualMachineScaleSet", &properties["virtualMachineScaleSet"], catalogue::SCALE_SET),
        ("capacityReservationGroup", reservation, CAPACITY_RESERVATION_GROUP),
    ] {
        let given = text(reference, "id");
        if field == "virtualMachineScaleSet" && same(given, catalogue::UNIFORM_SCALE_SET) {
            let message =
                "Virtual machine scale set with orchestration mode 'Uniform' is not supported for a virtual machine.";
            return Err(Refusal::new(400, "BadRequest", message));
        }
        if !given.is_empty() && !same(given, known) {
            let message = format!("The entity {given} was not found.");
            return Err(Refusal::new(404, "NotFound", &message));
        }
    }
    Ok(())
}

fn check_identity(identity: &Value) -> Result<(), Refusal> {
    for id in identity["userAssignedIdentities"].as_object().into_iter().flat_map(serde_json::Map::keys) {
        if !same(id, catalogue::IDENTITY) {
            let message = format!("Failed to get user assigned identity. '{id}' was not found.");
            return Err(Refusal::new(400, "FailedIdentityOperation", &message));
        }
    }
    Ok(())
}

/// What differs between a VM and a later request for it, and can't change.
pub fn check_change(old: &Vm, new: &Vm, body: &Value) -> Result<(), Refusal> {
    if old.value["zones"] != body["zones"] {
        let message = "You are not allowed to change, remove or add availability zones of the resource.";
        return Err(Refusal::new(409, "ResourceAvailabilityZonesCannotBeModified", message));
    }
    if old.hidden != new.hidden {
        return Err(Refusal::unchangeable("osProfile.customData"));
    }
    for property in [
        "osProfile/computerName",
        "osProfile/adminUsername",
        "osProfile/linuxConfiguration/ssh/publicKeys",
        "storageProfile/imageReference",
        "storageProfile/osDisk/name",
        "availabilitySet",
        "virtualMachineScaleSet",
    ] {
        let at =
            |vm: &Vm| vm.value.pointer(&format!("/properties/{property}")).map(Value::to_string).unwrap_or_default();
        if !at(old).eq_ignore_ascii_case(&at(new)) {
            return Err(Refusal::unchangeable(&property.replace('/', ".")));
        }
    }
    Ok(())
}

/// Makes the disks of a VM that exist with it only, and writes their ids into it. They get the tags of the VM.
pub fn make_disks(vm: &mut Value, place: &Place<'_>, inventory: &mut Inventory) {
    let tags = vm["tags"].clone();
    let zones = vm["zones"].clone();
    let image = vm["properties"]["storageProfile"]["imageReference"].clone();
    let storage = &mut vm["properties"]["storageProfile"];
    let mut parts: Vec<&mut Value> = Vec::new();
    if let Some(fields) = storage.as_object_mut() {
        for (field, value) in fields {
            match (field.as_str(), value) {
                ("osDisk", disk) => parts.push(disk),
                ("dataDisks", Value::Array(disks)) => parts.extend(disks),
                _ => {}
            }
        }
    }
    for (index, disk) in parts.into_iter().enumerate() {
        if disk["createOption"] == "Attach" || disk["managedDisk"]["id"].is_string() {
            continue;
        }
        let own_name = match text(disk, "name") {
            "" => format!("{}_disk{}_0a1b2c3d", place.name, index + 1),
            given => given.to_owned(),
        };
        disk["name"] = json!(own_name);
        disk["managedDisk"]["id"] = json!(Inventory::reference(place.group, DISK, &own_name));
        default(&mut disk["managedDisk"], "storageAccountType", "StandardSSD_LRS");
        if disk["diskSizeGB"].is_null() {
            disk["diskSizeGB"] = json!(30);
        }
        let mut creation = json!({"createOption": disk["createOption"]});
        if disk["createOption"] == "FromImage" {
            let known = text(&image, "id");
            creation["imageReference"] = json!({"id": if known.is_empty() { catalogue::marketplace_path(catalogue::URN) } else { known.to_owned() }});
        }
        let mut made = json!({
            "id": catalogue::id(place.group, DISK, &own_name), "name": own_name, "type": DISK, "location": LOCATION,
            "sku": {"name": disk["managedDisk"]["storageAccountType"]},
            "properties": {
                "creationData": creation, "diskSizeGB": disk["diskSizeGB"], "diskState": "Attached", "provisioningState": "Succeeded",
                "timeCreated": place.created, "uniqueId": format!("0a1b2c3d-0000-4000-b000-{:010x}{index:02}", place.number),
            },
            "managedBy": place.reference(),
        });
        for (field, value) in [("tags", &tags), ("zones", &zones)] {
            if !value.is_null() {
                made[field] = value.clone();
            }
        }
        inventory.disks.insert((place.group.to_ascii_lowercase(), own_name.to_ascii_lowercase()), made);
    }
}

/// What runs in a VM, and why its last operation has failed.
pub fn instance_view(vm: &Vm) -> Value {
    let properties = &vm.value["properties"];
    let state = text(properties, "provisioningState");
    let status = |code: &str, level: &str| json!({"code": code, "level": level, "displayStatus": code});
    let first = match (state, &vm.failure) {
        ("Failed", Some(failure)) => {
            let mut first = status(&format!("ProvisioningState/failed/{}", text(failure, "code")), "Error");
            first["message"] = failure["message"].clone();
            first
        }
        ("Failed", None) => status("ProvisioningState/failed", "Error"),
        ("Succeeded", _) => status("ProvisioningState/succeeded", "Info"),
        _ => status("ProvisioningState/updating", "Info"),
    };
    let mut statuses = vec![first];
    // A test that stops a VM writes its power state here.
    let power = properties["instanceView"]["statuses"][0]["code"].as_str();
    if state == "Succeeded" || power.is_some() {
        statuses.push(status(power.unwrap_or("PowerState/running"), "Info"));
    }
    json!({"computerName": vm.value["name"], "hyperVGeneration": "V2", "statuses": statuses})
}
