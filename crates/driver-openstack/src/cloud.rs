//! Requests to the services of one region with one login: authenticated, sent, read, page by page.

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

/// A list has no more pages than this; beyond it the service repeats itself.
const MOST_PAGES: usize = 1000;
/// So many tokens, and so many ways, are kept.
const MOST_KEPT: usize = 256;

/// A list is begun anew so often when a page ends at something that is deleted before the next page is asked for.
const MOST_BEGINNINGS: u32 = 10;
/// The pause before the second beginning; later ones are longer.
const PAUSE: Duration = Duration::from_millis(300);
/// A refused login is not tried again for so long: after many of them clouds lock accounts.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// How a way to a cloud is opened.
type Open = dyn Fn(&Login) -> Client + Send + Sync;
/// One login at a time; others wait for what comes of it.
type Slot = Arc<tokio::sync::Mutex<LoggedIn>>;

/// What has come of a login.
#[derive(Default)]
enum LoggedIn {
    #[default]
    NotYet,
    As(Arc<Token>),
    Refused(Failure, Instant),
}

/// All clouds, regions and accounts.
pub struct Clouds {
    open: Box<Open>,
    ways: Mutex<HashMap<CredentialsKey, Client>>,
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
pub struct Ask<'a> {
    /// Whom it goes to.
    pub service: Service,
    /// What it is for, in messages.
    pub what: &'a str,
    /// Its method.
    pub method: &'a Method,
    /// Its path behind that of the service, with its query.
    pub path: &'a str,
    /// What it brings.
    pub body: Option<&'a Value>,
    /// Which state of a thing it is meant for.
    pub if_match: Option<&'a str>,
    /// Whether it may be sent twice.
    pub repeat: Repeat,
}

impl<'a> Ask<'a> {
    /// A read.
    pub const fn get(service: Service, what: &'a str, path: &'a str) -> Self {
        Self { service, what, method: &Method::GET, path, body: None, if_match: None, repeat: Repeat::Safe }
    }
}

impl Clouds {
    /// Clouds over the network.
    pub fn new() -> Self {
        Self::opened_by(Box::new(|login: &Login| {
            Client::new(HttpTransport::new(login.trust.clone()), Limits::default())
        }))
    }

    /// Clouds behind this client.
    pub fn through(client: Client) -> Self {
        Self::opened_by(Box::new(move |_: &Login| client.clone()))
    }

    fn opened_by(open: Box<Open>) -> Self {
        Self { open, ways: Mutex::default(), tokens: Mutex::default() }
    }

    /// A session.
    pub const fn session<'a>(&'a self, cx: &'a OpContext, login: &'a Login, region: &'a str) -> Session<'a> {
        Session { clouds: self, cx, login, region }
    }

    fn client(&self, login: &Login) -> Client {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        kept(&mut ways, login.way, || (self.open)(login))
    }

    fn slot(&self, account: CredentialsKey) -> Slot {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        kept(&mut tokens, account, Slot::default)
    }
}

fn kept<T: Clone>(all: &mut HashMap<CredentialsKey, T>, key: CredentialsKey, make: impl FnOnce() -> T) -> T {
    if all.len() >= MOST_KEPT && !all.contains_key(&key) {
        all.clear();
    }
    all.entry(key).or_insert_with(make).clone()
}

