//! The findings of the rules for one object. Their number and their size are limited for every object.
//!
//! An object of a few kilobytes can violate rules at thousands of places, and the text of a finding is longer than its place. So only the first
//! findings are kept, and their texts are cut. The others are counted. Refusals that are only counted keep their identity, because an update must not
//! be refused for mistakes that the stored object already has. Rules pass borrowed data ([`PathRef`], [`Offending`], anything with `Display`), and
//! texts are made only for the findings that are kept.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::LazyLock,
};

use serde_json::Value;

use super::{DETAIL_MAX, ErrorKind, FieldError, FieldPath, Located, Offending, PathRef, cut_text, forgiven::Forgiven};
use crate::json::steps;

/// The maximum number of findings of one severity that are kept with their texts.
pub const FINDINGS_MAX: usize = 50;
/// The maximum number of further refusals whose identity is kept. An object with more refusals can be updated only after some mistakes are corrected.
const IDENTITIES_MAX: usize = 1 << 16;
/// The limit of all errors in one line, in bytes.
const AGGREGATE_MAX: usize = 4096;

/// The id of a rule, such as `STR-7`. Only the declaration of a rule makes an id, so that a finding of an undeclared rule does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(&'static str);

impl RuleId {
    /// The id in the declaration of a rule.
    pub const fn declare(id: &'static str) -> Self {
        Self(id)
    }

    /// The id in answers, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The effect of a finding on the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The request is refused.
    Deny,
    /// The request passes with a warning.
    Warn,
    /// The request would be refused, but the stored object has the same problem. The request passes with a warning.
    Existing,
    /// The request would be refused, but the object asks to skip the rule (spec/api-and-admission §4.3). The request passes with a warning.
    Skipped,
}

/// A field error with its rule and its severity.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rule.
    pub rule: RuleId,
    /// The effect on the request.
    pub severity: Severity,
    /// The error, with texts of limited length.
    pub error: FieldError,
    /// The identity of the problem: the rule, the path without list indexes, and all values that the rule read, uncut.
    identity: Identity,
}

/// The identity of a problem. It is the same for the stored object and the new object of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(u64);

impl Identity {
    /// A hasher with random keys of this process, so that users can't make two values with the same identity.
    fn hasher() -> impl Hasher {
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        KEYS.build_hasher()
    }

    fn of(rule: RuleId, path: PathRef<'_>, value: &impl Offending, given: Option<u64>) -> Self {
        let mut hasher = Self::hasher();
        rule.hash(&mut hasher);
        path.hash_without_indexes(&mut hasher);
        hasher.write_u8(u8::MAX);
        value.hash_into(&mut hasher);
        given.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Finding {
    /// Whether this refuses the request.
    pub fn denies(&self) -> bool {
        self.severity == Severity::Deny
    }

    /// The text of the finding as a warning, without the prefix of a refusal.
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

/// The findings of all rules for one object, in the order of the rules. The rules add findings and never stop at the first.
///
/// The first [`FINDINGS_MAX`] refusals and the first [`FINDINGS_MAX`] warnings are kept. The others are only counted.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    counted: Counted,
    /// The hash of the additional values on which the next finding depends.
    given: Option<u64>,
    left_out: BTreeMap<RuleId, LeftOut>,
    /// Whether no refusal will be forgiven, so that counted refusals need no identity.
    without_identities: bool,
    forgiven: Forgiven,
}

impl PartialEq for Findings {
    fn eq(&self, other: &Self) -> bool {
        self.kept == other.kept && self.left_out == other.left_out && self.forgiven == other.forgiven
    }
}

/// The number of kept findings that refuse the request, and of the others. Out of date while `are_stale` is set, because a severity may have changed.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    denials: usize,
    warnings: usize,
    are_stale: bool,
}

impl Counted {
    fn of(&mut self, denying: bool) -> &mut usize {
        if denying { &mut self.denials } else { &mut self.warnings }
    }
}

/// The findings of one rule that are not kept.
#[derive(Clone, Debug, Default, PartialEq)]
struct LeftOut {
    denials: Vec<Identity>,
    anonymous_denials: usize,
    warnings: usize,
    /// The common parent of the paths of all refusals.
    refused_in: Option<FieldPath>,
}

impl LeftOut {
    fn widen(&mut self, path: PathRef<'_>) {
        self.refused_in = Some(match self.refused_in.take() {
            Some(place) if path.is_at_or_below(&place) => place,
            Some(place) => place.common_parent(&path.to_field_path()),
            None => path.to_field_path(),
        });
    }

