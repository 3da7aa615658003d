//! `mcm manifests`: prints the objects that a cluster needs before the manager runs, generated from the code.
//!
//! This file selects and prints the parts. Other files make them.

pub mod alerts;
pub mod chart;
pub mod crds;
pub mod dashboards;
pub mod guard;
pub mod views;
pub mod webhooks;

use std::{io::Write, path::PathBuf};

use clap::{Args, ValueEnum};

use super::{
    Failure, documents, namespace_name,
    rbac::{self, Installation, RightsIn},
    serve::args::half,
    webhook_scope::WebhookScope,
};

use crate::settings::Half;
use controller_runtime::server_version;
use machine_api::{
    admission::manifests::{FailurePolicy, MatchConditions, StatusWebhook, WebhookManifests},
    crd::{CrdOptions, OldestServer, V1Beta1},
    names,
    webhooks::{Client, SERVICE_PORT},
};

/// Flags of `mcm manifests`.
#[derive(Clone, Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // one per flag
pub struct ManifestsArgs {
    /// The part to print
    pub part: Part,
    /// Namespace of the machine objects
    #[arg(long, default_value = webhooks::DEFAULT_NAMESPACE, value_parser = namespace_name)]
    pub namespace: String,
    /// Namespace of the Deployment with its service account, its Service and its certificate; unset means --namespace
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub service_namespace: Option<String>,
    /// Name of the Service through which API servers reach the webhooks
    #[arg(long, default_value = names::WEBHOOK_CONFIGURATION, value_name = "NAME")]
    pub service_name: String,
    /// Base URL of the webhooks instead of the Service, for API servers that can't reach Services
    #[arg(long, value_name = "URL", value_parser = webhook_url)]
    pub webhook_url: Option<String>,
    /// Serve a further version of our kinds; it needs the conversion webhook
    #[arg(long, value_name = "VERSION")]
    pub serve: Option<ServedVersion>,
    /// Version in which objects are stored; v1beta1 only after `mcm migrate-storage --to v1beta1`, and with --serve v1beta1 (crds)
    #[arg(long, default_value = "v1alpha1", value_name = "VERSION")]
    pub stored: StoredVersion,
    /// Oldest API server that has to accept the manifests, such as 1.29
    #[arg(long, default_value = "1.33", value_name = "VERSION", value_parser = kubernetes_minor)]
    pub kube_version: KubernetesMinor,
    /// Namespaces that the webhooks cover; with "namespace" the names of objects outside the namespace contain its name (webhooks,
    /// rbac)
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// Users whose requests are not sent to the webhooks; unset means the service account
    #[arg(long, value_delimiter = ',', value_name = "USERS")]
    pub controller_users: Option<Vec<String>>,
    /// Outcome of a creation while no webhook answers; use Ignore if objects are created while the manager has 0 replicas
    #[arg(long, default_value = "fail", ignore_case = true, value_name = "POLICY")]
    pub create_failure_policy: Unanswered,
    /// Outcome of an update while no webhook answers
    #[arg(long, default_value = "ignore", ignore_case = true, value_name = "POLICY")]
    pub update_failure_policy: Unanswered,
    /// Include the webhook that warns about status writes of other users
    #[arg(long)]
    pub status_webhook: bool,
    /// Include the rights of one half only, machine-controller-manager or machine-controller, for a process beside another program
    /// that runs the other half (rbac)
    #[arg(long, value_parser = half, value_name = "HALF")]
    pub half: Option<Half>,
    /// Cluster that gets the rights: both control and target cluster, or one of them (rbac)
    #[arg(long, default_value = "both", value_name = "CLUSTER")]
    pub cluster: RightsIn,
    /// Include the rights of the virtual cloud (rbac)
    #[arg(long)]
    pub simulation: bool,
    /// Include the rights for classes whose user data needs a bootstrap token, in kube-system of the cluster with the Nodes, and a
    /// policy that restricts them to bootstrap tokens (rbac)
    #[arg(long)]
    pub bootstrap_tokens: bool,
    /// Include the rights for machines that are pods in the namespace of the machine objects, classes of provider "local" without
    /// credentialsSecretRef (rbac)
    #[arg(long)]
    pub local_machines: bool,
    /// Flags of the part `alerts`.
    #[command(flatten)]
    pub alerts: alerts::AlertArgs,
    /// Flags of the part `dashboards`.
    #[command(flatten)]
    pub dashboards: dashboards::DashboardArgs,
    /// Folder of the Helm chart whose generated files are written (chart)
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
}

