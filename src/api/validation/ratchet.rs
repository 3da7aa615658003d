//! Ratcheting: an update is not refused for what was wrong before.
//!
//! Source: spec/api-and-admission §4.2. Two errors are the same when rule, path without list indexes and all offending
//! values are equal. They are compared as multisets, so that moving list elements neither brings an old error back nor
//! hides a new one.

use crate::api::field::{Finding, Findings, Severity};

/// Marks those refusals of the new object that the old object earns in the same way.
pub fn forgive_what_was_there(found: &mut Findings, old: &Findings) {
    let mut before: Vec<(&Finding, String)> =
        old.iter().filter(|finding| finding.denies()).map(|old| (old, old.error.path.without_indexes())).collect();
    for finding in found.iter_mut().filter(|finding| finding.denies()) {
        let path = finding.error.path.without_indexes();
        let same = before.iter().position(|(old, old_path)| {
            old.rule == finding.rule
                && *old_path == path
                && old.error.value == finding.error.value
                && old.inputs == finding.inputs
        });
        if let Some(position) = same {
            before.swap_remove(position);
            finding.severity = Severity::Existing;
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::api::field::FieldPath;

    fn errors(list: &[(&str, &str)]) -> Findings {
        let mut found = Findings::new();
        for (path, value) in list {
            found.invalid("MCH-7", FieldPath::new((*path).to_owned()), *value, "bad");
        }
        found
    }

    #[rstest]
    #[case::the_same_is_forgiven(&[("a", "x")], &[("a", "x")], 0)]
    #[case::another_value_is_not(&[("a", "x")], &[("a", "y")], 1)]
    #[case::another_field_is_not(&[("a", "x")], &[("b", "x")], 1)]
    #[case::a_moved_element_is_forgiven(&[("a[0]", "x")], &[("a[3]", "x")], 0)]
    #[case::a_second_of_the_same_kind_is_not(&[("a[0]", "x")], &[("a[0]", "x"), ("a[1]", "x")], 1)]
    #[case::a_map_key_is_no_index(&[("a[k]", "x")], &[("a[l]", "x")], 1)]
    fn only_new_mistakes_refuse_an_update(
        #[case] old: &[(&str, &str)],
        #[case] new: &[(&str, &str)],
        #[case] refusals: usize,
    ) {
        let mut found = errors(new);
        forgive_what_was_there(&mut found, &errors(old));
        assert_eq!(found.errors().count(), refusals);
    }

    #[test]
    fn a_rule_over_several_fields_compares_all_of_them() {
        let with_inputs = |inputs: &str| {
            let mut found = errors(&[("a", "x")]);
            found.depends_on(inputs.into());
            found
        };
        let mut found = with_inputs("1");
        forgive_what_was_there(&mut found, &with_inputs("2"));
        assert!(found.denies());
        forgive_what_was_there(&mut found, &with_inputs("1"));
        assert!(!found.denies());
    }
}
