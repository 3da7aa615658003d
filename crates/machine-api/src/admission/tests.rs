//! Tests of the protocol: cases of spec/api-and-admission §12.4 by their numbers, §4.1, §4.6, and hostile input.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use base64::{Engine, engine::general_purpose::STANDARD};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    conversion::Loss,
    kind::{ApiVersion, Kind},
    names::finalizer,
    validation::ControllerUsers,
};

fn admission() -> Admission {
    Admission::new(Policy { controllers: ControllerUsers::named(["ctl"]), ..Policy::default() })
}

fn machine() -> Value {
    json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m1", "namespace": "default", "finalizers": [finalizer::MACHINE], "managedFields": [{"manager": "kubectl"}]},
        "spec": {"class": {"kind": "MachineClass", "name": "c1"}}})
}

/// The creation of a machine by alice, changed by a merge patch of the request.
fn review(patch: Value) -> Vec<u8> {
    let mut request = json!({
        "uid": "u-1",
        "kind": {"group": "machine.sapcloud.io", "version": "v1alpha1", "kind": "Machine"},
        "resource": {"group": "machine.sapcloud.io", "version": "v1alpha1", "resource": "machines"},
        "name": "m1", "namespace": "default", "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"], "extra": {"a": ["b"]}},
        "object": machine(), "oldObject": null, "dryRun": false,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    });
    json_patch::merge(&mut request, &patch);
    // A merge patch can't set null, but the API server sends null.
    for field in ["object", "oldObject"] {
        if request.get(field).is_none() {
            request[field] = Value::Null;
        }
    }
    serde_json::to_vec(&json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}))
        .unwrap()
}

