//! A trial of each alert: series with which it fires, and series just below.
//!
//! Values are one per minute: `0x9` is 0 in ten minutes, `1+2x3` is 1, 3, 5, 7, `_x9` no sample in nine minutes and `stale` the end of a series.

use machine_controller_manager::observability::{AlertName, Severity};

use super::promtool::{
    Series,
    Source::{ApiServer, Both, First, Second},
};

/// A trial of an alert.
pub struct Trial {
    /// The alert.
    pub alert: AlertName,
    /// Its severity: two rules may have one name.
    pub severity: Severity,
    /// The labels of the alert that fires, besides name and severity.
    pub labels: &'static [(&'static str, &'static str)],
    /// The expression holds from this minute on.
    pub from: u64,
    /// At this minute it does not hold any more.
    pub until: u64,
    /// Series with which the alert fires.
    pub above: &'static [Series],
    /// Series with which it must not fire.
    pub below: &'static [Series],
}

const MACHINE: &[(&str, &str)] = &[("namespace", "shop"), ("name", "web-1")];
const DEPLOYMENT: &[(&str, &str)] = &[("namespace", "shop"), ("name", "web")];

/// All trials.
pub const TRIALS: &[Trial] = &[
    Trial {
        alert: AlertName::Down,
        severity: Severity::Critical,
        labels: &[("job", "machine-controller-manager")],
        from: 0,
        until: 21,
        above: &[Series(Both, r#"mcm_build_info{version="1"}"#, "_x20 1x20")],
        below: &[Series(Second, r#"mcm_build_info{version="1"}"#, "1x60")],
    },
    Trial {
        alert: AlertName::ReplicaMissing,
        severity: Severity::Warning,
        labels: &[],
        from: 10,
        until: 40,
        above: &[
            Series(First, r#"mcm_build_info{version="1"}"#, "1x60"),
            Series(Second, r#"mcm_build_info{version="1"}"#, "1x9 stale _x24 1x20"),
        ],
        below: &[Series(Both, r#"mcm_build_info{version="1"}"#, "1x60")],
    },
    Trial {
        alert: AlertName::NoLeader,
        severity: Severity::Critical,
        labels: &[("lease", "machine-controller")],
        from: 10,
        until: 22,
        above: &[
            Series(First, r#"mcm_leader{lease="machine-controller"}"#, "1x9 0x10 1x20"),
            Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "0x60"),
        ],
        below: &[
            Series(First, r#"mcm_leader{lease="machine-controller"}"#, "0x60"),
            Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "1x60"),
        ],
    },
    Trial {
        alert: AlertName::TwoLeaders,
        severity: Severity::Critical,
        labels: &[("lease", "machine-controller")],
        from: 10,
        until: 22,
        above: &[
            Series(First, r#"mcm_leader{lease="machine-controller"}"#, "1x60"),
            Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "0x9 1x10 0x20"),
        ],
        below: &[
            Series(First, r#"mcm_leader{lease="machine-controller"}"#, "1x60"),
            Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "0x60"),
            Series(Second, r#"mcm_leader{lease="machine-controller-manager"}"#, "1x60"),
        ],
    },
    Trial {
        alert: AlertName::Frozen,
        severity: Severity::Critical,
        labels: &[],
        from: 10,
        until: 31,
        above: &[
            Series(First, "mcm_machine_controller_frozen", "0x9 1x19 0x20"),
            Series(Second, "mcm_machine_controller_frozen", "0x60"),
        ],
        below: &[Series(Both, "mcm_machine_controller_frozen", "0x60")],
    },
    // The last event was at second 300, so that it is older than 600 s after minute 15. Below it is 600 s old all the time.
    Trial {
        alert: AlertName::CacheStale,
        severity: Severity::Warning,
        labels: &[("cluster", "target"), ("kind", "nodes")],
        from: 16,
        until: 32,
        above: &[
            Series(First, r#"mcm_cache_last_event_seconds{cluster="target",kind="nodes"}"#, "0+60x60"),
            Series(
                Second,
                r#"mcm_cache_last_event_seconds{cluster="target",kind="nodes"}"#,
                "0+60x5 300x24 1860+60x20",
            ),
        ],
        below: &[Series(Both, r#"mcm_cache_last_event_seconds{cluster="target",kind="nodes"}"#, "0x10 60+60x50")],
    },
    Trial {
        alert: AlertName::StoredVersionUnserved,
        severity: Severity::Critical,
        labels: &[],
        from: 10,
        until: 22,
        above: &[Series(Both, "mcm_crd_stored_version_unserved", "0x9 1x10 0x20")],
        below: &[
            Series(Both, "mcm_crd_stored_version_unserved", "0x60"),
            Series(Both, "mcm_definitions_hollow", "0x60"),
        ],
    },
    Trial {
        alert: AlertName::StoredVersionUnserved,
        severity: Severity::Critical,
        labels: &[],
        from: 10,
        until: 22,
        above: &[Series(Both, "mcm_definitions_hollow", "0x9 1x10 0x20")],
        below: &[Series(Both, "mcm_definitions_hollow", "0x60")],
    },
    // Two of seven are 29 %: a failed one, and one that has not joined in time. Below, two of ten are 20 %, one of four is too few, and
    // what ends or is new is well.
    Trial {
        alert: AlertName::MassFailure,
        severity: Severity::Critical,
        labels: &[("namespace", "shop")],
        from: 20,
        until: 51,
        above: &[
            Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "0x19 1x30 0x20"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="Pending"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="Running"}"#, "6x19 5x30 6x20"),
            Series(Both, r#"mcm_machines_overdue{namespace="shop",stage="Join"}"#, "1x80"),
            Series(Both, r#"mcm_machines_overdue{namespace="shop",stage="Fail"}"#, "0x80"),
        ],
        below: &[
            Series(Both, r#"mcm_machines{namespace="ten",phase="Failed"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="ten",phase="Unknown"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="ten",phase="Terminating"}"#, "3x80"),
            Series(Both, r#"mcm_machines{namespace="ten",phase="Pending"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="ten",phase="CrashLoopBackOff"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="ten",phase="Running"}"#, "3x80"),
            // These are past other limits: the drain's, and that of the health, which the phase Unknown counts.
            Series(Both, r#"mcm_machines_overdue{namespace="ten",stage="Drain"}"#, "3x80"),
            Series(Both, r#"mcm_machines_overdue{namespace="ten",stage="Unhealthy"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="four",phase="Failed"}"#, "1x80"),
            Series(Both, r#"mcm_machines{namespace="four",phase="Running"}"#, "3x80"),
        ],
    },
    Trial {
        alert: AlertName::MachineFailed,
        severity: Severity::Warning,
        labels: MACHINE,
        from: 10,
        until: 51,
        above: &[
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-1"}"#, "1x9 -3x39 1x20"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "0x9 1x39 0x20"),
        ],
        below: &[
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-1"}"#, "-2x80"),
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-2"}"#, "-4x80"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="CrashLoopBackOff"}"#, "1x80"),
        ],
    },
    // Without series of single machines.
    Trial {
        alert: AlertName::MachineFailed,
        severity: Severity::Warning,
        labels: &[("namespace", "shop")],
        from: 10,
        until: 51,
        above: &[Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "0x9 2x39 0x20")],
        below: &[
            Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "0x80"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="CrashLoopBackOff"}"#, "2x80"),
        ],
    },
    Trial {
        alert: AlertName::MachineCrashLooping,
        severity: Severity::Warning,
        labels: MACHINE,
        from: 10,
        until: 51,
        above: &[
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-1"}"#, "0x9 -2x39 1x20"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="CrashLoopBackOff"}"#, "0x9 1x39 0x20"),
        ],
        below: &[
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-1"}"#, "-1x80"),
            Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-2"}"#, "-3x80"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "1x80"),
        ],
    },
    // Without series of single machines.
    Trial {
        alert: AlertName::MachineCrashLooping,
        severity: Severity::Warning,
        labels: &[("namespace", "shop")],
        from: 10,
        until: 51,
        above: &[Series(Both, r#"mcm_machines{namespace="shop",phase="CrashLoopBackOff"}"#, "0x9 2x39 0x20")],
        below: &[
            Series(Both, r#"mcm_machines{namespace="shop",phase="CrashLoopBackOff"}"#, "0x80"),
            Series(Both, r#"mcm_machines{namespace="shop",phase="Failed"}"#, "2x80"),
        ],
    },
    Trial {
        alert: AlertName::MachineOverdue,
        severity: Severity::Warning,
        labels: &[("namespace", "shop"), ("stage", "Drain")],
        from: 10,
        until: 41,
        above: &[Series(Both, r#"mcm_machines_overdue{namespace="shop",stage="Drain"}"#, "0x9 2x29 0x20")],
        below: &[Series(Both, r#"mcm_machines_overdue{namespace="shop",stage="Drain"}"#, "0x60")],
    },
    Trial {
        alert: AlertName::JoinFailed,
        severity: Severity::Warning,
        labels: &[("namespace", "shop"), ("machine_deployment", "web")],
        from: 10,
        until: 71,
        above: &[Series(
            First,
            r#"mcm_machine_num_failed_join{namespace="shop",machine_deployment="web",instance_type="m",zone="z"}"#,
            "_x10 1x90",
        )],
        below: &[Series(
            Both,
            r#"mcm_machine_num_failed_join{namespace="shop",machine_deployment="web",instance_type="m",zone="z"}"#,
            "0x100",
        )],
    },
    Trial {
        alert: AlertName::OrphansDeleted,
        severity: Severity::Info,
        labels: &[("class", "small")],
        from: 10,
        until: 71,
        above: &[Series(First, r#"mcm_orphan_vms_deleted_total{class="small"}"#, "_x10 2x90")],
        below: &[Series(Both, r#"mcm_orphan_vms_deleted_total{class="small"}"#, "0x100")],
    },
    Trial {
        alert: AlertName::SetBackingOff,
        severity: Severity::Warning,
        labels: &[("namespace", "shop"), ("name", "web-5d9")],
        from: 10,
        until: 51,
        above: &[Series(
            First,
            r#"mcm_machine_set_backoff_seconds{namespace="shop",name="web-5d9"}"#,
            "_x10 30x39 stale",
        )],
        below: &[Series(First, r#"mcm_machine_set_backoff_seconds{namespace="shop",name="web-5d9"}"#, "0x80")],
    },
    Trial {
        alert: AlertName::NodeUnidentified,
        severity: Severity::Warning,
        labels: &[("namespace", "shop")],
        from: 10,
        until: 51,
        above: &[Series(Both, r#"mcm_machine_node_unidentified{namespace="shop"}"#, "0x9 3x39 0x20")],
        below: &[Series(Both, r#"mcm_machine_node_unidentified{namespace="shop"}"#, "0x80")],
    },
    // Below: capacity, and one burst of refused credentials.
    Trial {
        alert: AlertName::ProviderCredentials,
        severity: Severity::Critical,
        labels: &[("provider", "AWS")],
        from: 10,
        until: 46,
        above: &[Series(
            First,
            r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="7"}"#,
            "0x9 1+1x24 25x40",
        )],
        below: &[
            Series(
                First,
                r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="8"}"#,
                "0+1x80",
            ),
            Series(
                First,
                r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="list_machine",error_code="16"}"#,
                "0x9 5x80",
            ),
        ],
    },
    Trial {
        alert: AlertName::ProviderCapacity,
        severity: Severity::Warning,
        labels: &[("provider", "AWS")],
        from: 10,
        until: 101,
        above: &[Series(
            First,
            r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="8"}"#,
            "0x9 1+1x59 60x60",
        )],
        below: &[Series(
            First,
            r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="7"}"#,
            "0+1x120",
        )],
    },
    // 12 of 100 calls fail. Below, 9 of 100 fail, and `NotFound` is an answer.
    Trial {
        alert: AlertName::ProviderErrors,
        severity: Severity::Warning,
        labels: &[("provider", "AWS")],
        from: 1,
        until: 75,
        above: &[
            Series(
                First,
                r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="14"}"#,
                "0+12x60 720x60",
            ),
            Series(
                First,
                r#"mcm_cloud_api_driver_request_duration_seconds_count{provider="AWS",operation="create_machine"}"#,
                "0+88x120",
            ),
        ],
        below: &[
            Series(
                First,
                r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="14"}"#,
                "0+9x120",
            ),
            Series(
                First,
                r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="get_machine_status",error_code="5"}"#,
                "0+40x120",
            ),
            Series(
                First,
                r#"mcm_cloud_api_driver_request_duration_seconds_count{provider="AWS",operation="create_machine"}"#,
                "0+51x120",
            ),
        ],
    },
    // No call succeeds, so that there is no series of durations.
    Trial {
        alert: AlertName::ProviderErrors,
        severity: Severity::Warning,
        labels: &[("provider", "AWS")],
        from: 1,
        until: 120,
        above: &[Series(
            First,
            r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="14"}"#,
            "0+1x60 60x80",
        )],
        below: &[Series(
            First,
            r#"mcm_cloud_api_driver_requests_failed_total{provider="AWS",operation="create_machine",error_code="12"}"#,
            "0+1x140",
        )],
    },
    Trial {
        alert: AlertName::DriverDown,
        severity: Severity::Critical,
        labels: &[("driver", "Azure")],
        from: 10,
        until: 22,
        above: &[
            Series(First, r#"mcm_driver_up{driver="Azure"}"#, "1x60"),
            Series(Second, r#"mcm_driver_up{driver="Azure"}"#, "1x9 0x10 1x20"),
        ],
        below: &[Series(Both, r#"mcm_driver_up{driver="Azure"}"#, "1x60")],
    },
    Trial {
        alert: AlertName::DrainRefused,
        severity: Severity::Warning,
        labels: &[],
        from: 10,
        until: 85,
        above: &[
            Series(First, r#"mcm_drain_pods{state="refused"}"#, "0x9 3x29 0 3x38 0x20"),
            Series(Second, r#"mcm_drain_pods{state="refused"}"#, "0x100"),
        ],
        below: &[
            Series(First, r#"mcm_drain_pods{state="refused"}"#, "0x100"),
            Series(First, r#"mcm_drain_pods{state="terminating"}"#, "3x100"),
        ],
    },
    // Below, a rollout runs that may make one machine unavailable.
    Trial {
        alert: AlertName::DeploymentShort,
        severity: Severity::Warning,
        labels: DEPLOYMENT,
        from: 10,
        until: 51,
        above: &[
            Series(Both, r#"mcm_machine_deployment_info_spec_replicas{namespace="shop",name="web"}"#, "3x80"),
            Series(
                Both,
                r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="web"}"#,
                "3x9 2x39 3x30",
            ),
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="web"}"#, "3x80"),
            Series(
                Both,
                r#"mcm_machine_deployment_info_spec_rolling_update_max_unavailable{namespace="shop",name="web"}"#,
                "1x80",
            ),
        ],
        below: &[
            Series(Both, r#"mcm_machine_deployment_info_spec_replicas{namespace="shop",name="web"}"#, "3x80"),
            Series(Both, r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="web"}"#, "2x80"),
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="web"}"#, "1x80"),
            Series(
                Both,
                r#"mcm_machine_deployment_info_spec_rolling_update_max_unavailable{namespace="shop",name="web"}"#,
                "1x80",
            ),
            Series(Both, r#"mcm_machine_deployment_info_spec_replicas{namespace="shop",name="whole"}"#, "3x80"),
            Series(Both, r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="whole"}"#, "3x80"),
        ],
    },
    Trial {
        alert: AlertName::RolloutStuck,
        severity: Severity::Warning,
        labels: DEPLOYMENT,
        from: 10,
        until: 31,
        above: &[Series(
            Both,
            r#"mcm_machine_deployment_status_condition{namespace="shop",name="web",condition="Progressing"}"#,
            "1x9 0x19 1x20",
        )],
        below: &[
            Series(
                Both,
                r#"mcm_machine_deployment_status_condition{namespace="shop",name="web",condition="Progressing"}"#,
                "1x60",
            ),
            Series(
                Both,
                r#"mcm_machine_deployment_status_condition{namespace="shop",name="web",condition="Available"}"#,
                "0x60",
            ),
        ],
    },
    // A rollout without a step since minute 0. Below, one that is paused, one with a step in each hour, and one that began a moment ago.
    Trial {
        alert: AlertName::RolloutStuck,
        severity: Severity::Warning,
        labels: DEPLOYMENT,
        from: 60,
        until: 101,
        above: &[
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="web"}"#, "1x99 2x40"),
            Series(Both, r#"mcm_machine_deployment_status_replicas{namespace="shop",name="web"}"#, "4x140"),
            Series(Both, r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="web"}"#, "3x140"),
            Series(Both, r#"mcm_machine_deployment_info_spec_paused{namespace="shop",name="web"}"#, "0x140"),
        ],
        below: &[
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="held"}"#, "1x140"),
            Series(Both, r#"mcm_machine_deployment_status_replicas{namespace="shop",name="held"}"#, "4x140"),
            Series(Both, r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="held"}"#, "3x140"),
            Series(Both, r#"mcm_machine_deployment_info_spec_paused{namespace="shop",name="held"}"#, "1x140"),
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="slow"}"#, "1x140"),
            Series(Both, r#"mcm_machine_deployment_status_replicas{namespace="shop",name="slow"}"#, "4x140"),
            Series(
                Both,
                r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="slow"}"#,
                "3x49 2x49 3x40",
            ),
            Series(Both, r#"mcm_machine_deployment_status_updated_replicas{namespace="shop",name="new"}"#, "4x63 0x80"),
            Series(Both, r#"mcm_machine_deployment_status_replicas{namespace="shop",name="new"}"#, "4x140"),
            Series(Both, r#"mcm_machine_deployment_status_available_replicas{namespace="shop",name="new"}"#, "4x140"),
        ],
    },
    Trial {
        alert: AlertName::SetFrozen,
        severity: Severity::Warning,
        labels: &[("namespace", "shop"), ("name", "web-5d9")],
        from: 10,
        until: 31,
        above: &[Series(
            Both,
            r#"mcm_machine_set_status_condition{namespace="shop",name="web-5d9",condition="Frozen"}"#,
            "0x9 1x19 0x20",
        )],
        below: &[
            Series(
                Both,
                r#"mcm_machine_set_status_condition{namespace="shop",name="web-5d9",condition="Frozen"}"#,
                "0x60",
            ),
            Series(
                Both,
                r#"mcm_machine_set_status_condition{namespace="shop",name="web-5d9",condition="ReplicaFailure"}"#,
                "1x60",
            ),
        ],
    },
    // 600 s more than seven days are left at minute 0. Below, 6,000 s more.
    Trial {
        alert: AlertName::CertificateExpiring,
        severity: Severity::Warning,
        labels: &[("name", "serving")],
        from: 11,
        until: 81,
        above: &[
            Series(First, r#"mcm_certificate_expiry_seconds{name="serving"}"#, "605400x79 9999999x40"),
            Series(Second, r#"mcm_certificate_expiry_seconds{name="serving"}"#, "9999999x120"),
        ],
        below: &[Series(Both, r#"mcm_certificate_expiry_seconds{name="serving"}"#, "610800x100")],
    },
    Trial {
        alert: AlertName::CertificateExpiring,
        severity: Severity::Critical,
        labels: &[("name", "serving")],
        from: 11,
        until: 81,
        above: &[Series(Both, r#"mcm_certificate_expiry_seconds{name="serving"}"#, "173400x79 9999999x40")],
        below: &[Series(Both, r#"mcm_certificate_expiry_seconds{name="serving"}"#, "178800x100")],
    },
    // Every 12 minutes, four or five in an hour. Below every 20 minutes.
    Trial {
        alert: AlertName::CABundleContested,
        severity: Severity::Warning,
        labels: &[],
        from: 48,
        until: 180,
        above: &[Series(
            First,
            "mcm_certificate_ca_bundle_contests_total",
            "0x11 1x11 2x11 3x11 4x11 5x11 6x11 7x11 8x11 9x11 10x80",
        )],
        below: &[Series(
            First,
            "mcm_certificate_ca_bundle_contests_total",
            "0x19 1x19 2x19 3x19 4x19 5x19 6x19 7x19 8x80",
        )],
    },
    Trial {
        alert: AlertName::CABundleDrifted,
        severity: Severity::Critical,
        labels: &[],
        from: 10,
        until: 31,
        above: &[Series(Both, "mcm_certificate_ca_bundles_drifted", "0x9 1x19 0x20")],
        below: &[Series(Both, "mcm_certificate_ca_bundles_drifted", "0x60")],
    },
    Trial {
        alert: AlertName::AdmissionRejecting,
        severity: Severity::Warning,
        labels: &[("reason", "in_flight_limit")],
        from: 10,
        until: 41,
        above: &[Series(
            First,
            r#"mcm_server_rejected_total{listener="secure",reason="in_flight_limit"}"#,
            "0x9 1+1x24 25x40",
        )],
        below: &[Series(First, r#"mcm_server_rejected_total{listener="secure",reason="body_too_large"}"#, "0+1x60")],
    },
    // 97.5 % of the reviews take less than 0.82 s: 99 % take less than 1.3 s. Below 98.95 %: 99 % take less than 0.86 s.
    Trial {
        alert: AlertName::AdmissionSlow,
        severity: Severity::Warning,
        labels: &[("webhook", "validate")],
        from: 1,
        until: 28,
        above: &[
            Series(
                Both,
                r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="0.8192"}"#,
                "0+975x20 20500+1000x40",
            ),
            Series(Both, r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="1.6384"}"#, "0+1000x60"),
            Series(Both, r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="+Inf"}"#, "0+1000x60"),
        ],
        below: &[
            Series(Both, r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="0.8192"}"#, "0+9895x60"),
            Series(Both, r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="1.6384"}"#, "0+10000x60"),
            Series(Both, r#"mcm_admission_duration_seconds_bucket{webhook="validate",le="+Inf"}"#, "0+10000x60"),
        ],
    },
    Trial {
        alert: AlertName::QueueStuck,
        severity: Severity::Warning,
        labels: &[("name", "machine")],
        from: 10,
        until: 31,
        above: &[
            Series(First, r#"mcm_workqueue_depth{name="machine"}"#, "0x9 120x19 0x20"),
            Series(Second, r#"mcm_workqueue_depth{name="machine"}"#, "0x60"),
        ],
        below: &[Series(Both, r#"mcm_workqueue_depth{name="machine"}"#, "100x60")],
    },
    Trial {
        alert: AlertName::QueueStuck,
        severity: Severity::Warning,
        labels: &[("name", "machine")],
        from: 10,
        until: 31,
        above: &[Series(
            First,
            r#"mcm_workqueue_longest_running_processor_seconds{name="machine"}"#,
            "0x9 330x19 0x20",
        )],
        below: &[Series(Both, r#"mcm_workqueue_longest_running_processor_seconds{name="machine"}"#, "300x60")],
    },
    Trial {
        alert: AlertName::ClockOffset,
        severity: Severity::Warning,
        labels: &[],
        from: 10,
        until: 31,
        above: &[Series(Both, "mcm_clock_offset_seconds", "0x9 -70x19 0x20")],
        below: &[Series(Both, "mcm_clock_offset_seconds", "60x60")],
    },
    Trial {
        alert: AlertName::ClockStepping,
        severity: Severity::Warning,
        labels: &[],
        from: 10,
        until: 71,
        above: &[Series(Both, "mcm_clock_steps_total", "0x9 3x80")],
        below: &[Series(Both, "mcm_clock_steps_total", "0x9 2x80")],
    },
    Trial {
        alert: AlertName::Panic,
        severity: Severity::Warning,
        labels: &[("view", "machineoutlooks")],
        from: 10,
        until: 71,
        above: &[Series(First, r#"mcm_panics_total{view="machineoutlooks"}"#, "_x10 1x90")],
        below: &[Series(Both, r#"mcm_panics_total{view="machineoutlooks"}"#, "0x100")],
    },
    Trial {
        alert: AlertName::Panic,
        severity: Severity::Warning,
        labels: &[("webhook", "validate")],
        from: 10,
        until: 71,
        above: &[Series(Second, r#"mcm_server_panics_total{webhook="validate"}"#, "0x9 1x90")],
        below: &[Series(Both, r#"mcm_server_panics_total{webhook="validate"}"#, "0x100")],
    },
    Trial {
        alert: AlertName::ConversionLoss,
        severity: Severity::Warning,
        labels: &[],
        from: 10,
        until: 71,
        above: &[Series(First, "mcm_conversion_residue_dropped_total", "0x9 1x90")],
        below: &[Series(Both, "mcm_conversion_residue_dropped_total", "0x100")],
    },
    Trial {
        alert: AlertName::WebhookUnreachable,
        severity: Severity::Critical,
        labels: &[("name", "create.validate.machine.sapcloud.io")],
        from: 10,
        until: 41,
        above: &[Series(
            ApiServer,
            r#"apiserver_admission_webhook_rejection_count{name="create.validate.machine.sapcloud.io",error_type="calling_webhook_error"}"#,
            "0x9 1+1x24 25x40",
        )],
        below: &[
            Series(
                ApiServer,
                r#"apiserver_admission_webhook_rejection_count{name="create.validate.machine.sapcloud.io",error_type="no_error"}"#,
                "0+1x60",
            ),
            Series(
                ApiServer,
                r#"apiserver_admission_webhook_rejection_count{name="validate.example.org",error_type="calling_webhook_error"}"#,
                "0+1x60",
            ),
        ],
    },
];
