//! Checks the registered servers: whether they are available, and their documents. Writes the condition `Available`.
//!
//! This file also creates the registrations of the groups that this server serves itself.
//! Source: spec/extension-apiserver §5.3, §5.5, §6.2.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::{
    Backend, Backends, GROUP, RESOURCE, ServerDocuments,
    client::ExtensionClient,
    merge,
    registration::{self, AUTOMANAGED, GroupVersion, Registration, Unavailable},
};
use crate::{
    access::{AUTHENTICATED, MASTERS},
    object,
    server::Server,
    store::{Collection, Expect, Stored, key},
};

/// The time between two checks of available servers.
const PERIOD: Duration = Duration::from_secs(10);
/// The time before the second check of an unavailable server. It is short because most of these servers are just starting.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// The longest time between two checks of an unavailable server.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The timeout of a request of a check.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of bytes of a document.
const DOCUMENT_LIMIT: usize = 16 * 1024 * 1024;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The user of a request of a check.
#[derive(Clone, Copy)]
enum CheckUser {
    /// The user for availability and discovery.
    Aggregator,
    /// The user for `OpenAPI` documents. As in kube-aggregator it is only in the group of authenticated users.
    OpenApi,
}

impl CheckUser {
    const fn name(self) -> &'static str {
        match self {
            Self::Aggregator => "system:kube-aggregator",
            Self::OpenApi => "system:aggregator",
        }
    }

    const fn groups(self) -> &'static [&'static str] {
        match self {
            Self::Aggregator => &[MASTERS, AUTHENTICATED],
            Self::OpenApi => &[AUTHENTICATED],
        }
    }
}

/// The result of a check of all registered servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckResult {
    NoServers,
    AllAvailable,
    /// Some servers are unavailable, and the result has changed.
    SomeUnavailableChanged,
    /// Some servers are unavailable, and the result is the same as before.
    SomeUnavailableUnchanged,
}

/// The time until the next check after a number of equal results with unavailable servers.
fn pause(checks: u32) -> Duration {
    SHORTEST_PAUSE.saturating_mul(1 << checks.saturating_sub(1).min(8)).min(LONGEST_PAUSE)
}

impl Server {
    /// Checks the registered servers until the server is dropped.
    pub(crate) async fn keep_registrations(self: Arc<Self>) {
        let mut checks = 0;
        loop {
            let pause = match self.check_registrations().await {
                CheckResult::NoServers => None,
                CheckResult::AllAvailable => Some(PERIOD),
                CheckResult::SomeUnavailableChanged => {
                    checks = 1;
                    Some(pause(checks))
                }
                CheckResult::SomeUnavailableUnchanged => {
                    checks = checks.saturating_add(1);
                    Some(pause(checks))
                }
            };
            let requested = self.aggregator.check.notified();
            match pause {
                None => requested.await,
                // The next check follows a request as well as the end of the pause.
                Some(pause) => drop(tokio::time::timeout(pause, requested).await),
            }
        }
    }

    /// Checks every registered server.
    async fn check_registrations(&self) -> CheckResult {
        let objects = self.store.list(&registrations(), "").objects;
        let before = self.aggregator.backends();
        let mut checked = Vec::new();
        for (_, stored) in objects {
            let Some(registration) = Registration::of(&stored.value) else { continue };
            checked.push((stored, Arc::new(self.check(registration, &before).await)));
        }
        let serves = |backend: &Arc<Backend>| backend.registration.serves.clone();
        let backends: Backends = checked.iter().map(|(_, backend)| (serves(backend), Arc::clone(backend))).collect();
        let all_available = backends.values().all(|backend| backend.documents.is_ok());
        let none = backends.is_empty();
        let changed = before.len() != backends.len()
            || backends.iter().any(|(serves, backend)| before.get(serves).is_none_or(|old| !is_same(old, backend)));
        if changed {
            *self.aggregator.backends.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(backends);
            self.documents.clear();
            self.aggregator.changed.notify_one();
        }
        // The conditions are written after the update above, so that requests to a server work as soon as it is shown as available.
        for (stored, backend) in &checked {
            self.write_condition(stored, backend);
        }
        match (none, all_available, changed) {
            (true, ..) => CheckResult::NoServers,
            (_, true, _) => CheckResult::AllAvailable,
            (.., true) => CheckResult::SomeUnavailableChanged,
            (.., false) => CheckResult::SomeUnavailableUnchanged,
        }
    }

    async fn check(&self, registration: Registration, before: &Backends) -> Backend {
        let known = before.get(&registration.serves).filter(|known| known.registration == registration);
        let service = Collection::new("", "services");
        let place = key(Some(&registration.service.namespace), &registration.service.name);
        let stored = self.store.get(&service, &place);
        let address = registration::address(&registration.service, stored.as_ref().map(|stored| &stored.value));
        let identity = self.aggregator.identity.get();
        // The client and its connections are reused as long as the address is the same.
        let client = match (address, known.map(|known| &known.client)) {
            (Ok(address), Some(Ok(client))) if client.is_for(&address, identity) => Ok(client.clone()),
            (Ok(address), _) => ExtensionClient::new(address, &registration.service, &registration.bundle, identity),
            (Err(why), _) => Err(why),
        };
        let known = known.and_then(|known| known.documents.as_deref().ok());
        let documents = match &client {
            Err(why) => Err(why.clone()),
            Ok(client) => fetch_documents(client, &registration.serves, known).await.map(Box::new),
        };
        Backend { registration, client, documents }
    }

