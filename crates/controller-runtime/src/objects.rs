//! Reads and writes the objects of one kind. Each write asks the gate first, and its answer is put into the store.
//!
//! An [`ObjectApi`] makes the calls: [`ApiServer`] for a real cluster, or the API server of a simulation. A write is a patch with
//! the UID of the object, so that it can't change another object of the same name or create an empty object (decisions.md 43).
//! Whole objects are only created. Only the work queue retries. A write that the API server refused is not sent again before its
//! pause is over ([`super::refusals`]).

mod requests;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::requests::{ApiServer, CALL_TIMEOUT, call, in_time};
use super::{
    error::ApiError,
    gate::Gate,
    installed_schemas::{InstalledSchemas, Left},
    key::{ObjectKey, Target},
    refusals::{About, Refusals, WriteContent},
    snapshot::Snapshot,
    store::{Moment, Store},
};
use machine_api::v1alpha1::controller_of;

/// Objects per page when a whole collection is read from the API server.
const LIVE_PAGE: u32 = 250;

/// The part of an object that a patch changes.
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
    /// A JSON merge patch (RFC 7386). It replaces lists as a whole: add [`Patch::guarded_by`] when a list is computed from an
    /// object that was read.
    Merge(Value),
    /// A JSON patch (RFC 6902). A failed `test` gives [`ApiError::Invalid`].
    Json(Vec<Value>),
}

impl Patch {
    /// Binds a merge patch to a resource version: if the object has another version, the patch fails with [`ApiError::Conflict`].
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

    /// Binds the patch to a UID: if the object has another UID, a merge patch fails with [`ApiError::Conflict`], a JSON patch with
    /// [`ApiError::Invalid`].
    #[must_use]
    pub fn bound_to(self, uid: &str) -> Self {
        match self {
            Self::Merge(mut patch) => {
                set_metadata(&mut patch, "uid", uid);
                Self::Merge(patch)
            }
            Self::Json(operations) => {
                let test = json!({ "op": "test", "path": "/metadata/uid", "value": uid });
                Self::Json(std::iter::once(test).chain(operations).collect())
            }
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

/// The result of a deletion.
#[derive(Clone, Debug)]
pub enum Deleted<S> {
    /// The object is gone.
    Gone,
    /// The object is marked for deletion and waits for its finalizers or its grace period.
    Marked(S),
}

/// Options of a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteHow<'a> {
    /// Grace period in seconds. `None` uses the default of the object.
    pub grace_seconds: Option<u32>,
    /// Delete only this resource version.
    pub version: Option<&'a str>,
}

/// The listed objects of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Only objects that match this label selector.
    pub selector: Option<String>,
    /// Only objects that match this field selector.
    pub fields: Option<String>,
    /// Maximum number of objects per page.
    pub limit: Option<u32>,
    /// The continue token of the previous page.
    pub after: Option<String>,
}

impl ListQuery {
    /// All objects of a namespace. An empty namespace means all.
    pub fn within(namespace: &str) -> Self {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty()).map(str::to_owned);
        Self { namespace, ..Self::default() }
    }
}

/// A page of a list, undecoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The objects.
    pub items: Vec<Value>,
    /// The continue token for the next page.
    pub next: Option<String>,
    /// The resource version of the list.
    pub version: Option<String>,
}

/// Reads and writes objects of one kind at an API server. It does not use the gate, the store or the refusals, which belong to
/// [`Objects`].
///
/// Errors describe the call. After [`ApiError::outcome_unknown`] a write may have happened or not. [`ApiError::NotFound`] means
/// that the object itself does not exist.
#[async_trait]
pub trait ObjectApi<K>: Send + Sync {
    /// Waits before a write, if the implementation needs that. [`Objects`] asks the gate afterwards. The default does not wait: a
    /// write of [`ApiServer`] waits in its lane after the gate was asked, for at most a minute.
    async fn before_write(&self) {}

    /// Reads an object.
    async fn read(&self, key: &ObjectKey) -> Result<Arc<K>, ApiError>;

