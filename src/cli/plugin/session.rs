//! The cluster of a command: connection, namespace, views, and the time.

use clap::Args;
use jiff::Timestamp;
use kube::Client;

use super::{fleet::Fleet, notices::Notices, views::Views};
use crate::cli::{
    Failure,
    kubeconfig::{ClusterArgs, Impersonation},
    namespace_name,
};

/// Flags that select the cluster, with the meanings that they have for kubectl.
#[derive(Clone, Debug, Default, Args)]
pub struct SessionArgs {
    /// Namespace of the objects; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// The cluster
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// The user
    #[command(flatten)]
    pub user: Impersonation,
}

/// A connected cluster.
pub struct Session {
    /// The client of its API server.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    /// The views.
    pub views: Views,
    /// Where the command says what it can't do.
    pub notices: Notices,
}

impl Session {
    /// Connects. No request is sent yet.
    ///
    /// # Errors
    /// When the kubeconfig can't be used.
    pub async fn open(args: &SessionArgs) -> Result<Self, Failure> {
        Self::saying(args, Notices::default()).await
    }

    /// The same with another receiver of notices.
    ///
    /// # Errors
    /// When the kubeconfig can't be used.
    pub async fn saying(args: &SessionArgs, notices: Notices) -> Result<Self, Failure> {
        let client = args.cluster.connect_as(&args.user).await?;
        let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { views: Views::new(client.clone(), notices.clone()), client, namespace, notices })
    }

    /// The objects of the namespace, with their outlooks if the views can be used.
    ///
    /// # Errors
    /// When a list fails.
    pub async fn fleet(&self) -> Result<Fleet, Failure> {
        self.fleet_of(Some(&self.namespace)).await
    }

    /// The same for a namespace, or for all.
    ///
    /// # Errors
    /// When a list fails.
    pub async fn fleet_of(&self, namespace: Option<&str>) -> Result<Fleet, Failure> {
        let fleet = Fleet::read(&self.client, namespace).await?;
        Ok(fleet.with_outlooks(self.views.outlooks(namespace).await))
    }
}

/// The time of this computer.
pub fn now() -> Timestamp {
    Timestamp::now()
}
