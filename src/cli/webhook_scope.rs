//! The namespaces that the webhooks of an installation cover, and the names of its objects outside its namespace.

use clap::ValueEnum;
use machine_api::{admission::manifests::Scope, names};

/// The namespaces that the webhooks cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WebhookScope {
    /// Every namespace
    Cluster,
    /// Only `--namespace`, with its own webhook configurations, so that each namespace can have a manager
    Namespace,
}

impl WebhookScope {
    /// The scope of an installation in this namespace.
    pub fn of(self, namespace: &str) -> Scope {
        match self {
            Self::Cluster => Scope::Cluster,
            Self::Namespace => Scope::Namespace(namespace.to_owned()),
        }
    }

    /// The name of an object outside the namespace of an installation. When each namespace has its own installation, the names differ.
    pub fn name_outside(self, namespace: &str, name: &str) -> String {
        match self {
            Self::Cluster => name.to_owned(),
            Self::Namespace => format!("{name}-{namespace}"),
        }
    }

    /// The name of both webhook configurations of an installation.
    pub fn configuration(self, namespace: &str) -> String {
        self.name_outside(namespace, names::WEBHOOK_CONFIGURATION)
    }
}
