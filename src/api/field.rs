//! Field paths, field errors and the collection of findings that rules add to.
//!
//! Texts follow Kubernetes' `field.Error` (k8s.io/apimachinery/pkg/util/validation/field), so that a denial reads like
//! the API server's own.

use std::{borrow::Cow, fmt};

use serde_json::Value;

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

    /// The path as it is printed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path with the numbers of list elements taken out; two findings that differ only there are the same problem.
    #[must_use]
    pub fn without_indexes(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        let mut rest = self.as_str();
        while let Some(open) = rest.find('[') {
            let Some(len) = rest[open..].find(']') else { break };
            let inside = &rest[open + 1..open + len];
            out.push_str(&rest[..open]);
            if inside.bytes().all(|byte| byte.is_ascii_digit()) {
                out.push_str("[]");
            } else {
                out.push_str(&rest[open..=open + len]);
            }
            rest = &rest[open + len + 1..];
        }
        out.push_str(rest);
        out
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
    /// The offending value; printed for the kinds that print one, and compared when updates are ratcheted.
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
        if self.value.is_null() { "\"\"".to_owned() } else { self.value.to_string() }
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

/// The name of a rule of spec/api-and-admission §5, such as `STR-7`, or of a driver's own.
pub type RuleId = &'static str;

/// What a rule's finding means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The request is refused.
    Deny,
    /// The request passes with a warning.
    Warn,
    /// It would be refused, but the stored object had the same problem before; passes with a warning.
    Existing,
    /// It would be refused, but the object asks to be let through (spec/api-and-admission §4.3); passes with a warning.
    Skipped,
}

/// A field error together with the rule that found it and what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Which rule.
    pub rule: RuleId,
    /// Whether it refuses the request.
    pub severity: Severity,
    /// What it found.
    pub error: FieldError,
    /// All values the rule looked at, when they are more than the offending one. Compared when updates are ratcheted.
    pub inputs: Option<Value>,
}

impl Finding {
    /// Whether this refuses the request.
    pub fn denies(&self) -> bool {
        self.severity == Severity::Deny
    }

    /// The text of the finding as a warning: without the words that belong to a refusal.
    pub fn warning(&self) -> String {
        match self.severity {
            Severity::Deny => self.error.to_string(),
            Severity::Existing => format!("existing problem: {}", self.error),
            Severity::Skipped => format!("rule {} skipped", self.rule),
            Severity::Warn if self.error.path.as_str().is_empty() => self.error.detail.to_string(),
            Severity::Warn => format!("{}: {}", self.error.path, self.error.detail),
        }
    }
}

/// What all rules found in one object, in the order in which the rules ran. Rules add and never stop at the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings(Vec<Finding>);

impl Findings {
    /// No findings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a finding.
    pub fn push(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    fn deny(&mut self, rule: RuleId, path: FieldPath, kind: ErrorKind, value: Value, detail: Cow<'static, str>) {
        let error = FieldError { path, kind, value, detail };
        self.0.push(Finding { rule, severity: Severity::Deny, error, inputs: None });
    }

    /// Notes all values that led to the finding added last, when they are more than the value it prints.
    pub fn depends_on(&mut self, inputs: Value) {
        if let Some(last) = self.0.last_mut() {
            last.inputs = Some(inputs);
        }
    }

    /// The field must be there.
    pub fn required(&mut self, rule: RuleId, path: FieldPath, detail: impl Into<Cow<'static, str>>) {
        self.deny(rule, path, ErrorKind::Required, Value::Null, detail.into());
    }

    /// The field has a wrong value.
    pub fn invalid(
        &mut self,
        rule: RuleId,
        path: FieldPath,
        value: impl Into<Value>,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.deny(rule, path, ErrorKind::Invalid, value.into(), detail.into());
    }

    /// The field is none of the supported words.
    pub fn not_supported(&mut self, rule: RuleId, path: FieldPath, value: impl Into<Value>, supported: &[&str]) {
        let words: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        let detail = format!("supported values: {}", words.join(", "));
        self.deny(rule, path, ErrorKind::NotSupported, value.into(), detail.into());
    }

    /// The field must not be there.
    pub fn forbidden(&mut self, rule: RuleId, path: FieldPath, detail: impl Into<Cow<'static, str>>) {
        self.deny(rule, path, ErrorKind::Forbidden, Value::Null, detail.into());
    }

    /// The field has the wrong JSON type; `expected` reads like `must be a string`.
    pub fn mistyped(&mut self, rule: RuleId, path: FieldPath, value: impl Into<Value>, expected: &'static str) {
        self.deny(rule, path, ErrorKind::TypeInvalid, value.into(), expected.into());
    }

    /// The field is longer than so many bytes.
    pub fn too_long(&mut self, rule: RuleId, path: FieldPath, max_bytes: usize) {
        let detail = format!("may not be more than {max_bytes} bytes");
        self.deny(rule, path, ErrorKind::TooLong, Value::Null, detail.into());
    }

    /// The value stands elsewhere already.
    pub fn duplicate(
        &mut self,
        rule: RuleId,
        path: FieldPath,
        value: impl Into<Value>,
        detail: impl Into<Cow<'static, str>>,
    ) {
        self.deny(rule, path, ErrorKind::Duplicate, value.into(), detail.into());
    }

    /// The value is legal but suspicious.
    pub fn warn(
        &mut self,
        rule: RuleId,
        path: FieldPath,
        value: impl Into<Value>,
        detail: impl Into<Cow<'static, str>>,
    ) {
        let error = FieldError { path, kind: ErrorKind::Invalid, value: value.into(), detail: detail.into() };
        self.0.push(Finding { rule, severity: Severity::Warn, error, inputs: None });
    }

    /// All findings.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter()
    }

    /// All findings, to be judged anew.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.0.iter_mut()
    }

    /// The texts of all findings that let the request pass.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter(|finding| !finding.denies()).map(Finding::warning)
    }

    /// The errors that refuse the request.
    pub fn errors(&self) -> impl Iterator<Item = &FieldError> {
        self.0.iter().filter(|finding| finding.severity == Severity::Deny).map(|finding| &finding.error)
    }

    /// Whether something refuses the request.
    pub fn denies(&self) -> bool {
        self.errors().next().is_some()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All errors in one line: bare when there is one, `[a, b]` when there are several.
    pub fn aggregate(&self) -> String {
        let texts: Vec<String> = self.errors().map(ToString::to_string).collect();
        match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        }
    }
}

impl IntoIterator for Findings {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Extend<Finding> for Findings {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, findings: I) {
        self.0.extend(findings);
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

    #[test]
    fn list_numbers_are_taken_out_and_map_keys_stay() {
        assert_eq!(FieldPath::new("a[0].b[key].c[12]").without_indexes(), "a[].b[key].c[]");
    }
}