/// A part of the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// `CustomResourceDefinitions` of the four kinds
    Crds,
    /// Admission webhooks; the process writes the CA bundle into them
    Webhooks,
    /// Optional `ValidatingAdmissionPolicies` that work while no webhook answers; they need Kubernetes 1.30
    Policies,
    /// A policy that protects the conversion webhook while objects are stored as v1beta1; it needs Kubernetes 1.30
    StorageGuard,
    /// The service account of the process and its rights
    Rbac,
    /// Registration of the views, their rights, and roles for their readers; read apiservice/README.md first
    Apiservice,
    /// Rules with the alerts, as a `PrometheusRule` for the namespace
    Alerts,
    /// Dashboards of Grafana, as `ConfigMap`s for its sidecar
    Dashboards,
    /// The generated files of the Helm chart, written to --write: templates, values, schema and reference of the values. Other flags
    /// have no effect on them, because they are values of the chart
    Chart,
    /// All parts except the policies, the guard, the views, the alerts, the dashboards and the chart
    All,
}

/// The outcome of a request while no webhook answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Unanswered {
    /// It is allowed; the definitions still validate it
    Ignore,
    /// It is refused
    Fail,
}

impl From<Unanswered> for FailurePolicy {
    fn from(policy: Unanswered) -> Self {
        match policy {
            Unanswered::Ignore => Self::Ignore,
            Unanswered::Fail => Self::Fail,
        }
    }
}

/// A version that is not served by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ServedVersion {
    /// The successor of v1alpha1
    V1beta1,
}

/// The version in which the API server stores our objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredVersion {
    /// The version of the Go original
    V1alpha1,
    /// The successor
    V1beta1,
}

/// Minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesMinor(u32);

impl KubernetesMinor {
    /// From this version on, API servers accept violations that were stored before a rule existed, also in writes of the status.
    const RATCHETING: Self = Self(33);
    /// From this version on, webhooks may have match conditions.
    const MATCH_CONDITIONS: Self = Self(28);
    /// From this version on, policies need no feature gate.
    const POLICIES: Self = Self(server_version::POLICIES_FROM);
}

/// Prints the part as YAML documents.
///
/// # Errors
/// When the part can't be made with these flags, or the stream is closed.
pub fn run(args: &ManifestsArgs, out: &mut dyn Write) -> Result<(), Failure> {
    match (args.part, &args.write) {
        (Part::Chart, Some(folder)) => chart::write(folder),
        (_, None) => Ok(out.write_all(args.text()?.as_bytes())?),
        (_, Some(_)) => {
            Err(Failure::Usage("manifests: --write is for the part chart; all other parts are printed".to_owned()))
        }
    }
}

impl ManifestsArgs {
    /// The part as YAML documents.
    fn text(&self) -> Result<String, Failure> {
        Ok(match self.part {
            Part::Crds => self.crds()?,
            Part::Webhooks => webhooks::webhooks_yaml(&self.webhooks()),
            Part::Policies | Part::StorageGuard if self.kube_version < KubernetesMinor::POLICIES => {
                return Err(Failure::Usage(
                    "manifests: API servers before 1.30 don't know ValidatingAdmissionPolicies; leave them out there"
                        .to_owned(),
                ));
            }
            Part::StorageGuard => guard::storage_guard_yaml(),
            Part::Policies => webhooks::policies_yaml(&self.webhooks()),
            Part::Rbac => self.rbac()?,
            Part::Apiservice => views::views_yaml(&self.views()),
            Part::Alerts => self.alerts.yaml(self.home())?,
            Part::Dashboards => self.dashboards.text(self.home(), &self.alerts.job)?,
            Part::Chart => {
                return Err(Failure::Usage(
                    "manifests: the chart consists of files: add --write DIR, the folder of the chart".to_owned(),
                ));
            }
            Part::All => [self.crds()?, self.rbac()?, webhooks::webhooks_yaml(&self.webhooks())].join("---\n"),
        })
    }

    fn crds(&self) -> Result<String, Failure> {
        Ok(crds::crds_yaml(&self.crd_options()?))
    }

    fn crd_options(&self) -> Result<CrdOptions, Failure> {
        let v1beta1 = match (self.serve, self.stored) {
            (None, StoredVersion::V1alpha1) => V1Beta1::NotServed,
            (Some(ServedVersion::V1beta1), StoredVersion::V1alpha1) => V1Beta1::Served(self.client()),
            (Some(ServedVersion::V1beta1), StoredVersion::V1beta1) => V1Beta1::Stored(self.client()),
            (None, StoredVersion::V1beta1) => {
                return Err(Failure::Usage(
                    "manifests: --stored v1beta1 needs --serve v1beta1: a stored version must be served".to_owned(),
                ));
            }
        };
        let servers = if self.kube_version >= KubernetesMinor::RATCHETING {
            OldestServer::Ratcheting
        } else {
            OldestServer::NotRatcheting
        };
        Ok(CrdOptions { v1beta1, servers })
    }

    fn client(&self) -> Client {
        match &self.webhook_url {
            Some(url) => Client::Url(url.clone()),
            None => Client::Service { namespace: self.home().to_owned(), name: self.service_name.clone() },
        }
    }

