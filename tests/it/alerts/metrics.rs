//! Compares the expressions of alerts and dashboards, and of the documents, with the metrics that the program declares.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs,
    path::Path,
};

use machine_controller_manager::observability::{
    AlertOptions, alerts,
    dashboards::{DashboardName, DashboardOptions, grafana::dashboard},
    rules::expression,
};
use promql_parser::{
    parser::{self, Expr, VectorSelector},
    util::{ExprVisitor, walk_expr},
};
use regex::Regex;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Metrics that this program does not declare itself: of API servers (kube-apiserver 1.36), of Prometheus, of the library for processes.
const OF_OTHERS: &[(&str, &[&str])] = &[
    ("apiserver_admission_webhook_rejection_count", &["name", "type", "operation", "error_type", "rejection_code"]),
    ("up", &[]),
    ("process_cpu_seconds_total", &[]),
    ("process_resident_memory_bytes", &[]),
];

/// Labels that a scrape adds.
const OF_SCRAPES: [&str; 4] = ["job", "instance", "namespace", "pod"];

/// The labels of each metric.
type Declared = BTreeMap<String, BTreeSet<String>>;

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect("readable")
}

/// The metrics of the sources. `mcm-metrics/src/tests.rs` has the list that a test compares with the registry; the gauges of single
/// objects are declared in one table.
fn declared() -> Declared {
    let mut found = Declared::new();
    let listed = Regex::new(r"(?m)^([a-z_]+) (counter|gauge|histogram)(?: ([a-z_,]+))?(?:$|\x22)").expect("a pattern");
    for metric in listed.captures_iter(&source("crates/mcm-metrics/src/tests.rs")) {
        let mut labels: BTreeSet<String> =
            metric.get(3).map(|labels| labels.as_str().split(',').map(str::to_owned).collect()).unwrap_or_default();
        let name = &metric[1];
        if &metric[2] == "histogram" {
            for end in ["_count", "_sum"] {
                found.insert(format!("{name}{end}"), labels.clone());
            }
            labels.insert("le".to_owned());
            found.insert(format!("{name}_bucket"), labels);
        } else {
            found.insert(name.to_owned(), labels);
        }
    }
    let fleet = source("crates/machine-controllers/src/fleet_metrics.rs");
    let word = Regex::new(r#""([^"]+)""#).expect("a pattern");
    let words = |list: &str| word.captures_iter(list).map(|word| word[1].to_owned()).collect::<BTreeSet<_>>();
    let constant = Regex::new(r"const ([A-Z_]+): &\[&str\] = &\[([^\]]*)\];").expect("a pattern");
    let lists: BTreeMap<String, BTreeSet<String>> =
        constant.captures_iter(&fleet).map(|list| (list[1].to_owned(), words(&list[2]))).collect();
    let row = Regex::new(r#"(?m)^    [A-Z_]+: "([a-z_]+)", (&\[[^\]]*\]|[A-Z_]+), ""#).expect("a pattern");
    for metric in row.captures_iter(&fleet) {
        let labels = lists.get(&metric[2]).cloned().unwrap_or_else(|| words(&metric[2]));
        found.insert(metric[1].to_owned(), labels);
    }
    assert!(found.len() > 90, "only {} metrics found", found.len());
    found
}

/// With the metrics of others.
fn known() -> Declared {
    let mut known = declared();
    for (name, labels) in OF_OTHERS {
        known.insert((*name).to_owned(), labels.iter().map(|label| (*label).to_owned()).collect());
    }
    known
}

/// What an expression says wrongly about metrics and labels.
struct Judge<'a> {
    known: &'a Declared,
    wrong: Vec<String>,
}

impl Judge<'_> {
    fn selector(&mut self, selector: &VectorSelector) {
        let name = selector.name.as_deref().unwrap_or_default();
        let Some(labels) = self.known.get(name) else {
            self.wrong.push(format!("no metric {name:?}"));
            return;
        };
        for matcher in &selector.matchers.matchers {
            if !labels.contains(&matcher.name) && !OF_SCRAPES.contains(&matcher.name.as_str()) {
                self.wrong.push(format!("{name} has no label {}", matcher.name));
            }
        }
    }

    /// The labels of an aggregation are labels of a metric below it.
    fn grouping(&mut self, expression: &Expr, labels: &[String]) {
        let mut below = Names::default();
        let Ok(_) = walk_expr(&mut below, expression);
        for label in labels {
            let has = |name: &String| self.known.get(name).is_some_and(|labels| labels.contains(label));
            if !below.0.iter().any(has) && !OF_SCRAPES.contains(&label.as_str()) {
                self.wrong.push(format!("none of {:?} has the label {label}", below.0));
            }
        }
    }
}

impl ExprVisitor for Judge<'_> {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::VectorSelector(selector) => self.selector(selector),
            Expr::MatrixSelector(selector) => self.selector(&selector.vs),
            Expr::Aggregate(aggregate) => {
                let labels = aggregate.modifier.as_ref().map(|modifier| modifier.labels().labels.clone());
                self.grouping(&aggregate.expr, &labels.unwrap_or_default());
            }
            _ => {}
        }
        Ok(true)
    }
}

