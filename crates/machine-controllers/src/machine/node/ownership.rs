//! Whether a Node with the Node name of a machine belongs to the machine.
//!
//! Three rules, in this order: the Node's provider ID names the machine's instance; the ID names another instance; or the ID
//! proves nothing, and names decide. A Node that is not the machine's is never changed. Source: decisions.md 44.

use std::collections::BTreeMap;

use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use machine_api::names::label;
use machine_driver::{Registry, SameInstance, same_instance::instance_key};

use crate::{
    snapshots::{MachineSnapshot, NodeSnapshot},
    views::{BY_INSTANCE, BY_NODE, ControlViews},
};

/// The owner of a Node, as one machine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The machine itself.
    Ours,
    /// Another owner, for this reason.
    Foreign(String),
    /// The IDs prove nothing, and another machine has the better claim by name, for this reason. The Node is not changed for
    /// this machine, and nothing is concluded about the machine from the Node.
    Contested(String),
}

/// The claim of a machine to a Node, with its evidence.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The machine.
    pub machine: &'a MachineSnapshot,
    /// Whether its provider ID and the Node's name the same instance.
    pub instance: SameInstance,
}

/// The owner of this Node: the machine of this claim, or one of its rivals. Rivals are other machines that have the Node on
/// their label or may have its instance; a machine that claims nothing is no rival.
pub fn owner(claim: &Claim<'_>, node: &NodeSnapshot, rivals: &[Claim<'_>]) -> Owner {
    let others: Vec<&Claim<'_>> = rivals.iter().filter(|rival| rival.machine.uid() != claim.machine.uid()).collect();
    named_by_its_id(claim, node, &others)
        .or_else(|| named_as_anothers(claim, node, &others))
        .unwrap_or_else(|| named_by_label(claim, node, &others))
}

/// The Node's ID names the machine's instance: the Node belongs to the machine, whatever its labels are. Of two machines
/// with the same instance, only one has the Node, so that they don't overwrite each other's changes.
fn named_by_its_id(claim: &Claim<'_>, node: &NodeSnapshot, others: &[&Claim<'_>]) -> Option<Owner> {
    if claim.instance != SameInstance::Same {
        return None;
    }
    let twins = others.iter().filter(|rival| rival.instance == SameInstance::Same);
    Some(match better(claim, node, twins.copied()) {
        Some(twin) => Owner::Contested(format!("machine {} has the same instance and the better claim", twin.name())),
        None => Owner::Ours,
    })
}

/// The Node's ID names another instance, or the instance of another machine.
fn named_as_anothers(claim: &Claim<'_>, node: &NodeSnapshot, others: &[&Claim<'_>]) -> Option<Owner> {
    let (ours, theirs) = (claim.machine.provider_id(), node.provider_id());
    if let Some(rival) = others.iter().find(|rival| rival.instance == SameInstance::Same) {
        return Some(Owner::Foreign(format!(
            "its providerID {theirs:?} names the instance of machine {}",
            rival.machine.name()
        )));
    }
    (claim.instance == SameInstance::Another)
        .then(|| Owner::Foreign(format!("its providerID {theirs:?} names another instance than {ours:?}")))
}

/// The owner when the IDs prove nothing: the label `node` of the machines decides. Among several machines, the owner is the
/// machine that the Node names, or else the older machine.
fn named_by_label(claim: &Claim<'_>, node: &NodeSnapshot, others: &[&Claim<'_>]) -> Owner {
    let labelled =
        others.iter().filter(|rival| rival.instance != SameInstance::Another && has_on_label(rival.machine, node));
    match better(claim, node, labelled.copied()) {
        Some(rival) => Owner::Contested(format!(
            "machine {} has it on its label, too, and the better claim; the ids don't tell whose it is",
            rival.name()
        )),
        None => Owner::Ours,
    }
}

