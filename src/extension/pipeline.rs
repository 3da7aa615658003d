//! The extension API server: one request from head to answer.
//!
//! In order: audit id, panics, deadline, what is asked, who asks, how many ask at a time, what they may, the answer, and the
//! line in the audit log. Source: spec/extension-apiserver §2.2, §4.4, §4.5.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
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
    checks::{Checks, ENDPOINTS},
    documents::Documents,
    handler::Call,
    pages::Pages,
    registry::Registry,
    view::{SourceRight, View},
};
use crate::{server::FallbackHandler, settings::SourceRights};
use kube_listener::{BodyReader, Peer, PeerCertificates};
use kube_protocol::{
    answer::{Answer, AnswerBody, refused, written},
    health,
    negotiate::{self, Accepted, Encoding, Layout, Offer},
    request::{Query, ResourceRequest, Target, Verb, check_timeout, classify},
    status::{ApiStatus, Form},
};
use machine_api::names;
use mcm_metrics::{Listener, Metrics, OfView, Rejected, Rejection, TEXT_CONTENT_TYPE, ViewRequest};

/// Bodies above this many bytes are compressed for callers that read that.
const COMPRESSED: u64 = 128 * 1024;
/// What a caller hears when a view panics.
const PANIC: &str = "This request caused apiserver to panic. Look in the logs for details.";

/// Limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// No request takes longer, whatever its caller says.
    pub deadline: Duration,
    /// Bytes of a body.
    pub body: usize,
    /// Requests at a time; health and administrators are not counted.
    pub in_flight: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(60), body: 3 << 20, in_flight: 200 }
    }
}

/// What a server is made of.
pub struct PipelineParts {
    /// Who asks.
    pub authentication: Authentication,
    /// What they may.
    pub authorization: Authorization,
    /// Whether that includes the sources.
    pub source_rights: SourceRights,
    /// Where requests are written down, if anywhere.
    pub audit: Option<Audit>,
    /// How the process is.
    pub checks: Checks,
    /// Reads bodies.
    pub bodies: BodyReader,
    /// How much is allowed.
    pub limits: Limits,
    /// What `/metrics` tells.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// 128 random bits per call, for ids.
    pub entropy: Arc<dyn Fn() -> u128 + Send + Sync>,
}

/// The extension API server.
pub struct Pipeline {
    parts: PipelineParts,
    served: OnceLock<Served>,
    pages: Pages,
    in_flight: Semaphore,
}

/// Says why views can't be computed yet, if they can't.
pub type Caches = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// The views, and what is told of them.
struct Served {
    registry: Registry,
    documents: Documents,
    caches: Caches,
}

/// What is learnt of a request on its way.
struct Learnt {
    record: Record,
    encoding: Encoding,
    warnings: Vec<String>,
    view: Option<Arc<dyn View>>,
}

impl Learnt {
    fn view(&self) -> &str {
        self.view.as_ref().map_or("", |view| &view.resource().plural)
    }

    fn is_from_somebody(&self) -> bool {
        self.record.auth_method.is_some_and(|way| way != AuthMethod::Anonymous)
    }
}

#[async_trait]
impl FallbackHandler for Pipeline {
    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let began = Instant::now();
        let (mut head, body) = request.into_parts();
        let peer = head.extensions.get::<Peer>().cloned();
        let audit_id = audit_id(&head.headers).unwrap_or_else(|| uuid((self.parts.entropy)()));
        let query = Query::parse(head.uri.query());
        let agent = head.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let layout = negotiate::layout(query.get("pretty"), agent);
        let takes_gzip = takes_gzip(&head.headers);
        let source = peer.as_ref().map(|peer| peer.address.ip().to_string()).unwrap_or_default();
        let mut learnt = Learnt {
            record: Record::of(&audit_id, &head, source, (self.parts.clock)()),
            encoding: Encoding::Json,
            warnings: Vec::new(),
            view: None,
        };
        let answered = self.guarded(&mut head, body, peer.as_ref(), &query, &mut learnt).await;
        let mut response = respond(answered, &learnt, layout);
        if head.method == Method::HEAD {
            *response.body_mut() = Body::empty();
        } else if takes_gzip {
            response = compressed(response).await;
        }
        let headers = response.headers_mut();
        if let Ok(audit_id) = HeaderValue::from_str(&audit_id) {
            headers.insert("audit-id", audit_id);
        }
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        let code = response.status().as_u16();
        self.note(&learnt, code, began);
        if let Some(peer) = peer.as_ref().filter(|_| learnt.record.auth_method == Some(AuthMethod::FrontProxy)) {
            peer.mark_as_front_proxy();
        }
        // Whoever is not known shall not hold a connection to try again on, nor one who did not send what was announced.
        if let Some(peer) = peer.filter(|_| !learnt.is_from_somebody() || matches!(code, 401 | 408 | 413)) {
            peer.close_connection();
        }
        response
    }
}

