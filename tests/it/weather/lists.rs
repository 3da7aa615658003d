//! VMs without a machine, and unreliable lists of VMs.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{
    support::{cluster_object::text, wait::expect, wait_until},
    weather::{FLEET, TIMEOUT, Weather},
};

/// Changes the class and waits until its VMs have been listed twice since.
async fn wait_for_lists_of_vms(weather: &Weather, note: &str) {
    let lists = || async {
        let metrics = weather.cloud.metrics().await;
        let line = metrics.lines().find_map(|line| line.strip_prefix("virtual_cloud_calls_total{op=\"list\"} "));
        line.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
    };
    for round in 1..=2 {
        let before = lists().await;
        let spec = json!({ "providerSpec": { "note": format!("{note}-{round}") } }).to_string();
        weather.namespace.kubectl(&["patch", "machineclass", FLEET, "--type=merge", "-p", &spec]).await.succeed();
        wait_until("a list of VMs", TIMEOUT, || async {
            let now = lists().await;
            expect(now > before, || format!("{now} lists"))
        })
        .await;
    }
}

/// The two checks of an orphan are a minute apart, so this is the longest of the weather tests.
#[tokio::test(flavor = "multi_thread")]
async fn mc_241_orphans_are_deleted_and_no_list_harms_a_machine() {
    // The shortest allowed period. A changed class is checked in addition.
    let flags = ["--machine-safety-orphan-vms-period=10s"];
    let Some(weather) = Weather::begin("weather::lists::mc_241_orphans", &flags).await else { return };
    weather.want(4).await;
    let healthy: BTreeSet<String> = weather
        .wait_until_healthy(4)
        .await
        .iter()
        .map(|machine| text(machine, "/spec/providerID").to_owned())
        .collect();
    let orphans = [
        weather.cloud.create_orphan(&weather.namespace.name, "never-was-1").await,
        weather.cloud.create_orphan(&weather.namespace.name, "never-was-2").await,
    ];
    for bad in ["empty-list", "partial-list"] {
        weather.cloud.fails(json!([{"op": "list", "effect": bad}])).await;
        wait_for_lists_of_vms(&weather, bad).await;
    }
    weather.cloud.fails(json!([{"op": "list", "code": "Unavailable"}])).await;
    wait_for_lists_of_vms(&weather, "unavailable").await;
    weather.cloud.is_well().await;

    wait_until("the orphans to go", TIMEOUT, || async {
        let vms = weather.cloud.vms().await;
        let left = vms.iter().filter(|vm| orphans.iter().any(|orphan| text(vm, "/providerID") == orphan)).count();
        expect(left == 0, || format!("{vms:#?}"))
    })
    .await;
    weather.wait_until_healthy(4).await;
    let stopped: BTreeSet<String> = weather.cloud.happened("stopping").await.into_values().flatten().collect();
    assert!(stopped.is_disjoint(&healthy), "the VM of a machine is deleted: {stopped:?}");
    let events = weather.namespace.list("events").await;
    let found = events.iter().any(|event| {
        text(event, "/reason") == "OrphanVMsFound" && text(event, "/involvedObject/kind") == "MachineClass"
    });
    assert!(found, "no event: OrphanVMsFound: {events:#?}");
    let metrics = weather.manager.http_get("/metrics").await;
    assert!(metrics.contains("mcm_orphan_vms_deleted_total{class=\"weather\"} 2"), "{metrics}");
}
