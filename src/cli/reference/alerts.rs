//! The alerts with their limits.

use super::page::{Draft, Page, code};
use crate::observability::{Installation, Threshold, alerts};

/// The page about all alerts.
pub fn page() -> Page {
    let mut draft = Draft::new("alerts", "Alerts");
    draft.paragraph(
        "`mcm manifests alerts` prints these alerts ([how to install them](../runbooks/README.md)). Each has a runbook. \
         Words in capitals are labels of the alert.",
    );
    let rows: Vec<_> = alerts()
        .iter()
        .map(|alert| {
            let name = alert.name.to_string();
            let delay = match alert.holds_for.as_secs() / 60 {
                0 => "–".to_owned(),
                minutes => format!("{minutes}m"),
            };
            let on_request = match alert.installation {
                Installation::Usual => "",
                Installation::OnRequest => " Only with `--with-alerts`.",
            };
            let (summary, consequence) = (with_labels(alert.summary), with_labels(alert.description));
            let summary = draft.described(&name, &summary);
            let consequence = draft.described(&name, &consequence);
            let link = format!("[{name}](../runbooks/{name}.md)");
            [link, alert.severity.as_str().to_owned(), delay, summary, format!("{consequence}{on_request}")]
        })
        .collect();
    draft.table(["Alert", "Severity", "After", "What happens", "What follows"], rows);
    draft.section("Limits");
    draft.paragraph("`--alert-threshold NAME=VALUE` of `mcm manifests alerts` changes a limit.");
    let rows: Vec<_> = Threshold::ALL
        .iter()
        .map(|threshold| {
            let meaning = draft.described(threshold.name(), threshold.meaning());
            [code(threshold.name()), threshold.default_value().to_string(), meaning]
        })
        .collect();
    draft.table(["Limit", "Default", "Meaning"], rows);
    draft.finish()
}

/// A text in which `{{ $labels.name }}` is `NAME`.
fn with_labels(text: &str) -> String {
    let mut parts = text.split("{{ $labels.");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (label, rest) = part.split_once(" }}").unwrap_or((part, ""));
        plain.push_str(&label.to_uppercase());
        plain.push_str(rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_words_in_capitals() {
        assert_eq!(with_labels("Set {{ $labels.namespace }}/{{ $labels.name }}."), "Set NAMESPACE/NAME.");
        assert_eq!(with_labels("Nothing."), "Nothing.");
    }
}
