//! A proxy that injects faults, for tests. It forwards requests to a cloud API over HTTP/1.1.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use fault_proxy::{Fault, FaultProxy, Rule, action};
//!
//! let proxy = FaultProxy::before("http://127.0.0.1:5000").await?;
//! proxy.keep_to_tokens("ClientToken");
//! proxy.add(Rule::new(action("RunInstances"), Fault::LoseReply).times(1));
//! // … a driver with the endpoint `proxy.url()` …
//! assert_eq!(proxy.count(action("RunInstances")), 2);
//! # Ok(())
//! # }
//! ```
//!
//! All rules that match a request apply. Their [`Fault::Delay`]s add up. Of their other faults, only the first one happens. A
//! request without a matching rule is forwarded unchanged, including `Host` and signature. All requests are recorded. Like a
//! cloud, the proxy completes a request even if the client closes its connection.

#![forbid(unsafe_code)]

mod rules;
mod wire;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::StatusCode;
use tokio::{net::TcpListener, task::JoinHandle};

use rules::Matches;
pub use rules::{Fault, ReceivedRequest, Rule, action, any, request};

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Headers and their values, without the headers of the connection.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// A response without headers. An invalid status becomes 500.
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// The server behind the proxy.
enum Upstream {
    Url(String),
    Answers(Box<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>),
}

/// The state that all connections share.
struct Shared {
    upstream: Upstream,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<ReceivedRequest>>,
    token: Mutex<Option<String>>,
    once: Mutex<Vec<Matches>>,
    /// The responses to requests that are forwarded only once. The key is the token or the whole request. The lock is held while
    /// such a request is forwarded, so that two equal requests are never forwarded at the same time.
    made: tokio::sync::Mutex<HashMap<String, Reply>>,
    /// The first response to each request.
    remembered: Mutex<HashMap<String, Reply>>,
}

/// The proxy. It ends when it is dropped.
pub struct FaultProxy {
    url: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy before this URL, on its own port of the loopback interface.
    ///
    /// # Errors
    /// No port is available.
    pub async fn before(upstream: &str) -> io::Result<Self> {
        Self::start(Upstream::Url(upstream.trim_end_matches('/').to_owned())).await
    }

    /// A proxy before a cloud that is a function in this process.
    ///
    /// # Errors
    /// No port is available.
    pub async fn of(cloud: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        Self::start(Upstream::Answers(Box::new(cloud))).await
    }

    async fn start(upstream: Upstream) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            requests: Mutex::default(),
            token: Mutex::default(),
            once: Mutex::default(),
            made: tokio::sync::Mutex::default(),
            remembered: Mutex::default(),
        });
        let serving = tokio::spawn(wire::serve(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, serving })
    }

    /// The URL of the proxy, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Adds a rule after the existing rules.
    pub fn add(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Forwards only the first request with each value of this parameter. Later requests with the value get the response to the
    /// first one, even if the client did not receive it at that time.
    pub fn keep_to_tokens(&self, parameter: &str) {
        *lock(&self.shared.token) = Some(parameter.to_owned());
    }

    /// Forwards a matching request only until it succeeds. Later equal requests get the same response, even if the client did
    /// not receive it at that time.
    pub fn forward_once(&self, matches: impl Fn(&ReceivedRequest) -> bool + Send + Sync + 'static) {
        lock(&self.shared.once).push(Arc::new(matches));
    }

    /// All requests so far, in order.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        lock(&self.shared.requests).clone()
    }

    /// The number of matching requests so far.
    pub fn count(&self, matches: impl Fn(&ReceivedRequest) -> bool) -> usize {
        lock(&self.shared.requests).iter().filter(|received| matches(received)).count()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
