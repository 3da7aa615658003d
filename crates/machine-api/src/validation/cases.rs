//! Rules for machines, sets and deployments, in addition to the cases of spec/api-and-admission §12.1. Those are in
//! `tests/fixtures/admission-cases.yaml` and run in `cli/validate`.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Kind::{Machine, MachineDeployment, MachineSet},
    fixtures::{CONTROLLER, Question, create, update},
};
use crate::names::annotation;
use kube_values::{field::Findings, json::Json};

fn spec(fields: Value) -> Value {
    json!({ "spec": fields })
}

fn annotated(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn node_template(fields: Value) -> Value {
    spec(json!({ "nodeTemplate": fields }))
}

fn taints(list: Value) -> Value {
    node_template(json!({"spec": {"taints": list}}))
}

#[rstest]
#[case::a_bad_taint_value(taints(json!([{"key": "k", "value": "x y", "effect": "NoSchedule"}])), &["spec.nodeTemplate.spec.taints[0].value: Invalid value: \"x y\": a valid label…"])]
#[case::a_bad_annotation_key(node_template(json!({"metadata": {"annotations": {"A/b": "x", "a b": "y"}}})), &["spec.nodeTemplate.metadata.annotations: Invalid value: \"a b\": name part must consist…"])]
#[case::annotations_too_large(node_template(json!({"metadata": {"annotations": {"a": "x".repeat(262_144)}}})), &["spec.nodeTemplate.metadata.annotations: Too long: may not be more than 262144 bytes"])]
#[case::an_unknown_admission_annotation(annotated("admission.machine.sapcloud.io/slip", "x"), &["metadata.annotations[admission.machine.sapcloud.io/slip]: Invalid value: \"x\": unknown annotation"])]
#[case::all_wrong_types_are_reported_at_once(json!({"spec": {"class": 5, "drainTimeout": true, "nodeTemplate": {"spec": {"taints": "x"}}, "maxEvictRetries": -1}}),
    &["spec.class: Invalid value: 5: must be an object", "spec.nodeTemplate.spec.taints: Invalid value: \"x\": must be a list", "spec.drainTimeout: Invalid value: true: must be a string", "spec.maxEvictRetries: Invalid value: -1: must be greater than or equal to 0"])]
fn a_new_machine(#[case] patch: Value, #[case] denials: &[&str]) {
    create(Machine, patch).gives(denials, &[]);
}

#[rstest]
#[case::a_name_of_a_node(node_template(json!({"metadata": {"name": "n"}})), &["spec.nodeTemplate.metadata.name: is ignored: only labels and annotations are applied to nodes"])]
#[case::a_reserved_label(node_template(json!({"metadata": {"labels": {"kubernetes.io/hostname": "x"}}})), &["spec.nodeTemplate.metadata.labels[kubernetes.io/hostname]: is reserved and will be ignored"])]
#[case::an_unreadable_time(annotated(annotation::MARKED_FOR_DELETION_TIME, "yesterday"), &["metadata.annotations[machine.sapcloud.io/marked-for-deletion-time]: is not an RFC 3339 time and will be ignored"])]
fn a_new_machine_with_warnings(#[case] patch: Value, #[case] warnings: &[&str]) {
    create(Machine, patch).gives(&[], warnings);
}

fn with_provider_id(id: &str) -> Value {
    spec(json!({ "providerID": id }))
}

fn terminating(mut patch: Value) -> Value {
    json_patch::merge(&mut patch, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    patch
}

#[rstest]
#[case::m08_the_finalizer_is_removed(update(Machine, json!({}), json!({"metadata": {"finalizers": null}})), &[], &["metadata.finalizers: the controller will add it again"])]
#[case::the_finalizer_is_removed_by_a_controller(update(Machine, json!({}), json!({"metadata": {"finalizers": null}})).by(CONTROLLER), &[], &[])]
#[case::the_finalizer_is_removed_while_terminating(update(Machine, terminating(json!({})), terminating(json!({"metadata": {"finalizers": []}}))), &[], &["metadata.finalizers: the virtual machine may be orphaned"])]
#[case::a_terminating_machine_may_be_broken(update(Machine, terminating(json!({})), terminating(spec(json!({"drainTimeout": "x"})))), &[], &[])]
#[case::one_of_two_problems_is_put_right(update(Machine, spec(json!({"drainTimeout": "x", "healthTimeout": "y"})), spec(json!({"healthTimeout": "y"}))),
    &[], &["existing problem: spec.healthTimeout: Invalid value: \"y\": <duration>"])]
#[case::the_garbage_collector_is_exempt(update(Machine, with_provider_id("x"), with_provider_id("y")).by("system:serviceaccount:kube-system:generic-garbage-collector"), &[], &[])]
fn an_update_of_a_machine(#[case] question: Question, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    question.gives(denials, warnings);
}

