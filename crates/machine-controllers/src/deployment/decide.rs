//! Decides what to do for a deployment now.
//!
//! Source: spec/deployment-and-set §7.1, §9.3, §10, §13.3 with D-18 (a frozen deployment may shrink but not grow).
//! Pure: the same observation always gives the same plan. The status is decided afterwards, when the effects have been
//! carried out ([`super::status::decide_status`]).

use std::time::Duration;

use super::{
    fleet::{Fleet, SetState, owner},
    hash_label::{self, Labelling},
    history, in_place, node_side_effects,
    observe::DeploymentObservation,
    plan::{Effect, Next, Plan},
    recreate,
    revision::{self, NewSet},
    rollback, rolling, scaling,
    settings::OldSets,
    trigger, validity,
};
use crate::{
    set::{
        ownership::Standing,
        patches::{has_finalizer, is_orphaning},
    },
    snapshots::Metadata,
};
use machine_api::{names::label, v1alpha1::StrategyType};

/// Decides the plan for the deployment.
pub fn decide(seen: &DeploymentObservation) -> Plan {
    let mut plan = Plan::default();
    let meta = seen.deployment.metadata();
    if meta.is_deleting() {
        end_deployment(seen, &mut plan);
        return plan;
    }
    if !validity::deployment_errors(seen).is_empty() {
        return plan;
    }
    if !has_finalizer(meta) {
        plan.push("finalizer/add", Effect::AddFinalizer);
    }
    if settle_ownership(seen, &mut plan) {
        plan.next = Next::After(Duration::ZERO, "sets were adopted");
        return plan;
    }
    if trigger::apply(seen, &mut plan) {
        plan.next = Next::After(Duration::ZERO, "machines were marked");
        return plan;
    }
    let fleet = Fleet::of(seen);
    if hash_label::step(&fleet, &mut plan) == Labelling::UnderWay {
        return plan;
    }
    bring_to_size(seen, &fleet, &mut plan);
    node_side_effects::combine(&mut plan);
    if let Some(left) = fleet.next_available() {
        plan.next = plan.next.or_earlier(Next::After(left, "a machine will have been Ready for long enough"));
    }
    if let Some(left) = fleet.settling().filter(|_| fleet.is_rolling() || fleet.all().any(SetState::may_be_making)) {
        plan.next = plan.next.or_earlier(Next::After(left, "a set is to see its size"));
    }
    if is_frozen(meta) {
        let is_sized = plan.steps.iter().any(|step| matches!(step.effect, Effect::ScaleSet { .. }));
        if fleet.new.is_none() && !is_sized {
            // A rollout that would shrink the old sets must not start. Surplus machines are deleted all the same: the
            // freeze ends when they are gone.
            scaling::step(&fleet, &mut plan);
        }
        plan.steps.retain(|step| step.rule == in_place::REPAIR || !step.effect.grows());
    }
    plan
}

/// Whether the overshoot guard has frozen the object. The label counts even when the guard is switched off
/// (decisions.md 34).
pub fn is_frozen(meta: Metadata<'_>) -> bool {
    meta.labels.get(label::FREEZE).is_some_and(|value| value == "True")
}

fn bring_to_size(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    in_place::hand_over::finish(seen, fleet, plan);
    if in_place::repair(fleet, plan) {
        return;
    }
    in_place::unblock_growth(fleet, plan);
    if seen.settings.old_sets == OldSets::Synced {
        revision::sync_old_sets(fleet, plan);
    }
    if let Some(new) = &fleet.new
        && revision::keep_in_line(fleet, new, plan) == NewSet::Pending
    {
        return;
    }
    let deployment = &seen.deployment;
    if deployment.is_paused() {
        scaling::step(fleet, plan);
        if deployment.rollback_to().is_none() {
            history::clean_up(fleet, plan);
        }
    } else if let Some(request) = deployment.rollback_to() {
        rollback::step(seen, fleet, request.revision.into(), plan);
    } else if scaling::is_due(fleet) {
        scaling::step(fleet, plan);
    } else {
        match deployment.strategy().strategy_type {
            StrategyType::RollingUpdate => roll(seen, fleet, plan),
            StrategyType::Recreate => recreate(seen, fleet, plan),
            StrategyType::InPlaceUpdate => update_in_place(seen, fleet, plan),
            // Validation has refused these already.
            StrategyType::Unset | StrategyType::Other(_) => {}
        }
    }
}

