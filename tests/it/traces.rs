//! The traces that managers send to a collector.

use std::{sync::Arc, time::Duration};

use serde_json::Value;

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::text,
        collector::{Collector, attribute},
        wait::expect,
        wait_until,
    },
};
use machine_controller_manager::observability::traces::otlp::WireSpan;

/// The longest time for a machine to run or to go.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A cloud in which each stage lasts longer than the second to which stored times are exact.
const CLOUD: &str = "\
seed: 1
latency:
  create: {constant: 1500ms}
  boot: {constant: 1s}
  ready: {constant: 500ms}
  delete: {constant: 1500ms}
  api: {constant: 0s}
";

/// A manager that takes part in the election and sends its spans to a collector of its own.
async fn manager(name: &str, rig: &Arc<Rig>, namespace: &Namespace) -> (TestManager, Collector) {
    let collector = Collector::start().await;
    let flags = ["--leader-elect=true", "--leader-elect-retry-period=200ms", &collector.flag];
    let flags = flags.map(str::to_owned).to_vec();
    let options = ManagerOptions { simulation: CLOUD.to_owned(), flags, ..ManagerOptions::default() };
    (TestManager::start_as(name, rig, namespace, &options).await, collector)
}

/// The spans of this trace, sorted by their time.
fn of_trace(spans: &[WireSpan], trace: &[u8]) -> Vec<WireSpan> {
    let mut spans: Vec<WireSpan> = spans.iter().filter(|span| span.trace_id == trace).cloned().collect();
    spans.sort_by_key(|span| (span.start_time_unix_nano, span.end_time_unix_nano));
    spans
}

fn named<'a>(spans: &'a [WireSpan], names: &[&str]) -> Vec<&'a WireSpan> {
    spans.iter().filter(|span| names.contains(&span.name.as_str())).collect()
}

/// The bytes of a UID.
fn bytes(uid: &str) -> Vec<u8> {
    let digits: String = uid.chars().filter(|letter| *letter != '-').collect();
    u128::from_str_radix(&digits, 16).expect("a UID is a UUID").to_be_bytes().to_vec()
}

