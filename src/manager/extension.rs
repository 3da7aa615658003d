//! The extension API server of a process. It is made before anything is served, and serves views once their caches exist.

use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use jiff::Timestamp;

use super::{
    Common,
    clusters::Clusters,
    stream,
    views::{ClusterState, sources},
};
use crate::{
    extension::{
        audit::Audit,
        authentication::{
            Authentication,
            config::{AuthConfig, Fixed, FrontProxy, header_name},
            headers::ProxyHeaders,
            tokens::TokenReviewer,
            watch::ConfigWatcher,
        },
        authorization::{Authorization, Lifetimes, decide::OpenPaths},
        checks::Checks,
        digest::Digester,
        reachability::Reachability,
        registry::Registry,
        reviews::ApiReviews,
        server::{ExtensionParts, ExtensionServer, Limits},
        view::View,
        views::views,
    },
    server::tls::{Authorities, AuthorityFile, POLL_INTERVAL},
    settings::{AuthenticationSettings, ExtensionSettings, FrontProxySettings},
};
use controller_runtime::{
    clients::{Cluster, Purpose},
    supervisor::{Stage, Supervisor},
};
use kube_listener::BodyReader;
use mcm_metrics::{Metrics, OfView};

/// Makes the server and starts its tasks. None when the extension API server is off or there is no TLS listener.
pub(super) async fn prepare(
    common: &Arc<Common>,
    clusters: &Clusters,
    tasks: &mut Supervisor,
) -> anyhow::Result<Option<Arc<ExtensionServer>>> {
    let Some(settings) = common.settings.extension.as_ref().filter(|_| common.settings.secure.is_some()) else {
        return Ok(None);
    };
    let authentication = clusters.control_by(common, settings.authentication.kubeconfig.as_deref()).await?;
    let authorization = clusters.control_by(common, settings.authorization.kubeconfig.as_deref()).await?;
    let reachability = Reachability::default();
    let config = trust(common, settings, &authentication, &reachability, tasks).await?;
    let draw = Arc::new(common.random_source(stream::REVIEWS));
    let jitter: Arc<dyn Fn() -> f64 + Send + Sync> =
        Arc::new(move || u32::try_from(draw() >> 32).map_or(0.0, |drawn| f64::from(drawn) / f64::from(u32::MAX)));
    let reviews = |cluster: &Cluster, purpose| Arc::new(ApiReviews::new(cluster.client(purpose), reachability.clone()));
    let audit = match &settings.audit_log {
        None => None,
        Some(log) => {
            let opened = Audit::open(log, common.metrics.clone());
            let (audit, writer) =
                opened.with_context(|| format!("cannot open the audit log {log:?} (--audit-log-path)"))?;
            tasks.spawn(Stage::Support, "audit log", writer.run(tasks.stop_of(Stage::Support)));
            Some(audit)
        }
    };
    let server = ExtensionServer::new(ExtensionParts {
        authentication: Authentication {
            config: Arc::clone(&config),
            tokens: TokenReviewer::new(
                reviews(&authentication, Purpose::TokenReviews),
                secret_digester(),
                settings.authentication.token_time_to_live,
                settings.authentication.audiences.clone(),
                Arc::clone(&jitter),
            ),
        },
        authorization: Authorization::new(
            reviews(&authorization, Purpose::AccessReviews),
            secret_digester(),
            Lifetimes {
                allowed: settings.authorization.allowed_time_to_live,
                refused: settings.authorization.refused_time_to_live,
            },
            OpenPaths::parse(&settings.authorization.open_paths).map_err(anyhow::Error::msg)?,
            jitter,
        ),
        source_rights: settings.source_rights,
        audit,
        checks: Checks { health: common.health.clone(), reachability: reachability.clone(), config },
        bodies: BodyReader::new(common.settings.limits.requests),
        limits: Limits {
            deadline: settings.request_timeout,
            in_flight: settings.requests_in_flight,
            body: common.settings.limits.requests.other_bytes,
        },
        metrics: common.metrics.clone(),
        clock: Arc::new(Timestamp::now),
        // A caller that guesses an id could read another caller's list, so the ids do not come from the seed of the process.
        entropy: Arc::new(rand::random),
    });
    let asked = reachability.probe(clusters.control.client(Purpose::Discovery), tasks.stop_of(Stage::Support));
    tasks.spawn(Stage::Support, "reachability of the API server", asked);
    Ok(Some(Arc::new(server)))
}

/// Serves the views from now on. Without a state of the clusters there are no views.
pub(super) fn open(server: &ExtensionServer, state: Option<&ClusterState>) {
    let stores = state.map(|state| {
        let nodes = state.target.as_ref().map(|target| Arc::clone(&target.node_store));
        (state.views.clone(), nodes)
    });
    let caches = move || {
        let (views, nodes) = stores.as_ref()?;
        let cold: Vec<&str> = [
            ("machines", views.machines.is_synced()),
            ("machinesets", views.sets.is_synced()),
            ("machinedeployments", views.deployments.is_synced()),
            ("machineclasses", views.classes.is_synced()),
            ("secrets", views.secrets.is_synced()),
            ("nodes", nodes.as_ref().is_none_or(|nodes| nodes.is_synced())),
        ]
        .into_iter()
        .filter_map(|(kind, synced)| (!synced).then_some(kind))
        .collect();
        (!cold.is_empty()).then(|| format!("not listed yet: {}", cold.join(", ")))
    };
    let views = state.map(selected_views).unwrap_or_default();
    if let Some(state) = state {
        show_panics(&state.common.metrics, &views);
    }
    let opened = server.open(Registry::new(views), Box::new(caches));
    debug_assert!(opened, "views are opened once");
}

