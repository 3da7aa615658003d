//! A network that lies. Here are the lies, the requests they are told of, and how often; they are the same for a manager that
//! is a process of its own, behind the [`proxy`], and for one in the test's thread, behind the layer [`in_process`].
//!
//! A [`Lie`] is told of requests that a [`Rule`] picks, a certain number of times, so that a case is the same each time. What
//! no rule picks passes through untouched.

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

/// What is done instead of answering truly.
#[derive(Clone, Debug)]
pub enum Lie {
    /// The request is not sent on; this is the answer.
    Answers(Answer),
    /// The true answer is held back for this time.
    Held(Duration),
    /// The request is sent on and takes effect; the connection is closed in place of an answer.
    Lost,
    /// Before the true answer of a watch, these events (`type` and `object`) are told again.
    Replays(Vec<Value>),
}

/// An answer of somebody who is not the API server.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl Answer {
    /// What a gateway says that has lost its backend.
    pub fn page(status: u16) -> Self {
        Self { status, content_type: "text/plain", body: format!("default backend - {status}") }
    }

    /// A `Status` that an API server might send, without details.
    pub fn status(status: u16, reason: &str) -> Self {
        let body = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status,
            "reason": reason, "message": "told by the test" });
        Self { status, content_type: "application/json", body: body.to_string() }
    }
}

/// Which requests a lie is told of, and how often.
#[derive(Clone, Debug)]
pub struct Rule {
    method: Option<Method>,
    /// The path ends with this.
    end: Option<String>,
    /// All of these are in the path or the query.
    with: Vec<String>,
    without: Vec<String>,
    lie: Lie,
    times: usize,
    counted: Counted,
}

/// What [`Rule::times`] counts.
#[derive(Clone, Copy, Debug)]
enum Counted {
    All,
    /// Each method and path by itself; a watch is not the same as a list.
    Each,
}

/// The mark of a watch in a query.
const WATCH: &str = "watch=true";

impl Rule {
    /// Of requests whose path and query hold this text, once.
    pub fn about(text: impl Into<String>, lie: Lie) -> Self {
        let (with, without) = (vec![text.into()], Vec::new());
        Self { method: None, end: None, with, without, lie, times: 1, counted: Counted::All }
    }

    /// Of lists of this resource, once.
    pub fn about_lists_of(resource: &str, lie: Lie) -> Self {
        let rule = Self::about("/", lie).method(Method::GET).without(WATCH);
        Self { end: Some(format!("/{resource}")), ..rule }
    }

    /// Of watches of this resource, once.
    pub fn about_watches_of(resource: &str, lie: Lie) -> Self {
        Self { end: Some(format!("/{resource}")), ..Self::about(WATCH, lie).method(Method::GET) }
    }

    /// Of this method only.
    #[must_use]
    pub fn method(self, method: Method) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Only where this text is in path or query, too.
    #[must_use]
    pub fn with(mut self, text: impl Into<String>) -> Self {
        self.with.push(text.into());
        self
    }

    /// Only where this text is in neither path nor query.
    #[must_use]
    pub fn without(mut self, text: impl Into<String>) -> Self {
        self.without.push(text.into());
        self
    }

    /// So many times.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// So many times of each method and path.
    #[must_use]
    pub fn times_each(self, times: usize) -> Self {
        Self { times, counted: Counted::Each, ..self }
    }

    fn picks<B>(&self, request: &Request<B>) -> bool {
        let text = request.uri().to_string();
        self.method.as_ref().is_none_or(|method| method == request.method())
            && self.end.as_ref().is_none_or(|end| request.uri().path().ends_with(end.as_str()))
            && self.with.iter().all(|part| text.contains(part))
            && !self.without.iter().any(|part| text.contains(part))
    }
}

/// A rule of a liar.
#[derive(Clone, Copy, Debug)]
pub struct Told(usize);

struct Kept {
    rule: Rule,
    /// How often it was told of each question that is counted by itself.
    told: BTreeMap<String, usize>,
    stopped: bool,
}

impl Kept {
    /// The lie, if it is told of this request.
    fn told_of<B>(&mut self, request: &Request<B>) -> Option<Lie> {
        if self.stopped || !self.rule.picks(request) {
            return None;
        }
        let told = self.told.entry(self.key(request)).or_default();
        if *told >= self.rule.times {
            return None;
        }
        *told += 1;
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
        self.told.values().sum()
    }
}

/// A write that the manager has tried, whatever came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    pub at: Instant,
}

/// Whether a request comes from the simulated cloud or its kubelets. They live in the manager's process, but would be clients of
/// their own in the world: their writes are not the manager's.
fn is_of_the_cloud<B>(request: &Request<B>) -> bool {
    let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.ends_with("/virtual-cloud"))
}

/// Whether a request is a write of the manager that counts; renewals of Leases don't.
pub fn is_counted<B>(request: &Request<B>) -> bool {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    !is_read && !is_of_the_cloud(request) && !request.uri().path().contains("/leases")
}

/// The rules of a liar, and what has come of them.
#[derive(Default)]
struct Script(Mutex<State>);

#[derive(Default)]
struct State {
    rules: Vec<Kept>,
    /// What passed, newest last, for the text of a test that fails.
    passed: VecDeque<String>,
    tried: Vec<Tried>,
}

impl Script {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tells(&self, rule: Rule) -> Told {
        let mut state = self.state();
        state.rules.push(Kept { rule, told: BTreeMap::new(), stopped: false });
        Told(state.rules.len() - 1)
    }

    fn stops(&self, told: Told) -> usize {
        let mut state = self.state();
        let kept = &mut state.rules[told.0];
        kept.stopped = true;
        kept.count()
    }

    /// Whether a rule has told so many lies; what passed if not.
    fn has_told(&self, told: Told, times: usize) -> Result<(), String> {
        let state = self.state();
        let kept = &state.rules[told.0];
        let count = kept.count();
        if count >= times {
            return Ok(());
        }
        Err(format!("{:?} was told {count} times; what passed last: {:#?}", kept.rule, state.passed))
    }

    /// Writes down a write.
    fn notes(&self, head: &Parts, body: &Bytes) {
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        self.state().tried.push(Tried { method, path, body: body.clone(), at: Instant::now() });
    }

    /// What was written down; the list begins anew.
    fn take_tried(&self) -> Vec<Tried> {
        std::mem::take(&mut self.state().tried)
    }

    /// The lie that is told of a request, if any.
    fn lie_about<B>(&self, request: &Request<B>) -> Option<Lie> {
        let mut state = self.state();
        state.passed.push_back(format!("{} {}", request.method(), request.uri()));
        if state.passed.len() > 40 {
            state.passed.pop_front();
        }
        state.rules.iter_mut().find_map(|kept| kept.told_of(request))
    }
}

/// An old event as API servers write it in a watch, the type first.
fn line_of(event: &Value) -> String {
    format!("{{\"type\":{},\"object\":{}}}\n", event["type"], event["object"])
}
