//! Tests of the launch request for different classes.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use machine_api::v1alpha1::MachineClass;
use machine_driver::OwnerTags;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::{
    AWS,
    actions::{InstanceQuery, States},
};

fn launched(patch: Value, annotation: Option<&str>) -> Vec<(String, String)> {
    let mut provider_spec = json!({
        "ami": "ami-1", "region": "eu-west-1", "machineType": "m5.large", "iam": {"name": "nodes"},
        "blockDevices": [{"ebs": {"volumeSize": 50, "volumeType": "gp3"}}],
        "networkInterfaces": [{"subnetID": "subnet-1", "securityGroupIDs": ["sg-1", "sg-2"]}],
        "tags": {"kubernetes.io/cluster/c": "1", "kubernetes.io/role/node": "1"},
    });
    json_patch::merge(&mut provider_spec, &patch);
    let class = MachineClass { provider: AWS.to_owned(), provider_spec, ..MachineClass::default() };
    let spec = Spec::checked(&class).unwrap();
    let mut machine = Machine::default();
    machine.metadata.name = Some("m-1".to_owned());
    machine.spec.node_template.metadata.annotations =
        annotation.map(|text| [(PLACEMENT_ANNOTATION.to_owned(), text.to_owned())].into());
    let launch =
        Launch { spec: &spec, machine: &machine, root_device: "/dev/sda1", user_data: b"#!/bin/sh", token: "uid-1" };
    run_instances(launch).unwrap().parameters().to_vec()
}

fn begins_with(parameters: &[(String, String)], begin: &str) -> Vec<String> {
    let matching = parameters.iter().filter(|(name, _)| name.starts_with(begin));
    matching.map(|(name, value)| format!("{}={value}", &name[begin.len()..])).collect()
}

#[test]
fn all_parameters_of_a_small_class_are_sent() {
    let sent: Vec<_> = launched(json!({}), None).iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut expected: Vec<String> = [
        "ImageId=ami-1",
        "InstanceType=m5.large",
        "MinCount=1",
        "MaxCount=1",
        "ClientToken=uid-1",
        "UserData=IyEvYmluL3No",
        "IamInstanceProfile.Name=nodes",
        "BlockDeviceMapping.1.DeviceName=/dev/sda1",
        "BlockDeviceMapping.1.Ebs.VolumeType=gp3",
        "BlockDeviceMapping.1.Ebs.VolumeSize=50",
        "BlockDeviceMapping.1.Ebs.Encrypted=false",
        "BlockDeviceMapping.1.Ebs.DeleteOnTermination=true",
        "NetworkInterface.1.DeviceIndex=0",
        "NetworkInterface.1.SubnetId=subnet-1",
        "NetworkInterface.1.SecurityGroupId.1=sg-1",
        "NetworkInterface.1.SecurityGroupId.2=sg-2",
        "NetworkInterface.1.DeleteOnTermination=true",
    ]
    .map(str::to_owned)
    .into();
    for (number, resource) in (1..).zip(TAGGED) {
        expected.push(format!("TagSpecification.{number}.ResourceType={resource}"));
        for (tag, (key, value)) in
            (1..).zip([("kubernetes.io/cluster/c", "1"), ("kubernetes.io/role/node", "1"), ("Name", "m-1")])
        {
            expected.push(format!("TagSpecification.{number}.Tag.{tag}.Key={key}"));
            expected.push(format!("TagSpecification.{number}.Tag.{tag}.Value={value}"));
        }
    }
    assert_eq!(sent, expected);
}

