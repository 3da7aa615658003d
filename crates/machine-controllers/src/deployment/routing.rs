//! The deployments that a change wakes. Pure functions over the stores.
//!
//! Source: spec/deployment-and-set §4 without its periodic requeues (decisions.md 38). Two differences from the
//! original: every relevant change of a machine wakes its deployment, because a rollout is decided from the machines
//! themselves; and Nodes wake their deployments, because the taints are kept level-based (D-41).

use std::collections::BTreeSet;

use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use k8s_openapi::api::core::v1::Taint;
use kube_values::selector;
use machine_api::{names::annotation, v1alpha1::StrategyType};

use crate::{
    deployment::{
        in_place::marks::{Marks, is_updated},
        node_side_effects::bears_traces,
        waits,
    },
    set::routing::{matters, set_of},
    snapshots::{DeploymentSnapshot, MachineSnapshot, NodeSnapshot, SetSnapshot},
    views::{BY_CONTROLLER, BY_NAMESPACE, BY_NODE, ControlViews},
    wakes::Wake,
};

/// The deployment itself.
pub fn deployments_of_deployment(change: &Change<DeploymentSnapshot>) -> Vec<Wake> {
    let is_status_alone = |old: &DeploymentSnapshot, new: &DeploymentSnapshot| {
        old.status() != new.status() && old.has_spec_of(new) && old.has_metadata_of(new)
    };
    Wake::by_itself(change, is_status_alone).into_iter().collect()
}

/// The deployment that controls the set, or controlled it before; for an orphan the deployments whose selector matches.
pub fn deployments_of_set(change: &Change<SetSnapshot>, views: &ControlViews) -> Vec<Wake> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    if let (Some(old), Some(new)) = (old, new)
        && old.metadata().resource_version == new.metadata().resource_version
        && old.uid() == new.uid()
    {
        return Vec::new();
    }
    let mut keys: BTreeSet<ObjectKey> =
        [old, new].into_iter().flatten().filter_map(|set| deployment_of(set, views)).map(|d| d.key()).collect();
    if let Some(set) = new
        && set.controller().is_none()
        && !set.is_deleting()
        && old.is_none_or(|old| {
            old.labels() != set.labels() || old.metadata().owner_references != set.metadata().owner_references
        })
    {
        keys.extend(deployments_that_fit(set, views));
    }
    keys.into_iter().map(Wake::soon).collect()
}

/// The deployment of the set that controls the machine, or controlled it before.
pub fn deployments_of_machine(change: &Change<MachineSnapshot>, views: &ControlViews) -> Vec<Wake> {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    if let (Some(old), Some(new)) = (old, new)
        && !matters(old, new)
        && !is_now_updated(old, new)
        && waits::is_stuck(old) == waits::is_stuck(new)
    {
        return Vec::new();
    }
    let keys: BTreeSet<ObjectKey> = [old, new]
        .into_iter()
        .flatten()
        .filter_map(|machine| deployment_of(&set_of(machine, views)?, views))
        .map(|deployment| deployment.key())
        .collect();
    keys.into_iter().map(Wake::soon).collect()
}

/// Whether the machine's update in place has just succeeded. This does not matter to its set.
fn is_now_updated(old: &MachineSnapshot, new: &MachineSnapshot) -> bool {
    is_updated(new) && !is_updated(old)
}

/// The deployments whose machine runs on the Node, if their rollout uses Nodes at all.
pub fn deployments_of_node(change: &Change<NodeSnapshot>, views: &ControlViews) -> Vec<Wake> {
    let Some(new) = &change.new else { return Vec::new() };
    if change.old.as_ref().is_some_and(|old| marks(old) == marks(new)) {
        return Vec::new();
    }
    let keys: BTreeSet<ObjectKey> = views
        .machines
        .by_index(BY_NODE, new.name())
        .iter()
        .filter_map(|machine| deployment_of(&set_of(machine, views)?, views))
        .filter(|deployment| {
            let uid = deployment.uid();
            let is_in_place = deployment.strategy().strategy_type == StrategyType::InPlaceUpdate;
            is_in_place || bears_traces(new) || views.sets.by_index(BY_CONTROLLER, uid).len() > 1
        })
        .map(|deployment| deployment.key())
        .collect();
    keys.into_iter().map(Wake::soon).collect()
}

/// The part of a Node that a rollout reads.
fn marks(node: &NodeSnapshot) -> (&[Taint], [Option<&str>; 2], Marks<'_>) {
    let kept_by = [annotation::SCALE_DOWN_DISABLED, annotation::SCALE_DOWN_DISABLED_BY_MCM];
    (node.taints(), kept_by.map(|key| node.annotation(key)), Marks::of(node))
}

/// The deployment that controls a set: with the right kind, namespace and UID.
pub fn deployment_of(set: &SetSnapshot, views: &ControlViews) -> Option<DeploymentSnapshot> {
    let owner = set.controller().filter(|owner| owner.kind == "MachineDeployment")?;
    let key = ObjectKey::new(set.namespace(), owner.name.clone());
    views.deployments.get(&key).filter(|deployment| deployment.uid() == owner.uid)
}

