//! Requests to Compute Engine with one account: sends them with a token, and reads the answers and the pages of lists.

use std::{collections::HashSet, time::Duration};

use cloud_client::{
    Answer, Bytes, Call, Client, Failure, HttpOptions, HttpTransport, Limits, Repeat, Token, Tokens,
    http::{Method, Request, header},
};
use machine_driver::{Code, OpContext, Status, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    errors,
    login::Login,
    names::is_name,
    options::{Api, GcpOptions},
    resources::{AggregatedList, Instance, InstanceList, Operation, Warning},
    token::TokenSource,
    zone::Zone,
};

/// The most pages of a list. With more pages, the service probably repeats itself.
const MOST_PAGES: usize = 1000;
/// The number of instances on a page. GCE allows no more.
const PAGE: usize = 500;
/// The fields of a listed instance that the driver reads.
const LISTED: &str = "items(name,status,creationTimestamp,tags/items),nextPageToken,warning";
/// The warning of a list that may lack instances.
const UNREACHABLE: &str = "UNREACHABLE";
/// GCE answers a wait for an operation after two minutes at the latest.
const LONGEST_WAIT: Duration = Duration::from_secs(130);

/// What a search does if zones of the project do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilentZones {
    /// It fails, because an instance may be there.
    Fail,
    /// It goes on without them.
    Pass,
}

/// Compute Engine, for all accounts.
pub struct Compute {
    client: Client,
    pub options: GcpOptions,
    tokens: Tokens,
}

/// Compute Engine for one account, during one operation.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    compute: &'a Compute,
    pub cx: &'a OpContext,
    pub login: &'a Login,
}

/// A request.
#[derive(Clone, Copy)]
struct Operated<'a> {
    /// The name of the request in metrics.
    service: &'static str,
    /// The name of the request in messages.
    what: &'static str,
    method: &'a Method,
    /// The path below the version of the API, with the query.
    path: &'a str,
    body: Option<&'a Value>,
    repeat: Repeat,
    /// How long one try may take. `None` for the usual time.
    limit: Option<Duration>,
}

impl<'a> Operated<'a> {
    const fn get(service: &'static str, what: &'static str, path: &'a str) -> Self {
        Self { service, what, method: &Method::GET, path, body: None, repeat: Repeat::Safe, limit: None }
    }
}

impl Compute {
    /// Compute Engine over the network.
    pub fn new(options: GcpOptions) -> Self {
        Self::through(Client::new(HttpTransport::new(HttpOptions::default()), Limits::default()), options)
    }

    /// Compute Engine over this client.
    pub fn through(client: Client, options: GcpOptions) -> Self {
        Self { client, options, tokens: Tokens::default() }
    }

    /// A session.
    pub const fn session<'a>(&'a self, cx: &'a OpContext, login: &'a Login) -> Session<'a> {
        Session { compute: self, cx, login }
    }
}

