//! Whether machines can be created from a class.
//!
//! Source: spec/machine-controller §3.2. Creation and deletion use the same check; what follows from it differs (a deletion
//! needs a class only for the VM, §6.10).

use kube::ResourceExt;

use super::ClassState;
use machine_api::{
    names::finalizer,
    v1alpha1::{ClassSpec, MachineClass, NodeTemplate},
};

/// Whether machines can be created from the class that a machine names.
pub fn class_state(named: &ClassSpec, class: Option<&MachineClass>) -> ClassState {
    if named.kind.is_empty() || named.name.is_empty() {
        return ClassState::NotNamed;
    }
    let Some(class) = class else { return ClassState::Absent };
    if !class.finalizers().iter().any(|name| name == finalizer::MACHINE) {
        return if class.metadata.deletion_timestamp.is_some() {
            ClassState::DeletingWithoutFinalizer
        } else {
            ClassState::WithoutFinalizer
        };
    }
    match class.node_template.as_ref().and_then(node_template_fault) {
        Some(fault) => ClassState::NodeTemplateInvalid(fault.to_owned()),
        None => ClassState::Usable,
    }
}

/// The resources that a node template lacks. The texts are the original's.
fn node_template_fault(template: &NodeTemplate) -> Option<&'static str> {
    if ["cpu", "gpu", "memory"].iter().any(|resource| !template.capacity.contains_key(*resource)) {
        return Some("MachineClass NodeTemplate Capacity should mandatorily have CPU, GPU and Memory configured");
    }
    if template.instance_type.is_empty() || template.region.is_empty() || template.zone.is_empty() {
        return Some("MachineClass NodeTemplate Instance Type, region and zone cannot be empty");
    }
    None
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};
    use rstest::rstest;

    use super::*;

    fn named() -> ClassSpec {
        ClassSpec { kind: "MachineClass".to_owned(), name: "c".to_owned(), ..ClassSpec::default() }
    }

    fn class() -> MachineClass {
        let mut class = MachineClass::default();
        class.finalizers_mut().push(finalizer::MACHINE.to_owned());
        class
    }

    fn template(resources: &[&str], zone: &str) -> NodeTemplate {
        NodeTemplate {
            capacity: resources.iter().map(|name| ((*name).to_owned(), Quantity("1".to_owned()))).collect(),
            instance_type: "large".to_owned(),
            region: "eu".to_owned(),
            zone: zone.to_owned(),
            ..NodeTemplate::default()
        }
    }

    #[test]
    fn mc_052_a_machine_may_name_no_class() {
        assert_eq!(class_state(&ClassSpec::default(), Some(&class())), ClassState::NotNamed);
    }

    #[test]
    fn mc_038_the_class_may_be_absent() {
        assert_eq!(class_state(&named(), None), ClassState::Absent);
    }

    #[test]
    fn mc_040_a_class_without_our_finalizer_may_vanish() {
        assert_eq!(class_state(&named(), Some(&MachineClass::default())), ClassState::WithoutFinalizer);
        let mut deleting = MachineClass::default();
        deleting.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert_eq!(class_state(&named(), Some(&deleting)), ClassState::DeletingWithoutFinalizer);
    }

    #[rstest]
    #[case::no_template(None, true)]
    #[case::a_complete_one(Some(template(&["cpu", "gpu", "memory"], "a")), true)]
    #[case::mc_041_without_gpu(Some(template(&["cpu", "memory"], "a")), false)]
    #[case::without_zone(Some(template(&["cpu", "gpu", "memory"], "")), false)]
    fn a_node_template_must_be_complete(#[case] template: Option<NodeTemplate>, #[case] usable: bool) {
        let class = MachineClass { node_template: template, ..class() };
        assert_eq!(class_state(&named(), Some(&class)) == ClassState::Usable, usable);
    }
}
