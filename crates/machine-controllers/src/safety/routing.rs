//! The changes that wake the collector. A class is woken by its own changes and by the end of a machine; a Node by its
//! own changes and by the machines that name it.
//!
//! Keys with a namespace are classes, keys without are Nodes. Source: spec/machine-controller §2.3, §9.1, §9.2.

use std::{sync::Arc, time::Duration};

use super::orphans::tells_of_several_vms;
use crate::{
    snapshots::{MachineSnapshot, NodeSnapshot},
    wakes::Wake,
};
use controller_runtime::{key::ObjectKey, snapshot::Snapshot, store::Change};
use machine_api::{
    names::{annotation, label},
    v1alpha1::MachineClass,
};

/// Machines often end in large numbers at once, and one list of the provider serves all of them.
const AFTER_A_MACHINE: Duration = Duration::from_secs(5);
/// Delay after a mark. It keeps two managers of one target cluster, each without the other's machines, from racing over
/// a Node.
const AFTER_A_MARK: Duration = Duration::from_secs(60);

/// The wake-ups after a change of a class.
pub fn after_class(change: &Change<Arc<MachineClass>>) -> Vec<Wake> {
    let is_news = match (&change.old, &change.new) {
        (Some(old), Some(new)) => old.metadata.generation != new.metadata.generation,
        _ => true,
    };
    change.newest().filter(|_| is_news).map(|class| Wake::now(ObjectKey::of(&**class))).into_iter().collect()
}

/// The wake-ups after a change of a machine: its class if the machine is gone or a driver has found several VMs; its
/// Nodes if it starts or stops naming them.
pub fn after_machine(change: &Change<MachineSnapshot>) -> Vec<Wake> {
    let mut woken = Vec::new();
    let Some(newest) = change.newest() else { return woken };
    let class = ObjectKey::new(newest.namespace(), newest.class_ref().name.clone());
    let says = |machine: &MachineSnapshot| tells_of_several_vms(machine);
    if change.new.is_none() {
        woken.push(Wake { after: AFTER_A_MACHINE, ..Wake::now(class) });
    } else if change.new.as_ref().is_some_and(says) && !change.old.as_ref().is_some_and(says) {
        woken.push(Wake::now(class));
    }
    let node =
        |machine: Option<&MachineSnapshot>| machine.and_then(|machine| machine.labels().get(label::NODE).cloned());
    let (before, now) = (node(change.old.as_ref()), node(change.new.as_ref()));
    if before != now {
        let named = [before, now].into_iter().flatten().filter(|name| !name.is_empty());
        woken.extend(named.map(|name| Wake::now(ObjectKey::cluster_scoped(name))));
    }
    woken
}

/// The wake-ups after a change of a Node.
pub fn after_node(change: &Change<NodeSnapshot>) -> Vec<Wake> {
    let Some(new) = &change.new else { return Vec::new() };
    let marked = |node: &NodeSnapshot| node.annotation(annotation::NOT_MANAGED).is_some();
    let begins = change.old.as_ref().is_none_or(|old| old.uid() != new.uid() || old.is_deleting() != new.is_deleting());
    let is_touched =
        change.old.as_ref().is_some_and(|old| old.is_held() != new.is_held() || marked(old) != marked(new));
    match (begins, is_touched) {
        (true, _) => vec![Wake::now(new.key())],
        (false, true) => vec![Wake { after: AFTER_A_MARK, ..Wake::now(new.key()) }],
        (false, false) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
    use rstest::rstest;

    use super::*;
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;

    fn machine(node: &str, description: &str) -> MachineSnapshot {
        let mut machine = Machine::default();
        machine.metadata.name = Some("m".to_owned());
        machine.metadata.namespace = Some("ns".to_owned());
        machine.spec.class.name = "c".to_owned();
        if !node.is_empty() {
            machine.labels_mut().insert(label::NODE.to_owned(), node.to_owned());
        }
        machine.status.last_operation.description = description.to_owned();
        machine.into()
    }

    fn names(woken: Vec<Wake>) -> Vec<String> {
        woken.into_iter().map(|wake| wake.key.to_string()).collect()
    }

    #[rstest]
    #[case::mc_031_its_end_wakes_class_and_node(Some(machine("n", "")), None, &["ns/c", "n"])]
    #[case::mc_247_a_driver_saw_several_vms(
        Some(machine("n", "")), Some(machine("n", "Cloud provider message - machine codes error: code = [OutOfRange]")), &["ns/c"])]
    #[case::it_still_says_so(Some(machine("n", "OutOfRange")), Some(machine("n", "OutOfRange")), &[])]
    #[case::mc_253_it_takes_a_node(Some(machine("", "")), Some(machine("n", "")), &["n"])]
    #[case::it_begins_with_one(None, Some(machine("n", "")), &["n"])]
    #[case::nothing_of_interest(Some(machine("n", "")), Some(machine("n", "x")), &[])]
    fn a_machine_wakes(
        #[case] old: Option<MachineSnapshot>,
        #[case] new: Option<MachineSnapshot>,
        #[case] woken: &[&str],
    ) {
        assert_eq!(names(after_machine(&Change { old, new })), woken);
    }

    fn node(change: fn(&mut Node)) -> NodeSnapshot {
        let mut node = Node::default();
        node.metadata.name = Some("n".to_owned());
        change(&mut node);
        node.into()
    }

    #[rstest]
    #[case::new(None, Some(node(|_| {})), &["n"])]
    #[case::a_heartbeat(Some(node(|_| {})), Some(node(|node| node.status = Some(k8s_openapi::api::core::v1::NodeStatus::default()))), &[])]
    #[case::deleted(Some(node(|_| {})), Some(node(|node| node.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH)))), &["n"])]
    #[case::marked(Some(node(|_| {})), Some(node(|node| drop(node.annotations_mut().insert(annotation::NOT_MANAGED.to_owned(), "1".to_owned())))), &["n"])]
    #[case::gone(Some(node(|_| {})), None, &[])]
    fn a_node_wakes_itself(
        #[case] old: Option<NodeSnapshot>,
        #[case] new: Option<NodeSnapshot>,
        #[case] woken: &[&str],
    ) {
        assert_eq!(names(after_node(&Change { old, new })), woken);
    }
}
