//! Rows of spec/machine-controller §17.1, §17.12 and §17.13 that are decided in this room.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::{
    decide::decide,
    observation::{Call, DrainState, Freeze, NodeView, Observation},
    plan::{Next, Plan},
    routing::after_class,
    testing::*,
};
use crate::{
    api::v1alpha1::{Machine, MachineClass, MachinePhase, NodeTemplate, OperationState, OperationType},
    cluster::store::Change,
    controllers::views::ControlViews,
};

fn on_a_node(machine: Machine, ready: &str, second: i64) -> Observation {
    let node: Node = node(vec![condition("Ready", ready)]);
    let mut seen = seen(machine, second);
    seen.node = NodeView::Ours(Arc::new(node));
    seen
}

#[test]
fn mc_258_while_frozen_nobody_is_judged_by_an_old_view() {
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
    let mut leaving = super::deletion_tests::draining(200);
    for seen in [&mut new, &mut leaving] {
        seen.drain = DrainState::Warming;
        seen.attachments = None;
    }
    assert_eq!(starts(&decide(&new)), Some(Call::Status), "{:?}", decide(&new));
    let plan = decide(&leaving);
    assert_eq!((plan.rule, starts(&plan)), ("drain-awaits-views", None));
}

#[test]
fn mc_265_a_changed_capacity_wakes_the_machines_of_the_class() {
    let views = ControlViews::default();
    views.machines.apply(running());
    let class = |capacity: &str| {
        let mut class = MachineClass::default();
        class.metadata.name = Some("c".to_owned());
        class.metadata.namespace = Some("ns".to_owned());
        let quantity = k8s_openapi::apimachinery::pkg::api::resource::Quantity(capacity.to_owned());
        let template =
            NodeTemplate { virtual_capacity: [("x/y".to_owned(), quantity)].into(), ..NodeTemplate::default() };
        class.node_template = Some(template);
        Some(Arc::new(class))
    };
    let woken = |old, new| after_class(&Change { old, new }, &views).len();
    assert_eq!((woken(class("1"), class("2")), woken(class("1"), class("1"))), (1, 0));
}
