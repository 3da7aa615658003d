//! Whether a set can be acted on at all.
//!
//! Admission refuses such objects; these rules are for those that predate it (spec/deployment-and-set §3.3, D-05, D-07,
//! D-08). Texts follow Kubernetes' field errors.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::api::{
    selector,
    v1alpha1::{Labels, MachineSet, MachineTemplateSpec},
};

/// What makes it impossible to act on the set; empty when nothing does.
pub fn set_errors(set: &MachineSet) -> Vec<String> {
    let mut errors = replica_errors(set.spec.replicas);
    errors.extend(selector_errors(set.spec.selector.as_ref(), &set.spec.template));
    errors.extend(class_errors(&set.spec.template));
    errors
}

/// A number of machines is not negative.
pub fn replica_errors(replicas: i32) -> Vec<String> {
    if replicas < 0 {
        return vec![format!("spec.replicas: Invalid value: {replicas}: must be greater than or equal to 0")];
    }
    Vec::new()
}

/// The selector selects something, and what is made from the template.
pub fn selector_errors(wanted: Option<&LabelSelector>, template: &MachineTemplateSpec) -> Vec<String> {
    let nothing = Labels::new();
    let labels = template.metadata.labels.as_ref().unwrap_or(&nothing);
    match wanted {
        None => vec!["spec.selector: Required value: name the labels of the machines".to_owned()],
        Some(wanted) if selector::is_empty(wanted) => {
            vec!["spec.selector: Invalid value: {}: an empty selector would select every machine".to_owned()]
        }
        Some(wanted) if !selector::matches(wanted, labels) => {
            vec!["spec.selector: Invalid value: does not match spec.template.metadata.labels".to_owned()]
        }
        Some(_) => Vec::new(),
    }
}

/// The template names a class.
pub fn class_errors(template: &MachineTemplateSpec) -> Vec<String> {
    let class = &template.spec.class;
    [("kind", &class.kind), ("name", &class.name)]
        .into_iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(field, _)| format!("spec.template.spec.class.{field}: Required value: {field} is required"))
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::controllers::set::testing::*;

    #[rstest]
    #[case::a_good_set(set(1), "")]
    #[case::s_ms_22_no_class(set(1).with(|s| s.spec.template.spec.class.name.clear()), "spec.template.spec.class.name")]
    #[case::no_selector(set(1).with(|s| s.spec.selector = None), "spec.selector: Required")]
    #[case::s_own_12_empty_selector(set(1).with(|s| s.spec.selector = Some(selector(&[]))), "spec.selector: Invalid")]
    #[case::selector_and_template_disagree(
        set(1).with(|s| s.spec.selector = Some(selector(&[("a", "b")]))), "spec.selector: Invalid")]
    #[case::negative(set(-1), "spec.replicas")]
    fn a_set_is_checked(#[case] set: Building<MachineSet>, #[case] expected: &str) {
        let errors = set_errors(&set.build());
        if expected.is_empty() {
            assert_eq!(errors, Vec::<String>::new());
        } else {
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
        }
    }
}
