//! Objects with Helm conditions: two variants of an object become one template.
//!
//! A variant is what the code generates for one setting. [`choose`] compares two variants and puts a condition around the parts that
//! differ, so that a template has no more logic than the settings need. Nothing here knows an object of ours.

use std::{collections::VecDeque, fmt::Write};

use serde_json::Value;

/// A Helm expression that is true or false, such as `.Values.crds.keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition(pub &'static str);

/// Whether a condition must hold for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    True,
    False,
}

/// A text in an object, and the Helm expression that takes its place.
#[derive(Clone, Copy, Debug)]
pub struct Placeholder {
    /// The text.
    pub text: &'static str,
    /// What Helm reads instead, with its braces.
    pub expression: &'static str,
}

/// A part of an object, with the conditions under which it exists.
#[derive(Clone, Debug, PartialEq)]
pub struct ConditionalPart {
    when: Vec<(Condition, Wanted)>,
    node: Node,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Scalar(Value),
    Map(Vec<(String, ConditionalPart)>),
    List(Vec<ConditionalPart>),
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        match value {
            Value::Object(fields) => {
                Self::Map(fields.iter().map(|(key, value)| (key.clone(), ConditionalPart::always(value))).collect())
            }
            Value::Array(items) => Self::List(items.iter().map(ConditionalPart::always).collect()),
            scalar => Self::Scalar(scalar.clone()),
        }
    }
}

impl Node {
    /// What distinguishes an object from its neighbours: kind, namespace and name, or the name in a list of named items.
    fn identity(&self) -> Option<[Option<&str>; 3]> {
        let name = self.text("name");
        let metadata = self.field("metadata");
        let of_object = metadata.and_then(|metadata| metadata.text("name"));
        let namespace = metadata.and_then(|metadata| metadata.text("namespace"));
        name.or(of_object).map(|name| [self.text("kind"), namespace, Some(name)])
    }

    fn field(&self, key: &str) -> Option<&Self> {
        let Self::Map(fields) = self else { return None };
        fields.iter().find(|(name, _)| name == key).map(|(_, part)| &part.node)
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.field(key)? {
            Self::Scalar(value) => value.as_str(),
            Self::Map(_) | Self::List(_) => None,
        }
    }
}

impl ConditionalPart {
    fn always(value: &Value) -> Self {
        Self { when: Vec::new(), node: Node::from(value) }
    }

    fn only(mut self, condition: Condition, wanted: Wanted) -> Self {
        self.when.insert(0, (condition, wanted));
        self
    }

    /// Whether both are the same part of two variants, perhaps with different content.
    fn is_same_part(&self, other: &Self) -> bool {
        let named = self.node.identity();
        self.when == other.when && (self.node == other.node || (named.is_some() && named == other.node.identity()))
    }
}

/// The objects of one setting.
pub fn variant(objects: &[Value]) -> Vec<ConditionalPart> {
    objects.iter().map(ConditionalPart::always).collect()
}

/// One template for both variants of a condition. Parts with the same name, and equal parts, are one.
pub fn choose(condition: Condition, yes: Vec<ConditionalPart>, no: Vec<ConditionalPart>) -> Vec<ConditionalPart> {
    let (mut merged, mut no) = (Vec::new(), VecDeque::from(no));
    for part in yes {
        // What stands before the same part in the other variant is only there.
        let Some(ahead) = no.iter().position(|other| part.is_same_part(other)) else {
            merged.push(part.only(condition, Wanted::True));
            continue;
        };
        merged.extend(no.drain(..ahead).map(|other| other.only(condition, Wanted::False)));
        merged.extend(no.pop_front().into_iter().flat_map(|other| merge(condition, part.clone(), other)));
    }
    merged.extend(no.into_iter().map(|other| other.only(condition, Wanted::False)));
    merged
}

/// One template for both variants of a condition that changes the names of the objects, but not their number and their order.
pub fn choose_names(condition: Condition, yes: Vec<ConditionalPart>, no: Vec<ConditionalPart>) -> Vec<ConditionalPart> {
    yes.into_iter().zip(no).flat_map(|(yes, no)| merge(condition, yes, no)).collect()
}

