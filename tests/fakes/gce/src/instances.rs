//! The creation of an instance: whether the project can fulfil the request, and the instance and disks that it makes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    catalogue::{
        DUAL_SUBNETWORK, IMAGE_GB, NETWORK, PROJECT, REGION, SECONDARY_RANGE, has, has_machine_type, resource_path, url,
    },
    errors::Refusal,
};

/// The most network tags of an instance.
const MOST_TAGS: usize = 64;

/// An instance that may be created, with its new disks and their names.
pub struct Made {
    pub instance: Value,
    pub disks: Vec<(String, Value)>,
}

/// What a creation needs besides the request.
pub struct Place<'a> {
    pub zone: &'a str,
    /// Numbers for ids and addresses.
    pub number: u64,
    pub created: &'a str,
}

/// The instance that a request asks for.
pub fn make(body: &Value, place: &Place<'_>) -> Result<Made, Refusal> {
    let zone = place.zone;
    let zone_path = format!("projects/{PROJECT}/zones/{zone}");
    let name = body["name"].as_str().unwrap_or_default();
    let mut instance = body.clone();
    set_machine_type(&mut instance, zone)?;
    check_labels(&body["labels"], "resource.labels")?;
    check_tags_and_metadata(body)?;
    check_accelerators(&mut instance, zone)?;
    check_scheduling(&mut instance)?;
    set_interfaces(&mut instance, place.number)?;
    let disks = set_disks(&mut instance, name, place)?;
    for (field, value) in [
        ("kind", json!("compute#instance")),
        ("id", json!(place.number.to_string())),
        ("creationTimestamp", json!(place.created)),
        ("status", json!("PROVISIONING")),
        ("zone", json!(url(&zone_path))),
        ("selfLink", json!(url(&format!("{zone_path}/instances/{name}")))),
        ("cpuPlatform", json!("Intel Broadwell")),
        ("labelFingerprint", json!("42WmSpB8rSM=")),
        ("fingerprint", json!("UjVWWlMzYmU=")),
        ("startRestricted", json!(false)),
        ("lastStartTimestamp", json!(place.created)),
    ] {
        instance[field] = value;
    }
    for (part, kind) in [("metadata", "compute#metadata"), ("tags", "")] {
        instance[part]["fingerprint"] = json!("42WmSpB8rSM=");
        if !kind.is_empty() {
            instance[part]["kind"] = json!(kind);
        }
    }
    if instance["deletionProtection"].is_null() {
        instance["deletionProtection"] = json!(false);
    }
    Ok(Made { instance, disks })
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The elements of a list, which may be absent.
fn list_mut<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    value.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

fn set_machine_type(instance: &mut Value, zone: &str) -> Result<(), Refusal> {
    let given = text(instance, "machineType").to_owned();
    let refuse = |detail: &str| Refusal::invalid("resource.machineType", &given, detail);
    let path = resource_path(&given);
    let Some((of_zone, name)) = path.split_once("/machineTypes/") else {
        return Err(refuse("The URL is malformed."));
    };
    if of_zone != format!("projects/{PROJECT}/zones/{zone}") {
        return Err(refuse("The machine type is in another zone than the instance."));
    }
    if !has_machine_type(zone, name) {
        return Err(refuse(&format!("Machine type with name '{name}' does not exist in zone '{zone}'.")));
    }
    instance["machineType"] = json!(url(&path));
    Ok(())
}

/// Labels have lower case letters, digits, underscores and dashes, and keys begin with a letter.
fn check_labels(labels: &Value, field: &str) -> Result<(), Refusal> {
    let fits = |text: &str| {
        text.len() <= 63 && text.chars().all(|c| c.is_ascii_digit() || c.is_lowercase() || c == '_' || c == '-')
    };
    for (key, value) in labels.as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !fits(key) || !key.starts_with(char::is_lowercase) || !fits(value) {
            let detail = format!("Label '{key}': '{value}' violates format constraints.");
            return Err(Refusal::invalid(field, "", &detail));
        }
    }
    Ok(())
}

fn check_tags_and_metadata(body: &Value) -> Result<(), Refusal> {
    if body["tags"]["items"].as_array().map_or(0, Vec::len) > MOST_TAGS {
        return Err(Refusal::invalid("resource.tags", "", "There are too many tags."));
    }
    let keys = body["metadata"]["items"].as_array().into_iter().flatten().map(|item| text(item, "key"));
    let mut seen = BTreeSet::new();
    for key in keys {
        if !seen.insert(key) {
            return Err(Refusal::invalid("resource.metadata", key, "Metadata has duplicate keys."));
        }
    }
    if body["serviceAccounts"].as_array().map_or(0, Vec::len) > 1 {
        return Err(Refusal::invalid("resource.serviceAccounts", "", "At most one service account can be specified."));
    }
    Ok(())
}

