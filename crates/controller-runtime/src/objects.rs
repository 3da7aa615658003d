//! Reads and writes of one kind: the leader's gate before every write, the answer into the store.
//!
//! The calls themselves are made by an [`ObjectApi`]: [`ApiServer`] for a real cluster, a played one in histories and forecasts.
//! Writes are patches that carry the object's UID, so that none can hit a namesake or create an empty object
//! (decisions.md 43); whole objects are only ever created. Retrying is the work queue's business; what the API server refuses is
//! not sent again before its pause is over ([`super::refusals`]).

mod requests;

use std::{fmt::Debug, sync::Arc};

use async_trait::async_trait;
use kube::Resource;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::requests::{ApiServer, CALL_TIMEOUT, in_time};
use super::{
    error::ApiError,
    gate::Gate,
    key::{ObjectKey, Target},
    refusals::{About, Refusals, Said},
    snapshot::Snapshot,
    store::{Moment, Store},
};
use machine_api::v1alpha1::controller_of;

/// Objects per page of a live look at a whole collection.
const LIVE_PAGE: u32 = 250;

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

    /// The same patch, refused unless the object has this UID: with [`ApiError::Conflict`] a merge patch, with
    /// [`ApiError::Invalid`] a JSON patch.
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

/// What a deletion came to.
#[derive(Clone, Debug)]
pub enum Deleted<S> {
    /// The object is gone.
    Gone,
    /// The object waits for its finalizers.
    Marked(S),
}

/// How an object is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteHow<'a> {
    /// Seconds the object may take to end; absent leaves it to the object.
    pub grace_seconds: Option<u32>,
    /// Only in this version.
    pub version: Option<&'a str>,
}

/// Which objects of a kind are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Of this namespace only.
    pub namespace: Option<String>,
    /// That this selector of labels fits.
    pub selector: Option<String>,
    /// At most so many at once.
    pub limit: Option<u32>,
    /// Those that follow the page which named this token.
    pub after: Option<String>,
}

/// Objects of a list, as they are served.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The objects.
    pub items: Vec<Value>,
    /// What to ask for the next page with.
    pub next: Option<String>,
}

/// An API server, as far as objects of one kind are read and written. It makes single calls and remembers nothing: gate, stores
/// and refusals are the business of [`Objects`].
///
/// Errors are those of the call: what was not answered is [`ApiError::outcome_unknown`], and [`ApiError::NotFound`] says that the
/// object itself is not there.
#[async_trait]
pub trait ObjectApi<K>: Send + Sync {
    /// Waits before a write, if the implementation has something to wait for. [`Objects`] asks the gate afterwards. The default
    /// waits for nothing: with [`ApiServer`] a write waits for its lane after the gate was asked, for at most a minute.
    async fn turn(&self) {}

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

    /// An object of a list, as [`Self::read`] would answer it.
    fn decode(&self, item: Value) -> Result<Arc<K>, ApiError>;
}

/// Reads and writes objects of one kind in one cluster. Cheap to clone.
pub struct Objects<S: Snapshot> {
    api: Arc<dyn ObjectApi<S::Object>>,
    gate: Gate,
    /// What was refused, where that is minded.
    refusals: Option<Refusals>,
    store: Option<Arc<Store<S>>>,
}

impl<S: Snapshot> Clone for Objects<S> {
    fn clone(&self) -> Self {
        Self {
            api: Arc::clone(&self.api),
            gate: self.gate.clone(),
            refusals: self.refusals.clone(),
            store: self.store.clone(),
        }
    }
}

impl<S: Snapshot> Objects<S>
where
    S::Object: Serialize + DeserializeOwned + Clone + Debug,
{
    /// Objects read and written through this client; answers of writes go into `store`. `prune` takes off objects what is not
    /// stored; they are never written back whole.
    pub fn new(client: kube::Client, gate: Gate, store: Option<Arc<Store<S>>>, prune: fn(&mut S::Object)) -> Self {
        Self::over(Arc::new(ApiServer::new(client, prune)), gate, store)
    }
}

