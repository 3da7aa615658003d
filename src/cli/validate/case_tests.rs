//! Runs every case of `tests/fixtures/admission-cases.yaml` with the code of the webhooks and with `mcm validate`. Both must give the
//! expected answer.

use std::{cell::RefCell, fs, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{
    case_table::{self as table, Case, cases, fits, fits_warning, holds, mismatch},
    *,
};
use crate::{
    DriverSet, drivers::ControlCluster, manager::registered_drivers::RegisteredDrivers, settings::CloudSettings,
};
use driver_virtual::{SimulationOptions, VirtualCloud};
use kube_values::field::{RuleId, Severity};
use machine_api::{
    admission::{Admission, Endpoint},
    validation::{ControllerUsers, Coverage, Leniency, Level, NoReferences, Profile, RULES, References},
};

const NAMESPACE: &str = "default";

/// The drivers that `mcm serve` has by default.
fn drivers() -> RegisteredDrivers {
    let simulation = VirtualCloud::new(&SimulationOptions::new(jiff::Timestamp::UNIX_EPOCH)).unwrap();
    let (clouds, control) = (CloudSettings::default(), ControlCluster::default());
    let registry = DriverSet::built_in().registry(&clouds, &control, Arc::new(simulation), |_| true, |driver| driver);
    RegisteredDrivers::new(registry, Coverage::Some)
}

fn policy(case: &Case) -> Policy {
    let profile = case.profile.parse::<Profile>().unwrap();
    Policy { profile, controllers: ControllerUsers::named(["ctl"]) }
}

/// The content of the caches: the other objects of the case, and the class of all base objects.
fn known(case: &Case) -> Option<Vec<Value>> {
    let mut others = case.others.as_ref()?.clone();
    others.push(table::base("MachineClass", "c1", NAMESPACE));
    Some(others)
}

/// Denials and warnings.
#[derive(Debug, PartialEq)]
struct Said {
    denials: Vec<String>,
    warnings: Vec<String>,
}

/// The answer of the webhooks: first the defaults, then the rules for the result. Also the defaulted object, and the rules that found
/// something.
fn webhooks(case: &Case, drivers: &RegisteredDrivers) -> (Said, Option<Value>, Vec<(RuleId, Severity)>) {
    let references: Arc<dyn References> = match known(case) {
        Some(others) => Arc::new(Inventory::of(others.iter(), NAMESPACE)),
        None => Arc::new(NoReferences),
    };
    let admission = Admission::new(policy(case)).with_providers(Arc::new(drivers.clone())).with_references(references);
    let operation = match (&case.old, &case.new) {
        (None, _) => "CREATE",
        (Some(_), Some(_)) => "UPDATE",
        (Some(_), None) => "DELETE",
    };
    let rules = RefCell::new(Vec::new());
    let ask = |endpoint: Endpoint, object: &Option<Value>| -> Value {
        let kind = json!({"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": case.kind});
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "kind": kind, "namespace": NAMESPACE, "operation": operation, "dryRun": true,
                "userInfo": {"username": case.user}, "object": object, "oldObject": case.old,
            },
        });
        let answer = admission.review(endpoint, review.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", case.id);
        if endpoint == Endpoint::Validate {
            *rules.borrow_mut() = answer.facts.rules.clone();
        }
        serde_json::from_slice::<Value>(&answer.body).unwrap()["response"].take()
    };
    let mut object = case.new.clone();
    if let Some(object) = &mut object {
        let answer = ask(Endpoint::Mutate, &Some(object.clone()));
        if let Some(patch) = answer["patch"].as_str() {
            let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
            json_patch::patch(object, &patch).unwrap();
            let again = ask(Endpoint::Mutate, &Some(object.clone()));
            assert_eq!(again.get("patch"), None, "{}: defaulting is not idempotent", case.id);
        }
    }
    let answer = ask(Endpoint::Validate, &object);
    let texts = |value: &Value| value.as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
    let cause = |cause: &Value| format!("{}: {}", cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap());
    let denials: Vec<_> = texts(&answer["status"]["details"]["causes"]).iter().map(cause).collect();
    assert_eq!(answer["allowed"], denials.is_empty(), "{}", case.id);
    let warnings = texts(&answer["warnings"]).iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    (Said { denials, warnings }, object, rules.into_inner())
}

