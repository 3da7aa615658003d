//! Rows of spec/machine-controller §17.1, §17.12 and §17.13 that are decided in this module.

use crate::machine::{
    decide::decide,
    observation::{Call, DrainState, Freeze, NodeView, Observation},
    plan::{Effect, Next, Plan, deletion_stage::DeletionStage},
    testing::*,
};
use machine_api::v1alpha1::{Machine, MachinePhase, OperationState, OperationType};

fn on_a_node(machine: Machine, ready: &str, second: i64) -> Observation {
    let mut seen = seen(machine, second);
    seen.node = NodeView::Ours(node(vec![condition("Ready", ready)]).into());
    seen
}

#[test]
fn mc_258_while_frozen_nothing_is_decided_on_an_outdated_store() {
    let ill = in_phase(MachinePhase::Unknown, 0, OperationType::HealthCheck, OperationState::Processing);
    for machine in [running(), ill] {
        let mut seen = on_a_node(machine, "False", 900);
        assert!(!decide(&seen).effects.is_empty(), "the case means something: {:?}", decide(&seen));
        seen.freeze = Freeze::Frozen;
        assert_eq!(decide(&seen), Plan::wait("frozen", Next::Settled));
    }
}

#[test]
fn mc_009_while_the_pods_are_not_known_creations_go_on_and_drains_wait() {
    let mut new = seen(machine(), 10);
    let mut leaving = draining(200);
    for seen in [&mut new, &mut leaving] {
        seen.drain = DrainState::Warming;
        seen.attachments = None;
    }
    assert_eq!(starts(&decide(&new)), Some(Call::Status), "{:?}", decide(&new));
    let plan = decide(&leaving);
    assert_eq!((plan.rule, starts(&plan)), ("drain-awaits-views", None));
}

#[test]
fn mc_265_a_machine_that_is_being_deleted_gets_no_other_capacity_on_its_node() {
    let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity("2".to_owned());
    let gets_it = |machine: Machine| {
        let mut seen = on_a_node(machine, "True", 200);
        seen.class.virtual_capacity = Some([("x/y".to_owned(), quantity.clone())].into());
        let effects = decide(&seen).effects;
        effects.iter().any(|effect| matches!(effect, Effect::MirrorCapacity(_)))
    };
    assert!(gets_it(running()), "who is woken, see `routing`");
    for leaving in [deleted_at(running(), 100), resting(DeletionStage::Drain)] {
        assert!(!gets_it(leaving));
    }
}