/// The rival with a better claim, in this order: a machine with exactly the Node's ID, since IDs that end alike may still
/// differ; a machine that is not being deleted; the machine that the Node's label names; a machine that has the Node on its
/// own label; the older machine; the first by name.
fn better<'a>(
    claim: &Claim<'_>,
    node: &NodeSnapshot,
    rivals: impl Iterator<Item = &'a Claim<'a>>,
) -> Option<&'a MachineSnapshot> {
    let named = node.label(label::MACHINE_NAME);
    let rank = |machine: &MachineSnapshot| {
        let created = machine.created();
        (
            !has_its_id(machine, node),
            machine.is_deleting(),
            named != Some(machine.name()),
            !has_on_label(machine, node),
            created,
            machine.name().to_owned(),
        )
    };
    rivals
        .map(|rival| rival.machine)
        .min_by_key(|machine| rank(machine))
        .filter(|rival| rank(rival) < rank(claim.machine))
}

/// Whether the machine has exactly the Node's ID. Without an ID it has not.
pub(super) fn has_its_id(machine: &MachineSnapshot, node: &NodeSnapshot) -> bool {
    let id = node.provider_id();
    !id.is_empty() && machine.provider_id().eq_ignore_ascii_case(id)
}

fn has_on_label(machine: &MachineSnapshot, node: &NodeSnapshot) -> bool {
    machine.labels().get(label::NODE).is_some_and(|name| name == node.name())
}

/// Whether a machine's provider ID and another ID name the same instance, by the driver of the machine's class.
pub fn instance_of(machine: &MachineSnapshot, id: &str, views: &ControlViews, drivers: &Registry) -> SameInstance {
    let class = ObjectKey::new(machine.namespace(), machine.class_ref().name.clone());
    let provider = views.classes.get(&class).map(|class| class.provider.clone()).unwrap_or_default();
    drivers.same_instance(&provider, machine.provider_id(), id)
}

/// The owner of this Node, with the rivals from the stores. `same` says whether a machine's provider ID and another ID name
/// the same instance.
pub fn owner_in(
    machine: &MachineSnapshot,
    node: &NodeSnapshot,
    views: &ControlViews,
    same: &dyn Fn(&MachineSnapshot, &str) -> SameInstance,
) -> Owner {
    let id = node.provider_id();
    let mut rivals: BTreeMap<String, MachineSnapshot> = BTreeMap::new();
    let of_instance = instance_key(id).map(|instance| views.machines.by_index(BY_INSTANCE, &instance));
    let of_node = views.machines.by_index(BY_NODE, node.name());
    for rival in of_node.into_iter().chain(of_instance.into_iter().flatten()) {
        rivals.insert(rival.uid().to_owned(), rival);
    }
    let rivals: Vec<Claim<'_>> =
        rivals.values().map(|rival| Claim { machine: rival, instance: same(rival, id) }).collect();
    owner(&Claim { machine, instance: same(machine, id) }, node, &rivals)
}

#[cfg(test)]
mod tests {
    use SameInstance::{Another, Same, Unknown};
    use jiff::Timestamp;
    use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
    use rstest::rstest;

    use super::*;
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;

    /// A machine of this name with node `n` on its label; `a` is the eldest.
    fn machine(name: &str) -> MachineSnapshot {
        let mut machine = Machine::default();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.uid = Some(name.to_owned());
        let age = i64::from(name.bytes().next().unwrap_or_default());
        machine.metadata.creation_timestamp = Some(Time(Timestamp::from_second(age).unwrap()));
        machine.spec.provider_id = format!("id of {name}");
        machine.labels_mut().insert(label::NODE.to_owned(), "n".to_owned());
        machine.into()
    }

    fn node(names: Option<&str>) -> Node {
        let mut node = Node::default();
        node.metadata.name = Some("n".to_owned());
        if let Some(machine) = names {
            node.labels_mut().insert(label::MACHINE_NAME.to_owned(), machine.to_owned());
        }
        node
    }

