//! Names, types and labels as in the specifications.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::*;
use kube_values::field::Severity;
use machine_api::{
    admission::Operation as ReviewOperation,
    kind::{ApiVersion, Kind},
    webhooks::{Endpoint, Webhook},
};
use machine_driver::{Code, Operation};

/// A clock with a settable time.
fn a_clock() -> (Arc<AtomicU64>, Clock) {
    let millis = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&millis);
    (millis, Arc::new(move || Duration::from_millis(read.load(Ordering::SeqCst))))
}

fn metrics() -> Metrics {
    Metrics::new(a_clock().1).unwrap()
}

/// Creates at least one series of every family.
fn touch_everything(metrics: &Metrics) {
    let (provider, operation) = ("aws", Operation::ListMachines);
    let call = CloudCall { provider, service: "instance_terminate" };
    let placed = PlacedMachine { namespace: "shoot", machine_deployment: "pool", instance_type: "m5", zone: "a" };
    metrics.cloud.requests.inc(&call);
    metrics.cloud.requests_failed.inc(&call);
    metrics.cloud.request_duration.observe(&call, Duration::from_millis(20));
    metrics.cloud.driver_request_duration.observe(&DriverCall { provider, operation }, Duration::from_millis(20));
    let error_code = Code::ResourceExhausted;
    metrics.cloud.driver_requests_failed.inc(&FailedDriverCall { provider, operation, error_code });
    metrics.machine.create_duration.set(&placed, 12.0);
    metrics.machine.initialize_duration.set(&placed, 1.0);
    metrics.machine.join_duration.set(&placed, 80.0);
    let of_deployment = OfDeployment { namespace: "shoot", machine_deployment: "pool" };
    metrics.machine.drain_duration.set(&of_deployment, 3.0);
    metrics.machine.delete_duration.set(&placed, 9.0);
    metrics.machine.num_failed_join.inc(&placed);
    metrics.machine.deletions.inc(&Deletion { namespace: "shoot", reason: DeletionReason::Rollout });
    metrics.manager.build_info.set(&Build { version: "1.2.3", commit: "abc", profile: "dist" }, 1.0);
    metrics.manager.leader.set(&OfLease { lease: "machine-controller" }, 1.0);
    metrics.manager.cache_last_event.set(&Cache { cluster: "target", kind: "nodes" }, 1.0);
    metrics.machine.set_back_off.set(&OfSet { name: "set", namespace: "shoot" }, 30.0);
    metrics.machine.stage_duration.observe(&Stage { stage: "drain" }, Duration::from_secs(3));
    metrics.machine.api_writes.inc(&ApiWrite { object: "machine", reason: "finalizer" });
    metrics.machine.orphan_vms_deleted.inc(&OfClass { class: "pool" });
    metrics.cloud.driver_up.set(&OfDriver { driver: "metal" }, 1.0);
    let url = url_pattern("https://api:443", "/api/v1/nodes/n");
    metrics.rest_client.latency.observe(&RestLatency { verb: "GET", url: &url }, Duration::from_millis(3));
    metrics.rest_client.requests.inc(&RestResult { code: "200", method: "GET", host: "api:443" });
    let (webhook, operation) = (Webhook::Admission(Endpoint::Validate), Some(ReviewOperation::Create));
    metrics.admission.requests.inc(&Reviewed { webhook, kind: Some(Kind::Machine), operation, allowed: false });
    metrics.admission.duration.observe(&OfWebhook { webhook }, Duration::from_micros(90));
    metrics.admission.rules.inc(&RuleHit {
        rule: "STR-7",
        level: Severity::Deny,
        kind: Some(Kind::MachineDeployment),
        operation,
    });
    let conversion =
        Conversion { from: Some(ApiVersion::V1alpha1), to: Some(ApiVersion::V1beta1), result: Outcome::Success };
    metrics.conversion.requests.inc(&conversion);
    metrics.conversion.duration.observe(&(), Duration::from_micros(90));
    metrics.certificate.expiry.set(&Certificate { name: "serving" }, 1.0);
    metrics.certificate.reload_failures.inc(&Certificate { name: "serving" });
    metrics.server.connections.set(&OfListener { listener: Listener::Secure }, 1.0);
    metrics.server.rejected.inc(&Rejected { listener: Listener::Secure, reason: Rejection::Handshake });
    metrics.extension.panics.inc(&OfView { view: "machineoutlooks" });
    metrics.extension.auth_config_errors.inc(&AuthConfigPart { key: "client-ca-file" });
    metrics.extension.requests.inc(&ViewRequest { view: "machineoutlooks", verb: "list", code: "200" });
    metrics.extension.duration.observe(&OfView { view: "machineoutlooks" }, Duration::from_millis(3));
    metrics.extension.audit_dropped.inc(&());
    metrics.trace.show();
    drop(metrics.queue("machine").added().started());
}