fn roll(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.new.is_none() {
        revision::make(seen, fleet, rolling::new_target(fleet, 0), plan);
        return;
    }
    node_side_effects::taint_nodes(seen, fleet, plan);
    if fleet.is_rolling() {
        node_side_effects::disable_scale_down(seen, fleet, plan);
    }
    if !rolling::step(fleet, plan) {
        finish(seen, fleet, plan);
    }
    node_side_effects::mark_sets(seen, fleet, plan);
}

fn recreate(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.is_rolling() {
        node_side_effects::disable_scale_down(seen, fleet, plan);
    }
    // Removes the taints of a rolling update that was abandoned; old machines are deleted anyway.
    node_side_effects::untaint_nodes(seen, fleet, plan);
    if recreate::step(seen, fleet, plan) == recreate::Stage::Reached {
        finish(seen, fleet, plan);
    }
    node_side_effects::mark_sets(seen, fleet, plan);
}

fn update_in_place(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    if in_place::step(seen, fleet, plan) == in_place::Stage::Reached {
        finish(seen, fleet, plan);
    }
    node_side_effects::mark_sets(seen, fleet, plan);
}

/// Cleans up after a complete rollout.
fn finish(seen: &DeploymentObservation, fleet: &Fleet<'_>, plan: &mut Plan) {
    if fleet.is_complete() {
        node_side_effects::enable_scale_down(seen, fleet, plan);
        history::clean_up(fleet, plan);
    }
}

/// Releases and adopts sets; returns whether any set is adopted.
fn settle_ownership(seen: &DeploymentObservation, plan: &mut Plan) -> bool {
    let owner = owner(&seen.deployment);
    let mut adopts = false;
    for set in seen.sets.iter().map(|seen| &seen.set).chain(&seen.orphans) {
        match owner.standing(set.metadata()) {
            Standing::Release => {
                plan.push("ownership/release", Effect::ReleaseSet(set.clone()));
            }
            Standing::Adopt => {
                adopts = true;
                plan.push("ownership/adopt", Effect::AdoptSet(set.clone()));
            }
            Standing::Claimed | Standing::Foreign => {}
        }
    }
    adopts
}

