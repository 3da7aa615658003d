//! The whole controller against a small cluster and cloud: write budgets, and random histories.
//!
//! Source: spec/machine-controller §15.5, §16; §17.14. Single scenarios: `scenarios`.

use std::time::Duration;

use proptest::prelude::*;

use crate::{
    deployment::testing::a_quarter_of_the_cases,
    machine::testing::cluster::{Luck, World},
};

const TOKENS: &str = "/api/v1/namespaces/kube-system/secrets/";
const NODES: &str = "/api/v1/nodes/";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn mc_275_a_healthy_machine_becomes_running_with_six_writes() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let writes = world.api.writes();
    assert_eq!(writes.len(), 6, "{writes:#?}");
    assert!(world.api.names_under(TOKENS).is_empty(), "the token is gone");
    assert_eq!(world.vms().creates, 1);
}

#[tokio::test(start_paused = true)]
async fn mc_277_an_idle_machine_costs_no_write() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    world.api.forget_writes();
    wait(3600).await;
    assert_eq!(world.api.writes(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn mc_276_a_deleted_machine_is_gone_after_seven_writes_and_one_for_each_pod() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    for pod in ["a", "b", "c"] {
        world.make_pod(pod);
    }
    world.api.forget_writes();
    world.api.delete(crate::machine::testing::cluster::MACHINE);
    wait(2).await;
    assert_eq!(world.phase(), None);
    let writes = world.api.writes();
    assert_eq!(writes.len(), 7 + 3, "{writes:#?}");
    assert!(world.api.names_under(NODES).is_empty());
    assert!(world.vms().by_name.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_class_and_its_secrets_are_forgotten_with_their_last_machine() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    assert!(world.remembers_class());
    world.api.delete(crate::machine::testing::cluster::MACHINE);
    wait(2).await;
    assert_eq!((world.phase(), world.remembers_class()), (None, false));
}

#[tokio::test(start_paused = true)]
async fn mc_026_a_machine_whose_node_is_deleted_goes_with_it() {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    world.api.delete("/api/v1/nodes/m-abcde");
    wait(10).await;
    assert_eq!(world.phase(), None);
    assert!(world.api.names_under(NODES).is_empty());
    assert!(world.vms().by_name.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_whole_life_is_scraped_by_the_names_of_the_original() {
    let world = World::new(Luck::Slow(Duration::from_secs(3)));
    world.make_machine();
    wait(60).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.make_pod("a");
    world.api.delete(crate::machine::testing::cluster::MACHINE);
    wait(60).await;
    assert_eq!(world.phase(), None);
    let text = world.metrics.render().unwrap();
    let placed = r#"{instance_type="",machine_deployment="pool",namespace="ns",zone=""}"#;
    for sample in [
        format!("mcm_machine_create_duration_seconds{placed} 6"),
        format!("mcm_machine_join_duration_seconds{placed} 6"),
        format!("mcm_machine_delete_duration_seconds{placed} 3"),
        r#"mcm_machine_stage_duration_seconds_count{stage="drain"} 1"#.to_owned(),
        r#"mcm_cloud_api_driver_request_duration_seconds_count{operation="create_machine",provider="small"} 1"#.to_owned(),
        r#"mcm_cloud_api_driver_request_duration_seconds_sum{operation="delete_machine",provider="small"} 3"#.to_owned(),
        r#"mcm_cloud_api_driver_requests_failed_total{error_code="5",operation="get_machine_status",provider="small"} 1"#
            .to_owned(),
        r#"mcm_machine_api_writes_total{object="machine",reason="record-identity"} 1"#.to_owned(),
        r#"mcm_machine_api_writes_total{object="machine/status",reason="node-healthy"} 1"#.to_owned(),
        r#"mcm_machine_api_writes_total{object="pod/eviction",reason="drain-evict"} 1"#.to_owned(),
        r#"mcm_machine_api_writes_total{object="secret",reason="create-vm"} 1"#.to_owned(),
    ] {
        assert!(text.contains(&sample), "{sample} is not in\n{text}");
    }
}

/// An event in the test; time passes between two events.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Wait(u64),
    Restart,
    Delete,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    let one = prop_oneof![
        6 => (1_u64..8000).prop_map(Happening::Wait),
        2 => Just(Happening::Restart),
        1 => Just(Happening::Delete),
    ];
    prop::collection::vec(one, 1..14)
}

/// One history: a machine is created, things happen while everything may fail, then nothing fails any more and the machine
/// is deleted.
async fn history(seed: u64, happenings: &[Happening]) {
    let mut world = World::new(Luck::Bad(seed));
    world.make_machine();
    for happening in happenings {
        match happening {
            Happening::Wait(millis) => tokio::time::sleep(Duration::from_millis(*millis)).await,
            Happening::Restart => world.restart(),
            Happening::Delete => world.api.delete(crate::machine::testing::cluster::MACHINE),
        }
        if world.phase().is_none() && !restarted(happenings) {
            assert!(world.vms().by_name.is_empty(), "a VM outlived its machine");
        }
        assert_eq!(world.vms().wrong_deletes, 0, "a VM was deleted whose machine lives");
    }
    world.heal();
    world.api.delete(crate::machine::testing::cluster::MACHINE);
    // The longest pause after a failed deletion is ten minutes; lost writes cost some more.
    wait(3600).await;
    assert_eq!(
        world.phase(),
        None,
        "the machine is still there: {:?}",
        world.api.get(crate::machine::testing::cluster::MACHINE)
    );
    assert_eq!(world.vms().wrong_deletes, 0, "a VM was deleted whose machine lives");
    if !restarted(happenings) {
        assert!(world.vms().by_name.is_empty(), "a VM outlived its machine");
        assert_eq!(world.vms().doubles, 0, "a second VM was made");
    }
}

/// A process that was killed during a driver call may have left a VM behind; this VM is found by name or by the orphan
/// collector.
fn restarted(happenings: &[Happening]) -> bool {
    happenings.iter().any(|happening| matches!(happening, Happening::Restart))
}

proptest! {
    #![proptest_config(a_quarter_of_the_cases())]

    /// Calls may be lost, and the process may die at any time. Still there is at most one VM, it does not outlive its
    /// machine, and a deleted machine ends.
    #[test]
    fn mc_187_mc_278_mc_279_mc_284_a_machine_and_its_vm_end_together(seed in any::<u64>(), happenings in happenings()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(history(seed, &happenings));
    }
}
