//! Field paths and field errors. [`findings`] has the collection for the errors.
//!
//! Texts follow Kubernetes' `field.Error` (k8s.io/apimachinery/pkg/util/validation/field), so that denials look like denials of the API server.

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

/// The longest value in a text, in characters.
pub const VALUE_MAX: usize = 200;
/// The longest path in a text, in characters: a path with the longest key of Kubernetes.
const PATH_MAX: usize = 500;
/// The longest explanation in a text, in characters.
const DETAIL_MAX: usize = 1000;
/// The longest user text inside an explanation, in characters.
const WORD_MAX: usize = 60;

/// The path of a place in an object: `spec.template.spec.class.name`, `list[0]`, `map[key]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Cow<'static, str>);

impl FieldPath {
    /// A path with this first segment. The empty string is the object itself.
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

    /// The common parent of both paths, or the path itself if both are equal. The parent is never a value of a map or an element of a list, because
    /// users choose the keys of maps.
    fn common_parent(self, other: &Self) -> Self {
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

    /// The path as printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether values at this path may be secrets, which must not be printed (spec/api-and-admission §4.6).
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

/// The kinds of field errors in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The field is required and missing.
    Required,
    /// The value is invalid.
    Invalid,
    /// The value is none of the allowed values.
    NotSupported,
    /// The field must not be set.
    Forbidden,
    /// The value exists elsewhere already.
    Duplicate,
    /// The value is too long.
    TooLong,
    /// The value has the wrong JSON type.
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

/// An error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field.
    pub path: FieldPath,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The invalid value, for the kinds that print a value. [`Findings`] keep only its beginning.
    pub value: Value,
    /// The explanation, usually what would be valid.
    pub detail: Cow<'static, str>,
}

impl FieldError {
    /// The text after the path: `Invalid value: "x": detail`. This is the message of a cause.
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

/// Cuts a text to at most this number of characters. The last character is then `…`.
pub fn cut(mut text: String, max_chars: usize) -> String {
    // Most texts have fewer bytes than this limit, so counting their characters is not necessary.
    if text.len() > max_chars && text.chars().nth(max_chars).is_some() {
        let end = text.char_indices().nth(max_chars.saturating_sub(1)).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

/// Writes a text and cuts it like [`cut`]. The rest is not written at all.
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
    // An error means that the limit is reached.
    let _ = write!(beginning, "{text}");
    beginning.text
}

/// Quotes a user's text for an explanation and cuts it to a readable length.
pub fn quoted(word: &str) -> String {
    match word.char_indices().nth(WORD_MAX) {
        Some((end, _)) => format!("{:?}…", &word[..end]),
        None => format!("{word:?}"),
    }
}

/// The first texts of many, and the number of the others: `a, b and 3 more`.
#[derive(Debug, Default)]
pub struct FirstFew {
    first: Vec<String>,
    others: usize,
}

impl FirstFew {
    const SHOWN: usize = 3;

    /// Adds a text. The text is made only if it is shown.
    pub fn add(&mut self, text: impl FnOnce() -> String) {
        if self.first.len() < Self::SHOWN { self.first.push(text()) } else { self.others += 1 }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The texts in one line with this separator.
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
    fn the_common_parent_of_two_paths(#[case] one: &'static str, #[case] other: &'static str, #[case] both: &str) {
        let around = |one, other| FieldPath::new(one).common_parent(&FieldPath::new(other));
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
    fn the_first_few_of_many_texts_are_shown() {
        let mut texts = FirstFew::default();
        for number in 0..9 {
            texts.add(|| number.to_string());
        }
        assert_eq!(texts.joined(", "), "0, 1, 2, and 6 more");
    }
}
