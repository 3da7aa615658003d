//! The dashboard *Admission*: the webhooks, their load, and the certificates that they need.

use super::{
    Dashboard,
    panel::{
        HasData::{Always, ByEvents},
        Panel, Query, Row, Unit,
    },
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    title: "Admission",
    description: "Reviews, what they refuse and warn about, how long they take, the load of the server, and the certificates.",
    variables: &[],
    rows: &[
        Row { title: "Reviews", panels: REVIEWS },
        Row { title: "Load", panels: LOAD },
        Row { title: "Certificates", panels: CERTIFICATES },
    ],
};

const REVIEWS: &[Panel] = &[
    Panel {
        title: "Reviews",
        description: "Answered reviews, by webhook and kind.",
        unit: Unit::PerSecond,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (webhook, kind) (rate(mcm_admission_requests_total{job="$job"}[$__rate_interval]))"#,
            legend: "{{webhook}} {{kind}}",
        }],
    },
    Panel {
        title: "Duration, 99 of 100 reviews",
        description: "How long a review took at most for 99 of 100, in the last hour. Requests for machine objects wait for it.",
        unit: Unit::Seconds,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"histogram_quantile(0.99, sum by (webhook, le) (increase(mcm_admission_duration_seconds_bucket{job="$job"}[1h])))"#,
            legend: "{{webhook}}",
        }],
    },
    Panel {
        title: "Refused reviews, in an hour",
        description: "Objects that were refused, by kind and operation.",
        unit: Unit::Count,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"sum by (kind, operation) (increase(mcm_admission_requests_total{job="$job", allowed="false"}[1h]))"#,
            legend: "{{kind}} {{operation}}",
        }],
    },
    Panel {
        title: "Refusals and warnings by rule, in an hour",
        description: "What rules found: deny is a refusal, warn a warning, ratcheted an old violation that an update left as it was.",
        unit: Unit::Count,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"sum by (rule, level) (increase(mcm_admission_rule_total{job="$job"}[1h]))"#,
            legend: "{{rule}} {{level}}",
        }],
    },
];

const LOAD: &[Panel] = &[
    Panel {
        title: "Connections",
        description: "Open connections of the replicas, by listener.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (instance, listener) (mcm_server_connections{job="$job"})"#,
            legend: "{{instance}} {{listener}}",
        }],
    },
    Panel {
        title: "Turned away, in an hour",
        description: "Connections and requests that were refused before a review, by reason. in_flight_limit and connection_limit mean too much load.",
        unit: Unit::Count,
        has_data: ByEvents,
        queries: &[Query {
            expression: r#"sum by (listener, reason) (increase(mcm_server_rejected_total{job="$job"}[1h]))"#,
            legend: "{{listener}} {{reason}}",
        }],
    },
    Panel {
        title: "Converted objects",
        description: "Objects that were converted between versions.",
        unit: Unit::PerSecond,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum(rate(mcm_conversion_objects_total{job="$job"}[$__rate_interval]))"#,
            legend: "objects",
        }],
    },
    Panel {
        title: "Panics, in an hour",
        description: "Reviews that were lost because of a defect of the program.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[Query {
            expression: r#"sum by (webhook) (increase(mcm_server_panics_total{job="$job"}[1h]))"#,
            legend: "{{webhook}}",
        }],
    },
];

const CERTIFICATES: &[Panel] = &[
    Panel {
        title: "Rest of the certificates' lifetime",
        description: "The time until a certificate ends. It is renewed when a third of its lifetime is left.",
        unit: Unit::Seconds,
        has_data: Always,
        queries: &[Query {
            expression: r#"min by (name) (mcm_certificate_expiry_seconds{job="$job"}) - time()"#,
            legend: "{{name}}",
        }],
    },
    Panel {
        title: "CA bundles",
        description: "Objects that lack the CA bundle now, repairs in an hour, and repairs that another program undid.",
        unit: Unit::Count,
        has_data: Always,
        queries: &[
            Query { expression: r#"max(mcm_certificate_ca_bundles_drifted{job="$job"})"#, legend: "lacking" },
            Query {
                expression: r#"sum(increase(mcm_certificate_ca_bundle_repairs_total{job="$job"}[1h]))"#,
                legend: "repaired",
            },
            Query {
                expression: r#"sum(increase(mcm_certificate_ca_bundle_contests_total{job="$job"}[1h]))"#,
                legend: "contested",
            },
        ],
    },
];
