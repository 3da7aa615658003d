//! One request from head to answer: classification, identity, rights, and the verb that does the work.
//!
//! Source: spec/extension-apiserver §2.2.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header, request::Parts};
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
    hooks::Hooks,
    kinds::{Registry, Served},
    limits::{self, Lane, Limits, Places},
    protobuf::{self, Unread},
    store::{Collection, Store},
    watch_lines::WatchLines,
    webhook_client::WebhookClient,
};
pub(super) use kube_protocol::answer::{Answer, AnswerBody};
use kube_protocol::{
    answer::{refused, written},
    negotiate::{self, Accepted, Encoding, Offer},
    request::{Query, ResourceRequest, Target, Verb, classify},
    status::ApiStatus,
};

/// Larger bodies are refused.
pub(super) const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// What the requests of one server share.
pub(super) struct Server {
    pub(super) store: Store,
    registry: tokio::sync::watch::Sender<Arc<Registry>>,
    /// Held while the registry is made: what was read of the definitions first must not replace what was read later.
    reloading: Mutex<()>,
    pub(super) documents: Documents,
    /// What watchers were told last.
    pub(super) lines: WatchLines,
    pub(super) webhooks: WebhookClient,
    pub(super) aggregator: Aggregator,
    random: Mutex<ChaCha8Rng>,
    /// A stream of its own: how many requests only read must not change what is stored.
    audit_ids: Mutex<ChaCha8Rng>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(super) tokens: access::Tokens,
    pub(super) accounts: AccountTokens,
    /// Of the serving certificate, as PEM, once the server listens.
    pub(super) authority: OnceLock<String>,
    /// How often a quiet watch tells its revision.
    pub(super) bookmark_period: Duration,
    pub(super) authorization: AuthorizationMode,
    pub(super) counts: RequestCounts,
    pub(super) hooks: Hooks,
    places: Places,
    /// Cancelled when the server is to end: watches tell no more.
    pub(super) ending: CancellationToken,
}

/// What was found out about a request on its way, for its answer.
#[derive(Default)]
struct Found {
    encoding: Encoding,
    /// What it asks for, if that is served.
    served: Option<ResourceRequest>,
}

