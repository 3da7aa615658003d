//! Decides what to do for a set now.
//!
//! Source: spec/deployment-and-set §6.1. Pure: the same observation always gives the same plan. The status is decided
//! afterwards, when the effects have been carried out ([`super::status::decide_status`]).

use std::time::Duration;

use super::{
    auto_preservation::keep_failed,
    counts::is_terminating,
    new_machine::effective_creation_timeout,
    observe::SetObservation,
    ownership::{Owner, Standing},
    patches::{has_finalizer, is_orphaning},
    plan::{Effect, Next, Plan},
    replicas::{BURST, keep_replicas},
    template_sync::sync_template,
    validity,
};
use crate::snapshots::MachineSnapshot;
use controller_runtime::snapshot::Snapshot;

/// Decides the plan for the set.
pub fn decide(seen: &SetObservation) -> Plan {
    let mut plan = Plan::default();
    if seen.set.is_deleting() {
        end_set(seen, &mut plan);
        return plan;
    }
    if !validity::set_errors(seen).is_empty() {
        return plan;
    }
    if !has_finalizer(seen.set.metadata()) {
        plan.push("finalizer/add", Effect::AddFinalizer);
    }
    if settle_ownership(seen, &mut plan) {
        // The number of missing machines is known only after the orphans are adopted.
        plan.next = Next::After(Duration::ZERO, "machines were adopted");
        return plan;
    }
    let claimed = seen.claimed();
    sync_template(&seen.set, &claimed, &mut plan);
    let claimed = keep_failed(&seen.set, claimed, seen.now, &mut plan);
    let left = keep_replicas(seen, &claimed, &mut plan);
    if left > 0 {
        plan.next = Next::After(Duration::ZERO, "more machines to create or delete");
    }
    let creates = plan.steps.iter().any(|step| matches!(step.effect, Effect::CreateMachine(_)));
    if let (true, Err(text)) = (creates, effective_creation_timeout(&seen.set)) {
        tracing::warn!(set = seen.set.name(), error = text, "effective creation timeout is no duration; not applied");
    }
    plan
}

/// Releases and adopts machines; returns whether any machine is adopted.
fn settle_ownership(seen: &SetObservation, plan: &mut Plan) -> bool {
    let owner = Owner::of_set(&seen.set);
    let mut adopts = false;
    for machine in seen.machines.iter().chain(&seen.orphans) {
        match owner.standing(machine.metadata()) {
            Standing::Release => plan.push("ownership/release", Effect::Release(machine.clone())),
            Standing::Adopt => {
                adopts = true;
                plan.push("ownership/adopt", Effect::Adopt(machine.clone()));
            }
            Standing::Claimed | Standing::Foreign => {}
        }
    }
    adopts
}

impl SetObservation {
    /// The machines that belong to the set.
    pub fn claimed(&self) -> Vec<MachineSnapshot> {
        let owner = Owner::of_set(&self.set);
        let is_claimed = |machine: &&MachineSnapshot| owner.standing(machine.metadata()) == Standing::Claimed;
        self.machines.iter().filter(is_claimed).cloned().collect()
    }
}

