//! `mcm manifests`: everything a cluster must know before the manager runs, generated from the code.
//!
//! Only chosen and printed here; each part comes from the room that knows it.

use std::io::Write;

use clap::{Args, ValueEnum};

use super::{Failure, documents, manifests_crds, rbac};
use crate::api::{
    crd::{Converter, CrdOptions, OldestServer, V1Beta1},
    names,
};

/// Flags of `mcm manifests`.
#[derive(Clone, Debug, Args)]
pub struct ManifestsArgs {
    /// Which part
    pub part: Part,
    /// Namespace of the machine objects and of the Deployment
    #[arg(long, default_value = "default")]
    pub namespace: String,
    /// Name of the Service that API servers reach the webhooks through
    #[arg(long, default_value = names::WEBHOOK_CONFIGURATION, value_name = "NAME")]
    pub service_name: String,
    /// Base URL of the webhooks instead of the Service, for API servers that reach no Services
    #[arg(long, value_name = "URL")]
    pub webhook_url: Option<String>,
    /// Let clients see a further version of our kinds; it needs the conversion webhook
    #[arg(long, value_name = "VERSION")]
    pub serve: Option<ServedVersion>,
    /// Oldest API server that must be able to take them, such as 1.29
    #[arg(long, default_value = "1.30", value_name = "VERSION", value_parser = kubernetes_minor)]
    pub kube_version: KubernetesMinor,
    /// With the rights that the virtual cloud needs (rbac)
    #[arg(long)]
    pub simulation: bool,
}

/// A part of the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// `CustomResourceDefinitions` of the four kinds
    Crds,
    /// What the process may do, and its service account
    Rbac,
}

/// A version that is not served by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServedVersion {
    /// The successor of v1alpha1
    V1beta1,
}

/// Minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesMinor(u32);

impl KubernetesMinor {
    /// Since then API servers forgive violations that were stored before a rule existed.
    const RATCHETING: Self = Self(30);
}

/// Prints the part as YAML documents.
///
/// # Errors
/// When the part can't be made with these flags, or the stream is closed.
pub fn run(args: &ManifestsArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let text = match args.part {
        Part::Crds => manifests_crds::crds_yaml(&args.crd_options()),
        Part::Rbac => args.rbac()?,
    };
    Ok(out.write_all(text.as_bytes())?)
}

impl ManifestsArgs {
    fn crd_options(&self) -> CrdOptions {
        let converter = || match &self.webhook_url {
            Some(url) => Converter::Url(url.clone()),
            None => Converter::Service {
                namespace: self.namespace.clone(),
                name: self.service_name.clone(),
                port: SERVICE_PORT,
            },
        };
        CrdOptions {
            v1beta1: match self.serve {
                None => V1Beta1::NotServed,
                Some(ServedVersion::V1beta1) => V1Beta1::Served(converter()),
            },
            servers: if self.kube_version >= KubernetesMinor::RATCHETING {
                OldestServer::Ratcheting
            } else {
                OldestServer::NotRatcheting
            },
        }
    }

    fn rbac(&self) -> Result<String, Failure> {
        let mut objects = rbac::manifests(&self.namespace);
        if self.simulation {
            objects.extend(rbac::simulation_manifests(&self.namespace));
        }
        documents::to_yaml(&objects).map_err(Failure::run)
    }
}

/// Port of the Service in front of the TLS listener.
const SERVICE_PORT: u16 = 443;

fn kubernetes_minor(text: &str) -> Result<KubernetesMinor, String> {
    let minor = text.trim_start_matches('v').strip_prefix("1.").and_then(|rest| rest.split('.').next());
    minor
        .and_then(|minor| minor.parse().ok())
        .map(KubernetesMinor)
        .ok_or_else(|| "must be a version such as 1.30".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1.29", Some(29))]
    #[case("v1.36.3", Some(36))]
    #[case("2.0", None)]
    #[case("1.x", None)]
    fn a_kubernetes_version_is_read(#[case] text: &str, #[case] minor: Option<u32>) {
        assert_eq!(kubernetes_minor(text).ok(), minor.map(KubernetesMinor));
    }
}
