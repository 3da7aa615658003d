//! What rules find in an object: bounded, whatever the object is.
//!
//! An object of a few kilobytes can break rules at thousands of places, and a text of a finding is longer than the place. So
//! only the first findings are kept, with texts of bounded length; of the others only their number is known, and of those
//! that refuse the request also which they are, since an update is not refused for what was wrong before.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::LazyLock,
};

use serde_json::Value;

use super::{ErrorKind, FieldError, FieldPath};
use crate::api::json::steps;

/// Findings of one severity that are kept with their texts.
pub const FINDINGS_MAX: usize = 50;
/// Refusals beyond those of which is known which they are; an update with more of them is refused.
const RECOGNISED_MAX: usize = 1 << 16;
/// Bytes of all errors in one line.
const AGGREGATE_MAX: usize = 4096;

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
    /// What it found; its texts are of bounded length.
    pub error: FieldError,
    /// Which problem it is: rule, place without list numbers and all values that the rule looked at, uncut.
    identity: Identity,
}

/// What two findings have in common that are the same problem of an object before and after an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity(u64);

impl Identity {
    /// Keys of this process, so that nobody can make up two values with one identity.
    fn hasher() -> impl Hasher {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        KEYS.build_hasher()
    }

    fn of(rule: RuleId, error: &FieldError) -> Self {
        let mut hasher = Self::hasher();
        rule.hash(&mut hasher);
        error.path.hash_without_indexes(&mut hasher);
        error.value.hash(&mut hasher);
        Self(hasher.finish())
    }

    fn and(self, inputs: &Value) -> Self {
        let mut hasher = Self::hasher();
        self.hash(&mut hasher);
        inputs.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Finding {
    fn new(rule: RuleId, severity: Severity, error: FieldError) -> Self {
        Self { rule, severity, identity: Identity::of(rule, &error), error: error.abridged() }
    }

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
///
/// Of the refusals and of the warnings the first [`FINDINGS_MAX`] are kept; the others are left out, but counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    kept: Vec<Finding>,
    last: Last,
    left_out: BTreeMap<RuleId, LeftOut>,
    forgiven: HashMap<Identity, usize>,
}

/// Whether the finding added last has its place yet. It gets one when the next is added, since its rule may still say what
/// else it looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    Placed,
    Open,
}

/// Findings of one rule that are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
struct LeftOut {
    denials: Vec<Identity>,
    unrecognised_denials: usize,
    warnings: usize,
    /// The place that holds all that is refused.
    refused_in: Option<FieldPath>,
}

impl LeftOut {
    fn widen(&mut self, path: FieldPath) {
        self.refused_in = Some(match self.refused_in.take() {
            Some(place) => place.around(&path),
            None => path,
        });
    }

    fn pass(&mut self) {
        self.warnings += self.denied();
        self.denials.clear();
        self.unrecognised_denials = 0;
        self.refused_in = None;
    }

    fn denied(&self) -> usize {
        self.denials.len() + self.unrecognised_denials
    }
}

impl Findings {
    /// No findings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// No findings yet; refusals that were earned `before` will only warn, one for one (spec/api-and-admission §4.2).
    pub fn forgiving(before: &Self) -> Self {
        let mut forgiven = HashMap::new();
        let kept = before.kept.iter().filter(|finding| finding.denies()).map(|finding| finding.identity);
        let left_out = before.left_out.values().flat_map(|left_out| &left_out.denials).copied();
        for identity in kept.chain(left_out) {
            *forgiven.entry(identity).or_insert(0) += 1;
        }
        Self { forgiven, ..Self::default() }
    }

    fn push(&mut self, finding: Finding) {
        steps::taken(1);
        self.place_last();
        self.kept.push(finding);
        self.last = Last::Open;
    }

    /// Forgives the finding added last, and leaves it out if there are enough of its kind.
    fn place_last(&mut self) {
        if self.last == Last::Placed {
            return;
        }
        self.last = Last::Placed;
        let Some(last) = self.kept.last_mut() else { return };
        if last.denies() && forgive(&mut self.forgiven, last.identity) {
            last.severity = Severity::Existing;
        }
        let denies = last.denies();
        if self.count_kept(denies) > FINDINGS_MAX
            && let Some(Finding { rule, identity, error, .. }) = self.kept.pop()
        {
            if denies {
                self.leave_out_denial(rule, identity).widen(error.path);
            } else {
                self.leave_out_warning(rule);
            }
        }
    }

    fn count_kept(&self, denying: bool) -> usize {
        if self.kept.len() <= FINDINGS_MAX {
            return 0;
        }
        self.kept.iter().filter(|finding| finding.denies() == denying).count()
    }

