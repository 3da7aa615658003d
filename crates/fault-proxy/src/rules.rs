//! Which requests meet which faults.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, header};

use crate::Reply;

/// A request that has come.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The method.
    pub method: Method,
    /// The path, without a query.
    pub path: String,
    /// The parameters of the query, and those of a form in the body.
    pub parameters: BTreeMap<String, String>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Seen {
    pub(crate) fn new(head: &http::request::Parts, body: Bytes) -> Self {
        let mut parameters: BTreeMap<_, _> =
            form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.starts_with("application/x-www-form-urlencoded") {
            parameters.extend(form_urlencoded::parse(&body).into_owned());
        }
        let path = head.uri.path().to_owned();
        Self { method: head.method.clone(), path, parameters, headers: head.headers.clone(), body }
    }

    /// A parameter; empty where there is none.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// What makes it the same request as another one.
    pub(crate) fn key(&self) -> String {
        format!("{} {} {:?}", self.method, self.path, self.parameters)
    }
}

/// Requests for this action in the query protocol of AWS.
pub fn action(name: &str) -> impl Fn(&Seen) -> bool + Send + Sync + use<> {
    let name = name.to_owned();
    move |seen| seen.parameter("Action") == name
}

/// Requests of this method whose path begins so.
pub fn request(method: Method, path: &str) -> impl Fn(&Seen) -> bool + Send + Sync + use<> {
    let path = path.to_owned();
    move |seen| seen.method == method && seen.path.starts_with(&path)
}

/// All requests.
pub fn any(_: &Seen) -> bool {
    true
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It waits, and goes on.
    Delay(Duration),
    /// This is answered, and nothing is forwarded.
    Answer(Reply),
    /// The connection is closed, and nothing is forwarded.
    Drop,
    /// It is forwarded, and the connection is closed in place of the reply.
    LoseReply,
    /// It is forwarded, and the connection ends after so many bytes of the reply's body.
    Cut(usize),
    /// The first reply to the same request is answered again. Without one it is forwarded.
    Stale,
    /// Nothing is forwarded, and no answer comes as long as the proxy lives.
    Silence,
}

pub(crate) type Matches = Arc<dyn Fn(&Seen) -> bool + Send + Sync>;

/// A fault and the requests that meet it.
#[derive(Clone)]
pub struct Rule {
    matches: Matches,
    fault: Fault,
    /// So many more requests meet it.
    left: Option<usize>,
    /// One request of so many.
    every: usize,
    met: usize,
}

impl Rule {
    /// All requests that match meet the fault.
    pub fn new(matches: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> Self {
        Self { matches: Arc::new(matches), fault, left: None, every: 1, met: 0 }
    }

    /// Only the first so many.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { left: Some(times), ..self }
    }

    /// Only one of so many, the first among them.
    #[must_use]
    pub fn every(self, every: usize) -> Self {
        Self { every: every.max(1), ..self }
    }

    /// Whether requests only wait.
    pub(crate) fn is_delay(&self) -> bool {
        matches!(self.fault, Fault::Delay(_))
    }

    /// The fault that this request meets.
    pub(crate) fn meet(&mut self, seen: &Seen) -> Option<Fault> {
        if self.left == Some(0) || !(self.matches)(seen) {
            return None;
        }
        self.met += 1;
        if !(self.met - 1).is_multiple_of(self.every) {
            return None;
        }
        self.left = self.left.map(|left| left - 1);
        Some(self.fault.clone())
    }
}
