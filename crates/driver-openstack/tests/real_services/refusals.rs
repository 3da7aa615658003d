//! Tests of requests that the services refuse: the codes, the messages, and that nothing is left.

use machine_driver::Code;
use rstest::rstest;
use serde_json::{Value, json};

use crate::{
    services::{Subject, services},
    without_port,
};

const NOTHING: &str = "11111111-2222-3333-4444-555555555555";

#[rstest]
#[case::o_03_no_host_is_large_enough("too-large", json!({"flavorName": "too-large"}), Code::ResourceExhausted, "reached unexpected status \"ERROR\", fault: No valid host was found.")]
#[case::o_04_no_such_flavor("no-flavor", json!({"flavorName": "gone"}), Code::ResourceExhausted, "error resolving flavor ID from flavor name \"gone\": Unable to find flavor with name gone")]
#[case::the_host_fails("host-fails", json!({"tags": {"rig-build-fault": "disk on fire"}}), Code::ResourceExhausted, "Exceeded maximum number of retries. Exhausted all hosts available")]
#[case::no_such_image_name("no-image", json!({"imageName": "gone"}), Code::NotFound, "error resolving image ID from image name \"gone\": Unable to find image with name gone")]
#[case::no_such_image("no-image-id", json!({"imageID": NOTHING}), Code::InvalidArgument, "Can not find requested image")]
#[case::no_such_key("no-key", json!({"keyName": "gone"}), Code::InvalidArgument, "Invalid key_name")]
#[case::no_such_zone("no-zone", json!({"availabilityZone": "gone"}), Code::InvalidArgument, "availability zone")]
#[case::no_such_group_of_servers("no-group", json!({"serverGroupID": NOTHING}), Code::InvalidArgument, "could not be found")]
#[case::no_such_group_in_nova("no-security", json!({"subnetID": null, "securityGroups": ["gone"]}), Code::InvalidArgument, "gone")]
#[case::no_such_group("no-security-port", json!({"securityGroups": ["gone"]}), Code::NotFound, "Unable to find security group with name gone")]
#[case::no_such_network("no-network", json!({"subnetID": null, "networkID": NOTHING}), Code::InvalidArgument, "could not be found")]
#[case::no_such_network_name("no-network-name", json!({"subnetID": null, "networkID": null, "networks": [{"name": "gone"}]}), Code::NotFound, "Unable to find network with name gone")]
#[case::no_such_subnet("no-subnet", json!({"subnetID": NOTHING}), Code::NotFound, "Unable to find subnet with id")]
#[case::no_such_volume_type("no-type", json!({"rootDiskSize": 2, "rootDiskType": "gone"}), Code::NotFound, "gone")]
#[tokio::test]
async fn a_class_that_can_not_be_served_leaves_nothing(
    #[case] test: &'static str,
    #[case] patch: Value,
    #[case] code: Code,
    #[case] words: &str,
) {
    let Some(services) = services(test) else { return };
    let subject = Subject::new(&services, "machines", test, patch);
    let refused = subject.create().await.unwrap_err();
    assert_eq!(refused.code, code, "{}", refused.message);
    assert!(refused.message.contains(words), "{}", refused.message);
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn c_14_user_data_that_is_too_long_is_refused_and_not_repeated() {
    let Some(services) = services("c_14_user_data_that_is_too_long_is_refused_and_not_repeated") else { return };
    let mut subject = Subject::new(&services, "machines", "long-data", json!({}));
    subject.secret.set("userData", b"ABC".repeat(20_000));
    let refused = subject.create().await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{}", refused.message);
    assert!(refused.message.contains("too long") && !refused.message.contains("QUJDQUJD"), "{}", refused.message);
    subject.assert_nothing_is_left().await;
}

/// The quota of the project is one server, two ports and one volume of 10 GB.
#[tokio::test]
async fn a_quota_that_is_used_up_is_lack_of_capacity() {
    let Some(services) = services("a_quota_that_is_used_up_is_lack_of_capacity") else { return };
    let named =
        |name: &str, patch| Subject { name: format!("tiny-{name}"), ..Subject::new(&services, "tiny", "tiny", patch) };
    let first = named("first", json!({}));
    first.create().await.unwrap();
    let disk = |size, kind| json!({"rootDiskSize": size, "rootDiskType": kind});
    for (name, patch, words) in [
        ("servers", json!({}), "nova answers 403 forbidden: Quota exceeded for instances"),
        ("disk", disk(11, json!("standard")), "cinder answers 413 overLimit: VolumeSizeExceedsAvailableQuota"),
    ] {
        let refused = named(name, patch).create().await.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.message);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    let left = first.inventory().await;
    assert_eq!((left.servers.len(), left.ports.len(), left.volumes.len()), (1, 1, 0), "{left:?}");
    first.delete().await.unwrap();
    let refused = named("boot", disk(11, Value::Null)).create().await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.message);
    assert!(refused.message.contains("VolumeSizeExceedsAvailableQuota"), "{}", refused.message);
    let port = json!({"port": {"name": "taken", "network_id": services.made["tiny"]["network"]}});
    let mut taken = Vec::new();
    for _ in 0..2 {
        let made = services.call("tiny", "POST", "network", "/ports", port.clone()).await;
        taken.push(made["port"]["id"].as_str().unwrap().to_owned());
    }
    for (name, patch, words) in [
        ("port", json!({}), "neutron answers 409 OverQuota: Quota exceeded for resources"),
        ("nova", without_port(), "nova answers 403 forbidden: Maximum number of ports exceeded"),
    ] {
        let refused = named(name, patch).create().await.unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.message);
        assert!(refused.message.contains(words), "{}", refused.message);
    }
    for port in taken {
        services.call("tiny", "DELETE", "network", &format!("/ports/{port}"), Value::Null).await;
    }
    first.assert_nothing_is_left().await;
}

