//! The owner of a VM that several machines name, after a restored backup, a copied manifest, or a wrong adoption.
//!
//! One of the machines owns the VM. A machine that is being deleted leaves VM and Node to a machine that is not being
//! deleted. It never leaves them to another machine that is being deleted, because that machine may leave them to a third
//! one. Instead it waits for the end of that machine, and then looks for the VM. While none of them is being deleted,
//! `node::ownership` decides the owner of the Node. Nothing here depends on the Node, which may appear and disappear during
//! a deletion. Otherwise two machines could regard each other as the owner and wait for ever. Pure.

use controller_runtime::{key::ObjectKey, snapshot::Snapshot};
use machine_api::names::{finalizer, label};
use machine_driver::{SameInstance, same_instance::instance_key};
use serde::Serialize;

use crate::{
    snapshots::MachineSnapshot,
    views::{BY_INSTANCE, ControlViews},
};

/// The owner of a machine's VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub enum VmOwner {
    /// The machine itself, also if it has no VM yet.
    #[default]
    This,
    /// A machine that is not being deleted and names the same instance.
    Living(String),
    /// A machine that is being deleted, too, and deletes the VM.
    Leaving(String),
}

/// The owner of the VM that this machine and these others name.
pub fn vm_owner(machine: &MachineSnapshot, twins: &[MachineSnapshot]) -> VmOwner {
    match first_owner(twins) {
        Some(twin) if rank(twin) < rank(machine) => {
            let owner = if twin.is_deleting() { VmOwner::Leaving } else { VmOwner::Living };
            owner(twin.name().to_owned())
        }
        _ => VmOwner::This,
    }
}

/// The owner of the VM that all these machines name; `None` when none of them would delete it.
pub fn first_owner<'a>(twins: impl IntoIterator<Item = &'a MachineSnapshot>) -> Option<&'a MachineSnapshot> {
    twins.into_iter().filter(|twin| takes_care(twin)).min_by_key(|twin| rank(twin))
}

/// Whether the VM is deleted with the machine: a machine that is being deleted without our finalizer leaves its VM behind.
fn takes_care(machine: &MachineSnapshot) -> bool {
    !machine.is_deleting() || machine.metadata().has_finalizer(finalizer::MACHINE)
}

/// Machines that are not being deleted come first, then the older machine, then the first by name. All but the first
/// criterion stay the same for a machine's life, so that several machines that are being deleted all find the same owner.
fn rank(machine: &MachineSnapshot) -> impl Ord + use<> {
    (machine.is_deleting(), machine.created(), machine.name().to_owned())
}

/// Whether two machines of one provider name the same instance; `ids` is the driver's answer about their IDs. A VM has one
/// Node, so that machines with different Nodes on their labels have two VMs, however alike their IDs end, unless the IDs are
/// equal.
fn is_twin(one: &MachineSnapshot, other: &MachineSnapshot, ids: SameInstance) -> bool {
    let node = |machine: &MachineSnapshot| machine.labels().get(label::NODE).filter(|node| !node.is_empty()).cloned();
    let have_two_nodes = node(one).zip(node(other)).is_some_and(|(one, other)| one != other);
    let are_equal = one.provider_id().eq_ignore_ascii_case(other.provider_id());
    one.uid() != other.uid() && (are_equal || (ids == SameInstance::Same && !have_two_nodes))
}

/// The owner of this machine's VM, with the other machines from the stores. `same` says whether a machine's provider ID and
/// another ID name the same instance.
pub fn vm_owner_in(
    machine: &MachineSnapshot,
    views: &ControlViews,
    same: &dyn Fn(&MachineSnapshot, &str) -> SameInstance,
) -> VmOwner {
    let Some(instance) = instance_key(machine.provider_id()) else { return VmOwner::This };
    let provider = |machine: &MachineSnapshot| {
        let class = ObjectKey::new(machine.namespace(), machine.class_ref().name.clone());
        views.classes.get(&class).map(|class| class.provider.clone())
    };
    let ours = provider(machine);
    // The provider of a class that is gone is unknown, so that it may be the same.
    let at_one_provider =
        |other: &MachineSnapshot| ours.as_ref().zip(provider(other)).is_none_or(|(ours, other)| *ours == other);
    let mut twins: Vec<MachineSnapshot> = views.machines.by_index(BY_INSTANCE, &instance);
    twins.retain(|other| is_twin(machine, other, same(machine, other.provider_id())) && at_one_provider(other));
    vm_owner(machine, &twins)
}

#[cfg(test)]
mod tests {
    use SameInstance::{Same, Unknown};
    use VmOwner::{Leaving, This};
    use kube::ResourceExt;
    use machine_api::v1alpha1::Machine;
    use rstest::rstest;

    use super::*;
    use crate::machine::testing::*;

