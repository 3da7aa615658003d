//! `mcm doctor`: checks the objects that connect a cluster with the manager. It reads definitions, webhook configurations, the
//! registration of the views and the Leases, reports what is wrong with them and what to do, and changes nothing.
//!
//! Source: spec/extension-apiserver §5.4. The checks are in [`checks`] and [`certificates`]; [`halves`] finds the programs that run.

mod certificates;
pub mod checks;
mod halves;

use std::io::Write;

use clap::Args;
use jiff::Timestamp;
use kube::{Client, client::Body};
use serde::Serialize;
use tokio::time::Instant;

use self::{
    certificates::bundle_fields,
    checks::{Finding, Health, Read},
    halves::{Runner, halves},
};
use super::{
    Failure,
    cluster_objects::{API_SERVICES, DEFINITIONS, LEASES, MUTATING, Resource, SECRETS, VALIDATING, v1},
    kubeconfig::{ClusterArgs, run_interruptibly},
    lease_watch::{self, LeaseState},
    migrate_storage::definition::name_of,
    namespace_name,
    output::OutputFormat,
    webhook_scope::WebhookScope,
};
use controller_runtime::{
    clock::{Clock, SystemClock, date_of},
    objects::{CALL_TIMEOUT, call},
};
use machine_api::{kind::Kind, names};

/// Flags of `mcm doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// The cluster with the machine objects
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of the machine objects; unset means the namespace of the kubeconfig's context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace_name)]
    pub namespace: Option<String>,
    /// Namespaces that the webhooks cover: all, or --namespace only
    #[arg(long, default_value = "cluster", value_name = "SCOPE")]
    pub scope: WebhookScope,
    /// Output for programs
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
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
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let findings = run_interruptibly(check(args), "interrupted; nothing was changed")?;
    let is_bad = findings.iter().any(|finding| finding.health == Health::Bad);
    if let Some(format) = args.output {
        format.write(&Answer { findings }, out)?;
    } else {
        for Finding { subject, health, message } in &findings {
            writeln!(out, "{:<7} {subject}: {message}", health.word())?;
        }
    }
    if is_bad { Err(Failure::Reported) } else { Ok(()) }
}

async fn check(args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let client = args.cluster.connect().await?;
    // Without an API server every finding would be the same error.
    let version = call(client.apiserver_version()).await;
    version.map_err(|error| Failure::run(anyhow::anyhow!("cannot ask the API server: {error}")))?;
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    Ok(findings(&client, &namespace, args.scope).await)
}

async fn findings(client: &Client, namespace: &str, scope: WebhookScope) -> Vec<Finding> {
    let (mut findings, mut fields, mut service_namespace) = (Vec::new(), Vec::new(), None);
    let namespaces = v1("", "Namespace", "namespaces");
    findings.extend(checks::namespace(namespace, &ask(client, namespaces, "", namespace).await));
    for kind in Kind::ALL {
        let read = ask(client, DEFINITIONS, "", &name_of(kind)).await;
        let finding = checks::definition(kind, &read);
        fields.extend(bundle_fields(&finding.subject, &read));
        findings.push(finding);
    }
    let configuration = scope.configuration(namespace);
    for webhooks in [MUTATING, VALIDATING] {
        let read = ask(client, webhooks, "", &configuration).await;
        let finding = checks::webhooks(webhooks.kind, &configuration, &read);
        fields.extend(bundle_fields(&finding.subject, &read));
        service_namespace = service_namespace.or_else(|| certificates::service_namespace(&read));
        findings.push(finding);
    }
    let holder = service_namespace.unwrap_or_else(|| namespace.to_owned());
    let secret = ask(client, SECRETS, &holder, names::CERTIFICATE_SECRET).await;
    let subject = format!("Secret {holder}/{}", names::CERTIFICATE_SECRET);
    findings.push(certificates::certificate(subject, &secret, &fields, time_of(client).await));
    findings.push(checks::views(&ask(client, API_SERVICES, "", names::API_SERVICE).await));
    findings.extend(leases(client, namespace).await);
    findings
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

/// The findings about each Lease, and about the programs that run the halves.
async fn leases(client: &Client, namespace: &str) -> Vec<Finding> {
    let watch = async |name| {
        let (read, state) = match lease_watch::watch(client, namespace, name).await {
            Ok(state) => (ask(client, LEASES, namespace, name).await, state),
            Err(error) => (Read::Refused(error.to_string()), LeaseState::Free),
        };
        let finding = checks::lease(namespace, name, &read, &state, time_of(client).await);
        (finding, Runner::of(&read, &state))
    };
    let ((manager, runs_manager), (machines, runs_machines)) =
        futures::future::join(watch(names::LEASE_CONTROLLER_MANAGER), watch(names::LEASE_MACHINE_CONTROLLER)).await;
    vec![manager, machines, halves(namespace, &runs_manager, &runs_machines)]
}

async fn ask(client: &Client, resource: Resource, namespace: &str, name: &str) -> Read {
    match resource.read(client, namespace, name).await {
        Ok(Some(object)) => {
            serde_json::to_value(&object).map_or_else(|error| Read::Refused(error.to_string()), Read::There)
        }
        Ok(None) => Read::Missing,
        Err(error) => Read::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::api::core::v1::Secret;

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

    #[rstest::rstest]
    #[case::as_the_clock_of_this_computer(0)]
    #[case::a_year_ahead(24 * 365)]
    #[case::a_year_behind(-24 * 365)]
    #[tokio::test(start_paused = true)]
    async fn certificates_are_checked_by_the_api_servers_clock(#[case] hours: i64) {
        let client = cluster(SignedDuration::from_hours(hours));
        let all = findings(&client, "ns", WebhookScope::Cluster).await;
        let found = all.iter().find(|finding| finding.subject.starts_with("Secret")).expect("it is checked");
        assert!(found.health == Health::Fine && found.message.starts_with("valid until"), "{found:?}");
    }
}
