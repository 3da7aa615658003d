//! Rules: which faults happen to which requests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, header};

use crate::Reply;

/// A request that the proxy has received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The method.
    pub method: Method,
    /// The path, without the query.
    pub path: String,
    /// The parameters of the query and of a form in the body.
    pub parameters: BTreeMap<String, String>,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl ReceivedRequest {
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

    /// The value of a parameter. Empty if the request does not have it.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map_or("", String::as_str)
    }

    /// A text that is equal for equal requests.
    pub(crate) fn key(&self) -> String {
        format!("{} {} {:?}", self.method, self.path, self.parameters)
    }
}

/// Requests for this action in the query protocol of AWS.
pub fn action(name: &str) -> impl Fn(&ReceivedRequest) -> bool + Send + Sync + use<> {
    let name = name.to_owned();
    move |received| received.parameter("Action") == name
}

/// Requests with this method and a path with this prefix.
pub fn request(method: Method, path: &str) -> impl Fn(&ReceivedRequest) -> bool + Send + Sync + use<> {
    let path = path.to_owned();
    move |received| received.method == method && received.path.starts_with(&path)
}

/// All requests.
pub fn any(_: &ReceivedRequest) -> bool {
    true
}

/// The fault that happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request waits, and is then handled.
    Delay(Duration),
    /// This response is sent. The request is not forwarded.
    Answer(Reply),
    /// The connection is closed. The request is not forwarded.
    Drop,
    /// The request is forwarded. Then the connection is closed without a response.
    LoseReply,
    /// The request is forwarded. The connection is closed after this number of bytes of the response body.
    Cut(usize),
    /// The first response to an equal request is sent again. If there is no such response, the request is forwarded.
    Stale,
    /// The request is not forwarded, and no response is sent while the proxy lives.
    NoResponse,
}

pub(crate) type Matches = Arc<dyn Fn(&ReceivedRequest) -> bool + Send + Sync>;

/// A fault, and the requests to which it happens.
#[derive(Clone)]
pub struct Rule {
    matches: Matches,
    fault: Fault,
    /// The number of further requests to which the fault happens. `None` for all requests.
    left: Option<usize>,
    /// The fault happens only to every n-th matching request.
    every: usize,
    matched: usize,
}

impl Rule {
    /// The fault happens to all matching requests.
    pub fn new(matches: impl Fn(&ReceivedRequest) -> bool + Send + Sync + 'static, fault: Fault) -> Self {
        Self { matches: Arc::new(matches), fault, left: None, every: 1, matched: 0 }
    }

    /// Limits the fault to this number of requests.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { left: Some(times), ..self }
    }

    /// Limits the fault to every n-th matching request, beginning with the first.
    #[must_use]
    pub fn every(self, every: usize) -> Self {
        Self { every: every.max(1), ..self }
    }

    /// Whether the fault only delays requests.
    pub(crate) fn is_delay(&self) -> bool {
        matches!(self.fault, Fault::Delay(_))
    }

    /// The fault for this request, if any.
    pub(crate) fn fault_for(&mut self, received: &ReceivedRequest) -> Option<Fault> {
        if self.left == Some(0) || !(self.matches)(received) {
            return None;
        }
        self.matched += 1;
        if !(self.matched - 1).is_multiple_of(self.every) {
            return None;
        }
        self.left = self.left.map(|left| left - 1);
        Some(self.fault.clone())
    }
}
