//! Names, types and labels as the specifications list them, and scrapes of a small fleet.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::json;

use super::*;
use machine_api::{
    machine_code::Code,
    v1alpha1::{ClassSpec, Machine, MachineDeployment, MachineSet},
};
use machine_driver::Operation;

/// A clock that a test moves.
fn a_clock() -> (Arc<AtomicU64>, Clock) {
    let millis = Arc::new(AtomicU64::new(0));
    let read = Arc::clone(&millis);
    (millis, Arc::new(move || Duration::from_millis(read.load(Ordering::SeqCst))))
}

fn metrics() -> Metrics {
    Metrics::new(a_clock().1).unwrap()
}

fn read<T: serde::de::DeserializeOwned>(object: serde_json::Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object).unwrap())
}

fn a_fleet() -> FleetSnapshot {
    let failed = json!([{"name": "m-0", "providerID": "aws:///i-0", "ownerRef": "set",
        "lastOperation": {"state": "Failed", "type": "HealthCheck"}}]);
    let machine: Arc<Machine> = read(json!({
        "metadata": {"name": "m-1", "namespace": "shoot", "creationTimestamp": "2023-11-14T22:13:20Z", "labels": {"node": "ip-1"}},
        "spec": {"class": {"kind": "MachineClass", "name": "pool"}, "providerID": "aws:///i-1"},
        "status": {"currentStatus": {"phase": "CrashLoopBackOff"},
            "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "Ready", "status": "Unknown"}]},
    }));
    let set: Arc<MachineSet> = read(json!({
        "metadata": {"name": "set", "namespace": "shoot", "creationTimestamp": "2023-11-14T22:13:20Z"},
        "spec": {"replicas": 3, "minReadySeconds": 5, "machineClass": {"kind": "AWSMachineClass", "name": "old"}},
        "status": {"replicas": 3, "readyReplicas": 1, "availableReplicas": 1, "fullyLabeledReplicas": 2,
            "machineSetCondition": [{"type": "Frozen", "status": "False"}], "failedMachines": failed},
    }));
    let mut young = MachineSet::clone(&set);
    young.metadata.name = Some("young".to_owned());
    young.spec.machine_class = ClassSpec::default();
    young.spec.template.spec.class.name = "new".to_owned();
    let deployment: Arc<MachineDeployment> = read(json!({
        "metadata": {"name": "pool", "namespace": "shoot", "creationTimestamp": "2023-11-14T22:13:20Z"},
        "spec": {"replicas": 3, "paused": true, "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
            "rollbackTo": {"revision": 4}, "template": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": "70%"}}},
        "status": {"replicas": 3, "unavailableReplicas": 2, "collisionCount": 1,
            "conditions": [{"type": "Progressing", "status": "True"}], "failedMachines": failed},
    }));
    FleetSnapshot {
        machines: Listing::Of(vec![machine]),
        sets: Listing::Of(vec![Arc::new(young), set]),
        deployments: Listing::Of(vec![deployment]),
    }
}

/// Makes at least one series of every family appear.
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
    metrics.machine.set_back_off.set(&OfSet { name: "set", namespace: "shoot" }, 30.0);
    metrics.machine.stage_duration.observe(&Stage { stage: "drain" }, Duration::from_secs(3));
    metrics.machine.api_writes.inc(&ApiWrite { object: "machine", reason: "finalizer" });
    metrics.machine.orphan_vms_deleted.inc(&OfClass { class: "pool" });
    let url = url_pattern("https://api:443", "/api/v1/nodes/n");
    metrics.rest_client.latency.observe(&RestLatency { verb: "GET", url: &url }, Duration::from_millis(3));
    metrics.rest_client.requests.inc(&RestResult { code: "200", method: "GET", host: "api:443" });
    let (webhook, kind) = (Webhook::Validate, ReviewedKind::Machine);
    metrics.admission.requests.inc(&Reviewed {
        webhook,
        kind,
        operation: ReviewedOperation::Create,
        allowed: Allowed::No,
    });
    metrics.admission.duration.observe(&OfWebhook { webhook }, Duration::from_micros(90));
    metrics.admission.rules.inc(&RuleHit {
        rule: "STR-7",
        level: RuleLevel::Deny,
        kind: ReviewedKind::MachineDeployment,
        operation: ReviewedOperation::Create,
    });
    let conversion = Conversion { from: ApiVersion::V1alpha1, to: ApiVersion::V1beta1, result: Outcome::Success };
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
    drop(metrics.queue("machine").added().started());
    metrics.observe_fleet(a_fleet).unwrap();
}

/// Name, type and label names (sorted) of every family in a text, process metrics left out.
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
mcm_definitions_hollow gauge
mcm_drain_pods gauge state
mcm_extension_audit_dropped_total counter
mcm_extension_auth_config_errors_total counter key
mcm_extension_request_duration_seconds histogram view
mcm_extension_requests_total counter code,verb,view
mcm_machine_api_writes_total counter object,reason
mcm_machine_controller_frozen gauge
mcm_machine_create_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_current_status_phase gauge name,namespace
mcm_machine_delete_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_deployment_failed_machines gauge failed_machine_last_operation_machine_operation_type,failed_machine_last_operation_state,failed_machine_name,failed_machine_owner_ref,failed_machine_provider_id,name,namespace
mcm_machine_deployment_info gauge createdAt,name,namespace,spec_strategy_type
mcm_machine_deployment_info_spec_min_ready_seconds gauge name,namespace
mcm_machine_deployment_info_spec_paused gauge name,namespace
mcm_machine_deployment_info_spec_progress_deadline_seconds gauge name,namespace
mcm_machine_deployment_info_spec_replicas gauge name,namespace
mcm_machine_deployment_info_spec_revision_history_limit gauge name,namespace
mcm_machine_deployment_info_spec_rollback_to_revision gauge name,namespace
mcm_machine_deployment_info_spec_rolling_update_max_surge gauge name,namespace
mcm_machine_deployment_info_spec_rolling_update_max_unavailable gauge name,namespace
mcm_machine_deployment_items_total gauge
mcm_machine_deployment_status_available_replicas gauge name,namespace
mcm_machine_deployment_status_collision_count gauge name,namespace
mcm_machine_deployment_status_condition gauge condition,name,namespace
mcm_machine_deployment_status_ready_replicas gauge name,namespace
mcm_machine_deployment_status_replicas gauge name,namespace
mcm_machine_deployment_status_unavailable_replicas gauge name,namespace
mcm_machine_deployment_status_updated_replicas gauge name,namespace
mcm_machine_drain_duration_seconds gauge machine_deployment,namespace
mcm_machine_info gauge createdAt,name,namespace,node_name,spec_class_api_group,spec_class_kind,spec_class_name,spec_provider_id
mcm_machine_initialize_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_items_total gauge
mcm_machine_join_duration_seconds gauge instance_type,machine_deployment,namespace,zone
mcm_machine_node_unidentified gauge namespace
mcm_machine_num_failed_join counter instance_type,machine_deployment,namespace,zone
mcm_machine_set_backoff_seconds gauge name,namespace
mcm_machine_set_failed_machines gauge failed_machine_last_operation_machine_operation_type,failed_machine_last_operation_state,failed_machine_name,failed_machine_owner_ref,failed_machine_provider_id,name,namespace
mcm_machine_set_info gauge createdAt,name,namespace,spec_machine_class_api_group,spec_machine_class_kind,spec_machine_class_name
mcm_machine_set_info_spec_min_ready_seconds gauge name,namespace
mcm_machine_set_info_spec_replicas gauge name,namespace
mcm_machine_set_items_total gauge
mcm_machine_set_status_available_replicas gauge name,namespace
mcm_machine_set_status_condition gauge condition,name,namespace
mcm_machine_set_status_fully_labelled_replicas gauge name,namespace
mcm_machine_set_status_ready_replicas gauge name,namespace
mcm_machine_set_status_replicas gauge name,namespace
mcm_machine_stage_duration_seconds histogram stage
mcm_machine_stale_machines_total counter
mcm_machine_status_condition gauge condition,name,namespace
mcm_misc_scrape_failure_total counter binary,kind
mcm_orphan_vms_deleted_total counter class
mcm_panics_total counter view
mcm_server_connections gauge listener
mcm_server_panics_total counter webhook
mcm_server_rejected_total counter listener,reason
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
fn s_met_01_s_met_02_s_met_04_a_scrape_shows_the_fleet() {
    let metrics = metrics();
    touch_everything(&metrics);
    let text = metrics.render().unwrap();
    for line in [
        "mcm_machine_items_total 1",
        "mcm_machine_set_items_total 2",
        "mcm_machine_deployment_items_total 1",
        r#"mcm_machine_info{createdAt="1700000000",name="m-1",namespace="shoot",node_name="ip-1",spec_class_api_group="",spec_class_kind="MachineClass",spec_class_name="pool",spec_provider_id="aws:///i-1"} 1"#,
        r#"mcm_machine_current_status_phase{name="m-1",namespace="shoot"} -2"#,
        r#"mcm_machine_status_condition{condition="Ready",name="m-1",namespace="shoot"} 2"#,
        r#"mcm_machine_node_unidentified{namespace="shoot"} 0"#,
        r#"mcm_machine_set_info{createdAt="1700000000",name="set",namespace="shoot",spec_machine_class_api_group="",spec_machine_class_kind="AWSMachineClass",spec_machine_class_name="old"} 1"#,
        r#"mcm_machine_set_info{createdAt="1700000000",name="young",namespace="shoot",spec_machine_class_api_group="",spec_machine_class_kind="",spec_machine_class_name="new"} 1"#,
        r#"mcm_machine_set_status_replicas{name="set",namespace="shoot"} 3"#,
        r#"mcm_machine_set_status_ready_replicas{name="set",namespace="shoot"} 1"#,
        r#"mcm_machine_set_status_condition{condition="Frozen",name="set",namespace="shoot"} 0"#,
        r#"mcm_machine_deployment_info{createdAt="1700000000",name="pool",namespace="shoot",spec_strategy_type="RollingUpdate"} 1"#,
        r#"mcm_machine_deployment_info_spec_rolling_update_max_surge{name="pool",namespace="shoot"} 1"#,
        r#"mcm_machine_deployment_info_spec_rolling_update_max_unavailable{name="pool",namespace="shoot"} 2"#,
        r#"mcm_machine_deployment_info_spec_rollback_to_revision{name="pool",namespace="shoot"} 4"#,
        r#"mcm_cloud_api_driver_requests_failed_total{error_code="8",operation="list_machine",provider="aws"} 1"#,
        r#"rest_client_request_latency_seconds_bucket{url="https://api:443/api/v1/nodes/%7Bname%7D",verb="GET",le="0.004"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\n{text}");
    }
}

#[test]
fn mc_271_mc_272_phases_have_the_originals_numbers_and_end_with_their_machine() {
    let metrics = metrics();
    let fleet = Arc::new(Mutex::new(a_fleet()));
    let source = Arc::clone(&fleet);
    metrics.observe_fleet(move || source.lock().unwrap().clone()).unwrap();
    let numbers = [
        ("Terminating", "-4"),
        ("Failed", "-3"),
        ("CrashLoopBackOff", "-2"),
        ("Unknown", "-1"),
        ("Pending", "0"),
        ("Running", "1"),
        ("InPlaceUpdating", "0"),
    ];
    for (phase, number) in numbers {
        let machine: Arc<Machine> = read(
            json!({ "metadata": {"name": "m-1", "namespace": "shoot"}, "status": {"currentStatus": {"phase": phase}} }),
        );
        fleet.lock().unwrap().machines = Listing::Of(vec![machine]);
        let line = format!(r#"mcm_machine_current_status_phase{{name="m-1",namespace="shoot"}} {number}"#);
        let text = metrics.render().unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    fleet.lock().unwrap().machines = Listing::Of(Vec::new());
    let text = metrics.render().unwrap();
    assert!(!text.contains(r#"name="m-1""#), "{text}");
}

#[test]
fn s_met_03_a_deleted_object_leaves_no_series_behind() {
    let metrics = metrics();
    let fleet = Arc::new(Mutex::new(a_fleet()));
    let source = Arc::clone(&fleet);
    metrics.observe_fleet(move || source.lock().unwrap().clone()).unwrap();
    let series_of_deployments = |text: &str| {
        text.lines().filter(|line| line.starts_with("mcm_machine_deployment") && line.contains("shoot")).count()
    };
    assert!(series_of_deployments(&metrics.render().unwrap()) > 10);
    fleet.lock().unwrap().deployments = Listing::Of(Vec::new());
    let text = metrics.render().unwrap();
    assert_eq!(series_of_deployments(&text), 0, "{text}");
    assert!(text.contains("mcm_machine_deployment_items_total 0"));
}

#[test]
fn a_failed_listing_is_counted_for_its_half_and_hides_nothing_else() {
    let metrics = metrics();
    metrics.observe_fleet(|| FleetSnapshot { machines: Listing::Failed, ..a_fleet() }).unwrap();
    metrics.render().unwrap();
    let text = metrics.render().unwrap();
    let counted =
        r#"mcm_misc_scrape_failure_total{binary="machine-controller-manager-provider",kind="Machine-count"} "#;
    assert!(text.lines().any(|line| line.starts_with(counted) && !line.ends_with(" 0")), "{text}");
    assert!(text.contains("mcm_machine_set_items_total 2"));
    assert!(!text.contains("mcm_machine_items_total"));
}

#[test]
fn a_kind_that_is_not_watched_has_no_series() {
    let metrics = metrics();
    metrics.observe_fleet(FleetSnapshot::default).unwrap();
    assert!(!metrics.render().unwrap().contains("items_total"));
}

#[test]
fn a_queue_tells_what_waits_and_what_is_being_worked_on() {
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
