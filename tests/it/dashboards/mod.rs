//! The dashboards: each is complete, is what the code generates, and shows something on scrapes of a manager (spec/packaging §4.5, §4.6).
//!
//! [`scenario`] takes the scrapes. `alerts/metrics.rs` compares the queries with the metrics that the program declares.

mod scenario;

use std::{collections::BTreeSet, path::Path, time::Duration};

use machine_controller_manager::{
    cli::documents::parse_documents,
    observability::dashboards::{DashboardName, DashboardOptions, HasData, Panel, Query, grafana::dashboard},
};
use regex::Regex;
use serde_json::{Value, json};

use crate::{
    alerts::{
        promtool::{self, Scene, promtool},
        scrapes::LaidOut,
    },
    support::manager::mcm,
};
use scenario::{DEPLOYMENT, taken};

/// The interval of scrapes that the operator for Prometheus sets. Four of them are Grafana's `$__rate_interval`.
const STEP: Duration = Duration::from_secs(30);
const RATE_INTERVAL: &str = "2m";
/// Repetitions of the last scrape that make more than an hour, the longest window of a query.
const QUIET: u32 = 2 * 61;

#[test]
fn pk_058_the_component_is_what_the_code_generates() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/dashboards/dashboards.yaml");
    let committed = std::fs::read_to_string(path).expect("readable");
    let generated = mcm(&["manifests", "dashboards"]);
    let command = "cargo run -- manifests dashboards > deploy/components/dashboards/dashboards.yaml";
    assert!(committed == generated, "run: {command}");
}

#[test]
fn pk_058_identities_are_stable_and_no_data_source_is_fixed() {
    // URLs and bookmarks contain them.
    let stable = ["mcm-fleet", "mcm-deployment", "mcm-controller", "mcm-admission"];
    assert_eq!(DashboardName::ALL.map(DashboardName::uid), stable);
    for name in DashboardName::ALL {
        let json = dashboard(name, &DashboardOptions::default());
        assert_eq!(json["uid"], name.uid());
        let variables = json["templating"]["list"].as_array().expect("a list");
        assert_eq!((&variables[0]["name"], &variables[0]["type"]), (&"datasource".into(), &"datasource".into()));
        assert!(variables[0].get("current").is_none(), "the reader's default data source is selected");
        let mut sources = Vec::new();
        data_sources(&json, &mut sources);
        assert!(sources.len() > 10, "{name}: {sources:?}");
        assert!(sources.iter().all(|source| *source == "${datasource}"), "{name}: {sources:?}");
    }
}

/// The identities of all data sources in a dashboard.
fn data_sources<'a>(json: &'a Value, found: &mut Vec<&'a str>) {
    if let Some(source) = json.get("datasource") {
        found.push(source["uid"].as_str().expect("a text"));
    }
    let below: Vec<&Value> = match json {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    for value in below {
        data_sources(value, found);
    }
}

#[test]
fn each_panel_is_complete() {
    let label = Regex::new(r"\{\{([a-z_]+)\}\}").expect("a pattern");
    let grouped = Regex::new(r"by \(([a-z_, ]+)\)").expect("a pattern");
    for name in DashboardName::ALL {
        let mut titles = BTreeSet::new();
        for panel in name.dashboard().panels() {
            let what = format!("{name}: {}", panel.title);
            assert!(titles.insert(panel.title), "{what}: two panels have this title");
            assert!(!panel.title.is_empty() && panel.description.ends_with('.'), "{what}");
            assert!(!panel.queries.is_empty(), "{what}");
            for query in panel.queries {
                let labels: BTreeSet<&str> =
                    grouped.captures_iter(query.expression).flat_map(|by| by.extract::<1>().1[0].split(", ")).collect();
                let mut named = label.captures_iter(query.legend).map(|label| label.extract::<1>().1[0]);
                assert!(!query.legend.is_empty(), "{what}");
                let missing = named.find(|label| !labels.contains(label));
                assert_eq!(missing, None, "{what}: a label that the lines do not have: {}", query.expression);
            }
        }
    }
}