#[rstest]
#[case::a_07_a_device_without_a_name(json!({}), "BlockDeviceMapping.1.D", &["eviceName=/dev/sda1"])]
#[case::the_root_among_others(
    json!({"blockDevices": [
        {"deviceName": "/dev/sdf", "ebs": {"volumeSize": 9, "volumeType": "io1", "iops": 100, "encrypted": true, "kmsKeyID": "k-1", "deleteOnTermination": false, "snapshotID": "snap-1"}},
        {"deviceName": "/root", "ebs": {"volumeSize": 50, "volumeType": "gp3", "throughput": 200, "kmsKeyID": "not-encrypted"}},
    ]}),
    "BlockDeviceMapping.",
    &["1.DeviceName=/dev/sdf", "1.Ebs.VolumeType=io1", "1.Ebs.VolumeSize=9", "1.Ebs.Iops=100", "1.Ebs.Encrypted=true",
      "1.Ebs.DeleteOnTermination=false", "1.Ebs.SnapshotId=snap-1", "1.Ebs.KmsKeyId=k-1", "2.DeviceName=/dev/sda1",
      "2.Ebs.VolumeType=gp3", "2.Ebs.VolumeSize=50", "2.Ebs.Throughput=200", "2.Ebs.Encrypted=false", "2.Ebs.DeleteOnTermination=true"],
)]
#[case::a_24_spot_at_any_price(json!({"spotPrice": ""}), "InstanceMarketOptions.", &["MarketType=spot", "SpotOptions.SpotInstanceType=one-time"])]
#[case::spot_at_a_price(json!({"spotPrice": "0.1"}), "InstanceMarketOptions.", &["MarketType=spot", "SpotOptions.SpotInstanceType=one-time", "SpotOptions.MaxPrice=0.1"])]
#[case::a_25_the_market_type_has_precedence(json!({"spotPrice": "0.1", "instanceMarketOptions": {"marketType": "capacity-block"}}), "InstanceMarketOptions.", &["MarketType=capacity-block"])]
#[case::on_demand(json!({}), "InstanceMarketOptions.", &[])]
#[case::a_placement(json!({"placement": {"groupId": "pg-1", "tenancy": "host", "hostId": "h-1", "partitionNumber": 2, "affinity": "host"}}), "Placement.", &["Affinity=host", "GroupId=pg-1", "HostId=h-1", "Tenancy=host", "PartitionNumber=2"])]
#[case::metadata(json!({"instanceMetadataOptions": {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 0, "httpProtocolIpv6": "disabled"}}), "MetadataOptions.", &["HttpEndpoint=enabled", "HttpTokens=required", "HttpPutResponseHopLimit=0", "HttpProtocolIpv6=disabled"])]
#[case::cpus(json!({"cpuOptions": {"coreCount": 2, "threadsPerCore": 1, "amdSevSnp": "enabled"}}), "CpuOptions.", &["CoreCount=2", "ThreadsPerCore=1", "AmdSevSnp=enabled"])]
#[case::a_reservation(json!({"capacityReservation": {"capacityReservationId": "cr-1"}}), "CapacityReservationSpecification.", &["CapacityReservationTarget.CapacityReservationId=cr-1"])]
#[case::a_preference(json!({"capacityReservation": {"capacityReservationPreference": "open"}}), "CapacityReservationSpecification.", &["CapacityReservationPreference=open"])]
#[case::a_key(json!({"keyName": "k"}), "KeyName", &["=k"])]
#[case::an_arn(json!({"iam": {"name": null, "arn": "arn:x"}}), "IamInstanceProfile.", &["Arn=arn:x"])]
#[case::an_interface(
    json!({"networkInterfaces": [{"subnetID": "s", "securityGroupIDs": ["g"], "associatePublicIPAddress": false, "deleteOnTermination": false,
        "description": "d", "deviceIndex": 3, "networkCardIndex": 1, "interfaceType": "efa", "ipv6AddressCount": 1, "ipv6PrefixCount": 2}]}),
    "NetworkInterface.1.",
    &["DeviceIndex=3", "SubnetId=s", "SecurityGroupId.1=g", "DeleteOnTermination=false", "AssociatePublicIpAddress=false",
      "Description=d", "NetworkCardIndex=1", "InterfaceType=efa", "Ipv6AddressCount=1", "PrimaryIpv6=true"],
)]
#[case::fields_that_the_go_driver_never_sends(json!({"ebsOptimized": true, "monitoring": true}), "Ebs", &[])]
fn a_field_is_sent(#[case] patch: Value, #[case] begin: &str, #[case] expected: &[&str]) {
    assert_eq!(begins_with(&launched(patch, None), begin), expected);
}

#[rstest]
#[case::a_26_of_the_annotation(json!({}), r#"{"Tenancy":"dedicated"}"#, &["Tenancy=dedicated"])]
#[case::names_in_any_case(json!({}), r#"{"tenancy":"host","PARTITIONNUMBER":2,"x":1}"#, &["Tenancy=host", "PartitionNumber=2"])]
#[case::an_empty_one(json!({}), "{}", &[])]
#[case::the_spec_has_precedence(json!({"placement": {"tenancy": "host"}}), r#"{"Tenancy":"dedicated"}"#, &["Tenancy=host"])]
fn an_instance_is_placed(#[case] patch: Value, #[case] annotation: &str, #[case] expected: &[&str]) {
    assert_eq!(begins_with(&launched(patch, Some(annotation)), "Placement."), expected);
}

/// The parameters of an action in EC2's own API model: their type and, for enumerations, the allowed values. List indices in names are `N`.
fn model(action: &str) -> serde_json::Map<String, Value> {
    let text = include_str!("../../../tests/fixtures/ec2-parameters.json");
    let all: Value = serde_json::from_str(text).unwrap();
    all[action].as_object().unwrap().clone()
}

