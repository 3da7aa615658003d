//! The bodies of requests for network interfaces, disks and VMs, from `providerSpec`, machine and user data. Pure functions.

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_driver::{Code, Status};
use serde_json::{Map, Value, json};

use crate::{
    api::{self, Group, Plan},
    plan::{self, DELETE},
    spec::{DataDisk, Image, OsProfile, Properties, Spec},
    subject::Home,
};

/// The path of a new SSH key, if the class names none.
fn default_key_path(user: &str) -> String {
    format!("/home/{user}/.ssh/authorized_keys")
}

/// The id of the subnet of a class.
pub fn subnet_id(spec: &Spec, home: &Home) -> String {
    let (group, network, subnet) = subnet(spec, home);
    format!("{group}/providers/Microsoft.Network/virtualNetworks/{network}/subnets/{subnet}")
}

/// The resource group, the network and the name of the subnet of a class.
pub fn subnet<'s>(spec: &'s Spec, home: &Home) -> (Group, &'s str, &'s str) {
    let info = &spec.subnet_info;
    let mut group = home.group.clone();
    if !info.vnet_resource_group.trim().is_empty() {
        info.vnet_resource_group.trim().clone_into(&mut group.name);
    }
    (group, info.vnet_name.trim(), info.subnet_name.trim())
}

/// The body of the request for a network interface.
pub fn network_interface(spec: &Spec, home: &Home, name: &str) -> Value {
    let subnet = json!({"id": subnet_id(spec, home)});
    let configuration = |name: &str, properties: Value| json!({"name": name, "properties": properties});
    let mut configurations =
        vec![configuration(name, json!({"privateIPAllocationMethod": "Dynamic", "subnet": subnet, "primary": true}))];
    if spec.properties.network_profile.ipv6 {
        let properties = json!({
            "privateIPAllocationMethod": "Dynamic", "privateIPAddressVersion": "IPv6", "subnet": subnet, "primary": false,
        });
        configurations.push(configuration(&format!("{name}-ipv6"), properties));
    }
    let mut properties = json!({"ipConfigurations": configurations, "enableIPForwarding": true});
    if let Some(accelerated) = spec.properties.network_profile.accelerated_networking {
        properties["enableAcceleratedNetworking"] = json!(accelerated);
    }
    json!({"location": home.location, "tags": spec.tags, "properties": properties})
}

/// The body of the request for a data disk with the content of an image. `image` is the id of an image of the marketplace that the class names by an
/// urn.
pub fn disk(spec: &Spec, home: &Home, disk: &DataDisk, image: &Image, id_of_urn: Option<&str>) -> Value {
    let mut creation = json!({"createOption": "FromImage"});
    if !image.community_gallery_image_id.is_empty() {
        creation["galleryImageReference"] = json!({"communityGalleryImageId": image.community_gallery_image_id});
    } else if !image.shared_gallery_image_id.is_empty() {
        creation["galleryImageReference"] = json!({"sharedGalleryImageId": image.shared_gallery_image_id});
    } else {
        creation["imageReference"] = json!({"id": id_of_urn.unwrap_or(&image.id)});
    }
    let mut body = json!({
        "location": home.location, "tags": spec.tags, "sku": {"name": disk.storage_account_type},
        "properties": {"diskSizeGB": disk.disk_size_gb, "creationData": creation},
    });
    if let Some(zone) = spec.properties.zone {
        body["zones"] = json!([zone.to_string()]);
    }
    body
}

/// The input of a VM's creation.
#[derive(Clone, Copy)]
pub struct NewVm<'a> {
    pub spec: &'a Spec,
    pub home: &'a Home,
    pub name: &'a str,
    pub user_data: &'a [u8],
    /// The purchase plan of the image.
    pub plan: Option<&'a Plan>,
    /// A public key, if the class has none.
    pub public_key: Option<&'a str>,
}

