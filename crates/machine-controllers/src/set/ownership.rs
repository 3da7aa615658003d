//! Decides which objects belong to an owner: claimed, to adopt, to release, or foreign.
//!
//! Used for machines of sets and for sets of deployments. Source: spec/deployment-and-set §5 with D-06 (a release
//! really removes the reference, an adoption keeps foreign ones), D-07 (an empty selector claims nothing) and D-48 (an
//! owner that is being deleted claims everything that it controls). Pure.

use crate::snapshots::{Metadata, SetSnapshot};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube_values::selector::{self};
use machine_api::names::API_VERSION_V1ALPHA1;

/// The relation of an object to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It belongs to the owner.
    Claimed,
    /// It has no controller and matches: the owner adopts it.
    Adopt,
    /// It belongs to the owner but does not match any more: the owner releases it.
    Release,
    /// The owner ignores it.
    Foreign,
}

/// An owner.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Kind in owner references.
    pub kind: &'a str,
    /// Metadata of the owner.
    pub meta: Metadata<'a>,
    /// The selector of its objects.
    pub selector: Option<&'a LabelSelector>,
}

impl<'a> Owner<'a> {
    /// A set, as the owner of machines.
    pub fn of_set(set: &'a SetSnapshot) -> Self {
        Self { kind: "MachineSet", meta: set.metadata(), selector: set.selector() }
    }

    /// The relation of this object to the owner.
    pub fn standing(&self, object: Metadata<'_>) -> Standing {
        let deleting = self.meta.is_deleting();
        match object.controller() {
            Some(controller) if controller.uid != self.meta.uid => Standing::Foreign,
            Some(_) if deleting || self.fits(object) => Standing::Claimed,
            Some(_) => Standing::Release,
            None if !deleting && !object.is_deleting() && self.fits(object) => Standing::Adopt,
            None => Standing::Foreign,
        }
    }

    fn fits(&self, object: Metadata<'_>) -> bool {
        self.selector.is_some_and(|wanted| !selector::is_empty(wanted) && selector::matches(wanted, object.labels))
    }

    /// The owner reference of an object that belongs to the owner.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: API_VERSION_V1ALPHA1.to_owned(),
            kind: self.kind.to_owned(),
            name: self.meta.name.to_owned(),
            uid: self.meta.uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
    use rstest::rstest;

    use super::*;
    use crate::set::{
        patches::{adoption, release},
        testing::*,
    };
    use controller_runtime::objects::Patch;
    use kube_values::selector::Labels;
    use machine_api::v1alpha1::Machine;

    fn standing(set: &SetSnapshot, machine: &Machine) -> Standing {
        Owner::of_set(set).standing((&machine.metadata).into())
    }

    fn of_another(name: &str) -> Building<Machine> {
        machine(name).with(|machine| {
            machine.metadata.owner_references = Some(vec![controller_reference("MachineSet", "set", "uid-other")]);
        })
    }

    #[rstest]
    #[case::s_own_01_same_name_other_uid(set(1).snapshot(), of_another("m").build(), Standing::Foreign)]
    #[case::s_own_03_owned_and_fitting(set(1).snapshot(), machine("m").build(), Standing::Claimed)]
    #[case::s_own_04_no_labels_no_owner(
        set(1).snapshot(), machine("m").no_owner().with(|m| m.metadata.labels = None).build(), Standing::Foreign)]
    #[case::s_own_06_neither_label_nor_owner_any_more(
        set(1).snapshot(), machine("m").no_owner().with(|m| m.metadata.labels = Some(Labels::new())).build(), Standing::Foreign)]
    #[case::s_own_08_a_deleting_orphan_is_ignored(
        set(1).snapshot(), machine("m").no_owner().deleting().build(), Standing::Foreign)]
    #[case::s_own_09_a_label_changed(set(1).snapshot(), machine("m").label("set", "y").build(), Standing::Release)]
    #[case::an_orphan_that_fits(set(1).snapshot(), machine("m").no_owner().build(), Standing::Adopt)]
    #[case::a_deleting_owner_adopts_nothing(
        set(1).deleting().snapshot(), machine("m").no_owner().build(), Standing::Foreign)]
    #[case::a_deleting_owner_answers_for_all_it_controls(
        set(1).deleting().snapshot(), machine("m").label("set", "y").build(), Standing::Claimed)]
    #[case::s_own_12_an_empty_selector_claims_nothing(
        set(1).with(|s| s.spec.selector = Some(selector(&[]))).snapshot(), machine("m").no_owner().build(), Standing::Foreign)]
    fn an_object_has_a_standing(#[case] set: SetSnapshot, #[case] machine: Machine, #[case] expected: Standing) {
        assert_eq!(standing(&set, &machine), expected);
    }

    #[test]
    fn s_own_05_an_invalid_operator_claims_nothing() {
        let set = set(1).with(|set| {
            set.spec.selector.as_mut().unwrap().match_expressions = Some(vec![LabelSelectorRequirement {
                key: "set".to_owned(),
                operator: "Near".to_owned(),
                values: None,
            }]);
        });
        assert_eq!(standing(&set.snapshot(), &machine("m").no_owner().build()), Standing::Foreign);
    }

    fn applied(patch: Patch, to: &Machine) -> Machine {
        let Patch::Json(operations) = patch else { panic!("not a JSON patch") };
        let mut document = serde_json::to_value(to).unwrap();
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut document, &patch).unwrap();
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn s_own_10_a_release_really_removes_the_reference_and_s_own_11_an_adoption_keeps_foreign_ones() {
        let set = set(1).snapshot();
        let owner = Owner::of_set(&set);
        let foreign = OwnerReference { controller: None, ..controller_reference("Other", "other", "uid-foreign") };
        let orphan =
            machine("m").with(|machine| machine.metadata.owner_references = Some(vec![foreign.clone()])).build();
        let adopted = applied(adoption(&owner, (&orphan.metadata).into()), &orphan);
        assert_eq!(adopted.metadata.owner_references, Some(vec![foreign.clone(), owner.reference()]));
        let released = applied(release(&owner, (&adopted.metadata).into()).unwrap(), &adopted);
        assert_eq!(released.metadata.owner_references, Some(vec![foreign]));
    }

    #[test]
    fn an_object_without_references_is_adopted() {
        let set = set(1).snapshot();
        let owner = Owner::of_set(&set);
        let orphan = machine("m").no_owner().build();
        let adopted = applied(adoption(&owner, (&orphan.metadata).into()), &orphan);
        assert_eq!(owner.standing((&adopted.metadata).into()), Standing::Claimed);
    }
}
