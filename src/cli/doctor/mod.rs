//! `mcm doctor`: checks the objects that connect a cluster with the manager, and the machine objects against each other. It reports what
//! is wrong, and the command that mends it. It changes nothing: it reads, asks for rights, and sends one creation as a dry run.
//!
//! Source: spec/packaging §7.4, spec/extension-apiserver §5.4. [`observe`] reads. All other files are pure checks: [`checks`] of single
//! objects, [`certificates`], [`probe`] of admission, [`rights`], [`versions`], [`flows`], [`clocks`],
//! [`halves`] of the programs that run, and [`fleet`] of the machine objects. [`commands`] has the commands.

mod certificates;
pub mod checks;
mod clocks;
mod commands;
mod fleet;
mod flows;
mod halves;
mod observe;
mod probe;
mod rights;
mod versions;

use std::io::Write;

use clap::Args;
use futures::future::join;
use jiff::Timestamp;
use kube::{Client, client::Body};
use serde::Serialize;
use tokio::time::Instant;

pub use self::probe::missing_right;
use self::{
    certificates::bundle_fields,
    checks::{Finding, Health, Read},
    clocks::{clock, distinct},
    commands::Installed,
    halves::{Runner, halves},
    probe::{Registration, reached},
    rights::{RightsOf, rights, wanted},
    versions::{api_server, replicas},
};
use super::{
    Failure,
    cluster_objects::{API_SERVICES, DEFINITIONS, LEASES, MUTATING, Resource, SECRETS, VALIDATING, v1},
    kubeconfig::{ClusterArgs, run_interruptibly},
    lease_watch::{self, LeaseState},
    migrate_storage::definition::name_of,
    namespace_name, offline,
    output::OutputFormat,
    rbac::{self, Installation, RightsIn},
    serve::args::half,
    uninstall::{TargetCluster, target_cluster},
    webhook_scope::WebhookScope,
};
use crate::{DriverSet, manager::registered_drivers::RegisteredDrivers, settings::Half};
use controller_runtime::{
    clock::{Clock, SystemClock, date_of},
    objects::{CALL_TIMEOUT, call},
    server_version::{CONTROL, TARGET},
};
use machine_api::{
    kind::Kind,
    names,
    validation::{Coverage, Providers},
};

/// Flow schemas.
const FLOW_SCHEMAS: Resource = v1("flowcontrol.apiserver.k8s.io", "FlowSchema", "flowschemas");

/// Flags of `mcm doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// The installation that is checked
    #[command(flatten)]
    pub installation: InstallationArgs,
    /// User of the manager, whose rights are checked; unset means the service account of the manifests
    #[arg(long, value_name = "USER")]
    pub manager_user: Option<String>,
    /// Check only the rights of this half, machine-controller-manager or machine-controller, if another program runs the other half
    #[arg(long, value_parser = half, value_name = "HALF")]
    pub half: Option<Half>,
    /// Also compare the machines with the VMs that their providers list; the views ask the providers
    #[arg(long)]
    pub ask_provider: bool,
    /// Output for programs
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
}

/// Flags that select the installation which a command examines.
#[derive(Clone, Debug, Args)]
pub struct InstallationArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Kubeconfig of the cluster with the Nodes, or "none" if there is none; unset means the cluster with the machine objects
    #[arg(long, value_name = "FILE|none", value_parser = target_cluster)]
    pub target_kubeconfig: Option<TargetCluster>,
    /// Namespace of the machine objects; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// Namespaces that the webhooks cover: all, or --namespace only
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
}

/// An installation with clients of its clusters.
pub struct Connected {
    /// A client of the cluster with the machine objects.
    pub client: Client,
    /// Namespace of the machine objects.
    pub namespace: String,
    target: Option<Client>,
    rights_of_control: RightsOf,
    scope: WebhookScope,
}

