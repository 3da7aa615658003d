//! Requests to the services of one region with one login: logs in, sends requests and reads answers and the pages of lists.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use cloud_client::{
    Answer, Bytes, Call, Client, CredentialsKey, Failure, FailureKind, HttpTransport, Limits, Repeat,
    http::{Method, Request, header},
};
use machine_driver::{Code, Instant, OpContext, Status};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    errors,
    keystone::{Service, Token},
    login::Login,
    lookup::NextPage,
};

/// The maximum number of pages of a list. With more pages, the service probably repeats itself.
const MAX_PAGES: usize = 1000;
/// The maximum number of tokens, and of clients, in the caches.
const MAX_ENTRIES: usize = 256;

/// How often a list is read from its first page. Reading fails if the last object of a page is deleted before the next page is requested.
const MAX_LIST_ATTEMPTS: u32 = 10;
/// The pause before a list is read for the second time. Later pauses are longer.
const PAUSE: Duration = Duration::from_millis(300);
/// The time after which a refused login is tried again. Clouds lock accounts after many refused logins.
const RETRY_LOGIN_AFTER: Duration = Duration::from_secs(30);

/// Makes a client with the TLS settings of a login.
type MakeClient = dyn Fn(&Login) -> Client + Send + Sync;
/// One call logs in at a time. Other calls of the account wait for the result.
type Slot = Arc<tokio::sync::Mutex<LoginState>>;

/// The result of the last login of an account.
#[derive(Default)]
enum LoginState {
    #[default]
    NotYet,
    LoggedIn(Arc<Token>),
    Refused(Failure, Instant),
}

/// All clouds, regions and accounts.
pub struct Clouds {
    make_client: Box<MakeClient>,
    clients: Mutex<HashMap<CredentialsKey, Client>>,
    tokens: Mutex<HashMap<CredentialsKey, Slot>>,
}

/// One region of a cloud for one account, during one operation.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    clouds: &'a Clouds,
    pub cx: &'a OpContext,
    pub login: &'a Login,
    pub region: &'a str,
}

/// A request.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    /// The service that gets the request.
    pub service: Service,
    /// The purpose of the request, for messages.
    pub what: &'a str,
    /// The HTTP method.
    pub method: &'a Method,
    /// The path below the URL of the service, with the query.
    pub path: &'a str,
    /// The body.
    pub body: Option<&'a Value>,
    /// The header `If-Match`: the revision of the object that the request may change.
    pub if_match: Option<&'a str>,
    /// Whether the request may be sent twice.
    pub repeat: Repeat,
}

impl<'a> Operation<'a> {
    /// A read request.
    pub const fn get(service: Service, what: &'a str, path: &'a str) -> Self {
        Self { service, what, method: &Method::GET, path, body: None, if_match: None, repeat: Repeat::Safe }
    }
}

impl Clouds {
    /// Clouds over the network.
    pub fn new() -> Self {
        Self::with_clients(Box::new(|login: &Login| {
            Client::new(HttpTransport::new(login.tls.clone()), Limits::default())
        }))
    }

    /// Clouds over this client.
    pub fn through(client: Client) -> Self {
        Self::with_clients(Box::new(move |_: &Login| client.clone()))
    }

    fn with_clients(make_client: Box<MakeClient>) -> Self {
        Self { make_client, clients: Mutex::default(), tokens: Mutex::default() }
    }

    /// A session.
    pub const fn session<'a>(&'a self, cx: &'a OpContext, login: &'a Login, region: &'a str) -> Session<'a> {
        Session { clouds: self, cx, login, region }
    }

    fn client(&self, login: &Login) -> Client {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        cached(&mut clients, login.tls_key, || (self.make_client)(login))
    }

    fn slot(&self, account: CredentialsKey) -> Slot {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        cached(&mut tokens, account, Slot::default)
    }
}

fn cached<T: Clone>(all: &mut HashMap<CredentialsKey, T>, key: CredentialsKey, make: impl FnOnce() -> T) -> T {
    if all.len() >= MAX_ENTRIES && !all.contains_key(&key) {
        all.clear();
    }
    all.entry(key).or_insert_with(make).clone()
}

