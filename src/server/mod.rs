//! The HTTP server of the process: listeners, routing, certificates, health, readiness and metrics.
//!
//! One TLS port answers admission and conversion reviews (HTTP/2 and HTTP/1.1); plain ports answer `/healthz`, `/readyz`, `/metrics` and `/configz`.
//! This module has listeners, limits, timeouts, shutdown and certificates. A [`Reviewer`] answers the reviews (crate `machine-api`), and a
//! [`FallbackHandler`] answers the views (`extension/`). Sources: spec/api-and-admission §9, §11, spec/extension-apiserver §4,
//! spec/deployment-and-set §1.3.

mod fallback;
mod handshake;
pub mod health;
mod log_limit;
mod observer;
mod plain;
mod reserved_ports;
mod routes;
mod status;
pub mod tls;
mod webhooks;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::{SupportedCipherSuite, crypto::ring};
use tokio::{net::TcpListener, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

pub use fallback::FallbackHandler;
pub use handshake::{ClientCertificates, TlsVersion};
pub use health::{Check, Gate, Health, Readiness};
pub use log_limit::LogLimit;
pub use plain::Profiling;
pub use reserved_ports::ReservedPorts;
pub use webhooks::{Answer, Lookup, Reply, Reviewer, answer_at};

use self::{
    handshake::tls_acceptor,
    observer::ConnectionObserver,
    routes::{Late, Routes},
    tls::CertificateHandle,
    webhooks::{Callers, Webhooks},
};
use crate::settings::LateRequests;
use kube_listener::{Acceptor, ConnectionLimits, RequestLimits, Stop};
use mcm_metrics::{Listener, Metrics};
use mcm_traces::Tracer;

/// Addresses and limits of the server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// TLS listener of the webhooks (`--secure-address`, `--secure-port`); `None` switches it off. Port 0 means any free port.
    pub secure: Option<SocketAddr>,
    /// Plain listeners (`--address` with `--port` and `--compat-port`).
    pub plain: Vec<SocketAddr>,
    /// Limits of connections.
    pub connections: ConnectionLimits,
    /// Limits of requests.
    pub requests: RequestLimits,
    /// Oldest TLS version that is accepted (`--tls-min-version`).
    pub tls_min_version: TlsVersion,
    /// Cipher suites that are accepted, the preferred first (`--tls-cipher-suites`).
    pub tls_cipher_suites: Vec<SupportedCipherSuite>,
    /// Whether clients of webhooks must send a certificate (`--webhook-client-ca`).
    pub client_certificates: ClientCertificates,
    /// Whether `/debug/pprof` is served (`--profiling`).
    pub profiling: Profiling,
    /// How long requests are served as usual after the replica has become unready (`--shutdown-delay-duration`, 5 s), so that clients first notice
    /// this.
    pub shutdown_delay: Duration,
    /// How long requests in flight may take after that (`--shutdown-timeout`, 30 s).
    pub shutdown_timeout: Duration,
    /// The answer to requests that arrive during the shutdown (`--shutdown-send-retry-after`).
    pub late_requests: LateRequests,
    /// Records spans of reviews (`--tracing-endpoint`).
    pub tracer: Tracer,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            secure: Some(SocketAddr::from(([0, 0, 0, 0], 9443))),
            plain: vec![SocketAddr::from(([0, 0, 0, 0], 10258)), SocketAddr::from(([0, 0, 0, 0], 10259))],
            connections: ConnectionLimits::default(),
            requests: RequestLimits::default(),
            tls_min_version: TlsVersion::V1_2,
            tls_cipher_suites: ring::DEFAULT_CIPHER_SUITES.into(),
            client_certificates: ClientCertificates::NotAsked,
            profiling: Profiling::Off,
            shutdown_delay: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(30),
            late_requests: LateRequests::FindNobody,
            tracer: Tracer::off(),
        }
    }
}

/// Why the server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address cannot be bound.
    #[error("cannot listen on {address} for {purpose}: {error}; free the port or choose another one with {flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The purpose of the address.
        purpose: &'static str,
        /// The error of the system.
        error: std::io::Error,
        /// The flag that sets the address.
        flag: &'static str,
    },
    /// The TLS settings contradict each other or cannot be read.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A server whose ports are bound but which does not answer yet.
pub struct Server {
    options: ServerOptions,
    secure: Option<(TcpListener, SocketAddr, tokio_rustls::TlsAcceptor)>,
    plain: Vec<(TcpListener, SocketAddr)>,
    health: Health,
    metrics: Metrics,
    accepting: Option<Check>,
    staying: Check,
    callers: Callers,
    fallback: Option<Arc<dyn FallbackHandler>>,
}

impl Server {
    /// Binds all ports, so that a port in use is reported before anything else starts. Registers the readiness checks
    /// `tls-listener` and `shutdown`.
    ///
    /// # Errors
    /// When a port is in use or the TLS settings are wrong.
    pub async fn bind(
        options: ServerOptions,
        certificate: &CertificateHandle,
        health: &Health,
        metrics: &Metrics,
    ) -> Result<Self, BindError> {
        Self::bind_over(ReservedPorts::default(), options, certificate, health, metrics).await
    }

