//! Runs `promtool test rules`: Prometheus' own engine judges the rules over series that a test writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use serde_json::{Value, json};

use super::scrapes::{LaidOut, targeted};
use crate::support::scratch;

const MINUTE: Duration = Duration::from_secs(60);

static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The program, or `None` without Go or its module; then the test prints that it is skipped, and is counted.
pub fn promtool(test: &str) -> Option<&'static Path> {
    match PROGRAM.get_or_init(find) {
        Ok(program) => Some(program),
        Err(why) => {
            scratch::count_skipped(test, why);
            None
        }
    }
}

fn find() -> Result<PathBuf, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/test-tools");
    let run = Command::new(script).arg("promtool").output().map_err(|error| format!("{script}: {error}"))?;
    let printed = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    match run.status.code() {
        Some(0) => Ok(PathBuf::from(printed)),
        // Without Go or the module. Any other failure of the build is a failure of the test.
        Some(3) => Err("there is no promtool: install Go and run scripts/test-tools promtool".to_owned()),
        code => panic!("{script} ended with {code:?}: {}", String::from_utf8_lossy(&run.stderr)),
    }
}

/// Which replicas report a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Both.
    Both,
    /// The first.
    First,
    /// The second.
    Second,
    /// The API server.
    ApiServer,
}

/// A series: what it is without the labels of its target, and its values, one per minute from minute 0 on.
#[derive(Clone, Copy, Debug)]
pub struct Series(pub Source, pub &'static str, pub &'static str);

impl Series {
    /// The entries of `input_series`: one for each replica that reports it.
    fn inputs(&self) -> Vec<Value> {
        let Self(source, selector, values) = self;
        let targets: &[(&str, &str)] = match source {
            Source::Both => &[("machine-controller-manager", "a"), ("machine-controller-manager", "b")],
            Source::First => &[("machine-controller-manager", "a")],
            Source::Second => &[("machine-controller-manager", "b")],
            Source::ApiServer => &[("apiserver", "c")],
        };
        let one =
            |(job, instance): &(&str, &str)| json!({ "series": targeted(selector, job, instance), "values": values });
        targets.iter().map(one).collect()
    }
}

/// One group of series with what is expected at some times.
#[derive(Clone, Debug)]
pub struct Scene {
    name: String,
    /// The time between two values of a series.
    interval: Duration,
    /// The Unix time of the first value in seconds.
    start: i64,
    series: Vec<Value>,
    alerts: Vec<Value>,
    queries: Vec<Value>,
}

impl Scene {
    /// A scene with these series.
    pub fn of(name: impl Into<String>, series: &[Series]) -> Self {
        Self::with(name.into(), MINUTE, 0, series.iter().flat_map(Series::inputs).collect())
    }

    /// A scene with the series of scrapes.
    pub fn scraped(name: impl Into<String>, scrapes: &LaidOut) -> Self {
        Self::with(name.into(), scrapes.step, scrapes.start, scrapes.series.clone())
    }

    fn with(name: String, interval: Duration, start: i64, series: Vec<Value>) -> Self {
        Self { name, interval, start, series, alerts: Vec::new(), queries: Vec::new() }
    }

    /// At this time the expression, which leaves no labels, has this value.
    pub fn ask(mut self, promql: &str, at: Duration, expected: f64) -> Self {
        self.queries.push(json!({
            "expr": promql,
            "eval_time": format!("{}s", at.as_secs()),
            "exp_samples": [{ "labels": "{}", "value": expected }],
        }));
        self
    }

    /// At this minute exactly these alerts of the name fire, each given with labels and annotations.
    pub fn expect(mut self, minute: u64, name: &str, firing: &[Value]) -> Self {
        self.alerts.push(json!({ "eval_time": format!("{minute}m"), "alertname": name, "exp_alerts": firing }));
        self
    }

    /// At this minute exactly one alert of each of these names fires, and none of any other name.
    pub fn expect_only(self, minute: u64, names: &[String]) -> Self {
        self.expect_names("count by (alertname) (ALERTS{alertstate=\"firing\"})", minute, names)
    }

    /// At this minute the expression has 1 for each of these names of alerts, and no other value.
    pub fn expect_names(mut self, promql: &str, minute: u64, names: &[String]) -> Self {
        let sample = |name: &String| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 });
        let expected: Vec<Value> = names.iter().map(sample).collect();
        self.queries.push(json!({
            "expr": promql,
            "eval_time": format!("{minute}m"),
            "exp_samples": expected,
        }));
        self
    }

    fn test(&self) -> Value {
        json!({
            "name": self.name,
            "interval": format!("{}s", self.interval.as_secs()),
            "start_timestamp": self.start.to_string(),
            "input_series": self.series,
            "alert_rule_test": self.alerts,
            "promql_expr_test": self.queries,
        })
    }
}

/// Runs the scenes against the rules, which are evaluated every minute. The error is the output of promtool.
pub fn run(promtool: &Path, rules: &Value, scenes: &[Scene]) -> Result<(), String> {
    run_every(MINUTE, promtool, rules, scenes)
}

/// Runs the scenes against the rules, which are evaluated this often.
pub fn run_every(interval: Duration, promtool: &Path, rules: &Value, scenes: &[Scene]) -> Result<(), String> {
    let folder = scratch::subfolder("promtool");
    // JSON is YAML, so that no text has to be escaped twice.
    fs::write(folder.join("rules.yaml"), rules.to_string()).expect("writable");
    let tests: Vec<Value> = scenes.iter().map(Scene::test).collect();
    let test = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": format!("{}s", interval.as_secs()), "tests": tests });
    fs::write(folder.join("test.yaml"), test.to_string()).expect("writable");
    let run = Command::new(promtool).args(["test", "rules", "test.yaml"]).current_dir(&folder).output();
    let run = run.expect("promtool runs");
    fs::remove_dir_all(&folder).expect("it is ours");
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    // Another code than 1 would be a crash, and no judgement.
    match run.status.code() {
        Some(0) => Ok(()),
        Some(1) => Err(said),
        code => panic!("promtool ended with {code:?}: {said}"),
    }
}

/// Fails unless `promtool check rules` accepts the rules.
pub fn check(promtool: &Path, rules: &Value) {
    let folder = scratch::subfolder("promtool");
    fs::write(folder.join("rules.yaml"), rules.to_string()).expect("writable");
    let run = Command::new(promtool).args(["check", "rules", "rules.yaml"]).current_dir(&folder).output();
    let run = run.expect("promtool runs");
    fs::remove_dir_all(&folder).expect("it is ours");
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("SUCCESS"), "{said}");
}