fn response(answer: &ReviewAnswer) -> Value {
    assert_eq!(answer.status, 200);
    let mut review: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(review["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(review["kind"], "AdmissionReview");
    assert_eq!(review["response"]["uid"], "u-1");
    let mut response = review["response"].take();
    response.as_object_mut().unwrap().remove("uid");
    response
}

fn ask(endpoint: Endpoint, patch: Value) -> Value {
    response(&admission().review(endpoint, &review(patch)))
}

#[test]
fn a_valid_machine_is_allowed_without_warnings() {
    assert_eq!(ask(Endpoint::Validate, json!({})), json!({"allowed": true}));
}

#[test]
fn p09_a_denial_names_every_cause() {
    let answer = ask(Endpoint::Validate, json!({"object": {"spec": {"drainTimeout": "x", "maxEvictRetries": -1}}}));
    let duration = "Invalid value: \"x\": must be a duration such as \"30s\", \"10m\" or \"1h30m\"";
    let retries = "Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(
        answer,
        json!({"allowed": false, "status": {
            "status": "Failure", "code": 422, "reason": "Invalid",
            "message": format!("Machine.machine.sapcloud.io \"m1\" is invalid: [spec.drainTimeout: {duration}, spec.maxEvictRetries: {retries}]"),
            "details": {"group": "machine.sapcloud.io", "kind": "Machine", "name": "m1", "causes": [
                {"reason": "FieldValueInvalid", "message": duration, "field": "spec.drainTimeout"},
                {"reason": "FieldValueInvalid", "message": retries, "field": "spec.maxEvictRetries"},
            ]},
        }})
    );
}

#[test]
fn v140_a_name_that_is_being_generated_is_its_beginning() {
    let object = json!({"metadata": {"name": null, "generateName": "d1-"}, "spec": {"class": {"name": ""}}});
    let answer = ask(Endpoint::Validate, json!({"name": null, "object": object}));
    assert_eq!(
        answer["status"]["message"],
        "Machine.machine.sapcloud.io \"d1-\" is invalid: spec.class.name: Required value: Name is required"
    );
}

#[rstest]
#[case::another_group(json!({"kind": {"group": "apps", "kind": "Deployment"}, "object": {"spec": null}}))]
#[case::another_kind(json!({"kind": {"kind": "Mischief"}, "object": {"spec": null}}))]
#[case::another_version(json!({"kind": {"version": "v7"}, "object": {"spec": null}}))]
#[case::v111_scale(json!({"kind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}, "subResource": "scale", "object": {"spec": {"replicas": -1}}}))]
#[case::an_unknown_subresource(json!({"subResource": "exec", "object": {"spec": null}}))]
#[case::connect(json!({"operation": "CONNECT", "object": {"spec": null}}))]
#[case::p11_a_deletion_without_the_object(json!({"operation": "DELETE", "object": null}))]
#[case::a_dry_run(json!({"dryRun": true}))]
fn requests_for_other_objects_are_allowed(#[case] patch: Value) {
    assert_eq!(ask(Endpoint::Validate, patch.clone()), json!({"allowed": true}));
    if patch.get("dryRun").is_none() {
        assert_eq!(ask(Endpoint::Mutate, patch), json!({"allowed": true}));
    }
}

#[rstest]
#[case::p01_an_old_review(
    br#"{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "u"}}"#,
    "cannot answer kind \"AdmissionReview\" of apiVersion \"admission.k8s.io/v1beta1\": want AdmissionReview of admission.k8s.io/v1"
)]
#[case::another_kind(
    br#"{"apiVersion": "v1", "kind": "Pod"}"#,
    "cannot answer kind \"Pod\" of apiVersion \"v1\": want AdmissionReview of admission.k8s.io/v1"
)]
#[case::p04_nothing(b"", "the body is empty: want an AdmissionReview of admission.k8s.io/v1")]
#[case::p04_cut_off(
    br#"{"apiVersion": "admission.k8s.io/v1", "kind"#,
    "the body is no AdmissionReview of admission.k8s.io/v1: EOF while parsing a string at line 1 column 43"
)]
#[case::no_json(b"<html>", "the body is no AdmissionReview of admission.k8s.io/v1: expected value at line 1 column 1")]
#[case::a_list(b"[]", "the body is no AdmissionReview of admission.k8s.io/v1: it names no kind")]
#[case::p06_no_request(
    br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#,
    "the AdmissionReview has no request"
)]
#[case::no_uid(
    br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}"#,
    "the request of the AdmissionReview has no uid"
)]
fn a_body_that_is_no_review_is_refused_with_the_reason(#[case] body: &[u8], #[case] message: &str) {
    let answer = admission().review(Endpoint::Validate, body);
    assert_eq!(answer.status, 400);
    assert_eq!(
        serde_json::from_slice::<Value>(&answer.body).unwrap(),
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 400, "reason": "BadRequest", "message": message})
    );
    assert_eq!(answer.facts.verdict, Verdict::Failed);
}

#[rstest]
#[case(json!({"object": null}), "the request is CREATE and has no object")]
#[case(json!({"operation": "UPDATE"}), "the request is UPDATE and has no oldObject")]
fn a_review_without_its_object_is_refused_by_validation_alone(#[case] patch: Value, #[case] message: &str) {
    let answer = admission().review(Endpoint::Validate, &review(patch.clone()));
    assert_eq!((answer.status, answer.facts.failure.as_str()), (400, message));
    assert_eq!(ask(Endpoint::Mutate, patch), json!({"allowed": true}));
}

#[test]
fn m01_defaults_are_a_patch_in_base64() {
    let answer = ask(Endpoint::Mutate, json!({}));
    let patch: Value = serde_json::from_slice(&STANDARD.decode(answer["patch"].as_str().unwrap()).unwrap()).unwrap();
    assert_eq!(
        patch,
        json!([{"op": "add", "path": "/metadata/annotations", "value": {"machinepriority.machine.sapcloud.io": "3"}}])
    );
    assert_eq!(answer["patchType"], "JSONPatch");
    assert_eq!(answer["allowed"], true);
}

#[test]
fn m06_without_defaults_there_is_neither_patch_nor_type() {
    let annotations = json!({"machinepriority.machine.sapcloud.io": "3"});
    assert_eq!(
        ask(Endpoint::Mutate, json!({"object": {"metadata": {"annotations": annotations}}})),
        json!({"allowed": true})
    );
}

