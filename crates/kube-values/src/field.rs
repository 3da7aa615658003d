//! Field paths and field errors; the collection that rules add them to is in [`findings`].
//!
//! Texts follow Kubernetes' `field.Error` (k8s.io/apimachinery/pkg/util/validation/field), so that a denial reads like
//! the API server's own.

mod findings;
mod forgiven;
mod offending;
mod path_ref;

use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use serde_json::Value;

pub use self::{
    findings::{FINDINGS_MAX, Finding, Findings, RuleId, Severity, in_one_line, more},
    offending::Offending,
    path_ref::{Located, PathRef},
};

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
    /// The offending value, printed for the kinds that print one; [`Findings`] keep its beginning.
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

/// What something says, cut to so many characters as [`cut`] does; the rest is not even written.
fn cut_text(text: &impl fmt::Display, max_chars: usize) -> String {
    struct Beginning {
        text: String,
        room: usize,
    }
    impl Write for Beginning {
        fn write_str(&mut self, more: &str) -> fmt::Result {
            match more.char_indices().nth(self.room) {
                None => {
                    self.room -= more.chars().count();
                    self.text.push_str(more);
                    Ok(())
                }
                Some((end, _)) => {
                    self.text.push_str(&more[..end]);
                    self.text.pop();
                    self.text.push('…');
                    Err(fmt::Error)
                }
            }
        }
    }
    let mut beginning = Beginning { text: String::new(), room: max_chars };
    // An error is the end of the room.
    let _ = write!(beginning, "{text}");
    beginning.text
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
    #[case::it_fits("abc", 3, "abc")]
    #[case::one_character_too_many("abcd", 3, "ab…")]
    #[case::wide_characters("äöüß", 3, "äö…")]
    #[case::nothing("", 3, "")]
    fn a_text_is_cut_while_it_is_written(#[case] text: &str, #[case] max_chars: usize, #[case] expected: &str) {
        assert_eq!(cut(text.to_owned(), max_chars), expected);
        assert_eq!(cut_text(&text, max_chars), expected);
        let by_halves = text.char_indices().nth(2).map_or((text, ""), |(middle, _)| text.split_at(middle));
        assert_eq!(cut_text(&format_args!("{}{}", by_halves.0, by_halves.1), max_chars), expected);
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
