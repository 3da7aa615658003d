//! Reads: get, list, pages and tables, and the conversion of stored objects to the requested version.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    kinds::{Conversion, Served},
    long_list,
    plain::{self, Form},
    server::{Answer, Call, Server},
    store::{Snapshot, Stored},
    table::{shape_list, shape_object},
};
use kube_protocol::{
    options::{ListOptions, Revision},
    request::Query,
    selectors::FieldSelector,
    status::ApiStatus,
};

impl Server {
    pub(super) async fn get(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        if let Some(version) = call.query.get("resourceVersion") {
            self.not_older_than(kube_protocol::options::resource_version(version)?).await?;
        }
        let stored = self.store.get(&call.served.collection, &call.key()).ok_or_else(|| call.not_found())?;
        if plain::is_wanted(call) && !plain::needs_webhook(&stored, &call.served) {
            let mut text = Vec::new();
            plain::write(&stored, &call.served, Form::Alone, &mut text);
            text.push(b'\n');
            return Ok(Answer::json(text));
        }
        let object = self.present(&call.served, vec![stored]).await?.swap_remove(0);
        self.shaped(call, object).map(Answer::ok)
    }

    pub(super) async fn list(&self, call: &Call<'_>) -> Result<Answer, ApiStatus> {
        let options = ListOptions::parse(call.query)?;
        check_fields(&call.served, &options.fields)?;
        let prefix = call.namespace().map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let collection = &call.served.collection;
        let (snapshot, after) = match (&options.continue_token, options.revision) {
            (Some(token), _) => {
                let (revision, key) = read_token(token)?;
                let snapshot = self.store.list_at(collection, &prefix, revision).map_err(|old| {
                    let mut status = ApiStatus::expired(
                        "The provided continue parameter is too old to display a consistent list result. You can start a new \
                         list without the continue parameter, or use the continue token in this response to retrieve the \
                         remainder of the results.",
                    );
                    status.continue_token = Some(token_of(old.current, &key));
                    status
                })?;
                (snapshot, Some(key))
            }
            (None, Revision::Exact(revision)) => {
                self.not_older_than(revision).await?;
                let snapshot = self.store.list_at(collection, &prefix, revision);
                let too_old = |_| ApiStatus::expired("The resourceVersion for the provided list is too old.");
                (snapshot.map_err(too_old)?, None)
            }
            (None, Revision::NotOlderThan(revision)) => {
                self.not_older_than(revision).await?;
                (self.store.list(collection, &prefix), None)
            }
            (None, Revision::MostRecent | Revision::Any) => (self.store.list(collection, &prefix), None),
        };
        self.page(call, &options, snapshot, after).await
    }

    async fn page(
        &self,
        call: &Call<'_>,
        options: &ListOptions,
        snapshot: Snapshot,
        after: Option<String>,
    ) -> Result<Answer, ApiStatus> {
        let everything = options.labels.is_empty() && options.fields.is_empty();
        let mut matching: Vec<(String, Arc<Stored>)> = snapshot
            .objects
            .into_iter()
            .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
            .filter(|(_, stored)| {
                everything || options.labels.matches(&stored.value) && options.fields.matches(&stored.value)
            })
            .collect();
        let rest = options.limit.map_or(0, |limit| matching.len().saturating_sub(limit));
        matching.truncate(matching.len() - rest);
        let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
        if let (1.., Some((last, _))) = (rest, matching.last()) {
            metadata["continue"] = json!(token_of(snapshot.revision, last));
            if everything {
                metadata["remainingItemCount"] = json!(rest);
            }
        } else if call.served.is_custom() && options.limit.is_some() {
            metadata["continue"] = json!("");
        }
        let matching: Vec<Arc<Stored>> = matching.into_iter().map(|(_, stored)| stored).collect();
        if long_list::is_long(call, &matching) {
            return Ok(long_list::in_parts(call, matching, &metadata));
        }
        let objects = self.present(&call.served, matching).await?;
        let body = shape_list(
            call.accepted.shape,
            &call.served.columns,
            objects,
            &metadata,
            call.query,
            self.now(),
            |objects| list_body(&call.served, objects, &metadata),
        )?;
        Ok(Answer::ok(body))
    }

    /// Waits up to 3 s for a revision.
    pub(super) async fn not_older_than(&self, revision: u64) -> Result<(), ApiStatus> {
        if self.store.revision() >= revision {
            return Ok(());
        }
        let mut progress = self.store.progress();
        let reached = progress.wait_for(|at| *at >= revision);
        if tokio::time::timeout(std::time::Duration::from_secs(3), reached).await.is_ok() {
            return Ok(());
        }
        let current = self.store.revision();
        let message = format!("Timeout: Too large resource version: {revision}, current: {current}");
        Err(ApiStatus::new(504, "Timeout", message)
            .with_cause("ResourceVersionTooLarge", "Too large resource version")
            .retry_after(1))
    }

