//! Whether a set can be acted on at all.
//!
//! Admission refuses such objects; this is for those that predate it (spec/deployment-and-set §3.3, D-05, D-07, D-08;
//! spec/api-and-admission §3). The rules are those of `api/validation`, so that a person reads the same words twice.

use std::sync::Arc;

use super::observe::SetObservation;
use crate::checked::Checked;

/// What makes it impossible to act on the set; empty when nothing does.
pub fn set_errors(seen: &SetObservation) -> Arc<[String]> {
    Checked::errors(&seen.set, seen.checked.as_ref())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::set::testing::*;
    use machine_api::v1alpha1::MachineSet;

    #[rstest]
    #[case::a_good_set(set(1), "")]
    #[case::s_ms_22_no_class(set(1).with(|s| s.spec.template.spec.class.name.clear()), "spec.template.spec.class.name")]
    #[case::no_selector(set(1).with(|s| s.spec.selector = None), "spec.selector: Required")]
    #[case::s_own_12_empty_selector(set(1).with(|s| s.spec.selector = Some(selector(&[]))), "spec.selector: Invalid")]
    #[case::selector_and_template_disagree(
        set(1).with(|s| s.spec.selector = Some(selector(&[("a", "b")]))), "spec.template.metadata.labels: Invalid")]
    #[case::negative(set(-1), "spec.replicas")]
    fn a_set_is_checked(#[case] set: Building<MachineSet>, #[case] expected: &str) {
        let errors = set_errors(&seeing(set.build(), []));
        if expected.is_empty() {
            assert!(errors.is_empty(), "{errors:?}");
        } else {
            assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
        }
    }
}