    /// The namespace of the process.
    fn home(&self) -> &str {
        self.service_namespace.as_deref().unwrap_or(&self.namespace)
    }

    fn webhooks(&self) -> WebhookManifests {
        let usual = WebhookManifests::in_namespace(self.home());
        WebhookManifests {
            client: self.client(),
            scope: self.scope.of(&self.namespace),
            controller_users: self.controller_users.clone().unwrap_or(usual.controller_users),
            create_failure_policy: self.create_failure_policy.into(),
            update_failure_policy: self.update_failure_policy.into(),
            status_webhook: if self.status_webhook { StatusWebhook::Install } else { StatusWebhook::LeaveOut },
            match_conditions: if self.kube_version >= KubernetesMinor::MATCH_CONDITIONS {
                MatchConditions::Supported
            } else {
                MatchConditions::Unsupported
            },
        }
    }

    fn views(&self) -> views::ViewsManifests {
        views::ViewsManifests {
            namespace: self.home().to_owned(),
            service: self.service_name.clone(),
            port: SERVICE_PORT,
        }
    }

    fn rbac(&self) -> Result<String, Failure> {
        let installation = Installation {
            namespace: &self.namespace,
            service_namespace: self.home(),
            scope: self.scope,
            half: self.half,
            cluster: self.cluster,
        };
        let mut objects = rbac::manifests(&installation);
        if self.bootstrap_tokens {
            objects.extend(rbac::token_manifests(&installation));
        }
        if self.simulation {
            objects.extend(rbac::simulation_manifests(&installation));
        }
        if self.local_machines {
            objects.extend(rbac::local_machine_manifests(&installation));
        }
        documents::to_yaml(&objects).map_err(Failure::run)
    }
}

/// API servers call webhooks over TLS only, and refuse a URL with a query or a fragment.
fn webhook_url(text: &str) -> Result<String, String> {
    let uri: http::Uri = text.parse().map_err(|_| "must be a URL such as https://127.0.0.1:9443".to_owned())?;
    let is_plain = uri.scheme_str() == Some("https") && uri.query().is_none() && !text.contains('#');
    if is_plain && uri.authority().is_some_and(is_host_and_port) {
        Ok(text.to_owned())
    } else {
        Err("must be an https URL without user, query and fragment, such as https://127.0.0.1:9443".to_owned())
    }
}

/// Whether the authority consists of a host and optionally a valid port.
fn is_host_and_port(authority: &http::uri::Authority) -> bool {
    let host = authority.host();
    let rest = authority.as_str().strip_prefix(host);
    let port = rest.map(|rest| rest.strip_prefix(':').map(str::parse::<u16>));
    !host.is_empty() && (rest == Some("") || matches!(port, Some(Some(Ok(1..)))))
}

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
    #[case::loopback("https://127.0.0.1:9443", true)]
    #[case::a_path("https://host/mcm", true)]
    #[case::no_tls("http://127.0.0.1:9443", false)]
    #[case::no_scheme("127.0.0.1:9443", false)]
    #[case::a_query("https://host/?a=b", false)]
    #[case::a_fragment("https://host/#a", false)]
    #[case::of_ipv6("https://[::1]:9443", true)]
    #[case::without_port("https://[::1]/mcm", true)]
    #[case::no_such_port("https://host:99999", false)]
    #[case::port_0("https://host:0", false)]
    #[case::an_empty_port("https://host:", false)]
    #[case::a_user("https://me@host", false)]
    #[case::no_host("https://:9443", false)]
    fn only_urls_that_api_servers_accept_are_accepted(#[case] text: &str, #[case] accepted: bool) {
        assert_eq!(webhook_url(text).is_ok(), accepted);
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ManifestsArgs,
    }

    #[rstest]
    #[case::before_them("1.29", "policies", false)]
    #[case::the_guard_too("1.28", "storage-guard", false)]
    #[case::since_then("1.30", "policies", true)]
    fn policies_are_printed_for_api_servers_that_know_them(
        #[case] version: &str,
        #[case] part: &str,
        #[case] printed: bool,
    ) {
        let line = <Line as clap::Parser>::parse_from(["manifests", part, "--kube-version", version]);
        let mut text = Vec::new();
        match run(&line.args, &mut text) {
            Ok(()) => assert!(printed && !text.is_empty()),
            Err(Failure::Usage(why)) => assert!(!printed && why.contains("1.30"), "{why}"),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case("1.29", Some(29))]
    #[case("v1.36.3", Some(36))]
    #[case("2.0", None)]
    #[case("1.x", None)]
    fn a_kubernetes_version_is_read(#[case] text: &str, #[case] minor: Option<u32>) {
        assert_eq!(kubernetes_minor(text).ok(), minor.map(KubernetesMinor));
    }
}
