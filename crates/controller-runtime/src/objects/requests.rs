//! Calls an API server with HTTP requests, each with a deadline.

use std::{fmt::Debug, sync::Arc, time::Duration};

use async_trait::async_trait;
use kube::{Resource, core::response::StatusSummary};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{DeleteHow, Deleted, ListQuery, ObjectApi, Page, Part, Patch};
use crate::{
    clients::SentSignal,
    error::ApiError,
    key::{ObjectKey, Target},
};

/// How long one call may take after it was sent.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a call may wait in its lane before it is sent.
const MAX_WAIT: Duration = Duration::from_secs(60);
const JSON: &str = "application/json";

/// The form of an answer with metadata only.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Objects of one kind at an API server. For [`kube::core::PartialObjectMeta`], answers contain metadata only.
pub struct ApiServer<K: Resource> {
    client: kube::Client,
    reader: kube::Client,
    /// Removes what is not kept. Pruned objects are never written back.
    prune: fn(&mut K),
    kind: K::DynamicType,
}

impl<K: Resource<DynamicType = ()> + DeserializeOwned> ApiServer<K> {
    /// Reads and writes through this client.
    pub fn new(client: kube::Client, prune: fn(&mut K)) -> Self {
        Self { prune, ..Self::of_kind(client, ()) }
    }
}

impl<K: Resource + DeserializeOwned> ApiServer<K> {
    /// Reads and writes whole objects of a kind that is known at run time.
    pub fn of_kind(client: kube::Client, kind: K::DynamicType) -> Self {
        Self { reader: client.clone(), client, prune: |_| {}, kind }
    }

    /// Reads through another client, so that reads and writes have separate rates.
    #[must_use]
    pub fn reading_through(mut self, reader: kube::Client) -> Self {
        self.reader = reader;
        self
    }

    fn path(&self, key: &ObjectKey, subresource: Option<&str>) -> String {
        let namespace = Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let mut path = format!("{}/{}", K::url_path(&self.kind, namespace), key.name);
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }

    fn pruned(&self, mut object: K) -> Arc<K> {
        (self.prune)(&mut object);
        Arc::new(object)
    }

    /// Creates an object for a manager of fields. `object` has all fields, with `apiVersion`, `kind` and name, also if the type `K` has only some.
    ///
    /// # Errors
    /// Those of a write. [`ApiError::AlreadyExists`] if there is an object of this name, [`ApiError::NotFound`] without the namespace.
    pub async fn create_as(&self, namespace: &str, manager: &str, object: &Value) -> Result<Arc<K>, ApiError> {
        let collection = K::url_path(&self.kind, Some(namespace).filter(|namespace| !namespace.is_empty()));
        let path = format!("{collection}?fieldManager={}", form_urlencoded(manager));
        let request = request::<K>(http::Method::POST, &path, JSON, encode(object)?)?;
        in_time(request, |request| self.client.request::<K>(request))
            .await?
            .map(|object| self.pruned(object))
            .map_err(ApiError::from)
    }

    /// Sends a request about the object of this name.
    async fn call_about(
        &self,
        client: &kube::Client,
        request: http::Request<Vec<u8>>,
        name: &str,
    ) -> Result<Arc<K>, ApiError> {
        in_time(request, |request| client.request::<K>(request))
            .await?
            .map(|object| self.pruned(object))
            .map_err(|error| ApiError::about::<K>(error, &self.kind, name))
    }
}