/// One part, or two that exclude each other.
fn merge(condition: Condition, yes: ConditionalPart, no: ConditionalPart) -> Vec<ConditionalPart> {
    if yes == no {
        return vec![yes];
    }
    let when = yes.when.clone();
    match (yes.node, no.node) {
        (Node::Map(yes), Node::Map(no)) => {
            vec![ConditionalPart { when, node: Node::Map(merge_maps(condition, yes, no)) }]
        }
        (Node::List(yes), Node::List(no)) if !yes.is_empty() && !no.is_empty() => {
            vec![ConditionalPart { when, node: Node::List(choose(condition, yes, no)) }]
        }
        (yes, no) => vec![
            ConditionalPart { when: when.clone(), node: yes }.only(condition, Wanted::True),
            ConditionalPart { when, node: no }.only(condition, Wanted::False),
        ],
    }
}

type Fields = Vec<(String, ConditionalPart)>;

fn merge_maps(condition: Condition, yes: Fields, mut no: Fields) -> Fields {
    let mut merged = Vec::new();
    for (key, part) in yes {
        let other = no.iter().position(|(name, other)| *name == key && other.when == part.when);
        match other {
            Some(place) => {
                let (_, other) = no.remove(place);
                merged.extend(merge(condition, part, other).into_iter().map(|part| (key.clone(), part)));
            }
            None => merged.push((key, part.only(condition, Wanted::True))),
        }
    }
    merged.extend(no.into_iter().map(|(key, part)| (key, part.only(condition, Wanted::False))));
    merged.sort_by(|(one, _), (other, _)| one.cmp(other));
    merged
}

/// The objects as a Helm template, `---` before each.
pub fn to_template(objects: &[ConditionalPart], placeholders: &[Placeholder]) -> String {
    let mut writer = Writer { text: String::new(), placeholders };
    for object in objects {
        writer.guarded(&object.when, |writer| {
            writer.text.push_str("---\n");
            writer.node(&object.node, 0);
        });
    }
    writer.text
}

/// An item of a list, and the Helm expression under which it exists.
pub struct Item {
    /// The expression.
    pub when: String,
    /// The item, a map.
    pub value: Value,
}

/// The items of a list as a part of a Helm template.
pub fn to_items(items: &[Item], indent: usize, placeholders: &[Placeholder]) -> String {
    let mut writer = Writer { text: String::new(), placeholders };
    for item in items {
        writer.line(0, &format!("{{{{- if {} }}}}", item.when));
        writer.entry("-", &Node::from(&item.value), indent);
        writer.line(0, "{{- end }}");
    }
    writer.text
}

struct Writer<'a> {
    text: String,
    placeholders: &'a [Placeholder],
}

impl Writer<'_> {
    fn guarded(&mut self, when: &[(Condition, Wanted)], write: impl FnOnce(&mut Self)) {
        let terms: Vec<String> = when.iter().map(|(condition, wanted)| term(*condition, *wanted)).collect();
        match terms.as_slice() {
            [] => return write(self),
            [one] => self.line(0, &format!("{{{{- if {one} }}}}")),
            several => self.line(0, &format!("{{{{- if and {} }}}}", several.join(" "))),
        }
        write(self);
        self.line(0, "{{- end }}");
    }

    fn line(&mut self, indent: usize, text: &str) {
        let _ = writeln!(self.text, "{:indent$}{text}", "");
    }

    fn node(&mut self, node: &Node, indent: usize) {
        match node {
            Node::Scalar(value) => {
                let text = self.scalar(value);
                self.line(indent, &text);
            }
            Node::Map(fields) => {
                for (key, part) in fields {
                    let key = plain_or_quoted(key);
                    self.guarded(&part.when, |writer| writer.entry(&format!("{key}:"), &part.node, indent));
                }
            }
            Node::List(items) => {
                for item in items {
                    self.guarded(&item.when, |writer| writer.entry("-", &item.node, indent));
                }
            }
        }
    }

    /// A key or a dash, with its value on the same line if it is a scalar.
    fn entry(&mut self, head: &str, node: &Node, indent: usize) {
        let inline = match node {
            Node::Scalar(value) => self.scalar(value),
            Node::Map(fields) if fields.is_empty() => "{}".to_owned(),
            Node::List(items) if items.is_empty() => "[]".to_owned(),
            Node::Map(_) | Node::List(_) => {
                self.line(indent, head);
                return self.node(node, indent + 2);
            }
        };
        self.line(indent, &format!("{head} {inline}"));
    }

    /// A scalar of YAML. Braces of the text are no expressions of Helm; those of the placeholders are.
    fn scalar(&self, value: &Value) -> String {
        let text = value.as_str().map_or_else(|| value.to_string(), plain_or_quoted);
        let escaped = text.replace("{{", "{{`{{`}}");
        self.placeholders
            .iter()
            .fold(escaped, |text, placeholder| text.replace(placeholder.text, placeholder.expression))
    }
}