    fn pass(&mut self) {
        self.warnings += self.denied();
        self.denials.clear();
        self.anonymous_denials = 0;
        self.refused_in = None;
    }

    fn denied(&self) -> usize {
        self.denials.len() + self.anonymous_denials
    }
}

impl Findings {
    /// An empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty collection whose refusals will never be forgiven, so that additional refusals are only counted, without identity.
    pub fn counting() -> Self {
        Self { without_identities: true, ..Self::default() }
    }

    /// An empty collection. A refusal that is also in `before` becomes a warning, one for one (spec/api-and-admission §4.2).
    pub fn forgiving(before: Self) -> Self {
        let mut forgiven = Forgiven::default();
        for finding in before.kept.iter().filter(|finding| finding.denies()) {
            forgiven.add_kept(finding.rule, finding.identity);
        }
        for (rule, left_out) in before.left_out {
            forgiven.add_counted(rule, left_out.denials);
        }
        Self { forgiven, ..Self::default() }
    }

    /// This collection, in which refusals that are also in `before` become warnings, one for one (spec/api-and-admission §4.2).
    ///
    /// # Errors
    ///
    /// Some of the remaining refusals were only counted, and now their texts could be kept. The caller must run the rules again with the returned
    /// collection.
    pub fn forgiven(self, before: Self) -> Result<Self, Self> {
        let mut found = Self::forgiving(before);
        let all_were_kept = self.left_out.values().all(|left_out| left_out.denied() == 0);
        found.append(self);
        if !all_were_kept && found.left_out.values().any(|left_out| !left_out.denials.is_empty()) {
            return Err(Self { forgiven: found.forgiven.renewed(), ..Self::default() });
        }
        found.forgiven = Forgiven::default();
        if found.errors().next().is_none() {
            found.report_anonymous_denials();
        }
        Ok(found)
    }

    /// Adds one refusal for each rule that has too many refusals to distinguish new ones from old ones.
    fn report_anonymous_denials(&mut self) {
        let many = self.left_out.iter_mut().filter(|(_, left_out)| left_out.anonymous_denials > 0);
        for (&rule, left_out) in many {
            let number = std::mem::take(&mut left_out.anonymous_denials);
            let detail = format!(
                "{number} mistakes beyond {IDENTITIES_MAX} can't be told from those that were there before; mend some of them first"
            );
            let path = left_out.refused_in.clone().unwrap_or_default();
            let identity = Identity::of(rule, path.place(), &Value::Null, None);
            let error = FieldError { path, kind: ErrorKind::Forbidden, value: Value::Null, detail: detail.into() };
            self.counted.are_stale = true;
            self.kept.push(Finding { rule, severity: Severity::Deny, error, identity });
        }
    }

    /// Adds a finding. Its texts are made only if it is kept.
    fn add(
        &mut self,
        (rule, severity): (RuleId, Severity),
        path: PathRef<'_>,
        kind: ErrorKind,
        value: &impl Offending,
        detail: &impl fmt::Display,
    ) {
        steps::taken(1);
        let given = self.given.take();
        if self.is_only_counted(severity) {
            self.leave_out(rule, severity, None, path);
            return;
        }
        let identity = Identity::of(rule, path, value, given);
        let Some(severity) = self.forgive_or_count(rule, severity, identity, path) else { return };
        let detail = cut_text(detail, DETAIL_MAX).into();
        let error = FieldError { path: path.to_field_path(), kind, value: value.beginning(), detail };
        self.keep(Finding { rule, severity, error, identity });
    }

