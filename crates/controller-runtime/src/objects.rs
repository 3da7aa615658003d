//! Reads and writes of one kind: deadlines on every call, the leader's gate before every write, the answer into the store.
//!
//! Writes are patches that carry the object's UID, so that none can hit a namesake or create an empty object
//! (decisions.md 43); whole objects are only ever created. Retrying is the work queue's business; what the API server refuses is
//! not sent again before its pause is over ([`super::refusals`]).

use std::{fmt::Debug, marker::PhantomData, sync::Arc, time::Duration};

use kube::{Resource, core::response::StatusSummary};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    clients::Departure,
    error::ApiError,
    gate::Gate,
    key::{ObjectKey, Target},
    refusals::{About, Refusals, Said},
    store::{Moment, Store},
};
use machine_api::v1alpha1::controller_of;

/// Objects per page of a live look at a whole collection.
const LIVE_PAGE: u32 = 250;
/// How long one call may take from when it is sent.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a call may wait for its turn in its lane.
const MOST_PATIENCE: Duration = Duration::from_secs(60);

/// Which part of an object a patch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Part {
    /// Metadata and specification.
    Main,
    /// The status subresource.
    Status,
}

/// A change to an object.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub enum Patch {
    /// A JSON merge patch (RFC 7386). Lists are replaced whole: add [`Patch::guarded_by`] when one is computed from a
    /// read object.
    Merge(Value),
    /// A JSON patch (RFC 6902); a failed `test` answers [`ApiError::Invalid`].
    Json(Vec<Value>),
}

impl Patch {
    /// The same merge patch, refused with [`ApiError::Conflict`] unless the object still has this resource version.
    #[must_use]
    pub fn guarded_by(self, resource_version: Option<&str>) -> Self {
        match (self, resource_version) {
            (Self::Merge(mut patch), Some(version)) => {
                set_metadata(&mut patch, "resourceVersion", version);
                Self::Merge(patch)
            }
            (patch, _) => patch,
        }
    }
}

fn set_metadata(patch: &mut Value, field: &str, value: &str) {
    if let Value::Object(fields) = patch {
        let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
        if let Value::Object(metadata) = metadata {
            metadata.insert(field.to_owned(), Value::from(value));
        }
    }
}

/// What a deletion came to.
#[derive(Clone, Debug)]
pub enum Deleted<K> {
    /// The object is gone.
    Gone,
    /// The object waits for its finalizers.
    Marked(Arc<K>),
}

/// How an object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteHow {
    /// Seconds the object may take to end; absent leaves it to the object.
    pub grace_seconds: Option<u32>,
}

/// Reads and writes objects of one kind in one cluster. Cheap to clone.
pub struct Objects<K> {
    client: kube::Client,
    reader: kube::Client,
    gate: Gate,
    /// What was refused, where that is minded.
    refusals: Option<Refusals>,
    store: Option<Arc<Store<K>>>,
    /// What is taken off objects before they are stored; they are never written back whole.
    prune: fn(&mut K),
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            reader: self.reader.clone(),
            gate: self.gate.clone(),
            refusals: self.refusals.clone(),
            store: self.store.clone(),
            prune: self.prune,
            kind: PhantomData,
        }
    }
}

fn delete_options(target: &Target) -> Value {
    json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": target.uid } })
}