fn fits(query: &Query) {
    let model = model(query.action());
    for (name, value) in query.parameters() {
        let parts = name.split('.').map(|part| if part.parse::<u32>().is_ok() { "N" } else { part });
        let general = parts.collect::<Vec<_>>().join(".");
        let kind = model.get(&general).unwrap_or_else(|| panic!("{} has no {general}", query.action()));
        let (kind, words) = kind.as_str().unwrap().split_once(' ').unwrap_or((kind.as_str().unwrap(), ""));
        let is_of_kind = match kind {
            "integer" => value.parse::<i32>().is_ok(),
            "boolean" => value.parse::<bool>().is_ok(),
            "string" => words.is_empty() || words.split(' ').any(|word| word == value),
            other => panic!("{general} is of kind {other}"),
        };
        assert!(is_of_kind, "{general} can't be {value:?}: {kind} {words}");
    }
}

#[test]
fn every_parameter_is_one_of_ec2s_own_model() {
    let everything = json!({
        "keyName": "k", "iam": {"name": "n"}, "spotPrice": "0.1",
        "blockDevices": [
            {"deviceName": "/root", "ebs": {"volumeType": "io1", "volumeSize": 50, "iops": 100, "throughput": 125, "encrypted": true,
                "deleteOnTermination": true, "snapshotID": "snap-1", "kmsKeyID": "k"}},
            {"deviceName": "/dev/sdf", "ebs": {"volumeType": "gp3", "volumeSize": 50}},
        ],
        "networkInterfaces": [{"subnetID": "s", "securityGroupIDs": ["g"], "associatePublicIPAddress": true, "description": "d",
            "deviceIndex": 0, "networkCardIndex": 0, "interfaceType": "efa", "ipv6AddressCount": 1}],
        "capacityReservation": {"capacityReservationPreference": "open"},
        "instanceMetadataOptions": {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 2, "httpProtocolIpv6": "enabled"},
        "cpuOptions": {"coreCount": 2, "threadsPerCore": 1, "amdSevSnp": "disabled"},
        "placement": {"groupId": "pg", "tenancy": "host", "hostId": "h", "partitionNumber": 1, "affinity": "host"},
    });
    let query = |patch: Value, annotation: Option<&str>| {
        let mut query = actions::query("RunInstances");
        for (name, value) in launched(patch, annotation) {
            query.set(&name, value);
        }
        query
    };
    let mut launch = query(everything, None);
    launch.set("DryRun", true);
    fits(&launch);
    fits(&query(json!({"iam": {"name": null, "arn": "arn:x"}}), None));
    for market in ["spot", "capacity-block", "interruptible-capacity-reservation"] {
        fits(&query(json!({"instanceMarketOptions": {"marketType": market}}), None));
    }
    for volume in ["gp2", "st1", "sc1", "standard"] {
        fits(&query(json!({"blockDevices": [{"ebs": {"volumeType": volume, "volumeSize": 50}}]}), None));
    }
    for reservation in ["capacityReservationId", "capacityReservationResourceGroupArn"] {
        fits(&query(json!({"capacityReservation": {reservation: "x"}}), None));
    }
    fits(&query(
        json!({}),
        Some(
            r#"{"Affinity":"a","AvailabilityZone":"z","AvailabilityZoneId":"i","GroupName":"g","HostResourceGroupArn":"r","SpreadDomain":"s","Tenancy":"default"}"#,
        ),
    ));
    let tags = ["kubernetes.io/cluster/c", "kubernetes.io/role/node"].map(str::to_owned);
    let owner = OwnerTags::of(tags.iter(), "/cluster/", "/role/").unwrap();
    let named = |states| InstanceQuery::Named { machine: "m", states };
    for query in [
        actions::describe_images("ami-1"),
        actions::describe_subnets(["subnet-1"]),
        actions::describe_security_groups(["sg-1"]),
        actions::describe_key_pair("k"),
        actions::describe_instances(named(States::Live), Some("next")),
        actions::describe_instances(named(States::Any), None),
        actions::describe_instances(InstanceQuery::Owned(&owner), Some("next")),
        actions::describe_instances(InstanceQuery::Token("uid-1"), None),
        actions::describe_instances(InstanceQuery::Id("i-1"), None),
        actions::terminate_instances(["i-1"]),
        actions::disable_source_dest_check("eni-1"),
        actions::assign_ipv6_prefixes("eni-1", 2),
    ] {
        fits(&query);
    }
}
