//! The state of the server, and its steps of the [`pipeline`] of requests: authentication, limits, authorization, and the verb.
//!
//! Source: spec/extension-apiserver §2.2.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use jiff::Timestamp;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    access::{self, User},
    account_tokens::AccountTokens,
    aggregator::Aggregator,
    authorization::{self, Attributes, AuthorizationMode},
    counts::RequestCounts,
    documents::Documents,
    event_cache::EventCache,
    hooks::Hooks,
    kinds::{Registry, Served},
    limits::{self, Limits, RequestClass, RequestLimiter, RequestPermit},
    listener,
    protobuf::{self, DecodeError},
    store::{Collection, Store},
    webhook_client::WebhookClient,
};
use kube_listener::{
    BodyReader,
    pipeline::{self, AUDIT_ID, Answered, ApiRequest, Exchange},
};
pub(super) use kube_protocol::answer::{Answer, AnswerBody};
use kube_protocol::{
    negotiate::{self, Accepted, Offer},
    request::{Query, ResourceRequest, Target, Verb},
    status::ApiStatus,
};

/// The most bytes of a request body. Larger bodies are refused.
pub(super) const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The state that the requests of a server share.
pub(super) struct Server {
    pub(super) store: Store,
    registry: tokio::sync::watch::Sender<Arc<Registry>>,
    /// Locked while the registry is rebuilt. Without the lock a registry from older definitions could replace a newer one.
    reloading: Mutex<()>,
    pub(super) documents: Documents,
    pub(super) event_cache: EventCache,
    pub(super) webhooks: WebhookClient,
    pub(super) aggregator: Aggregator,
    random: Mutex<ChaCha8Rng>,
    /// A separate random stream. The number of read requests must not change the UIDs and names of stored objects.
    audit_ids: Mutex<ChaCha8Rng>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(super) tokens: access::Tokens,
    pub(super) accounts: AccountTokens,
    /// The certificate authority of the serving certificate, as PEM. It is set when the server listens.
    pub(super) authority: OnceLock<String>,
    /// The time between two bookmarks of a watch without changes.
    pub(super) bookmark_period: Duration,
    pub(super) authorization: AuthorizationMode,
    pub(super) counts: RequestCounts,
    pub(super) hooks: Hooks,
    limiter: RequestLimiter,
    /// Cancelled when the server shuts down. All watches end then.
    pub(super) shutdown: CancellationToken,
}

/// The origin of a request.
pub(super) enum Source<'a> {
    /// This process. The body is trusted.
    InProcess(User),
    /// A listener, with the reader of its bodies.
    Listener(&'a BodyReader),
}

/// A request to this server.
struct DevExchange<'a> {
    server: &'a Arc<Server>,
    source: Source<'a>,
    permit: RequestPermit,
    /// The request and its content type, if its resource is served.
    counted: Option<(ResourceRequest, Option<String>)>,
}

/// A request for a resource, and its user.
pub(super) struct Call<'a> {
    pub(super) request: &'a ResourceRequest,
    pub(super) served: Arc<Served>,
    pub(super) query: &'a Query,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Bytes,
    pub(super) user: &'a User,
    pub(super) accepted: Accepted,
}

impl Call<'_> {
    pub(super) fn content_type(&self) -> Option<&str> {
        self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok())
    }

    /// The decoded body.
    pub(super) fn decoded(&self) -> Result<Value, ApiStatus> {
        let is_protobuf =
            self.content_type().is_some_and(|text| text.starts_with("application/vnd.kubernetes.protobuf"));
        if is_protobuf {
            match protobuf::decode(self.body) {
                Ok(value) => return Ok(value),
                Err(DecodeError::Malformed) => {
                    return Err(ApiStatus::bad_request(
                        "the body of the request is no protobuf of the kind that it names",
                    ));
                }
                // The kind does not support protobuf. The request is refused like one with any other unsupported format.
                Err(DecodeError::UnsupportedKind) => {}
            }
        }
        negotiate::decode(self.content_type(), self.body)
    }

    pub(super) fn user_agent(&self) -> &str {
        self.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.request.namespace.as_deref()
    }

    pub(super) fn name(&self) -> &str {
        self.request.name.as_deref().unwrap_or_default()
    }

    pub(super) fn key(&self) -> String {
        super::store::key(self.namespace(), self.name())
    }

    pub(super) fn not_found(&self) -> ApiStatus {
        ApiStatus::not_found(self.served.group(), self.served.plural(), self.name())
    }

    pub(super) fn modified(&self) -> ApiStatus {
        ApiStatus::modified(self.served.group(), self.served.plural(), self.name())
    }
}

