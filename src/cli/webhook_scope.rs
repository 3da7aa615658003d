//! Whose objects the webhooks of an installation judge, and what it is called by outside its namespace.

use clap::ValueEnum;
use machine_api::{admission::manifests::Scope, names};

/// Whose objects the webhooks judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WebhookScope {
    /// Those of every namespace
    Cluster,
    /// Those of `--namespace`, by configurations of its own, so that each namespace can have a manager
    Namespace,
}

impl WebhookScope {
    /// The same for an installation in this namespace.
    pub fn of(self, namespace: &str) -> Scope {
        match self {
            Self::Cluster => Scope::Cluster,
            Self::Namespace => Scope::Namespace(namespace.to_owned()),
        }
    }

    /// The name of an object outside the namespace of an installation. Where each namespace has one, they must not share it.
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
