//! Each alert is complete and has a page below `docs/runbooks`, and each page has an alert.

use std::{collections::BTreeSet, fs, path::PathBuf};

use machine_controller_manager::observability::{AlertName, AlertOptions, alerts, rules::rule};
use regex::Regex;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/runbooks");
const HEADINGS: [&str; 5] = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Afterwards"];

fn page(alert: AlertName) -> PathBuf {
    PathBuf::from(FOLDER).join(format!("{alert}.md"))
}

#[test]
fn pk_050_each_alert_is_complete() {
    let template = Regex::new(r"\{\{([^}]*)\}\}").expect("a pattern");
    let label = Regex::new(r"^ \$labels\.[a-z_]+ $").expect("a pattern");
    for alert in alerts() {
        let rule = rule(alert, &AlertOptions::default());
        for place in
            ["/labels/severity", "/annotations/summary", "/annotations/description", "/annotations/runbook_url"]
        {
            let text = rule.pointer(place).and_then(|text| text.as_str()).unwrap_or_default();
            assert!(!text.is_empty(), "{}: {place}", alert.name);
        }
        let promql = rule["expr"].as_str().expect("a text");
        assert!(!promql.contains('%'), "{}: a placeholder has no value: {promql}", alert.name);
        for text in [alert.summary, alert.description] {
            assert!(text.ends_with('.'), "{}: {text}", alert.name);
            for found in template.captures_iter(text) {
                assert!(label.is_match(&found[1]), "{}: {}", alert.name, &found[0]);
            }
        }
    }
    let named: BTreeSet<AlertName> = alerts().iter().map(|alert| alert.name).collect();
    assert_eq!(named, AlertName::ALL.iter().copied().collect(), "each name has an alert");
}

#[test]
fn pk_050_each_page_has_all_headings_and_none_is_empty() {
    let mut wrong = Vec::new();
    for alert in AlertName::ALL {
        let text = fs::read_to_string(page(*alert)).unwrap_or_default();
        let mut parts = text.split("\n## ");
        let title = parts.next().unwrap_or_default().trim();
        let parts: Vec<(&str, &str)> = parts.map(|part| part.split_once('\n').unwrap_or((part, ""))).collect();
        let headings: Vec<&str> = parts.iter().map(|(heading, _)| *heading).collect();
        if title != format!("# {alert}") || headings != HEADINGS || parts.iter().any(|(_, text)| text.trim().is_empty())
        {
            wrong.push(format!("{alert}: {title:?} {headings:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `mcm reference alerts` lists the alerts with links to their pages.
#[test]
fn pk_050_each_page_has_an_alert() {
    let files = fs::read_dir(FOLDER).expect("readable").map(|entry| entry.expect("readable").path());
    let mut wanted: BTreeSet<PathBuf> = AlertName::ALL.iter().map(|alert| page(*alert)).collect();
    wanted.insert(PathBuf::from(FOLDER).join("README.md"));
    assert_eq!(files.collect::<BTreeSet<_>>(), wanted);
}