    /// Forgives a finding if it is in the stored object. Returns its severity if it can be kept, and counts it otherwise.
    fn forgive_or_count(
        &mut self,
        rule: RuleId,
        severity: Severity,
        identity: Identity,
        path: PathRef<'_>,
    ) -> Option<Severity> {
        let is_forgiven = severity == Severity::Deny && self.forgiven.take(rule, identity);
        let severity = if is_forgiven { Severity::Existing } else { severity };
        if *self.counted().of(severity == Severity::Deny) < FINDINGS_MAX {
            return Some(severity);
        }
        self.leave_out(rule, severity, Some(identity), path);
        None
    }

    /// Whether another finding would be counted only, without its identity.
    fn is_only_counted(&mut self, severity: Severity) -> bool {
        let denies = severity == Severity::Deny;
        let is_identified = denies && (!self.without_identities || !self.forgiven.is_empty());
        !is_identified && *self.counted().of(denies) >= FINDINGS_MAX
    }

    fn leave_out(&mut self, rule: RuleId, severity: Severity, identity: Option<Identity>, path: PathRef<'_>) {
        if severity == Severity::Deny {
            self.leave_out_denial(rule, identity).widen(path);
        } else {
            self.leave_out_warning(rule);
        }
    }

    fn keep(&mut self, finding: Finding) {
        *self.counted().of(finding.denies()) += 1;
        self.kept.push(finding);
    }

    /// The numbers of the kept findings. Counts again if a severity may have changed.
    fn counted(&mut self) -> &mut Counted {
        if self.counted.are_stale {
            let denials = self.errors().count();
            self.counted = Counted { denials, warnings: self.kept.len() - denials, are_stale: false };
        }
        &mut self.counted
    }

    fn leave_out_denial(&mut self, rule: RuleId, identity: Option<Identity>) -> &mut LeftOut {
        let is_identified = !self.without_identities && self.identified() < IDENTITIES_MAX;
        let left_out = self.left_out.entry(rule).or_default();
        match identity.filter(|_| is_identified) {
            Some(identity) => left_out.denials.push(identity),
            None => left_out.anonymous_denials += 1,
        }
        left_out
    }

    /// The number of counted refusals with a known identity.
    fn identified(&self) -> usize {
        self.left_out.values().map(|left_out| left_out.denials.len()).sum()
    }

    /// Counts a warning without its text. For rules whose texts are expensive, when [`Self::warnings_are_full`].
    pub fn leave_out_warning(&mut self, rule: RuleId) {
        self.left_out.entry(rule).or_default().warnings += 1;
    }

    /// Whether another warning would only be counted.
    pub fn warnings_are_full(&mut self) -> bool {
        self.counted().warnings >= FINDINGS_MAX
    }

    /// Adds all findings of another collection, as if its rules had run with this one.
    pub fn append(&mut self, other: Self) {
        for finding in other.kept {
            steps::taken(1);
            let Finding { rule, severity, identity, error } = finding;
            if let Some(severity) = self.forgive_or_count(rule, severity, identity, error.path.place()) {
                self.keep(Finding { rule, severity, error, identity });
            }
        }
        for (rule, mut left_out) in other.left_out {
            let mut denials = std::mem::take(&mut left_out.denials);
            if self.forgiven.is_empty()
                && !self.without_identities
                && !self.left_out.contains_key(&rule)
                && self.identified() + denials.len() <= IDENTITIES_MAX
            {
                self.left_out.insert(rule, LeftOut { denials, ..left_out });
                continue;
            }
            let number = denials.len();
            self.forgiven.take_all(rule, &mut denials);
            self.left_out.entry(rule).or_default().warnings += number - denials.len();
            for identity in denials {
                self.leave_out_denial(rule, Some(identity));
            }
            let own = self.left_out.entry(rule).or_default();
            own.anonymous_denials += left_out.anonymous_denials;
            own.warnings += left_out.warnings;
            if let Some(place) = left_out.refused_in.filter(|_| own.denied() > 0) {
                own.widen(place.place());
            }
        }
    }