impl Session<'_> {
    async fn token(&self) -> Result<Token, Status> {
        let Compute { client, options, tokens } = self.compute;
        let source = TokenSource { client, cx: self.cx, options, login: self.login };
        let now = Timestamp::now();
        tokens.token(self.login.account, now, Box::pin(source.fetch(now))).await
    }

    async fn send<T: DeserializeOwned + Send>(&self, operated: Operated<'_>) -> Result<T, Failure> {
        let token = self.token().await?;
        match self.send_with(operated, &token).await {
            // A token may be revoked before it expires. GCE does nothing for a request with it, so the request may be repeated.
            Err(failure) if failure.status.code == Code::Unauthenticated => {
                self.compute.tokens.forget(self.login.account, &token).await;
                let renewed = self.token().await?;
                if renewed == token { Err(failure) } else { self.send_with(operated, &renewed).await }
            }
            outcome => outcome,
        }
    }

    async fn send_with<T: DeserializeOwned + Send>(&self, operated: Operated<'_>, token: &Token) -> Result<T, Failure> {
        let Operated { service, what, method, path, body, repeat, limit } = operated;
        let url = self.compute.options.url(Api::Compute, &format!("/compute/v1{path}"))?;
        let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let build = || {
            let mut request = Request::builder()
                .method(method)
                .uri(url.clone())
                .header(header::AUTHORIZATION, format!("Bearer {}", token.value.reveal()));
            if body.is_some() {
                request = request.header(header::CONTENT_TYPE, "application/json");
            } else if method == Method::POST {
                // The HTTP client writes no length for an empty body, and Google refuses a POST without one.
                request = request.header(header::CONTENT_LENGTH, 0);
            }
            request.body(bytes.clone()).map_err(|_| {
                Status::new(Code::Unauthenticated, "the token contains characters that no request can carry")
            })
        };
        let read = |answer: &Answer| match errors::failure(what, answer) {
            Some(failure) => Err(token.redacted(failure)),
            None => serde_json::from_slice(&answer.body)
                .map_err(|_| Failure::permanent(Code::Internal, format!("{what}: the answer can't be read"))),
        };
        let call = Call { service, what, account: self.login.account, repeat };
        match limit {
            Some(limit) => self.compute.client.call_within(self.cx, call, limit, build, read).await,
            None => self.compute.client.call(self.cx, call, build, read).await,
        }
    }

    /// The instance of this name. `None` if there is none.
    pub async fn instance(&self, zone: &Zone, name: &str) -> Result<Option<Instance>, Failure> {
        let path = format!("{}/instances/{name}", zone.path());
        let answer = self.send(Operated::get("instance_get", "instances.get", &path)).await;
        found(answer, &format!("instances/{name}"))
    }

    /// The instance of this name. `None` if there is none, also because GCE does not know the zone. The zone comes from a class, not from an id of
    /// an instance.
    pub async fn instance_if_zone_exists(&self, zone: &Zone, name: &str) -> Result<Option<Instance>, Failure> {
        match self.instance(zone, name).await {
            Err(failure) if errors::is_unknown_zone(&failure) => Ok(None),
            outcome => outcome,
        }
    }

    /// The instances of this name in all zones of a project. If a page is missing, the whole list is a failure.
    pub async fn named(
        &self,
        project: &str,
        name: &str,
        silent: SilentZones,
    ) -> Result<Vec<(Zone, Instance)>, Failure> {
        const WHAT: &str = "instances.aggregatedList";
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let path = format!("/projects/{project}/aggregated/instances?{}", named_query(name, next.as_deref()));
            let page: AggregatedList =
                self.send(Operated::get("instance_search", WHAT, &path)).await.map_err(of_list)?;
            if silent == SilentZones::Fail {
                has_all_zones(WHAT, &page)?;
            }
            for (scope, listed) in page.items {
                let Some(zone) = scope.strip_prefix("zones/").and_then(|name| Zone::of(project, name)) else {
                    continue;
                };
                let of_name = listed.instances.into_iter().filter(|instance| instance.name == name);
                all.extend(of_name.map(|instance| (zone.clone(), instance)));
            }
            match page.next_page_token.filter(|token| !token.is_empty()) {
                None => return Ok(all),
                Some(token) if next.as_ref() == Some(&token) => break,
                token => next = token,
            }
        }
        Err(Failure::permanent(Code::Internal, format!("{WHAT}: the pages of the list do not end")))
    }

    /// All instances of a zone. If a page is missing, the whole list is a failure.
    pub async fn instances(&self, zone: &Zone) -> Result<Vec<Instance>, Failure> {
        let mut all = Vec::new();
        let mut known = HashSet::new();
        let mut next: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let path = format!("{}/instances?{}", zone.path(), page_query(next.as_deref()));
            let page: InstanceList =
                self.send(Operated::get("instance_list", "instances.list", &path)).await.map_err(of_list)?;
            is_complete("instances.list", page.warning.as_ref())?;
            let (before, shown) = (known.len(), page.items.len());
            known.extend(page.items.iter().map(|instance| instance.name.clone()));
            let repeats = shown > 0 && known.len() == before;
            all.extend(page.items);
            match page.next_page_token.filter(|token| !token.is_empty()) {
                None => return Ok(all),
                // The driver would request the same pages for ever, or the rest of the list would be missing.
                Some(token) if repeats || next.as_ref() == Some(&token) => break,
                token => next = token,
            }
        }
        Err(Failure::permanent(Code::Internal, "instances.list: the pages of the list do not end"))
    }

    /// Begins the creation of an instance. A second request with the same id does nothing, and is answered with the operation of the first.
    pub async fn insert(&self, zone: &Zone, request_id: &str, body: &Value) -> Result<Operation, Failure> {
        let path = format!("{}/instances?requestId={request_id}", zone.path());
        self.send(Operated {
            method: &Method::POST,
            body: Some(body),
            ..Operated::get("instance_create", "instances.insert", &path)
        })
        .await
        .map_err(|failure| errors::of_resource(failure, "instances"))
        .and_then(with_name)
    }

    /// Begins the deletion of an instance. `None` if there is no such instance.
    pub async fn delete(&self, zone: &Zone, name: &str) -> Result<Option<Operation>, Failure> {
        let path = format!("{}/instances/{name}", zone.path());
        let delete =
            Operated { method: &Method::DELETE, ..Operated::get("instance_delete", "instances.delete", &path) };
        found(self.send(delete).await, &format!("instances/{name}"))?.map(with_name).transpose()
    }

    /// Begins to lift the protection of an instance against deletion.
    pub async fn lift_protection(&self, zone: &Zone, name: &str) -> Result<Operation, Failure> {
        let path = format!("{}/instances/{name}/setDeletionProtection?deletionProtection=false", zone.path());
        let lift = Operated {
            method: &Method::POST,
            ..Operated::get("instance_unprotect", "instances.setDeletionProtection", &path)
        };
        let answer = self.send(lift).await;
        answer.map_err(|failure| errors::of_resource(failure, &format!("instances/{name}"))).and_then(with_name)
    }

    /// Waits until an operation has ended, at most two minutes. GCE may answer before that time, and before the end. `None` if GCE does not know
    /// the operation any more: it forgets them after two weeks.
    pub async fn wait(&self, zone: &Zone, name: &str) -> Result<Option<Operation>, Failure> {
        let path = format!("{}/operations/{name}/wait", zone.path());
        // A wait changes nothing.
        let wait = Operated {
            method: &Method::POST,
            limit: Some(LONGEST_WAIT),
            ..Operated::get("operations_get", "zoneOperations.wait", &path)
        };
        found(self.send(wait).await, &format!("operations/{name}"))
    }

    /// The present state of an operation. `None` if GCE does not know it any more.
    pub async fn operation(&self, zone: &Zone, name: &str) -> Result<Option<Operation>, Failure> {
        let path = format!("{}/operations/{name}", zone.path());
        let answer = self.send(Operated::get("operations_get", "zoneOperations.get", &path)).await;
        found(answer, &format!("operations/{name}"))
    }

    /// A resource that a class names. `resource` is its path below the project. `None` if there is none.
    pub async fn resource(&self, project: &str, resource: &str) -> Result<Option<Value>, Failure> {
        let path = format!("/projects/{project}/{resource}");
        found(self.send(Operated::get("resource_get", "get", &path)).await, resource)
    }
}