    /// A machine of the instance `x` that was created at this second.
    fn made(name: &str, second: i64) -> Machine {
        let mut machine = running();
        machine.metadata.name = Some(name.to_owned());
        machine.metadata.uid = Some(name.to_owned());
        machine.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(second)));
        machine.spec.provider_id = "cloud:///x".to_owned();
        machine
    }

    fn living(name: &str) -> VmOwner {
        VmOwner::Living(name.to_owned())
    }

    fn deleted(name: &str, second: i64) -> Machine {
        deleted_at(made(name, second), 100)
    }

    fn abandoned(name: &str, second: i64) -> Machine {
        let mut machine = deleted(name, second);
        machine.metadata.finalizers = Some(vec!["other".to_owned()]);
        machine
    }

    #[rstest]
    #[case::nobody_else(vec![], This, This)]
    #[case::the_elder_lives(vec![made("a", 1)], living("a"), living("a"))]
    #[case::a_younger_one_lives(vec![made("c", 3)], This, living("c"))]
    #[case::the_elder_is_deleted_too(vec![deleted("a", 1)], This, Leaving("a".to_owned()))]
    #[case::a_younger_one_is_deleted_too(vec![deleted("c", 3)], This, This)]
    #[case::of_the_same_second_the_first_by_name(vec![deleted("a", 2), deleted("c", 2)], This, Leaving("a".to_owned()))]
    #[case::nobody_acts_for_the_elder(vec![abandoned("a", 1)], This, This)]
    #[case::the_younger_of_two_others_lives(vec![deleted("a", 1), made("c", 3)], This, living("c"))]
    fn of_machines_with_one_vm_one_has_it(
        #[case] others: Vec<Machine>,
        #[case] while_it_lives: VmOwner,
        #[case] while_it_is_deleted: VmOwner,
    ) {
        let others: Vec<MachineSnapshot> = others.into_iter().map(MachineSnapshot::from).collect();
        let owners = [made("b", 2), deleted("b", 2)].map(|machine| vm_owner(&machine.into(), &others));
        assert_eq!(owners, [while_it_lives, while_it_is_deleted]);
    }

    #[test]
    fn exactly_one_machine_has_the_vm_whichever_are_deleted() {
        for mask in 0..8 {
            let all: Vec<MachineSnapshot> = (0..3)
                .map(|n| if mask & (1 << n) == 0 { made(&format!("m{n}"), n) } else { deleted(&format!("m{n}"), n) })
                .map(MachineSnapshot::from)
                .collect();
            let owners = all.iter().filter(|one| {
                let others: Vec<_> = all.iter().filter(|other| other.name() != one.name()).cloned().collect();
                vm_owner(one, &others) == VmOwner::This
            });
            assert_eq!(owners.count(), 1, "deleted: {mask:03b}");
        }
    }

    #[rstest]
    #[case::one_text("cloud:///x", "n", Same, true)]
    #[case::one_text_in_another_case("Cloud:///X", "n", Unknown, true)]
    #[case::one_text_and_another_node("cloud:///x", "other", Same, true)]
    #[case::another_spelling("cloud:///zone-a/x", "n", Same, true)]
    #[case::another_spelling_before_the_node_is_known("cloud:///zone-a/x", "", Same, true)]
    #[case::ids_that_only_end_alike("cloud:///zone-a/x", "other", Same, false)]
    #[case::nobody_can_tell("cloud:///zone-a/x", "n", Unknown, false)]
    fn machines_are_twins(#[case] id: &str, #[case] node: &str, #[case] ids: SameInstance, #[case] expected: bool) {
        let one = made("a", 1);
        let mut other = made("b", 2);
        other.spec.provider_id = id.to_owned();
        other.labels_mut().insert(label::NODE.to_owned(), node.to_owned());
        let (one, other) = (MachineSnapshot::from(one), MachineSnapshot::from(other));
        assert_eq!(is_twin(&one, &other, ids), expected);
        assert!(!is_twin(&one, &one, Same), "nobody is a twin of itself");
    }

    #[rstest]
    #[case::one_provider(Some("small"), living("a"))]
    #[case::another_provider(Some("large"), This)]
    #[case::its_class_is_gone(None, living("a"))]
    fn ids_are_compared_within_a_provider(#[case] provider: Option<&str>, #[case] expected: VmOwner) {
        let views = ControlViews::default();
        let class = |name: &str, provider: &str| {
            let mut class = machine_api::v1alpha1::MachineClass { provider: provider.to_owned(), ..Default::default() };
            class.metadata.name = Some(name.to_owned());
            class.metadata.namespace = Some("ns".to_owned());
            views.classes.apply(class);
        };
        class("c", "small");
        if let Some(provider) = provider {
            class("d", provider);
        }
        let mut other = made("a", 1);
        other.spec.class.name = "d".to_owned();
        views.machines.apply(other);
        views.machines.apply(made("b", 2));
        assert_eq!(vm_owner_in(&made("b", 2).into(), &views, &|_, _| Same), expected);
        let mut without_vm = made("b", 2);
        without_vm.spec.provider_id.clear();
        let without_vm = MachineSnapshot::from(without_vm);
        assert_eq!(vm_owner_in(&without_vm, &views, &|_, _| Same), VmOwner::This);
    }
}