/// A request for a resource, and who sends it.
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

    /// The body as a value.
    pub(super) fn decoded(&self) -> Result<Value, ApiStatus> {
        let is_protobuf =
            self.content_type().is_some_and(|text| text.starts_with("application/vnd.kubernetes.protobuf"));
        if is_protobuf {
            match protobuf::decode(self.body) {
                Ok(value) => return Ok(value),
                Err(Unread::Malformed) => {
                    return Err(ApiStatus::bad_request(
                        "the body of the request is no protobuf of the kind that it names",
                    ));
                }
                // Refused like any other format that a kind has not.
                Err(Unread::Kind) => {}
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
            lines: WatchLines::default(),
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
            places: Places::new(limits),
            ending: CancellationToken::new(),
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

    /// Hears of each change of the kinds that are served.
    pub(super) fn registrations(&self) -> tokio::sync::watch::Receiver<Arc<Registry>> {
        self.registry.subscribe()
    }

    /// Serves the built-in kinds and those of all stored definitions.
    pub(super) fn reload_definitions(&self) {
        let _reloading = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let definitions =
            self.store.list(&super::store::Collection::new("apiextensions.k8s.io", "customresourcedefinitions"), "");
        let custom = definitions.objects.iter().flat_map(|(_, stored)| super::crd::served(&stored.value)).collect();
        self.registry.send_replace(Arc::new(Registry::new(custom)));
        self.documents.forget();
        self.register_local();
    }

    /// Answers a request. Its body has been read.
    pub(super) async fn answer(
        self: &Arc<Self>,
        request: Request<Bytes>,
        user: Result<User, ApiStatus>,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        self.answer_reading(head, user, std::future::ready(Ok(body))).await
    }

    /// Answers a request. Its body is read when it is known who sends it, and that they may.
    pub(super) async fn answer_reading(
        self: &Arc<Self>,
        mut head: Parts,
        user: Result<User, ApiStatus>,
        body: impl Future<Output = Result<Bytes, ApiStatus>>,
    ) -> Response<Body> {
        let query = Query::parse(head.uri.query());
        let agent = head.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let layout = negotiate::layout(query.get("pretty"), agent);
        let audit = head.headers.get("audit-id").cloned().unwrap_or_else(|| {
            let mut random = self.audit_ids.lock().unwrap_or_else(PoisonError::into_inner);
            HeaderValue::from_str(&super::object::new_uid(&mut *random)).unwrap_or(HeaderValue::from_static(""))
        });
        // Another server that answers in our place writes the same one.
        head.headers.insert("audit-id", audit.clone());
        let mut found = Found::default();
        let answered = self.route(&head, &query, body, user, &mut found).await;
        let mut response = match answered {
            Ok(answer) => written(answer, found.encoding, layout),
            Err(status) => refused(&status, layout),
        };
        if let Some(request) = &found.served {
            let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            self.counts.count(request, content_type, response.status().as_u16());
        }
        if head.method == Method::HEAD {
            *response.body_mut() = Body::empty();
        }
        let headers = response.headers_mut();
        headers.insert("audit-id", audit);
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    async fn route(
        self: &Arc<Self>,
        head: &Parts,
        query: &Query,
        body: impl Future<Output = Result<Bytes, ApiStatus>>,
        user: Result<User, ApiStatus>,
        found: &mut Found,
    ) -> Result<Answer, ApiStatus> {
        let target = classify(&head.method, head.uri.path(), query)?;
        let lane = Lane::of(&target, &head.method);
        // On the heap: it is large, and would lie in each future around it.
        let answered = Box::pin(async {
            let user = self.impersonated(user?, &head.headers)?;
            access::authorize(&user, &target, head.uri.path())?;
            let place = self.places.enter(lane, &user)?;
            let answer = self.permitted(target, head, query, body, &user, found).await?;
            Ok(limits::held(lane, place, answer))
        });
        self.places.in_time(lane, query, answered).await
    }

    /// Answers a caller who is known, and has a place, what it may ask.
    async fn permitted(
        self: &Arc<Self>,
        target: Target,
        head: &Parts,
        query: &Query,
        body: impl Future<Output = Result<Bytes, ApiStatus>>,
        user: &User,
        found: &mut Found,
    ) -> Result<Answer, ApiStatus> {
        let (method, path, headers) = (&head.method, head.uri.path(), &head.headers);
        self.authorize(user, &Attributes::of_request(&target, method, path, query))?;
        let body = &body.await?;
        if let Some(serves) = self.foreign(&target) {
            return self.forward(&serves, head, body, user).await;
        }
        let request = match target {
            Target::Resource(request) => request,
            Target::Other(segments) => return self.other(method, &segments, query, headers).await,
        };
        let served = self.registry().find(&request.group, &request.version, &request.resource);
        let served = served.filter(|served| !served.resource.verbs.is_empty()).ok_or_else(ApiStatus::page_not_found)?;
        if request.namespace.is_some() && !served.is_namespaced() {
            return Err(ApiStatus::page_not_found());
        }
        found.served = Some(request.clone());
        let verb = request.verb.ok_or_else(ApiStatus::method_not_allowed)?;
        let accepted = negotiate::accept(headers, Offer::Objects)?;
        found.encoding = accepted.encoding;
        self.hooks.pass(verb, &request).await?;
        let call = Call { request: &request, served, query, headers, body, user, accepted };
        let mut answer = if only_reads(&call.served, verb) {
            self.read_durably(&call, verb).await?
        } else {
            self.write_durably(&call, verb).await?
        };
        if let Some(warning) = call.served.custom().and_then(|custom| custom.deprecation.clone()) {
            answer.warnings.insert(0, warning);
        }
        Ok(answer)
    }

    /// Answers a request that changes something, once nothing of it can be lost any more.
    async fn write_durably(self: &Arc<Self>, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        // A store that can't keep anything, for want of space perhaps, is not changed.
        self.store.durable(0).await.map_err(ApiStatus::internal)?;
        let answered = self.dispatch(call, verb).await;
        self.store.durable(self.store.revision()).await.map_err(ApiStatus::internal)?;
        answered
    }

    /// Answers a request that only reads. Nobody hears of a state that could still be lost; but when the store can't keep
    /// anything any more, reads go on with what there is.
    async fn read_durably(self: &Arc<Self>, call: &Call<'_>, verb: Verb) -> Result<Answer, ApiStatus> {
        let answered = self.dispatch(call, verb).await;
        let _ = self.store.durable(self.store.revision()).await;
        answered
    }

    /// Whose token it is.
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

    /// Whether a known caller may do something.
    pub(super) fn may(&self, user: &User, attributes: &Attributes) -> bool {
        match self.authorization {
            AuthorizationMode::AlwaysAllow => true,
            AuthorizationMode::Rbac => authorization::allows(&self.store, user, attributes),
        }
    }

    pub(super) fn authorize(&self, user: &User, attributes: &Attributes) -> Result<(), ApiStatus> {
        // What is open to anybody was let through before.
        if user.is_anonymous() || self.may(user, attributes) { Ok(()) } else { Err(attributes.forbidden(user)) }
    }

    /// The user that a caller wants to be, if it may.
    fn impersonated(&self, user: User, headers: &HeaderMap) -> Result<User, ApiStatus> {
        let Some(wanted) = access::impersonation(headers)? else { return Ok(user) };
        let asks = |resource: &str, name: &str| Attributes::impersonating(resource, name);
        let whom = std::iter::once(asks("users", &wanted.name));
        let groups = wanted.asked_groups().map(|group| asks("groups", group));
        for attributes in whom.chain(groups) {
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
        // An object's own URL creates it too.
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

/// Whether a request leaves everything as it is. Reviews are asked by creating them.
fn only_reads(served: &Served, verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::List | Verb::Watch) || super::reviews::is_review(served)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use rand::SeedableRng;
    use serde_json::json;

    use super::*;
    use crate::{first_content::first_content, persistence::Durable};

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";

    /// A server on a disk that was full when the first write came.
    fn on_a_full_disk() -> Arc<Server> {
        let (jobs, _) = std::sync::mpsc::channel();
        let (_, safe) = tokio::sync::watch::channel(Err("storage: no space left".to_owned()));
        let server = Server::new(
            Store::new(1, Vec::new(), Durable::File { jobs, safe }),
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
        let user = User::known("tester", [access::MASTERS.to_owned()]);
        let answer = server.answer(request.body(Bytes::from(body.to_string())).unwrap(), Ok(user)).await;
        let (head, body) = answer.into_parts();
        let bytes = axum::body::to_bytes(body, BODY_LIMIT).await.unwrap();
        (head.status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn on_a_full_disk_reads_go_on_and_nothing_is_changed() {
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
