//! Keeps what is known of registered servers: asks them whether they answer, learns their documents, writes the condition
//! `Available`.
//!
//! Registrations of what this server serves itself are made here too. Source: spec/extension-apiserver §5.3, §5.5, §6.2.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use super::{
    Backend, Backends, GROUP, Learned, RESOURCE,
    line::Line,
    merge,
    registration::{self, AUTOMANAGED, GroupVersion, Registration, Unavailable},
};
use crate::{
    access::{AUTHENTICATED, MASTERS},
    object,
    server::Server,
    store::{Collection, Expect, Stored, key},
};

/// How often servers that answer are asked.
const PERIOD: Duration = Duration::from_secs(10);
/// How soon those are asked again that do not answer: most of them are about to.
const IMPATIENCE: Duration = Duration::from_millis(50);
/// How often they are asked after a while.
const LONGEST_IMPATIENCE: Duration = Duration::from_millis(500);
/// No question takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longer documents are not read.
const DOCUMENT_LIMIT: usize = 16 * 1024 * 1024;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Who asks.
#[derive(Clone, Copy)]
enum Asker {
    /// Whether a server is there, and what it serves.
    Aggregator,
    /// What its objects look like; as in the original somebody without groups beside that of everybody who is known.
    OpenApi,
}

impl Asker {
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

/// What a look at all registered servers has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    NoServer,
    AllAnswer,
    /// Some do not answer, which was otherwise before.
    SomethingNew,
    /// Some do not answer, as before.
    NothingNew,
}

/// How long to wait after so many looks in a row at a server that does not answer.
fn impatience(in_vain: u32) -> Duration {
    IMPATIENCE.saturating_mul(1 << in_vain.saturating_sub(1).min(8)).min(LONGEST_IMPATIENCE)
}

impl Server {
    /// Follows registrations and their servers until the server is gone.
    pub(crate) async fn keep_registrations(self: Arc<Self>) {
        let mut in_vain = 0;
        loop {
            let pause = match self.look_after_registrations().await {
                Seen::NoServer => None,
                Seen::AllAnswer => Some(PERIOD),
                Seen::SomethingNew => {
                    in_vain = 1;
                    Some(impatience(in_vain))
                }
                Seen::NothingNew => {
                    in_vain = in_vain.saturating_add(1);
                    Some(impatience(in_vain))
                }
            };
            let changed = self.aggregator.changed.notified();
            match pause {
                None => changed.await,
                // Whether it was a change or the time: both mean another look.
                Some(pause) => drop(tokio::time::timeout(pause, changed).await),
            }
        }
    }

    /// Asks every registered server.
    async fn look_after_registrations(&self) -> Seen {
        let objects = self.store.list(&registrations(), "").objects;
        let before = self.aggregator.backends();
        let mut looked_at = Vec::new();
        for (_, stored) in objects {
            let Some(registration) = Registration::of(&stored.value) else { continue };
            looked_at.push((stored, Arc::new(self.look_at(registration, &before).await)));
        }
        let serves = |backend: &Arc<Backend>| backend.registration.serves.clone();
        let backends: Backends = looked_at.iter().map(|(_, backend)| (serves(backend), Arc::clone(backend))).collect();
        let all_answer = backends.values().all(|backend| backend.found.is_ok());
        let none = backends.is_empty();
        let changed = before.len() != backends.len()
            || backends.iter().any(|(serves, backend)| before.get(serves).is_none_or(|old| !is_alike(old, backend)));
        if changed {
            *self.aggregator.backends.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(backends);
            self.documents.forget();
            self.aggregator.moved.notify_one();
        }
        // Who reads that a server is available can ask it.
        for (stored, backend) in &looked_at {
            self.tell(stored, backend);
        }
        match (none, all_answer, changed) {
            (true, ..) => Seen::NoServer,
            (_, true, _) => Seen::AllAnswer,
            (.., true) => Seen::SomethingNew,
            (.., false) => Seen::NothingNew,
        }
    }

    async fn look_at(&self, registration: Registration, before: &Backends) -> Backend {
        let known = before.get(&registration.serves).filter(|known| known.registration == registration);
        let service = Collection::new("", "services");
        let place = key(Some(&registration.service.namespace), &registration.service.name);
        let stored = self.store.get(&service, &place);
        let address = registration::address(&registration.service, stored.as_ref().map(|stored| &stored.value));
        let identity = self.aggregator.identity.get();
        // Connections are kept as long as they lead to the same place.
        let line = match (address, known.map(|known| &known.line)) {
            (Ok(address), Some(Ok(line))) if line.leads_to(&address, identity) => Ok(line.clone()),
            (Ok(address), _) => Line::to(address, &registration.service, &registration.bundle, identity),
            (Err(why), _) => Err(why),
        };
        let learned = known.and_then(|known| known.found.as_deref().ok());
        let found = match &line {
            Err(why) => Err(why.clone()),
            Ok(line) => learn(line, &registration.serves, learned).await.map(Box::new),
        };
        Backend { registration, line, found }
    }