/// Deletes the sets of a deployment that is being deleted, then removes the finalizer.
fn end_deployment(seen: &DeploymentObservation, plan: &mut Plan) {
    if is_orphaning(seen.deployment.metadata()) {
        return;
    }
    if !has_finalizer(seen.deployment.metadata()) {
        return;
    }
    if seen.sets.is_empty() {
        plan.push("finalizer/remove", Effect::RemoveFinalizer);
    }
    for set in seen.sets.iter().filter(|seen| !seen.set.is_deleting()) {
        plan.push("deletion/deployment", Effect::delete(&set.set));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        deployment::{observe::SetSeen, testing::*},
        set::testing::{Building, selector},
    };
    use controller_runtime::snapshot::Snapshot;
    use kube_values::duration::GoDuration;
    use machine_api::{
        names::annotation,
        v1alpha1::{MachineDeployment, MachineDeploymentStrategy, OrchestrationType},
    };

    /// A deployment whose revision is already set.
    fn known(replicas: i32, surge: i32, unavailable: i32) -> Building<MachineDeployment> {
        deployment(replicas, surge, unavailable).annotation(annotation::REVISION, "1")
    }

    fn orphaning(deployment: Building<MachineDeployment>) -> MachineDeployment {
        let orphan =
            |d: &mut MachineDeployment| d.metadata.finalizers.get_or_insert_default().push("orphan".to_owned());
        deployment.deleting().with(orphan).build()
    }

    fn older(replicas: i32) -> SetSeen {
        let available = usize::try_from(replicas).unwrap();
        seen_set(set_of_class("md-older", "older", replicas, -3000), available)
    }

    fn recreating(replicas: i32) -> Building<MachineDeployment> {
        known(replicas, 0, 0).with(|d| {
            d.spec.strategy = MachineDeploymentStrategy {
                strategy_type: StrategyType::Recreate,
                ..MachineDeploymentStrategy::default()
            };
        })
    }

    fn rules(seen: &DeploymentObservation) -> Vec<String> {
        let named = |step: &super::super::plan::Step| match &step.effect {
            Effect::ScaleSet { set, to, .. } => format!("{} {} {to}", step.rule, set.name()),
            Effect::CreateSet(set) => format!("{} {}", step.rule, set.spec.replicas),
            _ => step.rule.to_owned(),
        };
        decide(seen).steps.iter().map(named).collect()
    }

    fn revised(mut seen: SetSeen, revision: &str) -> SetSeen {
        let annotations = seen.set.to_mut().metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::REVISION.to_owned(), revision.to_owned());
        seen
    }

    #[rstest]
    #[case::s_md_01_all_is_well(known(3, 1, 0).build(), vec![new(3, 3)], &[])]
    #[case::s_md_02_the_first_set_is_made(known(3, 1, 0).build(), vec![], &["revision/create 3"])]
    #[case::s_md_03_an_empty_selector_makes_nothing(
        known(3, 1, 0).with(|d| d.spec.selector = Some(selector(&[]))).build(), vec![], &[])]
    #[case::s_md_04_deletion_takes_the_sets_along(known(3, 1, 0).deleting().build(), vec![new(3, 3)], &["deletion/deployment"])]
    #[case::s_md_04_then_the_finalizer_goes(known(3, 1, 0).deleting().build(), vec![], &["finalizer/remove"])]
    #[case::sets_stay_that_are_to_be_orphaned(orphaning(known(3, 1, 0)), vec![old(1, 1), new(3, 3)], &[])]
    #[case::the_finalizer_stays_until_the_garbage_collector_is_done(orphaning(known(3, 1, 0)), vec![], &[])]
    #[case::s_md_14_both_sets_go(
        known(3, 1, 0).deleting().build(), vec![old(1, 1), new(3, 3)], &["deletion/deployment"; 2])]
    #[case::s_md_05_an_unknown_strategy_does_nothing(
        known(3, 1, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::from("Dummy")).build(), vec![], &[])]
    #[case::s_roll_15_recreate_sizes_the_new_set_at_once(
        recreating(5).build(), vec![revised(old(0, 0), "0"), new(2, 2)], &["recreate/new md-new 5"])]
    #[case::s_md_06_recreate_makes_the_first_set(recreating(5).build(), vec![], &["revision/create 5"])]
    #[case::s_md_07_recreate_empties_the_old_set_first(recreating(5).build(), vec![old(5, 5)], &["recreate/old md-old 0"])]
    #[case::s_md_08_then_the_new_set_is_made(recreating(5).build(), vec![old(0, 0)], &["revision/create 5"])]
    #[case::s_md_09_a_new_class_makes_a_second_set(known(3, 1, 0).build(), vec![old(3, 3)], &["revision/create 1"])]
    #[case::s_md_10_a_paused_deployment_makes_none(
        known(3, 1, 0).with(|d| d.spec.paused = true).build(), vec![old(3, 3)], &[])]
    #[case::s_md_15_a_hot_part_is_copied(
        known(3, 1, 0).with(|d| {
            d.spec.template.spec.node_template.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        }).build(), vec![new(3, 3)], &["revision/sync"])]
    #[case::s_md_16_a_timeout_is_copied(
        known(3, 1, 0).with(|d| d.spec.template.spec.configuration.drain_timeout = Some(GoDuration::from_secs(1))).build(),
        vec![new(3, 3)], &["revision/sync"])]
    #[case::s_md_19_min_ready_seconds_are_copied(
        known(3, 1, 0).with(|d| d.spec.min_ready_seconds = 7).build(), vec![new(3, 3)], &["revision/sync"])]
    #[case::s_md_21_no_selector_does_nothing(known(3, 1, 0).with(|d| d.spec.selector = None).build(), vec![], &[])]
    #[case::the_revision_is_told(deployment(3, 1, 0).build(), vec![new(3, 3)], &["revision/deployment"])]
    #[case::s_roll_21_the_old_set_shrinks(
        known(3, 1, 0).build(), vec![revised(old(3, 3), "0"), new(1, 1)], &["rolling/old md-old 2"])]
    #[case::s_roll_24(known(10, 3, 2).build(), vec![revised(old(10, 10), "0"), new(3, 0)], &["rolling/old md-old 8"])]
    #[case::s_roll_20_nothing_to_spare(known(3, 1, 0).build(), vec![revised(old(3, 3), "0"), new(1, 0)], &[])]
    #[case::d_18_a_frozen_deployment_makes_no_set(known(3, 1, 0).label("freeze", "True").build(), vec![old(3, 3)], &[])]
    #[case::d_18_a_frozen_deployment_shrinks_before_its_rollout_has_begun(
        known(1, 1, 0).label("freeze", "True").build(), vec![revised(old(5, 5), "0")], &["scaling/only md-old 1"])]
    // Seed 501271: the deployment stayed frozen forever.
    #[case::d_18_also_with_several_old_sets_and_updates_in_place(
        known(2, 0, 0).label("freeze", "True").with(|d| d.spec.strategy = in_place(1, 0, OrchestrationType::Auto)).build(),
        vec![revised(old(4, 4), "0"), revised(older(2), "0")], &["scaling/shrink md-old 1"])]
    #[case::d_18_a_frozen_deployment_does_not_grow(
        known(5, 1, 0).label("freeze", "True").build(), vec![new(3, 3)], &[])]
    #[case::d_18_a_frozen_deployment_may_shrink(
        known(2, 1, 0).label("freeze", "True").build(), vec![revised(new(3, 3), "1")], &["rolling/new md-new 2"])]
    fn a_deployment_is_decided_on(
        #[case] deployment: MachineDeployment,
        #[case] sets: Vec<SetSeen>,
        #[case] expected: &[&str],
    ) {
        assert_eq!(rules(&seeing_sets(deployment, sets)), expected);
    }

    /// A rolling update was running; then the strategy became Recreate and the template was changed back.
    #[test]
    fn recreate_removes_the_marks_of_a_rolling_update_from_the_set_that_is_new_again() {
        use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};

        use machine_api::names::taint;
        let ours = Taint {
            key: taint::PREFER_NO_SCHEDULE.to_owned(),
            value: Some("True".to_owned()),
            effect: "PreferNoSchedule".to_owned(),
            time_added: None,
        };
        let mut node = Node { metadata: crate::set::testing::meta("node"), ..Node::default() };
        node.spec = Some(NodeSpec { taints: Some(vec![ours]), ..NodeSpec::default() });
        let mut set = new(1, 1);
        let machine = set.machines[0].to_mut();
        machine.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), "node".to_owned());
        let annotations = set.set.to_mut().metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::PREFER_NO_SCHEDULE.to_owned(), "True".to_owned());
        let mut seen = seeing_sets(recreating(1).build(), vec![set]);
        seen.nodes = Some([("node".to_owned(), node.clone().into())].into());
        assert_eq!(rules(&seen), ["taint/new"]);
        node.spec = None;
        seen.nodes = Some([("node".to_owned(), node.into())].into());
        assert_eq!(rules(&seen), ["taint/marker"]);
    }

    #[test]
    fn s_roll_19_an_unknown_strategy_has_no_target_and_is_reported() {
        let unknown = known(3, 1, 0).with(|d| d.spec.strategy.strategy_type = StrategyType::from("Dummy"));
        let seen = seeing_sets(unknown.build(), vec![revised(old(3, 3), "0"), revised(new(0, 0), "1")]);
        assert_eq!(rules(&seen), Vec::<String>::new());
        // No set would be sized either if validation let the strategy through.
        let mut plan = Plan::default();
        bring_to_size(&seen, &Fleet::of(&seen), &mut plan);
        assert_eq!(plan.steps, []);
        let told = super::super::status::decide_status(&seen, &super::super::status::Report::default());
        let text = serde_json::to_string(&told).unwrap();
        assert!(text.contains("FailedValidation") && text.contains("Dummy"), "{text}");
    }

    #[test]
    fn s_scale_11_a_paused_rollout_is_scaled_in_proportion_and_goes_no_further() {
        let mut seen = seeing_sets(known(10, 2, 0).build(), vec![revised(old(6, 6), "0"), new(6, 6)]);
        let deployment = seen.deployment.to_mut();
        deployment.spec.paused = true;
        deployment.spec.replicas = 5;
        assert_eq!(rules(&seen), ["scaling/shrink md-old 3", "scaling/shrink md-new 4"]);
    }

    #[test]
    fn a_set_whose_name_is_taken_is_a_collision() {
        let mut seen = seeing_sets(known(3, 1, 0).build(), vec![]);
        seen.namesake = Some(set_of_class("other", "x", 1, 0).into());
        assert_eq!(rules(&seen), ["revision/collision"]);
    }

    #[test]
    fn orphan_sets_that_fit_are_adopted_first() {
        let mut seen = seeing_sets(known(3, 1, 0).build(), vec![]);
        let orphan = Building(set_of_class("md-old", "old", 3, -2000)).no_owner().build();
        seen.orphans = vec![orphan.into()];
        assert_eq!(rules(&seen), ["ownership/adopt"]);
    }

    #[test]
    fn s_roll_27_a_complete_rollout_is_cleared_up() {
        let deployment = known(3, 1, 0).with(|d| d.spec.revision_history_limit = Some(0)).build();
        assert_eq!(rules(&seeing_sets(deployment, vec![revised(old(0, 0), "0"), new(3, 3)])), ["history/surplus"]);
    }
}
