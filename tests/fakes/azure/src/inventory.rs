//! The resources that tests and drivers make: VMs, network interfaces and disks, and the terms of plans.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    catalogue::{self, SUBNET, VNET},
    operations::Key,
};

/// The type of a VM.
pub const VM: &str = "Microsoft.Compute/virtualMachines";
/// The type of a network interface.
pub const NIC: &str = "Microsoft.Network/networkInterfaces";
/// The type of a disk.
pub const DISK: &str = "Microsoft.Compute/disks";

/// A VM, and what Azure keeps but never shows.
pub struct Vm {
    pub value: Value,
    pub hidden: Hidden,
    /// The error of the last operation, if it has failed.
    pub failure: Option<Value>,
}

/// The part of a VM that no answer shows. It can't change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hidden {
    pub custom_data: String,
}

#[derive(Default)]
pub struct Inventory {
    pub vms: BTreeMap<Key, Vm>,
    pub nics: BTreeMap<Key, Value>,
    pub disks: BTreeMap<Key, Value>,
    /// The terms of the plan of the catalogue.
    pub terms: Value,
}

impl Inventory {
    /// The id of a resource as references spell it: with the group in upper case, as Azure often does.
    pub fn reference(group: &str, kind: &str, name: &str) -> String {
        catalogue::id(&group.to_ascii_uppercase(), kind, name)
    }

    pub fn nic(&self, id: &str) -> Option<(Key, &Value)> {
        let key = catalogue::parse(id, NIC)?;
        self.nics.get(&key).map(|nic| (key, nic))
    }

    pub fn disk(&self, id: &str) -> Option<(Key, &Value)> {
        let key = catalogue::parse(id, DISK)?;
        self.disks.get(&key).map(|disk| (key, disk))
    }

    /// Connects the interfaces of a VM with it.
    pub fn connect(&mut self, vm: &Value, reference: &str) {
        for id in nic_ids(vm) {
            if let Some(nic) = catalogue::parse(id, NIC).and_then(|key| self.nics.get_mut(&key)) {
                nic["properties"]["virtualMachine"] = json!({ "id": reference });
                nic["properties"]["primary"] = json!(true);
            }
        }
        for id in disk_ids(vm) {
            if let Some(disk) = catalogue::parse(id, DISK).and_then(|key| self.disks.get_mut(&key)) {
                disk["managedBy"] = json!(reference);
                disk["properties"]["diskState"] = json!("Attached");
            }
        }
    }

    /// Removes a VM, with all parts whose option says so. The other parts stay, and are free.
    pub fn remove_vm(&mut self, key: &Key) {
        let Some(vm) = self.vms.remove(key) else { return };
        let properties = &vm.value["properties"];
        for nic in list(&properties["networkProfile"]["networkInterfaces"]) {
            let Some(nic_key) = catalogue::parse(text(nic, "id"), NIC) else { continue };
            if nic["properties"]["deleteOption"] == "Delete" {
                self.nics.remove(&nic_key);
            } else if let Some(free) = self.nics.get_mut(&nic_key) {
                free["properties"].as_object_mut().map(|properties| properties.remove("virtualMachine"));
            }
        }
        let disks = list(&properties["storageProfile"]["dataDisks"]);
        for disk in disks.iter().chain([&properties["storageProfile"]["osDisk"]]) {
            let Some(disk_key) = catalogue::parse(text(&disk["managedDisk"], "id"), DISK) else { continue };
            if disk["deleteOption"] == "Delete" {
                self.disks.remove(&disk_key);
            } else {
                self.release_disk(&disk_key);
            }
        }
    }

    /// A disk that no VM has any more.
    pub fn release_disk(&mut self, key: &Key) {
        if let Some(disk) = self.disks.get_mut(key) {
            disk.as_object_mut().map(|disk| disk.remove("managedBy"));
            disk["properties"]["diskState"] = json!("Unattached");
        }
    }

    /// All resources as Resource Graph shows them, ordered by their ids.
    pub fn rows(&self) -> Vec<Value> {
        let vms = self.vms.values().map(|vm| &vm.value);
        let mut rows: Vec<_> = vms.chain(self.nics.values()).chain(self.disks.values()).map(row).collect();
        rows.sort_by(|one, other| text(one, "id").cmp(text(other, "id")));
        rows
    }
}

/// A resource as Resource Graph shows it: with its type and group in lower case.
fn row(resource: &Value) -> Value {
    let id = text(resource, "id");
    let group = id.split('/').nth(4).unwrap_or_default().to_ascii_lowercase();
    let spelled = id.replacen(id.split('/').nth(4).unwrap_or_default(), &group, 1);
    let field = |name: &str| resource.get(name).cloned().unwrap_or(Value::Null);
    json!({
        "id": spelled, "name": field("name"), "type": text(resource, "type").to_ascii_lowercase(), "tenantId": crate::TENANT, "kind": "",
        "location": field("location"), "resourceGroup": group, "subscriptionId": crate::SUBSCRIPTION, "managedBy": field("managedBy"),
        "sku": field("sku"), "plan": field("plan"), "properties": field("properties"), "tags": field("tags"), "identity": field("identity"),
        "zones": field("zones"), "extendedLocation": Value::Null,
    })
}

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The ids of the network interfaces of a VM.
pub fn nic_ids(vm: &Value) -> impl Iterator<Item = &str> {
    list(&vm["properties"]["networkProfile"]["networkInterfaces"]).iter().map(|nic| text(nic, "id"))
}

/// The ids of the disks of a VM. A disk that does not exist yet has none.
pub fn disk_ids(vm: &Value) -> impl Iterator<Item = &str> {
    let storage = &vm["properties"]["storageProfile"];
    let disks = list(&storage["dataDisks"]).iter().chain([&storage["osDisk"]]);
    disks.map(|disk| text(&disk["managedDisk"], "id")).filter(|id| !id.is_empty())
}

/// The id of the subnet of the machines.
pub fn subnet_id(group: &str) -> String {
    format!("{}/subnets/{SUBNET}", catalogue::id(group, "Microsoft.Network/virtualNetworks", VNET))
}
