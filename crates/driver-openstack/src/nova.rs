//! What Nova is asked for, and what it answers.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{Failure, Repeat, http::Method};
use machine_driver::Code;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    cloud::{Ask, Session},
    keystone::Service,
    lookup,
};

/// A server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Server {
    pub id: String,
    pub name: String,
    pub status: String,
    pub metadata: BTreeMap<String, String>,
    pub created: String,
    pub addresses: BTreeMap<String, Vec<Address>>,
    pub fault: Option<Fault>,
    #[serde(rename = "OS-EXT-STS:task_state")]
    pub task_state: Option<String>,
}

/// An address of a server in a network.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Address {
    pub addr: String,
    #[serde(rename = "OS-EXT-IPS:type")]
    pub kind: Option<String>,
}

/// Why a server is in ERROR.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fault {
    pub code: i64,
    pub message: String,
}

#[derive(Deserialize)]
struct Made {
    id: String,
}

/// A flavor.
#[derive(Clone, Debug, Deserialize)]
pub struct Flavor {
    pub id: String,
    pub name: String,
}

impl Session<'_> {
    /// The servers of this name in the project, whoever they belong to.
    pub async fn servers_named(&self, name: &str) -> Result<Vec<Server>, Failure> {
        // The filter is a regular expression.
        let pattern = format!("^{}$", name.replace('.', "\\."));
        let path = format!("/servers/detail?{}", query(&[("name", &pattern)]));
        let found: Vec<Server> = self
            .list_by(
                Ask::get(Service::Compute, "looking for the server", &path),
                "servers",
                lookup::next_page_of_a_name,
            )
            .await?;
        Ok(found.into_iter().filter(|server| server.name == name).collect())
    }

    /// All servers of the project. Nova ignores filters by metadata.
    pub async fn servers(&self) -> Result<Vec<Server>, Failure> {
        let ask = Ask::get(Service::Compute, "listing servers", "/servers/detail");
        let mut servers = self.list_by(ask, "servers", lookup::next_page).await?;
        let mut seen = HashSet::new();
        servers.retain(|server: &Server| seen.insert(server.id.clone()));
        Ok(servers)
    }

    /// A server; `None` when there is none.
    pub async fn server(&self, id: &str) -> Result<Option<Server>, Failure> {
        let path = format!("/servers/{id}");
        optional(self.ask(Ask::get(Service::Compute, "looking at the server", &path), "server").await)
    }

    /// Asks for a server and answers its id.
    pub async fn make_server(&self, body: &Value) -> Result<String, Failure> {
        let ask = Ask {
            method: &Method::POST,
            body: Some(body),
            repeat: Repeat::Unsafe,
            ..Ask::get(Service::Compute, "making the server", "/servers")
        };
        self.ask(ask, "server").await.map(|made: Made| made.id)
    }

    /// Ends a server, which goes on after the answer. One that is gone is not missed.
    pub async fn delete_server(&self, id: &str) -> Result<(), Failure> {
        self.delete(Service::Compute, "deleting the server", &format!("/servers/{id}")).await
    }

    /// All flavors.
    pub async fn flavors(&self) -> Result<Vec<Flavor>, Failure> {
        self.list(Ask::get(Service::Compute, "looking for the flavor", "/flavors"), "flavors").await
    }

    /// Deletes something; what is gone is not missed.
    pub(crate) async fn delete(&self, service: Service, what: &str, path: &str) -> Result<(), Failure> {
        let ask = Ask { method: &Method::DELETE, ..Ask::get(service, what, path) };
        optional(self.send(ask).await).map(drop)
    }
}

/// That something does not exist is an answer.
pub fn optional<T>(outcome: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.status.code == Code::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// A query of these pairs.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs).finish()
}