    /// Lists a page of objects.
    async fn list(&self, query: &ListQuery) -> Result<Page, ApiError>;

    /// Creates an object in its namespace.
    async fn create(&self, object: &K) -> Result<Arc<K>, ApiError>;

    /// Patches an object. The patch carries the UID of the object.
    async fn patch(&self, key: &ObjectKey, part: Part, patch: &Patch) -> Result<Arc<K>, ApiError>;

    /// Deletes an object if it still has the target's UID.
    async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<Arc<K>>, ApiError>;

    /// Decodes an object of a list, with the same result as [`Self::read`].
    fn decode(&self, item: Value) -> Result<Arc<K>, ApiError>;

    /// Lists the objects of all pages.
    async fn list_all(&self, mut query: ListQuery) -> Result<Page, ApiError> {
        let mut all = Page::default();
        loop {
            let page = self.list(&query).await?;
            all.items.extend(page.items);
            if page.next.is_none() {
                return Ok(Page { version: page.version, ..all });
            }
            query.after = page.next;
        }
    }
}

/// Reads and writes objects of one kind in one cluster. Cheap to clone.
pub struct Objects<S: Snapshot> {
    api: Arc<dyn ObjectApi<S::Object>>,
    gate: Gate,
    /// The record of refused writes. `None` if refusals are not recorded.
    refusals: Option<Refusals>,
    /// What the installed definitions keep of a write. `None` for kinds that are not ours.
    schemas: Option<InstalledSchemas>,
    store: Option<Arc<Store<S>>>,
}

impl<S: Snapshot> Clone for Objects<S> {
    fn clone(&self) -> Self {
        Self {
            api: Arc::clone(&self.api),
            gate: self.gate.clone(),
            refusals: self.refusals.clone(),
            schemas: self.schemas.clone(),
            store: self.store.clone(),
        }
    }
}

impl<S: Snapshot> Objects<S>
where
    S::Object: Serialize + DeserializeOwned + Clone + Debug,
{
    /// Reads and writes through this client and puts the answers of writes into `store`. `prune` removes the fields that are not
    /// stored. Pruned objects are never written back.
    pub fn new(client: kube::Client, gate: Gate, store: Option<Arc<Store<S>>>, prune: fn(&mut S::Object)) -> Self {
        Self::over(Arc::new(ApiServer::new(client, prune)), gate, store)
    }
}