fn deployments_that_fit(set: &SetSnapshot, views: &ControlViews) -> Vec<ObjectKey> {
    let Some(labels) = Some(set.labels()).filter(|labels| !labels.is_empty()) else { return Vec::new() };
    let namespace = set.namespace().to_owned();
    views
        .deployments
        .by_index(BY_NAMESPACE, &namespace)
        .iter()
        .filter(|deployment| {
            let wanted = deployment.selector();
            wanted.is_some_and(|wanted| !selector::is_empty(wanted) && selector::matches(wanted, labels))
        })
        .map(Snapshot::key)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::{
        api::core::v1::{Node, NodeCondition},
        apimachinery::pkg::apis::meta::v1::{Condition, Time},
    };
    use rstest::rstest;
    use tokio::{sync::mpsc, time::Instant};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        deployment::testing::*,
        set::testing::{Building, at, controller_reference, meta},
    };
    use controller_runtime::queue::{Outcome, WorkQueue};
    use machine_api::v1alpha1::MachineSet;
    use machine_api::{
        names::{label, machine_condition, node_condition},
        v1alpha1::OrchestrationType,
    };
    use std::sync::Arc;

    fn views() -> ControlViews {
        let views = ControlViews::default();
        views.deployments.apply(deployment(1, 1, 0).build());
        views.sets.apply(owned());
        views
    }

    fn owned() -> MachineSet {
        set_of_class("md-new", "new", 1, 0)
    }

    fn changed() -> MachineSet {
        let mut set = owned();
        set.metadata.resource_version = Some("2".to_owned());
        set
    }

    fn owner_is(name: &str, uid: &str) -> MachineSet {
        let mut set = owned();
        set.metadata.owner_references = Some(vec![controller_reference("MachineDeployment", name, uid)]);
        set.metadata.resource_version = Some("3".to_owned());
        set
    }

    fn orphan() -> MachineSet {
        let mut orphan = Building(owned()).no_owner().build();
        orphan.metadata.resource_version = Some("4".to_owned());
        orphan
    }

    #[rstest]
    #[case::s_evt_02_owned_and_added(None, Some(owned()), true)]
    #[case::s_evt_03_deleting_at_first_sight(None, Some(Building(owned()).deleting().build()), true)]
    #[case::s_evt_04_an_orphan_that_fits(None, Some(orphan()), true)]
    #[case::s_evt_05_an_orphan_that_does_not(None, Some(Building(orphan()).label("set", "y").build()), false)]
    #[case::s_evt_06_an_unknown_owner(None, Some(owner_is("other", "uid-other")), false)]
    #[case::s_evt_07_nothing_was_written(Some(owned()), Some(owned()), false)]
    #[case::a_set_is_changed(Some(owned()), Some(changed()), true)]
    #[case::s_evt_08_the_owner_is_lost(Some(owned()), Some(orphan()), true)]
    #[case::s_evt_09_an_orphan_without_news(Some(orphan()), Some(orphan()), false)]
    #[case::s_evt_10_the_owner_changes(Some(owned()), Some(owner_is("other", "uid-other")), true)]
    #[case::s_evt_11_an_orphan_is_removed(Some(orphan()), None, false)]
    #[case::s_evt_12_an_owner_with_another_uid(Some(owner_is("md", "uid-other")), None, false)]
    fn a_set_wakes_its_deployment(
        #[case] old: Option<MachineSet>,
        #[case] new: Option<MachineSet>,
        #[case] wakes: bool,
    ) {
        let change = Change { old: old.map(SetSnapshot::from), new: new.map(SetSnapshot::from) };
        assert_eq!(deployments_of_set(&change, &views()).len(), usize::from(wakes));
    }

    #[test]
    fn s_evt_01_a_deployment_wakes_itself() {
        let change = Change { old: None, new: Some(deployment(1, 1, 0).snapshot()) };
        assert_eq!(deployments_of_deployment(&change), [Wake::now(ObjectKey::new("ns", "md"))]);
    }

    #[test]
    fn a_machine_wakes_the_deployment_behind_its_set() {
        let machine = machines_of(&owned(), 1, 1).remove(0);
        let change = Change { old: None, new: Some(machine.clone()) };
        assert_eq!(deployments_of_machine(&change, &views()), [Wake::soon(ObjectKey::new("ns", "md"))]);
        let unchanged = Change { old: Some(machine.clone()), new: Some(machine) };
        assert_eq!(deployments_of_machine(&unchanged, &views()), []);
    }

    /// A machine of the owned set whose update condition has this reason.
    fn updating(reason: Option<&str>) -> MachineSnapshot {
        let mut machine = machines_of(&owned(), 1, 1).remove(0);
        machine.to_mut().status.conditions = reason
            .map(|reason| NodeCondition {
                type_: node_condition::IN_PLACE_UPDATE.to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                ..NodeCondition::default()
            })
            .into_iter()
            .collect();
        machine
    }

    #[rstest]
    #[case::s_evt_13_no_condition(None, None, false)]
    #[case::s_evt_14_a_failure(None, Some("UpdateFailed"), false)]
    #[case::s_evt_15_a_success(None, Some("UpdateSuccessful"), true)]
    #[case::s_evt_16_a_success_after_the_drain(Some("ReadyForUpdate"), Some("UpdateSuccessful"), true)]
    #[case::s_evt_17_a_success_that_is_known(Some("UpdateSuccessful"), Some("UpdateSuccessful"), false)]
    fn a_machine_updated_in_place_wakes_its_deployment(
        #[case] before: Option<&str>,
        #[case] after: Option<&str>,
        #[case] wakes: bool,
    ) {
        let change = Change { old: Some(updating(before)), new: Some(updating(after)) };
        assert_eq!(deployments_of_machine(&change, &views()).len(), usize::from(wakes));
    }

    #[rstest]
    #[case::a_budget_refuses("Draining", "DrainBlocked", true)]
    #[case::it_allows_the_eviction("DrainBlocked", "Draining", true)]
    #[case::the_drain_goes_on("Draining", "DeletingVM", false)]
    fn a_machine_whose_drain_is_stuck_wakes_its_deployment(
        #[case] before: &str,
        #[case] after: &str,
        #[case] wakes: bool,
    ) {
        let saying = |reason: &str| {
            let mut machine = machines_of(&owned(), 1, 1).remove(0);
            machine.to_mut().status.machine_conditions = vec![Condition {
                type_: machine_condition::PROGRESSING.to_owned(),
                status: "True".to_owned(),
                reason: reason.to_owned(),
                message: String::new(),
                last_transition_time: Time(at(0)),
                observed_generation: None,
            }];
            machine
        };
        let change = Change { old: Some(saying(before)), new: Some(saying(after)) };
        assert_eq!(deployments_of_machine(&change, &views()).len(), usize::from(wakes));
    }

    /// The original wakes a deployment only when the last machine of a recreation is gone. Here every machine that goes
    /// wakes its deployment, which counts the machines itself.
    #[rstest]
    #[case::s_evt_18_of_a_rolling_update(StrategyType::RollingUpdate)]
    #[case::s_evt_19_of_a_recreation_the_last_one_and_those_before(StrategyType::Recreate)]
    fn a_machine_that_is_gone_wakes_its_deployment(#[case] strategy: StrategyType) {
        let views = views();
        let mut of_strategy = deployment(1, 1, 0).with(|d| d.spec.strategy.strategy_type = strategy).build();
        of_strategy.metadata.resource_version = Some("2".to_owned());
        views.deployments.apply(of_strategy);
        let change = Change { old: Some(machines_of(&owned(), 1, 1).remove(0)), new: None };
        assert_eq!(deployments_of_machine(&change, &views), [Wake::soon(ObjectKey::new("ns", "md"))]);
    }

    #[rstest]
    #[case::its_labels(|node: &mut Node| {
        node.metadata.labels = Some([(label::UPDATE_RESULT.to_owned(), "successful".to_owned())].into());
    }, true)]
    #[case::its_heartbeat(|node: &mut Node| node.metadata.resource_version = Some("9".to_owned()), false)]
    fn a_node_of_an_update_in_place_wakes_the_deployment(#[case] change: fn(&mut Node), #[case] wakes: bool) {
        let views = views();
        let strategy = in_place(0, 1, OrchestrationType::Auto);
        let mut of_strategy = deployment(1, 1, 0).with(|d| d.spec.strategy = strategy).build();
        of_strategy.metadata.resource_version = Some("2".to_owned());
        views.deployments.apply(of_strategy);
        let mut machine = machines_of(&owned(), 1, 1).remove(0).to_object();
        machine.metadata.labels.get_or_insert_default().insert(label::NODE.to_owned(), "node".to_owned());
        views.machines.apply(machine);
        let before = Node { metadata: meta("node"), ..Node::default() };
        let mut after = before.clone();
        change(&mut after);
        let change = Change { old: Some(before.into()), new: Some(after.into()) };
        assert_eq!(deployments_of_node(&change, &views).len(), usize::from(wakes));
    }

    #[tokio::test(start_paused = true)]
    async fn s_evt_27_a_wake_up_with_a_delay_comes_after_it() {
        let queue = Arc::new(WorkQueue::for_tests("machinedeployment"));
        let (sender, mut passes) = mpsc::unbounded_channel();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(Arc::clone(&queue).run(1, shutdown.clone(), move |key: ObjectKey| {
            sender.send((key, Instant::now())).unwrap();
            async { Outcome::Settled }
        }));
        let start = Instant::now();
        queue.add_after(ObjectKey::new("ns", "md"), Duration::from_secs(1));
        let (key, at) = passes.recv().await.unwrap();
        assert_eq!((key, at.duration_since(start) >= Duration::from_secs(1)), (ObjectKey::new("ns", "md"), true));
        assert!(passes.is_empty());
        shutdown.cancel();
        running.await.unwrap();
    }
}
