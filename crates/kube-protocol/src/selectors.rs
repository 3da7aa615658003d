//! Label and field selectors of lists and watches.
//!
//! Source: spec/extension-apiserver §2.6.

use serde_json::{Value, json};

use super::status::ApiStatus;
use kube_values::syntax;

/// The condition of a label requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

/// A label selector in the format of `kubectl -l`: all its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<(String, Condition)>);

impl LabelSelector {
    /// Parses a text such as `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// 400 with the requirement that is invalid.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        let mut requirements = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    continue;
                }
                return Err(unreadable(text, "found ','"));
            }
            requirements.push(requirement(part)?);
        }
        Ok(Self(requirements))
    }

    /// Whether the selector has no requirements and so selects every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements in the form of a `SubjectAccessReview`. Comparisons of numbers have no form there and are left out.
    pub fn requirements(&self) -> Vec<Value> {
        let requirement = |(key, condition): &(String, Condition)| match condition {
            Condition::In(values) => Some(json!({"key": key, "operator": "In", "values": values})),
            Condition::NotIn(values) => Some(json!({"key": key, "operator": "NotIn", "values": values})),
            Condition::Exists => Some(json!({"key": key, "operator": "Exists"})),
            Condition::Absent => Some(json!({"key": key, "operator": "DoesNotExist"})),
            Condition::Above(_) | Condition::Below(_) => None,
        };
        self.0.iter().filter_map(requirement).collect()
    }

    /// Whether the labels of an object meet all requirements.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.matches_where(|key| labels.get(key).and_then(Value::as_str))
    }

    /// Whether labels meet all requirements. `find` returns the value of a label.
    pub fn matches_where<'a>(&self, find: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|(key, condition)| {
            let value = find(key);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match condition {
                Condition::In(values) => value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
                Condition::NotIn(values) => !value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
                Condition::Exists => value.is_some(),
                Condition::Absent => value.is_none(),
                Condition::Above(bound) => number().is_some_and(|number| number > *bound),
                Condition::Below(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }
}

fn unreadable(text: &str, why: &str) -> ApiStatus {
    ApiStatus::bad_request(format!("unable to parse requirement: {why} in {text:?}"))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn requirement(text: &str) -> Result<(String, Condition), ApiStatus> {
    let values = |rest: &str| -> Result<Vec<String>, ApiStatus> {
        let inner = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inner = inner.ok_or_else(|| unreadable(text, "expected '('"))?;
        inner.split(',').map(|value| label_value(value.trim(), text)).collect()
    };
    if let Some(key) = text.strip_prefix('!') {
        return Ok((label_key(key.trim(), text)?, Condition::Absent));
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = text.split_once(operator) {
            let wanted = vec![label_value(value.trim(), text)?];
            let condition = if negated { Condition::NotIn(wanted) } else { Condition::In(wanted) };
            return Ok((label_key(key.trim(), text)?, condition));
        }
    }
    for operator in ['>', '<'] {
        if let Some((key, bound)) = text.split_once(operator) {
            let bound = bound.trim().parse().map_err(|_| {
                unreadable(text, "values[0]: Invalid value: for 'Gt', 'Lt' operators, the value must be an integer")
            })?;
            let condition = if operator == '>' { Condition::Above(bound) } else { Condition::Below(bound) };
            return Ok((label_key(key.trim(), text)?, condition));
        }
    }
    let (key, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let condition = if rest.is_empty() {
        Condition::Exists
    } else if let Some(rest) = rest.strip_prefix("notin") {
        Condition::NotIn(values(rest)?)
    } else if let Some(rest) = rest.strip_prefix("in") {
        Condition::In(values(rest)?)
    } else {
        return Err(unreadable(text, &format!("found '{rest}', expected: in, notin, =, ==, !=, gt, lt")));
    };
    Ok((label_key(key, text)?, condition))
}

fn label_key(key: &str, text: &str) -> Result<String, ApiStatus> {
    match syntax::qualified_name(key).first() {
        None => Ok(key.to_owned()),
        Some(why) => Err(unreadable(text, &format!("key: Invalid value: {key:?}: {why}"))),
    }
}

fn label_value(value: &str, text: &str) -> Result<String, ApiStatus> {
    match syntax::label_value(value).first() {
        None => Ok(value.to_owned()),
        Some(why) => Err(unreadable(text, &format!("values: Invalid value: {value:?}: {why}"))),
    }
}

/// A field selector in the format of `kubectl --field-selector`: all its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldRequirement>);

/// A requirement of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// Path of the field, such as `spec.nodeName`.
    pub field: String,
    /// The value with which the field is compared. A missing field counts as empty.
    pub value: String,
    /// The operator.
    pub comparison: Comparison,
}

/// The operator of a field requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`.
    Equal,
    /// `!=`.
    Unequal,
}