fn template_labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

#[rstest]
#[case::a_hash_is_added_by_anyone(update(MachineSet, json!({}), spec(json!({"selector": {"matchLabels": {"machine-template-hash": "1"}}, "template": template_labels(json!({"machine-template-hash": "1"}))}))), &[], &[])]
#[case::a_missing_selector_is_put_right(update(MachineSet, spec(json!({"selector": null})), json!({})), &[], &[])]
#[case::an_empty_dead_field(create(MachineSet, spec(json!({"machineClass": {}}))), &[], &[])]
#[case::a_template_with_a_name(create(MachineSet, spec(json!({"template": {"metadata": {"name": "n"}}}))), &[], &["spec.template.metadata.name: is ignored in a template"])]
#[case::a_template_with_a_bare_finalizer(create(MachineSet, spec(json!({"template": {"metadata": {"finalizers": ["x"]}}}))), &["spec.template.metadata.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name nor is it fully qualified"], &[])]
#[case::a_long_name(create(MachineSet, json!({"metadata": {"name": "x".repeat(58)}})), &[], &["metadata.name: generated machine names may exceed 63 characters, which many providers and host names do not allow"])]
#[case::more_preserved_than_replicas(create(MachineSet, spec(json!({"autoPreserveFailedMachineMax": 2}))), &[], &["spec.autoPreserveFailedMachineMax: is larger than replicas"])]
fn a_machine_set(#[case] question: Question, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    question.gives(denials, warnings);
}

fn rolling(fields: Value) -> Value {
    spec(json!({"strategy": {"rollingUpdate": fields}}))
}

#[rstest]
#[case::no_health_and_no_in_place_update(spec(json!({"template": {"spec": {"disableHealthTimeout": true}}})), &[], &["spec.template.spec.disableHealthTimeout: failed machines will never be replaced"])]
fn a_new_deployment(#[case] patch: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    create(MachineDeployment, patch).gives(denials, warnings);
}

#[rstest]
#[case::to_in_place(4, &["spec.strategy.type: a rollout is in progress; machines already selected for update keep their state"])]
#[case::at_rest(3, &[])]
fn the_strategy_changes_during_a_rollout(#[case] replicas: i64, #[case] warnings: &[&str]) {
    let old = json!({"spec": {"replicas": replicas}, "status": {"updatedReplicas": 3}});
    let in_place = json!({"orchestrationType": "Auto", "maxSurge": 0, "maxUnavailable": 1});
    let new = json!({"spec": {"replicas": replicas, "strategy": {"type": "InPlaceUpdate", "rollingUpdate": null, "inPlaceUpdate": in_place}}});
    update(MachineDeployment, old, new).gives(&[], warnings);
}

/// A selector with these labels. One label of the selector must have this value, and the template has `a: b`.
fn selecting(labels: &[(&str, &str)], value: &str) -> Value {
    let labels: Value =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>().into();
    let expression = json!({"key": "a", "operator": "In", "values": [value]});
    spec(json!({"selector": {"matchLabels": labels, "matchExpressions": [expression]}}))
}

/// Creations and updates through the webhooks always have the fields that defaulting sets. So only these tests cover the rules for them.
#[rstest]
#[case::str_3_settings_of_a_rolling_update(spec(json!({"strategy": {"rollingUpdate": null}})), "STR-3")]
#[case::str_4_settings_of_an_update_in_place(spec(json!({"strategy": {"type": "InPlaceUpdate", "rollingUpdate": null}})), "STR-4")]
#[case::str_6_a_margin(rolling(json!({"maxSurge": null})), "STR-6")]
fn fields_with_defaults_are_required(#[case] patch: Value, #[case] rule: &str) {
    let object = super::fixtures::object(MachineDeployment, &patch);
    let found = super::static_findings(MachineDeployment, &Json::from(&object));
    assert_eq!(found.iter().map(|finding| finding.rule.as_str()).collect::<Vec<_>>(), [rule]);
}

#[rstest]
#[case::sts_1_written_by_somebody(json!({}), "alice", "STS-1")]
#[case::sts_2_an_unknown_phase(json!({"status": {"currentStatus": {"phase": "Foo"}}}), CONTROLLER, "STS-2")]
fn warnings_about_a_status(#[case] patch: Value, #[case] user: &str, #[case] rule: &str) {
    let (old, new) = (super::fixtures::object(Machine, &json!({})), super::fixtures::object(Machine, &patch));
    assert_eq!(status_rules(Machine, &old, &new, user), [rule]);
}

#[test]
fn sts_3_a_negative_count_in_a_status() {
    let old = super::fixtures::object(MachineSet, &json!({}));
    let new = super::fixtures::object(MachineSet, &json!({"status": {"replicas": -1}}));
    assert_eq!(status_rules(MachineSet, &old, &new, CONTROLLER), ["STS-3"]);
}

