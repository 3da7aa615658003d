//! Whether a Node of a machine's name is really the machine's.
//!
//! Source: spec/machine-controller §6.10, M-07, M-61. A Node that is not ours is never touched.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::api::v1alpha1::Machine;

/// Whose a Node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The machine's.
    Ours,
    /// Something else's, for this reason.
    Foreign(String),
}

/// Whose this Node is. `rivals` are the other machines with this Node on their label.
pub fn owner<'a>(machine: &Machine, node: &Node, rivals: impl Iterator<Item = &'a Machine>) -> Owner {
    let ours = machine.spec.provider_id.as_str();
    let theirs = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
    if !ours.is_empty() && !theirs.is_empty() && !same(ours, theirs) {
        return Owner::Foreign(format!("its providerID is {theirs:?}, not {ours:?}"));
    }
    let matches = |machine: &Machine| !theirs.is_empty() && same(&machine.spec.provider_id, theirs);
    let rank = |machine: &Machine| {
        let created = machine.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (!matches(machine), created, machine.name_any())
    };
    match rivals.filter(|rival| rival.metadata.uid != machine.metadata.uid).min_by_key(|rival| rank(rival)) {
        Some(rival) if rank(rival) < rank(machine) => {
            Owner::Foreign(format!("machine {} has it on its label, too, and the better claim", rival.name_any()))
        }
        _ => Owner::Ours,
    }
}

/// Some providers change the case of their ids between API and node (Azure).
fn same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn machine(uid: &str, provider_id: &str) -> Machine {
        let mut machine = Machine::default();
        machine.metadata.name = Some(format!("m-{uid}"));
        machine.metadata.uid = Some(uid.to_owned());
        machine.spec.provider_id = provider_id.to_owned();
        machine
    }

    #[rstest]
    #[case::mc_182_another_provider_id("a", "b", None, false)]
    #[case::the_same("a", "a", None, true)]
    #[case::in_another_case("azure:///VM", "azure:///vm", None, true)]
    #[case::the_node_does_not_tell("a", "", None, true)]
    #[case::the_machine_has_none_yet("", "b", None, true)]
    #[case::mc_032_a_rival_whose_id_it_is("", "b", Some("b"), false)]
    #[case::mc_032_a_rival_whose_id_it_is_not("a", "a", Some("b"), true)]
    #[case::equal_claims_go_to_the_older_or_first_name("a", "", Some("b"), false)]
    fn a_node_is_ours(#[case] ours: &str, #[case] theirs: &str, #[case] rival: Option<&str>, #[case] is_ours: bool) {
        let mut node = Node::default();
        node.spec.get_or_insert_default().provider_id = Some(theirs.to_owned()).filter(|id| !id.is_empty());
        let rival = rival.map(|provider_id| machine("1", provider_id));
        assert_eq!(owner(&machine("2", ours), &node, rival.iter()) == Owner::Ours, is_ours);
    }
}
