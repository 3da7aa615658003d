//! Field paths and field errors; the collection that rules add them to is in [`findings`].
//!
//! Texts follow Kubernetes' `field.Error` (k8s.io/apimachinery/pkg/util/validation/field), so that a denial reads like
//! the API server's own.

mod findings;

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
};

use serde_json::Value;

pub use self::findings::{FINDINGS_MAX, Finding, Findings, RuleId, Severity, in_one_line, more};

/// Longest value in a text, in characters.
pub const VALUE_MAX: usize = 200;
/// Longest path in a text, in characters: a place in a map under the longest key that Kubernetes knows.
const PATH_MAX: usize = 500;
/// Longest explanation in a text, in characters.
const DETAIL_MAX: usize = 1000;
/// Longest word of a user inside an explanation, in characters.
const WORD_MAX: usize = 60;

/// Where in an object something is: `spec.template.spec.class.name`, `list[0]`, `map[key]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Cow<'static, str>);

impl FieldPath {
    /// A path with this first segment; the empty string is the object itself.
    pub fn new(root: impl Into<Cow<'static, str>>) -> Self {
        Self(root.into())
    }

    /// `self.name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        let path = if self.0.is_empty() { name.to_owned() } else { [self.as_str(), ".", name].concat() };
        Self(Cow::Owned(path))
    }

    /// `self[index]`, an element of a list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(Cow::Owned(format!("{}[{index}]", self.0)))
    }

    /// `self[key]`, a value of a map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(Cow::Owned([self.as_str(), "[", key, "]"].concat()))
    }

    /// The fields around both, or the path itself if both are the same. Never a value of a map or an element of a list, whose
    /// keys are a user's.
    fn around(self, other: &Self) -> Self {
        fn fields(path: &FieldPath) -> impl Iterator<Item = &str> {
            path.0.split('[').take(1).flat_map(|fields| fields.split('.'))
        }
        let is_below = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        let is_around = !self.0.contains('[') && other.0.strip_prefix(&*self.0).is_some_and(is_below);
        if self == *other || is_around {
            return self;
        }
        let both = fields(&self).zip(fields(other)).take_while(|(own, other)| own == other);
        let names: Vec<&str> = both.map(|(name, _)| name).collect();
        Self(Cow::Owned(names.join(".")))
    }

    /// The path as it is printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Hashes the path with the numbers of list elements taken out; two findings that differ only there are the same
    /// problem.
    fn hash_without_indexes(&self, hasher: &mut impl Hasher) {
        let mut rest = self.as_str();
        while let Some(open) = rest.find('[') {
            let Some(len) = rest[open..].find(']') else { break };
            let inside = &rest[open + 1..open + len];
            hasher.write(&rest.as_bytes()[..open]);
            if inside.bytes().all(|byte| byte.is_ascii_digit()) {
                hasher.write(b"[]");
            } else {
                hasher.write(&rest.as_bytes()[open..=open + len]);
            }
            rest = &rest[open + len + 1..];
        }
        rest.hash(hasher);
    }

    /// Whether values at this path may be secret and must not be printed (spec/api-and-admission §4.6).
    fn is_sensitive(&self) -> bool {
        const WORDS: [&str; 6] = ["secret", "password", "token", "userdata", "credential", "privatekey"];
        let lower = self.0.to_ascii_lowercase();
        let last = lower.rsplit('.').next().unwrap_or_default();
        let names_a_reference = matches!(last, "name" | "namespace") && lower.contains("ref.");
        !names_a_reference && WORDS.iter().any(|word| lower.contains(word))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a field, in Kubernetes' categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// It must be there and is not.
    Required,
    /// It is there and wrong.
    Invalid,
    /// It is none of the allowed words.
    NotSupported,
    /// It must not be there.
    Forbidden,
    /// It stands elsewhere already.
    Duplicate,
    /// It is longer than allowed.
    TooLong,
    /// It has the wrong JSON type.
    TypeInvalid,
}

impl ErrorKind {
    /// The reason in `status.details.causes[]`.
    pub const fn cause_reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::TooLong => "Too long",
        }
    }
}

/// One thing wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// Where.
    pub path: FieldPath,
    /// What kind of mistake.
    pub kind: ErrorKind,
    /// The offending value, printed for the kinds that print one; [`Findings`] cut it.
    pub value: Value,
    /// What would be right.
    pub detail: Cow<'static, str>,
}

