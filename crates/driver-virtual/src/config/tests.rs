//! The permitted contents of a configuration, and the reports about mistakes.

use rstest::rstest;

use super::*;
use kube_values::field::{FieldPath, Findings};

/// The complete example of spec/providers §7.2.
const EXAMPLE: &str = r#"
seed: 42
clock: real
latency:
  create: {lognormal: {p50: 2s, p99: 8s}}
  boot:   {normal: {mean: 25s, sd: 5s}}
  ready:  {constant: 5s}
  delete: {uniform: [3s, 10s]}
  api:    {constant: 20ms}
consistency: {listLag: 0s, getLag: 0s}
failures:
  - {op: create, class: "*", rate: 0.02, code: ResourceExhausted, message: "out of capacity in {zone}"}
  - {op: create, zone: sim-1b, from: 10m, to: 25m, code: ResourceExhausted}
  - {op: delete, machine: "m-7", count: 3, code: Unavailable}
  - {op: create, rate: 0.01, effect: created-but-error}
  - {op: create, rate: 0.01, effect: hang, for: 3m}
  - {op: any, effect: auth-failure, from: 1h, to: 1h5m}
outcomes:
  - {rate: 0.01, effect: never-joins}
  - {rate: 0.005, effect: joins-then-notready, after: 20m}
  - {rate: 0.01, effect: duplicate-vm}
  - {rate: 0.01, effect: vanishes, after: 1h}
  - {rate: 0.01, effect: uninitialized}
quota: [{region: sim-1, machineType: "*", max: 10000}, {zone: sim-1c, max: 5}, {vcpus: 4000}]
spot: {match: {machineType: "sim.spot*"}, meanTimeToInterrupt: 2h, notice: 2m}
rateLimit: {qps: 100, burst: 200}
persistence: {kind: file, path: /var/lib/sim}
nodes: {leaseInterval: 10s, leaseDuration: 40s, statusPeriod: 5m, allocatableReserved: {cpu: 80m, memory: 1Gi}}
pods: {run: true, startLatency: 1s, honourTerminationGrace: true}
volumes: {attach: 2s, detach: 3s, maxPerNode: 26}
"#;

#[test]
fn the_example_of_the_reference_is_read_and_its_plain_values_are_the_defaults() {
    let config = SimulationConfig::parse(EXAMPLE).unwrap();
    assert_eq!((config.failures.len(), config.outcomes.len(), config.quota.len()), (6, 5, 3));
    assert_eq!(config.persistence, Some(StatePlace::File("/var/lib/sim".into())));
    let plain = SimulationConfig {
        failures: Vec::new(),
        outcomes: Vec::new(),
        quota: Vec::new(),
        spot: None,
        rate_limit: None,
        persistence: None,
        ..config
    };
    assert_eq!(plain, SimulationConfig::default());
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(SimulationConfig::parse(" \n"), Ok(SimulationConfig::default()));
}

#[test]
fn all_latencies_can_be_zero() {
    let text = "latency: {create: 0, boot: 0s, ready: 0, delete: 0, api: {constant: 0}}
pods: {startLatency: 0, terminationLatency: 0}
volumes: {attach: 0, detach: 0}";
    assert_eq!(SimulationConfig::parse(text), Ok(SimulationConfig::without_latency()));
}

#[rstest]
#[case::an_unknown_key("latencies: {}", "latencies: Forbidden: no such key")]
#[case::an_unknown_spelling("nodes: {providerID: gcp}", "nodes.providerID: Unsupported value")]
#[case::a_nested_unknown_key("nodes: {leaseIntervall: 10s}", "nodes.leaseIntervall: Forbidden")]
#[case::a_duration_without_a_unit("nodes: {leaseInterval: 10}", "nodes.leaseInterval: Invalid value: 10")]
#[case::a_lease_that_runs_out("nodes: {leaseInterval: 50s}", "nodes.leaseDuration: Invalid value")]
#[case::a_quota_of_nothing("quota: [{zone: a}]", "quota[0]: Invalid value")]
#[case::a_seed_below_zero("seed: -1", "seed: Invalid value: -1")]
#[case::a_clock("clock: fast", "clock: Invalid value")]
#[case::state_without_a_place("persistence: {kind: file}", "persistence.path: Required value")]
#[case::a_list("- 1", "must be an object")]
#[case::a_limit_of_zero("rateLimit: {qps: 0}", "rateLimit.qps: Invalid value: 0")]
#[case::no_yaml("a: [", "not readable as YAML")]
fn a_mistake_is_reported_with_its_key(#[case] text: &str, #[case] words: &str) {
    let error = SimulationConfig::parse(text).unwrap_err();
    assert!(error.contains(words), "{error}");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let error = SimulationConfig::parse("seed: x\nlatency: {boot: soon}").unwrap_err();
    assert!(error.contains("seed:") && error.contains("latency.boot:"), "{error}");
}

#[rstest]
#[case::standing("clock: virtual", 0.0)]
#[case::as_in_the_reference("clock: \"virtual(rate: 60)\"", 60.0)]
#[case::as_an_object("clock: {virtual: {rate: 2.5}}", 2.5)]
fn a_virtual_clock_has_a_rate(#[case] text: &str, #[case] rate: f64) {
    assert_eq!(SimulationConfig::parse(text).unwrap().clock, ClockMode::Virtual { rate });
}

#[test]
fn a_class_overrides_settings_that_are_not_global() {
    let mut found = Findings::new();
    let value = serde_json::json!({"latency": {"boot": "1m"}, "seed": 3});
    let base = SimulationConfig::default();
    let config = base.overlaid(&value, &FieldPath::new("providerSpec.sim"), Scope::Class, &mut found);
    assert_eq!(config.latency.boot, Distribution::Constant(Duration::from_secs(60)));
    assert_eq!(config.latency.create, base.latency.create);
    assert!(found.aggregate().contains("providerSpec.sim.seed: Forbidden"), "{}", found.aggregate());
}
