//! The body of an `instances.insert` from `providerSpec`, machine and user data. Pure functions.

use machine_driver::{Code, Status};
use serde_json::{Map, Value, json};

use crate::{
    rules::{DUAL_STACK, EXTERNAL, SCRATCH, STARTUP_SCRIPT_KEY, TERMINATE, USER_DATA_KEY},
    spec::{Disk, NetworkInterface, Scheduling, Spec},
    zone::Zone,
};

/// How user data for cloud-init begins.
const CLOUD_CONFIG: &str = "#cloud-config";
/// The disk type of a local SSD.
const LOCAL_SSD: &str = "local-ssd";

/// The input of a creation.
#[derive(Clone, Copy)]
pub struct NewInstance<'a> {
    pub spec: &'a Spec,
    /// The zone of the instance. It may differ from the zone of the class if an earlier creation goes on.
    pub zone: &'a Zone,
    pub name: &'a str,
    pub user_data: &'a [u8],
}

/// The body of the request for an instance.
///
/// # Errors
/// `InvalidArgument` for user data that is no text: metadata consists of texts.
pub fn instance(new: NewInstance<'_>) -> Result<Value, Status> {
    let NewInstance { spec, zone, name, user_data } = new;
    let user_data = std::str::from_utf8(user_data)
        .map_err(|_| Status::new(Code::InvalidArgument, "data[userData]: Invalid value: must be a text in UTF-8"))?;
    let key = user_data_key(user_data);
    if let Some(index) = spec.metadata.iter().position(|entry| entry.key == key) {
        let message =
            format!("providerSpec.metadata[{index}].key: Forbidden: the driver sets {key}, because of the user data");
        return Err(Status::new(Code::InvalidArgument, message));
    }
    let (project, zone) = (zone.project(), zone.name());
    let mut body = json!({
        "name": name,
        "machineType": format!("zones/{zone}/machineTypes/{}", spec.machine_type),
        "canIpForward": spec.can_ip_forward,
        "deletionProtection": spec.deletion_protection,
        "disks": spec.disks.iter().map(|disk| attached_disk(disk, project, zone)).collect::<Vec<_>>(),
        "networkInterfaces": spec.network_interfaces.iter().map(|one| interface(one, project, &spec.region)).collect::<Vec<_>>(),
        "scheduling": scheduling(&spec.scheduling, spec.gpu.is_some()),
        "metadata": {"items": metadata(spec, user_data)},
        "tags": {"items": spec.tags},
    });
    let Some(fields) = body.as_object_mut() else { return Ok(body) };
    set_text(fields, "description", &spec.description);
    set_text(fields, "minCpuPlatform", &spec.min_cpu_platform);
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    if !spec.labels.is_empty() {
        set("labels", json!(spec.labels));
    }
    if !spec.service_accounts.is_empty() {
        set("serviceAccounts", json!(spec.service_accounts));
    }
    if let Some(gpu) = &spec.gpu {
        let kind = format!("projects/{project}/zones/{zone}/acceleratorTypes/{}", gpu.accelerator_type);
        set("guestAccelerators", json!([{"acceleratorType": kind, "acceleratorCount": gpu.count}]));
    }
    if let Some(affinity) = &spec.reservation_affinity {
        set("reservationAffinity", json!(affinity));
    }
    if let Some(shielded) = &spec.shielded_instance_configuration {
        let config = json!({
            "enableIntegrityMonitoring": shielded.integrity_monitoring,
            "enableSecureBoot": shielded.secure_boot,
            "enableVtpm": shielded.vtpm,
        });
        set("shieldedInstanceConfig", config);
    }
    if let Some(features) = &spec.advanced_machine_features {
        let features = json!({"enableNestedVirtualization": features.enable_nested_virtualization});
        set("advancedMachineFeatures", features);
    }
    Ok(body)
}

fn set_text(fields: &mut Map<String, Value>, name: &str, text: &str) {
    if !text.is_empty() {
        fields.insert(name.to_owned(), json!(text));
    }
}

/// GCE writes 64-bit integers as texts.
fn set_number(fields: &mut Map<String, Value>, name: &str, number: i64) {
    if number != 0 {
        fields.insert(name.to_owned(), json!(number.to_string()));
    }
}