impl FieldError {
    /// The text after the path: `Invalid value: "x": detail`. This is a cause's message.
    pub fn message(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if matches!(
            self.kind,
            ErrorKind::Invalid | ErrorKind::TypeInvalid | ErrorKind::NotSupported | ErrorKind::Duplicate
        ) {
            text.push_str(": ");
            text.push_str(&self.printed_value());
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    fn printed_value(&self) -> String {
        if self.path.is_sensitive() && !self.value.is_null() {
            return "\"***\"".to_owned();
        }
        // Go prints a missing value as the empty string.
        if self.value.is_null() { "\"\"".to_owned() } else { cut(self.value.to_string(), VALUE_MAX) }
    }

    /// The same error with every text cut to what a person reads.
    fn abridged(self) -> Self {
        let detail = match self.detail {
            Cow::Owned(text) => Cow::Owned(cut(text, DETAIL_MAX)),
            constant @ Cow::Borrowed(_) => constant,
        };
        let path = match self.path.0 {
            Cow::Owned(text) => FieldPath(Cow::Owned(cut(text, PATH_MAX))),
            constant @ Cow::Borrowed(_) => FieldPath(constant),
        };
        // Room for the quotes and the mark of what was cut.
        let mut room = VALUE_MAX - 3;
        let value = if fits(&self.value, &mut room) { self.value } else { pruned(&self.value, &mut (VALUE_MAX - 3)) };
        Self { path, kind: self.kind, value, detail }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.as_str().is_empty() {
            f.write_str(&self.message())
        } else {
            write!(f, "{}: {}", self.path, self.message())
        }
    }
}

/// A text cut to so many characters, the last of which then says that something is missing.
pub fn cut(mut text: String, max_chars: usize) -> String {
    // Most texts are short enough in bytes already.
    if text.len() > max_chars && text.chars().nth(max_chars).is_some() {
        let end = text.char_indices().nth(max_chars.saturating_sub(1)).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// A user's word for an explanation: quoted, and cut to what a person can read.
pub fn quoted(word: &str) -> String {
    match word.char_indices().nth(WORD_MAX) {
        Some((end, _)) => format!("{:?}…", &word[..end]),
        None => format!("{word:?}"),
    }
}

/// The first few of many texts and the number of the others: `a, b and 3 more`.
#[derive(Debug, Default)]
pub struct FirstFew {
    first: Vec<String>,
    others: usize,
}

impl FirstFew {
    const SHOWN: usize = 3;

    /// Adds a text, which is made only if it is shown.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        if self.first.len() < Self::SHOWN { self.first.push(text()) } else { self.others += 1 }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The texts in one line, with this between them.
    pub fn joined(&self, separator: &str) -> String {
        let shown = self.first.join(separator);
        if self.others == 0 { shown } else { format!("{shown}{separator}and {} more", self.others) }
    }
}

/// Whether a value has so few characters and members that it may be kept as it is; takes off what it has.
fn fits(value: &Value, room: &mut usize) -> bool {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Array(elements) => 2 + elements.len(),
        Value::Object(members) => 2 + members.keys().map(|key| key.len() + 4).take(VALUE_MAX).sum::<usize>(),
        _ => 1,
    };
    let Some(left) = room.checked_sub(own) else { return false };
    *room = left;
    match value {
        Value::Array(elements) => elements.iter().all(|element| fits(element, room)),
        Value::Object(members) => members.values().all(|member| fits(member, room)),
        _ => true,
    }
}

/// The beginning of a value.
fn pruned(value: &Value, room: &mut usize) -> Value {
    match value {
        Value::String(text) => {
            let kept = cut_to(text, *room);
            *room = room.saturating_sub(text.len());
            Value::String(kept)
        }
        Value::Array(elements) => {
            let mut kept = Vec::new();
            for element in elements {
                if *room == 0 {
                    kept.push(Value::from("…"));
                    break;
                }
                *room = room.saturating_sub(1);
                kept.push(pruned(element, room));
            }
            Value::Array(kept)
        }
        Value::Object(members) => {
            let mut kept = serde_json::Map::new();
            for (key, member) in members {
                if *room == 0 {
                    break;
                }
                let name = cut_to(key, *room);
                *room = room.saturating_sub(key.len() + 4);
                kept.insert(name, pruned(member, room));
            }
            Value::Object(kept)
        }
        other => other.clone(),
    }
}

fn cut_to(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => [&text[..end], "…"].concat(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn error(kind: ErrorKind, path: &str, value: Value, detail: &'static str) -> FieldError {
        FieldError { path: FieldPath::new(path.to_owned()), kind, value, detail: detail.into() }
    }

    #[rstest]
    #[case::required(
        error(ErrorKind::Required, "spec.class.name", Value::Null, "Name is required"),
        "spec.class.name: Required value: Name is required"
    )]
    #[case::strings_are_quoted(error(ErrorKind::Invalid, "a", json!("x"), "must be y"), "a: Invalid value: \"x\": must be y")]
    #[case::numbers_are_bare(error(ErrorKind::Invalid, "a", json!(-1), "must be positive"), "a: Invalid value: -1: must be positive")]
    #[case::secrets_are_hidden(error(ErrorKind::Invalid, "providerSpec.userData", json!("x"), "bad"), "providerSpec.userData: Invalid value: \"***\": bad")]
    #[case::names_of_secrets_are_shown(error(ErrorKind::Invalid, "secretRef.name", json!("x"), "bad"), "secretRef.name: Invalid value: \"x\": bad")]
    #[case::forbidden_prints_no_value(error(ErrorKind::Forbidden, "a", json!("x"), "may not be set"), "a: Forbidden: may not be set")]
    fn an_error_reads_like_the_api_servers(#[case] error: FieldError, #[case] text: &str) {
        assert_eq!(error.to_string(), text);
    }

    #[rstest]
    #[case::numbers_of_elements("a[0].b[key].c[12]", "a[7].b[key].c[1]", true)]
    #[case::keys_of_a_map("a[0].b[key]", "a[0].b[other]", false)]
    #[case::fields("a.b", "a.c", false)]
    fn list_numbers_do_not_make_another_place(
        #[case] one: &'static str,
        #[case] other: &'static str,
        #[case] same: bool,
    ) {
        let hashed = |path: &'static str| {
            let mut hasher = std::hash::DefaultHasher::new();
            FieldPath::new(path).hash_without_indexes(&mut hasher);
            hasher.finish()
        };
        assert_eq!(hashed(one) == hashed(other), same);
    }

    #[rstest]
    #[case::one_place("a.b[k]", "a.b[k]", "a.b[k]")]
    #[case::values_of_a_map("a.b[k]", "a.b[l]", "a.b")]
    #[case::keys_that_look_like_paths("a.b[k].c[l", "a.b[k].c[m", "a.b")]
    #[case::below("a.b", "a.b.c", "a.b")]
    #[case::beside("a.bc", "a.bd", "a")]
    #[case::a_name_that_begins_alike("a.b", "a.bc", "a")]
    #[case::nothing_in_common("a", "b", "")]
    fn what_is_around_two_places(#[case] one: &'static str, #[case] other: &'static str, #[case] both: &str) {
        let around = |one, other| FieldPath::new(one).around(&FieldPath::new(other));
        assert_eq!((around(one, other).as_str(), around(other, one).as_str()), (both, both));
    }

    #[rstest]
    #[case::a_long_text(json!("ä".repeat(5_000)))]
    #[case::a_text_of_quotes(json!("\"".repeat(5_000)))]
    #[case::a_long_list(json!(vec![1; 5_000]))]
    #[case::a_long_map(Value::Object((0..5_000).map(|n| (format!("key-{n}"), json!("value"))).collect()))]
    #[case::a_long_key(json!({"k".repeat(5_000): {"a": [1, 2, {"b": "c".repeat(900)}]}}))]
    #[case::deep(json!([[[[[[[["x".repeat(300), "y".repeat(300)]]]]]]]]))]
    fn a_long_value_is_cut(#[case] value: Value) {
        let error = FieldError { path: FieldPath::new("a"), kind: ErrorKind::Invalid, value, detail: "bad".into() };
        let kept = error.clone().abridged();
        assert!(kept.value.to_string().len() < 1_000, "{}", kept.value);
        for text in [error.to_string(), kept.to_string()] {
            let printed = text.strip_prefix("a: Invalid value: ").and_then(|text| text.strip_suffix(": bad")).unwrap();
            assert!(printed.chars().count() <= VALUE_MAX && printed.contains('…'), "{printed}");
        }
    }

    #[test]
    fn a_short_value_stays_as_it_is() {
        let value = json!({"a": ["b", 1, null, {"c": true}]});
        let error = error(ErrorKind::Invalid, "a", value.clone(), "bad").abridged();
        assert_eq!(error.value, value);
    }

    #[test]
    fn of_many_texts_the_first_few_are_told() {
        let mut texts = FirstFew::default();
        for number in 0..9 {
            texts.add(|| number.to_string());
        }
        assert_eq!(texts.joined(", "), "0, 1, 2, and 6 more");
    }
}