#[test]
fn m20_a_dry_run_gets_the_same_patch() {
    assert_eq!(ask(Endpoint::Mutate, json!({"dryRun": true})), ask(Endpoint::Mutate, json!({})));
}

#[rstest]
#[case(json!([]))]
#[case(json!("x"))]
#[case(json!({"spec": 5}))]
fn m23_an_object_that_cannot_be_read_is_left_to_validation(#[case] object: Value) {
    let mut body: Value = serde_json::from_slice(&review(json!({}))).unwrap();
    body["request"]["object"] = object;
    body["request"]["operation"] = json!("UPDATE");
    body["request"]["oldObject"] = json!({"metadata": {"finalizers": [finalizer::MACHINE]}});
    let body = serde_json::to_vec(&body).unwrap();
    let mutated = response(&admission().review(Endpoint::Mutate, &body));
    assert_eq!(mutated["allowed"], true);
    let judged = response(&admission().review(Endpoint::Validate, &body));
    assert_eq!(judged["status"]["code"], 422, "{judged}");
}

#[test]
fn v050_a_skipped_rule_is_reported_to_the_user_and_the_audit_log() {
    let old = json!({"metadata": {"name": "m1"}, "spec": {"providerID": "x"}});
    let new = json!({"metadata": {"annotations": {"admission.machine.sapcloud.io/skip": "MCH-19"}}, "spec": {"providerID": "y"}});
    let answer = ask(Endpoint::Validate, json!({"operation": "UPDATE", "object": new, "oldObject": old}));
    assert_eq!(answer["warnings"], json!(["rule MCH-19 skipped"]));
    assert_eq!(answer["auditAnnotations"], json!({"skipped": "MCH-19"}));
    assert_eq!(answer["allowed"], true);
}

#[test]
fn p10_warnings_end_before_the_api_server_stops_reading() {
    let annotations: serde_json::Map<_, _> = (0..60)
        .map(|n| (format!("node.machine.sapcloud.io/last-applied-{n:02}-{}", "x".repeat(30)), json!("y")))
        .collect();
    let template = json!({"metadata": {"annotations": annotations, "name": "line one\nline two"}});
    let answer = ask(Endpoint::Validate, json!({"object": {"spec": {"nodeTemplate": template}}}));
    let warnings: Vec<&str> =
        answer["warnings"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(warnings.iter().map(|text| text.len()).sum::<usize>() <= 4096);
    assert!(warnings.iter().all(|text| text.chars().count() <= 120 && !text.contains('\n')));
    let kept = warnings.len() - 1;
    assert_eq!(*warnings.last().unwrap(), format!("… and {} more", 61 - kept));
}

#[test]
fn p12_findings_of_a_v1beta1_object_have_its_paths() {
    let kind = json!({"version": "v1beta1", "kind": "MachineDeployment"});
    let spec = json!({"class": null, "replicas": 1, "selector": {"matchLabels": {"a": "b"}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "x", "maxUnavailable": 0}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"classRef": {"kind": "MachineClass", "name": "c1"}, "lifecycle": {"drainTimeout": "x"}}}});
    let answer = ask(Endpoint::Validate, json!({"kind": kind, "object": {"spec": spec}}));
    let causes = answer["status"]["details"]["causes"].as_array().unwrap();
    let fields: Vec<_> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["spec.strategy.rollingUpdate.maxSurge", "spec.template.spec.lifecycle.drainTimeout"]);
}

#[test]
fn status_writes_are_warned_about_and_never_refused() {
    let request = json!({"operation": "UPDATE", "subResource": "status", "oldObject": machine(),
        "object": {"status": {"currentStatus": {"phase": "Foo"}}}});
    let answer = ask(Endpoint::ValidateStatus, request.clone());
    assert_eq!(
        answer,
        json!({"allowed": true, "warnings": ["status: is written by the machine controller manager", "status.currentStatus.phase: unknown value \"Foo\""]})
    );
    for elsewhere in [Endpoint::Mutate, Endpoint::Validate] {
        assert_eq!(ask(elsewhere, request.clone()), json!({"allowed": true}));
    }
}