/// The operation, if its name can be a part of a URL.
fn with_name(operation: Operation) -> Result<Operation, Failure> {
    if is_name(&operation.name) {
        return Ok(operation);
    }
    Err(Failure::permanent(Code::Internal, format!("GCE answered with an operation named {:?}", operation.name)))
}

/// Checks that a list lacks no zone.
fn has_all_zones(what: &str, page: &AggregatedList) -> Result<(), Failure> {
    is_complete(what, page.warning.as_ref())?;
    page.items.values().try_for_each(|listed| is_complete(what, listed.warning.as_ref()))?;
    let Some(missing) = page.unreachables.first() else { return Ok(()) };
    let message = format!("{what}: the list may lack instances: {missing} does not answer");
    Err(Failure::permanent(Code::Unavailable, message))
}

/// Checks that a list lacks no instances.
fn is_complete(what: &str, warning: Option<&Warning>) -> Result<(), Failure> {
    let Some(warning) = warning.filter(|warning| warning.code == UNREACHABLE) else { return Ok(()) };
    let message = format!("{what}: the list may lack instances: {}", warning.message);
    Err(Failure::permanent(Code::Unavailable, message))
}

/// The query of a search for a name.
fn named_query(name: &str, token: Option<&str>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("filter", &format!("name = {name}"));
    if let Some(token) = token {
        query.append_pair("pageToken", token);
    }
    query.finish()
}

/// The query of a list: the first page, or the page with this token.
fn page_query(token: Option<&str>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("maxResults", &PAGE.to_string()).append_pair("fields", LISTED);
    if let Some(token) = token {
        query.append_pair("pageToken", token);
    }
    query.finish()
}

/// The answer to a request for a resource. `None` if the answer proves that there is no such resource.
fn found<T>(answer: Result<T, Failure>, resource: &str) -> Result<Option<T>, Failure> {
    match answer.map_err(|failure| errors::of_resource(failure, resource)) {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.status.code == Code::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The failure of a list. A missing list proves nothing about instances, and callers take `NotFound` for the end of a machine's instance.
fn of_list(failure: Failure) -> Failure {
    errors::of_resource(failure, "instances")
}
