//! What rules find in an object: bounded, whatever the object is.
//!
//! An object of a few kilobytes can break rules at thousands of places, and a text of a finding is longer than the place. So
//! only the first findings are kept, with texts of bounded length; of the others only their number is known, and of those
//! that refuse the request also which they are, since an update is not refused for what was wrong before. Rules hand over
//! what they found as they have it, borrowed ([`PathRef`], [`Offending`], anything that can be displayed); texts are made of
//! what is kept.

use std::{
    collections::BTreeMap,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::LazyLock,
};

use serde_json::Value;

use super::{DETAIL_MAX, ErrorKind, FieldError, FieldPath, Located, Offending, PathRef, cut_text, forgiven::Forgiven};
use crate::json::steps;

/// Findings of one severity that are kept with their texts.
pub const FINDINGS_MAX: usize = 50;
/// Refusals beyond those of which is known which they are; an object with more of them can't be updated before some are mended.
const RECOGNISED_MAX: usize = 1 << 16;
/// Bytes of all errors in one line.
const AGGREGATE_MAX: usize = 4096;

/// The id of a rule, such as `STR-7`. A finding carries one, and only the declaration of a rule makes one, so that a finding of a
/// rule that is not declared does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(&'static str);

impl RuleId {
    /// The id that a declaration gives its rule.
    pub const fn declare(id: &'static str) -> Self {
        Self(id)
    }

