//! A proxy with faults, for tests: it stands before the API of any cloud that speaks HTTP/1.1.
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
//! A request passes through every rule that matches it: each [`Fault::Delay`] is waited, and of the other faults the first one
//! happens. What no rule matches is forwarded as it came, `Host` and signature included. All requests are noted. A cloud goes on with a
//! request whose client is gone: so does the proxy.

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
pub use rules::{Fault, Rule, Seen, action, any, request};

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Headers that a client may look at, with their values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Reply {
    /// An answer without headers. A status that is none counts as 500.
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// What stands behind the proxy.
enum Upstream {
    Url(String),
    Answers(Box<dyn Fn(&Seen) -> Reply + Send + Sync>),
}

/// What the connections share.
struct Shared {
    upstream: Upstream,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
    token: Mutex<Option<String>>,
    once: Mutex<Vec<Matches>>,
    /// The replies to requests that are forwarded once, by token or by the whole request. It is held while such a request is forwarded, so
    /// that two of a kind never are.
    made: tokio::sync::Mutex<HashMap<String, Reply>>,
    /// The first reply to each request.
    remembered: Mutex<HashMap<String, Reply>>,
}

/// The proxy. It ends with its value.
pub struct FaultProxy {
    url: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

impl FaultProxy {
    /// A proxy before this URL, on a port of its own of the loopback interface.
    ///
    /// # Errors
    /// There is no port.
    pub async fn before(upstream: &str) -> io::Result<Self> {
        Self::start(Upstream::Url(upstream.trim_end_matches('/').to_owned())).await
    }

    /// A proxy before a cloud in this process, which answers so.
    ///
    /// # Errors
    /// There is no port.
    pub async fn of(cloud: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        Self::start(Upstream::Answers(Box::new(cloud))).await
    }

    async fn start(upstream: Upstream) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            seen: Mutex::default(),
            token: Mutex::default(),
            once: Mutex::default(),
            made: tokio::sync::Mutex::default(),
            remembered: Mutex::default(),
        });
        let serving = tokio::spawn(wire::serve(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, serving })
    }

    /// Where it listens, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// One more rule, behind those that are there.
    pub fn add(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// No rules any more.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
    }

    /// A request whose parameter of this name had this value before is not forwarded a second time: it gets the reply that the
    /// first one got, also where that one was lost.
    pub fn keep_to_tokens(&self, parameter: &str) {
        *lock(&self.shared.token) = Some(parameter.to_owned());
    }

    /// A request that matches is not forwarded a second time once it has succeeded: it gets the reply that the first one got, also where
    /// that one was lost.
    pub fn forward_once(&self, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static) {
        lock(&self.shared.once).push(Arc::new(matches));
    }

    /// All requests so far, in their order.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// How many requests of this kind there were.
    pub fn count(&self, matches: impl Fn(&Seen) -> bool) -> usize {
        lock(&self.shared.seen).iter().filter(|seen| matches(seen)).count()
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
