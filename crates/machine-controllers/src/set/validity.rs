//! Whether the controller can act on a set at all.
//!
//! Admission refuses invalid objects; this check is for objects that are older than admission (spec/deployment-and-set
//! §3.3, D-05, D-07, D-08; spec/api-and-admission §3). It uses the rules of `api/validation`, so the user reads the
//! same messages.

use std::sync::Arc;

use super::observe::SetObservation;
use crate::checked::Checked;

/// The errors that forbid acting on the set; empty when there are none.
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
