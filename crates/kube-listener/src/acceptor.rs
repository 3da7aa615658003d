//! Accepts connections, gives them places and shakes hands.

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
    answering::{Connection, serve},
    patience::Patient,
    places::{Place, Places},
    talk::{Protocol, Talk},
};
use crate::{ConnectionLimits, Rejection};

/// A listener and what its connections share.
pub struct Acceptor {
    /// Where they come from.
    pub listener: TcpListener,
    /// How hands are shaken; none for plain HTTP.
    pub tls: Option<TlsAcceptor>,
    /// What they may ask for.
    pub limits: ConnectionLimits,
    /// Who is told of them.
    pub observer: Arc<dyn Observer>,
    /// Where each of them runs.
    pub tasks: TaskTracker,
}

/// A connection is open until this is dropped.
struct Open {
    observer: Arc<dyn Observer>,
    place: Arc<Place>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.observer.closed();
    }
}

impl Acceptor {
    /// Accepts until `stop.graceful`; the port is free afterwards.
    pub async fn run<H: Handler>(self, handler: Arc<H>, stop: Stop) {
        let places = Arc::new(Places::default());
        let mut failures = 0;
        loop {
            let accepted = tokio::select! {
                () = stop.graceful.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    failures = 0;
                    self.admit(stream, address, &places, &handler, &stop);
                }
                Err(failed) => {
                    failures += 1;
                    let pause = accept_pause(&failed, failures);
                    if !pause.is_zero() {
                        error!("cannot accept connections: {failed}; trying again in {pause:?}");
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
        places: &Arc<Places>,
        handler: &Arc<H>,
        stop: &Stop,
    ) {
        let place = match places.enter(address.ip(), &self.limits) {
            Ok(place) => place,
            Err(reason) => {
                self.observer.rejected(reason);
                debug!(peer = %address, ?reason, "closed a connection at once");
                return;
            }
        };
        self.observer.opened();
        let open = Open { observer: Arc::clone(&self.observer), place: Arc::new(place) };
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

impl Open {
    async fn serve<H: Handler>(
        self,
        stream: TcpStream,
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        limits: ConnectionLimits,
        handler: Arc<H>,
        stop: Stop,
    ) {
        // Answers are small and awaited; a delayed acknowledgement would cost 40 ms.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(peer = %address, "cannot set TCP_NODELAY: {error}");
        }
        let talk = Talk::new(limits);
        let stream = Patient::new(stream, limits.write, talk.clone());
        let connection = |protocol, certificates| Connection {
            protocol,
            peer: Peer {
                leaving: stop.graceful.clone(),
                place: Some(Arc::clone(&self.place)),
                ..Peer::new(address, certificates)
            },
            talk,
            observer: Arc::clone(&self.observer),
            limits,
        };
        let Some(tls) = tls else {
            return serve(stream, connection(Protocol::Http1, Vec::new()), handler, &stop).await;
        };
        let shaken = tokio::select! {
            shaken = timeout(limits.handshake, tls.accept(stream)) => shaken,
            () = stop.graceful.cancelled() => return,
        };
        match shaken {
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
                debug!(peer = %address, "TLS handshake failed: {error}");
            }
            Err(_) => {
                self.observer.rejected(Rejection::Handshake);
                debug!(peer = %address, "TLS handshake took too long");
            }
        }
    }
}

/// How long to wait after `accept` failed for the nth time in a row. A connection that broke before it was accepted says
/// nothing about the next; when descriptors or memory run out, trying again at once would only burn the CPU.
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
    #[case::a_broken_connection_is_none_of_our_business(io::ErrorKind::ConnectionAborted, 5, 0)]
    #[case::without_descriptors_we_wait(io::ErrorKind::Other, 1, 10)]
    #[case::and_wait_longer(io::ErrorKind::Other, 4, 80)]
    #[case::but_never_longer_than_a_second(io::ErrorKind::Other, 100, 1_000)]
    fn accepting_is_tried_again(#[case] kind: io::ErrorKind, #[case] failures: u32, #[case] millis: u64) {
        assert_eq!(accept_pause(&io::Error::from(kind), failures), Duration::from_millis(millis));
    }
}