impl Pipeline {
    /// Puts a server together. It answers for its health at once, and for everything else once it is opened.
    pub fn new(parts: PipelineParts) -> Self {
        let entropy = Arc::clone(&parts.entropy);
        Self {
            served: OnceLock::new(),
            pages: Pages::new(move || entropy()),
            in_flight: Semaphore::new(parts.limits.in_flight),
            parts,
        }
    }

    /// Serves these views from now on; false if others are served already.
    pub fn open(&self, registry: Registry, caches: Caches) -> bool {
        let documents = Documents::of(&registry);
        self.served.set(Served { registry, documents, caches }).is_ok()
    }

    /// A client must not take an unfinished start for "not found".
    fn served(&self) -> Result<&Served, ApiStatus> {
        self.served.get().ok_or_else(|| {
            ApiStatus::new(503, "ServiceUnavailable", "the views are not there yet; try again").retry_after(1)
        })
    }

    /// Within its deadline, and without harm to others if it panics.
    async fn guarded(
        &self,
        head: &mut Parts,
        body: Body,
        peer: Option<&Peer>,
        query: &Query,
        learnt: &mut Learnt,
    ) -> Result<Answer, ApiStatus> {
        let limit = self.parts.limits.deadline;
        let limit = check_timeout(query)?.map_or(limit, |asked| asked.min(limit));
        let deadline = Instant::now() + limit;
        let handled = AssertUnwindSafe(self.handle(head, body, peer, query, deadline, learnt)).catch_unwind();
        match timeout(limit, handled).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_)) => {
                let view = learnt.view().to_owned();
                error!(
                    path = learnt.record.path,
                    view, "a view panicked; its caller gets a failure and the process goes on"
                );
                self.parts.metrics.extension.panics.inc(&OfView { view: &view });
                Err(ApiStatus { form: Form::Text, ..ApiStatus::new(500, "InternalError", PANIC) })
            }
            Err(_) => {
                let message = "Timeout: request did not complete within the allotted timeout";
                Err(ApiStatus::new(504, "Timeout", message))
            }
        }
    }

    async fn handle(
        &self,
        head: &mut Parts,
        body: Body,
        peer: Option<&Peer>,
        query: &Query,
        deadline: Instant,
        learnt: &mut Learnt,
    ) -> Result<Answer, ApiStatus> {
        let target = classify(&head.method, head.uri.path(), query)?;
        learnt.warnings = authentication::warnings(&head.headers);
        let nothing_shown = PeerCertificates::default();
        let chain = peer.map_or(&nothing_shown, |peer| &peer.certificates);
        let now = (self.parts.clock)();
        let caller = self.parts.authentication.identify(chain, &mut head.headers, now).await?;
        let who = caller.identity;
        (learnt.record.identity, learnt.record.auth_method) = (Some(who.clone()), Some(caller.auth_method));
        match target {
            Target::Other(segments) => {
                let path = plain_path(&segments).ok_or_else(ApiStatus::page_not_found)?;
                let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
                let is_health = segments.first().is_some_and(|first| ENDPOINTS.contains(first));
                let _place = if is_health { None } else { self.place(&who)? };
                self.parts.authorization.check(&who, &Attributes::of_path(path, &head.method)).await?;
                self.other(&head.method, &segments, query, &head.headers)
            }
            Target::Resource(request) => {
                learnt.record.request = Some(request.clone());
                let _place = self.place(&who)?;
                self.parts.authorization.check(&who, &Attributes::of_resource(&request, query)).await?;
                let view = self.served()?.registry.find(&request.group, &request.version, &request.resource);
                let view = view.ok_or_else(ApiStatus::page_not_found)?;
                learnt.view = Some(Arc::clone(view));
                let Accepted { encoding, shape } = negotiate::accept(&head.headers, Offer::Objects)?;
                learnt.encoding = encoding;
                let body = self.body(&request, &head.headers, body, deadline).await?;
                let call =
                    Call { view, request: &request, query, headers: &head.headers, body: &body, who: &who, shape, now };
                let task = call.task()?;
                self.check_sources(&who, view, &view.source_rights(task.question())).await?;
                call.carry_out(task, &self.pages).await
            }
        }
    }

    /// A place among those who are answered at the same time.
    fn place(&self, who: &Identity) -> Result<Option<tokio::sync::SemaphorePermit<'_>>, ApiStatus> {
        if who.is_master() {
            return Ok(None);
        }
        self.in_flight.try_acquire().map(Some).map_err(|_| {
            let reason = Rejection::InFlightLimit;
            self.parts.metrics.server.rejected.inc(&Rejected { listener: Listener::Secure, reason });
            ApiStatus::new(429, "TooManyRequests", "Too many requests, please try again later.").retry_after(1)
        })
    }

    fn other(
        &self,
        method: &Method,
        segments: &[&str],
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Answer, ApiStatus> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiStatus::method_not_allowed());
        }
        match segments {
            [endpoint, rest @ ..] if ENDPOINTS.contains(endpoint) => {
                let caches = || match self.served.get() {
                    Some(served) => (served.caches)(),
                    None => Some("the views are not there yet".to_owned()),
                };
                health::answer(endpoint, rest, &self.parts.checks.of(endpoint, caches), query)
            }
            ["metrics"] => {
                let text = self.parts.metrics.render().map_err(ApiStatus::internal)?;
                let mut answer = Answer::text(StatusCode::OK, String::new());
                answer.body = AnswerBody::Bytes(TEXT_CONTENT_TYPE, Bytes::from(text));
                Ok(answer)
            }
            _ => {
                let now = (self.parts.clock)();
                let documents = &self.served()?.documents;
                documents.answer(segments, query, headers, now).unwrap_or_else(|| Err(ApiStatus::page_not_found()))
            }
        }
    }

    /// The body of a review. Nothing else is read: what is not asked for has no body.
    async fn body(
        &self,
        request: &ResourceRequest,
        headers: &HeaderMap,
        body: Body,
        deadline: Instant,
    ) -> Result<Bytes, ApiStatus> {
        if request.verb != Some(Verb::Create) {
            return Ok(Bytes::new());
        }
        if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(ApiStatus::unsupported_media_type("compressed bodies are not read"));
        }
        self.parts.bodies.read(body, self.parts.limits.body, deadline).await
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

    fn note(&self, learnt: &Learnt, code: u16, began: Instant) {
        let view = learnt.view();
        let verb = learnt.record.request.as_ref().filter(|_| learnt.view.is_some()).and_then(|request| request.verb);
        let (verb, text) = (verb.map_or("", Verb::name), code.to_string());
        let extension = &self.parts.metrics.extension;
        extension.requests.inc(&ViewRequest { view, verb, code: &text });
        extension.duration.observe(&OfView { view }, began.elapsed());
        if let Some(audit) = &self.parts.audit {
            audit.log(&learnt.record.event(code, (self.parts.clock)()));
        }
    }
}

fn respond(answered: Result<Answer, ApiStatus>, learnt: &Learnt, layout: Layout) -> Response<Body> {
    match answered {
        Ok(mut answer) => {
            answer.warnings.splice(0..0, learnt.warnings.iter().cloned());
            written(answer, learnt.encoding, layout)
        }
        Err(status) => refused(&status.warned(&learnt.warnings), layout),
    }
}

/// The id that a caller gave its request, if it can be one.
fn audit_id(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("audit-id")?.to_str().ok()?;
    (!text.is_empty() && text.len() <= 64).then(|| text.to_owned())
}

/// Random bits as a UUID of version 4.
fn uuid(bits: u128) -> String {
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | 4 << 76 | 2 << 62;
    let text = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
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

/// The same response, compressed if it is large. What is small costs more time than it saves.
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
#[path = "pipeline_tests.rs"]
mod tests;