impl<K> Objects<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    /// Objects read and written through this client; answers of writes go into `store`.
    pub fn new(client: kube::Client, gate: Gate, store: Option<Arc<Store<K>>>, prune: fn(&mut K)) -> Self {
        Self { reader: client.clone(), client, gate, refusals: None, store, prune, kind: PhantomData }
    }

    /// The same objects, which share what is known of refused writes with others of their cluster, and send none of them again
    /// before its pause is over.
    #[must_use]
    pub fn minding(mut self, refusals: &Refusals) -> Self {
        self.refusals = Some(refusals.clone());
        self
    }

    /// Whether a write may be sent.
    fn may_try(&self, about: About<'_>, said: Said<'_>) -> Result<(), ApiError> {
        self.refusals.as_ref().map_or(Ok(()), |refusals| refusals.may_try(about, said))
    }

    /// Keeps in mind what came of a write.
    fn learn<T>(&self, about: About<'_>, said: Said<'_>, answer: &Result<T, ApiError>) {
        if let Some(refusals) = &self.refusals {
            refusals.learn(about, said, answer);
        }
    }

    /// The same objects, read through another client, so that reads and writes don't share a rate.
    #[must_use]
    pub fn reading_through(mut self, reader: kube::Client) -> Self {
        self.reader = reader;
        self
    }

    /// The cached view that answers of writes go into, if there is one.
    pub fn store(&self) -> Option<&Arc<Store<K>>> {
        self.store.as_ref()
    }

    /// Reads an object from the API server. `None` when the API server says of it that it does not exist. The store is told in
    /// both cases, but forgets only the object that it showed when the question was sent: another one may have come meanwhile.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<Arc<K>>, ApiError> {
        if key.name.is_empty() {
            // An empty name would turn the read into a list.
            return Ok(None);
        }
        let request = request(http::Method::GET, &Self::path(key, None), "application/json", Vec::new())?;
        let asked = self.store.as_ref().map(|store| store.moment());
        let known = self.store.as_ref().and_then(|store| store.get(key));
        match self.call_about::<K>(&self.reader, request, &key.name).await {
            Ok(object) => Ok(Some(self.take_read(object, asked))),
            Err(ApiError::NotFound(_)) => {
                if let Some(store) = &self.store
                    && let Some(known) = known
                {
                    store.forget(key, known.meta().uid.as_deref().unwrap_or_default());
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the API server whether any object of a namespace carries a label, given as a selector.
    pub async fn any_with_label(&self, namespace: &str, selector: &str) -> Result<bool, ApiError> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let path = format!("{}?limit=1&labelSelector={}", K::url_path(&(), namespace), form_urlencoded(selector));
        let request = request(http::Method::GET, &path, "application/json", Vec::new())?;
        let list = call::<Value>(&self.reader, request).await?;
        let items = list.get("items").and_then(Value::as_array);
        // No list is no answer: it must not pass for an empty one.
        items.map(|items| !items.is_empty()).ok_or_else(|| ApiError::Other(format!("the answer to {path} is no list")))
    }

    /// Reads all objects of the cluster that carry this label with this value; the store is told of each.
    ///
    /// # Errors
    /// Those of every read; an answer that is no list is none.
    pub async fn with_label(&self, label: &str, value: &str) -> Result<Vec<Arc<K>>, ApiError> {
        let selector = form_urlencoded(&format!("{label}={value}"));
        let path = format!("{}?labelSelector={selector}", K::url_path(&(), None));
        let request = request(http::Method::GET, &path, "application/json", Vec::new())?;
        let asked = self.store.as_ref().map(|store| store.moment());
        let list = call::<List<K>>(&self.reader, request).await?;
        Ok(list.items.into_iter().map(|object| self.take_read(object, asked)).collect())
    }

    /// Asks the API server for the first object of a namespace that a question holds for, whatever the cached view shows;
    /// answers its name. The question is asked of objects as they are served, so that none is passed over because it can't be
    /// decoded.
    ///
    /// # Errors
    /// Those of every read; an answer that is no list is none.
    pub async fn find_live(&self, namespace: &str, holds: impl Fn(&Value) -> bool) -> Result<Option<String>, ApiError> {
        let collection = K::url_path(&(), Some(namespace).filter(|namespace| !namespace.is_empty()));
        let mut path = format!("{collection}?limit={LIVE_PAGE}");
        loop {
            let page =
                call::<Value>(&self.reader, request(http::Method::GET, &path, "application/json", Vec::new())?).await?;
            let Some(items) = page.get("items").and_then(Value::as_array) else {
                return Err(ApiError::Other(format!("the answer to {path} is no list")));
            };
            if let Some(found) = items.iter().find(|item| holds(item)) {
                return Ok(Some(found["metadata"]["name"].as_str().unwrap_or_default().to_owned()));
            }
            match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => {
                    path = format!("{collection}?limit={LIVE_PAGE}&continue={}", form_urlencoded(token));
                }
                None => return Ok(None),
            }
        }
    }

    /// Creates an object in its namespace.
    pub async fn create(&self, object: &K) -> Result<Arc<K>, ApiError> {
        self.gate.may_act()?;
        let namespace = object.meta().namespace.clone().unwrap_or_default();
        let mut body = serde_json::to_value(object).map_err(|error| ApiError::Other(error.to_string()))?;
        if let Value::Object(fields) = &mut body {
            fields.insert("apiVersion".to_owned(), Value::from(K::api_version(&()).into_owned()));
            fields.insert("kind".to_owned(), Value::from(K::kind(&()).into_owned()));
        }
        // Its name is a new one at each try: the owner is whom a refusal is about.
        let (kind, name) = match controller_of(object.meta()) {
            Some(owner) => (owner.kind.clone(), owner.name.clone()),
            None => (K::kind(&()).into_owned(), object.meta().name.clone().unwrap_or_default()),
        };
        let key = ObjectKey::new(namespace.clone(), name);
        let (about, said) = (About { kind: &kind, key: &key }, Said::New(&body));
        self.may_try(about, said)?;
        let path = K::url_path(&(), Some(namespace.as_str()).filter(|namespace| !namespace.is_empty()));
        let request = request(http::Method::POST, &path, "application/json", encode(&body)?)?;
        let answer = call::<K>(&self.client, request).await;
        self.learn(about, said, &answer);
        answer.map(|created| self.take(created))
    }

    /// Patches an object; the patch carries the target's UID.
    pub async fn patch(&self, target: &Target, part: Part, patch: Patch) -> Result<Arc<K>, ApiError> {
        self.gate.may_act()?;
        let (content_type, body) = match patch {
            Patch::Merge(mut merge) => {
                set_metadata(&mut merge, "uid", &target.uid);
                ("application/merge-patch+json", merge)
            }
            Patch::Json(operations) => {
                let mut all = vec![json!({"op": "test", "path": "/metadata/uid", "value": target.uid})];
                all.extend(operations);
                ("application/json-patch+json", Value::Array(all))
            }
        };
        let (subresource, said) = match part {
            Part::Main => (None, Said::Change(&body)),
            Part::Status => (Some("status"), Said::Status(&body)),
        };
        let about = About { kind: &K::kind(&()), key: &target.key };
        self.may_try(about, said)?;
        let request =
            request(http::Method::PATCH, &Self::path(&target.key, subresource), content_type, encode(&body)?)?;
        let answer = self.call_about::<K>(&self.client, request, &target.key.name).await;
        self.learn(about, said, &answer);
        match answer {
            Ok(object) => Ok(self.take(object)),
            Err(error) => {
                self.forget_if_gone(&error, target);
                Err(error)
            }
        }
    }

    /// Deletes an object if it still has the target's UID. An object that is gone already counts as deleted.
    pub async fn delete(&self, target: &Target, how: DeleteHow) -> Result<Deleted<K>, ApiError> {
        let mut options = delete_options(target);
        if let (Value::Object(fields), Some(seconds)) = (&mut options, how.grace_seconds) {
            fields.insert("gracePeriodSeconds".to_owned(), Value::from(seconds));
        }
        self.delete_with(target, &options).await
    }

    /// Deletes an object if it is still as it was in this version.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] when it has changed since, among those of every deletion.
    pub async fn delete_unchanged(&self, target: &Target, version: &str) -> Result<Deleted<K>, ApiError> {
        let mut options = delete_options(target);
        if let Some(Value::Object(preconditions)) = options.get_mut("preconditions") {
            preconditions.insert("resourceVersion".to_owned(), Value::from(version));
        }
        self.delete_with(target, &options).await
    }

    async fn delete_with(&self, target: &Target, options: &Value) -> Result<Deleted<K>, ApiError> {
        self.gate.may_act()?;
        let about = About { kind: &K::kind(&()), key: &target.key };
        self.may_try(about, Said::End)?;
        let request =
            request(http::Method::DELETE, &Self::path(&target.key, None), "application/json", encode(options)?)?;
        let answer = in_time(request, |request| self.client.request_status::<K>(request))
            .await?
            .map_err(|error| ApiError::about::<K>(error, &target.key.name));
        self.learn(about, Said::End, &answer);
        match answer {
            Ok(either::Either::Left(object)) => {
                // With a finalizer or a grace period the answer is the marked object.
                if object.meta().deletion_timestamp.is_some() {
                    return Ok(Deleted::Marked(self.take(object)));
                }
                self.forget(target);
                Ok(Deleted::Gone)
            }
            Ok(either::Either::Right(status)) => {
                if matches!(status.status, Some(StatusSummary::Failure)) {
                    return Err(ApiError::Other(status.message));
                }
                self.forget(target);
                Ok(Deleted::Gone)
            }
            Err(error) if error.is_not_found() => {
                self.forget_if_gone(&error, target);
                Ok(Deleted::Gone)
            }
            Err(error) => Err(error),
        }
    }

    fn path(key: &ObjectKey, subresource: Option<&str>) -> String {
        let namespace = Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let mut path = format!("{}/{}", K::url_path(&(), namespace), key.name);
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }

    fn take(&self, mut object: K) -> Arc<K> {
        (self.prune)(&mut object);
        match &self.store {
            Some(store) => store.observe_write(object),
            None => Arc::new(object),
        }
    }

    /// What a live read has shown that was sent at this moment.
    fn take_read(&self, mut object: K, asked: Option<Moment>) -> Arc<K> {
        (self.prune)(&mut object);
        match (&self.store, asked) {
            (Some(store), Some(asked)) => store.observe_read(Arc::new(object), asked),
            _ => Arc::new(object),
        }
    }

    fn forget_if_gone(&self, error: &ApiError, target: &Target) {
        if error.is_not_found() {
            self.forget(target);
        }
    }

    fn forget(&self, target: &Target) {
        if let Some(store) = &self.store {
            store.forget(&target.key, &target.uid);
        }
    }

    /// A call about the object of this name.
    async fn call_about<T: DeserializeOwned>(
        &self,
        client: &kube::Client,
        request: http::Request<Vec<u8>>,
        name: &str,
    ) -> Result<T, ApiError> {
        in_time(request, |request| client.request::<T>(request))
            .await?
            .map_err(|error| ApiError::about::<K>(error, name))
    }
}

