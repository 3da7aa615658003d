//! The alerts: each is complete, has a page, fires when it must and only then, and uses metrics that exist (spec/packaging §4).
//!
//! [`trials`] has the series of each alert, [`weather`] scrapes of managers in trouble ([`scrapes`]), [`promtool`] runs Prometheus' own engine over them, [`metrics`] compares names and labels with
//! the metrics that the program declares.

pub mod metrics;
mod pages;
pub mod promtool;
pub mod scrapes;
mod trials;
mod weather;

use std::{collections::BTreeSet, time::Duration};

use machine_controller_manager::observability::{
    Alert, AlertName, AlertOptions, Expression, Limit, Threshold, alerts, rule_file, rules::rule,
};
use serde_json::{Value, json};

use crate::support::manager::mcm;
use promtool::{
    Scene, Series,
    Source::{Both, First, Second},
    promtool,
};
use trials::{TRIALS, Trial};

/// Limits are changed by these factors to show that a trial notices it.
const FACTORS: [f64; 2] = [0.5, 1.5];

/// The options with which all alerts are installed.
fn with_all() -> AlertOptions {
    AlertOptions { requested: AlertName::ALL.iter().copied().collect(), ..AlertOptions::default() }
}

fn trials_of(alert: &Alert) -> Vec<&'static Trial> {
    TRIALS.iter().filter(|trial| trial.alert == alert.name && trial.severity == alert.severity).collect()
}

/// The rules file with only this alert.
fn only(alert: &Alert, options: &AlertOptions) -> Value {
    json!({ "groups": [{ "name": "one", "rules": [rule(alert, options)] }] })
}

/// The firing alert of a trial with the texts that Prometheus makes of its labels.
fn firing(alert: &Alert, trial: &Trial) -> Value {
    let expanded = |text: &str| {
        let with =
            |text: String, (label, value): &(&str, &str)| text.replace(&format!("{{{{ $labels.{label} }}}}"), value);
        trial.labels.iter().fold(text.to_owned(), with)
    };
    let mut labels = serde_json::Map::new();
    labels.insert("severity".to_owned(), alert.severity.as_str().into());
    labels.extend(trial.labels.iter().map(|(label, value)| ((*label).to_owned(), Value::from(*value))));
    let runbook = &rule(alert, &AlertOptions::default())["annotations"]["runbook_url"];
    json!({ "exp_labels": labels, "exp_annotations": {
        "summary": expanded(alert.summary), "description": expanded(alert.description), "runbook_url": runbook,
    } })
}

/// A trial as two scenes. The alert fires exactly when its delay has passed, once although two replicas run, and it resolves.
fn scenes(alert: &Alert, trial: &Trial) -> [Scene; 2] {
    let (name, delay) = (alert.name.to_string(), alert.holds_for.as_secs() / 60);
    let fires = trial.from + delay;
    let mut above = Scene::of(format!("{name} above"), trial.above)
        .expect(fires, &name, &[firing(alert, trial)])
        .expect(trial.until, &name, &[]);
    if let Some(before) = fires.checked_sub(1) {
        above = above.expect(before, &name, &[]);
    }
    let below =
        Scene::of(format!("{name} below"), trial.below).expect(fires, &name, &[]).expect(trial.until, &name, &[]);
    [above, below]
}

#[test]
fn pk_051_each_alert_fires_once_not_just_below_and_resolves() {
    let Some(promtool) = promtool("alerts::pk_051_each_alert_fires_once") else { return };
    for alert in alerts() {
        let trials = trials_of(alert);
        assert!(!trials.is_empty(), "{} {:?} has no trial", alert.name, alert.severity);
        let scenes: Vec<Scene> = trials.iter().flat_map(|trial| scenes(alert, trial)).collect();
        if let Err(said) = promtool::run(promtool, &only(alert, &with_all()), &scenes) {
            panic!("{}: {said}", alert.name);
        }
    }
}

/// The alerts with another delay or another limit. Each of them must make a trial fail.
fn mutations(alert: &Alert) -> Vec<(String, Value)> {
    let minute = Duration::from_secs(60);
    let delays = [Some(alert.holds_for + minute), alert.holds_for.checked_sub(minute)];
    let delays = delays
        .into_iter()
        .flatten()
        .map(|holds_for| (format!("for {holds_for:?}"), only(&Alert { holds_for, ..*alert }, &with_all())));
    let named = |threshold: &&Threshold| match alert.expression {
        Expression::Text(text) => text.contains(&format!("%{}%", threshold.name())),
        Expression::Events { .. } => false,
    };
    let limits = Threshold::ALL.iter().filter(named).flat_map(|threshold| {
        FACTORS.map(|factor| {
            let limit = factor * threshold.default_value();
            let limits = [(*threshold, Limit::number(limit))].into();
            (format!("{}={limit}", threshold.name()), only(alert, &AlertOptions { limits, ..with_all() }))
        })
    });
    delays.chain(limits).collect()
}