fn check_accelerators(instance: &mut Value, zone: &str) -> Result<(), Refusal> {
    let terminates = instance["scheduling"]["onHostMaintenance"] == "TERMINATE";
    for accelerator in list_mut(instance, "guestAccelerators") {
        let path = resource_path(text(accelerator, "acceleratorType"));
        if !path.starts_with(&format!("projects/{PROJECT}/zones/{zone}/acceleratorTypes/")) || !has(&path) {
            let detail = "The referenced acceleratorType resource cannot be found.";
            return Err(Refusal::invalid("resource.guestAccelerators[0].acceleratorType", &path, detail));
        }
        if !terminates {
            let message = "Instances with guest accelerators do not support live migration.";
            return Err(Refusal::new(400, "badRequest", message));
        }
        accelerator["acceleratorType"] = json!(url(&path));
    }
    Ok(())
}

fn check_scheduling(instance: &mut Value) -> Result<(), Refusal> {
    let scheduling = &mut instance["scheduling"];
    let spot = scheduling["provisioningModel"] == "SPOT";
    let preemptible = scheduling["preemptible"] == true || spot;
    for (wrong, when) in [
        (scheduling["automaticRestart"] == true, "AutomaticRestart is true"),
        (scheduling["onHostMaintenance"] == "MIGRATE", "OnHostMaintenance isn't TERMINATE"),
    ] {
        if preemptible && wrong {
            let detail = format!("Scheduling must have preemptible be false when {when}.");
            return Err(Refusal::invalid("resource.scheduling.preemptible", "true", &detail));
        }
    }
    if scheduling["instanceTerminationAction"].is_string() && !spot {
        let message = "You cannot specify a termination action for a VM instance that has the standard provisioning model (default). To use \
                       instance termination action, the VM instance must use the Spot provisioning model.";
        return Err(Refusal::new(400, "badRequest", message));
    }
    scheduling["preemptible"] = json!(preemptible);
    if scheduling["automaticRestart"].is_null() {
        scheduling["automaticRestart"] = json!(!preemptible);
    }
    if scheduling["provisioningModel"].is_null() {
        scheduling["provisioningModel"] = json!("STANDARD");
    }
    Ok(())
}

fn set_interfaces(instance: &mut Value, number: u64) -> Result<(), Refusal> {
    let interfaces = instance["networkInterfaces"].as_array_mut().filter(|interfaces| !interfaces.is_empty());
    let Some(interfaces) = interfaces else {
        return Err(Refusal::invalid("resource.networkInterfaces", "", "At least one network interface is required."));
    };
    for (index, interface) in interfaces.iter_mut().enumerate() {
        let field = |name: &str| format!("resource.networkInterfaces[{index}].{name}");
        for name in ["network", "subnetwork"] {
            if let Some(given) = interface[name].as_str() {
                let path = resource_path(given);
                if !path.contains(&format!("/{name}s/")) || !has(&path) {
                    let detail = format!("The referenced {name} resource cannot be found.");
                    return Err(Refusal::invalid(&field(name), given, &detail));
                }
                interface[name] = json!(url(&path));
            }
        }
        let Some(subnetwork) = interface["subnetwork"].as_str() else {
            let detail = "Subnetwork should be specified for custom subnetmode network.";
            return Err(Refusal::invalid(&field("subnetwork"), "", detail));
        };
        let dual = subnetwork.ends_with(&format!("regions/{REGION}/subnetworks/{DUAL_SUBNETWORK}"));
        if interface["stackType"] == "IPV4_IPV6" && !dual {
            let detail = "The subnetwork has no IPv6 addresses.";
            return Err(Refusal::invalid(&field("stackType"), "IPV4_IPV6", detail));
        }
        for range in interface["aliasIpRanges"].as_array().into_iter().flatten() {
            let name = text(range, "subnetworkRangeName");
            if !name.is_empty() && name != SECONDARY_RANGE {
                let detail = "The subnetwork has no such secondary range.";
                return Err(Refusal::invalid(&field("aliasIpRanges[0].subnetworkRangeName"), name, detail));
            }
        }
        interface["network"] = json!(url(&format!("projects/{PROJECT}/global/networks/{NETWORK}")));
        interface["kind"] = json!("compute#networkInterface");
        interface["name"] = json!(format!("nic{index}"));
        interface["networkIP"] = json!(format!("10.250.{}.{}", number / 250 % 250, number % 250 + 2));
        interface["fingerprint"] = json!("s1Tx9ehYzqg=");
        if interface["stackType"].is_null() {
            interface["stackType"] = json!("IPV4_ONLY");
        }
        for access in list_mut(interface, "accessConfigs") {
            access["kind"] = json!("compute#accessConfig");
            access["type"] = json!("ONE_TO_ONE_NAT");
            access["networkTier"] = json!("PREMIUM");
            access["natIP"] = json!(format!("203.0.113.{}", number % 250 + 2));
            if access["name"].is_null() {
                access["name"] = json!("External NAT");
            }
        }
    }
    Ok(())
}