impl InstallationArgs {
    /// Makes the clients. No request is sent.
    ///
    /// # Errors
    /// When a kubeconfig can't be used.
    pub async fn connect(&self) -> Result<Connected, Failure> {
        let client = self.cluster.connect().await?;
        let target = match &self.target_kubeconfig {
            None => Some(client.clone()),
            Some(TargetCluster::None) => None,
            Some(TargetCluster::Kubeconfig(path)) => {
                Some(ClusterArgs { kubeconfig: Some(path.clone()), context: None }.connect().await?)
            }
        };
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let rights_of_control = match self.target_kubeconfig {
            None => RightsOf::Both,
            Some(_) => RightsOf::Control,
        };
        Ok(Connected { client, namespace, target, rights_of_control, scope: self.scope })
    }
}

impl Connected {
    /// What is examined of an installation with both halves, as the manifests make it.
    pub fn examined<'a>(&'a self, providers: &'a dyn Providers) -> Examined<'a> {
        Examined {
            client: &self.client,
            target: self.target.as_ref(),
            rights_of_control: self.rights_of_control,
            namespace: &self.namespace,
            scope: self.scope,
            half: None,
            providers,
            manager_user: None,
            ask_provider: AskProvider::No,
        }
    }
}

/// Whether the providers are asked for their VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskProvider {
    /// They are.
    Yes,
    /// They are not.
    No,
}

/// The output of `mcm doctor -o json`.
#[derive(Debug, Serialize)]
struct Answer {
    findings: Vec<Finding>,
}

/// Checks the cluster and prints the findings.
///
/// # Errors
/// [`Failure::Reported`] when an object must be repaired; another error when the cluster can't be read.
pub fn run(args: &DoctorArgs, drivers: &DriverSet, out: &mut dyn Write) -> Result<(), Failure> {
    let providers = RegisteredDrivers::new(offline::known_drivers(drivers)?, Coverage::Some);
    let findings = run_interruptibly(check(args, &providers), "interrupted; nothing was changed")?;
    let is_bad = findings.iter().any(|finding| finding.health == Health::Bad);
    if let Some(format) = args.output {
        format.write(&Answer { findings }, out)?;
    } else {
        for Finding { subject, health, message, command } in &findings {
            writeln!(out, "{:<7} {subject}: {message}", health.word())?;
            if let Some(command) = command {
                writeln!(out, "{:<7} run: {command}", "")?;
            }
        }
    }
    if is_bad { Err(Failure::Reported) } else { Ok(()) }
}

async fn check(args: &DoctorArgs, providers: &dyn Providers) -> Result<Vec<Finding>, Failure> {
    let connected = args.installation.connect().await?;
    // Without an API server every finding would be the same error.
    let version = call(connected.client.apiserver_version()).await;
    version.map_err(|error| Failure::run(anyhow::anyhow!("cannot ask the API server: {error}")))?;
    Ok(findings(&Examined {
        half: args.half,
        manager_user: args.manager_user.as_deref(),
        ask_provider: if args.ask_provider { AskProvider::Yes } else { AskProvider::No },
        ..connected.examined(providers)
    })
    .await)
}

/// What is examined.
#[derive(Clone, Copy)]
pub struct Examined<'a> {
    /// The cluster with the machine objects.
    pub client: &'a Client,
    /// The cluster with the Nodes, if there is one.
    pub target: Option<&'a Client>,
    /// The roles that the first cluster must have.
    pub rights_of_control: RightsOf,
    /// Namespace of the machine objects.
    pub namespace: &'a str,
    /// The namespaces that the webhooks cover.
    pub scope: WebhookScope,
    /// The half that the manager runs, if it does not run both.
    pub half: Option<Half>,
    /// The drivers of this program.
    pub providers: &'a dyn Providers,
    /// The user of the manager, if it is not the service account of the manifests.
    pub manager_user: Option<&'a str>,
    /// Whether the providers are asked.
    pub ask_provider: AskProvider,
}

