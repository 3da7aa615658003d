//! What others change behind the driver's back, and what is not the driver's to touch.

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
async fn o_01_pods_pass_beside_what_others_let_pass() {
    let Some(services) = services("o_01_pods_pass_beside_what_others_let_pass") else { return };
    let patch = json!({"subnetID": null, "podNetworkCIDRs": ["100.64.0.0/12", "10.96.0.0/16"]});
    let subject = Subject::new(&services, "machines", "pairs", patch);
    subject.create().await.unwrap();
    let port = subject.inventory().await.ports[0].clone();
    assert_eq!(port["allowed_address_pairs"].as_array().unwrap().len(), 2);
    let path = format!("/ports/{}", id_of(&port));
    let foreign = json!({"port": {"allowed_address_pairs": [{"ip_address": "192.168.7.7"}]}});
    services.call("machines", "PUT", "network", &path, foreign).await;
    let told = subject.status().await.unwrap_err();
    assert_eq!((told.code, told.partial.unwrap().node_name), (Code::Uninitialized, "pairs-1".to_owned()));
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
async fn o_07_a_server_that_lost_its_metadata_is_nobodys() {
    let Some(services) = services("o_07_a_server_that_lost_its_metadata_is_nobodys") else { return };
    let mut subject = Subject::new(&services, "machines", "orphan", json!({}));
    subject.provider_id = subject.create().await.unwrap().vm.provider_id;
    let id = id_of(&subject.inventory().await.servers[0]);
    let key = format!("/servers/{id}/metadata/kubernetes.io-cluster-orphan");
    services.call("machines", "DELETE", "compute", &key, Value::Null).await;
    assert_eq!(subject.status().await.unwrap_err().code, Code::NotFound);
    assert_eq!(subject.list().await.unwrap(), []);
    subject.delete().await.unwrap();
    let left = subject.inventory().await;
    assert_eq!((left.servers.len(), left.ports.len()), (1, 1), "the server and the port that it has stay");
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
async fn a_server_that_somebody_deletes_is_gone_and_leaves_its_port_to_us() {
    let Some(services) = services("a_server_that_somebody_deletes_is_gone_and_leaves_its_port_to_us") else { return };
    let mut subject = Subject::new(&services, "machines", "behind", json!({"tags": {"rig-delete-seconds": "6"}}));
    let made = subject.create().await.unwrap().vm;
    let id = id_of(&subject.inventory().await.servers[0]);
    services.call("machines", "DELETE", "compute", &format!("/servers/{id}"), Value::Null).await;
    // Nova still calls it ACTIVE.
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
async fn a_server_that_somebody_stopped_is_listed_and_taken_over() {
    let Some(services) = services("a_server_that_somebody_stopped_is_listed_and_taken_over") else { return };
    let subject = Subject::new(&services, "machines", "stopped", without_port());
    let made = subject.create().await.unwrap().vm;
    let id = id_of(&subject.inventory().await.servers[0]);
    services.call("machines", "POST", "compute", &format!("/servers/{id}/action"), json!({"os-stop": null})).await;
    while subject.inventory().await.servers[0]["status"] != "SHUTOFF" {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert_eq!(subject.list().await.unwrap().len(), 1);
    assert_eq!(subject.create().await.unwrap().vm.provider_id, made.provider_id);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_server_that_is_locked_is_told_and_deleted_later() {
    let Some(services) = services("a_server_that_is_locked_is_told_and_deleted_later") else { return };
    let subject = Subject::new(&services, "machines", "locked", json!({}));
    subject.create().await.unwrap();
    let action = format!("/servers/{}/action", id_of(&subject.inventory().await.servers[0]));
    // One that its owner locks its owner may delete: an administrator's holds.
    services.call("admin", "POST", "compute", &action, json!({"lock": null})).await;
    let refused = subject.delete().await.unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition, "{}", refused.message);
    services.call("admin", "POST", "compute", &action, json!({"unlock": null})).await;
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

/// Two servers of one name, of which one is ours, and a stranger's port.
#[tokio::test]
async fn namesakes_of_strangers_stay() {
    let Some(services) = services("namesakes_of_strangers_stay") else { return };
    let subject = Subject::new(&services, "machines", "namesake", json!({}));
    let stranger = Subject { name: subject.name.clone(), ..Subject::new(&services, "machines", "stranger", json!({})) };
    let theirs = stranger.create().await.unwrap().vm.provider_id;
    let port = json!({"port": {"name": "namesake-1", "network_id": services.made["machines"]["network"]}});
    let port = id_of(&services.call("machines", "POST", "network", "/ports", port).await["port"]);
    let ours = subject.create().await.unwrap().vm.provider_id;
    assert_ne!(ours, theirs);
    subject.delete().await.unwrap();
    let left = subject.inventory().await;
    assert_eq!((left.servers.len(), left.ports.len()), (1, 2), "those of strangers: {left:?}");
    assert!(theirs.ends_with(&id_of(&left.servers[0])));
    services.call("machines", "DELETE", "network", &format!("/ports/{port}"), Value::Null).await;
    stranger.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn o_06_two_servers_of_the_machine_are_told_and_both_deleted() {
    let Some(services) = services("o_06_two_servers_of_the_machine_are_told_and_both_deleted") else { return };
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