    /// The same with ports that were reserved before.
    ///
    /// # Errors
    /// The errors of [`Server::bind`].
    pub async fn bind_over(
        mut reserved: ReservedPorts,
        options: ServerOptions,
        certificate: &CertificateHandle,
        health: &Health,
        metrics: &Metrics,
    ) -> Result<Self, BindError> {
        let mut plain = Vec::new();
        for address in &options.plain {
            plain.push(listen(&mut reserved, *address, "health and metrics", "--port or --compat-port").await?);
        }
        let secure = match options.secure {
            None => None,
            Some(address) => {
                let (listener, local) = listen(&mut reserved, address, "webhooks", "--secure-port").await?;
                let acceptor = tls_acceptor(
                    certificate.resolver(),
                    options.tls_min_version,
                    &options.tls_cipher_suites,
                    &options.client_certificates,
                )?;
                Some((listener, local, acceptor))
            }
        };
        let callers = Callers::of(&options.client_certificates);
        let accepting = secure.as_ref().map(|_| health.check("tls-listener", Gate::Readiness, "not accepting yet"));
        let staying = health.check("shutdown", Gate::Readiness, "not started");
        let (health, metrics) = (health.clone(), metrics.clone());
        Ok(Self { options, secure, plain, health, metrics, accepting, staying, callers, fallback: None })
    }

    /// Sets the handler of all requests on the TLS port that are not for webhooks, including health checks.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Arc<dyn FallbackHandler>) -> Self {
        self.fallback = Some(fallback);
        self
    }

    /// The address of the webhooks.
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(|(_, local, _)| *local)
    }

    /// The addresses of health and metrics, in the order of the options.
    pub fn plain_addresses(&self) -> Vec<SocketAddr> {
        self.plain.iter().map(|(_, local)| *local).collect()
    }

    /// Serves until `shutdown`, then drains. First the replica is not ready, and requests are served as usual for the delay. Then the requests in flight
    /// are finished within the timeout, while new connections are not accepted, or requests over them are asked to retry. The plain listeners serve to
    /// the end.
    pub async fn run(self, reviewer: Arc<dyn Reviewer>, shutdown: CancellationToken) {
        let Self { options, secure, plain, health, metrics, accepting, staying, callers, fallback } = self;
        let (secure_stop, plain_stop) = (Stop::default(), Stop::default());
        let (secure_tasks, plain_tasks) = (TaskTracker::new(), TaskTracker::new());
        let late = Late::default();
        let acceptor = |listener, which, tls, tasks: &TaskTracker| Acceptor {
            listener,
            tls,
            limits: options.connections,
            observer: Arc::new(ConnectionObserver::new(metrics.clone(), which)),
            tasks: tasks.clone(),
        };
        let plain_router = plain::router(health.clone(), metrics.clone(), options.profiling);
        for (listener, local) in plain {
            info!(address = %local, "serving health and metrics");
            let acceptor = acceptor(listener, Listener::Plain, None, &plain_tasks);
            let routes = Routes { webhooks: None, fallback: None, other: plain_router.clone(), late: Late::default() };
            plain_tasks.spawn(acceptor.run(Arc::new(routes), plain_stop.clone()));
        }
        if let Some((listener, local, tls)) = secure {
            info!(address = %local, "serving webhooks");
            let webhooks = Webhooks::new(reviewer, options.requests, callers, metrics.clone(), options.tracer.clone());
            let other = webhooks::router(health.clone());
            let acceptor = acceptor(listener, Listener::Secure, Some(tls), &secure_tasks);
            let routes = Routes { webhooks: Some(webhooks), fallback, other, late: late.clone() };
            secure_tasks.spawn(acceptor.run(Arc::new(routes), secure_stop.clone()));
        }
        if let Some(accepting) = accepting {
            accepting.pass();
        }
        staying.pass();
        shutdown.cancelled().await;
        staying.fail("the process is shutting down");
        tokio::time::sleep(options.shutdown_delay).await;
        let deadline = Instant::now() + options.shutdown_timeout;
        if options.late_requests == LateRequests::AreToldToRetry {
            late.begins.cancel();
            late.in_time.close();
            // Requests that are not finished at the deadline are aborted below.
            let _ = tokio::time::timeout_at(deadline, late.in_time.wait()).await;
        }
        drain(&secure_tasks, &secure_stop, deadline, "webhooks").await;
        drain(&plain_tasks, &plain_stop, deadline.max(Instant::now() + Duration::from_secs(1)), "health and metrics")
            .await;
    }
}

async fn listen(
    reserved: &mut ReservedPorts,
    address: SocketAddr,
    purpose: &'static str,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |error| BindError::Listen { address, purpose, error, flag };
    let listener = match reserved.take(address) {
        Some(listener) => listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener)),
        None => TcpListener::bind(address).await,
    };
    let listener = listener.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

async fn drain(tasks: &TaskTracker, stop: &Stop, deadline: Instant, what: &str) {
    tasks.close();
    stop.graceful.cancel();
    if tokio::time::timeout_at(deadline, tasks.wait()).await.is_err() {
        warn!(count = tasks.len(), name = what, "requests did not finish in time and are cut off");
        stop.abort.cancel();
        tasks.wait().await;
    }
}

#[cfg(test)]
mod tests;