/// All findings. A check that can't be made is a finding too.
pub async fn findings(examined: &Examined<'_>) -> Vec<Finding> {
    let Examined { client, namespace, scope, .. } = *examined;
    let configuration = scope.configuration(namespace);
    let mutating = observe::object(client, MUTATING, "", &configuration).await;
    let validating = observe::object(client, VALIDATING, "", &configuration).await;
    let installed = Installed::of(namespace, scope, &[&mutating, &validating]);
    // The watch of the Leases takes some seconds.
    let (of_objects, of_leases) = join(
        async {
            let mut findings = servers(examined).await;
            findings.extend(registrations(examined, &mutating, &validating, &installed).await);
            findings.extend(manager(examined, &installed).await);
            findings
        },
        join(leases(client, &installed), fleet(examined)),
    )
    .await;
    let (leases, fleet) = of_leases;
    [of_objects, leases, fleet].concat()
}

/// The findings about the API servers and the namespace.
async fn servers(examined: &Examined<'_>) -> Vec<Finding> {
    let Examined { client, namespace, .. } = *examined;
    let mut findings = vec![api_server("control cluster", &observe::minor_version(client).await, CONTROL)];
    if let (RightsOf::Control, Some(target)) = (examined.rights_of_control, examined.target) {
        findings.push(api_server("target cluster", &observe::minor_version(target).await, TARGET));
    }
    let namespaces = v1("", "Namespace", "namespaces");
    findings.extend(checks::namespace(namespace, &observe::object(client, namespaces, "", namespace).await));
    findings
}

/// The findings about definitions, webhooks, certificate and views.
async fn registrations(
    examined: &Examined<'_>,
    mutating: &Read,
    validating: &Read,
    installed: &Installed,
) -> Vec<Finding> {
    let Examined { client, namespace, scope, .. } = *examined;
    let (mut findings, mut fields) = (Vec::new(), Vec::new());
    for kind in Kind::ALL {
        let read = observe::object(client, DEFINITIONS, "", &name_of(kind)).await;
        let finding = checks::definition(kind, &read, installed);
        fields.extend(bundle_fields(&finding.subject, &read));
        findings.push(finding);
    }
    for (resource, read) in [(MUTATING, mutating), (VALIDATING, validating)] {
        let finding = checks::webhooks(resource.kind, &scope.configuration(namespace), read, installed);
        fields.extend(bundle_fields(&finding.subject, read));
        findings.push(finding);
    }
    let registration = match (mutating, validating) {
        (Read::There(_), _) | (_, Read::There(_)) => Registration::Present,
        (Read::Missing, Read::Missing) => Registration::Absent,
        _ => Registration::Unknown,
    };
    findings.push(reached(registration, &observe::probe_admission(client, namespace).await, installed));
    let secret = observe::object(client, SECRETS, &installed.home, names::CERTIFICATE_SECRET).await;
    let subject = format!("Secret {}/{}", installed.home, names::CERTIFICATE_SECRET);
    findings.push(certificates::certificate(subject, &secret, &fields, time_of(client).await, installed));
    findings.push(checks::views(&observe::object(client, API_SERVICES, "", names::API_SERVICE).await, installed));
    findings
}

/// The findings about what the manager's pods need.
async fn manager(examined: &Examined<'_>, installed: &Installed) -> Vec<Finding> {
    let Examined { client, namespace, scope, half, .. } = *examined;
    let mut findings = Vec::new();
    for name in flows::schema_names() {
        let read = observe::object(client, FLOW_SCHEMAS, "", &name).await;
        findings.push(flows::flow_schema(&name, &read, installed));
    }
    let account = format!("system:serviceaccount:{}:{}", installed.home, names::WEBHOOK_CONFIGURATION);
    let user = examined.manager_user.unwrap_or(&account);
    let service_namespace = installed.home.as_str();
    let roles =
        |cluster| wanted(&rbac::manifests(&Installation { namespace, service_namespace, scope, half, cluster }));
    let (place, cluster) = match examined.rights_of_control {
        RightsOf::Both => (RightsOf::Both, RightsIn::Both),
        RightsOf::Control | RightsOf::Target => (RightsOf::Control, RightsIn::Control),
    };
    findings.push(rights(user, place, &observe::reviews(client, user, &roles(cluster)).await, installed));
    if let (RightsOf::Control, Some(target)) = (place, examined.target) {
        let reviews = observe::reviews(target, user, &roles(RightsIn::Target)).await;
        findings.push(rights(user, RightsOf::Target, &reviews, installed));
    }
    findings.push(replicas(&observe::pods(client, &installed.home).await, installed));
    findings
}

