//! A network that lies: a proxy in front of an API server that answers in its place, loses answers, falls silent, or shows
//! what was long ago.
//!
//! A client speaks plain HTTP/1.1 to it, with its own credentials; the proxy speaks TLS to the API server, over one connection
//! for each of the client's. A [`Lie`] is told of requests that a [`Rule`] picks, a certain number of times, so that a case is
//! the same each time; [`Liar::told`] waits until that has happened. What no rule picks passes through untouched.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{trusting, wait::expect, wait_until};

type AnyBody = BoxBody<Bytes, hyper::Error>;

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
    /// All of these are in the path or the query.
    with: Vec<String>,
    without: Vec<String>,
    lie: Lie,
    times: usize,
}

impl Rule {
    /// Of requests whose path and query hold this text, once.
    pub fn about(text: impl Into<String>, lie: Lie) -> Self {
        Self { method: None, with: vec![text.into()], without: Vec::new(), lie, times: 1 }
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

    fn picks(&self, request: &Request<Incoming>) -> bool {
        let text = request.uri().to_string();
        self.method.as_ref().is_none_or(|method| method == request.method())
            && self.with.iter().all(|part| text.contains(part))
            && !self.without.iter().any(|part| text.contains(part))
    }
}

/// A rule of a [`Liar`].
#[derive(Clone, Copy, Debug)]
pub struct Told(usize);

struct Kept {
    rule: Rule,
    left: usize,
    told: usize,
}

#[derive(Default)]
struct State {
    rules: Vec<Kept>,
    /// What passed, newest last, for the text of a test that fails.
    passed: VecDeque<String>,
}

/// The proxy. It ends with the test.
pub struct Liar {
    port: u16,
    state: Arc<Mutex<State>>,
    /// Connections that were opened in an earlier age than this one are silent.
    age: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Liar {
    /// A proxy in front of the API server at this address of loopback (`https://127.0.0.1:port`). It tells the truth.
    pub async fn before(url: &str) -> Self {
        let upstream: u16 = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port of loopback");
        let port = listener.local_addr().expect("a bound socket").port();
        let state = Arc::<Mutex<State>>::default();
        let age = watch::Sender::new(0);
        let mut tasks = JoinSet::new();
        let (kept, ages) = (Arc::clone(&state), age.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                connections.spawn(serve(stream, upstream, Arc::clone(&kept), ages.subscribe()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { port, state, age, _tasks: tasks }
    }

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// From now on this lie is told.
    pub fn tells(&self, rule: Rule) -> Told {
        let mut state = lock(&self.state);
        let left = rule.times;
        state.rules.push(Kept { rule, left, told: 0 });
        Told(state.rules.len() - 1)
    }

    /// A rule tells no more lies; answers how many it has told.
    pub fn stops(&self, told: Told) -> usize {
        let mut state = lock(&self.state);
        let kept = &mut state.rules[told.0];
        kept.left = 0;
        kept.told
    }

    /// Waits until a lie has been told so many times.
    pub async fn told(&self, told: Told, times: usize, within: Duration) {
        wait_until(&format!("a lie to be told {times} times"), within, || async {
            let state = lock(&self.state);
            let kept = &state.rules[told.0];
            expect(kept.told >= times, || {
                format!("{:?} was told {} times; what passed last: {:#?}", kept.rule, kept.told, state.passed)
            })
        })
        .await;
    }

    /// All connections that are open now stay open and carry nothing any more; new ones work.
    pub fn falls_silent(&self) {
        self.age.send_modify(|age| *age += 1);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection of a client.
async fn serve(stream: TcpStream, upstream: u16, state: Arc<Mutex<State>>, mut ages: watch::Receiver<u64>) {
    ages.mark_unchanged();
    let silent = ages.clone();
    let service = service_fn(move |request| {
        let (state, silent) = (Arc::clone(&state), silent.clone());
        async move {
            match answer(request, upstream, &state, silent).await {
                Some(answer) => Ok(answer),
                // hyper closes the connection without an answer.
                None => Err("lost"),
            }
        }
    });
    let _ = server::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    upstream: u16,
    state: &Mutex<State>,
    silent: watch::Receiver<u64>,
) -> Option<Response<AnyBody>> {
    stays_heard(&silent).await;
    let lie = {
        let mut state = lock(state);
        state.passed.push_back(format!("{} {}", request.method(), request.uri()));
        if state.passed.len() > 40 {
            state.passed.pop_front();
        }
        state.rules.iter_mut().find(|kept| kept.left > 0 && kept.rule.picks(&request)).map(|kept| {
            kept.left -= 1;
            kept.told += 1;
            kept.rule.lie.clone()
        })
    };
    if let Some(Lie::Answers(lie)) = &lie {
        return Some(invented(lie));
    }
    let Ok(truth) = forward(request, upstream).await else {
        return Some(invented(&Answer::page(502)));
    };
    let mut before = Vec::new();
    match lie {
        Some(Lie::Lost) => return None,
        Some(Lie::Held(time)) => tokio::time::sleep(time).await,
        Some(Lie::Replays(lines)) => before = lines,
        Some(Lie::Answers(_)) | None => {}
    }
    stays_heard(&silent).await;
    Some(passed_on(truth, before, silent))
}

/// Never ends once the connection is silent.
async fn stays_heard(silent: &watch::Receiver<u64>) {
    if silent.has_changed().unwrap_or(false) {
        std::future::pending::<()>().await;
    }
}

fn invented(answer: &Answer) -> Response<AnyBody> {
    let body = Full::new(Bytes::from(answer.body.clone())).map_err(|never: Infallible| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).expect("a status");
    response.headers_mut().insert(CONTENT_TYPE, answer.content_type.parse().expect("a header"));
    response
}

/// Asks the API server, over a connection for this request alone.
async fn forward(mut request: Request<Incoming>, upstream: u16) -> Result<Response<Incoming>, String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await.map_err(|error| error.to_string())?;
    let stream = trusting::connect(stream).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // It ends with its response's body.
    tokio::spawn(connection);
    let host = format!("127.0.0.1:{upstream}");
    request.headers_mut().insert(hyper::header::HOST, host.parse().expect("a header"));
    sender.send_request(request).await.map_err(|error| error.to_string())
}

/// The true answer, after some lines of long ago, until the connection falls silent.
fn passed_on(truth: Response<Incoming>, before: Vec<Value>, silent: watch::Receiver<u64>) -> Response<AnyBody> {
    let (mut head, mut body) = truth.into_parts();
    head.headers.remove(TRANSFER_ENCODING);
    if !before.is_empty() {
        head.headers.remove(CONTENT_LENGTH);
    }
    let (frames, mut rest) = mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(8);
    tokio::spawn(async move {
        for line in before {
            // As API servers do, the type first.
            let line = format!("{{\"type\":{},\"object\":{}}}\n", line["type"], line["object"]);
            let _ = frames.send(Ok(Frame::data(Bytes::from(line)))).await;
        }
        loop {
            // Whoever hangs up ends the question to the API server, too.
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = frames.closed() => return,
            };
            let Some(frame) = frame else { return };
            tokio::select! {
                () = stays_heard(&silent) => {}
                () = frames.closed() => return,
            }
            if frames.send(frame).await.is_err() {
                return;
            }
        }
    });
    let stream = futures::stream::poll_fn(move |context| rest.poll_recv(context));
    Response::from_parts(head, BodyExt::boxed(StreamBody::new(stream)))
}