impl Session<'_> {
    /// A valid token. Logs in if there is none, or only the token that a service has refused.
    async fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let slot = self.clouds.slot(self.login.account);
        let Ok(mut state) = tokio::time::timeout(self.cx.left(), slot.lock()).await else {
            let message = "logging in: another call of the account waits for an answer of Keystone, too";
            return Err(Failure::permanent(Code::DeadlineExceeded, message));
        };
        let now = Instant::now();
        match &*state {
            LoginState::LoggedIn(token)
                if token.is_good(now) && refused.is_none_or(|refused| !Arc::ptr_eq(refused, token)) =>
            {
                return Ok(Arc::clone(token));
            }
            LoginState::Refused(failure, at) if now < *at + RETRY_LOGIN_AFTER => return Err(failure.clone()),
            LoginState::NotYet | LoginState::LoggedIn(_) | LoginState::Refused(..) => {}
        }
        match self.log_in().await {
            Ok(token) => {
                let token = Arc::new(token);
                *state = LoginState::LoggedIn(Arc::clone(&token));
                Ok(token)
            }
            Err(failure) => {
                if failure.status.code == Code::Unauthenticated {
                    *state = LoginState::Refused(failure.clone(), now);
                }
                Err(failure)
            }
        }
    }

    /// A valid token. Logs in again if an older token's catalogue lacks the service.
    async fn token_for(&self, service: Service) -> Result<Arc<Token>, Failure> {
        let token = self.token(None).await?;
        let is_outdated = token.is_worth_renewing(service, self.region, Instant::now());
        if is_outdated { self.token(Some(&token)).await.or(Ok(token)) } else { Ok(token) }
    }

    async fn log_in(&self) -> Result<Token, Failure> {
        let body = Bytes::from(self.login.body().to_string());
        let url = format!("{}/auth/tokens", self.login.url);
        let build = || {
            let request = Request::post(&url).header(header::CONTENT_TYPE, "application/json").body(body.clone());
            request.map_err(|_| Status::new(Code::InvalidArgument, "data[authURL]: Invalid value: is no URL"))
        };
        let what = "logging in";
        // Logging in twice does no harm.
        let call = Call { service: Service::Identity.name(), what, account: self.login.account, repeat: Repeat::Safe };
        let read = |answer: &Answer| match errors::failure(Service::Identity, what, answer) {
            Some(failure) => Err(failure),
            None => Token::read(answer, Instant::now()),
        };
        self.clouds.client(self.login).call(self.cx, call, build, read).await
    }

    /// Sends a request. Logs in again once if the service refuses the token.
    ///
    /// # Errors
    /// The errors of the service.
    pub async fn send(&self, operation: Operation<'_>) -> Result<Bytes, Failure> {
        let token = self.token_for(operation.service).await?;
        match self.send_with(operation, &token).await {
            Err(failure) if failure.status.code == Code::Unauthenticated => {
                let token = self.token(Some(&token)).await?;
                self.send_with(operation, &token).await
            }
            outcome => outcome,
        }
    }

    /// Checks that the catalogue has Nova in this region.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has not.
    pub async fn find_nova(&self) -> Result<(), Failure> {
        self.token_for(Service::Compute).await?.url(Service::Compute, self.region)?;
        Ok(())
    }

    /// The id of the login's project. `None` for a login without a project.
    pub async fn project(&self) -> Result<Option<String>, Failure> {
        Ok(self.token(None).await?.project.clone())
    }

    /// Whether a failure of a service says that the login can't use the service at all: the catalogue lacks it, or the login has no right there.
    /// Access rules of an application credential show as a refused token. A refused login is no such failure.
    pub async fn is_kept_out(&self, failure: &Failure) -> bool {
        matches!(failure.status.code, Code::PermissionDenied | Code::FailedPrecondition | Code::Unauthenticated)
            && self.token(None).await.is_ok()
    }

    async fn send_with(&self, operation: Operation<'_>, token: &Token) -> Result<Bytes, Failure> {
        let Operation { service, what, method, path, body, if_match, repeat } = operation;
        let url = format!("{}{path}", token.url(service, self.region)?);
        let body = body.map(|body| Bytes::from(body.to_string()));
        let build = || {
            let mut request = Request::builder()
                .method(method)
                .uri(&url)
                .header("x-auth-token", token.secret.reveal())
                .header(header::ACCEPT, "application/json");
            if let Some(microversion) = service.microversion() {
                request = request.header("openstack-api-version", microversion);
            }
            if body.is_some() {
                request = request.header(header::CONTENT_TYPE, "application/json");
            }
            if let Some(state) = if_match {
                request = request.header(header::IF_MATCH, state);
            }
            request.body(body.clone().unwrap_or_default()).map_err(|error| {
                let message = format!("{what}: the catalogue's address of {} is of no use: {error}", service.name());
                Status::new(Code::FailedPrecondition, message)
            })
        };
        // Each region has its own limit for requests.
        let account = self.login.account.with(self.region);
        let call = Call { service: service.name(), what, account, repeat };
        let read = |answer: &Answer| match errors::failure(service, what, answer) {
            Some(failure) => Err(failure),
            None => Ok(answer.body.clone()),
        };
        self.clouds.client(self.login).call(self.cx, call, build, read).await
    }

    /// Sends a request and reads the value of a key in the answer.
    ///
    /// # Errors
    /// The errors of the service. With an unreadable answer, the outcome of a write is unknown.
    pub async fn call<T: DeserializeOwned>(&self, operation: Operation<'_>, key: &str) -> Result<T, Failure> {
        let body = self.send(operation).await?;
        let read = serde_json::from_slice(&body)
            .ok()
            .and_then(|mut body: Value| serde_json::from_value(body.get_mut(key)?.take()).ok());
        read.ok_or_else(|| {
            // The answer may be, for example, an error page of a gateway.
            Failure::new(Code::Internal, unreadable(operation), FailureKind::Temporary)
        })
    }

    /// Reads all pages of a list. Each page has a link to the next one. Only the query of the link is used, because hosts in links are often wrong
    /// behind proxies, and the token must not be sent to another host.
    ///
    /// # Errors
    /// The errors of any page.
    pub async fn list<T: DeserializeOwned>(&self, operation: Operation<'_>, key: &str) -> Result<Vec<T>, Failure> {
        self.list_by(operation, key, |_, link| link.map_or(NextPage::End, NextPage::Linked)).await
    }

    /// Reads all pages of a list. `next` decides which page follows a page with this link.
    ///
    /// # Errors
    /// The errors of any page, and `Aborted` for a list that changes too often to be read completely.
    pub async fn list_by<T: DeserializeOwned>(
        &self,
        operation: Operation<'_>,
        key: &str,
        next: impl Fn(&[T], Option<String>) -> NextPage + Send + Sync,
    ) -> Result<Vec<T>, Failure> {
        for attempt in 1..=MAX_LIST_ATTEMPTS {
            if let Some(all) = self.pages(operation, key, &next).await? {
                return Ok(all);
            }
            tokio::time::sleep(PAUSE * attempt).await;
        }
        let message = format!("{}: the list changes faster than its pages can be read", operation.what);
        Err(Failure::permanent(Code::Aborted, message))
    }

    /// All pages. `None` if the list must be read again from its first page.
    async fn pages<T: DeserializeOwned>(
        &self,
        operation: Operation<'_>,
        key: &str,
        next: &(impl Fn(&[T], Option<String>) -> NextPage + Send + Sync),
    ) -> Result<Option<Vec<T>>, Failure> {
        let (folder, first) = operation.path.split_once('?').unwrap_or((operation.path, ""));
        let (mut query, mut all, mut last) = (first.to_owned(), Vec::new(), Value::Null);
        for number in 0..MAX_PAGES {
            let path = if query.is_empty() { folder.to_owned() } else { format!("{folder}?{query}") };
            let body = match self.send(Operation { path: &path, ..operation }).await {
                Ok(body) => body,
                // The services answer 400 or 404 if the object of the marker no longer exists.
                Err(failure) if number > 0 && matches!(failure.status.code, Code::InvalidArgument | Code::NotFound) => {
                    return Ok(None);
                }
                Err(failure) => return Err(errors::of_list(failure)),
            };
            let unread = || Failure::permanent(Code::Internal, unreadable(operation));
            let mut body: Value = serde_json::from_slice(&body).map_err(|_| unread())?;
            let link = next_query(&body, key);
            let shown = body.get_mut(key).map(Value::take).ok_or_else(unread)?;
            let page = Vec::<T>::deserialize(&shown).map_err(|_| unread())?;
            // A repeated page with a link would lead to the same pages for ever.
            if link.is_some() && !page.is_empty() && shown == last {
                break;
            }
            last = shown;
            let follows = next(&page, link);
            all.extend(page);
            query = match follows {
                NextPage::End => return Ok(Some(all)),
                NextPage::First => return Ok(None),
                // The driver would request the same page for ever, or the rest of the list would be missing.
                NextPage::Linked(next) if next == query => break,
                NextPage::Linked(next) => next,
                NextPage::Behind(id) => {
                    let behind = if first.is_empty() { format!("marker={id}") } else { format!("{first}&marker={id}") };
                    if behind == query {
                        return Ok(Some(all));
                    }
                    behind
                }
            };
        }
        Err(Failure::permanent(Code::Internal, format!("{}: the pages of the list do not end", operation.what)))
    }
}

fn unreadable(operation: Operation<'_>) -> String {
    format!("{}: the answer of {} can't be read", operation.what, operation.service.name())
}

/// The query of the link to the next page. The link is in a field like `servers_links`, or in Glance's `next`.
fn next_query(body: &Value, key: &str) -> Option<String> {
    let links = body.get(format!("{key}_links")).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let linked = links.iter().find(|link| link.get("rel").and_then(Value::as_str) == Some("next"));
    let next = linked.and_then(|link| link.get("href")).or_else(|| body.get("next"))?.as_str()?;
    next.split_once('?').map(|(_, query)| query.to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nova(json!({"servers": [], "servers_links": [{"rel": "next", "href": "http://other/v2.1/servers?limit=2&marker=a"}]}), Some("limit=2&marker=a"))]
    #[case::backwards(json!({"servers_links": [{"rel": "previous", "href": "http://x?y"}]}), None)]
    #[case::glance(json!({"images": [], "next": "/v2/images?marker=b"}), Some("marker=b"))]
    #[case::the_last(json!({"servers": []}), None)]
    fn a_page_has_a_link_to_the_next_page(#[case] body: Value, #[case] query: Option<&str>) {
        assert_eq!(next_query(&body, "servers").as_deref(), query);
    }
}