impl Session<'_> {
    /// A token that is good, made anew unless there is one other than `refused`.
    async fn token(&self, refused: Option<&Arc<Token>>) -> Result<Arc<Token>, Failure> {
        let slot = self.clouds.slot(self.login.account);
        let Ok(mut kept) = tokio::time::timeout(self.cx.left(), slot.lock()).await else {
            let message = "logging in: another call of the account waits for an answer of Keystone, too";
            return Err(Failure::permanent(Code::DeadlineExceeded, message));
        };
        let now = Instant::now();
        match &*kept {
            LoggedIn::As(token) if token.is_good(now) && refused.is_none_or(|refused| !Arc::ptr_eq(refused, token)) => {
                return Ok(Arc::clone(token));
            }
            LoggedIn::Refused(failure, at) if now < *at + REFUSED_FOR => return Err(failure.clone()),
            LoggedIn::NotYet | LoggedIn::As(_) | LoggedIn::Refused(..) => {}
        }
        *kept = LoggedIn::NotYet;
        match self.log_in().await {
            Ok(token) => {
                let token = Arc::new(token);
                *kept = LoggedIn::As(Arc::clone(&token));
                Ok(token)
            }
            Err(failure) => {
                if failure.status.code == Code::Unauthenticated {
                    *kept = LoggedIn::Refused(failure.clone(), now);
                }
                Err(failure)
            }
        }
    }

    async fn log_in(&self) -> Result<Token, Failure> {
        let body = Bytes::from(self.login.body().to_string());
        let url = format!("{}/auth/tokens", self.login.url);
        let build = || {
            let request = Request::post(&url).header(header::CONTENT_TYPE, "application/json").body(body.clone());
            request.map_err(|_| Status::new(Code::InvalidArgument, "data[authURL]: Invalid value: is no URL"))
        };
        let what = "logging in";
        // A token too many does nobody any harm.
        let call = Call { service: Service::Identity.name(), what, account: self.login.account, repeat: Repeat::Safe };
        let read = |answer: &Answer| match errors::failure(Service::Identity, what, answer) {
            Some(failure) => Err(failure),
            None => Token::read(answer, Instant::now()),
        };
        self.clouds.client(self.login).call(self.cx, call, build, read).await
    }

    /// Sends a request; a token that is refused is renewed once.
    ///
    /// # Errors
    /// Those of the service.
    pub async fn send(&self, ask: Ask<'_>) -> Result<Bytes, Failure> {
        let token = self.token(None).await?;
        match self.send_with(ask, &token).await {
            Err(failure) if failure.status.code == Code::Unauthenticated => {
                let token = self.token(Some(&token)).await?;
                self.send_with(ask, &token).await
            }
            outcome => outcome,
        }
    }

    async fn send_with(&self, ask: Ask<'_>, token: &Token) -> Result<Bytes, Failure> {
        let Ask { service, what, method, path, body, if_match, repeat } = ask;
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
        // Regions count requests apart.
        let account = self.login.account.with(self.region);
        let call = Call { service: service.name(), what, account, repeat };
        let read = |answer: &Answer| match errors::failure(service, what, answer) {
            Some(failure) => Err(failure),
            None => Ok(answer.body.clone()),
        };
        self.clouds.client(self.login).call(self.cx, call, build, read).await
    }

    /// Sends a request and reads what stands under a key of its answer.
    ///
    /// # Errors
    /// Those of the service. An answer that can't be read leaves open whether a write has been done.
    pub async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>, key: &str) -> Result<T, Failure> {
        let body = self.send(ask).await?;
        let read = serde_json::from_slice(&body)
            .ok()
            .and_then(|mut body: Value| serde_json::from_value(body.get_mut(key)?.take()).ok());
        read.ok_or_else(|| {
            // It is the answer of something in between, such as a page of a gateway.
            Failure::new(Code::Internal, unreadable(ask), FailureKind::Temporary)
        })
    }

    /// All of a list, or a failure. Its pages are followed by their links, of which only the query counts: behind proxies
    /// their hosts are often wrong, and no other host may see the token.
    ///
    /// # Errors
    /// Those of any page.
    pub async fn list<T: DeserializeOwned>(&self, ask: Ask<'_>, key: &str) -> Result<Vec<T>, Failure> {
        self.list_by(ask, key, |_, link| link.map_or(NextPage::End, NextPage::Linked)).await
    }

    /// The same; `next` says what follows a page and its link.
    ///
    /// # Errors
    /// Those of any page, and `Aborted` for a list that can't be read whole because it changes.
    pub async fn list_by<T: DeserializeOwned>(
        &self,
        ask: Ask<'_>,
        key: &str,
        next: impl Fn(&[T], Option<String>) -> NextPage + Send + Sync,
    ) -> Result<Vec<T>, Failure> {
        for beginning in 1..=MOST_BEGINNINGS {
            if let Some(all) = self.pages(ask, key, &next).await? {
                return Ok(all);
            }
            tokio::time::sleep(PAUSE * beginning).await;
        }
        let message = format!("{}: the list changes faster than its pages can be read", ask.what);
        Err(Failure::permanent(Code::Aborted, message))
    }

    /// All pages; `None` when the list has to be begun anew.
    async fn pages<T: DeserializeOwned>(
        &self,
        ask: Ask<'_>,
        key: &str,
        next: &(impl Fn(&[T], Option<String>) -> NextPage + Send + Sync),
    ) -> Result<Option<Vec<T>>, Failure> {
        let (folder, first) = ask.path.split_once('?').unwrap_or((ask.path, ""));
        let (mut query, mut all, mut last) = (first.to_owned(), Vec::new(), Value::Null);
        for number in 0..MOST_PAGES {
            let path = if query.is_empty() { folder.to_owned() } else { format!("{folder}?{query}") };
            let body = match self.send(Ask { path: &path, ..ask }).await {
                Ok(body) => body,
                // Of a mark that is gone the services say 400 or 404.
                Err(failure) if number > 0 && matches!(failure.status.code, Code::InvalidArgument | Code::NotFound) => {
                    return Ok(None);
                }
                Err(failure) => return Err(failure),
            };
            let unread = || Failure::permanent(Code::Internal, unreadable(ask));
            let mut body: Value = serde_json::from_slice(&body).map_err(|_| unread())?;
            let link = next_query(&body, key);
            let shown = body.get_mut(key).map(Value::take).ok_or_else(unread)?;
            let page = Vec::<T>::deserialize(&shown).map_err(|_| unread())?;
            // Of a page that was there already others follow for ever.
            if link.is_some() && !page.is_empty() && shown == last {
                break;
            }
            last = shown;
            let follows = next(&page, link);
            all.extend(page);
            query = match follows {
                NextPage::End => return Ok(Some(all)),
                NextPage::First => return Ok(None),
                // It would be asked for for ever, or the rest is missing.
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
        Err(Failure::permanent(Code::Internal, format!("{}: the pages of the list do not end", ask.what)))
    }
}

fn unreadable(ask: Ask<'_>) -> String {
    format!("{}: the answer of {} can't be read", ask.what, ask.service.name())
}

/// The query of the next page: of `servers_links` and its kin, or of Glance's `next`.
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
    fn a_page_says_where_the_next_one_is(#[case] body: Value, #[case] query: Option<&str>) {
        assert_eq!(next_query(&body, "servers").as_deref(), query);
    }
}
