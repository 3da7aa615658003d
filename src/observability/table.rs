//! The alerts. Each row has the reason for what its expression does not say itself.
//!
//! Every replica reports the gauges of single machines, sets and deployments, so that they are reduced to one series per object first.

use std::time::Duration;

use super::alert::{Alert, AlertName, Expression, Installation, Severity};

/// All alerts.
pub fn alerts() -> &'static [Alert] {
    ALERTS
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// An alert that is installed by default, with its expression as a text.
const fn alert(
    name: AlertName,
    severity: Severity,
    holds_for: Duration,
    text: &'static str,
    summary: &'static str,
    description: &'static str,
) -> Alert {
    let (installation, expression) = (Installation::Usual, Expression::Text(text));
    Alert { name, severity, installation, expression, holds_for, summary, description }
}

/// An alert about events: it fires at once, also for the first one.
const fn events(
    name: AlertName,
    severity: Severity,
    counters: &'static [&'static str],
    by: &'static [&'static str],
    summary: &'static str,
    description: &'static str,
) -> Alert {
    let (installation, expression) = (Installation::Usual, Expression::Events { counters, by });
    Alert { name, severity, installation, expression, holds_for: Duration::ZERO, summary, description }
}

const ALERTS: &[Alert] = &[
    alert(
        AlertName::Down,
        Severity::Critical,
        minutes(5),
        "absent(mcm_build_info{%job%})",
        "No replica of the machine controller manager runs.",
        "Prometheus has scraped no replica for 5 minutes. No machine is created, replaced or deleted, and new machine objects are refused.",
    ),
    // Without any replica there is no count, so that only the alert above fires.
    alert(
        AlertName::ReplicaMissing,
        Severity::Warning,
        minutes(15),
        "count(mcm_build_info{%job%}) < %replicas%",
        "A replica of the machine controller manager is missing.",
        "Fewer replicas run than wanted. If the last one ends too, nothing is created, replaced or deleted.",
    ),
    alert(
        AlertName::NoLeader,
        Severity::Critical,
        minutes(2),
        "max by (lease) (mcm_leader{%job%}) == 0",
        "No replica has the Lease {{ $labels.lease }}.",
        "The loops of the Lease {{ $labels.lease }} run nowhere. Their part of the work is not done.",
    ),
    alert(
        AlertName::TwoLeaders,
        Severity::Critical,
        minutes(1),
        "sum by (lease) (mcm_leader{%job%}) > 1",
        "Two replicas have the Lease {{ $labels.lease }}.",
        "Two replicas run the loops of the Lease {{ $labels.lease }} at the same time. They may make machines twice.",
    ),
    alert(
        AlertName::Frozen,
        Severity::Critical,
        minutes(10),
        "max(mcm_machine_controller_frozen{%job%}) == 1",
        "The machine controllers are frozen.",
        "An API server does not answer, or a clock is wrong. No machine is created or replaced until that ends.",
    ),
    // The oldest cache of all replicas counts: a watch of the leader can be dead while that of another replica works.
    alert(
        AlertName::CacheStale,
        Severity::Warning,
        minutes(10),
        "time() - min by (cluster, kind) (mcm_cache_last_event_seconds{%job%}) > %cacheAgeSeconds%",
        "The watch of {{ $labels.kind }} in the {{ $labels.cluster }} cluster delivers nothing.",
        "A replica has received no event for {{ $labels.kind }} of the {{ $labels.cluster }} cluster, not even a bookmark. It may decide on outdated objects.",
    ),
    alert(
        AlertName::StoredVersionUnserved,
        Severity::Critical,
        minutes(1),
        "max(mcm_crd_stored_version_unserved{%job%}) > 0 or max(mcm_definitions_hollow{%job%}) > 0",
        "Machine objects are stored in a version that can't be read.",
        "The definitions lost the version or the converter that stored objects need. The objects look empty, and nothing is created, changed or deleted.",
    ),
    // A new machine is well until its own creation timeout has passed, and a machine that ends is well too. The phases and the stages
    // have no machine in common. The counts exist with and without series of single machines.
    alert(
        AlertName::MassFailure,
        Severity::Critical,
        minutes(5),
        "sum by (namespace) (max by (namespace, phase) (mcm_machines{%job%, phase=~\"Failed|Unknown\"}) \
         or max by (namespace, stage) (mcm_machines_overdue{%job%, stage=~\"Create|Join|InPlace\"})) \
         / sum by (namespace) (max by (namespace, phase) (mcm_machines{%job%})) > %failedShare% \
         and sum by (namespace) (max by (namespace, phase) (mcm_machines{%job%})) >= %fleetMinimum%",
        "Many machines of namespace {{ $labels.namespace }} are not well.",
        "Too many machines of namespace {{ $labels.namespace }} are neither Running nor new nor ending. One cause for all of them is likely.",
    ),
    // Without series of single machines the counts say that there are such machines, but not whether they are the same all the time.
    alert(
        AlertName::MachineFailed,
        Severity::Warning,
        minutes(30),
        "max by (namespace, name) (mcm_machine_current_status_phase{%job%}) == -3 \
         or (max by (namespace) (mcm_machines{%job%, phase=\"Failed\"}) > 0 \
         unless on (namespace) mcm_machine_current_status_phase{%job%})",
        "A machine of namespace {{ $labels.namespace }} is Failed.",
        "The machine has failed and has not been replaced for 30 minutes. The label name is the machine; --metrics-per-machine=false leaves it out.",
    ),
    alert(
        AlertName::MachineCrashLooping,
        Severity::Warning,
        minutes(30),
        "max by (namespace, name) (mcm_machine_current_status_phase{%job%}) == -2 \
         or (max by (namespace) (mcm_machines{%job%, phase=\"CrashLoopBackOff\"}) > 0 \
         unless on (namespace) mcm_machine_current_status_phase{%job%})",
        "A machine of namespace {{ $labels.namespace }} is in CrashLoopBackOff.",
        "The provider has not made the VM for 30 minutes. The label name is the machine; --metrics-per-machine=false leaves it out.",
    ),
    alert(
        AlertName::MachineOverdue,
        Severity::Warning,
        minutes(15),
        "max by (namespace, stage) (mcm_machines_overdue{%job%}) > 0",
        "Machines of namespace {{ $labels.namespace }} have exceeded the deadline of stage {{ $labels.stage }}.",
        "Machines of namespace {{ $labels.namespace }} are in stage {{ $labels.stage }} for longer than their own deadline allows.",
    ),
    events(
        AlertName::JoinFailed,
        Severity::Warning,
        &["mcm_machine_num_failed_join"],
        &["namespace", "machine_deployment"],
        "A VM of deployment {{ $labels.namespace }}/{{ $labels.machine_deployment }} did not join the cluster.",
        "A VM was made, and its Node did not register within the creation timeout. The machine is replaced.",
    ),
    events(
        AlertName::OrphansDeleted,
        Severity::Info,
        &["mcm_orphan_vms_deleted_total"],
        &["class"],
        "VMs of class {{ $labels.class }} without a machine were deleted.",
        "VMs with the tags of class {{ $labels.class }} belonged to no machine and were deleted. Another program may have made them.",
    ),
    alert(
        AlertName::SetBackingOff,
        Severity::Warning,
        minutes(30),
        "max by (namespace, name) (mcm_machine_set_backoff_seconds{%job%}) > 0",
        "New machines of set {{ $labels.namespace }}/{{ $labels.name }} repeatedly fail to join.",
        "Set {{ $labels.namespace }}/{{ $labels.name }} waits longer and longer before it replaces machines that never joined.",
    ),
    alert(
        AlertName::NodeUnidentified,
        Severity::Warning,
        minutes(30),
        "max by (namespace) (mcm_machine_node_unidentified{%job%}) > 0",
        "A driver can't tell which Nodes belong to machines of namespace {{ $labels.namespace }}.",
        "The driver can't compare the provider ids of machines and Nodes of namespace {{ $labels.namespace }}. The labels of the machines decide meanwhile.",
    ),
    // The window is as long as the delay, so that one burst of failures does not fire.
    alert(
        AlertName::ProviderCredentials,
        Severity::Critical,
        minutes(10),
        "sum by (provider) (increase(mcm_cloud_api_driver_requests_failed_total{%job%, error_code=~\"7|16\"}[10m])) > 0",
        "Provider {{ $labels.provider }} refuses the credentials.",
        "Calls to provider {{ $labels.provider }} fail with PermissionDenied or Unauthenticated. No VM is made or deleted with these credentials.",
    ),
    alert(
        AlertName::ProviderCapacity,
        Severity::Warning,
        minutes(30),
        "sum by (provider) (increase(mcm_cloud_api_driver_requests_failed_total{%job%, error_code=\"8\"}[30m])) > 0",
        "Provider {{ $labels.provider }} has no capacity.",
        "Calls to provider {{ $labels.provider }} fail with ResourceExhausted: a quota is used up, or the hardware is.",
    ),
    // NotFound, Unimplemented and Uninitialized (5, 12, 17) are answers and no errors. Without any success there is no series of
    // durations, so that the sums are joined with `or`.
    alert(
        AlertName::ProviderErrors,
        Severity::Warning,
        minutes(30),
        "sum by (provider) (rate(mcm_cloud_api_driver_requests_failed_total{%job%, error_code!~\"5|7|8|12|16|17\"}[30m])) \
         / sum by (provider) (rate(mcm_cloud_api_driver_requests_failed_total{%job%}[30m]) \
         or rate(mcm_cloud_api_driver_request_duration_seconds_count{%job%}[30m])) > %errorShare%",
        "Provider {{ $labels.provider }} fails.",
        "Too many calls to provider {{ $labels.provider }} fail for other reasons than credentials and capacity.",
    ),
    alert(
        AlertName::DriverDown,
        Severity::Critical,
        minutes(5),
        "min by (driver) (mcm_driver_up{%job%}) == 0",
        "The driver of provider {{ $labels.driver }} does not serve.",
        "A replica can't reach the driver of provider {{ $labels.driver }}. Its machines wait, and its orphans are not searched.",
    ),
    // With every new attempt a pod is pending until its eviction is answered. A scrape at that moment must not end the hour.
    alert(
        AlertName::DrainRefused,
        Severity::Warning,
        minutes(60),
        "max(max_over_time(mcm_drain_pods{%job%, state=\"refused\"}[5m])) > 0",
        "Disruption budgets delay drains.",
        "For an hour disruption budgets have refused the eviction of pods. The deletion of their machines waits.",
    ),
    // While a rollout runs, as many machines may be missing as it may make unavailable.
    alert(
        AlertName::DeploymentShort,
        Severity::Warning,
        minutes(30),
        "((max by (namespace, name) (mcm_machine_deployment_info_spec_replicas{%job%}) \
         - max by (namespace, name) (mcm_machine_deployment_status_available_replicas{%job%})) > 0) \
         unless (max by (namespace, name) (mcm_machine_deployment_info_spec_replicas{%job%}) \
         - max by (namespace, name) (mcm_machine_deployment_status_available_replicas{%job%}) \
         <= max by (namespace, name) (mcm_machine_deployment_info_spec_rolling_update_max_unavailable{%job%}) \
         and max by (namespace, name) (mcm_machine_deployment_status_updated_replicas{%job%}) \
         < max by (namespace, name) (mcm_machine_deployment_info_spec_replicas{%job%}))",
        "Deployment {{ $labels.namespace }}/{{ $labels.name }} has fewer available machines than wanted.",
        "For 30 minutes deployment {{ $labels.namespace }}/{{ $labels.name }} has had fewer available machines than wanted.",
    ),
    // A rollout runs while some machines are not of the newest set. It must have run for the whole time in which no step was made.
    alert(
        AlertName::RolloutStuck,
        Severity::Warning,
        minutes(5),
        "max by (namespace, name) (mcm_machine_deployment_status_condition{%job%, condition=\"Progressing\"}) == 0 \
         or ((max by (namespace, name) (mcm_machine_deployment_status_updated_replicas{%job%}) \
         < max by (namespace, name) (mcm_machine_deployment_status_replicas{%job%})) \
         and (max by (namespace, name) (mcm_machine_deployment_status_updated_replicas{%job%} offset %rolloutStepSeconds%s) \
         < max by (namespace, name) (mcm_machine_deployment_status_replicas{%job%} offset %rolloutStepSeconds%s)) \
         and max by (namespace, name) (changes(mcm_machine_deployment_status_updated_replicas{%job%}[%rolloutStepSeconds%s]) \
         + changes(mcm_machine_deployment_status_replicas{%job%}[%rolloutStepSeconds%s]) \
         + changes(mcm_machine_deployment_status_available_replicas{%job%}[%rolloutStepSeconds%s])) == 0 \
         unless max by (namespace, name) (mcm_machine_deployment_info_spec_paused{%job%}) == 1)",
        "The rollout of deployment {{ $labels.namespace }}/{{ $labels.name }} is stuck.",
        "The rollout of deployment {{ $labels.namespace }}/{{ $labels.name }} has exceeded its progress deadline, or has made no step for too long.",
    ),
    alert(
        AlertName::SetFrozen,
        Severity::Warning,
        minutes(5),
        "max by (namespace, name) (mcm_machine_set_status_condition{%job%, condition=\"Frozen\"}) == 1",
        "Set {{ $labels.namespace }}/{{ $labels.name }} is frozen.",
        "Set {{ $labels.namespace }}/{{ $labels.name }} has far more machines than wanted. It makes no machine until the surplus is gone.",
    ),
    alert(
        AlertName::CertificateExpiring,
        Severity::Warning,
        minutes(60),
        "min by (name) (mcm_certificate_expiry_seconds{%job%}) - time() < %certificateWarningDays% * 86400",
        "The certificate {{ $labels.name }} ends soon.",
        "The certificate {{ $labels.name }} was not renewed in time. When it ends, the API server can't call the webhooks.",
    ),
    alert(
        AlertName::CertificateExpiring,
        Severity::Critical,
        minutes(60),
        "min by (name) (mcm_certificate_expiry_seconds{%job%}) - time() < %certificateCriticalDays% * 86400",
        "The certificate {{ $labels.name }} ends very soon.",
        "The certificate {{ $labels.name }} was not renewed. When it ends, the API server can't call the webhooks.",
    ),
    alert(
        AlertName::CABundleContested,
        Severity::Warning,
        minutes(60),
        "sum(increase(mcm_certificate_ca_bundle_contests_total{%job%}[1h])) > %caBundleContests%",
        "Another program writes the CA bundle of the webhooks.",
        "Another program repeatedly replaces the CA bundle. Between its write and the repair, calls of the webhooks fail.",
    ),
    alert(
        AlertName::CABundleDrifted,
        Severity::Critical,
        minutes(10),
        "max(mcm_certificate_ca_bundles_drifted{%job%}) > 0",
        "An object lacks the CA bundle of the webhooks.",
        "A webhook configuration, a definition or the APIService lacks the CA bundle, and the manager can't write it. The calls fail.",
    ),
    alert(
        AlertName::AdmissionRejecting,
        Severity::Warning,
        minutes(5),
        "sum by (reason) (rate(mcm_server_rejected_total{%job%, reason=~\"in_flight_limit|connection_limit\"}[5m])) > 0",
        "Reviews are turned away because of the limit {{ $labels.reason }}.",
        "There are more reviews or connections than the replicas accept. The API server refuses the requests, or calls again.",
    ),
    alert(
        AlertName::AdmissionSlow,
        Severity::Warning,
        minutes(5),
        "histogram_quantile(0.99, sum by (webhook, le) (rate(mcm_admission_duration_seconds_bucket{%job%}[5m]))) > %admissionSeconds%",
        "Reviews of the webhook {{ $labels.webhook }} are slow.",
        "One of 100 reviews of the webhook {{ $labels.webhook }} takes too long. Requests for machine objects wait for it.",
    ),
    alert(
        AlertName::QueueStuck,
        Severity::Warning,
        minutes(10),
        "max by (name) (mcm_workqueue_depth{%job%}) > %queueDepth% \
         or max by (name) (mcm_workqueue_longest_running_processor_seconds{%job%}) > %queueItemSeconds%",
        "The work queue {{ $labels.name }} makes no progress.",
        "Many keys wait in the work queue {{ $labels.name }}, or a worker works on one key for too long.",
    ),
    alert(
        AlertName::ClockOffset,
        Severity::Warning,
        minutes(5),
        "max(abs(mcm_clock_offset_seconds{%job%})) > %clockOffsetSeconds%",
        "The clocks of a replica and of the API server differ.",
        "The clock of a replica's host differs from the clock of the API server. Above 300 seconds nothing is created or replaced.",
    ),
    alert(
        AlertName::ClockStepping,
        Severity::Warning,
        Duration::ZERO,
        "max(increase(mcm_clock_steps_total{%job%}[1h])) > %clockSteps%",
        "The clock of a replica's host is set repeatedly.",
        "After each step of the clock, decisions about health and new machines stop for a minute.",
    ),
    events(
        AlertName::Panic,
        Severity::Warning,
        &["mcm_panics_total", "mcm_server_panics_total"],
        &["view", "webhook"],
        "A part of the machine controller manager panicked.",
        "A request was lost because of a defect of the program. The process goes on.",
    ),
    events(
        AlertName::ConversionLoss,
        Severity::Warning,
        &["mcm_conversion_residue_dropped_total"],
        &[],
        "A conversion between versions lost data.",
        "An object had data that only the other version can express, and a conversion dropped it.",
    ),
    // The series is of the API server, which has another job. The names of the webhooks are ours alone.
    Alert {
        installation: Installation::OnRequest,
        ..alert(
            AlertName::WebhookUnreachable,
            Severity::Critical,
            minutes(5),
            "sum by (name) (increase(apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\", \
             name=~\"(.+[.])?(mutate|validate)[.]machine[.]sapcloud[.]io\"}[5m])) > 0",
            "The API server can't reach the webhook {{ $labels.name }}.",
            "The API server refuses requests for machine objects because its calls of the webhook {{ $labels.name }} fail.",
        )
    },
];
