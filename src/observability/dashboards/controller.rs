//! The dashboard *Controller*: who leads, whether the loops keep up, and what the process uses.

use super::{
    Dashboard,
    panel::{
        HasData::{Always, ByEvents},
        Panel, Query, Row, Unit,
    },
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    title: "Controller",
    description: "Which replica leads, whether the loops keep up, what the API servers answer, and what the processes use.",
    variables: &[],
    rows: &[
        Row { title: "Replicas", panels: REPLICAS },
        Row { title: "Loops", panels: LOOPS },
        Row { title: "API servers", panels: API_SERVERS },
        Row { title: "Processes", panels: PROCESSES },
    ],
};

const REPLICAS: &[Panel] = &[
    Panel {
        title: "Leaders",
        description: "Whether a replica has a Lease. Each Lease needs exactly one replica that has it.",
        unit: Unit::YesNo,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (instance, lease) (mcm_leader{job="$job"})"#,
            legend: "{{instance}} {{lease}}",
        }],
    },
    Panel {
        title: "Versions",
        description: "Replicas by the program that they run.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"count by (version, commit) (mcm_build_info{job="$job"})"#,
            legend: "{{version}} {{commit}}",
        }],
    },
    Panel {
        title: "Frozen",
        description: "Whether decisions are suspended, because an API server does not answer or a clock is wrong.",
        unit: Unit::YesNo,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (instance) (mcm_machine_controller_frozen{job="$job"})"#,
            legend: "{{instance}}",
        }],
    },
    Panel {
        title: "Offset of the clock",
        description: "How far the clock of the API server is ahead of a replica's. From 300 s on nothing is created or replaced.",
        unit: Unit::Seconds,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (instance) (mcm_clock_offset_seconds{job="$job"})"#,
            legend: "{{instance}}",
        }],
    },
];

const LOOPS: &[Panel] = &[
    Panel {
        title: "Depth of queues",
        description: "Keys that wait for a worker. A queue that only grows is stuck.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query { expression: r#"max by (name) (mcm_workqueue_depth{job="$job"})"#, legend: "{{name}}" }],
    },
    Panel {
        title: "Work, 99 of 100 keys",
        description: "How long the work on a key took at most for 99 of 100 keys, in the last hour.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"histogram_quantile(0.99, sum by (name, le) (increase(mcm_workqueue_work_duration_seconds_bucket{job="$job"}[1h])))"#,
            legend: "{{name}}",
        }],
    },
    Panel {
        title: "Retries",
        description: "Keys that are worked on again after an error.",
        unit: Unit::PerSecond,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (name) (rate(mcm_workqueue_retries_total{job="$job"}[$__rate_interval]))"#,
            legend: "{{name}}",
        }],
    },
    Panel {
        title: "Writes per machine, in an hour",
        description: "Writes of the machine loop, divided by the number of machines. A healthy fleet that does not change has almost none.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (object) (increase(mcm_machine_api_writes_total{job="$job"}[1h])) / scalar(sum(max by (namespace, phase) (mcm_machines{job="$job"})))"#,
            legend: "{{object}}",
        }],
    },
];

const API_SERVERS: &[Panel] = &[
    Panel {
        title: "Requests to API servers",
        description: "Requests of the replicas, by code of the answer.",
        unit: Unit::PerSecond,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (method, code) (rate(rest_client_requests_total{job="$job"}[$__rate_interval]))"#,
            legend: "{{method}} {{code}}",
        }],
    },
    Panel {
        title: "Latency of API servers, 99 of 100 requests",
        description: "How long requests took at most for 99 of 100, in the last hour. Empty with --metrics-request-latency=false.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"histogram_quantile(0.99, sum by (verb, le) (increase(rest_client_request_latency_seconds_bucket{job="$job"}[1h])))"#,
            legend: "{{verb}}",
        }],
    },
    Panel {
        title: "Age of caches",
        description: "The time since the API server last sent anything for a cache. Bookmarks come about once a minute.",
        unit: Unit::Seconds,
        has_data: Always,
        queries: &[Query {
            expression: r#"time() - min by (cluster, kind) (mcm_cache_last_event_seconds{job="$job"})"#,
            legend: "{{cluster}} {{kind}}",
        }],
    },
];

const PROCESSES: &[Panel] = &[
    Panel {
        title: "Memory",
        description: "Resident memory of the replicas.",
        unit: Unit::Bytes,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (instance) (process_resident_memory_bytes{job="$job"})"#,
            legend: "{{instance}}",
        }],
    },
    Panel {
        title: "CPU",
        description: "Cores that the replicas use.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"max by (instance) (rate(process_cpu_seconds_total{job="$job"}[$__rate_interval]))"#,
            legend: "{{instance}}",
        }],
    },
];
