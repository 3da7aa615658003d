//! The list of all rules, and the effect of their declarations on findings: how strict a rule is in a profile, and whether an object may skip it.
//!
//! Source: spec/api-and-admission §4.3, §4.4, §5. The rules only make findings. This file decides what a finding means.

use super::{
    Profile, class, conditions, machine_spec, metadata, node_template, provider_schema, references, replicas, residue,
    rule::{Leniency, Original, Rule},
    selector, status, strategy, transitions, types,
};
use crate::kind::ApiVersion;
use kube_values::field::{Findings, RuleId, Severity};

/// All rules of spec/api-and-admission §5, in its order. `TYPE` is for the wrong JSON type of a known field.
#[rustfmt::skip]
pub const RULES: &[Rule] = &[
    types::TYPE,
    metadata::META_1, metadata::META_2, metadata::META_3, metadata::META_4, metadata::META_5, metadata::META_6,
    metadata::META_7, transitions::META_8, metadata::META_9, metadata::META_10, metadata::META_11, residue::META_12,
    machine_spec::MCH_1, machine_spec::MCH_2, machine_spec::MCH_3, machine_spec::MCH_4, machine_spec::MCH_5,
    references::MCH_6, machine_spec::MCH_7, machine_spec::MCH_8, machine_spec::MCH_9, conditions::MCH_10,
    node_template::MCH_11, node_template::MCH_12, node_template::MCH_13, node_template::MCH_14, node_template::MCH_15,
    node_template::MCH_16, node_template::MCH_17, node_template::MCH_18, transitions::MCH_19, transitions::MCH_20,
    references::MCH_21, machine_spec::MCH_22, machine_spec::MCH_23, machine_spec::MCH_24, machine_spec::MCH_25,
    references::MCH_26, node_template::MCH_27,
    selector::SEL_1, selector::SEL_2, selector::SEL_3, selector::SEL_4, selector::SEL_5, selector::SEL_6,
    transitions::SEL_7, references::SEL_8,
    replicas::REP_1, strategy::REP_2, replicas::REP_3, replicas::REP_4, replicas::REP_5, transitions::REP_6,
    transitions::REP_7,
    strategy::STR_1, strategy::STR_2, strategy::STR_3, strategy::STR_4, strategy::STR_5, strategy::STR_6,
    strategy::STR_7, strategy::STR_8, strategy::STR_9, strategy::STR_10, strategy::STR_11, strategy::STR_12,
    strategy::STR_13, transitions::STR_14,
    replicas::MS_1,
    class::CLS_1, class::CLS_2, class::CLS_3, provider_schema::CLS_4, provider_schema::CLS_5, class::CLS_6,
    class::CLS_7, class::CLS_8, references::CLS_9, class::CLS_10, class::CLS_11, class::CLS_12, class::CLS_13,
    class::CLS_14, class::CLS_15, references::CLS_16, references::CLS_17, provider_schema::CLS_18,
    status::STS_1, status::STS_2, status::STS_3,
    references::DELETE,
];

fn find(id: RuleId) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// The rule with this id.
pub fn named(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id.as_str() == id)
}

/// Whether an object may ask to skip the rule.
pub fn is_skippable(id: RuleId) -> bool {
    find(id).is_some_and(Rule::is_skippable)
}

/// The rules that an object may ask to skip.
pub fn skippable_ids() -> impl Iterator<Item = RuleId> {
    RULES.iter().filter(|rule| rule.is_skippable()).map(|rule| rule.id)
}

/// Whether controllers must not reconcile an object that violates the rule, because the Go original did not either.
pub fn stops_controllers(id: RuleId) -> bool {
    find(id).is_some_and(|rule| rule.original == Original::RefusesIt)
}

/// Turns refusals into warnings where profile and version allow that.
pub fn apply_profile(profile: Profile, version: ApiVersion, found: &mut Findings) {
    for finding in found.iter_mut().filter(|finding| finding.severity == Severity::Deny) {
        if let Some(text) = only_warns(finding.rule, profile, version) {
            finding.severity = Severity::Warn;
            finding.error.detail.to_mut().push_str(text);
        }
    }
    found.let_left_out_pass(|id| only_warns(id, profile, version).is_some());
}

/// The additional text of the warning, if a rule only warns in this profile and version.
fn only_warns(id: RuleId, profile: Profile, version: ApiVersion) -> Option<&'static str> {
    match (find(id)?.leniency, profile, version) {
        (Leniency::InCompat(text), Profile::Compat, _) | (Leniency::InV1alpha1(text), _, ApiVersion::V1alpha1) => {
            Some(text)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without this test, the leniency of a declared rule that is not listed would have no effect, and the rule would stop no controller.
    #[test]
    fn every_declaration_is_listed_once_by_its_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/validation");
        let mut declared = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let names = text.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": Rule ="));
            declared.extend(names.map(|(name, _)| name.replace('_', "-")));
        }
        let mut listed: Vec<_> = RULES.iter().map(|rule| rule.id.to_string()).collect();
        declared.sort_unstable();
        listed.sort_unstable();
        assert_eq!(declared, listed);
    }

    #[test]
    fn the_rules_that_may_be_skipped_are_transitions() {
        let ids: Vec<_> = skippable_ids().map(RuleId::as_str).collect();
        assert_eq!(ids, ["META-8", "MCH-19", "MCH-20", "SEL-7", "CLS-16"]);
    }
}
