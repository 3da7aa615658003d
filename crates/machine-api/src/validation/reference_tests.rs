//! Checks that `docs/rules.md`, the reference of the rules for users, is generated from the declarations.

use std::fs;

use super::{Leniency, Level, Original, RULES, Rule};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");

const HEAD: &str = "\
# Rules of admission

What the webhooks and `mcm validate` demand of objects of group `machine.sapcloud.io`. Each id leads to an example with the answer.
This page is made from the declarations of the rules in `crates/machine-api/src/validation`. `WRITE_DOCS=1 cargo test -p machine-api --lib reference` writes it.
The same test fails when it is out of date.

* *Answer*: what becomes of a request that breaks the rule. `strict` is the profile of `--admission-profile=strict`. An object asks to skip a rule by the
  annotation `admission.machine.sapcloud.io/skip: META-8`. An update is not refused for what was wrong before.
* *CEL*: where the API server judges by the rule, or by a part of it, while no webhook answers. *definitions*: `mcm manifests crds`; *policies*:
  `mcm manifests policies`. The schemas of the definitions also have types, time limits, quantities and words.
* *Controllers*: whether they stop at a stored object that breaks the rule, as the Go original did.

| Rule | What must hold | Answer | CEL | Controllers |
| --- | --- | --- | --- | --- |
";

fn answer(rule: &Rule) -> String {
    let answer = match rule.level {
        Level::Refuse => "refused",
        Level::Warn => "warning",
        Level::RefuseOrWarn => "refused or warning",
    };
    match rule.leniency {
        Leniency::None => answer.to_owned(),
        Leniency::InCompat(_) => format!("warning, {answer} in profile `strict`"),
        Leniency::InV1alpha1(_) => format!("warning, {answer} in v1beta1"),
        Leniency::WhenSkipped => format!("{answer}, may be skipped"),
    }
}

fn line(rule: &Rule) -> String {
    let places = [("definitions", rule.crd_cel.is_empty()), ("policies", rule.policy_cel.is_empty())];
    let places: Vec<_> = places.iter().filter(|(_, is_empty)| !is_empty).map(|(place, _)| *place).collect();
    let controllers = if rule.original == Original::RefusesIt { "stop" } else { "" };
    let (answer, places, anchor) = (answer(rule), places.join(", "), rule.id.as_str().to_lowercase());
    let link = format!("[{}](reference/rule-examples.md#{anchor})", rule.id);
    format!("| {link} | {} | {answer} | {places} | {controllers} |\n", rule.demand)
}

#[test]
fn the_reference_is_generated_from_the_declarations() {
    let reference = HEAD.to_owned() + &RULES.iter().map(line).collect::<String>();
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(FILE, &reference).unwrap();
    }
    assert_eq!(fs::read_to_string(FILE).unwrap(), reference, "run this test with WRITE_DOCS=1");
}
