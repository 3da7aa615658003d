//! The plain listener, and ports that are reserved or in use.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::rig::{Rig, get_on, options, test_metrics};
use crate::server::{
    Gate, Health, Profiling, ReservedPorts, Server, ServerOptions,
    tls::{CertMode, CertificateManager, plan::PlanSettings},
};

#[tokio::test]
async fn s_cli_08_health_metrics_and_the_rest_are_answered() {
    let rig = Rig::start(options()).await;
    assert_eq!(rig.get("/healthz").await, (200, "OK".to_owned()));
    assert_eq!(rig.get("/livez").await, (200, "OK".to_owned()));
    assert_eq!(rig.get("/configz").await, (200, "{}".to_owned()));
    assert_eq!(rig.get("/readyz").await, (200, "ok".to_owned()));
    let (code, metrics) = rig.get("/metrics").await;
    assert!(code == 200 && metrics.contains("# TYPE mcm_certificate_expiry_seconds gauge"));
    assert_eq!(rig.get("/debug/pprof/profile").await.0, 404);
    assert_eq!(rig.get("/nothing").await.0, 404);
}

#[tokio::test]
async fn s_cli_08_readiness_names_every_check_and_a_dead_process_is_unhealthy() {
    let rig = Rig::start(options()).await;
    let (code, report) = rig.get("/readyz?verbose").await;
    let expected =
        "[+]ping ok\n[+]certificate ok\n[+]ca-bundles ok\n[+]tls-listener ok\n[+]shutdown ok\nreadyz check passed\n";
    assert_eq!((code, report.as_str()), (200, expected));
    rig.health.check("thing", Gate::Readiness, "is broken");
    let (code, report) = rig.get("/readyz").await;
    assert!(code == 500 && report.contains("[-]thing failed: is broken\n"), "{report}");
    rig.health.declare_dead("the lease is lost");
    assert_eq!(rig.get("/healthz").await, (500, "Unhealthy".to_owned()));
}

#[tokio::test]
async fn health_is_answered_over_tls_too() {
    let rig = Rig::start(options()).await;
    let mut raw = rig.h1().await;
    raw.send("GET /readyz HTTP/1.1\r\nHost: mcm\r\n\r\n").await;
    assert!(raw.response().await.ends_with("\r\n\r\nok"));
}

#[tokio::test]
async fn a_request_for_a_profile_is_answered_with_the_reason_why_there_is_none() {
    let rig = Rig::start(ServerOptions { profiling: Profiling::On, ..options() }).await;
    assert_eq!(rig.get("/debug/pprof").await.0, 501);
}

#[tokio::test]
async fn a_reserved_port_belongs_to_the_server() {
    let (reserved, [plain]) = ReservedPorts::of_loopback().unwrap();
    let plain = SocketAddr::from(([127, 0, 0, 1], plain));
    assert!(std::net::TcpListener::bind(plain).is_err(), "no other process can bind it");
    // This client connects before the server runs, and waits.
    let early = TcpStream::connect(plain).await.unwrap();
    let rig = Rig::start_over(reserved, ServerOptions { plain: vec![plain], ..options() }).await;
    assert_eq!(rig.plain, plain);
    assert_eq!(get_on(early, "/healthz").await, (200, "OK".to_owned()));
}

#[tokio::test]
async fn a_port_in_use_is_reported_before_anything_runs() {
    let rig = Rig::start(options()).await;
    let (health, metrics) = (Health::default(), test_metrics());
    let mode = CertMode::Dev { settings: PlanSettings::for_names(super::rig::names()), targets: Vec::new() };
    let manager = CertificateManager::new(None, super::rig::certificate_settings(mode), &metrics, &health).unwrap();
    let taken = ServerOptions { secure: Some(rig.secure), ..options() };
    let error = Server::bind(taken, &manager.handle(), &health, &metrics).await.err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot listen on {} for webhooks: ", rig.secure)), "{error}");
    assert!(error.ends_with("choose another one with --secure-port"), "{error}");
}
