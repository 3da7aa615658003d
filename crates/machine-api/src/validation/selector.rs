//! Rules for the selector of a set or deployment (spec/api-and-admission §5.3, SEL-1 to SEL-6), and the comparison of two selectors (for SEL-7 in
//! [`super::transitions`]).

use std::collections::BTreeMap;

use kube_values::syntax;
use serde_json::json;

use super::{
    Object, labels,
    node::Node,
    rule::{Part, Rule, check, field, original, refuses, required},
};
use crate::{kind::Kind, names::label};
use kube_values::{
    field::{Findings, PathRef, RuleId},
    json::{Json, Members},
};

/// The CEL rule for a selector in the definitions of sets and deployments.
const SELECTS_SOMETHING: &str = "!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0) || (oldSelf.hasValue() && has(oldSelf.value().selector) && self.selector == oldSelf.value().selector)";

pub const SEL_1: Rule = Rule {
    crd_cel: &[required(
        Part::ScaledSpec,
        ".selector",
        "has(self.selector) || (oldSelf.hasValue() && !has(oldSelf.value().selector))",
        "must be specified",
    )],
    ..original("SEL-1", "There is a selector.", &["V69", "V82"])
};

pub const SEL_2: Rule = Rule {
    crd_cel: &[
        field(Part::SetSpec, ".selector", SELECTS_SOMETHING, "empty selector is invalid for machine set"),
        field(Part::DeploymentSpec, ".selector", SELECTS_SOMETHING, "empty selector is invalid for machine deployment"),
    ],
    ..original("SEL-2", "The selector is not empty.", &["V70", "V71"])
};

/// Runs all rules of a selector.
pub fn rules(object: &Object<'_>, found: &mut Findings) {
    let selector = object.root().at(&["spec", "selector"]);
    let path = PathRef::new("spec.selector");
    if selector.is_absent() {
        return found.required(SEL_1.id, path, "");
    }
    let Some(members) = selector.members() else { return };
    if is_empty(selector) {
        let whom = match object.kind {
            Kind::MachineDeployment => "machine deployment",
            Kind::Machine | Kind::MachineSet | Kind::MachineClass => "machine set",
        };
        return found.invalid(SEL_2.id, path, json!({}), format!("empty selector is invalid for {whom}"));
    }
    labels::labels_are_wellformed(SEL_5.id, selector.get("matchLabels"), path.child("matchLabels"), found);
    // Counted separately: a mistake that an update is forgiven is still a mistake.
    let mut in_expressions = Findings::new();
    let path = path.child("matchExpressions");
    for (index, expression) in selector.get("matchExpressions").elements().iter().enumerate() {
        expression_is_wellformed(Node::of(expression), path.index(index), &mut in_expressions);
    }
    let are_wellformed = !in_expressions.denies();
    found.append(in_expressions);
    if are_wellformed {
        template_is_selected(object, selector, members, found);
    }
}

/// Whether the selector has neither labels nor expressions. A mistyped part counts as not empty.
fn is_empty(selector: Node<'_>) -> bool {
    let nothing = |part: Node<'_>| match part.value() {
        None => true,
        Some(Json::Object(members)) => members.is_empty(),
        Some(Json::List(elements)) => elements.is_empty(),
        Some(_) => false,
    };
    nothing(selector.get("matchLabels")) && nothing(selector.get("matchExpressions"))
}

pub const SEL_3: Rule = Rule {
    policy_cel: &[check(
        "expressions",
        "variables.expressions.all(e, e.?operator.orValue('') in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",
        "spec.selector.matchExpressions: not a valid selector operator",
    )],
    ..original("SEL-3", "The operator of an expression is known.", &["V75"])
};

pub const SEL_4: Rule = Rule {
    policy_cel: &[check(
        "expressions",
        "variables.expressions.all(e, e.?operator.orValue('') in ['In', 'NotIn'] ? size(e.?values.orValue([])) > 0 : size(e.?values.orValue([])) == 0)",
        "spec.selector.matchExpressions: values must be specified when `operator` is 'In' or 'NotIn', and only then",
    )],
    ..original("SEL-4", "An expression has the values that its operator needs, and no others.", &["V76", "V77"])
};