/// Name, type and sorted label names of every family in a text, without process metrics.
fn families(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ") && !line.contains(" process_")) {
        let mut words = line.split(' ').skip(2);
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        let suffix = if kind == "histogram" { "_sum" } else { "" };
        let sample = text
            .lines()
            .find(|l| {
                l.strip_prefix(name).and_then(|l| l.strip_prefix(suffix)).is_some_and(|l| l.starts_with(['{', ' ']))
            })
            .unwrap();
        let mut labels: Vec<&str> = match sample.split_once('{') {
            Some((_, rest)) => rest.split(',').filter_map(|pair| Some(pair.split_once('=')?.0)).collect(),
            None => Vec::new(),
        };
        labels.sort_unstable();
        found.push(format!("{name} {kind} {}", labels.join(",")).trim_end().to_owned());
    }
    found
}

#[test]
fn every_name_type_and_label_is_as_the_specifications_say() {
    let metrics = metrics();
    touch_everything(&metrics);
    let expected = "\
mcm_admission_duration_seconds histogram webhook
mcm_admission_requests_total counter allowed,kind,operation,webhook
mcm_admission_rule_total counter kind,level,operation,rule
mcm_bootstrap_token_collisions_total counter
mcm_build_info gauge commit,profile,version
mcm_cache_last_event_seconds gauge cluster,kind
mcm_certificate_ca_bundle_contests_total counter
mcm_certificate_ca_bundle_repairs_total counter
mcm_certificate_ca_bundles_drifted gauge
mcm_certificate_expiry_seconds gauge name
mcm_certificate_reload_failures_total counter name
mcm_clock_offset_seconds gauge
mcm_clock_steps_total counter
mcm_cloud_api_api_request_duration_seconds histogram provider,service
mcm_cloud_api_driver_request_duration_seconds histogram operation,provider
mcm_cloud_api_driver_requests_failed_total counter error_code,operation,provider
mcm_cloud_api_requests_failed_total counter provider,service
mcm_cloud_api_requests_total counter provider,service
mcm_conversion_duration_seconds histogram
mcm_conversion_objects_total counter
mcm_conversion_requests_total counter from,result,to
mcm_conversion_residue_dropped_total counter
mcm_crd_stored_version_unserved gauge
mcm_definitions_hollow gauge
mcm_drain_pods gauge state
mcm_driver_up gauge driver
mcm_extension_audit_dropped_total counter
mcm_extension_auth_config_errors_total counter key
mcm_extension_request_duration_seconds histogram view
mcm_extension_requests_total counter code,verb,view
mcm_leader gauge lease
mcm_machine_api_writes_total counter object,reason
mcm_machine_controller_frozen gauge
mcm_machine_create_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_delete_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_deletions_total counter namespace,reason
mcm_machine_drain_duration_seconds gauge machine_deployment,namespace
mcm_machine_initialize_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_join_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_num_failed_join counter instance_type,machine_deployment,namespace,zone
mcm_machine_set_backoff_seconds gauge name,namespace
mcm_machine_stage_duration_seconds histogram stage
mcm_machine_stale_machines_total counter
mcm_misc_scrape_failure_total counter binary,kind
mcm_orphan_vms_deleted_total counter class
mcm_panics_total counter view
mcm_server_connections gauge listener
mcm_server_panics_total counter webhook
mcm_server_rejected_total counter listener,reason
mcm_trace_spans_dropped_total counter reason
mcm_trace_spans_sent_total counter
mcm_workqueue_adds_total counter name
mcm_workqueue_depth gauge name
mcm_workqueue_longest_running_processor_seconds gauge name
mcm_workqueue_queue_duration_seconds histogram name
mcm_workqueue_retries_total counter name
mcm_workqueue_unfinished_work_seconds gauge name
mcm_workqueue_work_duration_seconds histogram name
rest_client_request_latency_seconds histogram url,verb
rest_client_requests_total counter code,host,method";
    let found = families(&metrics.render().unwrap());
    assert_eq!(found.join("\n"), expected);
}