#[test]
fn pk_051_another_limit_or_delay_is_noticed() {
    let Some(promtool) = promtool("alerts::pk_051_another_limit_or_delay_is_noticed") else { return };
    let mut unnoticed = Vec::new();
    let mut judged = 0;
    for alert in alerts() {
        let scenes: Vec<Scene> = trials_of(alert).into_iter().flat_map(|trial| scenes(alert, trial)).collect();
        for (what, rules) in mutations(alert) {
            judged += 1;
            if promtool::run(promtool, &rules, &scenes).is_ok() {
                unnoticed.push(format!("{} with {what}", alert.name));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
    assert!(judged > 2 * Threshold::ALL.len() + alerts().len(), "{judged}");
}

/// Runs scenes against all alerts together.
fn all_alerts(test: &str, scenes: &[Scene]) {
    let Some(promtool) = promtool(test) else { return };
    if let Err(said) = promtool::run(promtool, &rule_file(&with_all()), scenes) {
        panic!("{test}: {said}");
    }
}

/// The series of two replicas that run, of which the first leads.
const RUNNING: [Series; 3] = [
    Series(Both, r#"mcm_build_info{version="1"}"#, "1x300"),
    Series(First, r#"mcm_leader{lease="machine-controller"}"#, "1x300"),
    Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "0x300"),
];

fn with_running(series: &[Series]) -> Vec<Series> {
    [&RUNNING, series].concat()
}

#[test]
fn pk_052_a_long_drain_raises_nothing_before_its_own_deadline() {
    let overdue = AlertName::MachineOverdue.to_string();
    let drain = with_running(&[
        Series(Both, r#"mcm_machine_current_status_phase{namespace="shop",name="web-1"}"#, "-4x300"),
        Series(First, r#"mcm_drain_pods{state="terminating"}"#, "2x300"),
        Series(First, r#"mcm_drain_pods{state="refused"}"#, "0x300"),
        // The deadline is 120 minutes after the start of the drain.
        Series(Both, r#"mcm_machines_overdue{namespace="shop",stage="Drain"}"#, "0x120 1x100"),
    ]);
    let scene = Scene::of("drain", &drain).expect_only(110, &[]).expect_only(140, &[overdue]);
    all_alerts("alerts::pk_052_a_long_drain", &[scene]);
}

#[test]
fn pk_053_the_first_event_counts_and_a_restart_does_not() {
    const JOIN: &str =
        r#"mcm_machine_num_failed_join{namespace="shop",machine_deployment="web",instance_type="m",zone="z"}"#;
    const ORPHANS: &str = r#"mcm_orphan_vms_deleted_total{class="small"}"#;
    const PANICS: &str = r#"mcm_panics_total{view="machineoutlooks"}"#;
    let named = |alert: AlertName| vec![alert.to_string()];
    let first = [(JOIN, AlertName::JoinFailed), (ORPHANS, AlertName::OrphansDeleted), (PANICS, AlertName::Panic)];
    let mut scenes = Vec::new();
    for (series, alert) in first {
        // No series, then 1; and a series that exists at 0.
        for values in ["_x90 1x200", "0x89 1x200"] {
            let scene = Scene::of(format!("the first of {series}"), &with_running(&[Series(First, series, values)]));
            scenes.push(scene.expect_only(89, &[]).expect_only(90, &named(alert)).expect_only(151, &[]));
        }
        // The process starts again: its counter is 0 or has no series.
        for values in ["2x100 0x150", "2x100 stale _x150"] {
            let scene = Scene::of(format!("a restart after {series}"), &with_running(&[Series(First, series, values)]));
            scenes.push(scene.expect_only(99, &[]).expect_only(101, &[]).expect_only(105, &[]).expect_only(200, &[]));
        }
    }
    all_alerts("alerts::pk_053_the_first_event_counts", &scenes);
}

/// The replicas of one namespace report its machines, and the replicas of the other one only count them.
#[test]
fn pk_059_failed_machines_are_counted_if_no_series_names_them() {
    let failed = with_running(&[
        Series(Both, r#"mcm_machine_current_status_phase{namespace="named",name="web-1"}"#, "1x9 -3x60 1x60"),
        Series(Both, r#"mcm_machines{namespace="named",phase="Failed"}"#, "0x9 1x60 0x60"),
        Series(Both, r#"mcm_machines{namespace="counted",phase="Failed"}"#, "0x9 1x60 0x60"),
    ]);
    let looping = with_running(&[
        Series(Both, r#"mcm_machine_current_status_phase{namespace="named",name="web-1"}"#, "0x9 -2x60 1x60"),
        Series(Both, r#"mcm_machines{namespace="named",phase="CrashLoopBackOff"}"#, "0x9 1x60 0x60"),
        Series(Both, r#"mcm_machines{namespace="counted",phase="CrashLoopBackOff"}"#, "0x9 1x60 0x60"),
    ]);
    let scenes =
        [(failed, AlertName::MachineFailed), (looping, AlertName::MachineCrashLooping)].map(|(series, alert)| {
            let (before, fires) = (Duration::from_secs(39 * 60), Duration::from_secs(40 * 60));
            let firing = |labels: &str| {
                format!(r#"count(ALERTS{{alertname="{alert}", alertstate="firing"{labels}}}) or vector(0)"#)
            };
            Scene::of(alert.to_string(), &series)
                .ask(&firing(""), before, 0.0)
                .ask(&firing(r#", namespace="named", name="web-1""#), fires, 1.0)
                .ask(&firing(r#", namespace="counted", name="""#), fires, 1.0)
                .ask(&firing(""), fires, 2.0)
                .ask(&firing(""), Duration::from_secs(80 * 60), 0.0)
        });
    all_alerts("alerts::pk_059_failed_machines_are_counted", &scenes);
}

#[test]
fn pk_059_two_alerts_only_use_series_of_single_machines() {
    let of_machines = [
        "mcm_machine_info",
        "mcm_machine_current_status_phase",
        "mcm_machine_status_condition",
        "mcm_machine_set_failed_machines",
        "mcm_machine_deployment_failed_machines",
    ];
    let uses = |alert: &&Alert| {
        let promql = rule(alert, &with_all())["expr"].to_string();
        of_machines.iter().any(|metric| promql.contains(metric))
    };
    let found: Vec<AlertName> = alerts().iter().filter(uses).map(|alert| alert.name).collect();
    assert_eq!(found, [AlertName::MachineFailed, AlertName::MachineCrashLooping]);
}

#[test]
fn pk_054_a_missing_replica_and_none_at_all_are_two_alerts() {
    let leads = Series(First, r#"mcm_leader{lease="machine-controller"}"#, "1x100");
    let one = [
        Series(First, r#"mcm_build_info{version="1"}"#, "1x100"),
        leads,
        Series(Second, r#"mcm_build_info{version="1"}"#, "1x9 stale"),
        Series(Second, r#"mcm_leader{lease="machine-controller"}"#, "0x9 stale"),
    ];
    let none = [
        Series(Both, r#"mcm_build_info{version="1"}"#, "1x9 stale"),
        Series(Both, r#"mcm_leader{lease="machine-controller"}"#, "0x9 stale"),
    ];
    let missing = [AlertName::ReplicaMissing.to_string()];
    let down = [AlertName::Down.to_string()];
    let scenes = [
        Scene::of("one of two", &one).expect_only(24, &[]).expect_only(25, &missing).expect_only(90, &missing),
        Scene::of("none", &none).expect_only(14, &[]).expect_only(15, &down).expect_only(90, &down),
    ];
    all_alerts("alerts::pk_054_a_missing_replica", &scenes);
}

#[test]
fn the_component_is_what_the_code_generates() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/alerts/alerts.yaml");
    let committed = std::fs::read_to_string(path).expect("readable");
    let generated = mcm(&["manifests", "alerts"]);
    assert_eq!(committed, generated, "run: cargo run -- manifests alerts > deploy/components/alerts/alerts.yaml");
}

/// The rules that a user gets: `promtool check rules` accepts them, and each flag has its effect.
#[test]
fn the_printed_rules_are_accepted_and_the_flags_have_an_effect() {
    let parsed = |arguments: &[&str]| -> Value {
        let printed = mcm(&[&["manifests", "alerts"], arguments].concat());
        machine_controller_manager::cli::documents::parse_documents("alerts", &printed).expect("YAML").remove(0).value
    };
    let names = |groups: &Value| -> BTreeSet<String> {
        let rules = groups["groups"][0]["rules"].as_array().expect("rules");
        rules.iter().map(|rule| rule["alert"].as_str().expect("a name").to_owned()).collect()
    };
    let object = parsed(&["--namespace", "shoot"]);
    assert_eq!((&object["kind"], &object["metadata"]["namespace"]), (&"PrometheusRule".into(), &"shoot".into()));
    let file = parsed(&["--rule-file"]);
    assert_eq!(object["spec"], file);
    assert_eq!(names(&file).len(), AlertName::ALL.len() - 1, "all but the one on request");

    let changed = parsed(&[
        "--rule-file",
        "--job=mcm\"x",
        "--alert-threshold=queueDepth=250",
        "--without-alerts=MachineFailed,MachineControllerManagerPanic",
        "--with-alerts=WebhookUnreachable",
        "--runbook-url=https://wiki.example.org/",
    ]);
    let expected: BTreeSet<String> = AlertName::ALL
        .iter()
        .filter(|name| ![AlertName::MachineFailed, AlertName::Panic].contains(name))
        .map(ToString::to_string)
        .collect();
    assert_eq!(names(&changed), expected);
    let text = changed.to_string();
    assert!(text.contains("> 250") && !text.contains("> 100 or"), "{text}");
    assert!(text.contains("https://wiki.example.org/MachineControllerManagerDown.md"), "{text}");
    let matched = changed["groups"][0]["rules"][0]["expr"].as_str().expect("an expression");
    assert_eq!(matched, r#"absent(mcm_build_info{job="mcm\"x"})"#);

    let Some(promtool) = promtool("alerts::the_printed_rules_are_accepted") else { return };
    for printed in [file, changed] {
        promtool::check(promtool, &printed);
    }
}