impl Server {
    pub(super) fn new(
        store: Store,
        random: ChaCha8Rng,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
        accounts: AccountTokens,
        bookmark_period: Duration,
        authorization: AuthorizationMode,
        limits: &Limits,
    ) -> Self {
        let mut audit_ids = random.clone();
        audit_ids.set_stream(u64::MAX);
        Self {
            store,
            registry: tokio::sync::watch::Sender::new(Arc::new(Registry::new(Vec::new()))),
            reloading: Mutex::new(()),
            documents: Documents::default(),
            event_cache: EventCache::default(),
            webhooks: WebhookClient::default(),
            aggregator: Aggregator::default(),
            audit_ids: Mutex::new(audit_ids),
            random: Mutex::new(random),
            clock,
            tokens: access::Tokens::default(),
            accounts,
            authority: OnceLock::new(),
            bookmark_period,
            authorization,
            counts: RequestCounts::default(),
            hooks: Hooks::default(),
            limiter: RequestLimiter::new(limits),
            shutdown: CancellationToken::new(),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.hooks.time((self.clock)())
    }

    pub(super) fn random(&self) -> MutexGuard<'_, ChaCha8Rng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.registry.borrow())
    }

    /// Receives each change of the served kinds.
    pub(super) fn registrations(&self) -> tokio::sync::watch::Receiver<Arc<Registry>> {
        self.registry.subscribe()
    }

    /// Rebuilds the registry from the built-in kinds and all stored custom resource definitions.
    pub(super) fn reload_definitions(&self) {
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let definitions =
            self.store.list(&super::store::Collection::new("apiextensions.k8s.io", "customresourcedefinitions"), "");
        let custom = definitions.objects.iter().flat_map(|(_, stored)| super::crd::served(&stored.value)).collect();
        self.registry.send_replace(Arc::new(Registry::new(custom)));
        self.documents.clear();
        self.register_local();
    }