    /// Writes the condition, if it has changed.
    fn tell(&self, stored: &Stored, backend: &Backend) {
        let state = backend.found.as_ref().map(|_| ());
        if let Some(changed) = registration::with_condition(&stored.whole(), state, self.now()) {
            // Somebody else was quicker: the change wakes us again.
            let _ = self.store.write(
                &registrations(),
                &backend.registration.name,
                Expect::Revision(stored.revision),
                Some(changed),
            );
        }
    }

    /// Registers what this server serves itself, and takes back what it does not serve any more.
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
            // What somebody else has just put there stays.
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

/// Whether nothing has changed that requests or documents depend on.
fn is_alike(old: &Backend, new: &Backend) -> bool {
    let same_line = match (&old.line, &new.line) {
        (Ok(old), Ok(new)) => old.is_same(new),
        (Err(old), Err(new)) => old == new,
        _ => false,
    };
    let same_found = match (&old.found, &new.found) {
        (Ok(old), Ok(new)) => old.seen == new.seen,
        (Err(old), Err(new)) => old == new,
        _ => false,
    };
    old.registration == new.registration && same_line && same_found
}

/// Asks a server whether it is there, and for its documents if they have changed.
async fn learn(line: &Line, serves: &GroupVersion, known: Option<&Learned>) -> Result<Learned, Unavailable> {
    let path = serves.path();
    let failed = |why: String| Unavailable::failed_check(format!("failing or missing response from {path}: {why}"));
    // Who is just starting would log every question as one that it failed to answer.
    if known.is_none() {
        let (ready, _) = exchange(line, "/readyz", "*/*", Asker::Aggregator).await.map_err(failed)?;
        // One that tells nothing of itself is taken to be ready.
        if ready.is_server_error() {
            return Err(failed("the server is not ready yet".to_owned()));
        }
    }
    let list = ask(line, &path, "application/json", Asker::Aggregator).await.map_err(failed)?;
    // A server without these documents is available all the same.
    let index = ask(line, "/openapi/v3", "application/json", Asker::OpenApi).await.unwrap_or_default();
    let seen = (list, index);
    if let Some(known) = known.filter(|known| known.seen == seen) {
        return Ok(known.clone());
    }
    let parsed = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).ok();
    let aggregated = ask(line, "/apis", AGGREGATED, Asker::Aggregator).await.ok();
    let entry = aggregated.as_ref().and_then(parsed).and_then(|document| merge::entry_of(&document, serves));
    let entry = entry.or_else(|| merge::entry_of_plain(&parsed(&seen.0)?, serves));
    let open_api = parsed(&seen.1)
        .and_then(|index| Some(index["paths"][path.trim_start_matches('/')]["serverRelativeURL"].as_str()?.to_owned()));
    let swagger = ask(line, "/openapi/v2", "application/json", Asker::OpenApi).await.ok();
    Ok(Learned { swagger: swagger.as_ref().and_then(parsed), entry, open_api, seen })
}

async fn ask(line: &Line, path: &str, accept: &'static str, asker: Asker) -> Result<Bytes, String> {
    let (status, bytes) = exchange(line, path, accept, asker).await?;
    if status.is_success() { Ok(bytes) } else { Err(format!("bad status {status}: {}", beginning(&bytes))) }
}

async fn exchange(line: &Line, path: &str, accept: &'static str, asker: Asker) -> Result<(StatusCode, Bytes), String> {
    let mut headers = HeaderMap::new();
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    headers.insert(header::USER_AGENT, HeaderValue::from_static("mcm-dev-aggregator"));
    headers.insert("x-remote-user", HeaderValue::from_static(asker.name()));
    for group in asker.groups() {
        headers.append("x-remote-group", HeaderValue::from_static(group));
    }
    let asked = async {
        let response = line.send(Method::GET, path, headers, Bytes::new()).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), DOCUMENT_LIMIT).collect().await;
        Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
    };
    tokio::time::timeout(PATIENCE, asked).await.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?
}

/// As much of an answer as a condition can hold.
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
    #[case::for_ever(u32::MAX, 500)]
    fn who_does_not_answer_is_asked_again_soon_and_then_less_often(#[case] in_vain: u32, #[case] milliseconds: u64) {
        assert_eq!(impatience(in_vain), Duration::from_millis(milliseconds));
    }
}