fn attached_disk(disk: &Disk, project: &str, zone: &str) -> Value {
    let auto_delete = disk.auto_delete.unwrap_or(true);
    if disk.kind == SCRATCH {
        let kind = format!("projects/{project}/zones/{zone}/diskTypes/{LOCAL_SSD}");
        return json!({
            "autoDelete": auto_delete,
            "type": SCRATCH,
            "interface": disk.interface,
            "initializeParams": {"diskType": kind},
        });
    }
    let mut params = Map::new();
    set_number(&mut params, "diskSizeGb", disk.size_gb);
    set_text(&mut params, "sourceImage", &disk.image);
    set_text(&mut params, "storagePool", &disk.storage_pool);
    set_number(&mut params, "provisionedIops", disk.provisioned_iops);
    set_number(&mut params, "provisionedThroughput", disk.provisioned_throughput);
    if !disk.kind.is_empty() {
        params.insert("diskType".to_owned(), json!(format!("zones/{zone}/diskTypes/{}", disk.kind)));
    }
    if !disk.labels.is_empty() {
        params.insert("labels".to_owned(), json!(disk.labels));
    }
    let mut attached = Map::new();
    attached.insert("autoDelete".to_owned(), json!(auto_delete));
    attached.insert("boot".to_owned(), json!(disk.boot));
    attached.insert("type".to_owned(), json!("PERSISTENT"));
    attached.insert("initializeParams".to_owned(), Value::Object(params));
    if let Some(encryption) = &disk.encryption {
        let mut key = Map::new();
        set_text(&mut key, "kmsKeyName", &encryption.kms_key_name);
        set_text(&mut key, "kmsKeyServiceAccount", &encryption.kms_key_service_account);
        attached.insert("diskEncryptionKey".to_owned(), Value::Object(key));
    }
    Value::Object(attached)
}

fn interface(interface: &NetworkInterface, project: &str, region: &str) -> Value {
    let mut body = Map::new();
    if !interface.network.is_empty() {
        let network = format!("projects/{project}/global/networks/{}", interface.network);
        body.insert("network".to_owned(), json!(network));
    }
    if !interface.subnetwork.is_empty() {
        let subnetwork = format!("regions/{region}/subnetworks/{}", interface.subnetwork);
        body.insert("subnetwork".to_owned(), json!(subnetwork));
    }
    if !interface.disable_external_ip {
        body.insert("accessConfigs".to_owned(), json!([{"type": "ONE_TO_ONE_NAT"}]));
    }
    if interface.stack_type == DUAL_STACK {
        body.insert("stackType".to_owned(), json!(DUAL_STACK));
        // The access type itself is inherited from the subnetwork. An instance has an external address only with an access configuration.
        if interface.ipv6_access_type == EXTERNAL {
            let access = json!([{"type": "DIRECT_IPV6", "networkTier": "PREMIUM"}]);
            body.insert("ipv6AccessConfigs".to_owned(), access);
        }
        if !interface.ip_cidr_range.is_empty() {
            let mut range = Map::new();
            set_text(&mut range, "ipCidrRange", &interface.ip_cidr_range);
            set_text(&mut range, "subnetworkRangeName", &interface.subnetwork_range_name);
            body.insert("aliasIpRanges".to_owned(), json!([range]));
        }
    }
    Value::Object(body)
}

/// An instance with GPUs is terminated for maintenance whatever the class says, because it can't be moved.
fn scheduling(scheduling: &Scheduling, has_gpu: bool) -> Value {
    let maintenance = if has_gpu { TERMINATE } else { &scheduling.on_host_maintenance };
    let mut body = Map::new();
    body.insert("automaticRestart".to_owned(), json!(scheduling.automatic_restart));
    body.insert("onHostMaintenance".to_owned(), json!(maintenance));
    // A spot instance is preemptible by its model; `preemptible: false` would contradict it.
    if scheduling.preemptible || scheduling.provisioning_model.is_empty() {
        body.insert("preemptible".to_owned(), json!(scheduling.preemptible));
    }
    set_text(&mut body, "provisioningModel", &scheduling.provisioning_model);
    set_text(&mut body, "instanceTerminationAction", &scheduling.instance_termination_action);
    Value::Object(body)
}

fn metadata(spec: &Spec, user_data: &str) -> Vec<Value> {
    let of_class = spec.metadata.iter().map(|entry| json!({"key": entry.key, "value": entry.value}));
    of_class.chain([json!({"key": user_data_key(user_data), "value": user_data})]).collect()
}

/// The metadata key of user data.
fn user_data_key(user_data: &str) -> &'static str {
    if user_data.starts_with(CLOUD_CONFIG) { USER_DATA_KEY } else { STARTUP_SCRIPT_KEY }
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