    /// Converts stored objects to the version of a served kind.
    pub(super) async fn present(&self, served: &Served, stored: Vec<Arc<Stored>>) -> Result<Vec<Value>, ApiStatus> {
        let objects = stored.iter().map(|stored| stored.whole()).collect();
        self.converted(served, objects).await
    }

    /// Converts objects of any version to the version of a served kind.
    pub(super) async fn converted(&self, served: &Served, mut objects: Vec<Value>) -> Result<Vec<Value>, ApiStatus> {
        if let Some(Conversion::Webhook(client)) = served.custom().map(|custom| &custom.conversion) {
            let wanted = served.api_version();
            let others: Vec<usize> =
                (0..objects.len()).filter(|at| objects[*at]["apiVersion"] != wanted.as_str()).collect();
            if !others.is_empty() {
                let input = others.iter().map(|at| objects[*at].clone()).collect();
                let output = self.convert(client, &wanted, input).await.map_err(|why| {
                    let from = &objects[others[0]]["apiVersion"];
                    ApiStatus::internal(format!("conversion webhook for {from}, Kind={} failed: {why}", served.kind()))
                })?;
                for (at, object) in others.into_iter().zip(output) {
                    objects[at] = object;
                }
            }
        }
        for object in &mut objects {
            in_version(object, served);
        }
        Ok(objects)
    }

    /// Converts an object to the representation that the client accepts.
    pub(super) fn shaped(&self, call: &Call<'_>, object: Value) -> Result<Value, ApiStatus> {
        shape_object(call.accepted.shape, &call.served.columns, object, call.query, self.now())
    }
}

/// Converts an object to the version of a served kind. A conversion that needs a webhook is done before.
pub(super) fn in_version(object: &mut Value, served: &Served) {
    let wanted = served.api_version();
    if object["apiVersion"] != wanted.as_str() {
        present_event(object, served);
        object["apiVersion"] = json!(wanted);
    }
    if served.is_custom() {
        // The schema may have new defaults since the object was stored.
        super::schema::defaults::fill(object, &served.schema);
    }
}

/// Converts an object to an item of a list. Items of built-in kinds have no `kind` and no `apiVersion`.
pub(super) fn as_item(object: &mut Value, served: &Served) {
    if let (false, Value::Object(fields)) = (served.is_custom(), object) {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
}

/// Converts an event. Events are the same objects in two groups, and a few fields have different names.
fn present_event(object: &mut Value, served: &Served) {
    let renames = [
        ("involvedObject", "regarding"),
        ("message", "note"),
        ("count", "deprecatedCount"),
        ("firstTimestamp", "deprecatedFirstTimestamp"),
        ("lastTimestamp", "deprecatedLastTimestamp"),
        ("source", "deprecatedSource"),
        ("reportingComponent", "reportingController"),
    ];
    let Value::Object(fields) = object else { return };
    for (core, grouped) in renames {
        let (from, to) = match (served.group(), served.plural()) {
            ("events.k8s.io", "events") => (core, grouped),
            ("", "events") => (grouped, core),
            _ => return,
        };
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

/// A list object with these items.
pub(super) fn list_body(served: &Served, mut objects: Vec<Value>, metadata: &Value) -> Value {
    for object in &mut objects {
        as_item(object, served);
    }
    json!({"kind": served.resource.list_kind, "apiVersion": served.api_version(), "metadata": metadata, "items": objects})
}

/// Checks that a kind supports the fields of a selector.
pub(super) fn check_fields(served: &Served, fields: &FieldSelector) -> Result<(), ApiStatus> {
    let known = served.selectable_fields();
    for term in fields.terms() {
        let field = term.field.as_str();
        let always = field == "metadata.name" || field == "metadata.namespace" && served.is_namespaced();
        if !always && !known.contains(&field) {
            return Err(ApiStatus::bad_request(if served.is_custom() {
                format!("field label not supported: {field}")
            } else {
                format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            }));
        }
    }
    Ok(())
}

fn token_of(revision: u64, key: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{revision}:{key}"))
}

fn read_token(token: &str) -> Result<(u64, String), ApiStatus> {
    let read = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (revision, key) = text.split_once(':')?;
        Some((revision.parse().ok()?, key.to_owned()))
    };
    read().ok_or_else(|| {
        ApiStatus::bad_request("invalid continue token: continue key is not valid: it was not made by this server")
    })
}

/// The list options of a deletion of a collection.
pub(super) fn selection(query: &Query, served: &Served) -> Result<ListOptions, ApiStatus> {
    let options = ListOptions::parse(query)?;
    check_fields(served, &options.fields)?;
    Ok(options)
}
