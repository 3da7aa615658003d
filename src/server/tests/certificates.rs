//! Certificates that change while connections are open.

use std::{path::Path, time::Duration};

use http::StatusCode;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::rig::{
    H2, Rig, certificate_settings, client_config, connect, connect_as, names, options, soon, test_metrics, until,
};
use crate::server::{
    Health,
    tls::{
        CertMode, CertificateError, CertificateManager, CertificateSettings, NamedBy, PairFiles, SniPair,
        authority::{Authority, CertSecret},
        plan::{CertPlan, PlanSettings, carry_out},
    },
};

fn a_pair(serial: u8) -> CertSecret {
    let settings = PlanSettings::for_names(names());
    let serial = move || [serial; 16];
    carry_out(&CertPlan::Create, None, jiff::Timestamp::now(), &settings, serial).unwrap().unwrap()
}

fn write(folder: &Path, certificate: &str, key: &str) {
    std::fs::write(folder.join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.join("tls.key"), key).unwrap();
}

fn files_mode(folder: &Path) -> CertMode {
    CertMode::Files { files: files(folder), interval: Duration::from_millis(10) }
}

fn files(folder: &Path) -> PairFiles {
    PairFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key"), named_by: NamedBy::FileFlags }
}

/// Whether the certificate of the server is the certificate of this pair.
fn shows(stream: &TlsStream<TcpStream>, pair: &CertSecret) -> bool {
    stream.get_ref().1.peer_certificates().unwrap()[0] == *pair.serving.leaf().der()
}

#[tokio::test]
async fn p15_a_new_pair_serves_the_next_handshake_while_old_connections_live() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (a_pair(1), a_pair(2));
    write(folder.path(), &old.serving.chain_pem(), &old.serving.key_pem());
    let rig = Rig::start_with(options(), files_mode(folder.path())).await;
    let stream = connect(rig.secure, old.bundle_pem().as_bytes(), "h2").await.unwrap();
    assert!(shows(&stream, &old));
    let client = H2::over(stream).await;

    write(folder.path(), &new.serving.chain_pem(), &new.serving.key_pem());
    let both = format!("{}{}", old.bundle_pem(), new.bundle_pem());
    soon(async {
        loop {
            assert_eq!(client.post("/validate", "{}").await.0, StatusCode::OK, "the old connection lives");
            let stream = connect(rig.secure, both.as_bytes(), "h2").await.expect("no handshake fails meanwhile");
            if shows(&stream, &new) {
                break;
            }
        }
    })
    .await;
    assert_eq!(client.post("/validate", "{}").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_pair_that_does_not_match_is_refused_and_the_old_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (old, other) = (a_pair(1), a_pair(2));
    write(folder.path(), &old.serving.chain_pem(), &old.serving.key_pem());
    let rig = Rig::start_with(options(), files_mode(folder.path())).await;
    for (certificate, key) in [(other.serving.chain_pem(), old.serving.key_pem()), ("no PEM".to_owned(), String::new())]
    {
        let refused = || {
            let text = rig.metrics.render().unwrap();
            let line =
                text.lines().find(|line| line.starts_with("mcm_certificate_reload_failures_total{")).map(str::to_owned);
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).unwrap_or(0)
        };
        let before = refused();
        write(folder.path(), &certificate, &key);
        until(|| refused() > before).await;
        let stream = connect(rig.secure, old.bundle_pem().as_bytes(), "h2").await.unwrap();
        assert!(shows(&stream, &old));
    }
    assert_eq!(rig.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn names_may_have_a_pair_of_their_own() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (usual, own) = (a_pair(1), a_pair(2));
    write(folder.path(), &usual.serving.chain_pem(), &usual.serving.key_pem());
    let names = PairFiles { named_by: NamedBy::SniFlag, ..files(other.path()) };
    let settings = CertificateSettings {
        sni: vec![SniPair { files: names, names: vec!["mcm.ns.svc".to_owned()], interval: Duration::from_millis(10) }],
        ..certificate_settings(files_mode(folder.path()))
    };
    let rig = Rig::start_with_settings(options(), settings).await;
    until(|| rig.health.report().contains("tls.crt (--tls-sni-cert-key): No such file")).await;
    let both = format!("{}{}", usual.bundle_pem(), own.bundle_pem());
    assert!(shows(&connect(rig.secure, both.as_bytes(), "h2").await.unwrap(), &usual), "the name has no pair yet");
    write(other.path(), &own.serving.chain_pem(), &own.serving.key_pem());
    until(|| rig.health.report().contains("[+]sni-certificates ok")).await;
    assert!(shows(&connect(rig.secure, both.as_bytes(), "h2").await.unwrap(), &own));
    let nameless = connect_as(rig.secure, client_config(both.as_bytes(), "h2"), "127.0.0.1").await.unwrap();
    assert!(shows(&nameless, &usual), "a client that requests no name gets the usual pair");
    assert!(rig.metrics.render().unwrap().contains(r#"mcm_certificate_expiry_seconds{name="sni"}"#));
}

#[tokio::test]
async fn without_a_certificate_the_replica_is_not_ready_and_names_the_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let (health, metrics) = (Health::default(), test_metrics());
    let settings = certificate_settings(files_mode(folder.path()));
    let manager = CertificateManager::new(None, settings, &metrics, &health).unwrap();
    let (handle, shutdown) = (manager.handle(), tokio_util::sync::CancellationToken::new());
    let running = tokio::spawn(manager.run(shutdown.clone()));
    until(|| health.report().contains("tls.crt (--tls-cert-file): No such file")).await;
    let pair = a_pair(1);
    write(folder.path(), &pair.serving.chain_pem(), &pair.serving.key_pem());
    until(|| handle.is_loaded()).await;
    until(|| health.report().contains("[+]certificate ok")).await;
    shutdown.cancel();
    soon(running).await.unwrap();
}

#[test]
fn self_managed_certificates_need_a_cluster() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mode = CertMode::SelfManaged {
            namespace: "ns".to_owned(),
            name: "certs".to_owned(),
            settings: PlanSettings::for_names(names()),
            targets: Vec::new(),
        };
        let made = CertificateManager::new(None, certificate_settings(mode), &test_metrics(), &Health::default());
        assert!(matches!(made.err(), Some(CertificateError::NoCluster)));
    });
}

#[tokio::test]
async fn a_client_that_trusts_another_authority_is_not_served() {
    let rig = Rig::start(options()).await;
    let now = jiff::Timestamp::now();
    let stranger = Authority::generate(now, jiff::SignedDuration::from_hours(1), [3; 16]).unwrap();
    assert!(connect(rig.secure, stranger.certificate.to_pem().as_bytes(), "h2").await.is_err());
}