    fn leave_out_denial(&mut self, rule: RuleId, identity: Identity) -> &mut LeftOut {
        let recognised: usize = self.left_out.values().map(|left_out| left_out.denials.len()).sum();
        let left_out = self.left_out.entry(rule).or_default();
        if recognised < RECOGNISED_MAX {
            left_out.denials.push(identity);
        } else {
            left_out.unrecognised_denials += 1;
        }
        left_out
    }

    /// Counts a warning without its text; for rules to whom the text is dear, when [`Self::warnings_are_full`].
    pub fn leave_out_warning(&mut self, rule: RuleId) {
        self.left_out.entry(rule).or_default().warnings += 1;
    }

    /// Whether a further warning would only be counted.
    pub fn warnings_are_full(&self) -> bool {
        self.count_kept(false) >= FINDINGS_MAX
    }

    /// Adds all findings of another collection, as if its rules had run here.
    pub fn append(&mut self, mut other: Self) {
        other.place_last();
        for finding in other.kept {
            self.push(finding);
        }
        self.place_last();
        for (rule, left_out) in other.left_out {
            for identity in left_out.denials {
                if forgive(&mut self.forgiven, identity) {
                    self.leave_out_warning(rule);
                } else {
                    self.leave_out_denial(rule, identity);
                }
            }
            let own = self.left_out.entry(rule).or_default();
            own.unrecognised_denials += left_out.unrecognised_denials;
            own.warnings += left_out.warnings;
            if let Some(place) = left_out.refused_in.filter(|_| own.denied() > 0) {
                own.widen(place);
            }
        }
    }

    /// Keeps the refusals of some rules and nothing else.
    pub fn retain_denials(&mut self, is_wanted: impl Fn(RuleId) -> bool) {
        self.place_last();
        self.kept.retain(|finding| finding.denies() && is_wanted(finding.rule));
        self.left_out.retain(|rule, left_out| is_wanted(rule) && left_out.denied() > 0);
        self.left_out.values_mut().for_each(|left_out| left_out.warnings = 0);
    }

    /// Turns the refusals of some rules that were left out into warnings.
    pub fn let_left_out_pass(&mut self, is_meant: impl Fn(RuleId) -> bool) {
        self.left_out.iter_mut().filter(|(rule, _)| is_meant(rule)).for_each(|(_, left_out)| left_out.pass());
    }

    /// Turns the refusals of a rule that were left out into warnings, if `is_forgiven` says so of the one place that holds all
    /// of them: their own if they have the same, else the fields around them.
    pub fn forgive_left_out(&mut self, is_forgiven: impl Fn(RuleId, &FieldPath) -> bool) {
        for (rule, left_out) in &mut self.left_out {
            if left_out.refused_in.as_ref().is_some_and(|place| is_forgiven(rule, place)) {
                left_out.pass();
            }
        }
    }

    fn deny(&mut self, rule: RuleId, path: FieldPath, kind: ErrorKind, value: Value, detail: Cow<'static, str>) {
        self.push(Finding::new(rule, Severity::Deny, FieldError { path, kind, value, detail }));
    }

    /// Notes all values that led to the finding added last, when they are more than the value it prints.
    pub fn depends_on(&mut self, inputs: &Value) {
        if let Some(last) = self.kept.last_mut().filter(|_| self.last == Last::Open) {
            last.identity = last.identity.and(inputs);
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
        self.push(Finding::new(rule, Severity::Warn, error));
    }

    /// The findings that are kept.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.kept.iter()
    }

    /// The findings that are kept, to be judged anew.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.place_last();
        self.kept.iter_mut()
    }

    /// The texts of findings that let the request pass; [`Self::warned`] says how many there are.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.kept.iter().filter(|finding| !finding.denies()).map(Finding::warning)
    }

    /// Errors that refuse the request; [`Self::denied`] says how many there are.
    pub fn errors(&self) -> impl Iterator<Item = &FieldError> {
        self.kept.iter().filter(|finding| finding.denies()).map(|finding| &finding.error)
    }

    /// The number of all errors that refuse the request.
    pub fn denied(&self) -> usize {
        self.errors().count() + self.left_out.values().map(LeftOut::denied).sum::<usize>()
    }

    /// The number of all findings that let the request pass.
    pub fn warned(&self) -> usize {
        let kept = self.kept.iter().filter(|finding| !finding.denies()).count();
        kept + self.left_out.values().map(|left_out| left_out.warnings).sum::<usize>()
    }

    /// Whether something refuses the request.
    pub fn denies(&self) -> bool {
        self.errors().next().is_some() || self.left_out.values().any(|left_out| left_out.denied() > 0)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.left_out.is_empty()
    }

    /// The texts of the errors in at most so many bytes, one more that says how many are missing. `length` measures a text.
    pub fn error_texts(&self, max_bytes: usize, length: impl Fn(&str) -> usize) -> Vec<String> {
        let mut texts = Vec::new();
        let mut left = max_bytes;
        for error in self.errors().take(FINDINGS_MAX) {
            let text = error.to_string();
            match left.checked_sub(length(&text) + 2) {
                Some(rest) => left = rest,
                None => break,
            }
            texts.push(text);
        }
        let missing = self.denied() - texts.len();
        if missing > 0 {
            texts.push(more(missing));
        }
        texts
    }

    /// The errors in one line: bare when there is one, `[a, b]` when there are several, and how many are not told.
    pub fn aggregate(&self) -> String {
        in_one_line(&self.error_texts(AGGREGATE_MAX, str::len))
    }
}

