//! The table of lies and flows: every lie in every flow of a machine's life, in one thread on paused time against the embedded API server.
//!
//! Each cell has its own world ([`world`]). The flow prepares its objects without lies. Then a lie ([`weather`]) applies to all requests of the
//! manager, and the flow applies its change ([`flows`]). Each flow names the objects that may be deleted; every other object must still exist at the
//! end ([`ledger`]). All writes stop, every machine runs with one VM and one Node, and the objects have the same shape as without lies: no finalizer,
//! label, annotation, taint or condition is left behind. `lying` tests fewer lies on the built program and a real API server.

mod flows;
mod ledger;
mod shape;
pub mod weather;
pub mod world;

use std::{
    collections::BTreeMap,
    sync::{Mutex, OnceLock},
};

use rstest::rstest;

use self::{
    flows::Flow,
    weather::{ActiveLie, Told},
};
use crate::support::scratch::count_ran;

/// The seed of all random choices of a cell.
const SEED: u64 = 5;

#[rstest]
fn only_named_objects_are_deleted(
    #[values(
        Flow::Create,
        Flow::Run,
        Flow::Drain,
        Flow::Delete,
        Flow::Roll,
        Flow::RollInPlace,
        Flow::TakeOverACreation,
        Flow::TakeOverADeletion,
        Flow::TakeOverFromTheOriginal
    )]
    flow: Flow,
    #[values(
        Told::NotFound,
        Told::NotFoundPage,
        Told::TooManyRequests,
        Told::ServerFault,
        Told::Unavailable,
        Told::BadGateway,
        Told::Late,
        Told::TooLate,
        Told::Lost,
        Told::Silence,
        Told::NoListsOf("machines"),
        Told::NoListsOf("machinesets"),
        Told::NoListsOf("nodes"),
        Told::NoListsOf("pods"),
        Told::OldEvents
    )]
    told: Told,
) {
    count_ran(&format!("lies::{flow:?}_{told:?}"));
    let wanted = without_lies(flow);
    let shapes = lives(flow, told);
    for (kind, shapes) in &shapes {
        assert_eq!(*shapes, wanted[kind], "{kind} have another shape than without lies");
    }
}

/// The shapes of all objects at the end of a cell, by kind.
type Shapes = BTreeMap<&'static str, Vec<String>>;

/// The shapes that a flow leaves behind without lies; computed once per flow.
fn without_lies(flow: Flow) -> Shapes {
    static ALL: OnceLock<Mutex<BTreeMap<Flow, Shapes>>> = OnceLock::new();
    let known = || ALL.get_or_init(Mutex::default).lock().expect("no holder of the lock panics");
    if let Some(shapes) = known().get(&flow) {
        return shapes.clone();
    }
    let shapes = lives(flow, Told::Truth);
    known().insert(flow, shapes.clone());
    shapes
}

/// Runs a cell.
fn lives(flow: Flow, told: Told) -> Shapes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut world = flow.begins(SEED, ActiveLie::of(told)).await;
        flow.happens(&mut world).await;
        world.wait_until_at_rest().await;
        flow.is_whole(&world).await.unwrap_or_else(|seen| panic!("at the end: {seen}"));
        let faults = world.ledger.faults();
        assert!(faults.is_empty(), "{faults:#?}");
        shape::of_all(&world).await
    })
}
