//! The program creates servers of `OpenStack`: with kubectl, a real API server, `mcm serve`, the services themselves, and kubelets that query the
//! services with openstacksdk.
//!
//! `scripts/test-openstack` runs the services: `scripts/test-openstack cargo test --test it openstack`.

mod faults;

use std::{collections::BTreeSet, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    cloud::{Account, Size, Stage, a_life},
    support::{
        cluster_object::{name, text},
        openstack::{Project, TAGS},
        process::Process,
    },
};

/// A cluster and an empty project.
async fn stage(test: &str) -> Option<Stage<Project>> {
    Stage::new(test, Project::new(test).await?).await
}

impl Account for Project {
    const NAMESPACE: &'static str = "openstack";

    fn kubelets(&self, kubeconfig: &Path) -> Process {
        self.start_kubelets(kubeconfig)
    }

    fn secret(&self) -> Value {
        self.secret_of_project()
    }

    /// The flavor has the name of the size.
    fn class(&self, size: Size) -> Value {
        self.class_of(size.class(), Self::NAMESPACE, size.class())
    }

    fn requests(&self) -> Vec<String> {
        self.own_requests()
    }

    async fn inventory(&self) -> (BTreeSet<String>, Vec<usize>) {
        let inventory = self.servers_ports_and_volumes().await;
        let all = |what: &str| inventory[what].as_array().expect("a list").clone();
        let id = |server: &Value| format!("openstack:///{}/{}", self.region(), text(server, "/id"));
        (all("servers").iter().map(id).collect(), ["ports", "volumes"].map(|what| all(what).len()).to_vec())
    }

    fn resources_of_one(&self) -> Vec<usize> {
        vec![1, 1]
    }

    async fn check(&self, machines: &[Value], size: Size) {
        servers_match_their_class(self, machines, size.class()).await;
    }

    /// Without the region.
    fn node_id(&self, machine: &Value) -> String {
        format!("openstack:///{}", id_of(machine))
    }

    fn secret_texts(&self) -> Vec<String> {
        self.secret_words().map(str::to_owned).to_vec()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_servers_roll_shrink_and_go_again() {
    let Some(stage) = stage("openstack::machines_become_servers_roll_shrink_and_go_again").await else { return };
    a_life(&stage, Vec::new()).await;
}

/// Checks that servers, ports and volumes match the class.
async fn servers_match_their_class(project: &Project, machines: &[Value], flavor: &str) {
    let inventory = project.servers_ports_and_volumes().await;
    let tags = json!({TAGS[0]: "1", TAGS[1]: "1"});
    let (subnet, group) = project.subnet_and_group();
    for machine in machines {
        let id = id_of(machine);
        let one = |what: &str, pointer: &str| {
            let mut all = inventory[what].as_array().into_iter().flatten();
            all.find(|one| text(one, pointer) == id).unwrap_or_else(|| panic!("{what} of {id}: {inventory}"))
        };
        let server = project.get("compute", &format!("/servers/{id}")).await["server"].take();
        assert_eq!((text(&server, "/name"), text(&server, "/status")), (name(machine), "ACTIVE"));
        assert_eq!(server["metadata"], tags);
        assert_eq!(text(&server, "/key_name"), "machines");
        let flavor_id = text(&server, "/flavor/id");
        let found = project.get("compute", &format!("/flavors/{flavor_id}")).await;
        assert_eq!(text(&found, "/flavor/name"), flavor);
        let user_data = text(&server, "/OS-EXT-SRV-ATTR:user_data");
        let user_data = String::from_utf8(BASE64_STANDARD.decode(user_data).expect("base 64")).expect("a text");
        let filled = user_data.starts_with("#!/bin/sh\njoin --token ")
            && user_data.contains(&format!(" --name {}\n", name(machine)))
            && !user_data.contains("<<");
        assert!(filled, "{user_data}");

        let port = one("ports", "/device_id");
        assert_eq!(text(port, "/name"), name(machine));
        assert_eq!(text(port, "/fixed_ips/0/subnet_id"), subnet);
        assert_eq!(port["security_group_ids"], json!([group]));
        assert_eq!(text(port, "/allowed_address_pairs/0/ip_address"), "100.64.0.0/12");
        let on_port: BTreeSet<_> = port["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(on_port, BTreeSet::from(TAGS));
        let volume = one("volumes", "/attachments/0/server_id");
        assert_eq!(
            (text(volume, "/name"), text(volume, "/status"), &volume["size"], text(volume, "/volume_type")),
            (name(machine), "in-use", &json!(2), "standard")
        );
        let mut metadata = volume["metadata"].clone();
        if let Some(keys) = metadata.as_object_mut() {
            keys.remove("machine-controller-manager-made-for");
        }
        assert_eq!(metadata, tags);
    }
}

/// The server's id.
fn id_of(machine: &Value) -> &str {
    text(machine, "/spec/providerID").rsplit('/').next().unwrap_or_default()
}
