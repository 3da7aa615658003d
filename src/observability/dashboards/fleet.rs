//! The dashboard *Fleet*: all machines of the selected namespaces.

use super::{
    Dashboard,
    panel::{
        HasData::{Always, ByEvents},
        Panel, Query, Row, Unit, Variable,
    },
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    title: "Fleet",
    description: "Machines by phase, why they wait, how they go, and how their providers answer.",
    variables: &[Variable::Namespaces],
    rows: &[
        Row { title: "Machines", panels: MACHINES },
        Row { title: "Changes", panels: CHANGES },
        Row { title: "Providers", panels: PROVIDERS },
    ],
};

const MACHINES: &[Panel] = &[
    Panel {
        title: "Machines by phase",
        description: "All machines. A fleet that does not change has the phase Running only. Terminating ones are on their way out.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (phase) (max by (namespace, phase) (mcm_machines{job="$job", namespace=~"$namespace"}))"#,
            legend: "{{phase}}",
        }],
    },
    Panel {
        title: "Wanted and available machines",
        description: "Machines that all deployments want, and available ones. A gap that stays is a problem.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[
            Query {
                expression: r#"sum(max by (namespace, name) (mcm_machine_deployment_info_spec_replicas{job="$job", namespace=~"$namespace"}))"#,
                legend: "wanted",
            },
            Query {
                expression: r#"sum(max by (namespace, name) (mcm_machine_deployment_status_available_replicas{job="$job", namespace=~"$namespace"}))"#,
                legend: "available",
            },
        ],
    },
    Panel {
        title: "Machines that wait, by reason",
        description: "The reason of the condition Progressing. `kubectl mcm why machine/NAME` names the awaited object.",
        unit: Unit::Count,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"sum by (reason) (max by (namespace, reason) (mcm_machines_waiting{job="$job", namespace=~"$namespace"}))"#,
            legend: "{{reason}}",
        }],
    },
    Panel {
        title: "Overdue machines, by stage",
        description: "Machines past the time limit of their stage. The limit is the machine's own, so that a long drain is not overdue.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (stage) (max by (namespace, stage) (mcm_machines_overdue{job="$job", namespace=~"$namespace"}))"#,
            legend: "{{stage}}",
        }],
    },
];

const CHANGES: &[Panel] = &[
    Panel {
        title: "Deletions by reason, in an hour",
        description: "Machines whose deletion began. The reason unhealthy means that the machine had failed.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (reason) (increase(mcm_machine_deletions_total{job="$job", namespace=~"$namespace"}[1h]))"#,
            legend: "{{reason}}",
        }],
    },
    Panel {
        title: "Age of rollouts",
        description: "The time since a rollout began, for each deployment that has one. A line that ends is a rollout that ended.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"time() - max by (namespace, name) (mcm_machine_deployment_rollout_started_seconds{job="$job", namespace=~"$namespace"})"#,
            legend: "{{namespace}}/{{name}}",
        }],
    },
    Panel {
        title: "Duration of stages, 9 of 10 machines",
        description: "Of all namespaces, in the last hour: how long creation, joining, drain and deletion took at most for 9 of 10 machines.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"histogram_quantile(0.9, sum by (stage, le) (increase(mcm_machine_stage_duration_seconds_bucket{job="$job"}[1h])))"#,
            legend: "{{stage}}",
        }],
    },
    Panel {
        title: "Pods of drains",
        description: "Pods on Nodes that are drained now, in all namespaces. A disruption budget refuses the eviction of refused ones.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query { expression: r#"sum by (state) (mcm_drain_pods{job="$job"})"#, legend: "{{state}}" }],
    },
];

const PROVIDERS: &[Panel] = &[
    Panel {
        title: "Failed calls of providers, by code",
        description: "Code 5 (NotFound) is an answer. 7 and 16 are refused credentials, 8 is missing capacity or a quota.",
        unit: Unit::PerSecond,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"sum by (provider, error_code) (rate(mcm_cloud_api_driver_requests_failed_total{job="$job"}[$__rate_interval]))"#,
            legend: "{{provider}} {{error_code}}",
        }],
    },
    Panel {
        title: "Successful calls of providers",
        description: "Calls of drivers that succeeded, by operation.",
        unit: Unit::PerSecond,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (provider, operation) (rate(mcm_cloud_api_driver_request_duration_seconds_count{job="$job"}[$__rate_interval]))"#,
            legend: "{{provider}} {{operation}}",
        }],
    },
    Panel {
        title: "Failed joins, in an hour",
        description: "VMs that were made and did not join the cluster within the creation timeout.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (namespace, machine_deployment) (increase(mcm_machine_num_failed_join{job="$job", namespace=~"$namespace"}[1h]))"#,
            legend: "{{namespace}}/{{machine_deployment}}",
        }],
    },
    Panel {
        title: "Deleted orphans, in an hour",
        description: "VMs without a machine that were deleted, by class.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (class) (increase(mcm_orphan_vms_deleted_total{job="$job"}[1h]))"#,
            legend: "{{class}}",
        }],
    },
];