#[tokio::test]
async fn addresses_that_are_used_up_are_lack_of_capacity() {
    let Some(services) = services("addresses_that_are_used_up_are_lack_of_capacity") else { return };
    let network =
        services.call("machines", "POST", "network", "/networks", json!({"network": {"name": "narrow"}})).await;
    let network = network["network"]["id"].clone();
    let subnet = json!({"subnet": {"network_id": network, "ip_version": 4, "cidr": "10.9.9.0/30"}});
    let subnet = services.call("machines", "POST", "network", "/subnets", subnet).await["subnet"]["id"].clone();
    let patch = json!({"networkID": network, "subnetID": subnet});
    let first = Subject::new(&services, "machines", "narrow", patch.clone());
    first.create().await.unwrap();
    let second = Subject { name: "narrow-2".to_owned(), ..Subject::new(&services, "machines", "narrow", patch) };
    let refused = second.create().await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.message);
    assert!(
        refused.message.contains("neutron answers 409 IpAddressGenerationFailure: No more IP addresses available"),
        "{}",
        refused.message
    );
    first.delete().await.unwrap();
    first.assert_nothing_is_left().await;
}

/// The cloud has one host.
#[tokio::test]
async fn the_second_member_of_an_anti_affinity_group_finds_no_host() {
    let Some(services) = services("the_second_member_of_an_anti_affinity_group_finds_no_host") else { return };
    let group = json!({"server_group": {"name": "apart", "policies": ["anti-affinity"]}});
    let group =
        services.call("machines", "POST", "compute", "/os-server-groups", group).await["server_group"]["id"].clone();
    let patch = json!({"serverGroupID": group});
    let first = Subject::new(&services, "machines", "apart", patch.clone());
    first.create().await.unwrap();
    let second = Subject { name: "apart-2".to_owned(), ..Subject::new(&services, "machines", "apart", patch) };
    let refused = second.create().await.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted, "{}", refused.message);
    assert_eq!(first.inventory().await.servers.len(), 1);
    first.delete().await.unwrap();
    first.assert_nothing_is_left().await;
}
