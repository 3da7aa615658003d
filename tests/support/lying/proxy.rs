//! The lying network of a manager in a separate process: a proxy before an API server. It answers in its place, loses answers, stops
//! answering, or shows old objects.
//!
//! A client uses plain HTTP/1.1 with its own credentials. The proxy uses TLS to the API server, with one connection for each request.
//! [`Liar::applied`] waits until a lie has been applied.

use std::{convert::Infallible, net::Ipv4Addr, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING},
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{Answer, Lie, Rule, RuleId, Script, WriteAttempt, is_counted, line_of};
use crate::support::{trusting, wait_until};

type AnyBody = BoxBody<Bytes, hyper::Error>;

/// The proxy. It ends with the test.
pub struct Liar {
    port: u16,
    script: Arc<Script>,
    /// Connections that were opened in an earlier age transfer nothing any more.
    age: watch::Sender<u64>,
    _tasks: JoinSet<()>,
}

impl Liar {
    /// A proxy before the API server at this loopback address (`https://127.0.0.1:port`). Without rules it passes true answers.
    pub async fn before(url: &str) -> Self {
        let upstream: u16 = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port of loopback");
        let port = listener.local_addr().expect("a bound socket").port();
        let script = Arc::<Script>::default();
        let age = watch::Sender::new(0);
        let mut tasks = JoinSet::new();
        let (kept, ages) = (Arc::clone(&script), age.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                connections.spawn(serve(stream, upstream, Arc::clone(&kept), ages.subscribe()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { port, script, age, _tasks: tasks }
    }

    /// URL of the proxy.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) -> RuleId {
        self.script.add(rule)
    }

    /// Ends a rule. Returns the number of its lies.
    pub fn end(&self, rule: RuleId) -> usize {
        self.script.end(rule)
    }

    /// Waits until a rule has applied its lie this number of times.
    pub async fn applied(&self, rule: RuleId, times: usize, within: Duration) {
        let what = format!("a lie to be applied {times} times");
        wait_until(&what, within, || async { self.script.has_applied(rule, times) }).await;
    }

    /// The writes that the manager has tried since the last call, except the writes of its Leases.
    pub fn take_attempts(&self) -> Vec<WriteAttempt> {
        self.script.take_attempts()
    }

    /// All open connections stay open and transfer nothing any more. New ones work.
    pub fn falls_silent(&self) {
        self.age.send_modify(|age| *age += 1);
    }
}

/// One connection of a client.
async fn serve(stream: TcpStream, upstream: u16, script: Arc<Script>, mut ages: watch::Receiver<u64>) {
    ages.mark_unchanged();
    let silent = ages.clone();
    let service = service_fn(move |request| {
        let (script, silent) = (Arc::clone(&script), silent.clone());
        async move {
            match answer(request, upstream, &script, silent).await {
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
    script: &Script,
    silent: watch::Receiver<u64>,
) -> Option<Response<AnyBody>> {
    while_connected(&silent).await;
    let lie = script.lie_about(&request);
    let request = recorded(request, script).await?;
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
    while_connected(&silent).await;
    Some(passed_on(truth, before, silent))
}

/// Records a write of the manager, and returns the request; none if the connection breaks.
async fn recorded(request: Request<Incoming>, script: &Script) -> Option<Request<AnyBody>> {
    if !is_counted(&request) {
        return Some(request.map(BodyExt::boxed));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    script.record(&head, &body);
    Some(Request::from_parts(head, Full::new(body).map_err(|never: Infallible| match never {}).boxed()))
}

/// Returns at once while the connection works, and never after it has become silent.
async fn while_connected(silent: &watch::Receiver<u64>) {
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

/// Forwards a request to the API server, on its own connection.
async fn forward(mut request: Request<AnyBody>, upstream: u16) -> Result<Response<Incoming>, String> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)).await.map_err(|error| error.to_string())?;
    let stream = trusting::connect(stream).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // The connection ends with the body of its response.
    tokio::spawn(connection);
    let host = format!("127.0.0.1:{upstream}");
    request.headers_mut().insert(hyper::header::HOST, host.parse().expect("a header"));
    sender.send_request(request).await.map_err(|error| error.to_string())
}

/// The true answer, after some old lines, until the connection becomes silent.
fn passed_on(truth: Response<Incoming>, before: Vec<Value>, silent: watch::Receiver<u64>) -> Response<AnyBody> {
    let (mut head, mut body) = truth.into_parts();
    head.headers.remove(TRANSFER_ENCODING);
    if !before.is_empty() {
        head.headers.remove(CONTENT_LENGTH);
    }
    let (frames, mut rest) = mpsc::channel::<Result<Frame<Bytes>, hyper::Error>>(8);
    tokio::spawn(async move {
        for line in before {
            let _ = frames.send(Ok(Frame::data(Bytes::from(line_of(&line))))).await;
        }
        loop {
            // When the client closes its connection, the request to the API server ends too.
            let frame = tokio::select! {
                frame = body.frame() => frame,
                () = frames.closed() => return,
            };
            let Some(frame) = frame else { return };
            tokio::select! {
                () = while_connected(&silent) => {}
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
