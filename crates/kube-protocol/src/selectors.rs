//! Label and field selectors of lists and watches.
//!
//! Source: spec/extension-apiserver §2.6.

use serde_json::{Value, json};

use super::status::ApiStatus;
use kube_values::syntax;

/// One demand on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Demand {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

/// A label selector, as `kubectl -l` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<(String, Demand)>);

impl LabelSelector {
    /// Reads `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// 400 with the requirement that can't be read.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        let mut demands = Vec::new();
        for part in split_outside_parentheses(text) {
            let part = part.trim();
            if part.is_empty() {
                if text.trim().is_empty() {
                    continue;
                }
                return Err(unreadable(text, "found ','"));
            }
            demands.push(requirement(part)?);
        }
        Ok(Self(demands))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its demands as reviews of access write them. Comparisons of numbers have no such form and are left out.
    pub fn requirements(&self) -> Vec<Value> {
        let requirement = |(key, demand): &(String, Demand)| match demand {
            Demand::In(values) => Some(json!({"key": key, "operator": "In", "values": values})),
            Demand::NotIn(values) => Some(json!({"key": key, "operator": "NotIn", "values": values})),
            Demand::Exists => Some(json!({"key": key, "operator": "Exists"})),
            Demand::Absent => Some(json!({"key": key, "operator": "DoesNotExist"})),
            Demand::Above(_) | Demand::Below(_) => None,
        };
        self.0.iter().filter_map(requirement).collect()
    }

    /// Whether an object's labels meet all demands.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|(key, demand)| {
            let value = labels.get(key).and_then(Value::as_str);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match demand {
                Demand::In(values) => value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
                Demand::NotIn(values) => !value.is_some_and(|value| values.iter().any(|wanted| wanted == value)),
                Demand::Exists => value.is_some(),
                Demand::Absent => value.is_none(),
                Demand::Above(bound) => number().is_some_and(|number| number > *bound),
                Demand::Below(bound) => number().is_some_and(|number| number < *bound),
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

fn requirement(text: &str) -> Result<(String, Demand), ApiStatus> {
    let values = |rest: &str| -> Result<Vec<String>, ApiStatus> {
        let inner = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        let inner = inner.ok_or_else(|| unreadable(text, "expected '('"))?;
        inner.split(',').map(|value| label_value(value.trim(), text)).collect()
    };
    if let Some(key) = text.strip_prefix('!') {
        return Ok((label_key(key.trim(), text)?, Demand::Absent));
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, value)) = text.split_once(operator) {
            let wanted = vec![label_value(value.trim(), text)?];
            let demand = if negated { Demand::NotIn(wanted) } else { Demand::In(wanted) };
            return Ok((label_key(key.trim(), text)?, demand));
        }
    }
    for operator in ['>', '<'] {
        if let Some((key, bound)) = text.split_once(operator) {
            let bound = bound.trim().parse().map_err(|_| {
                unreadable(text, "values[0]: Invalid value: for 'Gt', 'Lt' operators, the value must be an integer")
            })?;
            let demand = if operator == '>' { Demand::Above(bound) } else { Demand::Below(bound) };
            return Ok((label_key(key.trim(), text)?, demand));
        }
    }
    let (key, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let demand = if rest.is_empty() {
        Demand::Exists
    } else if let Some(rest) = rest.strip_prefix("notin") {
        Demand::NotIn(values(rest)?)
    } else if let Some(rest) = rest.strip_prefix("in") {
        Demand::In(values(rest)?)
    } else {
        return Err(unreadable(text, &format!("found '{rest}', expected: in, notin, =, ==, !=, gt, lt")));
    };
    Ok((label_key(key, text)?, demand))
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

/// A field selector, as `kubectl --field-selector` writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldDemand>);

/// One demand on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDemand {
    /// Path of the field, such as `spec.nodeName`.
    pub field: String,
    /// What it is compared with; absent fields count as empty.
    pub value: String,
    /// Whether it must be equal.
    pub comparison: Comparison,
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`.
    Equal,
    /// `!=`.
    Unequal,
}

impl FieldSelector {
    /// Reads `a=b,c!=d`, where `\` takes the meaning of the next character away.
    ///
    /// # Errors
    /// 400 for a term without operator.
    pub fn parse(text: &str) -> Result<Self, ApiStatus> {
        let mut demands = Vec::new();
        for term in terms(text).into_iter().filter(|term| !term.is_empty()) {
            let (field, comparison, value) = split_term(term).ok_or_else(|| {
                ApiStatus::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'"))
            })?;
            demands.push(FieldDemand { field: field.to_owned(), value: unescaped(value)?, comparison });
        }
        Ok(Self(demands))
    }

    /// Its demands.
    pub fn demands(&self) -> &[FieldDemand] {
        &self.0
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one name that it demands, if it does.
    pub fn exact_name(&self) -> Option<&str> {
        self.0
            .iter()
            .find(|demand| demand.field == "metadata.name" && demand.comparison == Comparison::Equal)
            .map(|demand| demand.value.as_str())
    }

    /// Its demands as reviews of access write them.
    pub fn requirements(&self) -> Vec<Value> {
        let requirement = |demand: &FieldDemand| {
            let operator = match demand.comparison {
                Comparison::Equal => "In",
                Comparison::Unequal => "NotIn",
            };
            json!({"key": demand.field, "operator": operator, "values": [demand.value]})
        };
        self.0.iter().map(requirement).collect()
    }

    /// Whether an object meets all demands.
    pub fn matches(&self, object: &Value) -> bool {
        self.matches_where(|field| field.split('.').try_fold(object, |value, part| value.get(part)))
    }

    /// Whether an object meets all demands whose fields `find` finds.
    pub fn matches_where<'a>(&self, find: impl Fn(&str) -> Option<&'a Value>) -> bool {
        self.0.iter().all(|demand| {
            let found = find(&demand.field);
            let text = match found {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            // A flag that is absent is false.
            let text = if text.is_empty() && (demand.value == "false" || demand.value == "true") {
                "false".to_owned()
            } else {
                text
            };
            (text == demand.value) == (demand.comparison == Comparison::Equal)
        })
    }
}

/// The terms of a field selector: what commas part that are not escaped.
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

/// Field, comparison and value of a term; the first operator parts them.
fn split_term(term: &str) -> Option<(&str, Comparison, &str)> {
    let at = term.find("!=").into_iter().chain(term.find('=')).min()?;
    let (field, rest) = term.split_at(at);
    let operators = [("!=", Comparison::Unequal), ("==", Comparison::Equal), ("=", Comparison::Equal)];
    operators.into_iter().find_map(|(operator, comparison)| Some((field, comparison, rest.strip_prefix(operator)?)))
}

/// A value without its escapes: a backslash stands before itself, commas and equals signs.
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
    #[case::the_first_operator_parts("spec.odd==\\=", true)]
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