    /// Keeps only the refusals of some rules.
    pub fn retain_denials(&mut self, is_wanted: impl Fn(RuleId) -> bool) {
        self.counted.are_stale = true;
        self.kept.retain(|finding| finding.denies() && is_wanted(finding.rule));
        self.left_out.retain(|rule, left_out| is_wanted(*rule) && left_out.denied() > 0);
        self.left_out.values_mut().for_each(|left_out| left_out.warnings = 0);
    }

    /// Turns the counted refusals of some rules into warnings.
    pub fn let_left_out_pass(&mut self, is_meant: impl Fn(RuleId) -> bool) {
        self.left_out.iter_mut().filter(|(rule, _)| is_meant(**rule)).for_each(|(_, left_out)| left_out.pass());
    }

    /// Turns the counted refusals of a rule into warnings, if `is_forgiven` is true for their path. The path is the common parent of the paths of all
    /// these refusals.
    pub fn forgive_left_out(&mut self, is_forgiven: impl Fn(RuleId, &FieldPath) -> bool) {
        for (&rule, left_out) in &mut self.left_out {
            if left_out.refused_in.as_ref().is_some_and(|place| is_forgiven(rule, place)) {
                left_out.pass();
            }
        }
    }

    /// Sets the values on which the next finding depends, if it depends on more than the value that it prints.
    #[must_use = "the finding is still to be added"]
    pub fn given(&mut self, inputs: &impl Hash) -> &mut Self {
        let mut hasher = Identity::hasher();
        inputs.hash(&mut hasher);
        self.given = Some(hasher.finish());
        self
    }

    /// Adds a refusal: the field is required.
    pub fn required(&mut self, rule: RuleId, path: impl Located, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Required, &Value::Null, &detail);
    }

    /// Adds a refusal: the value is invalid.
    pub fn invalid(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Invalid, &value, &detail);
    }

    /// Adds a refusal: the value is none of the supported ones.
    pub fn not_supported(&mut self, rule: RuleId, path: impl Located, value: impl Offending, supported: &[&str]) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::NotSupported, &value, &Supported(supported));
    }

    /// Adds a refusal: the field must not be set.
    pub fn forbidden(&mut self, rule: RuleId, path: impl Located, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Forbidden, &Value::Null, &detail);
    }

    /// Adds a refusal: the value has the wrong JSON type. `expected` is a text such as `must be a string`.
    pub fn mistyped(&mut self, rule: RuleId, path: impl Located, value: impl Offending, expected: &'static str) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::TypeInvalid, &value, &expected);
    }

    /// Adds a refusal: the value has more than this number of bytes.
    pub fn too_long(&mut self, rule: RuleId, path: impl Located, max_bytes: usize) {
        let detail = format_args!("may not be more than {max_bytes} bytes");
        self.add((rule, Severity::Deny), path.place(), ErrorKind::TooLong, &Value::Null, &detail);
    }

    /// Adds a refusal: the value exists elsewhere already.
    pub fn duplicate(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Duplicate, &value, &detail);
    }

    /// Adds a warning: the value is valid but suspicious.
    pub fn warn(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Warn), path.place(), ErrorKind::Invalid, &value, &detail);
    }

    /// The kept findings.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.kept.iter()
    }

    /// The kept findings, for a change of their severity.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.counted.are_stale = true;
        self.kept.iter_mut()
    }

    /// The texts of the kept findings that don't refuse the request. [`Self::warned`] is the number of all.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        self.kept.iter().filter(|finding| !finding.denies()).map(Finding::warning)
    }

    /// The kept errors that refuse the request. [`Self::denied`] is the number of all.
    pub fn errors(&self) -> impl Iterator<Item = &FieldError> {
        self.kept.iter().filter(|finding| finding.denies()).map(|finding| &finding.error)
    }

    /// The number of all errors that refuse the request.
    pub fn denied(&self) -> usize {
        self.errors().count() + self.left_out.values().map(LeftOut::denied).sum::<usize>()
    }

    /// The number of all findings that don't refuse the request.
    pub fn warned(&self) -> usize {
        let kept = self.kept.iter().filter(|finding| !finding.denies()).count();
        kept + self.left_out.values().map(|left_out| left_out.warnings).sum::<usize>()
    }

    /// Whether a finding refuses the request.
    pub fn denies(&self) -> bool {
        self.errors().next().is_some() || self.left_out.values().any(|left_out| left_out.denied() > 0)
    }

    /// Whether there are no findings.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.left_out.is_empty()
    }

    /// The texts of the errors within this number of bytes, and one more text with the number of missing ones. `length` measures a text.
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

    /// The errors in one line: without brackets if there is one, `[a, b]` if there are several, with the number of missing ones.
    pub fn aggregate(&self) -> String {
        in_one_line(&self.error_texts(AGGREGATE_MAX, str::len))
    }
}

