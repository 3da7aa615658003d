//! The extension API server: its steps of the [`pipeline`] of requests, metrics and the audit log.
//!
//! Source: spec/extension-apiserver §2.2, §4.4, §4.5.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};
use tracing::error;

use super::{
    audit::{Audit, Record},
    authentication::{self, Authentication, decide::AuthMethod, identity::Identity},
    authorization::{
        Authorization,
        attributes::{Attributes, ResourceAttributes},
        decide::{plain_path, source_refusal},
    },
    checks::Checks,
    documents::Documents,
    handler::Call,
    pages::Pages,
    registry::Registry,
    view::{SourceRight, View},
};
use crate::{server::FallbackHandler, settings::SourceRights};
use kube_listener::{
    BodyReader, Peer,
    pipeline::{self, Answered, ApiRequest, Exchange},
};
use kube_protocol::{
    answer::{Answer, AnswerBody, refused},
    health,
    negotiate::{self, Accepted, Layout, Offer},
    request::{Target, Verb},
    status::ApiStatus,
};
use kube_values::uuid;
use machine_api::names;
use mcm_metrics::{Listener, Metrics, OfView, Rejected, Rejection, TEXT_CONTENT_TYPE, ViewRequest};

/// Bodies above this many bytes are compressed for callers that accept gzip.
const COMPRESSED: u64 = 128 * 1024;

/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum time of a request, also if its caller asks for more.
    pub deadline: Duration,
    /// Maximum size of a body in bytes.
    pub body: usize,
    /// Maximum number of concurrent requests. Health checks and requests of administrators do not count.
    pub in_flight: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(60), body: 3 << 20, in_flight: 200 }
    }
}

/// The parts of a server.
pub struct ExtensionParts {
    /// Identifies the callers.
    pub authentication: Authentication,
    /// Checks the rights of the callers.
    pub authorization: Authorization,
    /// Whether callers also need rights on the objects that a view is computed from.
    pub source_rights: SourceRights,
    /// The audit log, if there is one.
    pub audit: Option<Audit>,
    /// The health checks.
    pub checks: Checks,
    /// Reads the bodies of requests.
    pub bodies: BodyReader,
    /// The limits of requests.
    pub limits: Limits,
    /// The metrics of the process, also for `/metrics`.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// 128 random bits per call, for ids.
    pub entropy: Arc<dyn Fn() -> u128 + Send + Sync>,
}

/// The extension API server.
pub struct ExtensionServer {
    parts: ExtensionParts,
    served: OnceLock<Served>,
    pages: Pages,
    in_flight: Semaphore,
}

/// Returns the reason why views can't be computed yet. `None` when they can be computed.
pub type Caches = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The views and their documents.
struct Served {
    registry: Registry,
    documents: Documents,
    caches: Caches,
}

/// A request to this server, with the results of the steps that it has passed.
struct ViewExchange<'a> {
    server: &'a ExtensionServer,
    record: Record,
    warnings: Vec<String>,
    permit: Option<SemaphorePermit<'a>>,
    view: Option<&'a Arc<dyn View>>,
}

#[async_trait]
impl FallbackHandler for ExtensionServer {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let began = Instant::now();
        let (head, body) = request.into_parts();
        let peer = head.extensions.get::<Peer>().cloned();
        let audit_id = audit_id(&head.headers).unwrap_or_else(|| uuid::random((self.parts.entropy)()));
        let takes_gzip = takes_gzip(&head.headers);
        let source = peer.as_ref().map(|peer| peer.address.ip().to_string()).unwrap_or_default();
        let record = Record::of(&audit_id, &head, source, (self.parts.clock)());
        let mut exchange = ViewExchange { server: self, record, warnings: Vec::new(), permit: None, view: None };
        let audit_id = HeaderValue::try_from(audit_id).unwrap_or(HeaderValue::from_static(""));
        let mut response = pipeline::answer(&mut exchange, head, body, audit_id).await;
        if takes_gzip {
            response = compressed(response).await;
        }
        let code = response.status().as_u16();
        exchange.note(code, began);
        let method = exchange.record.auth_method;
        if let Some(peer) = peer.as_ref().filter(|_| method == Some(AuthMethod::FrontProxy)) {
            peer.mark_as_front_proxy();
        }
        // An unknown client must not keep a connection on which it can try again.
        let is_unknown = method.is_none_or(|method| method == AuthMethod::Anonymous) || code == 401;
        if let Some(peer) = peer.filter(|_| is_unknown) {
            peer.close_connection();
        }
        response
    }
}