    /// The owner of `n` as machine `b` sees it with these IDs, when the Node's label names this machine.
    fn seen_by_b(own: SameInstance, rivals: &[(&str, SameInstance)], named: Option<&str>) -> Owner {
        let b = machine("b");
        let rivals: Vec<(MachineSnapshot, SameInstance)> =
            rivals.iter().map(|(name, id)| (machine(name), *id)).collect();
        let rivals: Vec<Claim<'_>> =
            rivals.iter().map(|(machine, instance)| Claim { machine, instance: *instance }).collect();
        owner(&Claim { machine: &b, instance: own }, &node(named).into(), &rivals)
    }

    #[derive(Debug, PartialEq)]
    enum Is {
        Ours,
        Foreign,
        Contested,
    }

    #[rstest]
    #[case::nobody_else_wants_it(&[], None, Is::Ours)]
    #[case::the_label_names_another(&[], Some("a"), Is::Ours)]
    #[case::mc_032_two_labels_the_id_of_b_the_label_of_a(&[("a", Another)], Some("a"), Is::Ours)]
    #[case::the_elder_does_not_know_its_id(&[("a", Unknown)], Some("a"), Is::Ours)]
    #[case::the_elder_has_the_same_instance(&[("a", Same)], None, Is::Contested)]
    #[case::the_younger_has_the_same_instance(&[("c", Same)], None, Is::Ours)]
    #[case::the_node_names_one_of_two_with_the_same_instance(&[("a", Same)], Some("b"), Is::Ours)]
    fn an_id_that_names_the_instance_decides(
        #[case] rivals: &[(&str, SameInstance)],
        #[case] named: Option<&str>,
        #[case] is: Is,
    ) {
        assert_eq!(what(&seen_by_b(Same, rivals, named)), is);
    }

    #[rstest]
    #[case::mc_182_another_instance(Another, &[], Some("b"), Is::Foreign)]
    #[case::another_instance_that_nobody_has(Another, &[("a", Another)], None, Is::Foreign)]
    #[case::mc_032_the_instance_of_a_rival(Another, &[("a", Same)], Some("b"), Is::Foreign)]
    #[case::the_instance_of_a_younger_rival(Unknown, &[("c", Same)], Some("b"), Is::Foreign)]
    fn an_id_that_names_another_instance_makes_it_foreign(
        #[case] own: SameInstance,
        #[case] rivals: &[(&str, SameInstance)],
        #[case] named: Option<&str>,
        #[case] is: Is,
    ) {
        assert_eq!(what(&seen_by_b(own, rivals, named)), is);
    }

    #[rstest]
    #[case::no_other_claim(&[], None, Is::Ours)]
    #[case::no_other_claim_whomever_the_node_names(&[], Some("z"), Is::Ours)]
    #[case::the_elder_has_it(&[("a", Unknown)], None, Is::Contested)]
    #[case::not_the_younger(&[("c", Unknown)], None, Is::Ours)]
    #[case::whom_the_node_names_has_it(&[("c", Unknown)], Some("c"), Is::Contested)]
    #[case::we_are_whom_it_names(&[("a", Unknown)], Some("b"), Is::Ours)]
    #[case::an_elder_that_has_another_instance_claims_nothing(&[("a", Another)], Some("a"), Is::Ours)]
    fn ids_that_say_nothing_leave_it_to_names(
        #[case] rivals: &[(&str, SameInstance)],
        #[case] named: Option<&str>,
        #[case] is: Is,
    ) {
        assert_eq!(what(&seen_by_b(Unknown, rivals, named)), is);
    }

    #[test]
    fn of_three_machines_exactly_one_has_the_node_whatever_is_known() {
        let all = [Same, Another, Unknown];
        let names = ["a", "b", "c"];
        for ids in all.iter().flat_map(|a| all.map(|b| all.map(|c| [*a, b, c]))).flatten() {
            for named in [None, Some("a"), Some("b"), Some("c"), Some("z")] {
                let machines = names.map(machine);
                let claims: Vec<Claim<'_>> =
                    machines.iter().zip(ids).map(|(machine, instance)| Claim { machine, instance }).collect();
                let owners =
                    claims.iter().filter(|claim| owner(claim, &node(named).into(), &claims) == Owner::Ours).count();
                let expected = usize::from(ids.iter().any(|id| *id != Another));
                assert_eq!(owners, expected, "{ids:?}, the Node names {named:?}");
            }
        }
    }