    /// Answers a request.
    pub(super) async fn answer(self: &Arc<Self>, request: Request<Body>, source: Source<'_>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let audit_id = head.headers.get(AUDIT_ID).cloned().unwrap_or_else(|| {
            let mut random = self.audit_ids.lock().unwrap_or_else(PoisonError::into_inner);
            HeaderValue::from_str(&super::object::new_uid(&mut *random)).unwrap_or(HeaderValue::from_static(""))
        });
        let mut exchange = DevExchange { server: self, source, permit: None, counted: None };
        let response = pipeline::answer(&mut exchange, head, body, audit_id).await;
        if let Some((request, content_type)) = &exchange.counted {
            self.counts.count(request, content_type.as_deref(), response.status().as_u16());
        }
        response
    }

    /// Answers a request that writes, after its writes are durable.
    async fn write_durably(self: &Arc<Self>, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        // Nothing is changed in a store that can't make writes durable, for example on a full disk.
        self.store.durable(0).await.map_err(ApiStatus::internal)?;
        let answered = self.dispatch(call, verb).await;
        self.store.durable(self.store.revision()).await.map_err(ApiStatus::internal)?;
        answered
    }

    /// Answers a request that only reads, after the state that it has read is durable. When the store can't make writes durable, reads still work.
    async fn read_durably(self: &Arc<Self>, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        let answered = self.dispatch(call, verb).await;
        let _ = self.store.durable(self.store.revision()).await;
        answered
    }

    /// The user of a token.
    pub(super) fn user_of_token(&self, token: &str) -> Option<User> {
        let account = || {
            let accounts = Collection::new("", "serviceaccounts");
            let uid = |namespace: &str, name: &str| {
                let stored = self.store.get(&accounts, &super::store::key(Some(namespace), name))?;
                Some(super::object::uid(&stored.value).to_owned())
            };
            self.accounts.user(token, self.now(), uid)
        };
        self.tokens.user(token).or_else(account)
    }

    /// Whether a user that is not anonymous is allowed to do something.
    pub(super) fn is_allowed(&self, user: &User, attributes: &Attributes) -> bool {
        match self.authorization {
            AuthorizationMode::AlwaysAllow => true,
            AuthorizationMode::Rbac => authorization::allows(&self.store, user, attributes),
        }
    }

    pub(super) fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), ApiStatus> {
        // An anonymous request is for a public path; all others were refused before.
        if user.is_anonymous() || self.is_allowed(user, attributes) { Ok(()) } else { Err(attributes.forbidden(user)) }
    }

    /// The user of a request after impersonation, if the caller is allowed to impersonate.
    fn impersonated(&self, user: User, headers: &HeaderMap) -> Result<User, ApiStatus> {
        let Some(wanted) = access::impersonation(headers)? else { return Ok(user) };
        let name = std::iter::once(Attributes::impersonating("users", &wanted.name));
        let groups = wanted.own_groups().map(|group| Attributes::impersonating("groups", group));
        for attributes in name.chain(groups) {
            let allowed = match self.authorization {
                AuthorizationMode::AlwaysAllow => user.is_master(),
                AuthorizationMode::Rbac => authorization::allows(&self.store, &user, &attributes),
            };
            if !allowed {
                return Err(attributes.forbidden(&user));
            }
        }
        Ok(wanted)
    }

    async fn dispatch(self: &Arc<Self>, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        if let Some(name) = &call.request.subresource {
            return self.subresource(call, verb, name).await;
        }
        if !call.served.resource.serves(verb) {
            return Err(ApiStatus::method_not_allowed());
        }
        let needs_namespace = matches!(verb, Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete);
        if needs_namespace
            && call.served.is_namespaced()
            && call.namespace().is_none()
            && !super::reviews::is_review(&call.served)
        {
            return Err(ApiStatus::page_not_found());
        }
        match verb {
            Verb::Get => self.get(call).await,
            Verb::List => self.list(call).await,
            Verb::Watch => self.watch(call),
            Verb::Create if super::reviews::is_review(&call.served) => self.review(call),
            Verb::Create => self.create(call).await,
            Verb::Update => self.update(call).await,
            Verb::Patch => self.patch(call).await,
            Verb::Delete => self.delete(call).await,
            Verb::DeleteCollection => self.delete_collection(call).await,
        }
    }

    async fn subresource(self: &Arc<Self>, call: &Call<'_>, verb: Verb, name: &str) -> Result<Answer, ApiStatus> {
        let Some(subresource) = call.served.resource.subresource(name) else {
            return Err(match (call.served.group(), call.served.plural(), name) {
                ("", "pods", "log" | "exec" | "attach" | "portforward" | "proxy") | ("", "nodes", "proxy") => {
                    let message = format!("{}/{name} is not supported by the development server", call.served.plural());
                    ApiStatus::new(405, "MethodNotAllowed", message)
                }
                _ => ApiStatus::page_not_found(),
            });
        };
        if !subresource.verbs.contains(&verb) {
            return Err(ApiStatus::method_not_allowed());
        }
        match (name, verb) {
            ("eviction", Verb::Create) => self.evict(call).await,
            ("binding", Verb::Create) => self.bind(call),
            ("token", Verb::Create) => self.issue_token(call),
            ("scale", Verb::Get) => self.get_scale(call).await,
            ("scale", Verb::Update | Verb::Patch) => self.write_scale(call, verb).await,
            (_, Verb::Get) => self.get(call).await,
            (_, Verb::Update) => self.update(call).await,
            (_, Verb::Patch) => self.patch(call).await,
            _ => Err(ApiStatus::method_not_allowed()),
        }
    }
}

impl Exchange for DevExchange<'_> {
    type User = User;

    fn longest_time(&self, request: &ApiRequest) -> Option<Duration> {
        self.server.limiter.longest_time(RequestClass::of(request))
    }

    async fn identify(&mut self, request: &mut ApiRequest) -> Result<User, ApiStatus> {
        let head = &request.head;
        let user = match &self.source {
            Source::InProcess(user) => user.clone(),
            Source::Listener(_) => listener::authenticated(self.server, head)?,
        };
        let user = self.server.impersonated(user, &head.headers)?;
        access::authorize(&user, &request.target, head.uri.path())?;
        Ok(user)
    }

    fn take_permit(&mut self, user: &User, request: &ApiRequest) -> Result<(), ApiStatus> {
        self.permit = self.server.limiter.acquire(RequestClass::of(request), user)?;
        Ok(())
    }

    async fn authorize(
        &self,
        user: &User,
        ApiRequest { head, target, query, .. }: &ApiRequest,
    ) -> Result<(), ApiStatus> {
        self.server.authorize(user, &Attributes::of_request(target, &head.method, head.uri.path(), query))
    }

    async fn dispatch(&mut self, user: &User, request: &ApiRequest, body: Body) -> Answered {
        let answer = self.perform(user, request, body).await?;
        Ok(limits::hold_permit(RequestClass::of(request), self.permit.take(), answer))
    }

    fn timed_out(&self, status: ApiStatus) -> ApiStatus {
        status.with_details(serde_json::json!({}))
    }
}

