//! The connections of the proxy.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response, header, request::Parts};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{Fault, ReceivedRequest, Reply, Shared, Upstream, lock};

type HttpClient = Client<HttpConnector, Full<Bytes>>;
type Body = BoxBody<Bytes, io::Error>;

/// Serves connections. All of them end when this future is dropped.
pub async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let client: HttpClient = Client::builder(TokioExecutor::new()).build_http();
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (client, shared) = (client.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            let service = service_fn(|request| answer(&shared, &client, request));
            // The result is ignored, because a fault that closes the connection is an error here.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// The response to a request. An error closes the connection.
async fn answer(shared: &Arc<Shared>, client: &HttpClient, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let received = ReceivedRequest::new(&head, body);
    lock(&shared.requests).push(received.clone());
    let (delay, fault) = faults(shared, &received);
    tokio::time::sleep(delay).await;
    let closed = || io::Error::new(io::ErrorKind::ConnectionReset, "a fault");
    match fault {
        Some(Fault::Drop) => Err(closed()),
        Some(Fault::NoResponse) => std::future::pending().await,
        Some(Fault::Answer(reply)) => response(reply),
        Some(Fault::Stale) => {
            let old = lock(&shared.remembered).get(&received.key()).cloned();
            response(match old {
                Some(reply) => reply,
                None => forwarded(shared, client, head, received).await?,
            })
        }
        fault => {
            let reply = forwarded(shared, client, head, received).await?;
            match fault {
                Some(Fault::LoseReply) => Err(closed()),
                Some(Fault::Cut(length)) => cut(reply, length),
                _ => response(reply),
            }
        }
    }
}

/// The total delay of a request, and the first other fault.
fn faults(shared: &Shared, received: &ReceivedRequest) -> (Duration, Option<Fault>) {
    let (mut delay, mut met) = (Duration::ZERO, None);
    for rule in lock(&shared.rules).iter_mut() {
        // Only one fault happens, so later rules are not used up.
        if met.is_some() && !rule.is_delay() {
            continue;
        }
        match rule.fault_for(received) {
            Some(Fault::Delay(more)) => delay += more,
            Some(fault) => met = Some(fault),
            None => {}
        }
    }
    (delay, met)
}

/// The response of the server behind the proxy. It is awaited even if the client closes its connection.
async fn forwarded(
    shared: &Arc<Shared>,
    client: &HttpClient,
    head: Parts,
    received: ReceivedRequest,
) -> io::Result<Reply> {
    let (shared, client) = (Arc::clone(shared), client.clone());
    let forwarding = tokio::spawn(async move {
        let reply = match identity(&shared, &received) {
            None => sent(&shared, &client, &head, &received).await?,
            Some(identity) => {
                let mut made = shared.made.lock().await;
                if let Some(reply) = made.get(&identity) {
                    reply.clone()
                } else {
                    let reply = sent(&shared, &client, &head, &received).await?;
                    // A failed request has no effect, so it may be forwarded again.
                    if reply.status.is_success() {
                        made.insert(identity, reply.clone());
                    }
                    reply
                }
            }
        };
        lock(&shared.remembered).entry(received.key()).or_insert_with(|| reply.clone());
        Ok(reply)
    });
    forwarding.await.map_err(io::Error::other)?
}

/// A key that is equal for all repetitions of a request that is forwarded only once. `None` for any other request.
fn identity(shared: &Shared, received: &ReceivedRequest) -> Option<String> {
    let token = lock(&shared.token).as_deref().map(|name| received.parameter(name).to_owned());
    let once = || lock(&shared.once).iter().any(|matches| matches(received)).then(|| received.key());
    token.filter(|token| !token.is_empty()).or_else(once)
}

async fn sent(shared: &Shared, client: &HttpClient, head: &Parts, received: &ReceivedRequest) -> io::Result<Reply> {
    let upstream = match &shared.upstream {
        Upstream::Url(url) => url,
        Upstream::Answers(answer) => return Ok(answer(received)),
    };
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder().method(&head.method).uri(format!("{upstream}{path}"));
    for (name, value) in &head.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(received.body.clone())).map_err(io::Error::other)?;
    let answer = client.request(request).await.map_err(io::Error::other)?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    Ok(Reply { status: head.status, headers: passed_on(&head.headers), body })
}

/// The headers of a response, without the headers of the connection.
fn passed_on(headers: &HeaderMap) -> Vec<(String, String)> {
    let of_connection = [header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::DATE];
    let kept = headers.iter().filter(|(name, _)| !of_connection.contains(name));
    kept.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}

fn response(reply: Reply) -> io::Result<Response<Body>> {
    let body = Full::new(reply.body.clone()).map_err(|never: Infallible| match never {}).boxed();
    with_head(reply, body)
}

/// A response with the length of its whole body, but only the first `length` bytes of it.
fn cut(mut reply: Reply, length: usize) -> io::Result<Response<Body>> {
    let whole = reply.body.len();
    let begin = reply.body.slice(..length.min(whole));
    let ends = io::Error::new(io::ErrorKind::ConnectionReset, "a fault");
    let body = StreamBody::new(stream::iter([Ok(Frame::data(begin)), Err(ends)]));
    reply.headers.push((header::CONTENT_LENGTH.to_string(), whole.to_string()));
    with_head(reply, BodyExt::boxed(body))
}

fn with_head(reply: Reply, body: Body) -> io::Result<Response<Body>> {
    let mut answer = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        answer = answer.header(name, value);
    }
    answer.body(body).map_err(io::Error::other)
}