impl<S: Snapshot> Objects<S>
where
    S::Object: Serialize + Clone,
{
    /// Reads and writes through this API and puts the answers of writes into `store`.
    pub fn over(api: Arc<dyn ObjectApi<S::Object>>, gate: Gate, store: Option<Arc<Store<S>>>) -> Self {
        Self { api, gate, refusals: None, schemas: None, store }
    }

    /// Records refused writes in `refusals`, which all objects of a cluster share. A refused write is not sent again before its
    /// pause is over.
    #[must_use]
    pub fn with_refusals(mut self, refusals: &Refusals) -> Self {
        self.refusals = Some(refusals.clone());
        self
    }

    /// Writes only fields that the installed definitions keep.
    #[must_use]
    pub fn with_schemas(mut self, schemas: &InstalledSchemas) -> Self {
        self.schemas = Some(schemas.clone());
        self
    }

    /// Whether a write may be sent.
    fn may_try(&self, about: About<'_>, content: &PendingWrite<'_, S::Object>) -> Result<(), ApiError> {
        match &self.refusals {
            Some(refusals) if refusals.knows(about) => content.with_content(|content| refusals.may_try(about, content)),
            _ => Ok(()),
        }
    }

    /// Records the result of a write.
    fn learn<T>(&self, about: About<'_>, content: &PendingWrite<'_, S::Object>, answer: &Result<T, ApiError>) {
        if let Some(refusals) = &self.refusals
            && (answer.as_ref().is_err_and(ApiError::is_refusal) || refusals.knows(about))
        {
            content.with_content(|content| refusals.learn(about, content, answer));
        }
    }

    /// The store that receives the answers of writes, if there is one.
    pub fn store(&self) -> Option<&Arc<Store<S>>> {
        self.store.as_ref()
    }

    /// Reads an object from the API server. `None` when the API server answers that this object does not exist. The store is
    /// updated in both cases. After a `None`, only the object that was in the store when the request was sent is removed, because a
    /// new object of the same name may have been created since.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<S>, ApiError> {
        if key.name.is_empty() {
            // With an empty name, the request would be a list.
            return Ok(None);
        }
        let asked = self.store.as_ref().map(|store| store.moment());
        let known = self.store.as_ref().and_then(|store| store.get(key));
        match self.api.read(key).await {
            Ok(object) => Ok(Some(self.take_read(object, asked))),
            Err(ApiError::NotFound(_)) => {
                if let Some(store) = &self.store
                    && let Some(known) = known
                {
                    store.forget(key, known.uid());
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the API server has an object in the namespace that matches the label selector.
    pub async fn any_with_label(&self, namespace: &str, selector: &str) -> Result<bool, ApiError> {
        let query = ListQuery { selector: Some(selector.to_owned()), limit: Some(1), ..ListQuery::within(namespace) };
        Ok(!self.api.list(&query).await?.items.is_empty())
    }

    /// Reads all objects of the cluster with this label value from the API server and updates the store with each.
    ///
    /// # Errors
    /// The errors of every read. An answer that is not a list is also an error.
    pub async fn with_label(&self, label: &str, value: &str) -> Result<Vec<S>, ApiError> {
        self.list(ListQuery { selector: Some(format!("{label}={value}")), ..ListQuery::default() }).await
    }

    /// Reads all objects that a query matches from the API server and updates the store with each.
    ///
    /// # Errors
    /// The errors of every read. An answer that is not a list is also an error.
    pub async fn list(&self, query: ListQuery) -> Result<Vec<S>, ApiError> {
        let asked = self.store.as_ref().map(|store| store.moment());
        let all = self.api.list_all(query).await?;
        let objects: Vec<Arc<S::Object>> =
            all.items.into_iter().map(|item| self.api.decode(item)).collect::<Result<_, ApiError>>()?;
        Ok(objects.into_iter().map(|object| self.take_read(object, asked)).collect())
    }

    /// Reads objects of a namespace from the API server until `holds` is true for one, and returns its name. The store is not used.
    /// `holds` gets undecoded objects, so that an undecodable object is not missed.
    ///
    /// # Errors
    /// The errors of every read. An answer that is not a list is also an error.
    pub async fn find_live(&self, namespace: &str, holds: impl Fn(&Value) -> bool) -> Result<Option<String>, ApiError> {
        let mut query = ListQuery { limit: Some(LIVE_PAGE), ..ListQuery::within(namespace) };
        loop {
            let page = self.api.list(&query).await?;
            if let Some(found) = page.items.iter().find(|item| holds(item)) {
                return Ok(Some(found["metadata"]["name"].as_str().unwrap_or_default().to_owned()));
            }
            if page.next.is_none() {
                return Ok(None);
            }
            query.after = page.next;
        }
    }

    /// Creates an object in its namespace.
    pub async fn create(&self, object: &S::Object) -> Result<S, ApiError> {
        self.api.before_write().await;
        self.gate.may_act()?;
        // A new object gets a new name at each try, so the refusal is recorded for its owner.
        let (kind, name) = match controller_of(object.meta()) {
            Some(owner) => (owner.kind.clone(), owner.name.clone()),
            None => (S::Object::kind(&()).into_owned(), object.meta().name.clone().unwrap_or_default()),
        };
        let key = ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), name);
        let (about, content) = (About { kind: &kind, key: &key }, PendingWrite::New(object));
        self.may_try(about, &content)?;
        let answer = self.api.create(object).await;
        self.learn(about, &content, &answer);
        answer.map(|created| self.take(created))
    }

    /// Patches an object. The patch contains the target's UID. If the API server would drop the whole patch, it is not sent, and the object as it
    /// is known is the answer.
    pub async fn patch(&self, target: &Target, part: Part, mut patch: Patch) -> Result<S, ApiError> {
        self.api.before_write().await;
        self.gate.may_act()?;
        if let Some(schemas) = &self.schemas
            && schemas.remove_unknown(&S::Object::kind(&()), &mut patch) == Left::Nothing
        {
            return self.unchanged(target).await;
        }
        let patch = patch.bound_to(&target.uid);
        let content = PendingWrite::Change(part, &patch);
        let about = About { kind: &S::Object::kind(&()), key: &target.key };
        self.may_try(about, &content)?;
        let answer = self.api.patch(&target.key, part, &patch).await;
        self.learn(about, &content, &answer);
        match answer {
            Ok(object) => Ok(self.take(object)),
            Err(error) => {
                self.forget_if_gone(&error, target);
                Err(error)
            }
        }
    }

    /// Deletes an object if it still has the target's UID. An object that does not exist counts as deleted.
    ///
    /// # Errors
    /// The errors of every write. [`ApiError::Conflict`] when `how` names a version and the object has another one.
    pub async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<S>, ApiError> {
        self.api.before_write().await;
        self.gate.may_act()?;
        let about = About { kind: &S::Object::kind(&()), key: &target.key };
        self.may_try(about, &PendingWrite::Deletion)?;
        let answer = self.api.delete(target, how).await;
        self.learn(about, &PendingWrite::Deletion, &answer);
        match answer {
            Ok(Deleted::Marked(object)) => Ok(Deleted::Marked(self.take(object))),
            Ok(Deleted::Gone) => {
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

    /// Deletes an object if it still has this version.
    ///
    /// # Errors
    /// The errors of every deletion. [`ApiError::Conflict`] when the object has changed.
    pub async fn delete_unchanged(&self, target: &Target, version: &str) -> Result<Deleted<S>, ApiError> {
        self.delete(target, DeleteHow { version: Some(version), ..DeleteHow::default() }).await
    }

    /// The object as it is.
    async fn unchanged(&self, target: &Target) -> Result<S, ApiError> {
        let known = self.store.as_ref().and_then(|store| store.get(&target.key));
        if let Some(known) = known.filter(|known| known.uid() == target.uid) {
            return Ok(known);
        }
        let asked = self.store.as_ref().map(|store| store.moment());
        Ok(self.take_read(self.api.read(&target.key).await?, asked))
    }

    fn take(&self, object: Arc<S::Object>) -> S {
        match &self.store {
            Some(store) => store.observe_shared(object),
            None => S::of(object),
        }
    }

    /// Stores the object of a read that was sent at this moment.
    fn take_read(&self, object: Arc<S::Object>, asked: Option<Moment>) -> S {
        match (&self.store, asked) {
            (Some(store), Some(asked)) => store.observe_read(object, asked),
            _ => S::of(object),
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
}

/// A write, in the form in which refusals are recorded. A new object is serialized only if a refusal for its owner is recorded.
enum PendingWrite<'a, K> {
    New(&'a K),
    Change(Part, &'a Patch),
    Deletion,
}

impl<K: Serialize> PendingWrite<'_, K> {
    fn with_content<T>(&self, to: impl FnOnce(WriteContent<'_>) -> T) -> T {
        match self {
            // An object that can't be serialized is not sent.
            Self::New(object) => to(WriteContent::New(&serde_json::to_value(object).unwrap_or_default())),
            Self::Change(part, patch) => {
                let operations;
                let body = match patch {
                    Patch::Merge(merge) => merge,
                    Patch::Json(all) => {
                        operations = Value::Array(all.clone());
                        &operations
                    }
                };
                match part {
                    Part::Main => to(WriteContent::Change(body)),
                    Part::Status => to(WriteContent::Status(body)),
                }
            }
            Self::Deletion => to(WriteContent::Deletion),
        }
    }
}

#[cfg(test)]
mod tests;
