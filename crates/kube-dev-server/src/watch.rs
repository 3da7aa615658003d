//! Watches: the existing objects, then every change, one JSON document per line.
//!
//! Source: spec/extension-apiserver §2.7.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use rand::Rng;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    kinds::{Registry, Served},
    plain::{self, Form},
    read::check_fields,
    server::{Answer, AnswerBody, Call, Server},
    store::{Change, Stored},
    table::show,
};
use kube_protocol::{
    options::WatchOptions,
    status::ApiStatus,
    table::{self, IncludeObject},
};

/// A watch without a timeout lasts between this time and twice this time.
const DEFAULT_LIFE: Duration = Duration::from_secs(30 * 60);

const DELETED: &str = "DELETED";

struct Watcher {
    server: Arc<Server>,
    served: Arc<Served>,
    options: WatchOptions,
    prefix: String,
    form: table::Form,
    /// The column definitions of the first table. Later tables contain no column definitions.
    heads: Value,
    /// The events up to this revision have been sent.
    at: u64,
    ends: Instant,
    next_bookmark: Instant,
    progress: tokio::sync::watch::Receiver<u64>,
    registrations: tokio::sync::watch::Receiver<Arc<Registry>>,
    /// Whether a hook forbids to send events at the moment.
    frozen: tokio::sync::watch::Receiver<bool>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Initial,
    Live,
    Ended,
}

impl Server {
    pub(super) fn watch(self: &Arc<Self>, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = WatchOptions::parse(call.query)?;
        check_fields(&call.served, &options.fields)?;
        let now = Instant::now();
        let life = options.timeout.unwrap_or_else(|| {
            let extra = self.random().next_u64() % DEFAULT_LIFE.as_secs();
            DEFAULT_LIFE + Duration::from_secs(extra)
        });
        IncludeObject::parse(call.query)?;
        let watcher = Watcher {
            stage: if options.after.is_some() { Stage::Live } else { Stage::Initial },
            at: options.after.unwrap_or(0),
            prefix: call.namespace().map(|namespace| format!("{namespace}/")).unwrap_or_default(),
            form: table::Form::of(call.accepted.shape, call.query)?,
            heads: table::heads(&call.served.columns),
            ends: now + life,
            next_bookmark: now + self.bookmark_period,
            progress: self.store.progress(),
            registrations: self.registrations(),
            frozen: self.hooks.frozen(),
            server: Arc::clone(self),
            served: Arc::clone(&call.served),
            options,
        };
        let stream = futures::stream::unfold(watcher, |mut watcher| async move {
            let bytes = watcher.next().await?;
            Some((Ok::<_, std::convert::Infallible>(bytes), watcher))
        });
        Ok(Answer::new(StatusCode::OK, AnswerBody::Stream(Body::from_stream(stream))))
    }
}

