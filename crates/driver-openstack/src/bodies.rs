//! The bodies of the requests that make servers, ports and volumes. Pure functions.

use base64::{Engine, prelude::BASE64_STANDARD};
use machine_driver::OwnerTags;
use serde_json::{Map, Value, json};

use crate::{
    lookup,
    spec::{RootDisk, Spec},
};

/// The input for the request for a server.
#[derive(Clone, Debug)]
pub struct Wanted<'a> {
    pub spec: &'a Spec,
    pub machine: &'a str,
    pub user_data: &'a [u8],
    pub flavor: &'a str,
    pub image: &'a str,
    pub networks: Vec<Value>,
    /// The id of the volume that the driver has made for the server.
    pub volume: Option<&'a str>,
}

/// The body of the request for a server.
pub fn server(wanted: &Wanted<'_>) -> Value {
    let Wanted { spec, machine, user_data, flavor, image, networks, volume } = wanted;
    let mut server = Map::new();
    let mut set = |key: &str, value: Value| server.insert(key.to_owned(), value);
    set("name", json!(machine));
    set("flavorRef", json!(flavor));
    set("networks", json!(networks));
    set("metadata", json!(spec.tags));
    set("key_name", json!(spec.key_name));
    set("availability_zone", json!(spec.availability_zone));
    set("user_data", json!(BASE64_STANDARD.encode(user_data)));
    if !spec.security_groups.is_empty() {
        let groups: Vec<Value> = spec.security_groups.iter().map(|name| json!({"name": name})).collect();
        set("security_groups", json!(groups));
    }
    if let Some(config_drive) = spec.use_config_drive {
        set("config_drive", json!(config_drive));
    }
    match (spec.root_disk(), volume) {
        (RootDisk::Own { .. }, Some(volume)) => set(
            "block_device_mapping_v2",
            json!([{
                "boot_index": 0, "uuid": volume, "source_type": "volume", "destination_type": "volume", "delete_on_termination": false,
            }]),
        ),
        (RootDisk::MadeByNova(size), _) => set(
            "block_device_mapping_v2",
            json!([{
                "boot_index": 0, "uuid": image, "source_type": "image", "destination_type": "volume", "volume_size": size,
                "delete_on_termination": true,
            }]),
        ),
        (RootDisk::OfFlavor | RootDisk::Own { .. }, _) => set("imageRef", json!(image)),
    };
    let mut body = json!({ "server": server });
    if !spec.server_group_id.is_empty() {
        body["os:scheduler_hints"] = json!({"group": spec.server_group_id});
    }
    body
}

/// The body of the request for the port of a server. The port allows the addresses of pods from the beginning.
pub fn port(spec: &Spec, owner: &OwnerTags, machine: &str, security_groups: &[String]) -> Value {
    let fixed_ips: Vec<Value> = spec.subnets().into_iter().map(|subnet| json!({"subnet_id": subnet})).collect();
    let pairs: Vec<Value> = spec.pod_networks().into_iter().map(|network| json!({"ip_address": network})).collect();
    let mut port = json!({
        "name": machine,
        "description": lookup::mark(owner),
        "network_id": spec.network_id,
        "fixed_ips": fixed_ips,
        "allowed_address_pairs": pairs,
    });
    // Without security groups in the class, Neutron gives the port the default group of the project, like a server.
    if !spec.security_groups.is_empty() {
        port["security_groups"] = json!(security_groups);
    }
    json!({ "port": port })
}

/// The key in the metadata of a volume for the text of [`made_for`].
pub const MADE_FOR: &str = "machine-controller-manager-made-for";

/// The UID of a machine with the image and the size of its volume. A server does not boot from a volume with another text: the volume may contain the
/// data of an earlier machine of the same name, or the image of an earlier version of the class.
pub fn made_for(uid: &str, image: &str, size: i64) -> String {
    format!("{uid} {image} {size}")
}

/// The body of the request for the volume that a server boots from.
pub fn volume(spec: &Spec, machine: &str, made_for: &str, image: &str, size: i64, kind: &str) -> Value {
    let mut metadata = json!(spec.tags);
    metadata[MADE_FOR] = json!(made_for);
    json!({"volume": {
        "name": machine,
        "size": size,
        "volume_type": kind,
        "imageRef": image,
        "availability_zone": spec.availability_zone,
        "metadata": metadata,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(change: &Value) -> Spec {
        let mut spec = json!({
            "region": "r", "availabilityZone": "z", "flavorName": "f", "keyName": "k", "networkID": "n",
            "securityGroups": ["a"], "podNetworkCIDRs": ["10.0.0.0/8"], "tags": {"t": "1"},
        });
        json_patch::merge(&mut spec, change);
        serde_json::from_value(spec).unwrap()
    }

    fn made(change: &Value, volume: Option<&str>) -> Value {
        server(&Wanted {
            spec: &spec(change),
            machine: "m-1",
            user_data: b"#!/bin/sh",
            flavor: "f-1",
            image: "i-1",
            networks: vec![json!({"uuid": "n"})],
            volume,
        })
    }

    #[test]
    fn a_server_says_what_its_class_says() {
        let server = json!({"server": {
            "name": "m-1", "flavorRef": "f-1", "imageRef": "i-1", "networks": [{"uuid": "n"}], "metadata": {"t": "1"}, "key_name": "k",
            "availability_zone": "z", "user_data": "IyEvYmluL3No", "security_groups": [{"name": "a"}],
        }});
        assert_eq!(made(&json!({}), None), server);
        let more = made(&json!({"useConfigDrive": true, "serverGroupID": "g", "securityGroups": []}), None);
        assert_eq!(more["server"]["config_drive"], json!(true));
        assert_eq!(more["os:scheduler_hints"], json!({"group": "g"}));
        assert_eq!(more["server"].get("security_groups"), None);
    }

    #[test]
    fn a_server_boots_from_a_volume() {
        let nova = made(&json!({"rootDiskSize": 20}), None);
        assert_eq!(nova["server"].get("imageRef"), None);
        let expected = json!([{"boot_index": 0, "uuid": "i-1", "source_type": "image", "destination_type": "volume", "volume_size": 20, "delete_on_termination": true}]);
        assert_eq!(nova["server"]["block_device_mapping_v2"], expected);
        let own = made(&json!({"rootDiskSize": 20, "rootDiskType": "ssd"}), Some("v-1"));
        assert_eq!(own["server"].get("imageRef"), None);
        let expected = json!([{"boot_index": 0, "uuid": "v-1", "source_type": "volume", "destination_type": "volume", "delete_on_termination": false}]);
        assert_eq!(own["server"]["block_device_mapping_v2"], expected);
    }

    #[test]
    fn o_09_a_port_has_an_address_in_each_subnet_once() {
        let tags = ["kubernetes.io-cluster-c", "kubernetes.io-role-r"].map(str::to_owned);
        let owner = crate::spec::owner_tags(tags.iter()).unwrap();
        let spec = spec(&json!({"subnetID": "s-2", "subnetIDs": ["s-2", "s-1"]}));
        let port = port(&spec, &owner, "m-1", &["sg-1".to_owned()]);
        assert_eq!(
            port,
            json!({"port": {
                "name": "m-1", "description": "made by machine-controller-manager for kubernetes.io-cluster-c kubernetes.io-role-r", "network_id": "n",
                "fixed_ips": [{"subnet_id": "s-1"}, {"subnet_id": "s-2"}], "allowed_address_pairs": [{"ip_address": "10.0.0.0/8"}],
                "security_groups": ["sg-1"],
            }})
        );
    }
}
