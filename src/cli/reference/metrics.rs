//! The metrics: families of the catalogue, gauges of machines, sets and deployments, and those of the process.

use std::{sync::Arc, time::Duration};

use machine_controllers::fleet_metrics;
use mcm_metrics::{Family, Label, Metrics, MetricsError, process_families};

use super::page::{Draft, Page, code, prose};

/// The page about all metrics.
///
/// # Errors
/// When two declarations of metrics clash, which is a defect of this program.
pub fn page() -> Result<Page, MetricsError> {
    let metrics = Metrics::new(Arc::new(|| Duration::ZERO))?;
    let mut draft = Draft::new("metrics", "Metrics");
    draft.paragraph(
        "`mcm serve` answers `/metrics` on `--port` and `--compat-port`. Names and labels of the Go programs are kept. \
         [Metrics and alerts](../operations.md#metrics-and-alerts) describes how to scrape them, and [alerts](alerts.md) lists the alerts.",
    );
    draft.section("Machines, sets and deployments");
    draft.paragraph(
        "Each scrape computes these gauges from the caches. Every replica reports them: reduce them first, \
         for example with `max by (namespace, name) (…)`. With `--metrics-per-machine=false` single machines have no series.",
    );
    let mut fleet: Vec<_> = fleet_metrics::families().collect();
    fleet.sort_by_key(|family| family.name);
    let rows: Vec<_> = fleet
        .iter()
        .map(|family| {
            let labels = family.labels.iter().map(|label| code(label)).collect::<Vec<_>>().join(", ");
            [code(family.name), labels, draft.described(family.name, family.help)]
        })
        .collect();
    draft.table(["Gauge", "Labels", "Meaning"], rows);
    let rows: Vec<_> =
        fleet_metrics::LABELS.iter().map(|(label, meaning)| [code(label), draft.described(label, meaning)]).collect();
    draft.table(["Label", "Meaning"], rows);
    draft.section("The manager and its work");
    let mut families = without_repetitions(metrics.families());
    families.sort_by_key(|family| family.name);
    let rows: Vec<_> = families.iter().map(|family| row(&mut draft, family)).collect();
    draft.table(["Metric", "Type", "Meaning", "Labels"], rows);
    draft.section("The process");
    let rows: Vec<_> = process_families()
        .into_iter()
        .map(|(name, kind, help)| [code(&name), kind.as_str().to_owned(), draft.described(&name, &help)])
        .collect();
    draft.table(["Metric", "Type", "Meaning"], rows);
    Ok(draft.finish())
}

/// Families that are declared once for each value of a constant label count once.
fn without_repetitions(families: &[Family]) -> Vec<&Family> {
    let mut once: Vec<&Family> = Vec::new();
    for family in families {
        if once.iter().all(|known| known.name != family.name) {
            once.push(family);
        }
    }
    once
}

fn row(draft: &mut Draft, family: &Family) -> [String; 4] {
    let constant = family.constant.map(|(label, _)| format!("{}: one value for each of the Go programs.", code(label)));
    let labels = family.labels.iter().map(|label| described_label(draft, family, label));
    let labels = labels.chain(constant).collect::<Vec<_>>().join(" ");
    [code(family.name), family.kind.as_str().to_owned(), draft.described(family.name, family.help), labels]
}

fn described_label(draft: &mut Draft, family: &Family, label: &Label) -> String {
    let meaning = label.meaning();
    let meaning = draft.described(&format!("{}{{{}}}", family.name, label.name), &meaning);
    let values = label.values.iter().map(|(value, doc)| {
        let doc = doc.split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{} ({})", code(value), prose(doc.trim_end_matches('.')))
    });
    let values = values.collect::<Vec<_>>().join(", ");
    let values = if values.is_empty() { values } else { format!(" Values: {values}.") };
    format!("{}: {meaning}{values}", code(label.name))
}
