//! Scenarios of writes that the API server refuses for hours, with the whole controller: what they cost, and that everything
//! continues once they are accepted.

use std::time::Duration;

use http::Method;
use rstest::rstest;
use serde_json::json;

use crate::{
    machine::testing::cluster::{Luck, MACHINE, NODES, World},
    testing_api::{FOR_EVER, Fault},
};

const NODE: &str = "/api/v1/nodes/m-abcde";
/// The maximum number of writes to one object in an hour. Refused attempts count too.
const MOST: usize = 30;
const HOURS: usize = 6;
/// This long after the end of a refusal, everything is as it should be.
const RECOVERED: Duration = Duration::from_secs(300);

/// The writes to an object since the last call.
fn writes_on(world: &World, path: &str) -> usize {
    let writes = world.api.writes().iter().filter(|write| write.contains(path)).count();
    world.api.forget_writes();
    writes
}

fn pool_of_node(world: &World) -> Option<String> {
    world.api.get(NODE)?["metadata"]["labels"]["pool"].as_str().map(str::to_owned)
}

fn changes_a_label_of_its_node(world: &World) {
    world.api.edit(MACHINE, |machine| machine["spec"]["nodeTemplate"]["metadata"]["labels"]["pool"] = json!("b"));
}

fn is_preserved(world: &World) {
    world.api.edit(MACHINE, |machine| {
        machine["metadata"]["annotations"] = json!({ "node.machine.sapcloud.io/preserve": "now" });
    });
}

fn is_deleted(world: &World) {
    world.api.delete(MACHINE);
}

fn loses_its_link(world: &World) {
    world.api.edit(MACHINE, |machine| {
        machine["metadata"]["labels"].as_object_mut().unwrap().remove("node");
    });
}

fn has_its_link(world: &World) -> bool {
    world.api.get(MACHINE).is_some_and(|machine| machine["metadata"]["labels"]["node"] == "m-abcde")
}

fn node_is_marked(world: &World) -> bool {
    let conditions = world.api.get(NODE).map(|mut node| node["status"]["conditions"].take()).unwrap_or_default();
    let mut conditions = conditions.as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Preserved" && condition["status"] == "True")
}

#[rstest]
#[case::labels_of_a_node(changes_a_label_of_its_node, Method::PATCH, NODES, |world: &World| pool_of_node(world).as_deref() == Some("b"))]
#[case::marks_of_a_preservation(is_preserved, Method::PATCH, NODES, node_is_marked)]
#[case::the_cordon_of_a_drain(is_deleted, Method::PATCH, NODES, |world: &World| world.phase().is_none())]
#[case::the_end_of_a_node(is_deleted, Method::DELETE, NODES, |world: &World| world.phase().is_none())]
#[case::all_about_a_machine_that_ends(is_deleted, Method::PATCH, MACHINE, |world: &World| world.phase().is_none())]
#[case::its_link(loses_its_link, Method::PATCH, MACHINE, has_its_link)]
#[tokio::test(start_paused = true)]
async fn writes_that_are_refused_for_hours_are_few_and_continue_when_granted(
    #[case] happens: fn(&World),
    #[case] method: Method,
    #[case] path: &'static str,
    #[case] is_done: fn(&World) -> bool,
) {
    let world = World::new(Luck::Good);
    world.make_machine();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.phase().as_deref(), Some("Running"));
    let refused = format!("{method} {path}");
    world.api.fail(&refused, Fault::REFUSE, FOR_EVER);
    world.api.forget_writes();
    happens(&world);
    for hour in 0..HOURS {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let writes = writes_on(&world, path);
        assert!((10..=MOST).contains(&writes), "{writes} writes in hour {}", hour + 1);
        assert!(!is_done(&world));
    }
    world.api.heal(&refused);
    tokio::time::sleep(RECOVERED).await;
    assert!(is_done(&world), "{:?}", world.api.writes());
}