/// The supported values of a field, as an explanation.
struct Supported<'w>(&'w [&'w str]);

impl fmt::Display for Supported<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("supported values: ")?;
        for (place, word) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            write!(f, "{separator}{word:?}")?;
        }
        Ok(())
    }
}

/// The texts of errors in one line: without brackets if there is one, `[a, b]` if there are several.
pub fn in_one_line(texts: &[String]) -> String {
    match texts {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// The text for findings without their own text.
pub fn more(number: usize) -> String {
    format!("and {number} more")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const RULE: RuleId = RuleId::declare("RULE-1");

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
            found.invalid(RULE, FieldPath::new("a").key(&format!("k{number}")), "x", "bad");
        }
    }

    #[rstest]
    #[case::all_are_listed(
        3,
        3,
        "[a[k0]: Invalid value: \"x\": bad, a[k1]: Invalid value: \"x\": bad, a[k2]: Invalid value: \"x\": bad]"
    )]
    #[case::one_has_no_brackets(1, 1, "a[k0]: Invalid value: \"x\": bad")]
    fn errors_are_listed_in_one_line(#[case] number: usize, #[case] kept: usize, #[case] text: &str) {
        let found = bad(number);
        assert_eq!((found.errors().count(), found.aggregate().as_str()), (kept, text));
    }

    #[test]
    fn the_first_of_many_errors_are_listed_and_the_others_counted() {
        let found = bad(261);
        assert_eq!((found.denied(), found.denies()), (261, true));
        assert!(found.errors().count() <= FINDINGS_MAX + 1);
        assert!(found.aggregate().ends_with(", and 211 more]"), "{}", found.aggregate());
    }

    #[test]
    fn warnings_do_not_push_errors_out() {
        let mut found = Findings::new();
        for _ in 0..1_000 {
            found.warn(RULE, FieldPath::new("a"), "x", "odd");
        }
        found.append(bad(2));
        assert_eq!((found.denied(), found.errors().count(), found.warned()), (2, 2, 1_000));
    }

    #[test]
    fn a_text_is_cut_and_counted_findings_have_no_text() {
        let mut found = Findings::new();
        let long = "x".repeat(100_000);
        for _ in 0..100 {
            found.invalid(RULE, FieldPath::new("a").key(&long), long.as_str(), long.clone());
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
    fn any_number_of_stored_mistakes_is_forgiven(#[case] first: usize, #[case] end: usize, #[case] refusals: usize) {
        let mut found = Findings::forgiving(bad(200));
        add(first, end, &mut found);
        let mut all = Findings::new();
        all.append(found);
        assert_eq!((all.denied(), all.warned()), (refusals, end - first - refusals));
        assert_eq!(
            all.errors().count(),
            refusals.min(FINDINGS_MAX),
            "a new mistake is reported with its text, not only counted"
        );
    }

    #[test]
    fn refusals_without_identity_are_reported_together() {
        let many = IDENTITIES_MAX + FINDINGS_MAX;
        let unchanged = bad(many).forgiven(bad(many)).unwrap();
        assert_eq!((unchanged.denied(), unchanged.warned()), (0, many));
        let more = bad(many + 3).forgiven(bad(many + 3)).unwrap();
        let text = more.aggregate();
        assert_eq!(more.denied(), 1);
        assert!(text.starts_with("a: Forbidden: 3 mistakes beyond 65536 can't be told from those"), "{text}");
    }

    /// Rules that ran without forgiveness need not run again, unless more findings could be kept.
    #[rstest]
    #[case::the_same(0, 200, None)]
    #[case::fewer(10, 100, None)]
    #[case::few_others(170, 210, None)]
    #[case::one_more_that_was_not_kept(0, 201, Some(1))]
    #[case::others(200, 260, Some(60))]
    fn findings_are_forgiven_afterwards(#[case] first: usize, #[case] end: usize, #[case] refusals: Option<usize>) {
        let found = bad_from(first, end).forgiven(bad(200));
        let (found, denied) = match (found, refusals) {
            (Ok(found), None) => (found, end.saturating_sub(200)),
            (Err(mut anew), Some(refusals)) => {
                add(first, end, &mut anew);
                (anew, refusals)
            }
            (found, _) => panic!("{}", found.is_ok()),
        };
        assert_eq!((found.denied(), found.warned()), (denied, end - first - denied));
        assert_eq!(
            found.errors().count(),
            denied.min(FINDINGS_MAX),
            "a new mistake is reported with its text, not only counted"
        );
    }

    #[rstest]
    #[case::in_another_order([5, 0, 3], 3)]
    #[case::once_more([0, 1, 0], 2)]
    #[case::once_more_at_another_place([1, 1, 0], 2)]
    #[case::after_another([9, 0, 1], 2)]
    fn a_stored_mistake_is_forgiven_once_at_any_place(#[case] numbers: [usize; 3], #[case] forgiven: usize) {
        let mut found = Findings::forgiving(bad(6));
        for number in numbers {
            add(number, number + 1, &mut found);
        }
        assert_eq!((found.warned(), found.denied()), (forgiven, 3 - forgiven));
    }

    #[test]
    fn findings_without_identity_are_counted() {
        let mut found = Findings::counting();
        add(0, 200, &mut found);
        found.append(bad(100));
        assert_eq!((found.denied(), found.errors().count()), (300, FINDINGS_MAX));
    }

    #[test]
    fn additional_values_of_a_rule_are_part_of_the_identity() {
        let with_inputs = |before: Findings, inputs: &str| {
            let mut found = Findings::forgiving(before);
            found.given(&inputs).invalid(RULE, FieldPath::new("a"), "x", "bad");
            found
        };
        let before = with_inputs(Findings::new(), "1");
        assert!(with_inputs(before.clone(), "2").denies());
        assert!(!with_inputs(before, "1").denies());
    }

    #[test]
    fn two_long_values_that_differ_at_the_end_are_two_problems() {
        let of = |before: Findings, end: &str| {
            let mut found = Findings::forgiving(before);
            found.invalid(RULE, FieldPath::new("a"), "x".repeat(5_000) + end, "bad");
            found
        };
        let before = of(Findings::new(), "a");
        assert!(of(before.clone(), "b").denies());
        assert!(!of(before, "a").denies());
    }
}