/// The names of the metrics of an expression.
#[derive(Default)]
struct Names(Vec<String>);

impl ExprVisitor for Names {
    type Error = Infallible;

    fn pre_visit(&mut self, expression: &Expr) -> Result<bool, Infallible> {
        match expression {
            Expr::VectorSelector(selector) => self.0.extend(selector.name.clone()),
            Expr::MatrixSelector(selector) => self.0.extend(selector.vs.name.clone()),
            _ => {}
        }
        Ok(true)
    }
}

/// What is wrong with an expression.
fn judged(known: &Declared, promql: &str) -> Vec<String> {
    match parser::parse(promql) {
        Ok(parsed) => {
            let mut judge = Judge { known, wrong: Vec::new() };
            let Ok(_) = walk_expr(&mut judge, &parsed);
            judge.wrong
        }
        Err(error) => vec![format!("{promql}: {error}")],
    }
}

/// The expressions of all alerts and panels, with the names of these.
fn expressions() -> Vec<(String, String)> {
    let options = AlertOptions::default();
    let of_alerts = alerts().iter().map(|alert| (alert.name.to_string(), expression(&alert.expression, &options)));
    // Grafana replaces its variables in texts, and this one in windows.
    let of_panels = DashboardName::ALL.into_iter().flat_map(|dashboard| {
        dashboard.dashboard().panels().flat_map(move |panel| {
            let name = format!("{dashboard}: {}", panel.title);
            panel.queries.iter().map(move |query| (name.clone(), query.expression.replace("$__rate_interval", "1m")))
        })
    });
    of_alerts.chain(of_panels).chain(DashboardName::ALL.into_iter().flat_map(of_variables)).collect()
}

/// The queries for the values of a dashboard's variables.
fn of_variables(name: DashboardName) -> Vec<(String, String)> {
    let values = Regex::new(r"^label_values\((.+), ([a-z]+)\)$").expect("a pattern");
    let json = dashboard(name, &DashboardOptions::default());
    let variables = json["templating"]["list"].as_array().expect("a list");
    let found: Vec<(String, String)> = variables
        .iter()
        .filter_map(|variable| values.captures(variable["definition"].as_str()?))
        .map(|query| (format!("{name}: {}", &query[0]), format!("count by ({}) ({})", &query[2], &query[1])))
        .collect();
    assert_eq!(found.len(), 1 + name.dashboard().variables.len(), "the job, and the others");
    found
}

/// What is wrong with alerts and panels.
fn faults_of_all(known: &Declared) -> Vec<String> {
    let judge = |(name, promql): (String, String)| {
        judged(known, &promql).into_iter().map(move |fault| format!("{name}: {fault}")).collect::<Vec<_>>()
    };
    expressions().into_iter().flat_map(judge).collect()
}

#[test]
fn pk_055_each_metric_and_label_of_an_alert_or_panel_is_declared() {
    let faults = faults_of_all(&known());
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn pk_055_a_metric_or_label_that_is_renamed_is_noticed() {
    let mut used = Names::default();
    for (_, promql) in expressions() {
        let Ok(_) = walk_expr(&mut used, &parser::parse(&promql).expect("PromQL"));
    }
    let used: BTreeSet<String> = used.0.into_iter().collect();
    assert!(used.len() > 50, "{used:?}");
    for name in used {
        let mut renamed = known();
        let labels = renamed.remove(&name).expect("it is declared");
        renamed.insert(format!("{name}_renamed"), labels);
        assert!(!faults_of_all(&renamed).is_empty(), "{name}");
    }
    let mut renamed = known();
    renamed.insert("mcm_leader".to_owned(), BTreeSet::from(["lock".to_owned()]));
    assert_eq!(faults_of_all(&renamed).len(), 3, "two alerts and a panel group by the Lease");
}

#[test]
fn pk_055_each_query_of_a_document_is_right() {
    let block = Regex::new(r"(?s)```promql\n(.*?)```").expect("a pattern");
    let known = known();
    let mut queries = 0;
    let mut wrong = Vec::new();
    for folder in ["docs", "docs/runbooks"] {
        for entry in fs::read_dir(Path::new(ROOT).join(folder)).expect("readable") {
            let path = entry.expect("readable").path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("UTF-8");
            for query in
                block.captures_iter(&text).flat_map(|block| block[1].lines().map(str::to_owned).collect::<Vec<_>>())
            {
                queries += 1;
                wrong.extend(judged(&known, &query).into_iter().map(|fault| format!("{}: {fault}", path.display())));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(queries > 10, "{queries}");
}

/// A selector without the job would mix this program with another one that has metrics of the same name.
#[test]
fn each_selector_of_our_metrics_begins_with_the_job() {
    let selector = Regex::new(r#"\b(mcm_[a-z_]+)(\{job="[^"]+")?"#).expect("a pattern");
    for (name, promql) in expressions() {
        if name.contains("label_values(mcm_build_info, job)") {
            // The reader of a dashboard selects one of all jobs.
            continue;
        }
        for found in selector.captures_iter(&promql) {
            assert!(found.get(2).is_some(), "{name}: {} has no job", &found[1]);
        }
    }
}