    /// The id as answers, logs and metrics spell it.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

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
pub(super) struct Identity(u64);

impl Identity {
    /// Keys of this process, so that nobody can make up two values with one identity.
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
#[derive(Clone, Debug, Default)]
pub struct Findings {
    kept: Vec<Finding>,
    counted: Counted,
    /// Hash of what the rule of the next finding looked at besides.
    given: Option<u64>,
    left_out: BTreeMap<RuleId, LeftOut>,
    recognised: Recognised,
    forgiven: Forgiven,
}

/// Of which refusals that are left out is known which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Recognised {
    #[default]
    Many,
    None,
}

impl PartialEq for Findings {
    fn eq(&self, other: &Self) -> bool {
        self.kept == other.kept && self.left_out == other.left_out && self.forgiven == other.forgiven
    }
}

/// How many of the kept findings refuse the request and how many do not, while nobody judges them anew.
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
    fn widen(&mut self, path: PathRef<'_>) {
        self.refused_in = Some(match self.refused_in.take() {
            Some(place) if path.is_at_or_below(&place) => place,
            Some(place) => place.around(&path.told()),
            None => path.told(),
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

    /// No findings yet. Nothing will be forgiven for what is found, so that of what is left out only the number is kept.
    pub fn counting() -> Self {
        Self { recognised: Recognised::None, ..Self::default() }
    }

    /// No findings yet; refusals that were earned `before` will only warn, one for one (spec/api-and-admission §4.2).
    pub fn forgiving(before: Self) -> Self {
        let mut forgiven = Forgiven::default();
        for finding in before.kept.iter().filter(|finding| finding.denies()) {
            forgiven.add_told(finding.rule, finding.identity);
        }
        for (rule, left_out) in before.left_out {
            forgiven.add_counted(rule, left_out.denials);
        }
        Self { forgiven, ..Self::default() }
    }

    /// These findings, where refusals that were earned `before` only warn, one for one (spec/api-and-admission §4.2).
    ///
    /// # Errors
    ///
    /// Of the refusals that are left, some were only counted, and now there is room to tell them: the rules have to run again
    /// with what is given back.
    pub fn forgiven(self, before: Self) -> Result<Self, Self> {
        let mut found = Self::forgiving(before);
        let all_were_told = self.left_out.values().all(|left_out| left_out.denied() == 0);
        found.append(self);
        if !all_were_told && found.left_out.values().any(|left_out| !left_out.denials.is_empty()) {
            return Err(Self { forgiven: found.forgiven.renewed(), ..Self::default() });
        }
        found.forgiven = Forgiven::default();
        if found.errors().next().is_none() {
            found.tell_unrecognised();
        }
        Ok(found)
    }

    /// Tells of each rule that its refusals are too many to know which of them are new.
    fn tell_unrecognised(&mut self) {
        let many = self.left_out.iter_mut().filter(|(_, left_out)| left_out.unrecognised_denials > 0);
        for (&rule, left_out) in many {
            let number = std::mem::take(&mut left_out.unrecognised_denials);
            let detail = format!(
                "{number} mistakes beyond {RECOGNISED_MAX} can't be told from those that were there before; mend some of them first"
            );
            let path = left_out.refused_in.clone().unwrap_or_default();
            let identity = Identity::of(rule, path.place(), &Value::Null, None);
            let error = FieldError { path, kind: ErrorKind::Forbidden, value: Value::Null, detail: detail.into() };
            self.counted.are_stale = true;
            self.kept.push(Finding { rule, severity: Severity::Deny, error, identity });
        }
    }

    /// Adds a finding, of which texts are made only if it is kept.
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
        let Some(severity) = self.placed(rule, severity, identity, path) else { return };
        let detail = cut_text(detail, DETAIL_MAX).into();
        let error = FieldError { path: path.told(), kind, value: value.beginning(), detail };
        self.keep(Finding { rule, severity, error, identity });
    }

    /// Forgives a finding if that is due. What it means then, if there is room for it; else it is left out.
    fn placed(&mut self, rule: RuleId, severity: Severity, identity: Identity, path: PathRef<'_>) -> Option<Severity> {
        let is_forgiven = severity == Severity::Deny && self.forgiven.take(rule, identity);
        let severity = if is_forgiven { Severity::Existing } else { severity };
        if *self.counted().of(severity == Severity::Deny) < FINDINGS_MAX {
            return Some(severity);
        }
        self.leave_out(rule, severity, Some(identity), path);
        None
    }

    /// Whether a further finding is left out, and nobody asks which it is.
    fn is_only_counted(&mut self, severity: Severity) -> bool {
        let denies = severity == Severity::Deny;
        let is_recognised = denies && (self.recognised == Recognised::Many || !self.forgiven.is_empty());
        !is_recognised && *self.counted().of(denies) >= FINDINGS_MAX
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

    /// Counts the kept findings, unless that was done since they were judged.
    fn counted(&mut self) -> &mut Counted {
        if self.counted.are_stale {
            let denials = self.errors().count();
            self.counted = Counted { denials, warnings: self.kept.len() - denials, are_stale: false };
        }
        &mut self.counted
    }

    fn leave_out_denial(&mut self, rule: RuleId, identity: Option<Identity>) -> &mut LeftOut {
        let is_recognised = self.recognised == Recognised::Many && self.recognised() < RECOGNISED_MAX;
        let left_out = self.left_out.entry(rule).or_default();
        match identity.filter(|_| is_recognised) {
            Some(identity) => left_out.denials.push(identity),
            None => left_out.unrecognised_denials += 1,
        }
        left_out
    }

    /// Refusals beyond those kept of which is known which they are.
    fn recognised(&self) -> usize {
        self.left_out.values().map(|left_out| left_out.denials.len()).sum()
    }

    /// Counts a warning without its text; for rules to whom the text is dear, when [`Self::warnings_are_full`].
    pub fn leave_out_warning(&mut self, rule: RuleId) {
        self.left_out.entry(rule).or_default().warnings += 1;
    }

    /// Whether a further warning would only be counted.
    pub fn warnings_are_full(&mut self) -> bool {
        self.counted().warnings >= FINDINGS_MAX
    }

    /// Adds all findings of another collection, as if its rules had run here.
    pub fn append(&mut self, other: Self) {
        for finding in other.kept {
            steps::taken(1);
            let Finding { rule, severity, identity, error } = finding;
            if let Some(severity) = self.placed(rule, severity, identity, error.path.place()) {
                self.keep(Finding { rule, severity, error, identity });
            }
        }
        for (rule, mut left_out) in other.left_out {
            let mut denials = std::mem::take(&mut left_out.denials);
            if self.forgiven.is_empty()
                && self.recognised == Recognised::Many
                && !self.left_out.contains_key(&rule)
                && self.recognised() + denials.len() <= RECOGNISED_MAX
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
            own.unrecognised_denials += left_out.unrecognised_denials;
            own.warnings += left_out.warnings;
            if let Some(place) = left_out.refused_in.filter(|_| own.denied() > 0) {
                own.widen(place.place());
            }
        }
    }

    /// Keeps the refusals of some rules and nothing else.
    pub fn retain_denials(&mut self, is_wanted: impl Fn(RuleId) -> bool) {
        self.counted.are_stale = true;
        self.kept.retain(|finding| finding.denies() && is_wanted(finding.rule));
        self.left_out.retain(|rule, left_out| is_wanted(*rule) && left_out.denied() > 0);
        self.left_out.values_mut().for_each(|left_out| left_out.warnings = 0);
    }

    /// Turns the refusals of some rules that were left out into warnings.
    pub fn let_left_out_pass(&mut self, is_meant: impl Fn(RuleId) -> bool) {
        self.left_out.iter_mut().filter(|(rule, _)| is_meant(**rule)).for_each(|(_, left_out)| left_out.pass());
    }

    /// Turns the refusals of a rule that were left out into warnings, if `is_forgiven` says so of the one place that holds all
    /// of them: their own if they have the same, else the fields around them.
    pub fn forgive_left_out(&mut self, is_forgiven: impl Fn(RuleId, &FieldPath) -> bool) {
        for (&rule, left_out) in &mut self.left_out {
            if left_out.refused_in.as_ref().is_some_and(|place| is_forgiven(rule, place)) {
                left_out.pass();
            }
        }
    }

    /// Notes all values that lead to the next finding, when they are more than the value it prints.
    #[must_use = "the finding is still to be added"]
    pub fn given(&mut self, inputs: &impl Hash) -> &mut Self {
        let mut hasher = Identity::hasher();
        inputs.hash(&mut hasher);
        self.given = Some(hasher.finish());
        self
    }

    /// The field must be there.
    pub fn required(&mut self, rule: RuleId, path: impl Located, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Required, &Value::Null, &detail);
    }

    /// The field has a wrong value.
    pub fn invalid(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Invalid, &value, &detail);
    }

    /// The field is none of the supported words.
    pub fn not_supported(&mut self, rule: RuleId, path: impl Located, value: impl Offending, supported: &[&str]) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::NotSupported, &value, &Supported(supported));
    }

    /// The field must not be there.
    pub fn forbidden(&mut self, rule: RuleId, path: impl Located, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Forbidden, &Value::Null, &detail);
    }

    /// The field has the wrong JSON type; `expected` reads like `must be a string`.
    pub fn mistyped(&mut self, rule: RuleId, path: impl Located, value: impl Offending, expected: &'static str) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::TypeInvalid, &value, &expected);
    }

    /// The field is longer than so many bytes.
    pub fn too_long(&mut self, rule: RuleId, path: impl Located, max_bytes: usize) {
        let detail = format_args!("may not be more than {max_bytes} bytes");
        self.add((rule, Severity::Deny), path.place(), ErrorKind::TooLong, &Value::Null, &detail);
    }

    /// The value stands elsewhere already.
    pub fn duplicate(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Deny), path.place(), ErrorKind::Duplicate, &value, &detail);
    }

    /// The value is legal but suspicious.
    pub fn warn(&mut self, rule: RuleId, path: impl Located, value: impl Offending, detail: impl fmt::Display) {
        self.add((rule, Severity::Warn), path.place(), ErrorKind::Invalid, &value, &detail);
    }

    /// The findings that are kept.
    pub fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.kept.iter()
    }

    /// The findings that are kept, to be judged anew.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.counted.are_stale = true;
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