impl Exchange for ViewExchange<'_> {
    type User = Identity;

    fn longest_time(&self, _: &ApiRequest) -> Option<Duration> {
        Some(self.server.parts.limits.deadline)
    }

    async fn identify(&mut self, request: &mut ApiRequest) -> Result<Identity, ApiStatus> {
        let (parts, head) = (&self.server.parts, &mut request.head);
        self.warnings = authentication::warnings(&head.headers);
        let certificates = head.extensions.get::<Peer>().map(|peer| peer.certificates.clone()).unwrap_or_default();
        let caller = parts.authentication.identify(&certificates, &mut head.headers, (parts.clock)()).await?;
        (self.record.identity, self.record.auth_method) = (Some(caller.identity.clone()), Some(caller.auth_method));
        if let Target::Resource(request) = &request.target {
            self.record.request = Some(request.clone());
        }
        Ok(caller.identity)
    }

    fn take_permit(&mut self, who: &Identity, request: &ApiRequest) -> Result<(), ApiStatus> {
        let is_health = matches!(&request.target, Target::Other(segments) if health::is_endpoint(segments));
        if is_health || who.is_master() {
            return Ok(());
        }
        let permit = self.server.in_flight.try_acquire().map_err(|_| {
            let reason = Rejection::InFlightLimit;
            self.server.parts.metrics.server.rejected.inc(&Rejected { listener: Listener::Secure, reason });
            ApiStatus::new(429, "TooManyRequests", "Too many requests, please try again later.").retry_after(1)
        })?;
        self.permit = Some(permit);
        Ok(())
    }

    async fn authorize(&self, who: &Identity, request: &ApiRequest) -> Result<(), ApiStatus> {
        let what = match &request.target {
            Target::Other(segments) => {
                Attributes::of_path(plain_path(segments).ok_or_else(ApiStatus::page_not_found)?, &request.head.method)
            }
            Target::Resource(resource) => Attributes::of_resource(resource, &request.query),
        };
        self.server.parts.authorization.check(who, &what).await
    }

    async fn dispatch(&mut self, who: &Identity, whole: &ApiRequest, body: Body) -> Answered {
        let (server, headers, query) = (self.server, &whole.head.headers, &whole.query);
        let request = match &whole.target {
            Target::Resource(request) => request,
            Target::Other(segments) => return server.other(whole, segments),
        };
        let view = server.served()?.registry.find(&request.group, &request.version, &request.resource);
        let view = view.ok_or_else(ApiStatus::page_not_found)?;
        self.view = Some(view);
        let Accepted { encoding, shape } = negotiate::accept(headers, Offer::Objects)?;
        // Only reviews have bodies.
        let body = if request.verb == Some(Verb::Create) { server.body(whole, body).await? } else { Bytes::new() };
        let call = Call { view, request, query, headers, body: &body, who, shape, now: (server.parts.clock)() };
        let task = call.task()?;
        server.check_sources(who, view, &view.source_rights(task.question())).await?;
        Ok(Answer { encoding, ..call.carry_out(task, &server.pages).await? })
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn panicked(&self, request: &ApiRequest) {
        let (view, path) = (self.view(), request.head.uri.path());
        error!(
            operation = view,
            path, "a request for a view panicked; its caller gets a failure and the process goes on"
        );
        self.server.parts.metrics.extension.panics.inc(&OfView { view });
    }
}

impl ViewExchange<'_> {
    fn view(&self) -> &str {
        self.view.map_or("", |view| &view.resource().plural)
    }

    /// Counts the answered request, and writes it into the audit log.
    fn note(&self, code: u16, began: Instant) {
        let (view, parts) = (self.view(), &self.server.parts);
        let verb = self.record.request.as_ref().filter(|_| self.view.is_some()).and_then(|request| request.verb);
        let (verb, text) = (verb.map_or("", Verb::name), code.to_string());
        parts.metrics.extension.requests.inc(&ViewRequest { view, verb, code: &text });
        parts.metrics.extension.duration.observe(&OfView { view }, began.elapsed());
        if let Some(audit) = &parts.audit {
            audit.log(&self.record.event(code, (parts.clock)()));
        }
    }
}