#[async_trait]
impl<K> ObjectApi<K> for ApiServer<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
{
    async fn read(&self, key: &ObjectKey) -> Result<Arc<K>, ApiError> {
        let request = request::<K>(http::Method::GET, &self.path(key, None), JSON, Vec::new())?;
        self.call_about(&self.reader, request, &key.name).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, ApiError> {
        let selector = query.selector.as_deref().map(|selector| ("labelSelector", form_urlencoded(selector)));
        let fields = query.fields.as_deref().map(|fields| ("fieldSelector", form_urlencoded(fields)));
        let limit = query.limit.map(|limit| ("limit", limit.to_string()));
        let after = query.after.as_deref().map(|token| ("continue", form_urlencoded(token)));
        let parts: Vec<String> = [limit, after, selector, fields]
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let path = format!("{}?{}", K::url_path(&self.kind, query.namespace.as_deref()), parts.join("&"));
        let mut request = request::<K>(http::Method::GET, &path, JSON, Vec::new())?;
        if K::metadata_api() {
            request.headers_mut().insert(http::header::ACCEPT, http::HeaderValue::from_static(METADATA_LIST));
        }
        let mut list =
            in_time(request, |request| self.reader.request::<Value>(request)).await?.map_err(ApiError::from)?;
        let items = match list.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => items,
            // The API server writes null for a list of metadata without objects.
            Some(Value::Null) if list["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => Vec::new(),
            // An answer that is no list must not count as an empty list.
            Some(_) | None => return Err(ApiError::Other(format!("the answer to {path} is no list"))),
        };
        let text = |field: &str| list["metadata"][field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(Page { items, next: text("continue"), version: text("resourceVersion") })
    }

    async fn create(&self, object: &K) -> Result<Arc<K>, ApiError> {
        let mut body = serde_json::to_value(object).map_err(|error| ApiError::Other(error.to_string()))?;
        if let Value::Object(fields) = &mut body {
            fields.insert("apiVersion".to_owned(), Value::from(K::api_version(&self.kind).into_owned()));
            fields.insert("kind".to_owned(), Value::from(K::kind(&self.kind).into_owned()));
        }
        let namespace = object.meta().namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let request = request::<K>(http::Method::POST, &K::url_path(&self.kind, namespace), JSON, encode(&body)?)?;
        in_time(request, |request| self.client.request::<K>(request))
            .await?
            .map(|created| self.pruned(created))
            .map_err(ApiError::from)
    }

    async fn patch(&self, key: &ObjectKey, part: Part, patch: &Patch) -> Result<Arc<K>, ApiError> {
        let (content_type, body) = match patch {
            Patch::Merge(merge) => ("application/merge-patch+json", encode(merge)?),
            Patch::Json(operations) => ("application/json-patch+json", encode(operations)?),
        };
        let subresource = match part {
            Part::Main => None,
            Part::Status => Some("status"),
        };
        let request = request::<K>(http::Method::PATCH, &self.path(key, subresource), content_type, body)?;
        self.call_about(&self.client, request, &key.name).await
    }

    async fn delete(&self, target: &Target, how: DeleteHow<'_>) -> Result<Deleted<Arc<K>>, ApiError> {
        let mut options =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": target.uid } });
        if let Some(version) = how.version {
            options["preconditions"]["resourceVersion"] = Value::from(version);
        }
        if let Some(seconds) = how.grace_seconds {
            options["gracePeriodSeconds"] = Value::from(seconds);
        }
        let request = request::<K>(http::Method::DELETE, &self.path(&target.key, None), JSON, encode(&options)?)?;
        let answer = in_time(request, |request| self.client.request_status::<K>(request)).await?;
        match answer.map_err(|error| ApiError::about::<K>(error, &self.kind, &target.key.name))? {
            // With a finalizer or a grace period, the answer is the object, marked for deletion.
            either::Either::Left(object) if object.meta().deletion_timestamp.is_some() => {
                Ok(Deleted::Marked(self.pruned(object)))
            }
            either::Either::Right(status) if matches!(status.status, Some(StatusSummary::Failure)) => {
                Err(ApiError::Other(status.message))
            }
            either::Either::Left(_) | either::Either::Right(_) => Ok(Deleted::Gone),
        }
    }

    fn decode(&self, item: Value) -> Result<Arc<K>, ApiError> {
        let object = serde_json::from_value(item).map_err(|error| ApiError::Other(error.to_string()))?;
        Ok(self.pruned(object))
    }
}

/// Encodes a query value. Only letters, digits and `-._~` stay as they are.
fn form_urlencoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// Sends a request and waits up to [`CALL_TIMEOUT`] for the answer, counted from when the request leaves its lane. A request that
/// waits in its lane for longer than [`MAX_WAIT`] fails unsent, because the decision behind it is too old by then.
pub async fn in_time<T, F>(
    mut request: http::Request<Vec<u8>>,
    send: impl FnOnce(http::Request<Vec<u8>>) -> F,
) -> Result<kube::Result<T>, ApiError>
where
    F: Future<Output = kube::Result<T>>,
{
    let signal = SentSignal::default();
    request.extensions_mut().insert(signal.clone());
    let mut answer = std::pin::pin!(send(request));
    let left_lane = tokio::time::timeout(MAX_WAIT, async {
        tokio::select! {
            biased;
            answer = &mut answer => Some(answer),
            () = signal.sent() => None,
        }
    });
    match left_lane.await {
        Ok(Some(answer)) => return Ok(answer),
        Ok(None) => {}
        Err(_) => {
            return Err(ApiError::Unavailable(format!(
                "the call had no answer within {MAX_WAIT:?}, or was not sent, because the client sends too many; see --kube-api-qps"
            )));
        }
    }
    tokio::time::timeout(CALL_TIMEOUT, answer).await.map_err(|_| ApiError::TimedOut(CALL_TIMEOUT))
}

/// The answer of a call through kube's own API, within [`CALL_TIMEOUT`].
///
/// # Errors
/// The error of the call, or [`ApiError::TimedOut`].
pub async fn call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| ApiError::TimedOut(CALL_TIMEOUT))?;
    answer.map_err(ApiError::from)
}

fn encode(body: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(body).map_err(|error| ApiError::Other(error.to_string()))
}

fn request<K: Resource>(
    method: http::Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> Result<http::Request<Vec<u8>>, ApiError> {
    http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .header(http::header::ACCEPT, if K::metadata_api() { METADATA } else { JSON })
        .body(body)
        .map_err(|error| ApiError::Other(format!("request for {path}: {error}")))
}
