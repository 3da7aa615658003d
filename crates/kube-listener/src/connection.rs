//! Answers the requests of one connection until it ends, reaches its maximal age, is idle for too long or is stopped.

use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::{Body, HttpBody},
    response::IntoResponse,
};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderValue, Request, Response, header::CONNECTION};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, error};

use super::{
    Handler, Observer, Peer, Stop,
    activity::{Activity, Protocol, RequestGuard},
    is_health,
    limiter::Scope,
};
use crate::{ConnectionLimits, Refusal, Rejection};

/// A connection whose requests are answered.
pub(super) struct Connection {
    pub(super) protocol: Protocol,
    pub(super) peer: Peer,
    pub(super) activity: Activity,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) limits: ConnectionLimits,
}

pub(super) async fn serve<I, H>(io: I, connection: Connection, handler: Arc<H>, stop: &Stop)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let Connection { protocol, peer, activity, observer, limits } = connection;
    activity.start(protocol);
    let (address, close_requested, client) = (peer.address, peer.close.clone(), activity.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut guard = activity.request();
        let (handler, peer, observer) = (Arc::clone(&handler), peer.clone(), Arc::clone(&observer));
        async move {
            let mut response = answer(&*handler, &*observer, &peer, &limits, request).await;
            if protocol == Protocol::Http1 && peer.close.is_cancelled() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            guard.set_answered();
            Ok::<_, Infallible>(response.map(|body| ResponseBody { body, _guard: guard }))
        }
    });
    let builder = http_builder(protocol, &limits);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // Connections that were opened together are not closed together, because their ports differ.
    let spread = limits.max_age.mul_f64(f64::from(address.port() % 64) / 640.0);
    let mut max_age = std::pin::pin!(sleep(limits.max_age + spread));
    // A client that does not read its answers must not keep a closing connection open.
    let mut cut_off = std::pin::pin!(sleep(limits.max_age + spread + limits.linger));
    let mut idle_timer = std::pin::pin!(sleep(limits.idle));
    let mut closing = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!(peer = %address, %error, "connection ended");
                }
                return;
            }
            () = stop.graceful.cancelled(), if !closing => {}
            () = close_requested.cancelled(), if !closing => {}
            () = max_age.as_mut(), if !closing => {}
            () = idle_timer.as_mut(), if !closing => {
                let now = Instant::now();
                // The idle time does not run while a request is being answered, so the timer waits for a whole idle
                // time again.
                let deadline = client.idle_deadline().unwrap_or(now + limits.idle);
                if deadline > now {
                    idle_timer.set(sleep_until(deadline));
                    continue;
                }
            }
            () = cut_off.as_mut() => {
                debug!(peer = %address, "closed a connection of the maximal age whose requests do not end");
                return;
            }
            () = client.exhausted().cancelled() => {
                debug!(peer = %address, "closed a connection whose client resets its requests");
                return;
            }
            () = stop.abort.cancelled() => return,
        }
        closing = true;
        connection.as_mut().graceful_shutdown();
    }
}

/// Why a request is refused before it reaches its handler. `None` if it is not refused.
fn refusal<B>(request: &Request<B>, peer: &Peer, limits: &ConnectionLimits) -> Option<Refusal> {
    let path_bytes = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let scope = peer.permit.as_ref().map_or(Scope::All, |permit| permit.scope);
    if path_bytes > limits.path_bytes {
        Some(Refusal::PathTooLong { limit: limits.path_bytes })
    } else if request.headers().keys_len() > limits.header_fields {
        Some(Refusal::TooManyFields { limit: limits.header_fields })
    } else if scope == Scope::Health && !is_health(request.uri().path()) {
        Some(Refusal::TooManyConnections)
    } else {
        if scope == Scope::Health {
            peer.close_connection();
        }
        None
    }
}

/// The answer to a request. A panic of its handler fails this request alone.
async fn answer<H: Handler>(
    handler: &H,
    observer: &dyn Observer,
    peer: &Peer,
    limits: &ConnectionLimits,
    request: Request<Incoming>,
) -> Response<Body> {
    let (began, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
    let response = if let Some(refusal) = refusal(&request, peer, limits) {
        if refusal == Refusal::TooManyConnections {
            observer.rejected(Rejection::ConnectionLimit);
        }
        peer.close_connection();
        refusal.response(request.version())
    } else {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        AssertUnwindSafe(handler.answer(request)).catch_unwind().await.unwrap_or_else(|_| {
            error!(operation = %method, path = uri.path(), "a request handler panicked");
            Refusal::Panic.into_response()
        })
    };
    observer.answered(peer.address, &method, uri.path(), response.status(), began.elapsed());
    response
}

/// The body of a response. Its request counts as running until the body is dropped.
struct ResponseBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn http_builder(protocol: Protocol, limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    let http2 = &limits.http2;
    // `TimeoutStream` enforces the deadline of heads, because hyper would also count the idle time before a head.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(limits.header_fields)
        .max_buf_size(usize::try_from(limits.header_bytes).unwrap_or(64 * 1024));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(limits.header_bytes)
        .max_concurrent_streams(http2.streams)
        .initial_stream_window_size(http2.stream_window)
        .initial_connection_window_size(http2.connection_window)
        .max_frame_size(http2.frame_bytes)
        .keep_alive_interval(http2.ping_interval)
        .keep_alive_timeout(http2.ping_timeout);
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    }
}
