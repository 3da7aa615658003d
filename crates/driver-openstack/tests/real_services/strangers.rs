//! Tests with changes by other clients, and with objects of other owners.

use std::time::{Duration, Instant};

use machine_driver::Code;
use serde_json::{Value, json};

use crate::{
    services::{Subject, services},
    without_port,
};

fn id_of(thing: &Value) -> String {
    thing["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn o_01_pod_networks_are_added_and_other_address_pairs_are_kept() {
    let Some(services) = services("o_01_pod_networks_are_added_and_other_address_pairs_are_kept") else { return };
    let patch = json!({"subnetID": null, "podNetworkCIDRs": ["100.64.0.0/12", "10.96.0.0/16"]});
    let subject = Subject::new(&services, "machines", "pairs", patch);
    subject.create().await.unwrap();
    let port = subject.inventory().await.ports[0].clone();
    assert_eq!(port["allowed_address_pairs"].as_array().unwrap().len(), 2);
    let path = format!("/ports/{}", id_of(&port));
    let foreign = json!({"port": {"allowed_address_pairs": [{"ip_address": "192.168.7.7"}]}});
    services.call("machines", "PUT", "network", &path, foreign).await;
    let error = subject.status().await.unwrap_err();
    assert_eq!((error.code, error.partial.unwrap().node_name), (Code::Uninitialized, "pairs-1".to_owned()));
    subject.initialize().await.unwrap();
    subject.status().await.unwrap();
    let port = services.call("machines", "GET", "network", &path, Value::Null).await;
    let mut pairs: Vec<_> = port["port"]["allowed_address_pairs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair["ip_address"].as_str().unwrap().to_owned())
        .collect();
    pairs.sort();
    assert_eq!(pairs, ["10.96.0.0/16", "100.64.0.0/12", "192.168.7.7"]);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn o_07_a_server_that_lost_its_metadata_is_not_touched() {
    let Some(services) = services("o_07_a_server_that_lost_its_metadata_is_not_touched") else { return };
    let mut subject = Subject::new(&services, "machines", "orphan", json!({}));
    subject.provider_id = subject.create().await.unwrap().vm.provider_id;
    let id = id_of(&subject.inventory().await.servers[0]);
    let key = format!("/servers/{id}/metadata/kubernetes.io-cluster-orphan");
    services.call("machines", "DELETE", "compute", &key, Value::Null).await;
    assert_eq!(subject.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(subject.list().await.unwrap(), []);
    subject.delete().await.unwrap();
    let left = subject.inventory().await;
    assert_eq!((left.servers.len(), left.ports.len()), (1, 1), "the server and its port stay");
    services
        .call(
            "machines",
            "POST",
            "compute",
            &format!("/servers/{id}/metadata"),
            json!({"metadata": {"kubernetes.io-cluster-orphan": "1"}}),
        )
        .await;
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_port_of_a_server_that_another_client_deletes_is_deleted() {
    let Some(services) = services("the_port_of_a_server_that_another_client_deletes_is_deleted") else { return };
    let mut subject = Subject::new(&services, "machines", "behind", json!({"tags": {"rig-delete-seconds": "6"}}));
    let made = subject.create().await.unwrap().vm;
    let id = id_of(&subject.inventory().await.servers[0]);
    services.call("machines", "DELETE", "compute", &format!("/servers/{id}"), Value::Null).await;
    // Nova still reports the server as ACTIVE.
    let refused = subject.create().await.unwrap_err();
    assert_eq!(refused.code, Code::Aborted, "{}", refused.message);
    assert!(refused.message.ends_with("is still being deleted"), "{}", refused.message);
    subject.provider_id = made.provider_id;
    subject.delete().await.unwrap();
    assert_eq!(subject.status().await.unwrap_err().code, Code::NotFound);
    subject.assert_nothing_is_left().await;
    subject.delete().await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_is_listed_and_taken_over() {
    let Some(services) = services("a_stopped_server_is_listed_and_taken_over") else { return };
    let subject = Subject::new(&services, "machines", "stopped", without_port());
    let made = subject.create().await.unwrap().vm;
    let id = id_of(&subject.inventory().await.servers[0]);
    services.call("machines", "POST", "compute", &format!("/servers/{id}/action"), json!({"os-stop": null})).await;
    while subject.inventory().await.servers[0]["status"] != "SHUTOFF" {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(subject.list().await.unwrap().len(), 1);
    assert_eq!(subject.create().await.unwrap().vm.provider_id, made.provider_id);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_deletion_of_a_locked_server_fails_until_it_is_unlocked() {
    let Some(services) = services("the_deletion_of_a_locked_server_fails_until_it_is_unlocked") else { return };
    let subject = Subject::new(&services, "machines", "locked", json!({}));
    subject.create().await.unwrap();
    let action = format!("/servers/{}/action", id_of(&subject.inventory().await.servers[0]));
    // An administrator locks the server, because a user may delete a server that the same user has locked.
    services.call("admin", "POST", "compute", &action, json!({"lock": null})).await;
    let refused = subject.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition, "{}", refused.message);
    services.call("admin", "POST", "compute", &action, json!({"unlock": null})).await;
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

/// A server and a port of other owners have the machine's name.
#[tokio::test]
async fn objects_of_other_owners_with_the_same_name_stay() {
    let Some(services) = services("objects_of_other_owners_with_the_same_name_stay") else { return };
    let subject = Subject::new(&services, "machines", "namesake", json!({}));
    let stranger = Subject { name: subject.name.clone(), ..Subject::new(&services, "machines", "stranger", json!({})) };
    let theirs = stranger.create().await.unwrap().vm.provider_id;
    let port = json!({"port": {"name": "namesake-1", "network_id": services.made["machines"]["network"]}});
    let port = id_of(&services.call("machines", "POST", "network", "/ports", port).await["port"]);
    let ours = subject.create().await.unwrap().vm.provider_id;
    assert_ne!(ours, theirs);
    subject.delete().await.unwrap();
    let left = subject.inventory().await;
    assert_eq!((left.servers.len(), left.ports.len()), (1, 2), "objects of other owners: {left:?}");
    assert!(theirs.ends_with(&id_of(&left.servers[0])));
    services.call("machines", "DELETE", "network", &format!("/ports/{port}"), Value::Null).await;
    stranger.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn o_06_two_servers_of_the_machine_are_an_error_and_both_are_deleted() {
    let Some(services) = services("o_06_two_servers_of_the_machine_are_an_error_and_both_are_deleted") else { return };
    let subject = Subject::new(&services, "machines", "twin", without_port());
    subject.create().await.unwrap();
    let flavors = services.call("machines", "GET", "compute", "/flavors?limit=1", Value::Null).await;
    let server = json!({"server": {
        "name": "twin-1", "imageRef": services.made["image"], "flavorRef": flavors["flavors"][0]["id"],
        "networks": [{"uuid": services.made["machines"]["network"]}],
        "metadata": {"kubernetes.io-cluster-twin": "1", "kubernetes.io-role-node": "1"},
    }});
    services.call("machines", "POST", "compute", "/servers", server).await;
    assert_eq!(subject.create().await.unwrap_err().code, Code::OutOfRange);
    assert_eq!(subject.status().await.unwrap_err().code, Code::OutOfRange);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_volume_with_a_snapshot_is_told_of_at_once_and_deleted_after_the_snapshot() {
    let Some(services) = services("a_volume_with_a_snapshot_is_told_of_at_once_and_deleted_after_the_snapshot") else {
        return;
    };
    let disk = json!({"rootDiskSize": 2, "rootDiskType": "standard"});
    let subject = Subject::new(&services, "machines", "snapshot", disk);
    subject.create().await.unwrap();
    let volume = id_of(&subject.inventory().await.volumes[0]);
    let snapshot = json!({"snapshot": {"volume_id": volume, "force": true}});
    let made = services.call("machines", "POST", "block_storage", "/snapshots", snapshot).await;
    let snapshot = format!("/snapshots/{}", id_of(&made["snapshot"]));
    while services.call("machines", "GET", "block_storage", &snapshot, Value::Null).await["snapshot"]["status"]
        != "available"
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let began = Instant::now();
    let refused = subject.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition, "{}", refused.message);
    let words = format!(
        "volume {volume} can't be deleted yet (it is tried again): deleting the server's volume: cinder answers 400"
    );
    assert!(refused.message.starts_with(&words) && refused.message.contains("snapshots"), "{}", refused.message);
    assert!(began.elapsed() < Duration::from_secs(90), "{:?}", began.elapsed());
    services.call("machines", "DELETE", "block_storage", &snapshot, Value::Null).await;
    while subject.delete().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(240));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    subject.assert_nothing_is_left().await;
}