/// The body of the request for a VM.
pub fn virtual_machine(new: NewVm<'_>) -> Value {
    let NewVm { spec, home, name, plan, .. } = new;
    let properties = &spec.properties;
    let nic = api::network_interface_id(&home.group, &plan::network_interface(name));
    let mut of_vm = json!({
        "hardwareProfile": {"vmSize": properties.hardware_profile.vm_size},
        "storageProfile": storage_profile(new),
        "osProfile": os_profile(new),
        "networkProfile": {"networkInterfaces": [{"id": nic, "properties": {"primary": true, "deleteOption": DELETE}}]},
    });
    if let Some(fields) = of_vm.as_object_mut() {
        optional_parts(properties, fields);
    }
    let mut body = json!({"location": home.location, "tags": spec.tags, "properties": of_vm});
    if let Some(zone) = properties.zone {
        body["zones"] = json!([zone.to_string()]);
    }
    if let Some(plan) = plan {
        body["plan"] = json!(plan);
    }
    if !properties.identity_id.is_empty() {
        let mut identities = Map::new();
        identities.insert(properties.identity_id.clone(), json!({}));
        body["identity"] = json!({"type": "UserAssigned", "userAssignedIdentities": identities});
    }
    body
}

fn set_text(fields: &mut Map<String, Value>, name: &str, text: &str) {
    if !text.is_empty() {
        fields.insert(name.to_owned(), json!(text));
    }
}

/// The parts of a VM that a class may leave out.
fn optional_parts(properties: &Properties, fields: &mut Map<String, Value>) {
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    if let Some(set_of_vm) = &properties.availability_set {
        set("availabilitySet", json!({"id": set_of_vm.id}));
    }
    if let Some(set_of_vm) = &properties.virtual_machine_scale_set {
        set("virtualMachineScaleSet", json!({"id": set_of_vm.id}));
    }
    if let Some(diagnostics) = &properties.diagnostics_profile {
        let mut boot = Map::new();
        boot.insert("enabled".to_owned(), json!(diagnostics.enabled));
        set_text(&mut boot, "storageUri", &diagnostics.storage_uri);
        set("diagnosticsProfile", json!({"bootDiagnostics": boot}));
    }
    if let Some(security) = &properties.security_profile {
        let mut profile = Map::new();
        set_text(&mut profile, "securityType", &security.security_type);
        if let Some(settings) = &security.uefi_settings {
            let mut uefi = Map::new();
            let flags = [("vTpmEnabled", settings.vtpm_enabled), ("secureBootEnabled", settings.secure_boot_enabled)];
            for (name, flag) in flags {
                flag.and_then(|flag| uefi.insert(name.to_owned(), json!(flag)));
            }
            profile.insert("uefiSettings".to_owned(), Value::Object(uefi));
        }
        set("securityProfile", Value::Object(profile));
    }
    let reservation = &properties.capacity_reservation.capacity_reservation_group_id;
    if !reservation.is_empty() {
        set("capacityReservation", json!({"capacityReservationGroup": {"id": reservation}}));
    }
    if !properties.priority.is_empty() {
        set("priority", json!(properties.priority));
    }
    if !properties.eviction_policy.is_empty() {
        set("evictionPolicy", json!(properties.eviction_policy));
    }
    if let Some(price) = properties.billing_profile.max_price {
        set("billingProfile", json!({"maxPrice": price}));
    }
}

fn storage_profile(new: NewVm<'_>) -> Value {
    let NewVm { spec, home, name, .. } = new;
    let storage = &spec.properties.storage_profile;
    let (os, of_class) = (plan::os_disk(name), &storage.os_disk);
    let mut managed = Map::new();
    set_text(&mut managed, "storageAccountType", &of_class.managed_disk.storage_account_type);
    let encryption = &of_class.managed_disk.security_profile.security_encryption_type;
    if !encryption.is_empty() {
        managed.insert("securityProfile".to_owned(), json!({"securityEncryptionType": encryption}));
    }
    let mut disk = Map::new();
    disk.insert("name".to_owned(), json!(os));
    set_text(&mut disk, "caching", &of_class.caching);
    disk.insert("createOption".to_owned(), json!(of_class.create_option));
    disk.insert("diskSizeGB".to_owned(), json!(of_class.disk_size_gb));
    disk.insert("deleteOption".to_owned(), json!(DELETE));
    disk.insert("managedDisk".to_owned(), Value::Object(managed));
    let mut profile = Map::new();
    profile.insert("imageReference".to_owned(), image_reference(&storage.image_reference));
    set_text(&mut profile, "diskControllerType", &storage.disk_controller_type);
    profile.insert("osDisk".to_owned(), Value::Object(disk));
    if !storage.data_disks.is_empty() {
        let disks: Vec<Value> = storage.data_disks.iter().map(|disk| data_disk(disk, home, name)).collect();
        profile.insert("dataDisks".to_owned(), json!(disks));
    }
    Value::Object(profile)
}

