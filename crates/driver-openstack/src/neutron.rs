//! The requests to Neutron and their answers.

use std::{collections::BTreeSet, iter};

use cloud_client::{Failure, Repeat, http::Method};
use machine_driver::OwnerTags;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    cloud::{Operation, Session},
    keystone::Service,
    lookup,
    nova::query,
};

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Port {
    pub id: String,
    pub name: String,
    pub project_id: Option<String>,
    pub network_id: String,
    /// The id of the server that uses the port. Empty if no server uses it.
    pub device_id: String,
    pub description: Option<String>,
    pub tags: Vec<String>,
    pub security_groups: Vec<String>,
    pub fixed_ips: Vec<FixedIp>,
    pub created_at: Option<String>,
    /// The pairs as JSON, so that unknown fields are kept in an update.
    pub allowed_address_pairs: Vec<Value>,
    pub revision_number: Option<u64>,
}

/// An address of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FixedIp {
    pub subnet_id: String,
}

/// A network, an image or a security group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NamedThing {
    pub id: String,
    pub name: String,
    /// Shown only if the request asks for it.
    #[serde(default)]
    pub project_id: Option<String>,
}

/// A subnet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Subnet {
    pub id: String,
    pub network_id: String,
    /// The way in which ports get their IPv6 addresses.
    pub ipv6_address_mode: Option<String>,
    /// The way in which the router advertises the subnet.
    pub ipv6_ra_mode: Option<String>,
}

impl Session<'_> {
    /// The ports with this name in the project, of any owner.
    pub async fn ports_named(&self, name: &str) -> Result<Vec<Port>, Failure> {
        let found = self.ports("looking for the server's port", ("name", name)).await?;
        Ok(found.into_iter().filter(|port| port.name == name).collect())
    }

    /// The ports of a server.
    pub async fn ports_of(&self, server: &str) -> Result<Vec<Port>, Failure> {
        let found = self.ports("looking for the server's ports", ("device_id", server)).await?;
        Ok(found.into_iter().filter(|port| port.device_id == server).collect())
    }

    /// The ports that the driver has made for the owner.
    pub async fn ports_of_owner(&self, owner: &OwnerTags) -> Result<Vec<Port>, Failure> {
        self.ports("listing ports", ("description", &lookup::mark(owner))).await
    }

    /// The ports of the login's project that pass a filter. Neutron shows the ports of all projects to a login with the role `admin`.
    async fn ports(&self, what: &str, filter: (&str, &str)) -> Result<Vec<Port>, Failure> {
        let project = self.project().await?;
        let of_project = project.as_deref().map(|project| ("project_id", project));
        let filters: Vec<_> = iter::once(filter).chain(of_project).collect();
        let path = format!("/ports?{}", query(&filters));
        let found = self.list(Operation::get(Service::Network, what, &path), "ports").await?;
        Ok(lookup::of_project(found, project.as_deref(), |port: &Port| port.project_id.as_deref()))
    }

    /// A port.
    pub async fn port(&self, id: &str) -> Result<Port, Failure> {
        self.call(Operation::get(Service::Network, "looking at the port", &format!("/ports/{id}")), "port").await
    }

    /// Makes a port.
    pub async fn make_port(&self, body: &Value) -> Result<Port, Failure> {
        let operation = Operation {
            method: &Method::POST,
            body: Some(body),
            repeat: Repeat::Unsafe,
            ..Operation::get(Service::Network, "making the server's port", "/ports")
        };
        self.call(operation, "port").await
    }

    /// Replaces the tags of a port.
    pub async fn tag_port(&self, id: &str, tags: &[&str]) -> Result<(), Failure> {
        let body = json!({ "tags": tags });
        let path = format!("/ports/{id}/tags");
        let operation = Operation {
            method: &Method::PUT,
            body: Some(&body),
            ..Operation::get(Service::Network, "tagging the server's port", &path)
        };
        self.send(operation).await.map(drop)
    }

    /// Replaces the address pairs of a port. Fails if the port has changed since it was read.
    pub async fn allow_addresses(&self, port: &Port, pairs: &[Value]) -> Result<(), Failure> {
        let body = json!({"port": {"allowed_address_pairs": pairs}});
        let path = format!("/ports/{}", port.id);
        let revision = port.revision_number.map(|number| format!("revision_number={number}"));
        let operation = Operation {
            method: &Method::PUT,
            body: Some(&body),
            if_match: revision.as_deref(),
            ..Operation::get(Service::Network, "allowing addresses on the port", &path)
        };
        self.send(operation).await.map(drop)
    }

    /// Deletes a port. `None` if there is none.
    pub async fn delete_port(&self, id: &str) -> Result<Option<()>, Failure> {
        self.delete(Service::Network, "deleting the server's port", &format!("/ports/{id}")).await
    }

    /// The networks with these names.
    pub async fn networks_named(&self, names: &[&str]) -> Result<Vec<NamedThing>, Failure> {
        let pairs: Vec<_> =
            names.iter().map(|name| ("name", *name)).chain([("fields", "id"), ("fields", "name")]).collect();
        let path = format!("/networks?{}", query(&pairs));
        self.list(Operation::get(Service::Network, "looking for the networks", &path), "networks").await
    }

    /// The security groups with these names: those of the login's project, and for names without such a group those of all projects. Another project
    /// may share its groups, and Neutron shows the groups of all projects to a login with the role `admin`.
    pub async fn security_groups_named(&self, names: &[&str]) -> Result<Vec<NamedThing>, Failure> {
        let project = self.project().await?;
        let project = project.as_deref();
        let found = self.security_groups(names, project).await?;
        let mut groups = lookup::of_project(found, project, |group: &NamedThing| group.project_id.as_deref());
        let missing = lookup::missing(names, &groups);
        if project.is_some() && !missing.is_empty() {
            groups.extend(self.security_groups(&missing, None).await?);
        }
        Ok(groups)
    }

    async fn security_groups(&self, names: &[&str], project: Option<&str>) -> Result<Vec<NamedThing>, Failure> {
        let fields = ["id", "name", "project_id"].map(|field| ("fields", field));
        let of_project = project.map(|project| ("project_id", project));
        let pairs: Vec<_> = names.iter().map(|name| ("name", *name)).chain(of_project).chain(fields).collect();
        let path = format!("/security-groups?{}", query(&pairs));
        self.list(Operation::get(Service::Network, "looking for the security groups", &path), "security_groups").await
    }

    /// The subnets with these ids.
    pub async fn subnets(&self, ids: &BTreeSet<&str>) -> Result<Vec<Subnet>, Failure> {
        // A request without ids would list all subnets.
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let fields = ["id", "network_id", "ipv6_address_mode", "ipv6_ra_mode"].map(|field| ("fields", field));
        let pairs: Vec<_> = ids.iter().map(|id| ("id", *id)).chain(fields).collect();
        let path = format!("/subnets?{}", query(&pairs));
        self.list(Operation::get(Service::Network, "looking for the subnets", &path), "subnets").await
    }
}