    /// Writes the condition, if it has changed.
    fn write_condition(&self, stored: &Stored, backend: &Backend) {
        let state = backend.documents.as_ref().map(|_| ());
        if let Some(changed) = registration::with_condition(&stored.whole(), state, self.now()) {
            // A conflict needs no retry, because the other change leads to a new check.
            let _ = self.store.write(
                &registrations(),
                &backend.registration.name,
                Expect::Revision(stored.revision),
                Some(changed),
            );
        }
    }

    /// Creates the registrations of the groups that this server serves itself, and deletes the registrations of groups that it does not serve any
    /// more.
    pub(crate) fn register_local(&self) {
        let wanted = registration::local_registrations(&self.registry(), self.now());
        let stored = self.store.list(&registrations(), "").objects;
        for mut object in wanted.clone() {
            let name = object::name(&object).to_owned();
            if stored.iter().any(|(place, _)| *place == name) {
                continue;
            }
            object["metadata"]["uid"] = json!(object::new_uid(&mut *self.random()));
            object["metadata"]["creationTimestamp"] = object::time(self.now());
            // An existing registration stays unchanged.
            let _ = self.store.write(&registrations(), &name, Expect::Absent, Some(object));
        }
        for (place, stored) in stored {
            let is_ours = !stored.value["metadata"]["labels"][AUTOMANAGED].is_null();
            if is_ours && !wanted.iter().any(|object| object::name(object) == place) {
                let _ = self.store.write(&registrations(), &place, Expect::Revision(stored.revision), None);
            }
        }
    }
}

fn registrations() -> Collection {
    Collection::new(GROUP, RESOURCE)
}

/// Whether two checks have the same result for requests and documents.
fn is_same(old: &Backend, new: &Backend) -> bool {
    let same_client = match (&old.client, &new.client) {
        (Ok(old), Ok(new)) => old.is_same(new),
        (Err(old), Err(new)) => old == new,
        _ => false,
    };
    let same_documents = match (&old.documents, &new.documents) {
        (Ok(old), Ok(new)) => old.version == new.version,
        (Err(old), Err(new)) => old == new,
        _ => false,
    };
    old.registration == new.registration && same_client && same_documents
}

/// Checks whether a server is available, and fetches its documents if they have changed.
async fn fetch_documents(
    client: &ExtensionClient,
    serves: &GroupVersion,
    known: Option<&ServerDocuments>,
) -> Result<ServerDocuments, Unavailable> {
    let path = serves.path();
    let failed = |why: String| Unavailable::failed_check(format!("failing or missing response from {path}: {why}"));
    // A server that is just starting is only asked whether it is ready, because it would log an error for every other request.
    if known.is_none() {
        let (ready, _) = exchange(client, "/readyz", "*/*", CheckUser::Aggregator).await.map_err(failed)?;
        // A server without this endpoint counts as ready.
        if ready.is_server_error() {
            return Err(failed("the server is not ready yet".to_owned()));
        }
    }
    let list = get(client, &path, "application/json", CheckUser::Aggregator).await.map_err(failed)?;
    // A server without these documents is available too.
    let index = get(client, "/openapi/v3", "application/json", CheckUser::OpenApi).await.unwrap_or_default();
    let version = (list, index);
    if let Some(known) = known.filter(|known| known.version == version) {
        return Ok(known.clone());
    }
    let parsed = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).ok();
    let aggregated = get(client, "/apis", AGGREGATED, CheckUser::Aggregator).await.ok();
    let entry = aggregated.as_ref().and_then(parsed).and_then(|document| merge::entry_of(&document, serves));
    let entry = entry.or_else(|| merge::entry_of_plain(&parsed(&version.0)?, serves));
    let open_api = parsed(&version.1)
        .and_then(|index| Some(index["paths"][path.trim_start_matches('/')]["serverRelativeURL"].as_str()?.to_owned()));
    let swagger = get(client, "/openapi/v2", "application/json", CheckUser::OpenApi).await.ok();
    Ok(ServerDocuments { swagger: swagger.as_ref().and_then(parsed), entry, open_api, version })
}

async fn get(client: &ExtensionClient, path: &str, accept: &'static str, user: CheckUser) -> Result<Bytes, String> {
    let (status, bytes) = exchange(client, path, accept, user).await?;
    if status.is_success() { Ok(bytes) } else { Err(format!("bad status {status}: {}", beginning(&bytes))) }
}

async fn exchange(
    client: &ExtensionClient,
    path: &str,
    accept: &'static str,
    user: CheckUser,
) -> Result<(StatusCode, Bytes), String> {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, HeaderValue::from_static("mcm-dev-aggregator"));
    headers.insert("x-remote-user", HeaderValue::from_static(user.name()));
    for group in user.groups() {
        headers.append("x-remote-group", HeaderValue::from_static(group));
    }
    let answered = async {
        let response = client.send(Method::GET, path, headers, Bytes::new()).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), DOCUMENT_LIMIT).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    tokio::time::timeout(TIMEOUT, answered).await.map_err(|_| format!("no answer within {} s", TIMEOUT.as_secs()))?
}

/// The beginning of an answer, for the message of a condition.
fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::at_first(1, 50)]
    #[case::then(3, 200)]
    #[case::after_a_while(5, 500)]
    #[case::at_last(u32::MAX, 500)]
    fn unavailable_servers_are_checked_soon_and_then_less_often(#[case] checks: u32, #[case] milliseconds: u64) {
        assert_eq!(pause(checks), Duration::from_millis(milliseconds));
    }
}