#[test]
fn the_facts_for_metrics_name_the_rules_with_findings() {
    let answer = admission().review(Endpoint::Validate, &review(json!({"object": {"spec": {"drainTimeout": "x"}}})));
    assert_eq!(
        answer.facts,
        ReviewFacts {
            endpoint: Some(Endpoint::Validate),
            kind: Some(crate::kind::Kind::Machine),
            operation: Some(Operation::Create),
            verdict: Verdict::Denied,
            rules: vec![(kube_values::field::RuleId::declare("MCH-7"), kube_values::field::Severity::Deny)],
            failure: String::new(),
        }
    );
}

/// Every kind of text that an answer repeats, far longer than usual.
#[rstest]
#[case::commas(json!({"spec": {"nodeConditions": ",".repeat(12_000)}}))]
#[case::a_word(json!({"spec": {"nodeConditions": "x ".repeat(600_000)}}))]
#[case::a_text_of_quotes(json!({"spec": {"drainTimeout": "\"\u{1}".repeat(300_000)}}))]
#[case::skips(json!({"metadata": {"annotations": {"admission.machine.sapcloud.io/skip": "a,".repeat(12_000)}}}))]
#[case::labels(json!({"spec": {"nodeTemplate": {"metadata": {"labels": many(|n| (format!("!{n}"), json!("")))}}}}))]
#[case::long_keys(json!({"spec": {"nodeTemplate": {"metadata": {"labels": {"!".repeat(400_000): "\\".repeat(400_000)}}}}}))]
#[case::wrong_types(json!({"metadata": {"finalizers": vec![0; 50_000]}}))]
#[case::warnings(json!({"spec": {"nodeTemplate": {"metadata": many(|n| (format!("\"{n}"), json!(1)))}}}))]
#[case::a_name(json!({"metadata": {"name": "\u{1}\"".repeat(100_000)}, "spec": {"class": {"kind": "\"".repeat(100_000)}}}))]
fn an_answer_is_bounded_whatever_the_object_is(#[case] object: Value) {
    let name = object["metadata"]["name"].clone();
    let answer = admission().review(Endpoint::Validate, &review(json!({"object": object, "name": name})));
    assert!(answer.body.len() <= ANSWER_MAX, "{} bytes", answer.body.len());
    let answer = response(&answer);
    let text = answer["status"]["message"].as_str().unwrap_or_default();
    assert!(text.chars().count() <= 5_000, "{text}");
    let causes = answer["status"]["details"]["causes"].as_array().map_or(0, Vec::len);
    assert!(causes <= 51, "{causes}");
}

fn many(make: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..20_000).map(make).collect())
}

#[test]
fn the_first_of_many_mistakes_are_listed_and_the_others_counted() {
    let labels = many(|n| (format!("!{n}"), json!("")));
    let answer =
        ask(Endpoint::Validate, json!({"object": {"spec": {"nodeTemplate": {"metadata": {"labels": labels}}}}}));
    let message = answer["status"]["message"].as_str().unwrap();
    let causes = answer["status"]["details"]["causes"].as_array().unwrap();
    let told = message.matches("Invalid value").count();
    assert!(message.ends_with(&format!(", and {} more]", 20_000 - told)), "{message}");
    assert_eq!(causes.last().unwrap()["message"], format!("and {} more", 20_000 - (causes.len() - 1)));
}

#[rstest]
#[case::of_a_review(admission().review(Endpoint::Validate, &review(json!({"uid": "u".repeat(129)}))).status)]
#[case::of_a_conversion(convert(&conversion(json!([]), "machine.sapcloud.io/v1beta1").replace_uid(&"u".repeat(129))).status)]
fn a_uid_that_is_too_long_is_not_sent_back(#[case] status: u16) {
    assert_eq!(status, 400);
}

trait ReplaceUid {
    fn replace_uid(&self, uid: &str) -> Vec<u8>;
}

impl ReplaceUid for Vec<u8> {
    fn replace_uid(&self, uid: &str) -> Vec<u8> {
        String::from_utf8_lossy(self).replace("u-1", uid).into_bytes()
    }
}