/// Shows the counter of panics of each view, and of requests for no view, before the first panic.
fn show_panics(metrics: &Metrics, views: &[Arc<dyn View>]) {
    let names = views.iter().map(|view| view.resource().plural.as_str());
    for view in names.chain([""]) {
        metrics.extension.panics.add(&OfView { view }, 0);
    }
}

/// The views that `--views` selects.
fn selected_views(state: &ClusterState) -> Vec<Arc<dyn View>> {
    let Some(settings) = &state.common.settings.extension else { return Vec::new() };
    let mut views = views(&sources(state));
    views.retain(|view| settings.views.includes(&view.resource().plural));
    views
}

/// A digester with a random key. The key does not come from the seed of the process, so that it can't be guessed.
fn secret_digester() -> Digester {
    Digester::new(rand::random())
}

/// The trusted authorities and front proxies. The flags are used first, and the `ConfigMap` for values without a flag. Changes of the files that
/// flags name are taken over.
async fn trust(
    common: &Arc<Common>,
    settings: &ExtensionSettings,
    cluster: &Cluster,
    reachability: &Reachability,
    tasks: &mut Supervisor,
) -> anyhow::Result<Arc<ArcSwap<AuthConfig>>> {
    let files = Files::of(&settings.authentication);
    let start = AuthConfig::fixed(fixed(&settings.authentication, &files).await?);
    let reads = start.reads_config_map() && settings.authentication.reads_config_map;
    let config = Arc::new(ArcSwap::from_pointee(start));
    files.follow(&config, tasks);
    if reads {
        let keeper = ConfigWatcher {
            client: cluster.client(Purpose::Watches),
            config: Arc::clone(&config),
            metrics: common.metrics.clone(),
            reachability: reachability.clone(),
            clock: Arc::new(Timestamp::now),
        };
        tasks.spawn(Stage::Support, "authentication configuration", keeper.run(tasks.stop_of(Stage::Support)));
    }
    Ok(config)
}

/// The files of authorities that flags name.
struct Files {
    clients: Option<AuthorityFile>,
    proxies: Option<AuthorityFile>,
}

impl Files {
    fn of(settings: &AuthenticationSettings) -> Self {
        let file = |path: &std::path::PathBuf, flag| AuthorityFile { path: path.clone(), flag };
        Self {
            clients: settings.client_ca.as_ref().map(|path| file(path, "--client-ca-file")),
            proxies: settings.front_proxy.as_ref().map(|proxy| file(&proxy.ca, "--requestheader-client-ca-file")),
        }
    }

    /// Takes over changes of the files.
    fn follow(self, config: &Arc<ArcSwap<AuthConfig>>, tasks: &mut Supervisor) {
        let mut follow = |file: Option<AuthorityFile>, name, with: fn(&AuthConfig, Authorities) -> AuthConfig| {
            let Some(file) = file else { return };
            let config = Arc::clone(config);
            let take = move |authorities: Authorities| {
                config.rcu(|before| with(before, authorities.clone()));
            };
            tasks.spawn(Stage::Support, name, file.follow(POLL_INTERVAL, take, tasks.stop_of(Stage::Support)));
        };
        follow(self.clients, "authorities of clients", AuthConfig::with_clients);
        follow(self.proxies, "authorities of front proxies", AuthConfig::with_proxies);
    }
}

async fn fixed(settings: &AuthenticationSettings, files: &Files) -> anyhow::Result<Fixed> {
    let read = async |file: &Option<AuthorityFile>| match file {
        Some(file) => file.read().await.map(Some).map_err(anyhow::Error::msg),
        None => Ok(None),
    };
    let (clients, proxies) = (read(&files.clients).await?, read(&files.proxies).await?);
    let front_proxy = settings.front_proxy.as_ref().zip(proxies);
    Ok(Fixed {
        clients,
        front_proxy: front_proxy.map(|(settings, authorities)| front_proxy_of(settings, authorities)).transpose()?,
        shared: settings.shared_authority,
    })
}

fn front_proxy_of(settings: &FrontProxySettings, authorities: Authorities) -> anyhow::Result<FrontProxy> {
    let headers = |entries: &[String]| {
        entries.iter().map(|entry| header_name(entry)).collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg)
    };
    Ok(FrontProxy {
        authorities,
        allowed_names: settings.allowed_names.clone(),
        headers: ProxyHeaders {
            users: headers(&settings.user_headers)?,
            uids: headers(&settings.uid_headers)?,
            groups: headers(&settings.group_headers)?,
            extra_prefixes: settings.extra_prefixes.iter().map(|prefix| prefix.to_ascii_lowercase()).collect(),
        },
    })
}
