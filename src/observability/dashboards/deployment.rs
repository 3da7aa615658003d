//! The dashboard *One deployment*: the machines of a deployment, its rollouts, and what it waits for.

use super::{
    Dashboard,
    panel::{
        HasData::{Always, ByEvents},
        Panel, Query, Row, Unit, Variable,
    },
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    title: "One deployment",
    description: "Wanted, updated and available machines of a deployment, how long their stages take, and what they wait for.",
    variables: &[Variable::Namespace, Variable::Deployment],
    rows: &[
        Row { title: "Machines", panels: MACHINES },
        Row { title: "Durations", panels: DURATIONS },
        Row { title: "Waiting", panels: WAITING },
    ],
};

const MACHINES: &[Panel] = &[
    Panel {
        title: "Machines",
        description: "All machines of the deployment, wanted ones, ones of the newest set, and available ones.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[
            Query {
                expression: r#"max(mcm_machine_deployment_info_spec_replicas{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "wanted",
            },
            Query {
                expression: r#"max(mcm_machine_deployment_status_replicas{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "existing",
            },
            Query {
                expression: r#"max(mcm_machine_deployment_status_updated_replicas{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "updated",
            },
            Query {
                expression: r#"max(mcm_machine_deployment_status_available_replicas{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "available",
            },
        ],
    },
    Panel {
        title: "Limits of a rollout",
        description: "Machines that a rollout may add, and machines that may be unavailable meanwhile. Percentages are resolved.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[
            Query {
                expression: r#"max(mcm_machine_deployment_surge{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "may be added",
            },
            Query {
                expression: r#"max(mcm_machine_deployment_unavailable{job="$job", namespace="$namespace", name="$deployment"})"#,
                legend: "may be unavailable",
            },
        ],
    },
    Panel {
        title: "Age of the rollout",
        description: "The time since the current rollout began.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"time() - max(mcm_machine_deployment_rollout_started_seconds{job="$job", namespace="$namespace", name="$deployment"})"#,
            legend: "rollout",
        }],
    },
    Panel {
        title: "Conditions",
        description: "Conditions of the deployment: 1 is True, 0 is False, 2 is Unknown. Progressing 0 means that the progress deadline has passed.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (condition) (mcm_machine_deployment_status_condition{job="$job", namespace="$namespace", name="$deployment"})"#,
            legend: "{{condition}}",
        }],
    },
];

const DURATIONS: &[Panel] = &[
    Panel {
        title: "Last durations of the deployment",
        description: "How long creation, joining and deletion of its last machine took, in whole seconds. Durations below a second are not reported.",
        unit: Unit::Seconds,
        has_data: Always,
        queries: &[
            Query {
                expression: r#"max(mcm_machine_create_duration_seconds{job="$job", namespace="$namespace", machine_deployment="$deployment"})"#,
                legend: "create",
            },
            Query {
                expression: r#"max(mcm_machine_join_duration_seconds{job="$job", namespace="$namespace", machine_deployment="$deployment"})"#,
                legend: "join",
            },
            Query {
                expression: r#"max(mcm_machine_delete_duration_seconds{job="$job", namespace="$namespace", machine_deployment="$deployment"})"#,
                legend: "delete",
            },
        ],
    },
    Panel {
        title: "Duration of stages, 9 of 10 machines",
        description: "Of all deployments, in the last hour, to compare with: how long a stage took at most for 9 of 10 machines.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"histogram_quantile(0.9, sum by (stage, le) (increase(mcm_machine_stage_duration_seconds_bucket{job="$job"}[1h])))"#,
            legend: "{{stage}}",
        }],
    },
    Panel {
        title: "Failed joins, in an hour",
        description: "VMs of the deployment that were made and did not join the cluster within the creation timeout.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum(increase(mcm_machine_num_failed_join{job="$job", namespace="$namespace", machine_deployment="$deployment"}[1h]))"#,
            legend: "failed joins",
        }],
    },
    Panel {
        title: "Deletions by reason, in an hour",
        description: "Machines of the namespace whose deletion began, also of other deployments.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (reason) (increase(mcm_machine_deletions_total{job="$job", namespace="$namespace"}[1h]))"#,
            legend: "{{reason}}",
        }],
    },
];

const WAITING: &[Panel] = &[
    Panel {
        title: "Machines that do not run",
        description: "Its machines that are not Running: Pending 0, Unknown -1, CrashLoopBackOff -2, Failed -3, Terminating -4. Empty with \
                      --metrics-per-machine=false.",
        unit: Unit::Count,
        has_data: ByEvents,
        // A set is named after its deployment and the hash of its template, and a machine after its set.
        queries: &[Query {
            expression: r#"max by (name) (mcm_machine_current_status_phase{job="$job", namespace="$namespace", name=~"$deployment-[a-z0-9]+-[a-z0-9]+"}) < 1"#,
            legend: "{{name}}",
        }],
    },
    Panel {
        title: "Machines that wait, by reason",
        description: "Machines of the namespace, also of other deployments, by the reason of their condition Progressing. \
                      `kubectl mcm why machine/NAME` names the awaited object.",
        unit: Unit::Count,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"max by (reason) (mcm_machines_waiting{job="$job", namespace="$namespace"})"#,
            legend: "{{reason}}",
        }],
    },
    Panel {
        title: "Overdue machines, by stage",
        description: "Machines of the namespace, also of other deployments, past the time limit of their stage.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (stage) (mcm_machines_overdue{job="$job", namespace="$namespace"})"#,
            legend: "{{stage}}",
        }],
    },
    Panel {
        title: "Pods of drains",
        description: "Pods on Nodes that are drained now, of all deployments. A disruption budget refuses the eviction of refused ones.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query { expression: r#"sum by (state) (mcm_drain_pods{job="$job"})"#, legend: "{{state}}" }],
    },
];