/// A warning is a short line. Its subject is at the end and must not be cut off.
#[test]
fn a_warning_about_the_scalers_list_names_the_entry() {
    let annotations =
        json!({"node.machine.sapcloud.io/trigger-deletion-by-mcm": "m1~tomorrow,m2,,m3~x,m4~x,m5~x,m6~x"});
    let kind = json!({"kind": "MachineDeployment"});
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"class": {"kind": "MachineClass", "name": "c1"}}});
    let spec = json!({"class": null, "replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template,
        "strategy": {"type": "Recreate"}});
    let object = json!({"metadata": {"annotations": annotations}, "spec": spec});
    let answer = ask(Endpoint::Validate, json!({"kind": kind, "object": object}));
    let place = "metadata.annotations[node.machine.sapcloud.io/trigger-deletion-by-mcm]";
    assert_eq!(
        answer["warnings"],
        json!([
            format!("{place}: ignored, not <machine>~<time>: \"m1~tomorrow\""),
            format!("{place}: without time: \"m2\""),
            format!("{place}: ignored, not <machine>~<time>: \"\""),
            format!("{place}: ignored, not <machine>~<time>: \"m3~x\""),
            format!("{place}: ignored, not <machine>~<time>: \"m4~x\""),
            "… and 2 more",
        ])
    );
}

/// After its deadline, no client waits for the answer of a conversion, so that no further object is converted.
#[test]
fn a_conversion_ends_when_no_client_waits_for_it() {
    let objects: Vec<_> = (0..10).map(|n| versioned(&format!("m{n}"), "v1alpha1")).collect();
    let asked = std::cell::Cell::new(0);
    let given_up = || asked.replace(asked.get() + 1) == 3;
    let answer = convert_unless(&given_up, &conversion(json!(objects), "machine.sapcloud.io/v1beta1"));
    assert_eq!((asked.get(), answer.facts.failure.as_str()), (4, "the deadline passed after 3 of 10 objects"));
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let body =
        String::from_utf8(review(json!({}))).unwrap().replace("\"oldObject\":null", &format!("\"oldObject\":{deep}"));
    assert_eq!(admission().review(Endpoint::Validate, body.as_bytes()).status, 400);
    assert_eq!(convert(body.as_bytes()).status, 400);
}

fn conversion(objects: Value, desired: &str) -> Vec<u8> {
    serde_json::to_vec(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u-1", "desiredAPIVersion": desired, "objects": objects}}))
    .unwrap()
}

fn versioned(name: &str, version: &str) -> Value {
    json!({"apiVersion": format!("machine.sapcloud.io/{version}"), "kind": "Machine", "metadata": {"name": name}})
}

#[test]
fn k20_objects_are_converted_in_their_order() {
    let objects = json!([versioned("c", "v1alpha1"), versioned("a", "v1alpha1"), versioned("b", "v1alpha1")]);
    let answer = convert(&conversion(objects, "machine.sapcloud.io/v1beta1"));
    assert_eq!(
        serde_json::from_slice::<Value>(&answer.body).unwrap(),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": {
            "uid": "u-1",
            "convertedObjects": [versioned("c", "v1beta1"), versioned("a", "v1beta1"), versioned("b", "v1beta1")],
            "result": {"status": "Success"}}})
    );
    let expected = ConversionFacts {
        from: Some(ApiVersion::V1alpha1),
        to: Some(ApiVersion::V1beta1),
        objects: 3,
        ..ConversionFacts::default()
    };
    assert_eq!((answer.status, answer.facts), (200, expected));
}

