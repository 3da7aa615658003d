//! The requests to Nova and their answers.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{Failure, FailureKind, Repeat, http::Method};
use machine_driver::Code;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use crate::{
    cloud::{Operation, Session},
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
    /// The attached volumes. The driver, Nova or a user may have attached them.
    #[serde(rename = "os-extended-volumes:volumes_attached")]
    pub volumes: Vec<IgnoredAny>,
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
    /// The servers with this name in the project, of any owner.
    pub async fn servers_named(&self, name: &str) -> Result<Vec<Server>, Failure> {
        // The filter is a regular expression.
        let pattern = format!("^{}$", name.replace('.', "\\."));
        let path = format!("/servers/detail?{}", query(&[("name", &pattern)]));
        let found = self.all_servers(Operation::get(Service::Compute, "looking for the server", &path)).await?;
        Ok(found.into_iter().filter(|server| server.name == name).collect())
    }

    /// All servers of the project, because Nova ignores filters by metadata.
    pub async fn servers(&self) -> Result<Vec<Server>, Failure> {
        self.all_servers(Operation::get(Service::Compute, "listing servers", "/servers/detail")).await
    }

    /// All servers of a list, each once: a server that is being built may be on two pages.
    async fn all_servers(&self, operation: Operation<'_>) -> Result<Vec<Server>, Failure> {
        let mut servers = self.list_by(operation, "servers", lookup::next_page).await?;
        let mut ids = HashSet::new();
        servers.retain(|server: &Server| ids.insert(server.id.clone()));
        Ok(servers)
    }

    /// The server with this id. `None` if there is none.
    pub async fn server(&self, id: &str) -> Result<Option<Server>, Failure> {
        let path = format!("/servers/{id}");
        let found: Option<Server> =
            optional(self.call(Operation::get(Service::Compute, "looking at the server", &path), "server").await)?;
        about(found, id, |server| &server.id)
    }

    /// Starts to make a server and returns its id.
    pub async fn make_server(&self, body: &Value) -> Result<String, Failure> {
        let operation = Operation {
            method: &Method::POST,
            body: Some(body),
            repeat: Repeat::Unsafe,
            ..Operation::get(Service::Compute, "making the server", "/servers")
        };
        self.call(operation, "server").await.map(|made: Made| made.id)
    }

    /// Starts to delete a server. `None` if there is none.
    pub async fn delete_server(&self, id: &str) -> Result<Option<()>, Failure> {
        self.delete(Service::Compute, "deleting the server", &format!("/servers/{id}")).await
    }

    /// All flavors.
    pub async fn flavors(&self) -> Result<Vec<Flavor>, Failure> {
        self.list(Operation::get(Service::Compute, "looking for the flavor", "/flavors"), "flavors").await
    }

    /// Deletes an object. `None` if there is none.
    pub(crate) async fn delete(&self, service: Service, what: &str, path: &str) -> Result<Option<()>, Failure> {
        let operation = Operation { method: &Method::DELETE, ..Operation::get(service, what, path) };
        match optional(self.send(operation).await)? {
            // The services answer a deletion with an empty body. Any other body comes from a gateway.
            Some(body) if !body.is_empty() => Err(Failure::new(
                Code::Internal,
                format!("{what}: the answer is none of the service"),
                FailureKind::Temporary,
            )),
            answer => Ok(answer.map(drop)),
        }
    }
}

/// Checks that the answer to a request by id has this id, in small or capital letters. Caches and gateways may answer with another object.
///
/// # Errors
/// `Internal` for another object.
pub fn about<T>(found: Option<T>, id: &str, id_of: impl Fn(&T) -> &String) -> Result<Option<T>, Failure> {
    match found {
        Some(found) if !lookup::is_same_id(id_of(&found), id) => {
            let message = format!("{id} was asked for and the answer is about {}", id_of(&found));
            Err(Failure::permanent(Code::Internal, message))
        }
        found => Ok(found),
    }
}

/// The outcome with `NotFound` as `None`.
pub fn optional<T>(outcome: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.status.code == Code::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Encodes these pairs as the query of a URL.
pub fn query(pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs).finish()
}
