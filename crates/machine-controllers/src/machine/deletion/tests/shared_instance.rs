//! Whole deletions of machines that share an instance, as after a restored backup or with a copied manifest.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::machine::testing::cluster::{Luck, MACHINE, MACHINES, World};

const NODE: &str = "/api/v1/nodes/m-abcde";
const TWIN: &str = "/apis/machine.sapcloud.io/v1alpha1/namespaces/ns/machines/m-twin";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// The number of VMs that exist, and of VMs that the driver has deleted.
fn vms(world: &World) -> (usize, usize) {
    let vms = world.vms();
    (vms.by_name.len(), vms.ended)
}

fn object(world: &World, path: &str) -> Option<Value> {
    world.api.get(path)
}

/// A Running machine with a pod on its node, and a younger copy of it under another name.
async fn twins() -> World {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(2).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world.make_pod("a");
    let mut copy = object(&world, MACHINE).unwrap();
    copy["metadata"]["name"] = json!("m-twin");
    world.api.put(TWIN, copy);
    wait(2).await;
    world.api.forget_writes();
    world
}

#[rstest]
#[case::the_elder_that_has_the_node(MACHINE, TWIN)]
#[case::the_younger(TWIN, MACHINE)]
#[tokio::test(start_paused = true)]
async fn the_vm_of_a_living_machine_outlives_a_deleted_one_that_names_it_too(
    #[case] deleted: &str,
    #[case] living: &str,
) {
    let world = twins().await;
    world.api.delete(deleted);
    wait(3 * 3600).await;
    assert_eq!(object(&world, deleted), None);
    assert_eq!(vms(&world), (1, 0), "the VM of the other machine lives");
    assert_eq!(object(&world, living).unwrap()["status"]["currentStatus"]["phase"], "Running");
    assert_eq!(world.api.names_under("/api/v1/namespaces/ns/pods/").len(), 1, "nobody is evicted");
    let node = object(&world, NODE).expect("the Node stays");
    assert!(node["spec"]["unschedulable"].is_null(), "{node:#}");
    let name = living.strip_prefix(MACHINES).unwrap();
    assert_eq!(node["metadata"]["labels"]["node.gardener.cloud/machine-name"], name);

    world.api.delete(living);
    wait(60).await;
    assert_eq!((object(&world, living), object(&world, NODE)), (None, None));
    assert_eq!(vms(&world), (0, 1));
}

#[rstest]
#[case::at_once(0)]
#[case::one_after_the_other(1)]
#[tokio::test(start_paused = true)]
async fn of_two_deleted_machines_with_one_instance_exactly_one_deletes_it(
    #[case] apart: u64,
    #[values([MACHINE, TWIN], [TWIN, MACHINE])] order: [&str; 2],
) {
    let world = twins().await;
    for (place, machine) in (0..).zip(order) {
        wait(apart * place).await;
        world.api.delete(machine);
    }
    wait(60).await;
    assert_eq!(world.api.names_under(MACHINES).len(), 0);
    assert_eq!(vms(&world), (0, 1));
    assert_eq!(object(&world, NODE), None);
    assert!(world.api.names_under("/api/v1/namespaces/ns/pods/").is_empty());
}