/// The answer of `mcm validate`. The other documents of the input are its cache.
fn offline(case: &Case, drivers: &RegisteredDrivers) -> Option<Said> {
    let document = |value: &Value| Document { source: "case".to_owned(), index: 0, value: value.clone() };
    let mut documents = vec![document(case.new.as_ref()?)];
    documents.extend(known(case).into_iter().flatten().map(|other| document(&other)));
    let options = ValidateOptions {
        user: case.user.clone(),
        namespace: NAMESPACE.to_owned(),
        policy: policy(case),
        ..ValidateOptions::default()
    };
    let old: Vec<_> = case.old.iter().map(document).collect();
    let report = check(&documents, &old, Vec::new(), &options, drivers);
    let findings = &report.objects[0].findings;
    Some(Said {
        denials: findings.errors().map(ToString::to_string).collect(),
        warnings: findings.warnings().collect(),
    })
}

#[test]
fn every_case_is_answered_alike_by_webhook_and_command_line() {
    let parsed = parse_documents("cases", include_str!("../../../tests/fixtures/admission-cases.yaml")).unwrap();
    let drivers = drivers();
    let mut wrong = Vec::new();
    let cases = cases(&parsed[0].value, NAMESPACE);
    for case in &cases {
        let mut complain = |complaint: Option<String>| {
            wrong.extend(complaint.map(|complaint| format!("{}: {complaint}", case.id)));
        };
        let (said, object, _) = webhooks(case, &drivers);
        complain(mismatch("denials of the webhook", &case.deny, &said.denials, fits));
        complain(mismatch("warnings of the webhook", &case.warn, &said.warnings, fits_warning));
        if let (Some(wanted), Some(object)) = (&case.becomes, &object) {
            complain((!holds(object, wanted)).then(|| format!("becomes {object}\n  expected: {wanted}")));
        }
        if let Some(said) = offline(case, &drivers) {
            complain(mismatch("denials of the command line", &case.deny, &said.denials, fits));
            complain(mismatch("warnings of the command line", &case.warn, &said.warnings, fits));
        }
    }
    assert!(cases.len() > 160, "the table lost cases: {}", cases.len());
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

/// The table and the declarations of the rules name each other: no line can go, and no rule can come, without the other.
#[test]
fn every_rule_names_the_cases_that_show_it() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/machine-api/src/validation");
    let files = fs::read_dir(folder).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let sources: String = files.collect();
    let is_test = |name: &str| ["fn ", "#[case::"].iter().any(|before| sources.contains(&format!("{before}{name}(")));
    let parsed = parse_documents("cases", include_str!("../../../tests/fixtures/admission-cases.yaml")).unwrap();
    let (cases, drivers) = (cases(&parsed[0].value, NAMESPACE), drivers());
    let mut wrong = Vec::new();
    for case in &cases {
        let (_, _, found) = webhooks(case, &drivers);
        for (id, severity) in found {
            let rule = RULES.iter().find(|rule| rule.id == id).expect("only declared rules find anything");
            let is_of_level = match severity {
                Severity::Deny => rule.level != Level::Warn,
                Severity::Warn => rule.level != Level::Refuse || rule.leniency != Leniency::None,
                Severity::Existing | Severity::Skipped => true,
            };
            if !rule.cases.contains(&case.id.as_str()) || !is_of_level {
                wrong.push(format!(
                    "rule {id} gives {severity:?} in case {}, which its declaration does not say",
                    case.id
                ));
            }
        }
        let is_named = RULES.iter().any(|rule| rule.cases.contains(&case.id.as_str()));
        if !is_named && case.becomes.is_none() {
            wrong.push(format!("case {} shows no default, and no rule names it", case.id));
        }
    }
    for rule in RULES {
        let is_there = |name: &str| cases.iter().any(|case| case.id == name) || is_test(name);
        let lost = rule.cases.iter().filter(|name| !is_there(name));
        wrong.extend(lost.map(|name| format!("rule {} names {name}, which is neither a case nor a test", rule.id)));
        if rule.cases.is_empty() {
            wrong.push(format!("rule {} names no case", rule.id));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ids_are_used_once() {
    let parsed = parse_documents("cases", include_str!("../../../tests/fixtures/admission-cases.yaml")).unwrap();
    let mut ids: Vec<_> = cases(&parsed[0].value, NAMESPACE).into_iter().map(|case| case.id).collect();
    ids.sort_unstable();
    let before = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), before);
}
