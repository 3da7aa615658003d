//! Answers the requests of one connection until it ends, grows old, has nothing to ask or is stopped.

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
    Handler, Observer, Peer, Stop, is_health,
    places::Admitted,
    talk::{Asked, Protocol, Talk},
};
use crate::{ConnectionLimits, Refusal, Rejection};

/// A connection over which requests may come.
pub(super) struct Connection {
    pub(super) protocol: Protocol,
    pub(super) peer: Peer,
    pub(super) talk: Talk,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) limits: ConnectionLimits,
}

pub(super) async fn serve<I, H>(io: I, connection: Connection, handler: Arc<H>, stop: &Stop)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let Connection { protocol, peer, talk, observer, limits } = connection;
    talk.begins(protocol);
    let (address, asked_to_end, heard) = (peer.address, peer.ending.clone(), talk.clone());
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let mut asked = talk.request();
        let (handler, peer, observer) = (Arc::clone(&handler), peer.clone(), Arc::clone(&observer));
        async move {
            let mut answered = answer(&*handler, &*observer, &peer, &limits, request).await;
            if protocol == Protocol::Http1 && peer.ending.is_cancelled() {
                answered.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            asked.answered();
            Ok::<_, Infallible>(answered.map(|body| OnItsWay { body, _asked: asked }))
        }
    });
    let builder = http_builder(protocol, &limits);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    // The port spreads connections that were made together.
    let spread = limits.max_age.mul_f64(f64::from(address.port() % 64) / 640.0);
    let mut old_age = std::pin::pin!(sleep(limits.max_age + spread));
    // Whoever does not take the answers to what is under way is not waited for without end.
    let mut cut_off = std::pin::pin!(sleep(limits.max_age + spread + limits.linger));
    let mut idleness = std::pin::pin!(sleep(limits.idle));
    let mut ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!(peer = %address, "connection ended: {error}");
                }
                return;
            }
            () = stop.graceful.cancelled(), if !ending => {}
            () = asked_to_end.cancelled(), if !ending => {}
            () = old_age.as_mut(), if !ending => {}
            () = idleness.as_mut(), if !ending => {
                let now = Instant::now();
                // The next time is never later than idleness could end: while something is answered, it has not begun.
                let ends = heard.idleness_ends().unwrap_or(now + limits.idle);
                if ends > now {
                    idleness.set(sleep_until(ends));
                    continue;
                }
            }
            () = cut_off.as_mut() => {
                debug!(peer = %address, "cut off an old connection whose requests do not end");
                return;
            }
            () = heard.worn_out().cancelled() => {
                debug!(peer = %address, "cut off a connection that takes back what it asks for");
                return;
            }
            () = stop.abort.cancelled() => return,
        }
        ending = true;
        connection.as_mut().graceful_shutdown();
    }
}

/// Why a request gets no answer, whatever it asks for, if so.
fn refusal<B>(request: &Request<B>, peer: &Peer, limits: &ConnectionLimits) -> Option<Refusal> {
    let path_bytes = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let admitted = peer.place.as_ref().map_or(Admitted::Fully, |place| place.admitted);
    if path_bytes > limits.path_bytes {
        Some(Refusal::PathTooLong { limit: limits.path_bytes })
    } else if request.headers().keys_len() > limits.header_fields {
        Some(Refusal::TooManyFields { limit: limits.header_fields })
    } else if admitted == Admitted::ForHealth && !is_health(request.uri().path()) {
        Some(Refusal::Crowded)
    } else {
        if admitted == Admitted::ForHealth {
            peer.end_connection();
        }
        None
    }
}

/// The answer to a request; a panic of its handler ends nothing else.
async fn answer<H: Handler>(
    handler: &H,
    observer: &dyn Observer,
    peer: &Peer,
    limits: &ConnectionLimits,
    request: Request<Incoming>,
) -> Response<Body> {
    let (began, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
    let answered = if let Some(refusal) = refusal(&request, peer, limits) {
        if refusal == Refusal::Crowded {
            observer.rejected(Rejection::ConnectionLimit);
        }
        peer.end_connection();
        refusal.response(request.version())
    } else {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer.clone());
        AssertUnwindSafe(handler.answer(request)).catch_unwind().await.unwrap_or_else(|_| {
            error!(%method, path = uri.path(), "a request handler panicked");
            Refusal::Panic.into_response()
        })
    };
    observer.answered(peer.address, &method, uri.path(), answered.status(), began.elapsed());
    answered
}

/// A body that is being sent; its request is over when this is dropped.
struct OnItsWay {
    body: Body,
    _asked: Asked,
}

impl HttpBody for OnItsWay {
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
    // Heads have their own deadline, which idle connections have not.
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
