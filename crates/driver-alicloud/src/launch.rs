//! Makes the parameters of `RunInstances` from `providerSpec`, machine and user data. Pure functions.

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    actions::{ECS_VERSION, tagged},
    query::Query,
    spec::{DataDisk, Spec},
};

/// The category of a local disk in classes of the Go original. ECS deletes local disks always, and refuses to be told so.
const EPHEMERAL: &str = "DiskEphemeralSSD";

/// The input of a launch request.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    pub spec: &'a Spec,
    /// The name of the machine, which its instance gets.
    pub name: &'a str,
    pub user_data: &'a [u8],
    /// The client token. ECS never makes a second instance for the same token.
    pub token: &'a str,
}

/// The request for one instance. Empty fields are left out.
pub fn run_instances(launch: Launch<'_>) -> Query {
    let Launch { spec, name, user_data, token } = launch;
    let mut query = Query::new("RunInstances", ECS_VERSION);
    query.set("Amount", 1);
    query.set("ClientToken", token);
    query.set("InstanceName", name);
    query.set("UserData", BASE64_STANDARD.encode(user_data));
    let texts = [
        ("ImageId", &spec.image_id),
        ("InstanceType", &spec.instance_type),
        ("RegionId", &spec.region),
        ("ZoneId", &spec.zone_id),
        ("SecurityGroupId", &spec.security_group_id),
        ("VSwitchId", &spec.v_switch_id),
        ("PrivateIpAddress", &spec.private_ip_address),
        ("InstanceChargeType", &spec.instance_charge_type),
        ("InternetChargeType", &spec.internet_charge_type),
        ("SpotStrategy", &spec.spot_strategy),
        ("IoOptimized", &spec.io_optimized),
        ("KeyPairName", &spec.key_pair_name),
    ];
    for (parameter, text) in texts {
        query.set_text(parameter, text);
    }
    query.set_some("InternetMaxBandwidthIn", spec.internet_max_bandwidth_in);
    query.set_some("InternetMaxBandwidthOut", spec.internet_max_bandwidth_out);
    if let Some(disk) = &spec.system_disk {
        query.set_text("SystemDisk.Category", &disk.category);
        query.set_some("SystemDisk.Size", Some(disk.size).filter(|size| *size != 0));
    }
    for (number, disk) in (1_usize..).zip(&spec.data_disks) {
        data_disk(&mut query, &format!("DataDisk.{number}"), disk, name);
    }
    tagged(&mut query, &spec.tags);
    query
}

fn data_disk(query: &mut Query, prefix: &str, disk: &DataDisk, machine: &str) {
    let mut set = |field: &str, text: &str| query.set_text(&format!("{prefix}.{field}"), text);
    set("Category", &disk.category);
    set("Description", &disk.description);
    set("DiskName", &format!("{machine}-{}-data-disk", disk.name));
    set("Encrypted", &disk.encrypted.to_string());
    set("Size", &disk.size.to_string());
    if disk.category != EPHEMERAL {
        set("DeleteWithInstance", &disk.delete_with_instance.unwrap_or(true).to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    /// The parameters of a launch, decoded.
    fn parameters(patch: &Value) -> BTreeMap<String, String> {
        let mut spec = json!({
            "imageID": "m-1", "instanceType": "ecs.g7.large", "region": "cn-x", "zoneID": "cn-x-e", "securityGroupID": "sg-1",
            "vSwitchID": "vsw-1", "keyPairName": "key",
            "tags": {"kubernetes.io/cluster/c": "1", "kubernetes.io/role/r": ""},
        });
        json_patch::merge(&mut spec, patch);
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let query = run_instances(Launch { spec: &spec, name: "m", user_data: b"#!/bin/sh", token: "t" });
        let decoded = |text: &str| text.replace("%2F", "/").replace("%3D", "=").replace("%20", " ");
        let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (decoded(name), decoded(value)));
        query.encoded().split('&').filter_map(pair).collect()
    }

    fn only(patch: &Value, prefix: &str) -> Vec<String> {
        let all = parameters(patch).into_iter();
        all.filter(|(name, _)| name.starts_with(prefix)).map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn y01_the_least_launch_has_no_other_parameters() {
        assert_eq!(
            only(&json!({}), ""),
            [
                "Amount=1",
                "ClientToken=t",
                "ImageId=m-1",
                "InstanceName=m",
                "InstanceType=ecs.g7.large",
                "KeyPairName=key",
                "RegionId=cn-x",
                "SecurityGroupId=sg-1",
                "Tag.1.Key=kubernetes.io/cluster/c",
                "Tag.1.Value=1",
                "Tag.2.Key=kubernetes.io/role/r",
                "Tag.2.Value=",
                "UserData=IyEvYmluL3No",
                "VSwitchId=vsw-1",
                "ZoneId=cn-x-e",
            ]
        );
    }

    #[rstest]
    #[case::y06_spot(json!({"spotStrategy": "SpotAsPriceGo"}), "Spot", &["SpotStrategy=SpotAsPriceGo"])]
    #[case::a_system_disk(json!({"systemDisk": {"category": "cloud_essd", "size": 75}}), "SystemDisk", &["SystemDisk.Category=cloud_essd", "SystemDisk.Size=75"])]
    #[case::no_size(json!({"systemDisk": {"category": "cloud_essd"}}), "SystemDisk", &["SystemDisk.Category=cloud_essd"])]
    #[case::bandwidths(json!({"internetMaxBandwidthIn": 5, "internetMaxBandwidthOut": 0, "internetChargeType": "PayByTraffic"}), "Internet", &["InternetChargeType=PayByTraffic", "InternetMaxBandwidthIn=5", "InternetMaxBandwidthOut=0"])]
    #[case::an_address(json!({"privateIPAddress": "10.0.0.9"}), "Private", &["PrivateIpAddress=10.0.0.9"])]
    #[case::optimized(json!({"IoOptimized": "optimized", "instanceChargeType": "PostPaid"}), "I", &["ImageId=m-1", "InstanceChargeType=PostPaid", "InstanceName=m", "InstanceType=ecs.g7.large", "IoOptimized=optimized"])]
    #[case::y07_a_disk_goes_with_its_instance(
        json!({"dataDisks": [{"name": "d", "category": "cloud_essd", "size": 20}]}),
        "DataDisk",
        &["DataDisk.1.Category=cloud_essd", "DataDisk.1.DeleteWithInstance=true", "DataDisk.1.DiskName=m-d-data-disk", "DataDisk.1.Encrypted=false", "DataDisk.1.Size=20"]
    )]
    #[case::y07_a_disk_stays_if_the_class_says_so(
        json!({"dataDisks": [{"name": "d", "category": "c", "size": 1, "description": "a b", "encrypted": true, "deleteWithInstance": false}]}),
        "DataDisk",
        &["DataDisk.1.Category=c", "DataDisk.1.DeleteWithInstance=false", "DataDisk.1.Description=a b", "DataDisk.1.DiskName=m-d-data-disk", "DataDisk.1.Encrypted=true", "DataDisk.1.Size=1"]
    )]
    #[case::y07_a_local_disk_always_goes(
        json!({"dataDisks": [{"name": "d", "category": "DiskEphemeralSSD", "size": 1}]}),
        "DataDisk",
        &["DataDisk.1.Category=DiskEphemeralSSD", "DataDisk.1.DiskName=m-d-data-disk", "DataDisk.1.Encrypted=false", "DataDisk.1.Size=1"]
    )]
    fn fields_become_parameters(#[case] patch: Value, #[case] prefix: &str, #[case] expected: &[&str]) {
        assert_eq!(only(&patch, prefix), expected);
    }
}