#[rstest]
#[case::k21_one_of_three("Foo", "machine.sapcloud.io/v1beta1", "object 1 (Foo): \"Foo\" of version")]
#[case::k22_a_foreign_version(
    "Machine",
    "machine.sapcloud.io/v2",
    "object 0 (Machine): version \"machine.sapcloud.io/v2\" is not known"
)]
fn one_failure_fails_the_review(#[case] second: &str, #[case] desired: &str, #[case] message: &str) {
    let mut objects = json!([versioned("a", "v1alpha1"), versioned("b", "v1alpha1"), versioned("c", "v1alpha1")]);
    objects[1]["kind"] = json!(second);
    let answer = convert(&conversion(objects, desired));
    assert_eq!(answer.status, 200);
    let response = serde_json::from_slice::<Value>(&answer.body).unwrap()["response"].take();
    assert_eq!((&response["uid"], &response["convertedObjects"]), (&json!("u-1"), &json!([])));
    assert_eq!(response["result"]["status"], "Failure");
    let said = response["result"]["message"].as_str().unwrap();
    assert!(said.starts_with(message), "{said}");
    assert_eq!((answer.facts.failure.as_str(), answer.facts.objects), (said, 0));
}

#[test]
fn a_conversion_reports_losses_and_different_versions() {
    let mut tampered = versioned("a", "v1beta1");
    tampered["metadata"]["annotations"] = json!({"conversion.machine.sapcloud.io/v1alpha1": "{"});
    let answer = convert(&conversion(json!([tampered, versioned("b", "v1alpha1")]), "machine.sapcloud.io/v1alpha1"));
    assert_eq!((answer.facts.from, answer.facts.objects), (None, 2));
    assert_eq!(answer.facts.losses, [Loss::UnreadableResidue]);
}

/// Storage migration writes objects that were stored before there was a webhook.
#[rstest]
#[case(include_str!("../../../../tests/fixtures/go/machines.json"))]
#[case(include_str!("../../../../tests/fixtures/go/machinesets.json"))]
#[case(include_str!("../../../../tests/fixtures/go/machinedeployments.json"))]
#[case(include_str!("../../../../tests/fixtures/go/machineclasses.json"))]
fn k30_a_stored_object_can_be_written_back_as_it_is(#[case] fixtures: &str) {
    let list: Value = serde_json::from_str(fixtures).unwrap();
    for object in list["items"].as_array().unwrap() {
        let mut body: Value = serde_json::from_slice(&review(
            json!({"operation": "UPDATE", "kind": {"kind": object["kind"], "version": "v1alpha1"}}),
        ))
        .unwrap();
        body["request"]["object"] = object.clone();
        body["request"]["oldObject"] = object.clone();
        let body = serde_json::to_vec(&body).unwrap();
        let judged = response(&admission().review(Endpoint::Validate, &body));
        assert_eq!(judged["allowed"], json!(true), "{judged}");
        let mutated = response(&admission().review(Endpoint::Mutate, &body));
        let Some(patch) = mutated.get("patch").and_then(Value::as_str) else { continue };
        let patch: Value = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
        for operation in patch.as_array().unwrap() {
            let path = operation["path"].as_str().unwrap();
            let defaulted = ["/metadata/finalizers", "/spec/replicas", "/spec/strategy"];
            assert!(defaulted.iter().any(|prefix| path.starts_with(prefix)) || path.ends_with("/class/kind"), "{path}");
        }
    }
}

#[test]
fn a_body_that_is_no_conversion_review_is_refused() {
    assert_eq!(convert(&review(json!({}))).status, 400);
    assert_eq!(convert(b"{}").status, 400);
    assert_eq!(convert(b"\xff").status, 400);
}

/// A machine of the set `s1` with a text that Go accepts and admission refuses.
fn child(set_uid: &str) -> Value {
    let reference = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineSet", "name": "s1", "uid": set_uid, "controller": true});
    json!({"object": {"metadata": {"ownerReferences": [reference]}, "spec": {"nodeConditions": "A, B"}}})
}

/// The set that owns the machine, with these conditions in its template.
fn owner(conditions: &str) -> Value {
    json!({"metadata": {"name": "s1", "namespace": "default", "uid": "u1"}, "spec": {"template": {"spec": {"nodeConditions": conditions}}}})
}

/// The object that is read from the API server before the answer.
enum Read {
    Nothing,
    /// The owner, or `None` if there is none.
    Found(Option<Value>),
}