impl Watcher {
    /// The next events; none at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let lines = match self.stage {
                Stage::Ended => return None,
                Stage::Initial => Bytes::from(self.initial().await),
                Stage::Live => self.live().await,
            };
            if !lines.is_empty() {
                return Some(lines);
            }
        }
    }

    async fn initial(&mut self) -> Vec<u8> {
        self.stage = Stage::Live;
        let snapshot = self.server.store.list(&self.served.collection, &self.prefix);
        if self.server.store.durable(snapshot.revision).await.is_err() {
            self.stage = Stage::Ended;
            return Vec::new();
        }
        self.at = snapshot.revision;
        let stored =
            snapshot.objects.into_iter().map(|(_, stored)| stored).filter(|stored| self.matches(&stored.value));
        let objects = match self.server.present(&self.served, stored.collect()).await {
            Ok(objects) => objects,
            Err(status) => return self.error(&status),
        };
        let mut lines = Vec::new();
        for object in objects {
            self.line("ADDED", object, &mut lines);
        }
        if self.options.bookmarks {
            self.bookmark(self.options.initial_events, &mut lines);
        }
        lines
    }

    async fn live(&mut self) -> Bytes {
        if self.ends_while_frozen().await {
            self.stage = Stage::Ended;
            return Bytes::new();
        }
        let changes = match self.server.store.changes(&self.served.collection, self.at) {
            Ok((upto, changes)) => {
                self.at = self.at.max(upto);
                changes
            }
            Err(old) => {
                let message = format!("too old resource version: {} ({})", self.at, old.current);
                return Bytes::from(self.error(&ApiStatus::expired(message)));
            }
        };
        // The registry knows a definition before an object of it is stored, so this check covers all of these changes.
        if !changes.is_empty() && !self.is_served_as_before() {
            self.stage = Stage::Ended;
            return Bytes::new();
        }
        let mut lines = Vec::new();
        for change in changes {
            let Some((kind, stored)) = self.event(&change) else { continue };
            match self.encoded(kind, change.revision, stored).await {
                Ok(line) => lines.push(line),
                Err(status) => {
                    lines.push(Bytes::from(self.error(&status)));
                    break;
                }
            }
        }
        match lines.len() {
            0 => Bytes::from(self.wait().await),
            1 => lines.swap_remove(0),
            _ => Bytes::from(lines.concat()),
        }
    }

    /// The encoded event of a change. Watches that need the same event share it in the cache.
    async fn encoded(&mut self, kind: &'static str, revision: u64, stored: &Stored) -> Result<Bytes, ApiStatus> {
        let is_shared = self.form == table::Form::Objects;
        if let Some(line) = is_shared.then(|| self.server.event_cache.find(revision, kind, &self.served)).flatten() {
            return Ok(line);
        }
        if is_shared && kind != DELETED && !plain::needs_webhook(stored, &self.served) {
            let mut line = line_head(kind);
            plain::write(stored, &self.served, Form::Alone, &mut line);
            line.extend_from_slice(LINE_END);
            let line = Bytes::from(line);
            self.server.event_cache.add(revision, kind, &self.served, line.clone());
            return Ok(line);
        }
        let mut object = self.server.converted(&self.served, vec![stored.whole()]).await?.swap_remove(0);
        if kind == DELETED {
            object["metadata"]["resourceVersion"] = json!(revision.to_string());
        }
        let mut line = Vec::new();
        self.line(kind, object, &mut line);
        let line = Bytes::from(line);
        if is_shared {
            self.server.event_cache.add(revision, kind, &self.served, line.clone());
        }
        Ok(line)
    }

    /// Waits until the watch may send events. Returns whether the watch ends before.
    async fn ends_while_frozen(&mut self) -> bool {
        let thawed = self.frozen.wait_for(|frozen| !frozen);
        let thawed = tokio::time::timeout_at(self.ends, thawed);
        !matches!(self.server.shutdown.run_until_cancelled(thawed).await, Some(Ok(_)))
    }

    /// Waits for a change, the time of the next bookmark, or the end of the watch.
    async fn wait(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        if !self.is_served_as_before() {
            self.stage = Stage::Ended;
            return lines;
        }
        let at = self.at;
        let wakes = self.ends.min(self.next_bookmark);
        let changed = async {
            tokio::select! {
                biased;
                changed = self.progress.wait_for(|progress| *progress > at) => changed.map(|_| ()),
                changed = self.registrations.changed() => changed,
            }
        };
        let changed = tokio::time::timeout_at(wakes, changed);
        match self
            .server
            .shutdown
            .run_until_cancelled(changed)
            .await
            .map(|changed| changed.map(|changed| changed.is_ok()))
        {
            Some(Ok(true)) => {}
            Some(Ok(false)) | None => self.stage = Stage::Ended,
            Some(Err(_)) => {
                let ends = Instant::now() >= self.ends;
                if self.options.bookmarks && !*self.frozen.borrow() {
                    self.bookmark(false, &mut lines);
                }
                self.next_bookmark = Instant::now() + self.server.bookmark_period;
                if ends {
                    self.stage = Stage::Ended;
                }
            }
        }
        lines
    }

    /// Whether the custom resource definition is unchanged since the watch began. A watch ends when the definition changes, as on a kube-apiserver,
    /// because only a new watch converts objects by the new definition.
    fn is_served_as_before(&mut self) -> bool {
        let Some(custom) = self.served.custom() else { return true };
        let registry = Arc::clone(&self.registrations.borrow_and_update());
        let version = &self.served.resource.kind.version;
        let found = registry.find(self.served.group(), version, self.served.plural());
        let now = found.as_deref().and_then(Served::custom);
        now.is_some_and(|now| now.definition == custom.definition)
    }

    fn matches(&self, value: &Value) -> bool {
        self.options.labels.matches(value) && self.options.fields.matches(value)
    }

    /// The event of a change. An object that begins to match the selectors is added, and an object that stops matching is deleted.
    fn event<'a>(&self, change: &'a Change) -> Option<(&'static str, &'a Stored)> {
        if !change.key.starts_with(&self.prefix) {
            return None;
        }
        let before = change.before.as_deref().filter(|stored| self.matches(&stored.value));
        let after = change.after.as_deref().filter(|stored| self.matches(&stored.value));
        match (before, after) {
            (None, Some(after)) => Some(("ADDED", after)),
            (Some(_), Some(after)) => Some(("MODIFIED", after)),
            (Some(before), None) => Some((DELETED, before)),
            (None, None) => None,
        }
    }

    fn line(&mut self, kind: &str, object: Value, lines: &mut Vec<u8>) {
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        let object = match (self.form, show(self.form, &self.served.columns, object, self.server.now())) {
            (table::Form::Table(version, _), row) => table::table(version, self.heads.take(), vec![row], &metadata),
            (table::Form::Metadata | table::Form::Objects, object) => object,
        };
        write_line(kind, &object, lines);
    }

    fn bookmark(&mut self, ends_initial_events: bool, lines: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": self.at.to_string(), "creationTimestamp": null});
        if ends_initial_events {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = match self.form {
            table::Form::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            table::Form::Table(..) | table::Form::Objects => (self.served.kind().to_owned(), self.served.api_version()),
        };
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        write_line("BOOKMARK", &object, lines);
    }

    fn error(&mut self, status: &ApiStatus) -> Vec<u8> {
        self.stage = Stage::Ended;
        let mut lines = Vec::new();
        write_line("ERROR", &status.to_json(), &mut lines);
        lines
    }
}

