//! Scrapes of a manager: what it shows from the start, and what a fleet shows that is rolled, scaled and loses a machine (spec/packaging §4.1).

use std::time::Duration;

use crate::{
    fleet,
    support::{ManagerOptions, Rig, TestManager, cluster_object::name, wait::expect, wait_until},
};

/// Long enough for a busy machine with two cores.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The most series that a manager may show beside those of single machines (PK-059).
const MOST_SERIES: usize = 1500;

/// The value of a series; `None` without it.
pub fn value(scrape: &str, series: &str) -> Option<f64> {
    scrape.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// The series of a scrape, one a line.
fn series(scrape: &str) -> impl Iterator<Item = &str> {
    scrape.lines().filter(|line| !line.starts_with('#'))
}

async fn shows(manager: &TestManager, series: &str, expected: f64) {
    wait_until(&format!("{series} {expected}"), TIMEOUT, || async {
        let scrape = manager.http_get("/metrics").await;
        let found = value(&scrape, series);
        expect(found == Some(expected), || format!("{found:?} in\n{scrape}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_060_a_fleet_that_rolls_and_shrinks_shows_in_every_metric_that_tells_of_it() {
    let Some(rig) = Rig::own("metrics::pk_060").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("scraped").await;
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    // The rig completes the name of the namespace.
    let here = |series: &str| series.replace("scraped", &namespace.name);
    let deletions =
        |reason: &str| here(&format!(r#"mcm_machine_deletions_total{{namespace="scraped",reason="{reason}"}}"#));
    for lease in ["machine-controller-manager", "machine-controller"] {
        shows(&manager, &format!(r#"mcm_leader{{lease="{lease}"}}"#), 1.0).await;
    }
    // The views are opened last.
    shows(&manager, r#"mcm_panics_total{view="machineoutlooks"}"#, 0.0).await;
    let scrape = manager.http_get("/metrics").await;
    for reason in ["rollout", "scale-down", "unhealthy", "user", "autoscaler", "orphan"] {
        assert_eq!(value(&scrape, &deletions(reason)), Some(0.0), "{scrape}");
    }
    assert!(series(&scrape).any(|line| line.starts_with("mcm_build_info{commit=")), "{scrape}");
    assert_eq!(value(&scrape, "mcm_crd_stored_version_unserved"), Some(0.0));

    namespace.apply(&fleet::manifests(&namespace.name, "web", 3, "first")).await.succeed();
    fleet::running_machines(&namespace, 3, TIMEOUT).await;
    shows(&manager, &here(r#"mcm_machines{namespace="scraped",phase="Running"}"#), 3.0).await;
    let scrape = manager.http_get("/metrics").await;
    let placed = here(r#"{instance_type="",machine_deployment="web",namespace="scraped",zone=""}"#);
    for (series, expected) in [
        (format!("mcm_machine_num_failed_join{placed}"), 0.0),
        (r#"mcm_orphan_vms_deleted_total{class="first"}"#.to_owned(), 0.0),
        (here(r#"mcm_machines_overdue{namespace="scraped",stage="Join"}"#), 0.0),
        (here(r#"mcm_machine_deployment_surge{name="web",namespace="scraped"}"#), 1.0),
        (here(r#"mcm_machine_deployment_unavailable{name="web",namespace="scraped"}"#), 0.0),
    ] {
        assert_eq!(value(&scrape, &series), Some(expected), "{series} in\n{scrape}");
    }
    let now = unix_now();
    for (cluster, kind) in [("control", "machines"), ("control", "secrets"), ("target", "nodes")] {
        let at = value(&scrape, &format!(r#"mcm_cache_last_event_seconds{{cluster="{cluster}",kind="{kind}"}}"#));
        assert!(at.is_some_and(|at| now - at < 300.0 && at - now < 60.0), "{kind}: {at:?} at {now}");
    }

    // A rollout to another class. The new machines take some seconds, so that a scrape sees the rollout.
    let slower = ManagerOptions::default().simulation.replace("boot: {constant: 0s}", "boot: {constant: 5s}");
    manager.simulate(&slower);
    namespace.apply(&fleet::manifests(&namespace.name, "web", 3, "second")).await.succeed();
    wait_until("the rollout to show", TIMEOUT, || async {
        let scrape = manager.http_get("/metrics").await;
        let began =
            value(&scrape, &here(r#"mcm_machine_deployment_rollout_started_seconds{name="web",namespace="scraped"}"#));
        let waits = series(&scrape).any(|line| line.starts_with(&here(r#"mcm_machines_waiting{namespace="scraped","#)));
        expect(began.is_some_and(|began| began + 1.0 >= now) && waits, || scrape.clone())
    })
    .await;
    shows(&manager, &deletions("rollout"), 3.0).await;
    let machines = fleet::running_machines(&namespace, 3, TIMEOUT).await;
    wait_until("the rollout to end", TIMEOUT, || async {
        let scrape = manager.http_get("/metrics").await;
        expect(!scrape.contains("mcm_machine_deployment_rollout_started_seconds{"), || scrape.clone())
    })
    .await;
    // A user deletes a machine, then wants one less.
    namespace.kubectl(&["delete", "machine", name(&machines[0]), "--wait=false"]).await.succeed();
    shows(&manager, &deletions("user"), 1.0).await;
    fleet::running_machines(&namespace, 3, TIMEOUT).await;
    let fewer = r#"{"spec":{"replicas":2}}"#;
    namespace.kubectl(&["patch", "machinedeployment", "web", "--type=merge", "-p", fewer]).await.succeed();
    shows(&manager, &deletions("scale-down"), 1.0).await;
    fleet::running_machines(&namespace, 2, TIMEOUT).await;
    let scrape = manager.http_get("/metrics").await;
    for (reason, expected) in [("rollout", 3.0), ("user", 1.0), ("unhealthy", 0.0), ("autoscaler", 0.0)] {
        assert_eq!(value(&scrape, &deletions(reason)), Some(expected), "{scrape}");
    }
    for stage in ["create", "join", "delete"] {
        let started = format!("mcm_machine_stage_duration_seconds_count{{stage=\"{stage}\"}} ");
        assert!(series(&scrape).any(|line| line.starts_with(&started)), "{stage} in\n{scrape}");
    }
    let join = format!("mcm_machine_join_duration_seconds{placed}");
    assert!(value(&scrape, &join).is_some_and(|took| took >= 5.0), "{join} in\n{scrape}");

    let running = here(r#"mcm_machines{namespace="scraped",phase="Running"}"#);
    without_series_of_machines(&mut manager, &running, &fleet::running_machines(&namespace, 2, TIMEOUT).await).await;
}

/// PK-059, PK-061: the flags that leave series out.
async fn without_series_of_machines(manager: &mut TestManager, running: &str, machines: &[serde_json::Value]) {
    manager.restart_with(&["--metrics-per-machine=false", "--metrics-request-latency=false"]);
    manager.wait_until_ready().await;
    shows(manager, running, 2.0).await;
    let scrape = manager.http_get("/metrics").await;
    for machine in machines {
        assert!(!scrape.contains(name(machine)), "{} is in\n{scrape}", name(machine));
    }
    assert!(!scrape.contains("rest_client_request_latency_seconds"), "{scrape}");
    let count = series(&scrape).count();
    assert!(count <= MOST_SERIES, "{count} series:\n{scrape}");
    println!("{count} series without those of machines and of request latencies");
    let used = value(&scrape, "process_cpu_seconds_total").expect("the process uses CPU time");
    assert!(used > 0.0 && used < 60.0, "{used}");
}

/// Unix time in seconds.
fn unix_now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}