/// As much of a list as its reader needs.
#[derive(serde::Deserialize)]
struct List<K> {
    items: Vec<K>,
}

/// A query value; everything that is not plainly harmless is escaped.
fn form_urlencoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

async fn call<T: DeserializeOwned>(client: &kube::Client, request: http::Request<Vec<u8>>) -> Result<T, ApiError> {
    in_time(request, |request| client.request::<T>(request)).await?.map_err(ApiError::from)
}

/// Sends a request and waits for its answer for [`CALL_TIMEOUT`], counted from when it had its turn and was sent. One that had
/// no turn in [`MOST_PATIENCE`] is given up unsent: what it was decided on is old by then.
pub async fn in_time<T, F>(
    mut request: http::Request<Vec<u8>>,
    send: impl FnOnce(http::Request<Vec<u8>>) -> F,
) -> Result<kube::Result<T>, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    let departure = Departure::default();
    request.extensions_mut().insert(departure.clone());
    let mut answer = std::pin::pin!(send(request));
    let turn = tokio::time::timeout(MOST_PATIENCE, async {
        tokio::select! {
            biased;
            answer = &mut answer => Some(answer),
            () = departure.awaited() => None,
        }
    });
    match turn.await {
        Ok(Some(answer)) => return Ok(answer),
        Ok(None) => {}
        Err(_) => {
            return Err(ApiError::Unavailable(format!(
                "the call waited {MOST_PATIENCE:?} for its turn and was not sent; see --kube-api-qps"
            )));
        }
    }
    tokio::time::timeout(CALL_TIMEOUT, answer).await.map_err(|_| ApiError::TimedOut(CALL_TIMEOUT))
}

fn encode(body: &Value) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(body).map_err(|error| ApiError::Other(error.to_string()))
}

fn request(
    method: http::Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<http::Request<Vec<u8>>, ApiError> {
    http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .header(http::header::ACCEPT, "application/json")
        .body(body)
        .map_err(|error| ApiError::Other(format!("request for {path}: {error}")))
}

#[cfg(test)]
mod tests;
