//! Decides which objects still need the manager: machines, and objects with its finalizers. Without it no program deletes their VMs, and
//! their deletion never ends. Pure functions; [`super::inventory`] reads the objects.

use std::fmt::Write;

use super::{
    inventory::{Found, Inventory},
    plan::is_machine,
};
use machine_api::names::finalizer;

/// The number of objects that a report names. Further objects are only counted.
const LISTED: usize = 20;

/// The objects that need the manager, machines first.
pub(super) fn dependents(inventory: &Inventory) -> Vec<String> {
    let (machines, others): (Vec<&Found>, Vec<&Found>) = inventory.objects.iter().partition(|found| is_machine(found));
    let others = others.into_iter().filter(|found| found.has_finalizer(finalizer::MACHINE));
    let secrets = inventory.secrets.iter().filter(|found| found.has_finalizer(finalizer::SECRET));
    // The finalizer does not say to which manager a Node belongs.
    let is_alone = inventory.neighbours.is_empty();
    let nodes = inventory.nodes.iter().flatten().filter(|node| is_alone && node.has_finalizer(finalizer::NODE));
    let held = others.chain(secrets).chain(nodes).map(|found| format!("the finalizer of {}", text(found)));
    machines.into_iter().map(text).chain(held).collect()
}

fn text(found: &Found) -> String {
    let place = found.namespace().map_or_else(String::new, |namespace| format!("{namespace}/"));
    format!("{} {place}{}", found.resource.kind, found.name())
}

/// The objects for the terminal, one per line.
pub(super) fn report(dependents: &[String]) -> String {
    let mut report = String::new();
    for dependent in dependents.iter().take(LISTED) {
        let _ = writeln!(report, "left: {dependent}");
    }
    if let more @ 1.. = dependents.len().saturating_sub(LISTED) {
        let _ = writeln!(report, "and {more} more");
    }
    report
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use machine_api::kind::Kind;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cli::{
        cluster_objects::{Resource, SECRETS},
        uninstall::inventory::NODES,
    };

    fn found(resource: Resource, name: &str, finalizers: &[&str]) -> Found {
        let namespace = (resource != NODES).then_some("mcm");
        let metadata = json!({"name": name, "namespace": namespace, "finalizers": finalizers});
        let object: DynamicObject = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        Found { resource, object }
    }

    fn objects(kind: Kind, finalizers: &[&str]) -> Inventory {
        Inventory { objects: vec![found(Resource::of_kind(kind), "a", finalizers)], ..Inventory::default() }
    }

    #[rstest]
    #[case::nothing(Inventory::default(), &[])]
    #[case::a_machine_without_finalizer(objects(Kind::Machine, &[]), &["Machine mcm/a"])]
    #[case::a_class_in_use(objects(Kind::MachineClass, &[finalizer::MACHINE]), &["the finalizer of MachineClass mcm/a"])]
    #[case::a_class_without_finalizer(objects(Kind::MachineClass, &[]), &[])]
    #[case::a_finalizer_of_another_program(objects(Kind::MachineDeployment, &["example.com/other"]), &[])]
    #[case::a_secret(
        Inventory { secrets: vec![found(SECRETS, "s", &[finalizer::SECRET])], ..Inventory::default() },
        &["the finalizer of Secret mcm/s"]
    )]
    #[case::a_node(
        Inventory { nodes: Some(vec![found(NODES, "n", &[finalizer::NODE]), found(NODES, "m", &[])]), ..Inventory::default() },
        &["the finalizer of Node n"]
    )]
    #[case::a_node_that_may_be_of_another_manager(
        Inventory {
            nodes: Some(vec![found(NODES, "n", &[finalizer::NODE])]), neighbours: ["other".to_owned()].into(), ..Inventory::default()
        },
        &[]
    )]
    fn what_needs_the_manager_is_found(#[case] inventory: Inventory, #[case] expected: &[&str]) {
        assert_eq!(dependents(&inventory), expected);
    }

    #[rstest]
    #[case(0, 0, None)]
    #[case(20, 20, None)]
    #[case(23, 21, Some("and 3 more\n"))]
    fn pk_042_at_most_20_objects_are_named(#[case] number: usize, #[case] lines: usize, #[case] end: Option<&str>) {
        let dependents: Vec<String> = (0..number).map(|index| format!("Machine mcm/{index}")).collect();
        let report = report(&dependents);
        assert_eq!(report.lines().count(), lines);
        assert!(end.is_none_or(|end| report.ends_with(end)), "{report}");
    }
}
