//! Late events: kinds that are installed after the start, and a creation in progress when the process receives the signal to end.

use std::collections::BTreeSet;

use serde_json::json;

use crate::{
    fleet,
    support::{ManagerOptions, Rig, TestManager, cluster_object::text, wait::expect, wait_until},
    weather::{FLEET, TIMEOUT, Weather},
};

#[tokio::test(flavor = "multi_thread")]
async fn mc_008_kinds_may_be_installed_after_the_start() {
    let Some(rig) = Rig::own("late::mc_008_kinds_may_be_installed").await else { return };
    let namespace = rig.namespace("late").await;
    let manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    wait_until("the missing kinds to be named", TIMEOUT, || async {
        let log = manager.log();
        expect(log.contains("machines.machine.sapcloud.io/v1alpha1") && log.contains("mcm manifests crds"), || {
            log.clone()
        })
    })
    .await;
    rig.install_crds().await;
    namespace.apply(&fleet::manifests(&namespace.name, "late", 1, "late")).await.succeed();
    fleet::running_machines(&namespace, 1, TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_010_a_creation_under_way_is_finished_and_recorded_before_the_end() {
    let Some(mut weather) = Weather::begin("late::mc_010_a_creation_under_way", &[]).await else { return };
    weather.cloud.fails(json!([{"op": "create", "effect": "hang", "for": "3s"}])).await;
    weather.want(1).await;
    wait_until("the creation to be under way", TIMEOUT, || async {
        let under_way = weather.cloud.happened("callHangs").await;
        expect(under_way.len() == 1, || format!("{under_way:?}"))
    })
    .await;
    assert_eq!(weather.manager.terminate(), 0, "{}", weather.manager.log());
    let machines = weather.namespace.list("machines").await;
    let recorded: BTreeSet<&str> = machines.iter().map(|machine| text(machine, "/spec/providerID")).collect();
    assert!(recorded.iter().all(|id| id.starts_with("virtual:///")) && recorded.len() == 1, "{FLEET}: {recorded:?}");
}

/// The webhooks are registered but not served. The manager's own writes must not depend on them.
#[tokio::test(flavor = "multi_thread")]
async fn mc_283_machines_are_deleted_while_no_webhook_answers() {
    let Some(mut weather) = Weather::alone("late::mc_283_machines_are_deleted", &[]).await else { return };
    weather.rig.with_controller_manager().await;
    weather.manager.register_webhooks(&weather.rig, &weather.namespace).await;
    weather.want(2).await;
    weather.wait_until_healthy(2).await;
    weather.manager.kill();
    weather.manager.restart_with(&["--secure-port=0"]);
    weather.manager.wait_until_ready().await;
    let delete = ["delete", "machinedeployment", FLEET, "--cascade=foreground", "--wait=false"];
    weather.namespace.kubectl(&delete).await.succeed();
    fleet::none_left(&weather.namespace, "machines", TIMEOUT).await;
    fleet::none_left(&weather.namespace, "machinedeployments", TIMEOUT).await;
}
