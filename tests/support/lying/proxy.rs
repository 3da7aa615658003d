//! The liar of a manager that is a process of its own: a proxy in front of an API server that answers in its place, loses
//! answers, falls silent, or shows what was long ago.
//!
//! A client speaks plain HTTP/1.1 to it, with its own credentials; the proxy speaks TLS to the API server, over one connection
//! for each of the client's. [`Liar::told`] waits until a lie has been told.

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

use super::{Answer, Lie, Rule, Script, Told, Tried, is_counted, line_of};
use crate::support::{trusting, wait_until};

type AnyBody = BoxBody<Bytes, hyper::Error>;

/// The proxy. It ends with the test.
pub struct Liar {
    port: u16,
    script: Arc<Script>,
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

    /// Where it is reached.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// From now on this lie is told.
    pub fn tells(&self, rule: Rule) -> Told {
        self.script.tells(rule)
    }

    /// A rule tells no more lies; answers how many it has told.
    pub fn stops(&self, told: Told) -> usize {
        self.script.stops(told)
    }

    /// Waits until a lie has been told so many times.
    pub async fn told(&self, told: Told, times: usize, within: Duration) {
        let what = format!("a lie to be told {times} times");
        wait_until(&what, within, || async { self.script.has_told(told, times) }).await;
    }

    /// What the manager has tried to write until now, but for its Leases; the count begins anew.
    pub fn take_tried(&self) -> Vec<Tried> {
        self.script.take_tried()
    }

    /// All connections that are open now stay open and carry nothing any more; new ones work.
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
    stays_heard(&silent).await;
    let lie = script.lie_about(&request);
    let request = noted(request, script).await?;
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

/// The request, once it is written down if it is a write of the manager; none if it breaks off.
async fn noted(request: Request<Incoming>, script: &Script) -> Option<Request<AnyBody>> {
    if !is_counted(&request) {
        return Some(request.map(BodyExt::boxed));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    script.notes(&head, &body);
    Some(Request::from_parts(head, Full::new(body).map_err(|never: Infallible| match never {}).boxed()))
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
async fn forward(mut request: Request<AnyBody>, upstream: u16) -> Result<Response<Incoming>, String> {
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
            let _ = frames.send(Ok(Frame::data(Bytes::from(line_of(&line))))).await;
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
