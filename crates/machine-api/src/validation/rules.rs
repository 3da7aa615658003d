//! The list of all rules: which exist, how strict each is in which profile, and which an object may skip.
//!
//! Source: spec/api-and-admission §4.3, §4.4, §5. The rules themselves only find; what a finding means is decided here.

use super::Profile;
use crate::kind::ApiVersion;
use kube_values::field::{Findings, RuleId, Severity};

/// What the original's own reconcile checks did with a mistake (spec/api-and-admission §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Original {
    /// It acted on such an object; so do our controllers.
    ActsOnIt,
    /// It refused to act on such an object.
    RefusesIt,
}

/// How strictly a rule is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// As the rule itself says.
    AsFound,
    /// Denies in profile `strict`; in `compat` it warns, with this text added.
    DeniesWhenStrict(&'static str),
    /// Denies in v1beta1, which is always strict; in v1alpha1 it warns in every profile, with this text added.
    DeniesInV1beta1(&'static str),
    /// A transition rule: controllers are exempt, and an object may ask to skip it.
    Skippable,
}

struct Rule {
    id: RuleId,
    level: Level,
    original: Original,
}

const fn rule(id: RuleId) -> Rule {
    Rule { id, level: Level::AsFound, original: Original::ActsOnIt }
}

const fn skippable(id: RuleId) -> Rule {
    Rule { id, level: Level::Skippable, original: Original::ActsOnIt }
}

const fn by_profile(id: RuleId, compat_text: &'static str) -> Rule {
    Rule { id, level: Level::DeniesWhenStrict(compat_text), original: Original::ActsOnIt }
}

const fn by_version(id: RuleId, v1alpha1_text: &'static str) -> Rule {
    Rule { id, level: Level::DeniesInV1beta1(v1alpha1_text), original: Original::ActsOnIt }
}

/// A rule that the original has too, or without which its code cannot read the object.
const fn original(id: RuleId) -> Rule {
    Rule { id, level: Level::AsFound, original: Original::RefusesIt }
}

/// All rules of spec/api-and-admission §5, in its order; `TYPE` is the wrong JSON type of a known field.
const RULES: &[Rule] = &[
    original("TYPE"),
    rule("META-1"),
    rule("META-2"),
    rule("META-3"),
    rule("META-4"),
    rule("META-5"),
    rule("META-6"),
    rule("META-7"),
    skippable("META-8"),
    rule("META-9"),
    rule("META-10"),
    rule("META-11"),
    rule("META-12"),
    original("MCH-1"),
    original("MCH-2"),
    rule("MCH-3"),
    rule("MCH-4"),
    rule("MCH-5"),
    rule("MCH-6"),
    original("MCH-7"),
    rule("MCH-8"),
    rule("MCH-9"),
    rule("MCH-10"),
    original("MCH-11"),
    rule("MCH-12"),
    rule("MCH-13"),
    rule("MCH-14"),
    rule("MCH-15"),
    rule("MCH-16"),
    rule("MCH-17"),
    rule("MCH-18"),
    skippable("MCH-19"),
    skippable("MCH-20"),
    rule("MCH-21"),
    rule("MCH-22"),
    rule("MCH-23"),
    rule("MCH-24"),
    rule("MCH-25"),
    rule("MCH-26"),
    rule("MCH-27"),
    original("SEL-1"),
    original("SEL-2"),
    original("SEL-3"),
    original("SEL-4"),
    rule("SEL-5"),
    original("SEL-6"),
    skippable("SEL-7"),
    rule("SEL-8"),
    original("REP-1"),
    rule("REP-2"),
    rule("REP-3"),
    rule("REP-4"),
    rule("REP-5"),
    rule("REP-6"),
    rule("REP-7"),
    original("STR-1"),
    original("STR-2"),
    original("STR-3"),
    original("STR-4"),
    by_profile("STR-5", ""),
    original("STR-6"),
    original("STR-7"),
    rule("STR-8"),
    // Gardener spreads the percentages of a worker pool over its zones and so writes more than 100 %.
    by_version("STR-9", "; it counts as 100%"),
    original("STR-10"),
    by_profile("STR-11", "; it is treated as 1"),
    original("STR-12"),
    rule("STR-13"),
    rule("STR-14"),
    rule("MS-1"),
    rule("CLS-1"),
    rule("CLS-2"),
    rule("CLS-3"),
    rule("CLS-4"),
    rule("CLS-5"),
    rule("CLS-6"),
    rule("CLS-7"),
    rule("CLS-8"),
    rule("CLS-9"),
    original("CLS-10"),
    original("CLS-11"),
    original("CLS-12"),
    rule("CLS-13"),
    rule("CLS-14"),
    rule("CLS-15"),
    skippable("CLS-16"),
    rule("CLS-17"),
    rule("CLS-18"),
    rule("STS-1"),
    rule("STS-2"),
    rule("STS-3"),
    rule("DELETE"),
];

fn find(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// The name of a rule as this list spells it, if there is such a rule.
pub fn known(id: &str) -> Option<RuleId> {
    find(id).map(|rule| rule.id)
}

/// Whether there is a rule of this name.
pub fn is_rule(id: &str) -> bool {
    find(id).is_some()
}

/// Whether an object may ask to skip the rule.
pub fn is_skippable(id: &str) -> bool {
    find(id).is_some_and(|rule| rule.level == Level::Skippable)
}

/// The rules that an object may ask to skip.
pub fn skippable_ids() -> impl Iterator<Item = RuleId> {
    RULES.iter().filter(|rule| rule.level == Level::Skippable).map(|rule| rule.id)
}

/// Whether the controllers must not act on an object that breaks the rule, because the original did not either.
pub fn stops_controllers(id: &str) -> bool {
    find(id).is_some_and(|rule| rule.original == Original::RefusesIt)
}

/// Turns refusals into warnings where profile and version say so.
pub fn apply_profile(profile: Profile, version: ApiVersion, found: &mut Findings) {
    for finding in found.iter_mut().filter(|finding| finding.severity == Severity::Deny) {
        if let Some(text) = only_warns(finding.rule, profile, version) {
            finding.severity = Severity::Warn;
            finding.error.detail.to_mut().push_str(text);
        }
    }
    found.let_left_out_pass(|id| only_warns(id, profile, version).is_some());
}

/// Whether a rule only warns in this profile and version; what its warning says besides.
fn only_warns(id: RuleId, profile: Profile, version: ApiVersion) -> Option<&'static str> {
    match (find(id)?.level, profile, version) {
        (Level::DeniesWhenStrict(text), Profile::Compat, _)
        | (Level::DeniesInV1beta1(text), _, ApiVersion::V1alpha1) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_listed_once() {
        let mut ids: Vec<_> = RULES.iter().map(|rule| rule.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), RULES.len());
    }

    #[test]
    fn the_rules_that_may_be_skipped_are_transitions() {
        assert_eq!(skippable_ids().collect::<Vec<_>>(), ["META-8", "MCH-19", "MCH-20", "SEL-7", "CLS-16"]);
    }
}
