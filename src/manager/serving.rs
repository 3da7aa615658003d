//! The servers of a process: ports, certificates, admission, conversion, views, health and metrics. They need no leadership.

use std::{net::SocketAddr, sync::Arc};

use rustls::{SupportedCipherSuite, crypto::ring::cipher_suite as suites};

use super::{
    Common, Endpoints, clusters::Clusters, drivers::Drivers, references::CachedReferences, reviewer::AdmissionReviewer,
    stream,
};
use crate::{
    extension::server::ExtensionServer,
    manager::registered_drivers::RegisteredDrivers,
    server::{
        ClientCertificates, Profiling, ReservedPorts, Server, ServerOptions, TlsVersion,
        tls::{
            AuthorityFile, CertMode, CertificateManager, CertificateSettings, ClockOffset, LiveAuthorities, NamedBy,
            POLL_INTERVAL, PairFiles, SniPair, Target, WallClock, plan::PlanSettings, serving_names,
        },
    },
    settings,
};
use controller_runtime::{
    clients::Purpose,
    supervisor::{Stage, Supervisor},
};
use machine_api::{
    admission::Admission,
    names::{API_SERVICE, CERTIFICATE_SECRET},
    validation::{ControllerUsers, Policy},
};

/// Binds all ports, prepares the certificate and starts the server. Without ports, passes the reviewer to the caller.
pub(super) async fn start(
    common: &Arc<Common>,
    clusters: &Clusters,
    drivers: &Drivers,
    references: &Arc<CachedReferences>,
    endpoints: Endpoints,
    views: Option<Arc<ExtensionServer>>,
    tasks: &mut Supervisor,
) -> anyhow::Result<()> {
    let owners = clusters.control.client(Purpose::Owners);
    let admission = admission(common, drivers, references);
    let reviewer = Arc::new(AdmissionReviewer::new(admission, common.metrics.clone(), owners));
    match endpoints {
        Endpoints::InProcess(receive) => {
            receive(reviewer);
            Ok(())
        }
        Endpoints::Ports(reserved) => listen(common, clusters, reserved, reviewer, views, tasks).await,
    }
}

/// Certificates follow the time of the API server, because the API server validates them.
fn certificate_clock(common: &Common) -> WallClock {
    let clock = Arc::clone(&common.clock);
    Arc::new(move || clock.now())
}

fn clock_offset(common: &Common) -> ClockOffset {
    let clock = Arc::clone(&common.clock);
    Arc::new(move || clock.reading().offset)
}

async fn listen(
    common: &Arc<Common>,
    clusters: &Clusters,
    reserved: ReservedPorts,
    reviewer: Arc<AdmissionReviewer>,
    views: Option<Arc<ExtensionServer>>,
    tasks: &mut Supervisor,
) -> anyhow::Result<()> {
    let settings = &common.settings;
    let certificates = CertificateManager::new(
        Some(clusters.control.client(Purpose::ControlCore)),
        certificate_settings(common)?,
        &common.metrics,
        &common.health,
    )?
    .comparing_clocks(clock_offset(common));
    let options = ServerOptions {
        secure: settings.secure,
        plain: plain_addresses(&settings.http),
        connections: settings.limits.connections,
        requests: settings.limits.requests,
        client_certificates: client_certificates(&settings.webhooks, views.as_ref(), tasks).await?,
        tls_min_version: match settings.webhooks.tls_min_version {
            settings::TlsMinVersion::V1_2 => TlsVersion::V1_2,
            settings::TlsMinVersion::V1_3 => TlsVersion::V1_3,
        },
        tls_cipher_suites: settings.webhooks.tls_cipher_suites.iter().copied().map(cipher_suite).collect(),
        profiling: match settings.http.profiling {
            settings::Profiling::Off => Profiling::Off,
            settings::Profiling::On | settings::Profiling::WithContention => Profiling::On,
        },
        shutdown_delay: settings.shutdown.delay,
        shutdown_timeout: settings.shutdown.timeout,
        late_requests: settings.shutdown.late_requests,
        tracer: common.tracer.clone(),
    };
    let mut server =
        Server::bind_over(reserved, options, &certificates.handle(), &common.health, &common.metrics).await?;
    if let Some(views) = views {
        server = server.with_fallback(views);
    }
    let serve_stop = tasks.stop_of(Stage::Serve);
    tasks.spawn(Stage::Serve, "server", server.run(reviewer, serve_stop));
    let support_stop = tasks.stop_of(Stage::Support);
    tasks.spawn(Stage::Support, "certificates", certificates.run(support_stop));
    Ok(())
}

