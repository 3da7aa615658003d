//! Tests of the driver against the real services of `OpenStack`, which `scripts/test-openstack` runs.
//!
//! The tests use openstacksdk to check what exists at the end. Each test has its own cluster, so that all tests can share the services. Tokens are
//! valid for 150 s, and lists have three entries per page.

#![allow(missing_docs, reason = "tests")]

mod faults;
mod refusals;
mod services;
mod strangers;
mod trust;

use machine_driver::{Code, Driver, contract};
use rstest::rstest;
use serde_json::{Value, json};

use services::{Subject, services};

/// The patch of a class that makes Nova create the ports.
fn without_port() -> Value {
    json!({"subnetID": null})
}

#[rstest]
#[case::with_a_port("contract-port", json!({}))]
#[case::without_a_port("contract-nova", without_port())]
#[case::with_a_volume("contract-disk", json!({"rootDiskSize": 2, "rootDiskType": "standard"}))]
#[case::with_a_volume_of_nova("contract-boot", json!({"rootDiskSize": 2, "useConfigDrive": true}))]
#[tokio::test]
async fn the_contract_of_drivers_holds(#[case] test: &'static str, #[case] patch: Value) {
    let Some(services) = services(test) else { return };
    let subject = Subject::new(&services, "machines", test, patch);
    contract::holds_for(&subject.driver, subject.class(), subject.secret.clone()).await;
    assert_eq!(subject.list().await.unwrap(), []);
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_server_is_what_its_class_says() {
    let Some(services) = services("a_server_is_what_its_class_says") else { return };
    let patch = json!({
        "rootDiskSize": 2, "rootDiskType": "standard", "useConfigDrive": true, "podNetworkCIDRs": ["100.64.0.0/12", "fd00::/48"],
        "tags": {"team": "x"},
    });
    let subject = Subject::new(&services, "machines", "whole", patch);
    let made = subject.create().await.unwrap().vm;
    let there = subject.inventory().await;
    assert_eq!((there.servers.len(), there.ports.len(), there.volumes.len()), (1, 1, 1));
    let (server, port, volume) = (&there.servers[0], &there.ports[0], &there.volumes[0]);
    assert_eq!(made.provider_id, format!("openstack:///RegionOne/{}", server["id"].as_str().unwrap()));
    assert_eq!((server["name"].as_str(), server["status"].as_str()), (Some("whole-1"), Some("ACTIVE")));
    assert_eq!(made.node_name, "whole-1");
    assert_eq!(made.addresses[0].address, port["fixed_ips"][0]["ip_address"]);
    let metadata = json!({"kubernetes.io-cluster-whole": "1", "kubernetes.io-role-node": "1", "team": "x"});
    assert_eq!(server["metadata"], metadata);
    let mut of_volume = volume["metadata"].clone();
    let made_for = of_volume.as_object_mut().unwrap().remove("machine-controller-manager-made-for");
    assert!(made_for.is_some_and(|made_for| made_for.as_str().unwrap().ends_with(" 2")), "{volume}");
    assert_eq!(of_volume, metadata);
    assert_eq!((server["key_name"].as_str(), server["config_drive"].as_str()), (Some("machines"), Some("True")));
    assert_eq!(port["device_id"], server["id"]);
    assert_eq!(port["security_group_ids"], json!([services.made["machines"]["security_group"]]));
    let pairs: Vec<_> =
        port["allowed_address_pairs"].as_array().unwrap().iter().map(|pair| pair["ip_address"].clone()).collect();
    assert_eq!(pairs, ["100.64.0.0/12", "fd00::/48"]);
    assert_eq!((volume["size"].as_u64(), volume["status"].as_str()), (Some(2), Some("in-use")));
    assert_eq!(subject.status().await.unwrap(), made);
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn lists_with_many_pages_are_complete() {
    let Some(services) = services("lists_with_many_pages_are_complete") else { return };
    let subjects: Vec<_> = (1..=5)
        .map(|number| Subject {
            name: format!("pages-{number}"),
            ..Subject::new(&services, "machines", "pages", without_port())
        })
        .collect();
    for outcome in futures(subjects.iter().map(Subject::create)).await {
        outcome.unwrap();
    }
    let mut listed: Vec<_> = subjects[0].list().await.unwrap().into_iter().map(|vm| vm.machine_name).collect();
    listed.sort();
    assert_eq!(listed, ["pages-1", "pages-2", "pages-3", "pages-4", "pages-5"]);
    for outcome in futures(subjects.iter().map(Subject::delete)).await {
        outcome.unwrap();
    }
    subjects[0].assert_nothing_is_left().await;
}

/// Runs all futures concurrently.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut outcomes = Vec::new();
    let mut running: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        running.retain_mut(|one| match one.as_mut().poll(cx) {
            std::task::Poll::Ready(outcome) => {
                outcomes.push(outcome);
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    outcomes
}

/// A token is valid for 150 s, so it must be renewed during the build.
#[tokio::test]
async fn o_10_a_build_outlives_its_token() {
    let Some(services) = services("o_10_a_build_outlives_its_token") else { return };
    let subject = Subject::new(&services, "machines", "outlives", json!({"tags": {"rig-build-seconds": "130"}}));
    subject.create().await.unwrap();
    subject.status().await.unwrap();
    subject.delete().await.unwrap();
    subject.assert_nothing_is_left().await;
}

#[tokio::test]
async fn o_10_a_token_that_is_revoked_is_renewed_once() {
    let Some(services) = services("o_10_a_token_that_is_revoked_is_renewed_once") else { return };
    let admin = |method, path: String, body| {
        let services = &services;
        async move { services.call("admin", method, "identity", &path, body).await }
    };
    let name = format!("revoked-{}", std::process::id());
    let user = json!({"user": {"name": name, "password": "secret", "domain_id": "default"}});
    let user = admin("POST", "/users".to_owned(), user).await["user"]["id"].as_str().unwrap().to_owned();
    let roles = admin("GET", "/roles".to_owned(), Value::Null).await;
    let member = roles["roles"].as_array().unwrap().iter().find(|role| role["name"] == "member").unwrap()["id"].clone();
    let project = services.made["projects"]["machines"].as_str().unwrap();
    admin("PUT", format!("/projects/{project}/users/{user}/roles/{}", member.as_str().unwrap()), Value::Null).await;
    let mut subject = Subject::new(&services, "machines", "revoked", json!({}));
    subject.secret.set("username", name.into_bytes());
    assert_eq!(subject.list().await.unwrap(), []);
    // Setting a password revokes all tokens of the user, also if the password is the same. The services cache a token for 10 s.
    admin("PATCH", format!("/users/{user}"), json!({"user": {"password": "secret"}})).await;
    tokio::time::sleep(std::time::Duration::from_secs(11)).await;
    assert_eq!(subject.list().await.unwrap(), []);
    subject.secret.set("password", b"another".to_vec());
    assert_eq!(subject.list().await.unwrap_err().code, Code::Unauthenticated);
    assert_eq!(subject.driver.info().name, "openstack");
}