pub const SEL_5: Rule = Rule {
    policy_cel: &[check(
        "selector",
        "variables.match_labels.all(k, k.matches(<name>) && variables.match_labels[k].matches(<label>)) && variables.expressions.all(e, e.?key.orValue('').matches(<name>) && e.?values.orValue([]).all(v, v.matches(<label>)))",
        "spec.selector: keys must be qualified names and values label values",
    )],
    ..refuses("SEL-5", "Keys are qualified names, and values are label values.", &["SEL-5"])
};

/// SEL-3, SEL-4, SEL-5.
fn expression_is_wellformed(expression: Node<'_>, path: PathRef<'_>, found: &mut Findings) {
    let values = expression.get("values");
    let are_missing = values.value().is_none_or(|values| values.as_array().is_some_and(<[_]>::is_empty));
    match expression.get("operator").text_or_empty() {
        Some("In" | "NotIn") if are_missing => {
            found.required(SEL_4.id, path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        Some("Exists" | "DoesNotExist") if !values.elements().is_empty() => {
            let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            found.given(&values.value()).forbidden(SEL_4.id, path.child("values"), detail);
        }
        Some("In" | "NotIn" | "Exists" | "DoesNotExist") | None => {}
        Some(other) => found.invalid(SEL_3.id, path.child("operator"), other, "not a valid selector operator"),
    }
    if let Some(key) = expression.get("key").text_or_empty() {
        for objection in syntax::qualified_name(key) {
            found.invalid(SEL_5.id, path.child("key"), key, objection);
        }
    }
    let path = path.child("values");
    for (index, value) in values.elements().iter().enumerate() {
        for objection in value.as_str().map(syntax::label_value).unwrap_or_default() {
            found.invalid(SEL_5.id, path.index(index), value, objection);
        }
    }
}

pub const SEL_6: Rule = Rule {
    policy_cel: &[check(
        "selection",
        "variables.match_labels.all(k, variables.selection[1][?k].orValue('') == variables.match_labels[k] && k in variables.selection[1]) && variables.expressions.all(e, e.operator == 'In' ? (e.key in variables.selection[1] && variables.selection[1][e.key] in e.values) : e.operator == 'NotIn' ? !(e.key in variables.selection[1] && variables.selection[1][e.key] in e.values) : e.operator == 'Exists' ? e.key in variables.selection[1] : !(e.key in variables.selection[1]))",
        "spec.template.metadata.labels: `selector` does not match template `labels`",
    )],
    ..original("SEL-6", "The selector selects the labels of the template.", &["V72", "V73", "V74", "V81"])
};

/// SEL-6: the selector selects the machines of the template. Otherwise the controller would make machines without end.
fn template_is_selected(object: &Object<'_>, selector: Node<'_>, whole: &Members<'_>, found: &mut Findings) {
    let labels = object.root().at(&["spec", "template", "metadata", "labels"]);
    if matches!(labels, Node::Mistyped) || labels.value().is_some_and(|labels| !labels.is_object()) {
        return;
    }
    if !matches(selector, labels) {
        let none = Json::Object(Members::default());
        let labels = labels.value().unwrap_or(&none);
        let path = PathRef::new("spec.template.metadata.labels");
        let detail = "`selector` does not match template `labels`";
        found.given(&(whole, labels)).invalid(SEL_6.id, path, labels, detail);
    }
}

/// Whether the Go original reconciles an object in spite of a finding of this rule. It compares only the labels of a selector with the template, and
/// never the expressions.
pub fn original_acts_on(object: &Json<'_>, rule: RuleId) -> bool {
    let spec = Node::of(object).get("spec");
    let labels = spec.at(&["template", "metadata", "labels"]);
    rule == SEL_6.id && labels_match(spec.get("selector"), labels)
}

fn labels_match(selector: Node<'_>, labels: Node<'_>) -> bool {
    let mut wanted = selector.get("matchLabels").members().into_iter().flat_map(Members::iter);
    wanted.all(|(key, value)| labels.get(key).value() == Some(value))
}

/// Whether labels satisfy every label and expression of a selector. The untyped version of `api::selector::matches`.
pub fn matches(selector: Node<'_>, labels: Node<'_>) -> bool {
    let by_expressions = selector.get("matchExpressions").elements();
    labels_match(selector, labels) && by_expressions.iter().all(|expression| satisfies(Node::of(expression), labels))
}

fn satisfies(expression: Node<'_>, labels: Node<'_>) -> bool {
    let value = labels.get(expression.get("key").text().unwrap_or_default()).text();
    let listed = |value: &str| expression.get("values").elements().iter().any(|wanted| *wanted == *value);
    match expression.get("operator").text() {
        Some("In") => value.is_some_and(listed),
        Some("NotIn") => !value.is_some_and(listed),
        Some("Exists") => value.is_some(),
        Some("DoesNotExist") => value.is_none(),
        _ => false,
    }
}

/// Whether a selector has labels or expressions. A selector without both may still be set.
pub fn is_usable(selector: Node<'_>) -> bool {
    selector.members().is_some() && !is_empty(selector)
}

/// Whether a selector with labels or expressions selects these labels.
pub fn selects(selector: Node<'_>, labels: Node<'_>) -> bool {
    is_usable(selector) && matches(selector, labels)
}

/// Whether two selectors have the same meaning. The order of expressions and of their values does not matter.
pub fn same(left: Node<'_>, right: Node<'_>) -> bool {
    canonical(left) == canonical(right)
}

/// Whether `new` differs from `old` only by the template hash that adoption adds (see the decision that a pure addition passes).
pub fn only_hash_was_added(old: Node<'_>, new: Node<'_>) -> bool {
    let (old, mut new) = (canonical(old), canonical(new));
    !old.0.contains_key(label::MACHINE_TEMPLATE_HASH)
        && new.0.remove(label::MACHINE_TEMPLATE_HASH).is_some()
        && old == new
}

/// Labels by key, and expressions with their values, sorted.
type Canonical<'a> = (BTreeMap<&'a str, &'a Json<'a>>, Vec<(&'a str, &'a str, Vec<&'a str>)>);

fn canonical(selector: Node<'_>) -> Canonical<'_> {
    let labels = selector.get("matchLabels").members().into_iter().flat_map(Members::iter).collect();
    let expressions = selector.get("matchExpressions").elements().iter().map(|expression| {
        let expression = Node::of(expression);
        let mut values: Vec<_> = expression.get("values").elements().iter().filter_map(Json::as_str).collect();
        values.sort_unstable();
        let text = |field| expression.get(field).text().unwrap_or_default();
        (text("key"), text("operator"), values)
    });
    let mut expressions: Vec<_> = expressions.collect();
    expressions.sort_unstable();
    (labels, expressions)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case::equal(json!({"matchLabels": {"a": "b"}}), json!({"matchLabels": {"a": "b"}}), true)]
    #[case::absent_and_empty_lists(json!({"matchLabels": {"a": "b"}, "matchExpressions": []}), json!({"matchLabels": {"a": "b"}}), true)]
    #[case::order_of_values(
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["b", "c"]}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["c", "b"]}]}), true)]
    #[case::another_value(json!({"matchLabels": {"a": "b"}}), json!({"matchLabels": {"a": "c"}}), false)]
    fn selectors_are_compared_by_meaning(#[case] left: Value, #[case] right: Value, #[case] equal: bool) {
        let (left, right) = (Json::from(&left), Json::from(&right));
        assert_eq!(same(Node::of(&left), Node::of(&right)), equal);
    }

    #[rstest]
    #[case::only_the_hash(json!({"matchLabels": {"a": "b", "machine-template-hash": "1"}}), true)]
    #[case::something_else_too(json!({"matchLabels": {"a": "c", "machine-template-hash": "1"}}), false)]
    #[case::nothing(json!({"matchLabels": {"a": "b"}}), false)]
    fn the_addition_of_a_hash_is_recognised(#[case] new: Value, #[case] expected: bool) {
        let old = json!({"matchLabels": {"a": "b"}});
        let (old, new) = (Json::from(&old), Json::from(&new));
        assert_eq!(only_hash_was_added(Node::of(&old), Node::of(&new)), expected);
    }
}