    #[rstest]
    #[case::ids_say_nothing([Unknown, Unknown])]
    #[case::both_have_the_instance([Same, Same])]
    fn a_machine_that_is_deleted_has_a_worse_claim_than_one_that_lives(#[case] ids: [SameInstance; 2]) {
        for (deleted, living) in [("a", "b"), ("b", "a")] {
            for named in [None, Some("a"), Some("b")] {
                let mut machines = ["a", "b"].map(machine);
                for machine in machines.iter_mut().filter(|machine| machine.name() == deleted) {
                    machine.to_mut().metadata.deletion_timestamp = Some(Time(Timestamp::from_second(1).unwrap()));
                }
                let mut claims = machines.iter().zip(ids).map(|(machine, instance)| Claim { machine, instance });
                let claims: [Claim<'_>; 2] = [claims.next().unwrap(), claims.next().unwrap()];
                let owners = claims.iter().filter(|claim| owner(claim, &node(named).into(), &claims) == Owner::Ours);
                let owners: Vec<String> = owners.map(|claim| claim.machine.name().to_owned()).collect();
                assert_eq!(owners, [living], "{deleted} is deleted, the Node names {named:?}");
            }
        }
    }

    #[test]
    fn a_node_without_an_id_is_not_that_of_a_machine_without_one() {
        let [mut elder, young] = ["a", "b"].map(machine);
        elder.to_mut().spec.provider_id.clear();
        let claims = [&elder, &young].map(|machine| Claim { machine, instance: Unknown });
        let owners = claims.map(|claim| owner(&claim, &node(Some("b")).into(), &claims) == Owner::Ours);
        assert_eq!(owners, [false, true], "the label of the Node decides");
    }

    #[test]
    fn a_machine_without_the_label_is_no_rival_unless_it_has_the_instance() {
        let mut unlabelled = machine("a");
        unlabelled.to_mut().metadata.labels = None;
        let b = machine("b");
        let owner_for = |instance| {
            let rivals = [Claim { machine: &unlabelled, instance }];
            owner(&Claim { machine: &b, instance: Unknown }, &node(Some("a")).into(), &rivals)
        };
        assert_eq!(owner_for(Unknown), Owner::Ours);
        assert_eq!(what(&owner_for(Same)), Is::Foreign);
    }

    #[test]
    fn where_all_ids_end_alike_a_new_machine_gets_its_own_node_and_not_the_eldest() {
        let [mut elder, mut young] = ["a", "b"].map(machine);
        elder.to_mut().labels_mut().insert(label::NODE.to_owned(), "another".to_owned());
        for machine in [&mut elder, &mut young] {
            let id = format!("metal:///{}/vm", machine.name());
            machine.to_mut().spec.provider_id = id;
        }
        for id in ["metal:///b/vm", "metal://b/vm", ""] {
            let mut node = node(None);
            node.spec.get_or_insert_default().provider_id = Some(id.to_owned());
            let node = node.into();
            let claims = [&elder, &young].map(|machine| Claim { machine, instance: Same });
            assert_eq!(claims.map(|claim| owner(&claim, &node, &claims) == Owner::Ours), [false, true], "{id}");
        }
        // A label does not help against exactly the same ID either.
        let mut node = node(Some("b"));
        node.spec.get_or_insert_default().provider_id = Some("metal:///a/vm".to_owned());
        let node = node.into();
        let claims = [&elder, &young].map(|machine| Claim { machine, instance: Same });
        assert_eq!(claims.map(|claim| owner(&claim, &node, &claims) == Owner::Ours), [true, false]);
    }

    fn what(owner: &Owner) -> Is {
        match owner {
            Owner::Ours => Is::Ours,
            Owner::Foreign(_) => Is::Foreign,
            Owner::Contested(_) => Is::Contested,
        }
    }
}