/// What a user gets: a `ConfigMap` for each dashboard with the label of the sidecar, or the JSON of one dashboard.
#[test]
fn the_flags_have_an_effect() {
    let maps = |arguments: &[&str]| -> Vec<Value> {
        let printed = mcm(&[&["manifests", "dashboards"], arguments].concat());
        parse_documents("dashboards", &printed).expect("YAML").into_iter().map(|document| document.value).collect()
    };
    let usual = maps(&[]);
    assert_eq!(usual.len(), DashboardName::ALL.len());
    let changed =
        maps(&["--namespace=monitoring", "--dashboard-label=example.org/dashboards=yes", "--job=machines/mcm"]);
    for (name, (usual, changed)) in DashboardName::ALL.into_iter().zip(usual.iter().zip(&changed)) {
        assert_eq!(usual["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(changed["metadata"]["labels"]["example.org/dashboards"], "yes");
        assert!(changed["metadata"]["labels"].get("grafana_dashboard").is_none());
        assert_eq!(changed["metadata"]["namespace"], "monitoring");
        let file = format!("{}.json", name.uid());
        let json = |map: &Value| -> Value {
            serde_json::from_str(map["data"][&file].as_str().expect("a file")).expect("JSON")
        };
        let job = |json: &Value| json["templating"]["list"][1]["current"]["value"].clone();
        assert_eq!(
            (job(&json(usual)), job(&json(changed))),
            ("machine-controller-manager".into(), "machines/mcm".into())
        );
        let alone = mcm(&["manifests", "dashboards", "--dashboard-file", name.as_str()]);
        assert_eq!(serde_json::from_str::<Value>(&alone).expect("JSON"), json(usual));
    }
}

/// A query of a panel, with its name in messages.
struct Asked {
    panel: String,
    has_data: HasData,
    /// The query with values of its variables.
    promql: String,
}

/// All queries of these dashboards.
fn queries(names: &[DashboardName], namespace: &str) -> Vec<Asked> {
    let of_panel = |name: DashboardName, panel: &'static Panel| {
        panel.queries.iter().map(move |query| Asked {
            panel: format!("{name}: {} ({})", panel.title, query.legend.replace(['{', '}'], "")),
            has_data: panel.has_data,
            promql: with_values(query, namespace),
        })
    };
    let of_dashboard = |name: &DashboardName| {
        let name = *name;
        name.dashboard().panels().flat_map(move |panel| of_panel(name, panel))
    };
    names.iter().flat_map(of_dashboard).collect()
}

fn with_values(query: &Query, namespace: &str) -> String {
    [
        ("$__rate_interval", RATE_INTERVAL),
        ("$job", "machine-controller-manager"),
        ("$namespace", namespace),
        ("$deployment", DEPLOYMENT),
    ]
    .into_iter()
    .fold(query.expression.to_owned(), |text, (variable, value)| text.replace(variable, value))
}

/// 1 while the query has an answer, else 0. A quantile of nothing is NaN, which is no point in a panel.
fn is_filled(promql: &str) -> String {
    format!("(count(({promql}) > -Inf) > bool 0) or on() vector(0)")
}

/// Rules that record for each query whether it has an answer, and whether it would have one with misspelt metrics.
fn recorded(queries: &[Asked]) -> Value {
    let record = |metric: &str, panel: &str, promql: &str| json!({ "record": metric, "labels": { "panel": panel }, "expr": is_filled(promql) });
    let rules: Vec<Value> = queries
        .iter()
        .flat_map(|Asked { panel, promql, .. }| {
            let misspelt = promql.replace("mcm_", "no_").replace("process_", "no_").replace("rest_client", "no_client");
            [record("filled", panel, promql), record("misspelt", panel, &misspelt)]
        })
        .collect();
    json!({ "groups": [{ "name": "panels", "rules": rules }] })
}

/// The most that was recorded for a panel until then.
fn most(metric: &str, panel: &str, until: Duration) -> String {
    format!("max(max_over_time({metric}{{panel={panel:?}}}[{}s]))", until.as_secs())
}

/// A scene in which each query has an answer at some time while the scrapes last, and none has one with misspelt metrics.
fn filled_once(name: &str, laid_out: &LaidOut, queries: &[Asked]) -> Scene {
    let last = laid_out.last();
    queries.iter().fold(Scene::scraped(name, laid_out), |scene, Asked { panel, .. }| {
        scene.ask(&most("filled", panel, last), last, 1.0).ask(&most("misspelt", panel, last), last, 0.0)
    })
}

fn judge(promtool: &Path, queries: &[Asked], scene: Scene) {
    if let Err(said) = promtool::run_every(STEP, promtool, &recorded(queries), &[scene]) {
        panic!("a query is not as expected: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_056_no_panel_is_empty_and_those_that_may_be_are_marked() {
    const TEST: &str = "dashboards::pk_056_no_panel_is_empty";
    let Some(promtool) = promtool(TEST) else { return };
    let Some(taken) = taken(TEST).await else { return };
    let laid_out = taken.scrapes.laid_out(taken.scrapes.count(), STEP, QUIET);
    let all = queries(&DashboardName::ALL, &taken.namespace);
    assert!(all.len() > 40, "{}", all.len());
    let mut scene = filled_once("everything happens", &laid_out, &all);
    let end = laid_out.end();
    for Asked { panel, has_data, .. } in &all {
        scene = match has_data {
            // Nothing happens for an hour.
            HasData::Always => scene.ask(&format!("max(filled{{panel={panel:?}}})"), end, 1.0),
            HasData::ByEvents => {
                let least = format!("min(min_over_time(filled{{panel={panel:?}}}[{}s]))", end.as_secs());
                scene.ask(&least, end, 0.0)
            }
        };
    }
    judge(promtool, &all, scene);
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_060_the_example_fills_each_panel_of_fleet_and_deployment() {
    const TEST: &str = "dashboards::pk_060_the_example_fills_each_panel";
    let Some(promtool) = promtool(TEST) else { return };
    let Some(taken) = taken(TEST).await else { return };
    let laid_out = taken.scrapes.laid_out(taken.example, STEP, 0);
    let these = queries(&[DashboardName::Fleet, DashboardName::Deployment], &taken.namespace);
    assert!(these.len() > 20, "{}", these.len());
    judge(promtool, &these, filled_once("the example", &laid_out, &these));
}
