//! The alerts as a template of the chart. Each rule has its own condition, and the limits are values.

use super::{
    generated::{HOME, SUFFIX, labelled, placeholders, whole_template},
    template::{Condition, Item, to_items, to_template, variant},
};
use crate::observability::{
    Alert, AlertName, AlertOptions, Installation, Limit, Threshold, alerts, prometheus_rule, rules::rule,
};

/// Stands for the label `job` of the scrapes.
const JOB: &str = "<job>";
/// Stands for the beginning of the URLs of runbooks.
const RUNBOOKS: &str = "<runbooks>";
/// Stands for all rules.
const RULES: &str = "<rules>";
/// Indentation of the list of rules in a `PrometheusRule`.
const INDENT: usize = 8;

/// The limit that has no value of its own in the chart: the number of replicas is one already.
pub(super) const OF_THE_CHART: Threshold = Threshold::Replicas;

/// The limits that are values.
pub(super) fn limits() -> impl Iterator<Item = Threshold> {
    Threshold::ALL.iter().copied().filter(|threshold| *threshold != OF_THE_CHART)
}

/// The names that `alerts.with` may contain.
pub(super) fn on_request() -> Vec<&'static str> {
    let is_on_request = |alert: &&Alert| alert.installation == Installation::OnRequest;
    alerts().iter().filter(is_on_request).map(|alert| alert.name.short()).collect()
}

/// The names that `alerts.without` may contain.
pub(super) fn all_names() -> Vec<&'static str> {
    AlertName::ALL.iter().map(|name| name.short()).collect()
}

/// The template of the `PrometheusRule`.
pub(super) fn template() -> String {
    let placeholders = placeholders(SUFFIX);
    let options = AlertOptions {
        job: JOB.to_owned(),
        runbooks: RUNBOOKS.to_owned(),
        limits: Threshold::ALL.iter().map(|limit| (*limit, Limit::placeholder(stands_for(*limit)))).collect(),
        ..AlertOptions::default()
    };
    let items: Vec<Item> =
        alerts().iter().map(|alert| Item { when: condition(alert), value: rule(alert, &options) }).collect();
    let rules = to_items(&items, INDENT, &placeholders);

    let mut object = prometheus_rule(HOME, &options);
    object["spec"]["groups"][0]["rules"] = RULES.into();
    let object = to_template(&variant(&labelled(vec![object])), &placeholders);
    let labels = "\n  labels:\n{{- with .Values.alerts.labels }}\n    {{- toYaml . | nindent 4 }}\n{{- end }}\n";
    let text = object
        .replacen("\n  labels:\n", labels, 1)
        .replacen(&format!("rules: \"{RULES}\"\n"), &format!("rules:\n{rules}"), 1)
        .replace(JOB, "{{ .Values.metrics.job }}")
        .replace(RUNBOOKS, "{{ .Values.alerts.runbookUrl }}");
    let text = Threshold::ALL.iter().fold(text, |text, limit| text.replace(&stands_for(*limit), &expression(*limit)));
    whole_template(Condition("and .Values.alerts.enabled (include \"mcm.hasPods\" .)"), &text)
}

fn stands_for(limit: Threshold) -> String {
    format!("<{}>", limit.name())
}

fn expression(limit: Threshold) -> String {
    if limit == OF_THE_CHART {
        "{{ int .Values.replicas }}".to_owned()
    } else {
        format!("{{{{ include \"mcm.flagValue\" .Values.alerts.thresholds.{} }}}}", limit.name())
    }
}

fn condition(alert: &Alert) -> String {
    let name = alert.name.short();
    let is_kept = format!("not (has \"{name}\" .Values.alerts.without)");
    match alert.installation {
        Installation::Usual => is_kept,
        Installation::OnRequest => format!("and (has \"{name}\" .Values.alerts.with) ({is_kept})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alert_and_each_limit_is_in_the_template_and_no_placeholder_is_left() {
        let text = template();
        for alert in alerts() {
            let condition = format!("{{{{- if {} }}}}\n", condition(alert));
            assert!(text.contains(&condition), "{condition}");
        }
        for limit in Threshold::ALL {
            assert!(text.contains(&expression(*limit)), "{}", limit.name());
            assert!(!text.contains(&stands_for(*limit)), "{}", limit.name());
        }
        for placeholder in [JOB, RUNBOOKS, RULES, HOME] {
            assert!(!text.contains(placeholder), "{placeholder}");
        }
    }
}
