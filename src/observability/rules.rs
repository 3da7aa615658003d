//! Renders the alerts as rules for Prometheus: as a plain rule file, or as a `PrometheusRule` of the Prometheus operator.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    alert::{Alert, AlertName, Expression, Installation},
    dashboards::DashboardName,
    table::alerts,
    threshold::{Limit, Threshold},
};
use machine_api::names::WEBHOOK_CONFIGURATION;

/// The job of the scraped replicas if the operator names no other.
pub const DEFAULT_JOB: &str = "machine-controller-manager";

/// The folder of the runbooks if the operator names no other place.
pub const DEFAULT_RUNBOOKS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/master/docs/runbooks/");

/// A name in a flag that no alert, limit or dashboard has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is the name of no {what}; there are {}", known.join(", "))]
pub struct UnknownName {
    text: String,
    what: &'static str,
    known: Vec<&'static str>,
}

impl UnknownName {
    pub(super) fn alert(text: &str) -> Self {
        let known = AlertName::ALL.iter().map(|name| name.short()).collect();
        Self { text: text.to_owned(), what: "alert", known }
    }

    pub(super) fn dashboard(text: &str) -> Self {
        let known = DashboardName::ALL.iter().map(|name| name.as_str()).collect();
        Self { text: text.to_owned(), what: "dashboard", known }
    }

    /// No [`Threshold`] has this name.
    pub fn threshold(text: &str) -> Self {
        let known = Threshold::ALL.iter().map(|threshold| threshold.name()).collect();
        Self { text: text.to_owned(), what: "threshold", known }
    }
}

/// What an operator may choose about the alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertOptions {
    /// Value of the label `job` of the scraped replicas.
    pub job: String,
    /// Beginning of the URLs of runbooks; the name of the alert and `.md` follow.
    pub runbooks: String,
    /// The limits that differ from their defaults.
    pub limits: BTreeMap<Threshold, Limit>,
    /// Alerts that are left out.
    pub left_out: BTreeSet<AlertName>,
    /// Alerts that are installed on request only, and are requested.
    pub requested: BTreeSet<AlertName>,
}

impl Default for AlertOptions {
    fn default() -> Self {
        Self {
            job: DEFAULT_JOB.to_owned(),
            runbooks: DEFAULT_RUNBOOKS.to_owned(),
            limits: BTreeMap::new(),
            left_out: BTreeSet::new(),
            requested: BTreeSet::new(),
        }
    }
}

impl AlertOptions {
    fn includes(&self, alert: &Alert) -> bool {
        let is_wanted = match alert.installation {
            Installation::Usual => true,
            Installation::OnRequest => self.requested.contains(&alert.name),
        };
        is_wanted && !self.left_out.contains(&alert.name)
    }

    fn limit(&self, threshold: Threshold) -> Limit {
        self.limits.get(&threshold).cloned().unwrap_or_else(|| Limit::number(threshold.default_value()))
    }

    /// The matcher that each selector of our metrics begins with.
    fn job_matcher(&self) -> String {
        let escaped = self.job.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("job=\"{escaped}\"")
    }
}

/// The rules as the content of a rule file of Prometheus.
pub fn rule_file(options: &AlertOptions) -> Value {
    let rules: Vec<Value> =
        alerts().iter().filter(|alert| options.includes(alert)).map(|alert| rule(alert, options)).collect();
    json!({ "groups": [{ "name": WEBHOOK_CONFIGURATION, "rules": rules }] })
}

/// The rules as an object of the Prometheus operator.
pub fn prometheus_rule(namespace: &str, options: &AlertOptions) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": WEBHOOK_CONFIGURATION,
            "namespace": namespace,
            "labels": { "app.kubernetes.io/name": WEBHOOK_CONFIGURATION },
        },
        "spec": rule_file(options),
    })
}

/// The rule of one alert.
pub fn rule(alert: &Alert, options: &AlertOptions) -> Value {
    let mut rule = json!({
        "alert": alert.name.to_string(),
        "expr": expression(&alert.expression, options),
        "labels": { "severity": alert.severity.as_str() },
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": format!("{}{}.md", options.runbooks, alert.name),
        },
    });
    if !alert.holds_for.is_zero() {
        rule["for"] = minutes(alert.holds_for).into();
    }
    rule
}

/// The `PromQL` of an expression.
pub fn expression(expression: &Expression, options: &AlertOptions) -> String {
    let text = match expression {
        Expression::Text(text) => (*text).to_owned(),
        Expression::Events { counters, by } => {
            let counters: Vec<String> = counters.iter().map(first_event).collect();
            format!("sum by ({}) ({})", by.join(", "), counters.join(" or "))
        }
    };
    let with_limits = Threshold::ALL.iter().fold(text, |text, threshold| {
        text.replace(&format!("%{}%", threshold.name()), &options.limit(*threshold).to_string())
    });
    with_limits.replace("%job%", &options.job_matcher())
}

/// The counter's rise in the last hour. The series of a label set begins at 1 and not at 0, so `increase` does not show its first event.
fn first_event(counter: &&str) -> String {
    let series = format!("{counter}{{%job%}}");
    format!("(increase({series}[1h]) > 0) or ({series} unless {series} offset 1h) > 0")
}

/// The duration in the notation of Prometheus. All delays are whole minutes.
fn minutes(duration: Duration) -> String {
    format!("{}m", duration.as_secs() / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(limits: BTreeMap<Threshold, Limit>) -> String {
        let options = AlertOptions { limits, ..AlertOptions::default() };
        let queue = alerts().iter().find(|alert| alert.name == AlertName::QueueStuck).unwrap();
        expression(&queue.expression, &options)
    }

    #[test]
    fn a_limit_is_a_number_or_what_a_template_engine_replaces() {
        let placeholder = Limit::placeholder("{{ .Values.alerts.thresholds.queueDepth }}");
        for (limit, expected) in [
            (None, "> 100 or"),
            (Some(Limit::number(250.0)), "> 250 or"),
            (Some(Limit::number(0.5)), "> 0.5 or"),
            (Some(placeholder), "> {{ .Values.alerts.thresholds.queueDepth }} or"),
        ] {
            let text = text_of(limit.into_iter().map(|limit| (Threshold::QueueDepth, limit)).collect());
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn a_name_is_read_with_and_without_its_beginning() {
        for name in AlertName::ALL {
            assert_eq!(name.to_string().parse(), Ok(*name));
            assert_eq!(name.short().parse(), Ok(*name));
        }
        let error = "MachineFail".parse::<AlertName>().unwrap_err().to_string();
        assert!(error.starts_with("\"MachineFail\" is the name of no alert; there are Down, "), "{error}");
    }

    #[test]
    fn each_limit_is_in_an_expression() {
        for threshold in Threshold::ALL {
            let placeholder = format!("%{}%", threshold.name());
            let has =
                |alert: &&Alert| matches!(alert.expression, Expression::Text(text) if text.contains(&placeholder));
            assert!(alerts().iter().any(|alert| has(&alert)), "{placeholder}");
            let as_duration = format!("{placeholder}s");
            let is_duration =
                |alert: &Alert| matches!(alert.expression, Expression::Text(text) if text.contains(&as_duration));
            assert_eq!(alerts().iter().any(is_duration), threshold.is_duration(), "{placeholder}");
            assert_eq!(Threshold::named(threshold.name()), Some(*threshold));
        }
    }
}