/// Deletes the machines of a set that is being deleted, unless they must stay, and then removes the finalizer. A
/// machine may have lost its owner meanwhile, so it is deleted only in its observed version.
fn end_set(seen: &SetObservation, plan: &mut Plan) {
    if is_orphaning(seen.set.metadata()) {
        return;
    }
    if !has_finalizer(seen.set.metadata()) {
        return;
    }
    if seen.machines.is_empty() {
        plan.push("finalizer/remove", Effect::RemoveFinalizer);
        return;
    }
    let to_delete: Vec<_> = seen.machines.iter().filter(|machine| !is_terminating(machine)).collect();
    for machine in to_delete.iter().take(BURST) {
        let version = machine.resource_version().map(str::to_owned);
        plan.push("deletion/set", Effect::DeleteMachine { machine: machine.target(), version });
    }
    if to_delete.len() > BURST {
        plan.next = Next::After(Duration::ZERO, "more machines to delete");
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::Machine;
    use machine_api::v1alpha1::MachineSet;

    fn orphaning(set: Building<MachineSet>) -> MachineSet {
        let orphan = |s: &mut MachineSet| s.metadata.finalizers.get_or_insert_default().push("orphan".to_owned());
        set.deleting().with(orphan).build()
    }

    fn rules(plan: &Plan) -> Vec<&'static str> {
        plan.steps.iter().map(|step| step.rule).collect()
    }

    #[rstest]
    #[case::s_ms_20_three_are_created(set(3).build(), vec![], &["replicas/missing"; 3])]
    #[case::s_ms_22_a_set_without_class_creates_nothing(
        set(3).with(|s| s.spec.template.spec.class.name.clear()).build(), vec![], &[])]
    #[case::s_own_12_an_empty_selector_claims_nothing(
        set(3).with(|s| s.spec.selector = Some(selector(&[]))).build(), vec![], &[])]
    #[case::s_ms_23_the_finalizer_goes_when_nothing_is_left(set(3).deleting().build(), vec![], &["finalizer/remove"])]
    #[case::s_ms_24_a_deleted_set_takes_its_machines_along(
        set(3).deleting().build(), vec![running("a").build(), running("b").build(), running("c").deleting().build()],
        &["deletion/set", "deletion/set"])]
    #[case::d_48_also_one_whose_labels_do_not_fit(
        set(3).deleting().build(), vec![running("a").label("set", "y").build()], &["deletion/set"])]
    #[case::machines_stay_that_are_to_be_orphaned(orphaning(set(3)), vec![running("a").build()], &[])]
    #[case::the_finalizer_stays_until_the_garbage_collector_is_done(orphaning(set(3)), vec![], &[])]
    #[case::a_deleted_set_without_our_finalizer_does_nothing(
        set(3).deleting().with(|s| s.metadata.finalizers = None).build(), vec![running("a").build()], &[])]
    #[case::a_missing_finalizer_is_put_back(
        set(1).with(|s| s.metadata.finalizers = None).build(), vec![running("a").build()], &["finalizer/add"])]
    #[case::s_own_09_a_machine_that_no_longer_fits_is_released_and_replaced(
        set(1).build(), vec![running("a").label("set", "y").build()], &["ownership/release", "replicas/missing"])]
    fn a_set_is_decided_on(#[case] set: MachineSet, #[case] machines: Vec<Machine>, #[case] expected: &[&str]) {
        assert_eq!(rules(&decide(&seeing(set, machines))), expected);
    }

    #[test]
    fn the_machines_of_a_deleted_set_go_only_as_they_were_seen() {
        let machine = running("a").with(|m| m.metadata.resource_version = Some("7".to_owned())).build();
        let plan = decide(&seeing(set(1).deleting().build(), [machine]));
        let version = |step: &super::super::plan::Step| match &step.effect {
            Effect::DeleteMachine { version, .. } => version.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(plan.steps.iter().map(version).collect::<Vec<_>>(), [Some("7".to_owned())]);
    }

    #[test]
    fn orphans_are_adopted_before_anything_is_created() {
        let mut seen = seeing(set(2).build(), []);
        seen.orphans = vec![running("a").no_owner().snapshot()];
        let plan = decide(&seen);
        assert_eq!(rules(&plan), ["ownership/adopt"]);
        assert_ne!(plan.next, Next::OnChange);
    }

    #[test]
    fn a_large_set_goes_on_at_once() {
        let plan = decide(&seeing(set(1000).build(), []));
        assert_eq!(plan.steps.len(), BURST);
        assert_eq!(plan.next, Next::After(Duration::ZERO, "more machines to create or delete"));
    }

    #[test]
    fn an_observation_and_its_plan_can_be_written_down() {
        let seen = seeing_running(set(1).build(), 2);
        assert!(serde_json::to_string(&seen).unwrap().contains("\"version\":1"));
        assert!(serde_json::to_string(&decide(&seen)).unwrap().contains("replicas/surplus"));
    }
}