impl FieldSelector {
    /// Parses a text such as `a=b,c!=d`. A `\` escapes the next character.
    ///
    /// # Errors
    /// 400 for a term without an operator or with an invalid escape.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        let mut requirements = Vec::new();
        for term in terms(text).into_iter().filter(|term| !term.is_empty()) {
            let (field, comparison, value) = split_term(term).ok_or_else(|| {
                ApiStatus::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'"))
            })?;
            requirements.push(FieldRequirement { field: field.to_owned(), value: unescaped(value)?, comparison });
        }
        Ok(Self(requirements))
    }

    /// The requirements.
    pub fn terms(&self) -> &[FieldRequirement] {
        &self.0
    }

    /// Whether the selector has no requirements and so selects every object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that the selector requires with `metadata.name=…`; none without this requirement.
    pub fn exact_name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|term| term.field == "metadata.name" && term.comparison == Comparison::Equal)
            .map(|term| term.value.as_str())
    }

    /// The requirements in the form of a `SubjectAccessReview`.
    pub fn requirements(&self) -> Vec<Value> {
        let requirement = |term: &FieldRequirement| {
            let operator = match term.comparison {
                Comparison::Equal => "In",
                Comparison::Unequal => "NotIn",
            };
            json!({"key": term.field, "operator": operator, "values": [term.value]})
        };
        self.0.iter().map(requirement).collect()
    }

    /// Whether an object meets all requirements.
    pub fn matches(&self, object: &Value) -> bool {
        self.matches_where(|field| match field.split('.').try_fold(object, |value, part| value.get(part)) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        })
    }

    /// Whether an object meets all requirements. `text_of` returns the value of a field, and nothing for a missing field.
    pub fn matches_where(&self, text_of: impl Fn(&str) -> String) -> bool {
        self.0.iter().all(|term| {
            let text = text_of(&term.field);
            // A missing boolean is false.
            let text = if text.is_empty() && (term.value == "false" || term.value == "true") {
                "false".to_owned()
            } else {
                text
            };
            (text == term.value) == (term.comparison == Comparison::Equal)
        })
    }
}

/// The terms of a field selector, which commas separate. An escaped comma does not separate.
fn terms(text: &str) -> Vec<&str> {
    let (mut start, mut is_escaped, mut found) = (0, false, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found
}

/// Field, operator and value of a term. The first operator counts.
fn split_term(term: &str) -> Option<(&str, Comparison, &str)> {
    let at = term.find("!=").into_iter().chain(term.find('=')).min()?;
    let (field, rest) = term.split_at(at);
    let operators = [("!=", Comparison::Unequal), ("==", Comparison::Equal), ("=", Comparison::Equal)];
    operators.into_iter().find_map(|(operator, comparison)| Some((field, comparison, rest.strip_prefix(operator)?)))
}

/// A value without its escapes. Backslashes, commas and equals signs are escaped with a backslash.
fn unescaped(value: &str) -> Result<String, ApiStatus> {
    let wrong = |what: &str| ApiStatus::bad_request(format!("invalid field selector: {what} in value '{value}'"));
    let (mut plain, mut is_escaped) = (String::with_capacity(value.len()), false);
    for character in value.chars() {
        match (is_escaped, character) {
            (true, '\\' | ',' | '=') => {
                plain.push(character);
                is_escaped = false;
            }
            (true, _) => return Err(wrong("invalid escape sequence")),
            (false, '\\') => is_escaped = true,
            (false, ',' | '=') => return Err(wrong(&format!("unescaped character '{character}'"))),
            (false, _) => plain.push(character),
        }
    }
    if is_escaped { Err(wrong("invalid escape sequence")) } else { Ok(plain) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::equal("a=1", true)]
    #[case::double("a==1,b=x", true)]
    #[case::unequal("a!=1", false)]
    #[case::absent_is_unequal("c!=1", true)]
    #[case::one_of("b in (x, y)", true)]
    #[case::none_of("b notin (x,y)", false)]
    #[case::exists("a", true)]
    #[case::absent("!a", false)]
    #[case::above("a>0", true)]
    #[case::below("a<1", false)]
    #[case::everything("", true)]
    fn label_selectors(#[case] text: &str, #[case] expected: bool) {
        let object = json!({"metadata": {"labels": {"a": "1", "b": "x"}}});
        assert_eq!(LabelSelector::parse(text).unwrap().matches(&object), expected);
    }

    #[rstest]
    #[case::xa_119_blank("a b")]
    #[case::xa_119_no_number("a>b")]
    #[case::bad_value("a=b c")]
    #[case::double_comma("a,,b")]
    #[case::a_value_that_ends_in_a_hyphen("a=b-")]
    #[case::a_key_with_two_slashes("a/b/c=d")]
    #[case::a_prefix_in_capitals("A.b/c")]
    #[case::a_long_value("a=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")]
    fn unreadable_label_selectors(#[case] text: &str) {
        let refused = LabelSelector::parse(text).unwrap_err();
        assert!(refused.message.contains("unable to parse requirement"), "{refused}");
    }

    #[rstest]
    #[case::equal("spec.nodeName=n", true)]
    #[case::absent_is_empty("spec.other=", true)]
    #[case::unequal("metadata.name!=x,spec.nodeName==n", true)]
    #[case::an_absent_flag_is_false("spec.unschedulable=false", true)]
    #[case::an_escaped_comma(r"spec.id=a\,b\=c\\d", true)]
    #[case::an_escaped_comma_and_another_term(r"spec.id=a\,b\=c\\d,metadata.name=x", false)]
    #[case::the_first_operator_counts("spec.odd==\\=", true)]
    fn field_selectors(#[case] text: &str, #[case] expected: bool) {
        let object = json!({"metadata": {"name": "y"}, "spec": {"nodeName": "n", "id": "a,b=c\\d", "odd": "="}});
        assert_eq!(FieldSelector::parse(text).unwrap().matches(&object), expected);
    }

    #[rstest]
    #[case::no_operator("abc", "invalid selector: 'abc'; can't understand 'abc'")]
    #[case::an_operator_too_many("a=b!=c", "unescaped character '='")]
    #[case::an_unknown_escape(r"a=\b", "invalid escape sequence")]
    #[case::an_escape_of_nothing(r"a=b\", "invalid escape sequence")]
    fn unreadable_field_selectors(#[case] text: &str, #[case] why: &str) {
        let refused = FieldSelector::parse(text).unwrap_err();
        assert!(refused.code == 400 && refused.message.contains(why), "{refused}");
    }
}