/// Readers of views may present a client certificate. Callers of webhooks must present one when `--webhook-client-ca` is given.
async fn client_certificates(
    webhooks: &settings::WebhookSettings,
    views: Option<&Arc<ExtensionServer>>,
    tasks: &mut Supervisor,
) -> anyhow::Result<ClientCertificates> {
    let Some(path) = &webhooks.client_authorities else {
        return Ok(if views.is_some() { ClientCertificates::Asked } else { ClientCertificates::NotAsked });
    };
    let file = AuthorityFile { path: path.clone(), flag: "--webhook-client-ca" };
    let authorities = LiveAuthorities::new(file.read().await.map_err(anyhow::Error::msg)?);
    let live = authorities.clone();
    let follows = file.follow(POLL_INTERVAL, move |read| live.set(read), tasks.stop_of(Stage::Support));
    tasks.spawn(Stage::Support, "authorities of webhooks' callers", follows);
    Ok(ClientCertificates::DemandedByWebhooks { authorities })
}

fn admission(common: &Common, drivers: &Drivers, references: &Arc<CachedReferences>) -> Admission {
    let settings = &common.settings;
    let policy = Policy {
        profile: settings.admission.profile,
        controllers: ControllerUsers::named(settings.admission.controller_users.clone()),
    };
    let registered = RegisteredDrivers::new(drivers.registry.clone(), settings.admission.providers);
    Admission::new(policy)
        .with_finalizers(settings.admission.finalizers)
        .with_providers(Arc::new(registered))
        .with_references(Arc::<CachedReferences>::clone(references))
}

fn plain_addresses(http: &settings::HttpSettings) -> Vec<SocketAddr> {
    let port = Some(http.port);
    [port, http.compat_port].into_iter().flatten().map(|port| SocketAddr::new(http.address, port.get())).collect()
}

fn certificate_settings(common: &Common) -> anyhow::Result<CertificateSettings> {
    let settings = &common.settings;
    let service = &settings.service;
    let plan = || -> anyhow::Result<PlanSettings> {
        let names = serving_names(&service.name, &service.namespace, &settings.extra_certificate_names)?;
        Ok(PlanSettings::for_names(names))
    };
    let api_service = settings.extension.as_ref().map(|_| API_SERVICE);
    let targets = || {
        if settings.secure.is_some() { Target::all(&settings.webhooks.configuration, api_service) } else { Vec::new() }
    };
    let mode = match &settings.certificates {
        // There is no TLS listener, so the certificate is not stored.
        settings::CertMode::SelfManaged if settings.secure.is_none() => {
            CertMode::Dev { settings: plan()?, targets: Vec::new() }
        }
        settings::CertMode::SelfManaged => CertMode::SelfManaged {
            namespace: service.namespace.clone(),
            name: CERTIFICATE_SECRET.to_owned(),
            settings: plan()?,
            targets: targets(),
        },
        settings::CertMode::Files { certificate, private_key } => CertMode::Files {
            files: PairFiles {
                certificate: certificate.clone(),
                key: private_key.clone(),
                named_by: NamedBy::FileFlags,
            },
            interval: POLL_INTERVAL,
        },
        settings::CertMode::Dev => CertMode::Dev { settings: plan()?, targets: targets() },
    };
    let entropy = common.random_source(stream::CERTIFICATES);
    let sni = settings.sni_certificates.iter().map(|configured| SniPair {
        files: PairFiles {
            certificate: configured.certificate.clone(),
            key: configured.private_key.clone(),
            named_by: NamedBy::SniFlag,
        },
        names: configured.names.clone(),
        interval: POLL_INTERVAL,
    });
    Ok(CertificateSettings {
        mode,
        sni: sni.collect(),
        clock: certificate_clock(common),
        entropy: Arc::new(move || {
            let (high, low) = (u128::from(entropy()), u128::from(entropy()));
            (high << 64 | low).to_be_bytes()
        }),
    })
}

fn cipher_suite(suite: settings::TlsCipherSuite) -> SupportedCipherSuite {
    match suite {
        settings::TlsCipherSuite::Tls13Aes256 => suites::TLS13_AES_256_GCM_SHA384,
        settings::TlsCipherSuite::Tls13Aes128 => suites::TLS13_AES_128_GCM_SHA256,
        settings::TlsCipherSuite::Tls13ChaCha20 => suites::TLS13_CHACHA20_POLY1305_SHA256,
        settings::TlsCipherSuite::EcdsaAes256 => suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        settings::TlsCipherSuite::EcdsaAes128 => suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        settings::TlsCipherSuite::EcdsaChaCha20 => suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        settings::TlsCipherSuite::RsaAes256 => suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        settings::TlsCipherSuite::RsaAes128 => suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        settings::TlsCipherSuite::RsaChaCha20 => suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}
