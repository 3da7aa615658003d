//! Names and labels of the gauges, and scrapes of a small fleet.

use controller_runtime::key::ObjectKey;
use machine_api::v1alpha1::{ClassSpec, Machine, MachineDeployment, MachineSet};
use mcm_metrics::Metrics;
use serde_json::{Value, json};

use super::*;

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

/// Metrics of the objects in these stores.
fn metrics_of(views: &ControlViews) -> Metrics {
    let metrics = Metrics::new(std::sync::Arc::new(|| std::time::Duration::ZERO)).unwrap();
    metrics.register(FleetMetrics::of(views.clone(), Half::ALL.to_vec(), PerMachine::Shown).unwrap()).unwrap();
    metrics
}

fn a_fleet() -> ControlViews {
    let failed = json!([{"name": "m-0", "providerID": "aws:///i-0", "ownerRef": "set",
        "lastOperation": {"state": "Failed", "type": "HealthCheck"}}]);
    let machine: Machine = read(json!({
        "metadata": {"name": "m-1", "namespace": "shoot", "resourceVersion": "1", "creationTimestamp": "2023-11-14T22:13:20Z", "labels": {"node": "ip-1"}},
        "spec": {"class": {"kind": "MachineClass", "name": "pool"}, "providerID": "aws:///i-1"},
        "status": {"currentStatus": {"phase": "CrashLoopBackOff"},
            "machineConditions": [{"type": "Progressing", "status": "True", "reason": "WaitingForVM", "message": "waiting for the VM",
                "lastTransitionTime": "2023-11-14T22:13:20Z"}],
            "conditions": [{"type": "Ready", "status": "Unknown"}, {"type": "Ready", "status": "Unknown"}]},
    }));
    let set: MachineSet = read(json!({
        "metadata": {"name": "set", "namespace": "shoot", "resourceVersion": "1", "creationTimestamp": "2023-11-14T22:13:20Z"},
        "spec": {"replicas": 3, "minReadySeconds": 5, "machineClass": {"kind": "AWSMachineClass", "name": "old"}},
        "status": {"replicas": 3, "readyReplicas": 1, "availableReplicas": 1, "fullyLabeledReplicas": 2,
            "machineSetCondition": [{"type": "Frozen", "status": "False"}], "failedMachines": failed},
    }));
    let mut young = set.clone();
    young.metadata.name = Some("young".to_owned());
    young.spec.machine_class = ClassSpec::default();
    young.spec.template.spec.class.name = "new".to_owned();
    let deployment: MachineDeployment = read(json!({
        "metadata": {"name": "pool", "namespace": "shoot", "resourceVersion": "1", "creationTimestamp": "2023-11-14T22:13:20Z"},
        "spec": {"replicas": 3, "paused": true, "revisionHistoryLimit": 2, "progressDeadlineSeconds": 600,
            "rollbackTo": {"revision": 4}, "template": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": "70%"}}},
        "status": {"replicas": 3, "unavailableReplicas": 2, "collisionCount": 1,
            "conditions": [{"type": "Progressing", "status": "True"}], "failedMachines": failed},
    }));
    let views = ControlViews::default();
    views.machines.apply(machine);
    views.sets.apply(young);
    views.sets.apply(set);
    views.deployments.apply(deployment);
    views
}

#[test]
fn names_and_labels_are_a_contract() {
    let expected = "\
mcm_machine_current_status_phase name,namespace
mcm_machine_deployment_failed_machines failed_machine_last_operation_machine_operation_type,failed_machine_last_operation_state,failed_machine_name,failed_machine_owner_ref,failed_machine_provider_id,name,namespace
mcm_machine_deployment_info createdAt,name,namespace,spec_strategy_type
mcm_machine_deployment_info_spec_min_ready_seconds name,namespace
mcm_machine_deployment_info_spec_paused name,namespace
mcm_machine_deployment_info_spec_progress_deadline_seconds name,namespace
mcm_machine_deployment_info_spec_replicas name,namespace
mcm_machine_deployment_info_spec_revision_history_limit name,namespace
mcm_machine_deployment_info_spec_rollback_to_revision name,namespace
mcm_machine_deployment_info_spec_rolling_update_max_surge name,namespace
mcm_machine_deployment_info_spec_rolling_update_max_unavailable name,namespace
mcm_machine_deployment_items_total
mcm_machine_deployment_rollout_started_seconds name,namespace
mcm_machine_deployment_status_available_replicas name,namespace
mcm_machine_deployment_status_collision_count name,namespace
mcm_machine_deployment_status_condition condition,name,namespace
mcm_machine_deployment_status_ready_replicas name,namespace
mcm_machine_deployment_status_replicas name,namespace
mcm_machine_deployment_status_unavailable_replicas name,namespace
mcm_machine_deployment_status_updated_replicas name,namespace
mcm_machine_deployment_surge name,namespace
mcm_machine_deployment_unavailable name,namespace
mcm_machine_info createdAt,name,namespace,node_name,spec_class_api_group,spec_class_kind,spec_class_name,spec_provider_id
mcm_machine_items_total
mcm_machine_node_unidentified namespace
mcm_machine_set_failed_machines failed_machine_last_operation_machine_operation_type,failed_machine_last_operation_state,failed_machine_name,failed_machine_owner_ref,failed_machine_provider_id,name,namespace
mcm_machine_set_info createdAt,name,namespace,spec_machine_class_api_group,spec_machine_class_kind,spec_machine_class_name
mcm_machine_set_info_spec_min_ready_seconds name,namespace
mcm_machine_set_info_spec_replicas name,namespace
mcm_machine_set_items_total
mcm_machine_set_status_available_replicas name,namespace
mcm_machine_set_status_condition condition,name,namespace
mcm_machine_set_status_fully_labelled_replicas name,namespace
mcm_machine_set_status_ready_replicas name,namespace
mcm_machine_set_status_replicas name,namespace
mcm_machine_status_condition condition,name,namespace
mcm_machines namespace,phase
mcm_machines_overdue namespace,stage
mcm_machines_waiting namespace,reason";
    let collector = FleetMetrics::of(ControlViews::default(), Half::ALL.to_vec(), PerMachine::Shown).unwrap();
    let mut found: Vec<String> = collector
        .desc()
        .iter()
        .map(|described| {
            let mut labels = described.variable_labels.clone();
            labels.sort();
            format!("{} {}", described.fq_name, labels.join(",")).trim_end().to_owned()
        })
        .collect();
    found.sort();
    assert_eq!(found.join("\n"), expected);
}

#[test]
fn s_met_01_s_met_02_s_met_04_a_scrape_shows_the_fleet() {
    let metrics = metrics_of(&a_fleet());
    let text = metrics.render().unwrap();
    for line in [
        "mcm_machine_items_total 1",
        "mcm_machine_set_items_total 2",
        "mcm_machine_deployment_items_total 1",
        r#"mcm_machine_info{createdAt="1700000000",name="m-1",namespace="shoot",node_name="ip-1",spec_class_api_group="",spec_class_kind="MachineClass",spec_class_name="pool",spec_provider_id="aws:///i-1"} 1"#,
        r#"mcm_machine_current_status_phase{name="m-1",namespace="shoot"} -2"#,
        r#"mcm_machine_status_condition{condition="Ready",name="m-1",namespace="shoot"} 2"#,
        r#"mcm_machine_node_unidentified{namespace="shoot"} 0"#,
        r#"mcm_machines{namespace="shoot",phase="CrashLoopBackOff"} 1"#,
        r#"mcm_machines{namespace="shoot",phase="Failed"} 0"#,
        r#"mcm_machines_waiting{namespace="shoot",reason="WaitingForVM"} 1"#,
        r#"mcm_machine_set_info{createdAt="1700000000",name="set",namespace="shoot",spec_machine_class_api_group="",spec_machine_class_kind="AWSMachineClass",spec_machine_class_name="old"} 1"#,
        r#"mcm_machine_set_info{createdAt="1700000000",name="young",namespace="shoot",spec_machine_class_api_group="",spec_machine_class_kind="",spec_machine_class_name="new"} 1"#,
        r#"mcm_machine_set_status_replicas{name="set",namespace="shoot"} 3"#,
        r#"mcm_machine_set_status_ready_replicas{name="set",namespace="shoot"} 1"#,
        r#"mcm_machine_set_status_condition{condition="Frozen",name="set",namespace="shoot"} 0"#,
        r#"mcm_machine_deployment_info{createdAt="1700000000",name="pool",namespace="shoot",spec_strategy_type="RollingUpdate"} 1"#,
        r#"mcm_machine_deployment_info_spec_rolling_update_max_surge{name="pool",namespace="shoot"} 1"#,
        r#"mcm_machine_deployment_info_spec_rolling_update_max_unavailable{name="pool",namespace="shoot"} 2"#,
        r#"mcm_machine_deployment_surge{name="pool",namespace="shoot"} 1"#,
        r#"mcm_machine_deployment_unavailable{name="pool",namespace="shoot"} 2"#,
        r#"mcm_machine_deployment_info_spec_rollback_to_revision{name="pool",namespace="shoot"} 4"#,
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\n{text}");
    }
}

#[test]
fn mc_271_mc_272_phases_have_the_originals_numbers_and_end_with_their_machine() {
    let fleet = a_fleet();
    let metrics = metrics_of(&fleet);
    let numbers = [
        ("Terminating", "-4"),
        ("Failed", "-3"),
        ("CrashLoopBackOff", "-2"),
        ("Unknown", "-1"),
        ("Pending", "0"),
        ("Running", "1"),
        ("InPlaceUpdating", "0"),
    ];
    for (version, (phase, number)) in (2..).zip(numbers) {
        let machine: Machine = read(json!({
            "metadata": {"name": "m-1", "namespace": "shoot", "resourceVersion": version.to_string()},
            "status": {"currentStatus": {"phase": phase}},
        }));
        fleet.machines.apply(machine);
        let line = format!(r#"mcm_machine_current_status_phase{{name="m-1",namespace="shoot"}} {number}"#);
        let text = metrics.render().unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    fleet.machines.deleted(&ObjectKey::new("shoot", "m-1"), "", 99);
    let text = metrics.render().unwrap();
    assert!(!text.contains(r#"name="m-1""#), "{text}");
}

#[test]
fn s_met_03_a_deleted_object_leaves_no_series_behind() {
    let fleet = a_fleet();
    let metrics = metrics_of(&fleet);
    let series_of_deployments = |text: &str| {
        text.lines().filter(|line| line.starts_with("mcm_machine_deployment") && line.contains("shoot")).count()
    };
    assert!(series_of_deployments(&metrics.render().unwrap()) > 10);
    fleet.deployments.deleted(&ObjectKey::new("shoot", "pool"), "", 99);
    let text = metrics.render().unwrap();
    assert_eq!(series_of_deployments(&text), 0, "{text}");
    assert!(text.contains("mcm_machine_deployment_items_total 0"));
}

#[rstest::rstest]
#[case::of_deployments_and_sets(Half::ControllerManager, &["mcm_machine_set_", "mcm_machine_deployment_"])]
#[case::of_machines(Half::MachineController, &["mcm_machines", "mcm_machine_items_", "mcm_machine_info", "mcm_machine_current_", "mcm_machine_status_", "mcm_machine_node_"])]
fn a_half_reports_only_its_own_objects(#[case] half: Half, #[case] prefixes: &[&str]) {
    let families = FleetMetrics::of(a_fleet(), vec![half], PerMachine::Shown).unwrap().collect();
    assert!(!families.is_empty());
    for family in families {
        assert!(prefixes.iter().any(|prefix| family.name().starts_with(prefix)), "{}", family.name());
    }
}

/// A fleet of this many machines in one set: all run but every tenth, which has failed.
fn a_fleet_of(machines: usize) -> ControlViews {
    let views = a_fleet();
    for number in 0..machines {
        let phase = if number.is_multiple_of(10) { "Failed" } else { "Running" };
        views.machines.apply(read::<Machine>(json!({
            "metadata": {"name": format!("n-{number}"), "namespace": "shoot", "resourceVersion": "2"},
            "status": {"currentStatus": {"phase": phase}, "conditions": [{"type": "Ready", "status": "True"}]},
        })));
    }
    views
}

#[test]
fn pk_059_without_series_of_single_machines_a_fleet_has_as_many_series_at_any_size() {
    let series = |machines, per_machine| {
        let families = FleetMetrics::of(a_fleet_of(machines), Half::ALL.to_vec(), per_machine).unwrap().collect();
        families.iter().map(|family| family.get_metric().len()).sum::<usize>()
    };
    let (small, large) = (series(10, PerMachine::LeftOut), series(1000, PerMachine::LeftOut));
    assert_eq!(small, large);
    assert!(large < 150, "{large}");
    assert!(series(1000, PerMachine::Shown) > 3000);
}

#[test]
fn pk_059_failed_machines_are_counted_without_series_of_their_own() {
    let metrics = Metrics::new(std::sync::Arc::new(|| std::time::Duration::ZERO)).unwrap();
    metrics.register(FleetMetrics::of(a_fleet_of(1000), Half::ALL.to_vec(), PerMachine::LeftOut).unwrap()).unwrap();
    let text = metrics.render().unwrap();
    for line in [
        "mcm_machine_items_total 1001",
        r#"mcm_machines{namespace="shoot",phase="Failed"} 100"#,
        r#"mcm_machines{namespace="shoot",phase="CrashLoopBackOff"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\n{text}");
    }
    for name in ["mcm_machine_info{", "mcm_machine_current_status_phase{", "failed_machines{"] {
        assert!(!text.contains(name), "{name}");
    }
}

#[test]
fn overdue_machines_are_counted_by_their_stage() {
    let mut scrape = Scrape::default();
    let machines = a_fleet_of(20).machines.snapshot();
    scrape.overdue(&machines, |machine| (*machine.phase() == MachinePhase::Failed).then_some(Stage::Join));
    let families = scrape.into_families();
    let counts: Vec<(String, f64)> = families[0]
        .get_metric()
        .iter()
        .map(|metric| (metric.get_label()[1].value().to_owned(), metric.get_gauge().get_value()))
        .filter(|(stage, _)| ["Join", "Drain"].contains(&stage.as_str()))
        .collect();
    assert_eq!(counts, [("Drain".to_owned(), 0.0), ("Join".to_owned(), 2.0)]);
}
