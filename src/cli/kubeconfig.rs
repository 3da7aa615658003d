//! How commands that talk to a cluster and are not `serve` find it.

use std::{future::Future, path::PathBuf};

use clap::Args;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use super::Failure;
use crate::cluster::error::chain;

/// Which cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster that stores the machines; unset means what kubectl would use, or the pod's service account
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; unset means its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// A client of this cluster. Nothing is asked yet.
    ///
    /// # Errors
    /// When the configuration can't be read or used; the text says which and why.
    pub async fn connect(&self) -> Result<Client, Failure> {
        // The first one wins, and a second call tells nothing new.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let unusable = |what: &str, error: &dyn std::error::Error| {
            Failure::Input(format!("cannot use {what}: {}; correct it or name another with --kubeconfig", chain(error)))
        };
        let mut config = match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let what = format!("kubeconfig {}", path.display());
                let read = Kubeconfig::read_from(path).map_err(|error| unusable(&what, &error))?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&what, &error))?
            }
            (None, Some(_)) => {
                Config::from_kubeconfig(&options).await.map_err(|error| unusable("the kubeconfig", &error))?
            }
            (None, None) => {
                Config::infer().await.map_err(|error| unusable("a kubeconfig or a service account", &error))?
            }
        };
        config.default_retry = false;
        Client::try_from(config).map_err(|error| unusable("the credentials of the kubeconfig", &error))
    }
}

/// Runs the work of a command until it ends or SIGINT or SIGTERM comes; then `interrupted` says what that means.
///
/// # Errors
/// What the work says, or the interruption.
pub fn run_interruptibly<T>(
    work: impl Future<Output = Result<T, Failure>>,
    interrupted: &'static str,
) -> Result<T, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            done = work => done,
            _ = interrupt.recv() => Err(Failure::run(anyhow::anyhow!(interrupted))),
            _ = terminate.recv() => Err(Failure::run(anyhow::anyhow!(interrupted))),
        }
    })
}
