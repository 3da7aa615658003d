//! Scenarios of machines that lose their label `node`, by a pruning of labels or a replacement from an old export, with the
//! whole controller and the real module `drain`.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::machine::testing::cluster::{Luck, MACHINE, World, lock};

const NODE: &str = "/api/v1/nodes/m-abcde";
const PODS: &str = "/api/v1/namespaces/ns/pods/";

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Removes a label from an object, as another client would.
fn take_label(world: &World, path: &str, key: &str) {
    world.api.edit(path, |object| {
        object["metadata"]["labels"].as_object_mut().unwrap().remove(key);
    });
}

fn link(world: &World) -> Option<String> {
    world.api.get(MACHINE)?["metadata"]["labels"]["node"].as_str().map(str::to_owned)
}

/// How often the eviction of the pod was requested.
fn evictions(world: &World) -> usize {
    let request = format!("POST {PODS}a/eviction");
    world.api.writes().iter().filter(|write| **write == request).count()
}

async fn with_machine() -> World {
    let world = World::new(Luck::Good);
    world.make_machine();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    world
}

/// The remaining link from the Node to the machine.
#[derive(Clone, Copy, Debug)]
enum Trace {
    NameAndInstance,
    InstanceAlone,
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_after_the_machine_lost_its_link(
    #[values(Trace::NameAndInstance, Trace::InstanceAlone)] trace: Trace,
) {
    let world = with_machine().await;
    world.make_pod("a");
    world.hold("a");
    world.api.delete(MACHINE);
    wait(60).await;
    assert!(evictions(&world) > 0, "the drain has begun");
    if matches!(trace, Trace::InstanceAlone) {
        take_label(&world, NODE, "node.gardener.cloud/machine-name");
    }
    take_label(&world, MACHINE, "node");
    world.api.forget_writes();
    wait(60).await;
    assert_eq!(world.vms().deletes, 0, "the VM went with a pod that its budget holds");
    assert_eq!(link(&world).as_deref(), Some("m-abcde"));
    assert!(evictions(&world) > 0, "the drain goes on");
    world.let_go("");
    wait(60).await;
    assert_eq!((world.phase(), world.vms().by_name.len()), (None, 0));
    assert_eq!(world.api.get(NODE), None);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_lost_its_link_in_service_still_has_its_health_watched() {
    let world = with_machine().await;
    world.api.forget_writes();
    take_label(&world, MACHINE, "node");
    wait(5).await;
    assert_eq!(link(&world).as_deref(), Some("m-abcde"));
    assert_eq!(world.api.writes(), [format!("PATCH {MACHINE}")], "one write");
    let deadlock = json!([{ "type": "Ready", "status": "True" }, { "type": "KernelDeadlock", "status": "True" }]);
    world.api.set(NODE, "/status/conditions", deadlock);
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Unknown"));
    take_label(&world, MACHINE, "node");
    world.api.set(NODE, "/status/conditions", json!([{ "type": "Ready", "status": "True" }]));
    wait(5).await;
    assert_eq!((world.phase().as_deref(), link(&world).as_deref()), (Some("Running"), Some("m-abcde")));
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_lost_its_link_before_its_node_registered_joins() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.joins_after) = Duration::from_secs(60);
    world.make_machine();
    wait(5).await;
    assert_eq!(world.phase().as_deref(), Some("Pending"));
    take_label(&world, MACHINE, "node");
    wait(5).await;
    assert_eq!(link(&world), None, "nothing is known of a Node yet");
    wait(60).await;
    assert_eq!((world.phase().as_deref(), link(&world).as_deref()), (Some("Running"), Some("m-abcde")));
}

#[tokio::test(start_paused = true)]
async fn a_machine_does_not_take_the_node_of_its_elder_twin() {
    let world = with_machine().await;
    let mut twin: Value = world.api.get(MACHINE).unwrap().clone();
    twin["metadata"]["name"] = json!("twin");
    twin["metadata"]["uid"] = json!("uid-of-twin");
    twin["metadata"]["creationTimestamp"] = json!("2030-01-01T00:00:00Z");
    twin["metadata"]["labels"].as_object_mut().unwrap().remove("node");
    let path = MACHINE.replace("m-abcde", "twin");
    world.api.put(&path, twin);
    take_label(&world, MACHINE, "node");
    wait(30).await;
    assert_eq!(link(&world).as_deref(), Some("m-abcde"));
    assert_eq!(world.api.get(&path).unwrap()["metadata"]["labels"]["node"], Value::Null);
}
