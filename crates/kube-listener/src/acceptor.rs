//! Accepts connections within the limits and does the TLS handshake.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use super::{
    Handler, Observer, Peer, Stop,
    activity::{Activity, Protocol},
    connection::{Connection, serve},
    limiter::{ConnectionLimiter, ConnectionPermit},
    timeouts::TimeoutStream,
};
use crate::{ConnectionLimits, Rejection};

/// A listener and what its connections share.
pub struct Acceptor {
    /// The listener.
    pub listener: TcpListener,
    /// Does the TLS handshake. `None` for plain HTTP.
    pub tls: Option<TlsAcceptor>,
    /// The limits of each connection.
    pub limits: ConnectionLimits,
    /// Receives what happens on connections.
    pub observer: Arc<dyn Observer>,
    /// Tracks the task of each connection.
    pub tasks: TaskTracker,
}

/// An open connection. When the value is dropped, the connection counts as closed.
struct OpenConnection {
    observer: Arc<dyn Observer>,
    permit: Arc<ConnectionPermit>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.observer.closed();
    }
}

impl Acceptor {
    /// Accepts connections until `stop.graceful`. The port is free afterwards.
    pub async fn run<H: Handler>(self, handler: Arc<H>, stop: Stop) {
        let limiter = Arc::new(ConnectionLimiter::default());
        let mut failures = 0;
        loop {
            let accepted = tokio::select! {
                () = stop.graceful.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    failures = 0;
                    self.admit(stream, address, &limiter, &handler, &stop);
                }
                Err(failed) => {
                    failures += 1;
                    let pause = accept_pause(&failed, failures);
                    if !pause.is_zero() {
                        error!(
                            error = %failed, retry_in_ms = pause.as_millis(),
                            "cannot accept connections; trying again"
                        );
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
    }

    fn admit<H: Handler>(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        limiter: &Arc<ConnectionLimiter>,
        handler: &Arc<H>,
        stop: &Stop,
    ) {
        let permit = match limiter.acquire(address.ip(), &self.limits) {
            Ok(permit) => permit,
            Err(reason) => {
                self.observer.rejected(reason);
                debug!(peer = %address, code = ?reason, "closed a connection at once");
                return;
            }
        };
        self.observer.opened();
        let open = OpenConnection { observer: Arc::clone(&self.observer), permit: Arc::new(permit) };
        let (tls, limits, handler, stop) = (self.tls.clone(), self.limits, Arc::clone(handler), stop.clone());
        let mut cut = stop.cut.subscribe();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                Ok(()) = cut.changed() => {}
                () = open.serve(stream, address, tls, limits, handler, stop) => {}
            }
        });
    }
}

impl OpenConnection {
    async fn serve<H: Handler>(
        self,
        stream: TcpStream,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        limits: ConnectionLimits,
        handler: Arc<H>,
        stop: Stop,
    ) {
        // Answers are small, and clients wait for them. Without this, a delayed acknowledgement would cost 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(peer = %address, %error, "cannot set TCP_NODELAY");
        }
        let activity = Activity::new(limits);
        let stream = TimeoutStream::new(stream, limits.write, activity.clone());
        let connection = |protocol, certificates| Connection {
            protocol,
            peer: Peer {
                shutdown: stop.graceful.clone(),
                permit: Some(Arc::clone(&self.permit)),
                ..Peer::new(address, certificates)
            },
            activity,
            observer: Arc::clone(&self.observer),
            limits,
        };
        let Some(tls) = tls else {
            return serve(stream, connection(Protocol::Http1, Vec::new()), handler, &stop).await;
        };
        let handshake = tokio::select! {
            handshake = timeout(limits.handshake, tls.accept(stream)) => handshake,
            () = stop.graceful.cancelled() => return,
        };
        match handshake {
            Ok(Ok(stream)) => {
                let session = stream.get_ref().1;
                let certificates = session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
                let protocol = match session.alpn_protocol() {
                    Some(b"h2") => Protocol::Http2,
                    _ => Protocol::Http1,
                };
                serve(stream, connection(protocol, certificates), handler, &stop).await;
            }
            Ok(Err(error)) => {
                self.observer.rejected(Rejection::Handshake);
                debug!(peer = %address, %error, "TLS handshake failed");
            }
            Err(_) => {
                self.observer.rejected(Rejection::Handshake);
                debug!(peer = %address, "TLS handshake took too long");
            }
        }
    }
}

/// How long to wait after `accept` failed for the nth time in a row. A connection that broke before it was accepted says nothing about the next one.
/// When descriptors or memory run out, an immediate retry would only use CPU time.
fn accept_pause(error: &io::Error, failures: u32) -> Duration {
    match error.kind() {
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted => {
            Duration::ZERO
        }
        _ => Duration::from_millis(5).saturating_mul(1 << failures.min(8)).min(Duration::from_secs(1)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::a_broken_connection_delays_nothing(io::ErrorKind::ConnectionAborted, 5, 0)]
    #[case::without_descriptors_we_wait(io::ErrorKind::Other, 1, 10)]
    #[case::and_wait_longer(io::ErrorKind::Other, 4, 80)]
    #[case::but_never_longer_than_a_second(io::ErrorKind::Other, 100, 1_000)]
    fn accepting_is_tried_again(#[case] kind: io::ErrorKind, #[case] failures: u32, #[case] millis: u64) {
        assert_eq!(accept_pause(&io::Error::from(kind), failures), Duration::from_millis(millis));
    }
}