impl ExtensionServer {
    /// A server of these parts. It answers health checks at once, and all other requests after [`Self::open`].
    pub fn new(parts: ExtensionParts) -> Self {
        let entropy = Arc::clone(&parts.entropy);
        Self {
            served: OnceLock::new(),
            pages: Pages::new(move || entropy()),
            in_flight: Semaphore::new(parts.limits.in_flight),
            parts,
        }
    }

    /// Serves these views from now on. Returns false if other views are served already.
    pub fn open(&self, registry: Registry, caches: Caches) -> bool {
        let documents = Documents::of(&registry);
        self.served.set(Served { registry, documents, caches }).is_ok()
    }

    /// The served views. Before they exist, clients get a 503, because a 404 would mean that the resource does not
    /// exist.
    fn served(&self) -> Result<&Served, ApiStatus> {
        self.served.get().ok_or_else(|| {
            ApiStatus::new(503, "ServiceUnavailable", "the views are not there yet; try again").retry_after(1)
        })
    }

    fn other(&self, request: &ApiRequest, segments: &[String]) -> Answered {
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        if !matches!(request.head.method, Method::GET | Method::HEAD) {
            return Err(ApiStatus::method_not_allowed());
        }
        match segments.as_slice() {
            [endpoint, rest @ ..] if health::ENDPOINTS.contains(endpoint) => {
                let caches = || match self.served.get() {
                    Some(served) => (served.caches)(),
                    None => Some("the views are not there yet".to_owned()),
                };
                health::answer(endpoint, rest, &self.parts.checks.of(endpoint, caches), &request.query)
            }
            ["metrics"] => {
                let text = self.parts.metrics.render().map_err(ApiStatus::internal)?;
                Ok(Answer::new(StatusCode::OK, AnswerBody::Bytes(TEXT_CONTENT_TYPE, Bytes::from(text))))
            }
            _ => {
                let (headers, now) = (&request.head.headers, (self.parts.clock)());
                let answer = self.served()?.documents.answer(&segments, &request.query, headers, now);
                answer.unwrap_or_else(|| Err(ApiStatus::page_not_found()))
            }
        }
    }

    /// Reads the body of a review.
    async fn body(&self, request: &ApiRequest, body: Body) -> Result<Bytes, ApiStatus> {
        if request.head.headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(ApiStatus::unsupported_media_type("compressed bodies are not read"));
        }
        self.parts.bodies.read(body, self.parts.limits.body, request.deadline).await
    }

    async fn check_sources(
        &self,
        who: &Identity,
        view: &Arc<dyn View>,
        rights: &[SourceRight],
    ) -> Result<(), ApiStatus> {
        if self.parts.source_rights == SourceRights::NotChecked {
            return Ok(());
        }
        for right in rights {
            let what = Attributes::Resource(ResourceAttributes {
                verb: right.verb.name(),
                group: names::GROUP.to_owned(),
                version: "v1alpha1".to_owned(),
                resource: right.resource.to_owned(),
                namespace: right.namespace.clone().unwrap_or_default(),
                name: right.name.clone().unwrap_or_default(),
                ..ResourceAttributes::default()
            });
            self.parts.authorization.check(who, &what).await.map_err(|status| {
                let kind = &view.resource().kind;
                let name = right.name.as_deref().unwrap_or_default();
                if status.code == 403 {
                    source_refusal(&view.resource().plural, &kind.group, name, &status)
                } else {
                    status
                }
            })?;
        }
        Ok(())
    }
}

/// The audit id that the caller has set, if it is usable.
fn audit_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("audit-id")?.to_str().ok()?;
    (!text.is_empty() && text.len() <= 64).then(|| text.to_owned())
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(|text| {
        let of_gzip = |clause: &str| {
            let mut parts = clause.split(';').map(str::trim);
            parts.next() == Some("gzip") && parts.all(|part| part != "q=0")
        };
        text.split(',').any(of_gzip)
    })
}

/// The same response, compressed if it is large. Compressing a small response costs more time than it saves.
async fn compressed(response: Response<Body>) -> Response<Body> {
    if response.body().size_hint().exact().is_none_or(|size| size <= COMPRESSED) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(plain) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return refused(&ApiStatus::internal("the answer could not be written"), Layout::Compact);
    };
    let bytes = plain.clone();
    let packed = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes).and_then(|()| encoder.finish())
    });
    match packed.await {
        Ok(Ok(packed)) => {
            head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
            Response::from_parts(head, Body::from(packed))
        }
        _ => Response::from_parts(head, Body::from(plain)),
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