/// Texts of errors in one line: bare when there is one, `[a, b]` when there are several.
pub fn in_one_line(texts: &[String]) -> String {
    match texts {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// What is said of findings that are not told.
pub fn more(number: usize) -> String {
    format!("and {number} more")
}

fn forgive(forgiven: &mut HashMap<Identity, usize>, identity: Identity) -> bool {
    match forgiven.get_mut(&identity) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn bad(number: usize) -> Findings {
        bad_from(0, number)
    }

    fn bad_from(first: usize, end: usize) -> Findings {
        let mut found = Findings::new();
        add(first, end, &mut found);
        found
    }

    fn add(first: usize, end: usize, found: &mut Findings) {
        for number in first..end {
            found.invalid("MCH-7", FieldPath::new("a").key(&format!("k{number}")), "x", "bad");
        }
    }

    #[rstest]
    #[case::all_are_told(
        3,
        3,
        "[a[k0]: Invalid value: \"x\": bad, a[k1]: Invalid value: \"x\": bad, a[k2]: Invalid value: \"x\": bad]"
    )]
    #[case::one_stands_bare(1, 1, "a[k0]: Invalid value: \"x\": bad")]
    fn errors_are_told_in_one_line(#[case] number: usize, #[case] kept: usize, #[case] text: &str) {
        let found = bad(number);
        assert_eq!((found.errors().count(), found.aggregate().as_str()), (kept, text));
    }

    #[test]
    fn of_many_errors_the_first_are_told_and_the_others_counted() {
        let found = bad(261);
        assert_eq!((found.denied(), found.denies()), (261, true));
        assert!(found.errors().count() <= FINDINGS_MAX + 1);
        assert!(found.aggregate().ends_with(", and 211 more]"), "{}", found.aggregate());
    }

    #[test]
    fn warnings_do_not_push_errors_out() {
        let mut found = Findings::new();
        for _ in 0..1_000 {
            found.warn("META-4", FieldPath::new("a"), "x", "odd");
        }
        found.append(bad(2));
        assert_eq!((found.denied(), found.errors().count(), found.warned()), (2, 2, 1_000));
    }

    #[test]
    fn a_text_is_cut_and_what_is_left_out_costs_no_text() {
        let mut found = Findings::new();
        let long = "x".repeat(100_000);
        for _ in 0..100 {
            found.invalid("MCH-7", FieldPath::new("a").key(&long), long.as_str(), long.clone());
        }
        let length: usize = found.iter().map(|finding| finding.error.to_string().len()).sum();
        assert!(length < 51 * 2_000, "{length}");
        assert!(found.aggregate().len() <= AGGREGATE_MAX + 32);
    }

    #[rstest]
    #[case::the_same(0, 200, 0)]
    #[case::fewer(10, 100, 0)]
    #[case::one_more(0, 201, 1)]
    #[case::others(200, 260, 60)]
    fn an_update_is_forgiven_what_was_there_however_much_it_is(
        #[case] first: usize,
        #[case] end: usize,
        #[case] refusals: usize,
    ) {
        let mut found = Findings::forgiving(&bad(200));
        add(first, end, &mut found);
        let mut all = Findings::new();
        all.append(found);
        assert_eq!((all.denied(), all.warned()), (refusals, end - first - refusals));
        assert_eq!(all.errors().count(), refusals.min(FINDINGS_MAX), "a new mistake is told, not only counted");
    }

    #[test]
    fn what_a_rule_looked_at_besides_counts() {
        let with_inputs = |before: &Findings, inputs: &str| {
            let mut found = Findings::forgiving(before);
            found.invalid("SEL-6", FieldPath::new("a"), "x", "bad");
            found.depends_on(&inputs.into());
            found.iter_mut().for_each(drop);
            found
        };
        let before = with_inputs(&Findings::new(), "1");
        assert!(with_inputs(&before, "2").denies());
        assert!(!with_inputs(&before, "1").denies());
    }

    #[test]
    fn two_long_values_that_differ_at_the_end_are_two_problems() {
        let of = |before: &Findings, end: &str| {
            let mut found = Findings::forgiving(before);
            found.invalid("MCH-10", FieldPath::new("a"), "x".repeat(5_000) + end, "bad");
            found.iter_mut().for_each(drop);
            found
        };
        let before = of(&Findings::new(), "a");
        assert!(of(&before, "b").denies());
        assert!(!of(&before, "a").denies());
    }
}
