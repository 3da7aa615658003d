//! The parts of Azure's resources that the driver reads. The JSON stays as it was received, because an update has to send it back.

use serde_json::Value;

use crate::names::last_segment;

/// A resource: a VM, a network interface or a disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resource(pub Value);

impl Resource {
    /// Whether the resource has a tag with this key. Azure ignores the letter case of keys.
    pub fn has_tag(&self, key: &str) -> bool {
        has_tag(&self.0["tags"], key)
    }

    /// The state of the last change, such as `Succeeded`. Empty if the answer has none.
    pub fn state(&self) -> &str {
        state(&self.0)
    }

    /// Whether the last change has this state.
    pub fn is(&self, state: &str) -> bool {
        self.state().eq_ignore_ascii_case(state)
    }

    /// The name of the VM's disk with the operating system. Empty if it has none yet.
    pub fn os_disk(&self) -> &str {
        text(&self.0["properties"]["storageProfile"]["osDisk"]["name"])
    }

    /// Whether the disk with the operating system exists.
    pub fn has_os_disk(&self) -> bool {
        !text(&self.0["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"]).is_empty()
    }

    /// The data disks of the VM.
    pub fn data_disks(&self) -> &[Value] {
        list(&self.0["properties"]["storageProfile"]["dataDisks"])
    }

    /// The network interfaces of the VM.
    pub fn network_interfaces(&self) -> &[Value] {
        list(&self.0["properties"]["networkProfile"]["networkInterfaces"])
    }

    /// The name of the VM to which a network interface or a disk is attached.
    pub fn attached_to(&self) -> Option<&str> {
        let ids = [&self.0["properties"]["virtualMachine"]["id"], &self.0["managedBy"]];
        ids.into_iter().map(text).find(|id| !id.is_empty()).map(last_segment)
    }

    /// The private addresses of a network interface.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let configurations = list(&self.0["properties"]["ipConfigurations"]);
        configurations.iter().map(|one| text(&one["properties"]["privateIPAddress"])).filter(|one| !one.is_empty())
    }

    /// The errors of the last change of a VM, from its instance view: codes with messages.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        let statuses = list(&self.0["properties"]["instanceView"]["statuses"]).iter();
        statuses.filter_map(|status| {
            let code = text(&status["code"]).strip_prefix("ProvisioningState/failed/")?;
            Some((code, text(&status["message"])))
        })
    }
}

/// Whether tags have this key.
pub fn has_tag(tags: &Value, key: &str) -> bool {
    tags.as_object().is_some_and(|tags| tags.keys().any(|known| known.eq_ignore_ascii_case(key)))
}

/// The state of the last change in the JSON of a resource.
pub fn state(body: &Value) -> &str {
    text(&body["properties"]["provisioningState"])
}

/// A text, or the empty text for anything else.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vm_is_read_as_azure_writes_it() {
        let vm = Resource(json!({
            "name": "m", "tags": {"Kubernetes.io-cluster-a": "1"},
            "properties": {
                "provisioningState": "Succeeded",
                "storageProfile": {"osDisk": {"name": "m-os-disk", "managedDisk": {"id": "/x"}}, "dataDisks": [{"lun": 0}]},
                "networkProfile": {"networkInterfaces": [{"id": "/n"}]},
            },
        }));
        assert!(vm.has_tag("kubernetes.io-cluster-A") && !vm.has_tag("kubernetes.io-cluster"));
        assert!(vm.is("succeeded") && vm.has_os_disk());
        assert_eq!((vm.os_disk(), vm.data_disks().len(), vm.network_interfaces().len()), ("m-os-disk", 1, 1));
    }

    #[test]
    fn what_holds_a_resource_is_named() {
        let id = "/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/M";
        assert_eq!(Resource(json!({"managedBy": id})).attached_to(), Some("M"));
        assert_eq!(Resource(json!({"properties": {"virtualMachine": {"id": id}}})).attached_to(), Some("M"));
        assert_eq!(Resource(json!({"managedBy": null})).attached_to(), None);
    }

    #[test]
    fn any_body_can_be_read() {
        for body in [json!(null), json!([]), json!("x"), json!({"properties": 5, "tags": [1]})] {
            let resource = Resource(body);
            assert_eq!((resource.state(), resource.os_disk(), resource.attached_to()), ("", "", None));
            assert!(!resource.has_tag("x") && resource.data_disks().is_empty());
            assert_eq!(resource.addresses().count() + resource.failures().count(), 0);
        }
    }
}