impl DevExchange<'_> {
    /// Answers a request that has a permit and whose user is authorized.
    async fn perform(&mut self, user: &User, whole: &ApiRequest, body: Body) -> Answered {
        let (server, headers, query) = (self.server, &whole.head.headers, &whole.query);
        let body = &self.read(body).await?;
        if let Some(serves) = server.foreign(&whole.target) {
            return server.forward(&serves, &whole.head, body, user).await;
        }
        let request = match &whole.target {
            Target::Resource(request) => request,
            Target::Other(segments) => return server.other(whole, segments).await,
        };
        let served = server.registry().find(&request.group, &request.version, &request.resource);
        let served = served.filter(|served| !served.resource.verbs.is_empty()).ok_or_else(ApiStatus::page_not_found)?;
        if request.namespace.is_some() && !served.is_namespaced() {
            return Err(ApiStatus::page_not_found());
        }
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        self.counted = Some((request.clone(), content_type.map(str::to_owned)));
        let verb = request.verb.ok_or_else(ApiStatus::method_not_allowed)?;
        let accepted = negotiate::accept(headers, Offer::Objects)?;
        server.hooks.apply(verb, request).await?;
        let call = Call { request, served, query, headers, body, user, accepted };
        let mut answer = if only_reads(&call.served, verb) {
            server.read_durably(&call, verb).await?
        } else {
            server.write_durably(&call, verb).await?
        };
        if let Some(warning) = call.served.custom().and_then(|custom| custom.deprecation.clone()) {
            answer.warnings.insert(0, warning);
        }
        Ok(Answer { encoding: accepted.encoding, ..answer })
    }

    /// Reads the body. The deadline of the request ends the reading of a body that comes too slowly.
    async fn read(&self, body: Body) -> Result<Bytes, ApiStatus> {
        match self.source {
            Source::InProcess(_) => axum::body::to_bytes(body, usize::MAX)
                .await
                .map_err(|_| ApiStatus::bad_request("the body of the request cannot be read")),
            Source::Listener(bodies) => bodies.read(body, BODY_LIMIT, None).await,
        }
    }
}

/// Whether a request changes nothing. A client creates a review, but no review is stored.
fn only_reads(served: &Served, verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch) || super::reviews::is_review(served)
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};
    use rand::SeedableRng;
    use serde_json::json;

    use super::*;
    use crate::{first_content::first_content, persistence::Durable};

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    /// A server whose disk is full at its first write.
    fn on_a_full_disk() -> Arc<Server> {
        let (jobs, _) = std::sync::mpsc::channel();
        let (_, committed) = tokio::sync::watch::channel(Err("storage: no space left".to_owned()));
        let server = Server::new(
            Store::new(1, Vec::new(), Durable::File { jobs, committed }),
            ChaCha8Rng::seed_from_u64(1),
            Arc::new(|| Timestamp::UNIX_EPOCH),
            AccountTokens::default(),
            Duration::from_secs(60),
            AuthorizationMode::default(),
            &Limits::default(),
        );
        let server = Arc::new(server);
        server.reload_definitions();
        first_content(&server);
        server
    }

    async fn ask(server: &Arc<Server>, method: Method, path: &str, body: &Value) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let user = Source::InProcess(User::known("tester", [access::MASTERS.to_owned()]));
        let answer = server.answer(request.body(Body::from(body.to_string())).unwrap(), user).await;
        let (head, body) = answer.into_parts();
        let bytes = axum::body::to_bytes(body, BODY_LIMIT).await.unwrap();
        (head.status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn on_a_full_disk_reads_work_and_writes_change_nothing() {
        let server = on_a_full_disk();
        let before = server.store.revision();
        let (status, text) = ask(&server, Method::POST, MAPS, &json!({"metadata": {"name": "m"}})).await;
        assert!(status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("no space left"), "{status} {text}");
        assert_eq!(server.store.revision(), before);
        for path in [MAPS, "/api/v1/namespaces/default"] {
            assert_eq!(ask(&server, Method::GET, path, &Value::Null).await.0, StatusCode::OK, "{path}");
        }
        let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert_eq!(ask(&server, Method::POST, reviews, &review).await.0, StatusCode::CREATED);
        let (status, text) = ask(&server, Method::GET, "/readyz", &Value::Null).await;
        assert!(status == StatusCode::INTERNAL_SERVER_ERROR && text.contains("[-]storage failed"), "{status} {text}");
    }
}
