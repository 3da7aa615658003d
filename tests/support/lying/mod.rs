//! A network that lies. This file has the lies and the rules for them. They are the same for a manager in a separate process, behind the
//! [`proxy`], and for a manager in the test's thread, behind the layer [`in_process`].
//!
//! A [`Rule`] selects requests and applies a [`Lie`] to them a certain number of times, so that a case is the same each time. Requests
//! that no rule selects pass unchanged.

pub mod in_process;
mod proxy;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::request::Parts;
use hyper::{Method, Request, header::USER_AGENT};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use proxy::Liar;

/// A fault in place of the true answer.
#[derive(Clone, Debug)]
pub enum Lie {
    /// The request is not forwarded; this is the answer.
    Answers(Answer),
    /// The true answer is delayed by this time.
    Held(Duration),
    /// The request is forwarded and takes effect, but the connection is closed without an answer.
    Lost,
    /// These events (`type` and `object`) are sent again before the true answer of a watch.
    Replays(Vec<Value>),
}

/// An answer that does not come from the API server.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// The answer of a gateway without backend.
    pub fn page(status: u16) -> Self {
        Self { status, content_type: "text/plain", body: format!("default backend - {status}") }
    }

    /// A `Status` that an API server might send, without details.
    pub fn status(status: u16, reason: &str) -> Self {
        let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reason, "message": "set by the test" });
        Self { status, content_type: "application/json", body: body.to_string() }
    }
}

/// The requests that a lie applies to, and how often it applies.
#[derive(Clone, Debug)]
pub struct Rule {
    method: Option<Method>,
    /// The end of the path.
    end: Option<String>,
    /// Texts that must all be in the path or the query.
    with: Vec<String>,
    without: Vec<String>,
    lie: Lie,
    times: usize,
    counted: Counted,
}

/// The requests that [`Rule::times`] counts together.
#[derive(Clone, Copy, Debug)]
enum Counted {
    All,
    /// Each method and path separately. A watch and a list are different.
    Each,
}

/// The mark of a watch in a query.
const WATCH: &str = "watch=true";

impl Rule {
    /// For requests with this text in path or query, once.
    pub fn about(text: impl Into<String>, lie: Lie) -> Self {
        let (with, without) = (vec![text.into()], Vec::new());
        Self { method: None, end: None, with, without, lie, times: 1, counted: Counted::All }
    }

    /// For lists of this resource, once.
    pub fn about_lists_of(resource: &str, lie: Lie) -> Self {
        let rule = Self::about("/", lie).method(Method::GET).without(WATCH);
        Self { end: Some(format!("/{resource}")), ..rule }
    }

    /// For watches of this resource, once.
    pub fn about_watches_of(resource: &str, lie: Lie) -> Self {
        Self { end: Some(format!("/{resource}")), ..Self::about(WATCH, lie).method(Method::GET) }
    }

    /// For this method only.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Only if this text is in path or query too.
    #[must_use]
    pub fn with(mut self, text: impl Into<String>) -> Self {
        self.with.push(text.into());
        self
    }

    /// Only if this text is in neither path nor query.
    #[must_use]
    pub fn without(mut self, text: impl Into<String>) -> Self {
        self.without.push(text.into());
        self
    }

    /// This number of times.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// This number of times for each method and path.
    #[must_use]
    pub fn times_each(self, times: usize) -> Self {
        Self { times, counted: Counted::Each, ..self }
    }

    fn selects<B>(&self, request: &Request<B>) -> bool {
        let text = request.uri().to_string();
        self.method.as_ref().is_none_or(|method| method == request.method())
            && self.end.as_ref().is_none_or(|end| request.uri().path().ends_with(end.as_str()))
            && self.with.iter().all(|part| text.contains(part))
            && !self.without.iter().any(|part| text.contains(part))
    }
}

/// The id of an added rule.
#[derive(Clone, Copy, Debug)]
pub struct RuleId(usize);

struct ActiveRule {
    rule: Rule,
    /// The number of lies, by the key of requests that are counted together.
    counts: BTreeMap<String, usize>,
    ended: bool,
}

impl ActiveRule {
    /// The lie for this request, if the rule applies.
    fn apply<B>(&mut self, request: &Request<B>) -> Option<Lie> {
        if self.ended || !self.rule.selects(request) {
            return None;
        }
        let count = self.counts.entry(self.key(request)).or_default();
        if *count >= self.rule.times {
            return None;
        }
        *count += 1;
        Some(self.rule.lie.clone())
    }

    fn key<B>(&self, request: &Request<B>) -> String {
        let is_watch = request.uri().query().is_some_and(|query| query.contains(WATCH));
        match self.rule.counted {
            Counted::All => String::new(),
            Counted::Each => {
                format!("{} {}{}", request.method(), request.uri().path(), if is_watch { "?" } else { "" })
            }
        }
    }

    fn count(&self) -> usize {
        self.counts.values().sum()
    }
}

/// A write that the manager has tried, with or without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAttempt {
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    pub at: Instant,
}

/// Whether a request comes from the virtual cloud or its kubelets. They run in the manager's process, but stand for other clients, so
/// that their writes do not count as writes of the manager.
fn is_of_the_cloud<B>(request: &Request<B>) -> bool {
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.ends_with("/virtual-cloud"))
}

/// Whether a request is a write of the manager that counts. Renewals of Leases do not count.
pub fn is_counted<B>(request: &Request<B>) -> bool {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    !is_read && !is_of_the_cloud(request) && !request.uri().path().contains("/leases")
}

/// The rules of a lying network, and its records.
#[derive(Default)]
struct Script(Mutex<State>);

#[derive(Default)]
struct State {
    rules: Vec<ActiveRule>,
    /// The last requests, newest last, for the message of a test that fails.
    passed: VecDeque<String>,
    attempts: Vec<WriteAttempt>,
}

impl Script {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.state();
        state.rules.push(ActiveRule { rule, counts: BTreeMap::new(), ended: false });
        RuleId(state.rules.len() - 1)
    }

    fn end(&self, rule: RuleId) -> usize {
        let mut state = self.state();
        let active = &mut state.rules[rule.0];
        active.ended = true;
        active.count()
    }

    /// Checks that a rule has applied its lie this number of times. The error contains the last requests.
    fn has_applied(&self, rule: RuleId, times: usize) -> Result<(), String> {
        let state = self.state();
        let active = &state.rules[rule.0];
        let count = active.count();
        if count >= times {
            return Ok(());
        }
        Err(format!("{:?} was applied {count} times; the last requests: {:#?}", active.rule, state.passed))
    }

    fn record(&self, head: &Parts, body: &Bytes) {
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        self.state().attempts.push(WriteAttempt { method, path, body: body.clone(), at: Instant::now() });
    }

    /// The recorded writes since the last call.
    fn take_attempts(&self) -> Vec<WriteAttempt> {
        std::mem::take(&mut self.state().attempts)
    }

    /// The lie for a request, if a rule applies.
    fn lie_about<B>(&self, request: &Request<B>) -> Option<Lie> {
        let mut state = self.state();
        state.passed.push_back(format!("{} {}", request.method(), request.uri()));
        if state.passed.len() > 40 {
            state.passed.pop_front();
        }
        state.rules.iter_mut().find_map(|active| active.apply(request))
    }
}

/// An old event as API servers write it in a watch, the type first.
fn line_of(event: &Value) -> String {
    format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"])
}