fn image_reference(image: &Image) -> Value {
    if let Some(api::MarketplaceImage { publisher, offer, sku, version }) = image.marketplace() {
        return json!({"publisher": publisher, "offer": offer, "sku": sku, "version": version});
    }
    let ids = [
        ("id", &image.id),
        ("communityGalleryImageId", &image.community_gallery_image_id),
        ("sharedGalleryImageId", &image.shared_gallery_image_id),
    ];
    let mut reference = Map::new();
    for (name, id) in ids {
        set_text(&mut reference, name, id);
    }
    Value::Object(reference)
}

/// A data disk: one that exists already, because it has the content of an image, or an empty one, which Azure makes with the VM.
fn data_disk(disk: &DataDisk, home: &Home, name: &str) -> Value {
    let disk_name = plan::data_disk(name, &disk.key());
    let caching = if disk.caching.is_empty() { "None" } else { &disk.caching };
    let mut managed = json!({"storageAccountType": disk.storage_account_type});
    let mut body = json!({"lun": disk.lun, "name": disk_name, "caching": caching, "deleteOption": DELETE});
    if disk.image_ref.is_some() {
        managed["id"] = json!(api::disk_id(&home.group, &disk_name));
        body["createOption"] = json!("Attach");
    } else {
        body["createOption"] = json!("Empty");
        body["diskSizeGB"] = json!(disk.disk_size_gb);
    }
    body["managedDisk"] = managed;
    body
}

fn os_profile(new: NewVm<'_>) -> Value {
    let NewVm { spec, name, user_data, public_key, .. } = new;
    let OsProfile { admin_username, linux_configuration } = &spec.properties.os_profile;
    let key = &linux_configuration.ssh.public_keys;
    let path = if key.path.is_empty() { default_key_path(admin_username) } else { key.path.clone() };
    let key_data = public_key.unwrap_or(&key.key_data);
    json!({
        "computerName": name,
        "adminUsername": admin_username,
        "customData": BASE64_STANDARD.encode(user_data),
        "linuxConfiguration": {
            "disablePasswordAuthentication": linux_configuration.disable_password_authentication,
            "ssh": {"publicKeys": [{"path": path, "keyData": key_data}]},
        },
    })
}

/// The public part of a new SSH key, whose private part is not kept. Azure makes no VM without a password or a key.
///
/// # Errors
/// `Internal` if the system has no random numbers.
pub fn throw_away_key() -> Result<String, Status> {
    use ring::{
        rand::SystemRandom,
        signature::{Ed25519KeyPair, KeyPair},
    };

    let failed = |_| Status::new(Code::Internal, "no SSH key could be made");
    let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref())
        .map_err(|_| Status::new(Code::Internal, "no SSH key could be made"))?;
    Ok(ssh_key(pair.public_key().as_ref()))
}

/// An Ed25519 key in the form of OpenSSH (RFC 4253, RFC 8709).
fn ssh_key(public: &[u8]) -> String {
    const KIND: &str = "ssh-ed25519";
    let mut blob = Vec::new();
    for part in [KIND.as_bytes(), public] {
        blob.extend(u32::try_from(part.len()).unwrap_or_default().to_be_bytes());
        blob.extend(part);
    }
    format!("{KIND} {}", BASE64_STANDARD.encode(blob))
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