/// References with one set.
struct OneSet(Value);

impl References for OneSet {
    fn owner(&self, key: &OwnerKey) -> Option<Value> {
        (key.name == "s1").then(|| self.0.clone())
    }
}

#[rstest]
#[case::the_cached_owner_has_the_same("u1", Some(owner("A, B")), Read::Nothing, true)]
#[case::the_owner_is_unknown("u1", None, Read::Found(None), false)]
#[case::the_owner_is_read("u1", None, Read::Found(Some(owner("A, B"))), true)]
#[case::the_cache_is_an_event_behind("u1", Some(owner("A")), Read::Found(Some(owner("A, B"))), true)]
#[case::the_owner_has_another_value("u1", Some(owner("A")), Read::Found(Some(owner("A, C"))), false)]
#[case::an_invented_owner("u2", Some(owner("A, B")), Read::Found(None), false)]
#[case::a_foreign_uid("u2", Some(owner("A, B")), Read::Found(Some(owner("A, B"))), false)]
fn a_child_of_a_forgiven_parent(
    #[case] uid: &str,
    #[case] remembered: Option<Value>,
    #[case] read: Read,
    #[case] allowed: bool,
) {
    let mut admission = admission();
    if let Some(set) = remembered {
        admission = admission.with_references(Arc::new(OneSet(set)));
    }
    let body = review(child(uid));
    let answer = match (admission.begin(Endpoint::Validate, &body), &read) {
        (Progress::Answered(answer), Read::Nothing) => answer,
        (Progress::NeedsOwner(key), Read::Found(read)) => {
            assert_eq!((key.kind, key.namespace.as_str(), key.uid.as_str()), (Kind::MachineSet, "default", uid));
            admission.conclude(Endpoint::Validate, &body, read.as_ref())
        }
        (progress, _) => panic!("{progress:?}"),
    };
    let answer = response(&answer);
    assert_eq!(answer["allowed"], allowed, "{answer}");
    let warned = answer["warnings"].to_string().contains("existing problem: spec.nodeConditions");
    assert_eq!(warned, allowed, "{answer}");
}

#[rstest]
#[case::a_good_child(json!({"object": {"metadata": child("u1")["object"]["metadata"], "spec": {"nodeConditions": "A"}}}))]
#[case::a_bad_machine_without_an_owner(json!({"object": {"spec": {"nodeConditions": "A, B"}}}))]
fn the_owner_is_only_read_if_needed(#[case] patch: Value) {
    assert!(matches!(admission().begin(Endpoint::Validate, &review(patch)), Progress::Answered(_)));
}