/// Nanoseconds since 1970.
fn nanoseconds(object: &Value, pointer: &str) -> u64 {
    let time: jiff::Timestamp = text(object, pointer).parse().expect("a time");
    time.as_nanosecond().try_into().expect("after 1970")
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_103_the_life_of_a_machine_is_one_trace_over_two_leaders() {
    let Some(rig) = Rig::shared("traces::pk_103").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("traces").await;
    let (mut first, of_first) = manager("mcm-first", &rig, &namespace).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    let machine = fleet::running_machines(&namespace, 1, TIMEOUT).await.remove(0);
    let uid = text(&machine, "/metadata/uid").to_owned();
    assert_eq!(first.terminate(), 0);
    let first_spans = of_first.spans();

    let (mut second, of_second) = manager("mcm-second", &rig, &namespace).await;
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=0"]).await.succeed();
    fleet::none_left(&namespace, "machines", TIMEOUT).await;
    assert_eq!(second.terminate(), 0);
    let second_spans = of_second.spans();

    let trace = bytes(&uid);
    let (created, ended) = (of_trace(&first_spans, &trace), of_trace(&second_spans, &trace));
    let all = [created.clone(), ended.clone()].concat();
    // Each leader records what it has ended.
    let names = |spans: &[WireSpan]| -> Vec<String> {
        let stages = named(spans, &["create", "join", "run", "drain", "detach", "delete-vm"]);
        stages.into_iter().map(|span| span.name.clone()).collect()
    };
    assert_eq!(names(&created), ["create", "join"]);
    assert_eq!(names(&ended), ["run", "drain", "delete-vm"]);
    let life = named(&all, &["machine"]);
    assert_eq!(life.len(), 1, "{all:#?}");
    let born = nanoseconds(&machine, "/metadata/creationTimestamp");
    let ran = nanoseconds(&machine, "/status/currentStatus/lastUpdateTime");
    assert_eq!((life[0].start_time_unix_nano, life[0].parent_span_id.as_slice()), (born, [].as_slice()));
    let stages = named(&all, &["create", "join", "run", "drain", "detach", "delete-vm"]);
    assert_eq!(stages[0].start_time_unix_nano, born);
    assert_eq!((stages[1].end_time_unix_nano, stages[2].start_time_unix_nano), (ran, ran));
    for pair in stages.windows(2) {
        assert!(pair[0].end_time_unix_nano <= pair[1].start_time_unix_nano, "{pair:#?}");
    }
    for stage in &stages {
        assert_eq!(stage.parent_span_id, life[0].span_id, "{stage:#?}");
        assert!(stage.end_time_unix_nano <= life[0].end_time_unix_nano, "{stage:#?}");
    }
    for name in ["create", "join", "delete-vm"] {
        let stage = named(&all, &[name])[0];
        assert!(stage.end_time_unix_nano > stage.start_time_unix_nano, "its cloud takes longer: {stage:#?}");
    }

    let passes = named(&all, &["reconcile Machine"]);
    assert!(passes.iter().all(|pass| pass.parent_span_id == life[0].span_id) && passes.len() >= 4, "{passes:#?}");
    for name in ["CreateMachine", "DeleteMachine"] {
        let calls = named(&all, &[name]);
        let call = calls.first().unwrap_or_else(|| panic!("no {name}: {all:#?}"));
        assert!(passes.iter().any(|pass| pass.span_id == call.parent_span_id), "{call:#?}");
        assert!(call.end_time_unix_nano - call.start_time_unix_nano >= 1_400_000_000, "{call:#?}");
        assert_eq!(attribute(call, "mcm.provider").as_deref(), Some("virtual"));
    }

    // The rollout has links to its machine, from the pass that made it and from the pass that deleted it.
    let links_here = |spans: &[WireSpan]| -> Vec<WireSpan> {
        let has_link =
            |span: &&WireSpan| span.links.iter().any(|link| link.trace_id == trace && link.span_id == life[0].span_id);
        spans.iter().filter(has_link).cloned().collect()
    };
    let (made, deleted) = (links_here(&first_spans), links_here(&second_spans));
    let found = format!("{made:#?} {deleted:#?}");
    assert!(!made.is_empty() && !deleted.is_empty(), "{found}");
    for pass in made.iter().chain(&deleted) {
        assert_eq!((pass.name.as_str(), &pass.trace_id), ("reconcile MachineSet", &made[0].trace_id), "{found}");
        assert_eq!(attribute(pass, "mcm.revision").as_deref(), Some("1"), "{found}");
    }
    let rollout = of_trace(&first_spans, &made[0].trace_id);
    assert!(!named(&rollout, &["reconcile MachineDeployment"]).is_empty(), "{rollout:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_104_a_collector_that_is_away_is_counted_and_changes_nothing() {
    let Some(rig) = Rig::shared("traces::pk_104").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("untraced").await;
    // Nothing listens there.
    let flags = vec!["--tracing-endpoint=http://127.0.0.1:1".to_owned()];
    let options = ManagerOptions { flags, ..ManagerOptions::default() };
    let mut manager = TestManager::start(&rig, &namespace, &options).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    fleet::running_machines(&namespace, 1, TIMEOUT).await;
    wait_until("the failure to be logged", TIMEOUT, || async {
        expect(manager.log().contains("spans can't be delivered"), || "not yet".to_owned())
    })
    .await;
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=0"]).await.succeed();
    fleet::none_left(&namespace, "machines", TIMEOUT).await;
    let metrics = manager.http_get("/metrics").await;
    assert!(metrics.contains("mcm_trace_spans_dropped_total{reason=\"queue_full\"} 0"), "{metrics}");
    assert!(metrics.contains("mcm_trace_spans_sent_total 0"), "{metrics}");
    assert_eq!(manager.terminate(), 0);
}