/// The findings about machine objects.
async fn fleet(examined: &Examined<'_>) -> Vec<Finding> {
    let mut fleet = observe::fleet(examined.client, examined.target, examined.namespace).await;
    if examined.ask_provider == AskProvider::Yes {
        fleet.vms = Some(observe::vms(examined.client, examined.namespace).await);
    }
    fleet.findings(examined.providers)
}

/// The time of the API server's clock, because the API server validates certificates. If it sends no date, the time of this computer.
async fn time_of(client: &Client) -> Timestamp {
    let clock = SystemClock::new();
    let sent = Instant::now();
    let date = async {
        let request = http::Request::get("/version").body(Body::empty()).ok()?;
        let answer = tokio::time::timeout(CALL_TIMEOUT, client.send(request)).await.ok()?.ok()?;
        date_of(answer.headers().get(http::header::DATE)?.to_str().ok()?)
    };
    if let Some(date) = date.await {
        clock.observe_date(date, sent);
    }
    clock.now()
}

/// The findings about each Lease, about the programs that run the halves, and about the clocks of the holders.
async fn leases(client: &Client, installed: &Installed) -> Vec<Finding> {
    let namespace = &installed.namespace;
    let watch = async |name| {
        let (read, state) = match lease_watch::watch(client, namespace, name).await {
            Ok(state) => (observe::object(client, LEASES, namespace, name).await, state),
            Err(error) => (Read::Refused(observe::refusal(&error, "get", LEASES, namespace)), LeaseState::Free),
        };
        let now = time_of(client).await;
        let finding = checks::lease(name, &read, &state, now, installed);
        (finding, clock(&read, &state, now), Runner::of(&read, &state))
    };
    let ((manager, its_clock, runs_manager), (machines, other_clock, runs_machines)) =
        join(watch(names::LEASE_CONTROLLER_MANAGER), watch(names::LEASE_MACHINE_CONTROLLER)).await;
    let mut findings = vec![manager, machines, halves(&runs_manager, &runs_machines, installed)];
    findings.extend(distinct(its_clock.into_iter().chain(other_clock).collect()));
    findings
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::api::core::v1::Secret;

    use std::sync::{Arc, Mutex};

    use machine_api::validation::NoProviders;

    use super::*;
    use crate::server::tls::plan::{CertPlan, PlanSettings, carry_out};

    /// The time in the format of a header.
    fn date(time: Timestamp) -> String {
        jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).expect("a time of our days")
    }

    /// A cluster with a certificate only. The certificate was made now by the API server's clock, which is ahead of ours by `ahead`.
    fn cluster(ahead: SignedDuration) -> Client {
        let settings = PlanSettings::for_names(["mcm.ns.svc".to_owned()].into());
        let at = Timestamp::now() + ahead;
        let made = carry_out(&CertPlan::Create, None, at, &settings, || [5; 16]).expect("made").expect("new");
        let mut secret = Secret { data: Some(made.to_data()), ..Secret::default() };
        secret.metadata.name = Some(names::CERTIFICATE_SECRET.to_owned());
        let secret = serde_json::to_vec(&secret).expect("JSON");
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let missing =
                br#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}"#;
            let (status, body) = match request.uri().path() {
                "/version" => (200, b"{}".to_vec()),
                path if path.ends_with(names::CERTIFICATE_SECRET) => (200, secret.clone()),
                _ => (404, missing.to_vec()),
            };
            let answer =
                http::Response::builder().status(status).header(http::header::DATE, date(Timestamp::now() + ahead));
            std::future::ready(answer.body(Body::from(body)))
        });
        Client::new(service, "ns")
    }

    /// An installation in one cluster.
    fn connected(client: Client) -> Connected {
        let namespace = client.default_namespace().to_owned();
        let (target, scope) = (Some(client.clone()), WebhookScope::Cluster);
        Connected { client, namespace, target, rights_of_control: RightsOf::Both, scope }
    }

    #[rstest::rstest]
    #[case::as_the_clock_of_this_computer(0)]
    #[case::a_year_ahead(24 * 365)]
    #[case::a_year_behind(-24 * 365)]
    #[tokio::test(start_paused = true)]
    async fn certificates_are_checked_by_the_api_servers_clock(#[case] hours: i64) {
        let connected = connected(cluster(SignedDuration::from_hours(hours)));
        let examined = Examined { target: None, ..connected.examined(&NoProviders) };
        let all = findings(&examined).await;
        let found = all.iter().find(|finding| finding.subject.starts_with("Secret")).expect("it is checked");
        assert!(found.health == Health::Fine && found.message.starts_with("valid until"), "{found:?}");
    }

    /// Requests that store nothing: reads, reviews, and dry runs.
    fn stores_nothing(method: &http::Method, uri: &http::Uri) -> bool {
        let is_review = uri.path() == "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let is_dry_run = uri.query().is_some_and(|query| query.contains("dryRun=All"));
        *method == http::Method::GET || (*method == http::Method::POST && (is_review || is_dry_run))
    }

    #[tokio::test(start_paused = true)]
    async fn pk_106_nothing_is_stored_and_a_missing_right_is_named() {
        let (requests, forbids): (Arc<Mutex<Vec<String>>>, _) = (
            Arc::default(),
            br#"{"kind": "Status", "apiVersion": "v1",
            "status": "Failure", "reason": "Forbidden", "code": 403, "message": "User \"eve\" cannot do that"}"#,
        );
        let seen = Arc::clone(&requests);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (method, uri) = (request.method().clone(), request.uri().clone());
            assert!(stores_nothing(&method, &uri), "{method} {uri}");
            seen.lock().expect("no panic").push(format!("{method} {}", uri.path()));
            let (status, body) = if uri.path() == "/version" { (200, b"{}".to_vec()) } else { (403, forbids.to_vec()) };
            let answer = http::Response::builder().status(status).body(Body::from(body));
            std::future::ready(answer)
        });
        let connected = connected(Client::new(service, "ns"));
        let examined = Examined {
            ask_provider: AskProvider::Yes,
            manager_user: Some("somebody"),
            ..connected.examined(&NoProviders)
        };
        let all = findings(&examined).await;
        assert!(all.iter().all(|finding| finding.health == Health::Unknown), "{all:#?}");
        let text = all.iter().map(|finding| finding.message.as_str()).collect::<Vec<_>>().join("\n");
        for right in [
            "get customresourcedefinitions.apiextensions.k8s.io",
            "get validatingwebhookconfigurations.admissionregistration.k8s.io",
            "create machines.machine.sapcloud.io in namespace ns",
            "get secrets in namespace ns",
            "get apiservices.apiregistration.k8s.io",
            "get flowschemas.flowcontrol.apiserver.k8s.io",
            "create subjectaccessreviews.authorization.k8s.io",
            "list pods in namespace ns",
            "get leases.coordination.k8s.io in namespace ns",
            "list machineclasses.machine.sapcloud.io in namespace ns",
            "list nodes",
            "list providermachines.views.machine.sapcloud.io in namespace ns",
        ] {
            assert!(text.contains(&format!("lacks the right to {right}")), "{right} in:\n{text}");
        }
        let requests = requests.lock().expect("no panic");
        assert!(requests.iter().any(|request| request.starts_with("POST /apis/machine.sapcloud.io")), "{requests:?}");
    }
}