fn term(condition: Condition, wanted: Wanted) -> String {
    let Condition(expression) = condition;
    let expression = if expression.contains(' ') { format!("({expression})") } else { expression.to_owned() };
    match wanted {
        Wanted::True => expression,
        Wanted::False => format!("(not {expression})"),
    }
}

/// A text of JSON is a text of YAML. Words that YAML can't mistake for anything else need no quotes.
fn plain_or_quoted(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_word = begins && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '/' | '_'));
    let reserved = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    if is_word && !reserved.contains(&text.to_lowercase().as_str()) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEEP: Condition = Condition(".Values.keep");
    const WIDE: Condition = Condition("eq .Values.scope \"wide\"");

    #[test]
    fn equal_variants_have_no_condition() {
        let objects = [json!({"kind": "A", "metadata": {"name": "a"}})];
        let text = to_template(&choose(KEEP, variant(&objects), variant(&objects)), &[]);
        assert_eq!(text, "---\nkind: A\nmetadata:\n  name: a\n");
    }

    #[test]
    fn only_what_differs_has_a_condition() {
        let object = |value: Value| [json!({"kind": "A", "metadata": {"name": "a"}, "spec": {"size": value, "x": 1}})];
        let text = to_template(&choose(KEEP, variant(&object(json!(1))), variant(&object(json!("2")))), &[]);
        let wanted = "---\nkind: A\nmetadata:\n  name: a\nspec:\n{{- if .Values.keep }}\n  size: 1\n{{- end }}\n\
                      {{- if (not .Values.keep) }}\n  size: \"2\"\n{{- end }}\n  x: 1\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn items_and_objects_that_only_one_variant_has_keep_their_place() {
        let list = |names: &[&str]| -> Vec<ConditionalPart> {
            variant(&names.iter().map(|name| json!({"kind": "A", "metadata": {"name": name}})).collect::<Vec<_>>())
        };
        let names = |parts: &[ConditionalPart]| -> Vec<String> {
            parts
                .iter()
                .map(|part| format!("{:?} {}", part.node.identity().unwrap()[2].unwrap(), part.when.len()))
                .collect()
        };
        let merged = choose(KEEP, list(&["a", "b", "d"]), list(&["a", "c", "d", "e"]));
        assert_eq!(names(&merged), ["\"a\" 0", "\"b\" 1", "\"c\" 1", "\"d\" 0", "\"e\" 1"]);
    }

    #[test]
    fn a_name_that_depends_on_a_setting_is_all_that_has_a_condition() {
        let of = |name: &str| variant(&[json!({"kind": "A", "metadata": {"name": name}, "spec": {"x": 1}})]);
        let text = to_template(&choose_names(KEEP, of("a"), of("b")), &[]);
        assert_eq!(text.matches("kind: A\n").count(), 1);
        assert_eq!(text.matches("{{- if").count(), 2);
    }

    #[test]
    fn conditions_of_two_settings_are_combined() {
        let of = |wide: bool, keep: bool| variant(&[json!({"kind": "A", "name": "a", "both": wide && keep})]);
        let merged = choose(
            WIDE,
            choose(KEEP, of(true, true), of(true, false)),
            choose(KEEP, of(false, true), of(false, false)),
        );
        let text = to_template(&merged, &[]);
        assert!(text.contains("{{- if and (eq .Values.scope \"wide\") .Values.keep }}\nboth: true\n"), "{text}");
        assert!(text.contains("(not (eq .Values.scope \"wide\"))"), "{text}");
    }

    #[test]
    fn an_item_of_a_list_has_its_own_condition() {
        let item = Item { when: "has \"a\" .Values.with".to_owned(), value: json!({"a": "{{ $labels.b }}"}) };
        let wanted = "{{- if has \"a\" .Values.with }}\n  -\n    a: \"{{`{{`}} $labels.b }}\"\n{{- end }}\n";
        assert_eq!(to_items(&[item], 2, &[]), wanted);
    }

    #[test]
    fn braces_of_a_text_are_no_expressions_and_placeholders_are() {
        let placeholder = Placeholder { text: "<namespace>", expression: "{{ .Release.Namespace }}" };
        let objects = [json!({"a": "with {{braces}}", "b": "in <namespace>", "c": "no", "d": "1"})];
        let text = to_template(&variant(&objects), &[placeholder]);
        let wanted = "---\na: \"with {{`{{`}}braces}}\"\nb: \"in {{ .Release.Namespace }}\"\nc: \"no\"\nd: \"1\"\n";
        assert_eq!(text, wanted);
    }
}
