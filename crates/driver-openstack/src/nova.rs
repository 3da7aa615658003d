//! What Nova is asked for, and what it answers.

use std::collections::{BTreeMap, HashSet};

use cloud_client::{Failure, FailureKind, Repeat, http::Method};
use machine_driver::Code;
use serde::{Deserialize, de::IgnoredAny};
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
    /// What is attached, by whomever.
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
    /// The servers of this name in the project, whoever they belong to.
    pub async fn servers_named(&self, name: &str) -> Result<Vec<Server>, Failure> {
        // The filter is a regular expression.
        let pattern = format!("^{}$", name.replace('.', "\\."));
        let path = format!("/servers/detail?{}", query(&[("name", &pattern)]));
        let found = self.all_servers(Ask::get(Service::Compute, "looking for the server", &path)).await?;
        Ok(found.into_iter().filter(|server| server.name == name).collect())
    }

    /// All servers of the project. Nova ignores filters by metadata.
    pub async fn servers(&self) -> Result<Vec<Server>, Failure> {
        self.all_servers(Ask::get(Service::Compute, "listing servers", "/servers/detail")).await
    }

    /// All servers of a list, each once: one that is just being built may stand on two pages.
    async fn all_servers(&self, ask: Ask<'_>) -> Result<Vec<Server>, Failure> {
        let mut servers = self.list_by(ask, "servers", lookup::next_page).await?;
        let mut ids = HashSet::new();
        servers.retain(|server: &Server| ids.insert(server.id.clone()));
        Ok(servers)
    }

    /// A server; `None` when there is none.
    pub async fn server(&self, id: &str) -> Result<Option<Server>, Failure> {
        let path = format!("/servers/{id}");
        let found: Option<Server> =
            optional(self.ask(Ask::get(Service::Compute, "looking at the server", &path), "server").await)?;
        about(found, id, |server| &server.id)
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
        match optional(self.send(ask).await)? {
            // No service says anything in its answer to a deletion.
            Some(body) if !body.is_empty() => Err(Failure::new(
                Code::Internal,
                format!("{what}: the answer is none of the service"),
                FailureKind::Temporary,
            )),
            _ => Ok(()),
        }
    }
}

/// A thing that was asked for by its id. Caches and gateways answer with another one.
///
/// # Errors
/// `Internal` for another one.
pub fn about<T>(found: Option<T>, id: &str, id_of: impl Fn(&T) -> &String) -> Result<Option<T>, Failure> {
    match found {
        Some(found) if id_of(&found) != id => {
            let message = format!("{id} was asked for and the answer is about {}", id_of(&found));
            Err(Failure::permanent(Code::Internal, message))
        }
        found => Ok(found),
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
