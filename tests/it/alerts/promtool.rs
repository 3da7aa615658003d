//! Runs `promtool test rules`: Prometheus' own engine judges the rules over series that a test writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use serde_json::{Value, json};

use crate::support::scratch;

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
        let (name, labels) = selector.split_once('{').unwrap_or((selector, "}"));
        let labels = labels.trim_end_matches('}');
        let comma = if labels.is_empty() { "" } else { "," };
        let one = |(job, instance): &(&str, &str)| {
            let series = format!("{name}{{job=\"{job}\",instance=\"{instance}\"{comma}{labels}}}");
            json!({ "series": series, "values": values })
        };
        targets.iter().map(one).collect()
    }
}

/// One group of series with what is expected at some minutes.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    name: String,
    series: Vec<Value>,
    alerts: Vec<Value>,
    queries: Vec<Value>,
}

impl Scene {
    /// A scene with these series.
    pub fn of(name: impl Into<String>, series: &[Series]) -> Self {
        let series = series.iter().flat_map(Series::inputs).collect();
        Self { name: name.into(), series, ..Self::default() }
    }

    /// At this minute exactly these alerts of the name fire, each given with labels and annotations.
    pub fn expect(mut self, minute: u64, name: &str, firing: &[Value]) -> Self {
        self.alerts.push(json!({ "eval_time": format!("{minute}m"), "alertname": name, "exp_alerts": firing }));
        self
    }

    /// At this minute exactly one alert of each of these names fires, and none of any other name.
    pub fn expect_only(mut self, minute: u64, names: &[String]) -> Self {
        let sample = |name: &String| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 });
        let expected: Vec<Value> = names.iter().map(sample).collect();
        self.queries.push(json!({
            "expr": "count by (alertname) (ALERTS{alertstate=\"firing\"})",
            "eval_time": format!("{minute}m"),
            "exp_samples": expected,
        }));
        self
    }

    fn test(&self) -> Value {
        json!({
            "name": self.name,
            "interval": "1m",
            "input_series": self.series,
            "alert_rule_test": self.alerts,
            "promql_expr_test": self.queries,
        })
    }
}

/// Runs the scenes against the rules. The error is the output of promtool.
pub fn run(promtool: &Path, rules: &Value, scenes: &[Scene]) -> Result<(), String> {
    let folder = scratch::subfolder("promtool");
    // JSON is YAML, so that no text has to be escaped twice.
    fs::write(folder.join("rules.yaml"), rules.to_string()).expect("writable");
    let tests: Vec<Value> = scenes.iter().map(Scene::test).collect();
    let test = json!({ "rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests });
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
