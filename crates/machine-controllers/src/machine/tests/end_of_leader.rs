//! The end of driver calls when the process is asked to stop, or loses its lease (MC-010, decisions.md 56).

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::machine::{
    driver_calls::{DriverCalls, Order, Tracked},
    observation::Call,
    testing::{
        cloud::Mishap,
        cluster::{DRIVER_DRAIN, Luck, MACHINE, World, lock},
    },
};
use controller_runtime::{
    gate::Gate,
    key::{ObjectKey, Target},
    lease::Leadership,
    tasks::TokioTasks,
};
use machine_driver::{Driver, MachineRequest, SecretData};
use mcm_traces::Place;

async fn wait(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn provider_id(world: &World) -> String {
    world.api.get(MACHINE).unwrap()["spec"]["providerID"].as_str().unwrap_or_default().to_owned()
}

fn creates(world: &World) -> usize {
    world.vms().creates
}

#[tokio::test(start_paused = true)]
async fn mc_010_a_creation_under_way_is_awaited_and_recorded() {
    let mut world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Slow(Duration::from_secs(15)));
    world.make_machine();
    wait(2).await;
    let (took, unanswered) = world.end().await;
    assert!(took < DRIVER_DRAIN, "{took:?}");
    assert_eq!((unanswered, provider_id(&world).as_str(), creates(&world)), (0, "small:///m-abcde", 1));
}

#[tokio::test(start_paused = true)]
async fn mc_010_no_vm_is_ordered_by_a_process_that_is_asked_to_stop_while_it_asks_for_the_status() {
    let mut world = World::new(Luck::Slow(Duration::from_secs(4)));
    world.make_machine();
    wait(2).await;
    assert_eq!(world.cloud_calls(), 1, "the driver is asked whether there is a VM");
    let (took, unanswered) = world.end().await;
    assert!(took < Duration::from_secs(4), "{took:?}");
    wait(60).await;
    assert_eq!((unanswered, world.cloud_calls(), creates(&world)), (0, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn mc_010_a_creation_of_ten_minutes_is_dropped_and_keeps_the_leases_from_being_given_back() {
    let mut world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Slow(Duration::from_secs(600)));
    world.make_machine();
    wait(2).await;
    let (took, unanswered) = world.end().await;
    assert!(took >= DRIVER_DRAIN && took < DRIVER_DRAIN + Duration::from_secs(1), "{took:?}");
    assert_eq!(unanswered, 1);
    wait(3600).await;
    assert_eq!((creates(&world), provider_id(&world).as_str()), (0, ""), "the call went on");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_drops_driver_calls_at_once() {
    let world = World::new(Luck::Good);
    *lock(&world.cloud.mishap) = Some(Mishap::Slow(Duration::from_secs(600)));
    world.make_machine();
    wait(2).await;
    assert_eq!(world.lose_lease().await, 1);
    wait(3600).await;
    assert_eq!(creates(&world), 0, "the call went on");
}

/// Why a call that waits for its slot never begins.
#[derive(Clone, Copy)]
enum End {
    Asked,
    Lost,
}

#[rstest::rstest]
#[case::when_the_process_is_asked_to_stop(End::Asked)]
#[case::when_the_lease_is_lost(End::Lost)]
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_a_slot_never_begins(#[case] end: End) {
    let world = World::new(Luck::Slow(Duration::from_secs(10)));
    let (stopping, lost) = (CancellationToken::new(), CancellationToken::new());
    let gate = Gate::open_while(Leadership::without_election(lost.clone()))
        .draining_calls(stopping.clone(), Duration::from_secs(20));
    let calls = DriverCalls::new(1, Arc::new(TokioTasks), Arc::new(|_| {}), gate.clone());
    let order = || Order {
        rule: "delete-vm",
        call: Call::Delete,
        driver: Arc::clone(&world.cloud) as Arc<dyn Driver>,
        request: MachineRequest { machine: Arc::default(), class: Arc::default(), secret: SecretData::default() },
        deadline: Duration::from_secs(60),
        place: Place::nowhere(),
    };
    let of = |name: &str| Target { key: ObjectKey::new("ns", name), uid: "u".to_owned() };
    assert!(calls.start(&of("a"), order()) && calls.start(&of("b"), order()));
    wait(5).await;
    match end {
        End::Asked => stopping.cancel(),
        End::Lost => lost.cancel(),
    }
    calls.finish().await;
    assert_eq!(world.cloud_calls(), 1);
    assert_eq!(gate.passed().values().sum::<u64>(), 1, "it isn't counted as a deletion, either");
    assert_eq!(calls.take(&of("b")), Tracked::None);
}
