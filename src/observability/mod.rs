//! The alerts and dashboards of the manager as values, and what is rendered from them for Prometheus and Grafana.
//!
//! [`alert`] has the types and the names, [`table`] the alerts, [`threshold`] the limits that an operator may change, and [`rules`]
//! renders the rules; [`dashboards`] has panels and renders them; [`traces`] has the form of spans for a collector. Metrics are not declared here (`mcm-metrics`, `machine-controllers`), and nothing is read or written: the
//! command line prints the result. Each alert has a page in `docs/runbooks`.
//!
//! Source: spec/packaging §4.2, §4.3, §4.5, §7.2.

pub mod alert;
pub mod dashboards;
pub mod rules;
pub mod table;
pub mod threshold;
pub mod traces;

pub use alert::{Alert, AlertName, Expression, Installation, Severity};
pub use rules::{AlertOptions, UnknownName, prometheus_rule, rule_file};
pub use table::alerts;
pub use threshold::{Limit, Threshold};