const LINE_END: &[u8] = b"}\n";

fn line_head(kind: &str) -> Vec<u8> {
    format!("{{\"type\":\"{kind}\",\"object\":").into_bytes()
}

/// Writes an event. Its type comes first, as from a kube-apiserver, because clients choose the type of the object by it.
fn write_line(kind: &str, object: &Value, lines: &mut Vec<u8>) {
    lines.append(&mut line_head(kind));
    // The serialization of a JSON value never fails.
    let _ = serde_json::to_writer(&mut *lines, object);
    lines.extend_from_slice(LINE_END);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{ask, cluster, exists, open, read_events};

    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

    /// A definition with the field `size` in `v1` and `length` in `v2`. `stored` is the storage version.
    fn definition(stored: &str) -> Value {
        let version = |name: &str, field: &str| {
            let spec = json!({"type": "object", "properties": {field: {"type": "integer"}}});
            json!({"name": name, "served": true, "storage": name == stored,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}})
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
                "versions": [version("v1", "size"), version("v2", "length")],
            },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_its_definition_changes() {
        let cluster = cluster([]);
        ask(&cluster, "POST", DEFINITIONS, &definition("v1")).await.unwrap();
        exists(&cluster, THINGS).await;
        let thing =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1}});
        let thing = ask(&cluster, "POST", THINGS, &thing).await.unwrap();
        let path = format!(
            "{THINGS}?watch=1&timeoutSeconds=600&resourceVersion={}",
            thing["metadata"]["resourceVersion"].as_str().unwrap()
        );
        let began = tokio::time::Instant::now();
        let watch = open(&cluster, &path).await;
        let spec = json!({"spec": definition("v2")["spec"]});
        ask(&cluster, "PATCH", &format!("{DEFINITIONS}/things.example.com"), &spec).await.unwrap();
        let things = THINGS.replace("v1", "v2");
        ask(&cluster, "PATCH", &format!("{things}/t"), &json!({"spec": {"length": 2}})).await.unwrap();
        assert_eq!(read_events(watch).await, Vec::<Value>::new(), "the old definition has no field for the length");
        assert!(began.elapsed().as_secs() < 60, "the watch ends before its timeout: {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_goes_on_when_only_the_status_of_its_definition_changes() {
        let cluster = cluster([]);
        ask(&cluster, "POST", DEFINITIONS, &definition("v1")).await.unwrap();
        let list = exists(&cluster, THINGS).await;
        let path = format!(
            "{THINGS}?watch=1&timeoutSeconds=60&resourceVersion={}",
            list["metadata"]["resourceVersion"].as_str().unwrap()
        );
        let watch = open(&cluster, &path).await;
        let status = json!({"status": {"storedVersions": ["v1", "v0"]}});
        ask(&cluster, "PATCH", &format!("{DEFINITIONS}/things.example.com/status"), &status).await.unwrap();
        let thing =
            json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"size": 1}});
        ask(&cluster, "POST", THINGS, &thing).await.unwrap();
        let events = read_events(watch).await;
        assert_eq!(events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>(), ["ADDED"]);
    }
}