impl<S: Snapshot> Objects<S>
where
    S::Object: Serialize + Clone,
{
    /// Objects of this API server; answers of writes go into `store`.
    pub fn over(api: Arc<dyn ObjectApi<S::Object>>, gate: Gate, store: Option<Arc<Store<S>>>) -> Self {
        Self { api, gate, refusals: None, store }
    }

    /// The same objects, which share what is known of refused writes with others of their cluster, and send none of them again
    /// before its pause is over.
    #[must_use]
    pub fn minding(mut self, refusals: &Refusals) -> Self {
        self.refusals = Some(refusals.clone());
        self
    }

    /// Whether a write may be sent.
    fn may_try(&self, about: About<'_>, said: &Written<'_, S::Object>) -> Result<(), ApiError> {
        match &self.refusals {
            Some(refusals) if refusals.knows(about) => said.told(|said| refusals.may_try(about, said)),
            _ => Ok(()),
        }
    }

    /// Keeps in mind what came of a write.
    fn learn<T>(&self, about: About<'_>, said: &Written<'_, S::Object>, answer: &Result<T, ApiError>) {
        if let Some(refusals) = &self.refusals
            && (answer.as_ref().is_err_and(ApiError::is_refusal) || refusals.knows(about))
        {
            said.told(|said| refusals.learn(about, said, answer));
        }
    }

    /// The cached view that answers of writes go into, if there is one.
    pub fn store(&self) -> Option<&Arc<Store<S>>> {
        self.store.as_ref()
    }

    /// Reads an object from the API server. `None` when the API server says of it that it does not exist. The store is told in
    /// both cases, but forgets only the object that it showed when the question was sent: another one may have come meanwhile.
    pub async fn get(&self, key: &ObjectKey) -> Result<Option<S>, ApiError> {
        if key.name.is_empty() {
            // An empty name would turn the read into a list.
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

    /// Asks the API server whether any object of a namespace carries a label, given as a selector.
    pub async fn any_with_label(&self, namespace: &str, selector: &str) -> Result<bool, ApiError> {
        let query = ListQuery {
            namespace: some_namespace(namespace),
            selector: Some(selector.to_owned()),
            limit: Some(1),
            after: None,
        };
        Ok(!self.api.list(&query).await?.items.is_empty())
    }

    /// Reads all objects of the cluster that carry this label with this value; the store is told of each.
    ///
    /// # Errors
    /// Those of every read; an answer that is no list is none.
    pub async fn with_label(&self, label: &str, value: &str) -> Result<Vec<S>, ApiError> {
        let query = ListQuery { selector: Some(format!("{label}={value}")), ..ListQuery::default() };
        let asked = self.store.as_ref().map(|store| store.moment());
        let page = self.api.list(&query).await?;
        let objects: Vec<Arc<S::Object>> =
            page.items.into_iter().map(|item| self.api.decode(item)).collect::<Result<_, ApiError>>()?;
        Ok(objects.into_iter().map(|object| self.take_read(object, asked)).collect())
    }

    /// Asks the API server for the first object of a namespace that a question holds for, whatever the cached view shows;
    /// answers its name. The question is asked of objects as they are served, so that none is passed over because it can't be
    /// decoded.
    ///
    /// # Errors
    /// Those of every read; an answer that is no list is none.
    pub async fn find_live(&self, namespace: &str, holds: impl Fn(&Value) -> bool) -> Result<Option<String>, ApiError> {
        let mut query =
            ListQuery { namespace: some_namespace(namespace), limit: Some(LIVE_PAGE), ..ListQuery::default() };
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
        self.api.turn().await;
        self.gate.may_act()?;
        // Its name is a new one at each try: the owner is whom a refusal is about.
        let (kind, name) = match controller_of(object.meta()) {
            Some(owner) => (owner.kind.clone(), owner.name.clone()),
            None => (S::Object::kind(&()).into_owned(), object.meta().name.clone().unwrap_or_default()),
        };
        let key = ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), name);
        let (about, said) = (About { kind: &kind, key: &key }, Written::New(object));
        self.may_try(about, &said)?;
        let answer = self.api.create(object).await;
        self.learn(about, &said, &answer);
        answer.map(|created| self.take(created))
    }

    /// Patches an object; the patch carries the target's UID.
    pub async fn patch(&self, target: &Target, part: Part, patch: Patch) -> Result<S, ApiError> {
        self.api.turn().await;
        self.gate.may_act()?;
        let patch = patch.bound_to(&target.uid);
        let said = Written::Change(part, &patch);
        let about = About { kind: &S::Object::kind(&()), key: &target.key };
        self.may_try(about, &said)?;
        let answer = self.api.patch(&target.key, part, &patch).await;
        self.learn(about, &said, &answer);
        match answer {
            Ok(object) => Ok(self.take(object)),
            Err(error) => {
                self.forget_if_gone(&error, target);
                Err(error)
            }
        }
    }

    /// Deletes an object if it still has the target's UID. An object that is gone already counts as deleted.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] when it is to be deleted in a version that it no longer has, among those of every write.
    pub async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<S>, ApiError> {
        self.api.turn().await;
        self.gate.may_act()?;
        let about = About { kind: &S::Object::kind(&()), key: &target.key };
        self.may_try(about, &Written::End)?;
        let answer = self.api.delete(target, how).await;
        self.learn(about, &Written::End, &answer);
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

    /// Deletes an object if it is still as it was in this version.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] when it has changed since, among those of every deletion.
    pub async fn delete_unchanged(&self, target: &Target, version: &str) -> Result<Deleted<S>, ApiError> {
        self.delete(target, DeleteHow { version: Some(version), ..DeleteHow::default() }).await
    }

    fn take(&self, object: Arc<S::Object>) -> S {
        match &self.store {
            Some(store) => store.observe_shared(object),
            None => S::of(object),
        }
    }

    /// What a live read has shown that was sent at this moment.
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

fn some_namespace(namespace: &str) -> Option<String> {
    Some(namespace).filter(|namespace| !namespace.is_empty()).map(str::to_owned)
}

/// A write, as refusals are told apart. What a new object says is put together only where something was refused.
enum Written<'a, K> {
    New(&'a K),
    Change(Part, &'a Patch),
    End,
}

impl<K: Serialize> Written<'_, K> {
    fn told<T>(&self, to: impl FnOnce(Said<'_>) -> T) -> T {
        match self {
            // An object that can't be written is not sent either.
            Self::New(object) => to(Said::New(&serde_json::to_value(object).unwrap_or_default())),
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
                    Part::Main => to(Said::Change(body)),
                    Part::Status => to(Said::Status(body)),
                }
            }
            Self::End => to(Said::End),
        }
    }
}

#[cfg(test)]
mod tests;
