//! The whole server in process, with a fake API server for its reviews, and its answers.

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use super::super::*;
use crate::{
    extension::{
        authentication::{
            config::{AuthConfig, Fixed, FrontProxy},
            headers::ProxyHeaders,
            tokens::TokenReviewer,
        },
        authorization::{Lifetimes, decide::OpenPaths},
        digest::Digester,
        reachability::Reachability,
        reviews::{Reviews, TOKEN_REVIEWS},
        testing::{Pki, TestView, Usage},
    },
    server::Health,
    settings::{AuditLog, SharedAuthority},
};
use controller_runtime::error::ApiError;
use kube_listener::RequestLimits;

pub(super) const VIEWS: &str = "/apis/views.machine.sapcloud.io/v1alpha1/namespaces/h/testviews";
pub(super) const NOW: &str = "2026-01-01T00:00:00Z";

/// `reader` may read views and machines in namespace `h`, `viewer` only views, and every authenticated user the documents. It knows
/// the token `alices`.
#[derive(Default)]
pub(super) struct Server {
    pub(super) down: Mutex<bool>,
    pub(super) asked: AtomicUsize,
}

#[async_trait]
impl Reviews for Server {
    async fn review(&self, path: &'static str, body: &Value) -> Result<Value, ApiError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if *self.down.lock().unwrap() {
            return Err(ApiError::Other("down".to_owned()));
        }
        let spec = &body["spec"];
        if path == TOKEN_REVIEWS {
            let known = spec["token"] == "alices";
            return Ok(json!({"status": {"authenticated": known, "user": {"username": "alice"}}}));
        }
        let known = spec["groups"].as_array().is_some_and(|groups| groups.contains(&json!("system:authenticated")));
        let resource = &spec["resourceAttributes"];
        let allowed = if resource.is_null() {
            let path = spec["nonResourceAttributes"]["path"].as_str().unwrap();
            known && ["/apis", "/openapi", "/version"].iter().any(|open| path.starts_with(open))
        } else {
            let here = resource["namespace"] == "h";
            match spec["user"].as_str().unwrap() {
                "reader" => here,
                "named" => here && resource["name"] == "a",
                "viewer" => here && resource["group"] == "views.machine.sapcloud.io",
                _ => false,
            }
        };
        Ok(json!({"status": {"allowed": allowed}}))
    }
}

pub(super) struct Rig {
    pub(super) extension: ExtensionServer,
    pub(super) server: Arc<Server>,
    pub(super) proxies: Pki,
    pub(super) metrics: Metrics,
    pub(super) log: Option<(tempfile::TempDir, crate::extension::audit::AuditWriter)>,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Limits::default()).open()
    }

    pub(super) fn with(limits: Limits) -> Self {
        let proxies = Pki::new("proxies");
        let front_proxy = FrontProxy {
            authorities: proxies.authorities(),
            allowed_names: vec!["front-proxy".to_owned()],
            headers: ProxyHeaders::default(),
        };
        let fixed = Fixed { clients: None, front_proxy: Some(front_proxy), shared: SharedAuthority::Refused };
        let config = Arc::new(ArcSwap::from_pointee(AuthConfig::fixed(fixed)));
        let server = Arc::new(Server::default());
        let reviews: Arc<dyn Reviews> = Arc::<Server>::clone(&server);
        let ttl = Duration::from_secs(10);
        let jitter: Arc<dyn Fn() -> f64 + Send + Sync> = Arc::new(|| 0.0);
        let metrics = Metrics::new(Arc::new(|| Duration::ZERO)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let log = AuditLog::File(folder.path().join("audit.log"));
        let (audit, writer) = Audit::open(&log, metrics.clone()).unwrap();
        let open = OpenPaths::parse(&["/healthz", "/livez", "/readyz"].map(str::to_owned)).unwrap();
        let extension = ExtensionServer::new(ExtensionParts {
            authentication: Authentication {
                config: Arc::clone(&config),
                tokens: TokenReviewer::new(
                    Arc::clone(&reviews),
                    Digester::new([1; 32]),
                    ttl,
                    Vec::new(),
                    Arc::clone(&jitter),
                ),
            },
            authorization: Authorization::new(
                reviews,
                Digester::new([2; 32]),
                Lifetimes { allowed: ttl, refused: ttl },
                open,
                jitter,
            ),
            source_rights: SourceRights::Checked,
            audit: Some(audit),
            checks: Checks { health: Health::default(), reachability: Reachability::default(), config },
            bodies: BodyReader::new(RequestLimits::default()),
            limits,
            metrics: metrics.clone(),
            clock: Arc::new(|| NOW.parse().unwrap()),
            entropy: Arc::new(|| 7),
        });
        Self { extension, server, proxies, metrics, log: Some((folder, writer)) }
    }

    pub(super) fn open(self) -> Self {
        assert!(self.extension.open(Registry::new(vec![TestView::served()]), Box::new(|| None)));
        self
    }

    pub(super) fn proxy(&self) -> Vec<CertificateDer<'static>> {
        vec![self.proxies.certify("front-proxy", &[], Usage::Client, 2030).0]
    }

    /// Asks as a user behind the front proxy; `anonymous` comes without a certificate.
    pub(super) async fn ask(&self, user: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Told {
        let mut request = Request::builder().method(method).uri(path);
        let known = user != "anonymous";
        if known {
            let (name, group) = user.split_once('/').unwrap_or((user, ""));
            request = request.header("x-remote-user", name);
            if !group.is_empty() {
                request = request.header("x-remote-group", group);
            }
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::from(body.to_owned())).unwrap();
        let chain = if known { self.proxy() } else { Vec::new() };
        request.extensions_mut().insert(Peer::new(SocketAddr::from(([10, 0, 0, 1], 1)), chain));
        let response = self.extension.answer(request).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Told { code: head.status.as_u16(), headers: head.headers, body }
    }

    pub(super) async fn get(&self, user: &str, path: &str) -> Told {
        self.ask(user, "GET", path, &[], "").await
    }
}

pub(super) struct Told {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Told {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}