#[test]
fn operations_codes_and_urls_are_spelled_as_the_original_spells_them() {
    let metrics = metrics();
    touch_everything(&metrics);
    let text = metrics.render().unwrap();
    for line in [
        r#"mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="list_machine",provider="aws"} 1"#,
        r#"rest_client_request_latency_seconds_bucket{url="https://api:443/api/v1/nodes/%7Bname%7D",verb="GET",le="0.004"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\n{text}");
    }
}

#[test]
fn a_queue_reports_waiting_and_running_work() {
    let (millis, clock) = a_clock();
    let metrics = Metrics::new(clock).unwrap();
    let queue = metrics.queue("machineset");
    let (first, second) = (queue.added(), queue.added());
    millis.store(2_000, Ordering::SeqCst);
    let working = first.started();
    millis.store(5_000, Ordering::SeqCst);
    let busy = metrics.render().unwrap();
    for line in [
        r#"mcm_workqueue_depth{name="machineset"} 1"#,
        r#"mcm_workqueue_adds_total{name="machineset"} 2"#,
        r#"mcm_workqueue_queue_duration_seconds_sum{name="machineset"} 2"#,
        r#"mcm_workqueue_unfinished_work_seconds{name="machineset"} 3"#,
        r#"mcm_workqueue_longest_running_processor_seconds{name="machineset"} 3"#,
    ] {
        assert!(busy.lines().any(|found| found == line), "missing: {line}\n{busy}");
    }
    drop((working, second));
    queue.retried();
    let idle = metrics.render().unwrap();
    for line in [
        r#"mcm_workqueue_depth{name="machineset"} 0"#,
        r#"mcm_workqueue_work_duration_seconds_sum{name="machineset"} 3"#,
        r#"mcm_workqueue_unfinished_work_seconds{name="machineset"} 0"#,
        r#"mcm_workqueue_retries_total{name="machineset"} 1"#,
    ] {
        assert!(idle.lines().any(|found| found == line), "missing: {line}\n{idle}");
    }
}

#[test]
fn what_nothing_changes_is_set_before_each_scrape() {
    let metrics = metrics();
    let scrapes = AtomicU64::new(0);
    metrics.before_scrapes(move |catalogue| {
        let held = scrapes.fetch_add(1, Ordering::SeqCst) == 0;
        catalogue.manager.leader.set(&OfLease { lease: "l" }, if held { 1.0 } else { 0.0 });
    });
    for expected in ["mcm_leader{lease=\"l\"} 1\n", "mcm_leader{lease=\"l\"} 0\n"] {
        let text = metrics.render().unwrap();
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
}

#[test]
fn two_managers_do_not_share_values() {
    let (one, other) = (metrics(), metrics());
    one.machine.stale_machines.inc(&());
    assert!(one.render().unwrap().contains("mcm_machine_stale_machines_total 1"));
    assert!(other.render().unwrap().contains("mcm_machine_stale_machines_total 0"));
}

#[test]
fn every_driver_code_is_printed_as_its_number() {
    for code in Code::ALL {
        assert_eq!(code.label(), code.number().to_string());
    }
}