/// Any small JSON value.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn full_object(kind: &str) -> Value {
    let spec = json!({"class": {"apiGroup": "", "kind": "MachineClass", "name": "c1"}, "providerID": "x", "drainTimeout": "1h",
        "maxEvictRetries": 3, "nodeConditions": "A,B", "nodeTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
        "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}}});
    let metadata = json!({"name": "o", "labels": {"node": "n"}, "annotations": {"node.machine.sapcloud.io/preserve": "now"},
        "finalizers": ["a/b"], "ownerReferences": [{"kind": "MachineSet", "name": "s", "controller": true}]});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": spec});
    match kind {
        "Machine" => json!({"metadata": metadata, "spec": spec}),
        "MachineClass" => {
            json!({"metadata": metadata, "provider": "virtual", "providerSpec": {"a": 1}, "secretRef": {"name": "s"},
            "nodeTemplate": {"capacity": {"cpu": "1"}, "instanceType": "t", "region": "r", "zone": "z"}})
        }
        _ => json!({"metadata": metadata, "spec": {"replicas": 1, "template": template, "minReadySeconds": 1,
            "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "0%"}}}}),
    }
}

/// The JSON pointers of all values inside a value.
fn places(value: &Value, prefix: &str, out: &mut Vec<String>) {
    out.push(prefix.to_owned());
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            places(value, &format!("{prefix}/{}", key.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, value)| places(value, &format!("{prefix}/{index}"), out));
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..400)) {
        for endpoint in Endpoint::ALL {
            prop_assert_eq!(admission().review(endpoint, &body).status, 400);
        }
        prop_assert_eq!(convert(&body).status, 400);
    }

    #[test]
    fn a_damaged_review_never_breaks_the_handler(cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut body = review(json!({}));
        let at = cut.index(body.len());
        body[at] = byte;
        for endpoint in Endpoint::ALL {
            let answer = admission().review(endpoint, &body);
            prop_assert!(answer.status == 200 || answer.status == 400, "{}", answer.status);
        }
        prop_assert_eq!(admission().review(Endpoint::Validate, &body[..at]).status, 400);
    }

    /// Puts any value at any place: the answer is well formed, defaults apply, and nothing panics.
    #[test]
    fn any_value_at_any_place_is_answered(
        kind in prop::sample::select(vec!["Machine", "MachineSet", "MachineDeployment", "MachineClass"]),
        version in prop::sample::select(vec!["v1alpha1", "v1beta1"]),
        operation in prop::sample::select(vec!["CREATE", "UPDATE"]),
        place in any::<prop::sample::Index>(),
        value in arbitrary_json(),
    ) {
        let mut object = full_object(kind);
        let mut all = Vec::new();
        places(&object, "", &mut all);
        *object.pointer_mut(&all[place.index(all.len())]).unwrap() = value;
        let mut body: Value = serde_json::from_slice(&review(json!({"kind": {"kind": kind, "version": version}, "operation": operation}))).unwrap();
        body["request"]["oldObject"] = full_object(kind);
        body["request"]["object"] = object.clone();
        let body = serde_json::to_vec(&body).unwrap();
        if object.is_null() {
            prop_assert_eq!(admission().review(Endpoint::Validate, &body).status, 400);
            return Ok(());
        }
        let judged = response(&admission().review(Endpoint::Validate, &body));
        prop_assert_eq!(judged["allowed"] == json!(true), judged.get("status").is_none());
        let deletion = json!({"kind": {"kind": kind, "version": version}, "operation": "DELETE", "object": null, "oldObject": object});
        prop_assert_eq!(&response(&admission().review(Endpoint::Validate, &review(deletion)))["allowed"], &json!(true));
        let mutated = response(&admission().review(Endpoint::Mutate, &body));
        if let Some(patch) = mutated.get("patch").and_then(Value::as_str) {
            let patch: json_patch::Patch = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
            prop_assert!(json_patch::patch(&mut object, &patch).is_ok());
        }
    }

    /// Any invalid stored object can be labelled, and its finalizers can be removed.
    #[test]
    fn invalid_stored_objects_can_be_updated_without_new_mistakes(
        kind in prop::sample::select(vec!["Machine", "MachineSet", "MachineDeployment", "MachineClass"]),
        place in any::<prop::sample::Index>(),
        value in arbitrary_json(),
        other_place in any::<prop::sample::Index>(),
        other_value in arbitrary_json(),
    ) {
        let mut stored = full_object(kind);
        for (place, value) in [(place, value), (other_place, other_value)] {
            let mut all = Vec::new();
            places(&stored, "", &mut all);
            let inside: Vec<_> = all.iter().filter(|place| !place.is_empty() && !place.starts_with("/metadata")).collect();
            *stored.pointer_mut(inside[place.index(inside.len())]).unwrap() = value;
        }
        let (mut labelled, mut released) = (stored.clone(), stored.clone());
        labelled["metadata"]["labels"]["new"] = json!("label");
        released["metadata"]["finalizers"] = json!([]);
        for new in [labelled, released, stored.clone()] {
            let mut body: Value = serde_json::from_slice(&review(json!({"kind": {"kind": kind}, "operation": "UPDATE"}))).unwrap();
            body["request"]["oldObject"] = stored.clone();
            body["request"]["object"] = new;
            let judged = response(&admission().review(Endpoint::Validate, &serde_json::to_vec(&body).unwrap()));
            prop_assert_eq!(&judged["allowed"], &json!(true), "{}", judged);
        }
    }
}