/// The words that a field may hold, as an explanation.
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
            found.warn(RULE, FieldPath::new("a"), "x", "odd");
        }
        found.append(bad(2));
        assert_eq!((found.denied(), found.errors().count(), found.warned()), (2, 2, 1_000));
    }

    #[test]
    fn a_text_is_cut_and_what_is_left_out_costs_no_text() {
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
    fn an_update_is_forgiven_what_was_there_however_much_it_is(
        #[case] first: usize,
        #[case] end: usize,
        #[case] refusals: usize,
    ) {
        let mut found = Findings::forgiving(bad(200));
        add(first, end, &mut found);
        let mut all = Findings::new();
        all.append(found);
        assert_eq!((all.denied(), all.warned()), (refusals, end - first - refusals));
        assert_eq!(all.errors().count(), refusals.min(FINDINGS_MAX), "a new mistake is told, not only counted");
    }

    #[test]
    fn more_than_can_be_recognised_is_refused_in_few_words() {
        let many = RECOGNISED_MAX + FINDINGS_MAX;
        let unchanged = bad(many).forgiven(bad(many)).unwrap();
        assert_eq!((unchanged.denied(), unchanged.warned()), (0, many));
        let more = bad(many + 3).forgiven(bad(many + 3)).unwrap();
        let text = more.aggregate();
        assert_eq!(more.denied(), 1);
        assert!(text.starts_with("a: Forbidden: 3 mistakes beyond 65536 can't be told from those"), "{text}");
    }

    /// Rules that ran before anything was known to be forgiven need not run again, unless there is more to tell.
    #[rstest]
    #[case::the_same(0, 200, None)]
    #[case::fewer(10, 100, None)]
    #[case::few_others(170, 210, None)]
    #[case::one_more_that_was_not_told(0, 201, Some(1))]
    #[case::others(200, 260, Some(60))]
    fn what_was_found_is_forgiven_afterwards(
        #[case] first: usize,
        #[case] end: usize,
        #[case] refusals: Option<usize>,
    ) {
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
        assert_eq!(found.errors().count(), denied.min(FINDINGS_MAX), "a new mistake is told, not only counted");
    }

    #[rstest]
    #[case::in_another_order([5, 0, 3], 3)]
    #[case::once_more([0, 1, 0], 2)]
    #[case::once_more_at_another_place([1, 1, 0], 2)]
    #[case::after_another([9, 0, 1], 2)]
    fn what_was_there_is_forgiven_once_wherever_it_is(#[case] numbers: [usize; 3], #[case] forgiven: usize) {
        let mut found = Findings::forgiving(bad(6));
        for number in numbers {
            add(number, number + 1, &mut found);
        }
        assert_eq!((found.warned(), found.denied()), (forgiven, 3 - forgiven));
    }

    #[test]
    fn what_is_only_counted_is_counted_all_the_same() {
        let mut found = Findings::counting();
        add(0, 200, &mut found);
        found.append(bad(100));
        assert_eq!((found.denied(), found.errors().count()), (300, FINDINGS_MAX));
    }

    #[test]
    fn what_a_rule_looked_at_besides_counts() {
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