fn status_rules(kind: super::Kind, old: &Value, new: &Value, user: &str) -> Vec<&'static str> {
    let (old, new) = (Json::from(old), Json::from(new));
    let policy = super::Policy { controllers: super::ControllerUsers::named([CONTROLLER]), ..super::Policy::default() };
    let found = super::status_findings(&super::ValidationRequest {
        kind,
        version: super::ApiVersion::V1alpha1,
        change: super::Change::Update { old: &old, new: &new },
        namespace: "default",
        user: super::User { name: user, groups: &[] },
        policy: &policy,
        providers: &super::NoProviders,
        references: &super::NoReferences,
    });
    found.iter().map(|finding| finding.rule.as_str()).collect()
}

/// The controllers keep reconciling objects that the Go original reconciled.
#[rstest]
#[case::blanks_in_conditions_never_stopped_it(Machine, spec(json!({"nodeConditions": "A, B"})), &[])]
#[case::a_missing_class_did(Machine, spec(json!({"class": {"name": ""}})), &["spec.class.name"])]
#[case::nor_did_zero_margins(MachineDeployment, rolling(json!({"maxSurge": 0})), &[])]
#[case::an_unknown_strategy_did(MachineDeployment, spec(json!({"strategy": {"type": "Canary"}})), &["spec.strategy.type"])]
#[case::a_missing_selector_did(MachineSet, spec(json!({"selector": null})), &["spec.selector"])]
#[case::nor_did_a_negative_margin(MachineDeployment, rolling(json!({"maxSurge": -1, "maxUnavailable": "-5%"})), &[])]
#[case::nor_did_a_percentage_with_a_plus(MachineDeployment, rolling(json!({"maxSurge": "+5%"})), &[])]
#[case::nor_did_more_than_all(MachineDeployment, rolling(json!({"maxUnavailable": "150%"})), &[])]
#[case::margins_of_another_type_did_not(MachineDeployment,
    spec(json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxUnavailable": null, "maxSurge": "x"}}})), &[])]
#[case::orchestration_of_another_type_did_not(MachineDeployment, spec(json!({"strategy": {"inPlaceUpdate": {}}})), &[])]
#[case::margins_of_the_type_did(MachineDeployment, rolling(json!({"maxSurge": "x"})), &["spec.strategy.rollingUpdate.maxSurge"])]
#[case::expressions_that_do_not_fit_did_not(MachineSet, selecting(&[("a", "b")], "c"), &[])]
#[case::labels_that_do_not_fit_did(MachineSet, selecting(&[("a", "c")], "b"), &["spec.template.metadata.labels"])]
#[case::an_unreadable_duration_must(Machine, spec(json!({"drainTimeout": "x"})), &["spec.drainTimeout"])]
fn mistakes_that_stop_a_controller(#[case] kind: super::Kind, #[case] patch: Value, #[case] paths: &[&str]) {
    let found: Findings = super::reconcile_findings(kind, &Json::from(&super::fixtures::object(kind, &patch)));
    assert_eq!(found.errors().map(|error| error.path.as_str().to_owned()).collect::<Vec<_>>(), paths);
}

/// No invalid object was ever stored in v1beta1, so that v1beta1 needs no leniency.
#[test]
fn more_than_all_machines_are_refused_in_v1beta1_only() {
    let object = super::fixtures::object(MachineDeployment, &rolling(json!({"maxUnavailable": "150%"})));
    let object = Json::from(&object);
    let profiles = [super::Profile::Compat, super::Profile::Strict];
    let denials = |version| {
        profiles.map(|profile| {
            let policy = super::Policy { profile, ..super::Policy::default() };
            let found = super::validate(&super::ValidationRequest {
                kind: MachineDeployment,
                version,
                change: super::Change::Create { new: &object },
                namespace: "default",
                user: super::User::default(),
                policy: &policy,
                providers: &super::NoProviders,
                references: &super::NoReferences,
            });
            found.iter().filter(|finding| finding.denies() && finding.rule == super::strategy::STR_9.id).count()
        })
    };
    assert_eq!(denials(super::ApiVersion::V1alpha1), [0, 0]);
    assert_eq!(denials(super::ApiVersion::V1beta1), [1, 1]);
}

/// All objects that differ from a base object in one value. The value has a type or a text that some rule refuses.
fn spoilt_objects() -> Vec<(super::Kind, Value)> {
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        if let Value::Object(members) = value {
            for (name, member) in members {
                let at = format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
                places(member, &at, found);
                found.push(at);
            }
        }
    }
    let spec = json!({"drainTimeout": "1m", "healthTimeout": "1m", "maxEvictRetries": 1, "nodeConditions": "A",
        "nodeTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}});
    let template = json!({"spec": {"template": {"spec": spec}, "selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        "strategy": {"inPlaceUpdate": {"maxSurge": 1}}, "minReadySeconds": 1, "progressDeadlineSeconds": 2}});
    let mut spoilt = Vec::new();
    for kind in super::Kind::ALL {
        let patch = match kind {
            Machine => json!({ "spec": spec }),
            MachineSet | MachineDeployment => template.clone(),
            super::Kind::MachineClass => json!({"nodeTemplate": {"capacity": {"pods": 1}}}),
        };
        let object = super::fixtures::object(kind, &patch);
        let mut all = Vec::new();
        places(&object, "", &mut all);
        for place in all {
            let values = [
                json!(null),
                json!(""),
                json!("x y"),
                json!(-1),
                json!(5),
                json!({}),
                json!([]),
                json!([7, {"key": "!"}]),
            ];
            for value in values {
                let mut object = object.clone();
                *object.pointer_mut(&place).unwrap() = value;
                spoilt.push((kind, object));
            }
        }
    }
    spoilt
}

#[test]
fn controllers_run_every_rule_that_can_stop_them() {
    let mut stopped = 0;
    for (kind, object) in spoilt_objects() {
        let mut expected = super::static_findings(kind, &Json::from(&object));
        let value = Json::from(&object);
        expected
            .retain_denials(|rule| super::stops_controllers(rule) && !super::selector::original_acts_on(&value, rule));
        let found = super::reconcile_findings(kind, &Json::from(&object));
        let texts = |found: &Findings| found.errors().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&found), texts(&expected), "{object}");
        stopped += usize::from(found.denies());
    }
    assert!(stopped > 100, "{stopped}");
}

#[test]
fn a_comma_string_is_reported_once_with_its_first_entries() {
    let commas = spec(json!({"nodeConditions": ",".repeat(12_000)}));
    let objection = "entry \"\" must not be empty";
    let text = format!("{objection}; {objection}; {objection}; and 11998 more");
    let found = create(Machine, commas).answer();
    let errors: Vec<_> = found.errors().collect();
    assert_eq!((errors.len(), errors[0].detail.as_ref()), (1, text.as_str()));
    let twice = spec(json!({"nodeConditions": "A,B,A,B,C,C,C,A"}));
    create(Machine, twice)
        .gives(&["spec.nodeConditions: Duplicate value: \"A\": and so are \"B\", \"C\", \"C\", and 1 more"], &[]);
}

#[test]
fn a_list_of_skips_is_reported_once_with_its_first_ids() {
    let asked = annotated(annotation::ADMISSION_SKIP, &"a,".repeat(12_000));
    let found = create(Machine, asked).answer();
    let errors: Vec<_> = found.errors().map(|error| error.detail.as_ref()).collect();
    assert_eq!(errors, ["unknown rule \"a\"; unknown rule \"a\"; unknown rule \"a\"; and 11997 more"]);
}

#[test]
fn a_new_mistake_among_many_stored_ones_is_reported_with_its_text() {
    let labels = |number: usize| -> Value {
        let labels = (0..number).map(|n| (format!("{n}!"), json!("v"))).collect::<serde_json::Map<_, _>>();
        node_template(json!({"metadata": {"labels": labels}}))
    };
    let mut new = labels(300);
    new["spec"]["drainTimeout"] = json!("soon");
    update(Machine, labels(300), new).refuses(&["spec.drainTimeout: Invalid value: \"soon\": must be a duration…"]);
    update(Machine, labels(300), labels(301)).refuses(&["spec.nodeTemplate.metadata.labels: Invalid value: \"…"]);
    update(Machine, labels(300), labels(299)).refuses(&[]);
}

#[test]
fn findings_in_v1beta1_have_the_paths_of_v1beta1() {
    let object = json!({"metadata": {"name": "m1"}, "spec": {"classRef": {"kind": "MachineClass"},
        "lifecycle": {"drainTimeout": "x", "unhealthyNodeConditions": ["A", "A"]}}});
    let policy = super::Policy::default();
    let found = super::validate(&super::ValidationRequest {
        kind: Machine,
        version: super::ApiVersion::V1beta1,
        change: super::Change::Create { new: &Json::from(&object) },
        namespace: "default",
        user: super::User::default(),
        policy: &policy,
        providers: &super::NoProviders,
        references: &super::NoReferences,
    });
    let paths: Vec<_> = found.errors().map(|error| error.path.as_str()).collect();
    assert_eq!(
        paths,
        ["spec.classRef.name", "spec.lifecycle.drainTimeout", "spec.lifecycle.unhealthyNodeConditions[1]"]
    );
}