/// Replaces what the disks are made of by the disks, and returns the new ones.
fn set_disks(instance: &mut Value, name: &str, place: &Place<'_>) -> Result<Vec<(String, Value)>, Refusal> {
    let disks = instance["disks"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
    let boots = disks.iter().filter(|disk| disk["boot"] == true).count();
    if boots != 1 || disks[0]["boot"] != true {
        return Err(Refusal::invalid("resource.disks", "", "The first disk, and no other, must be the boot disk."));
    }
    let mut made = Vec::new();
    for (index, disk) in disks.iter_mut().enumerate() {
        let Some(params) = disk.as_object_mut().and_then(|disk| disk.remove("initializeParams")) else {
            return Err(Refusal::invalid(&format!("resource.disks[{index}]"), "", "The fake has no disk to attach."));
        };
        let source = DiskSource::of(disk, &params, index, place.zone)?;
        attach(disk, index, &source);
        if disk["type"] != "SCRATCH" {
            let disk_name = match (text(&params, "diskName"), index) {
                ("", 0) => name.to_owned(),
                ("", index) => format!("{name}-{index}"),
                (given, _) => given.to_owned(),
            };
            let id = format!("{}{index:02}", place.number);
            let resource = new_disk(disk, &params, &source, place, [name, &disk_name, &id]);
            disk["source"] = resource["selfLink"].clone();
            made.push((disk_name, resource));
        }
    }
    Ok(made)
}

/// What a new disk is made of.
struct DiskSource {
    disk_type: String,
    image: Option<String>,
    size_gb: i64,
}

impl DiskSource {
    fn of(disk: &Value, params: &Value, index: usize, zone: &str) -> Result<Self, Refusal> {
        let field = |name: &str| format!("resource.disks[{index}].initializeParams.{name}");
        let types = format!("projects/{PROJECT}/zones/{zone}/diskTypes/");
        let scratch = disk["type"] == "SCRATCH";
        let disk_type = match text(params, "diskType") {
            "" => format!("{types}pd-standard"),
            given => resource_path(given),
        };
        if !disk_type.starts_with(&types) || !has(&disk_type) || disk_type.ends_with("/local-ssd") != scratch {
            let detail = "The referenced diskType resource cannot be found, or does not fit the type of the disk.";
            return Err(Refusal::invalid(&field("diskType"), text(params, "diskType"), detail));
        }
        let given = text(params, "sourceImage");
        let image = (!given.is_empty()).then(|| resource_path(given));
        if disk["boot"] == true && image.is_none() {
            return Err(Refusal::invalid(&field("sourceImage"), "", "A boot disk needs a source."));
        }
        if image.as_ref().is_some_and(|image| scratch || !image.contains("/images/") || !has(image)) {
            let detail = "The referenced image resource cannot be found.";
            return Err(Refusal::invalid(&field("sourceImage"), given, detail));
        }
        let default = if image.is_none() { 500 } else { IMAGE_GB };
        let size_gb = params["diskSizeGb"].as_str().and_then(|size| size.parse().ok()).unwrap_or(default);
        if size_gb < 1 || (image.is_some() && size_gb < IMAGE_GB) {
            let detail = format!("Requested disk size cannot be smaller than the image size ({IMAGE_GB} GB)");
            return Err(Refusal::invalid(&field("diskSizeGb"), &size_gb.to_string(), &detail));
        }
        check_labels(&params["labels"], &field("labels"))?;
        Ok(Self { disk_type, image, size_gb })
    }
}

/// The disk as its instance shows it.
fn attach(disk: &mut Value, index: usize, source: &DiskSource) {
    disk["kind"] = json!("compute#attachedDisk");
    disk["index"] = json!(index);
    disk["mode"] = json!("READ_WRITE");
    disk["diskSizeGb"] = json!(source.size_gb.to_string());
    for (field, absent) in [
        ("type", json!("PERSISTENT")),
        ("boot", json!(false)),
        ("autoDelete", json!(false)),
        ("deviceName", json!(format!("persistent-disk-{index}"))),
    ] {
        if disk[field].is_null() {
            disk[field] = absent;
        }
    }
}

/// The disk itself. The names are those of instance and disk, and the disk's id.
fn new_disk(attached: &Value, params: &Value, source: &DiskSource, place: &Place<'_>, names: [&str; 3]) -> Value {
    let zone_path = format!("projects/{PROJECT}/zones/{}", place.zone);
    let [instance, name, id] = names;
    let mut disk = json!({
        "kind": "compute#disk", "id": id, "name": name, "status": "READY", "creationTimestamp": place.created,
        "sizeGb": source.size_gb.to_string(), "type": url(&source.disk_type), "zone": url(&zone_path),
        "selfLink": url(&format!("{zone_path}/disks/{name}")), "users": [url(&format!("{zone_path}/instances/{instance}"))],
        "labelFingerprint": "42WmSpB8rSM=",
    });
    if let Some(image) = &source.image {
        disk["sourceImage"] = json!(url(image));
    }
    let kept =
        ["labels", "provisionedIops", "provisionedThroughput", "storagePool"].map(|field| (field, &params[field]));
    for (field, value) in kept.into_iter().chain([("diskEncryptionKey", &attached["diskEncryptionKey"])]) {
        if !value.is_null() {
            disk[field] = value.clone();
        }
    }
    disk
}
