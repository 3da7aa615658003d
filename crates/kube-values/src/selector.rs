//! Label selectors: matching and the string form.
//!
//! Source: k8s.io/apimachinery/pkg/apis/meta/v1 `LabelSelectorAsSelector`. Validation checks whether a selector is well formed. Here, an unknown
//! operator matches nothing, so that a malformed selector never selects an object.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Labels as Kubernetes stores them.
pub type Labels = BTreeMap<String, String>;

/// Whether the selector has neither labels nor expressions. In Kubernetes such a selector matches everything. This program must never use it
/// (spec/deployment-and-set §5, D-07).
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Whether the labels satisfy every label and expression of the selector.
pub fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let by_labels = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    by_labels && selector.match_expressions.iter().flatten().all(|requirement| satisfies(requirement, labels))
}

fn satisfies(requirement: &LabelSelectorRequirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let listed = |value: &String| requirement.values.iter().flatten().any(|wanted| wanted == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

/// The selector in the syntax of `kubectl -l`, for `status.selector`.
pub fn to_query(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|requirement| {
        let values = requirement.values.iter().flatten().cloned().collect::<Vec<_>>().join(",");
        match requirement.operator.as_str() {
            "In" => format!("{} in ({values})", requirement.key),
            "NotIn" => format!("{} notin ({values})", requirement.key),
            "DoesNotExist" => format!("!{}", requirement.key),
            _ => requirement.key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn expression(operator: &str, values: &[&str]) -> LabelSelector {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "zone".to_owned(),
                operator: operator.to_owned(),
                values: Some(values),
            }]),
        }
    }

    #[rstest]
    #[case::in_the_list("In", &["a", "b"], &[("zone", "a")], true)]
    #[case::not_in_the_list("In", &["b"], &[("zone", "a")], false)]
    #[case::not_in_matches_an_absent_label("NotIn", &["a"], &[], true)]
    #[case::exists("Exists", &[], &[("zone", "")], true)]
    #[case::does_not_exist("DoesNotExist", &[], &[("zone", "a")], false)]
    #[case::an_unknown_operator_matches_nothing("Near", &["a"], &[("zone", "a")], false)]
    fn an_expression_is_evaluated(
        #[case] operator: &str,
        #[case] values: &[&str],
        #[case] of: &[(&str, &str)],
        #[case] expected: bool,
    ) {
        assert_eq!(matches(&expression(operator, values), &labels(of)), expected);
    }

    #[test]
    fn all_labels_must_match() {
        let selector = LabelSelector { match_labels: Some(labels(&[("a", "1"), ("b", "2")])), match_expressions: None };
        assert!(matches(&selector, &labels(&[("a", "1"), ("b", "2"), ("c", "3")])));
        assert!(!matches(&selector, &labels(&[("a", "1")])));
        assert_eq!(to_query(&selector), "a=1,b=2");
    }
}
