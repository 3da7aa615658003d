//! The cases of spec/api-and-admission §12.1 by their numbers: machines, sets and deployments.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Kind::{Machine, MachineDeployment, MachineSet},
    fixtures::{ALICE, CONTROLLER, Question, create, update},
};
use crate::api::{
    field::Findings,
    names::{annotation, finalizer},
};

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
#[case::v001_base(json!({}), &[])]
#[case::v002_empty_spec(spec(json!({"class": null})), &["spec.class.kind: Required value: Kind is required", "spec.class.name: Required value: Name is required"])]
#[case::v003_no_spec(json!({"spec": null}), &["spec.class.kind: Required value: Kind is required", "spec.class.name: Required value: Name is required"])]
#[case::v004_no_kind(spec(json!({"class": {"kind": null}})), &[])]
#[case::v005_an_in_tree_kind(spec(json!({"class": {"kind": "AWSMachineClass"}})), &["spec.class.kind: Unsupported value: \"AWSMachineClass\": supported values: \"MachineClass\""])]
#[case::v006_a_bad_name(spec(json!({"class": {"name": "C_1"}})), &["spec.class.name: Invalid value: \"C_1\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"])]
#[case::v007_a_version_in_the_group(spec(json!({"class": {"apiGroup": "machine.sapcloud.io/v1alpha1"}})), &["spec.class.apiGroup: Unsupported value: \"machine.sapcloud.io/v1alpha1\": supported values: \"machine.sapcloud.io\""])]
#[case::v009_an_unknown_class_without_cache(spec(json!({"class": {"name": "nope"}})), &[])]
#[case::v010_a_duration(spec(json!({"drainTimeout": "5m"})), &[])]
#[case::v011_words(spec(json!({"drainTimeout": "5 minutes"})), &["spec.drainTimeout: Invalid value: \"5 minutes\": must be a duration such as \"30s\", \"10m\" or \"1h30m\""])]
#[case::v012_no_unit(spec(json!({"drainTimeout": "300"})), &["spec.drainTimeout: Invalid value: \"300\": <duration>"])]
#[case::v013_zero_drains_by_force(spec(json!({"drainTimeout": "0"})), &[])]
#[case::v014_negative(spec(json!({"drainTimeout": "-1s"})), &["spec.drainTimeout: Invalid value: \"-1s\": must be greater than or equal to 0"])]
#[case::v015_zero(spec(json!({"healthTimeout": "0s"})), &["spec.healthTimeout: Invalid value: \"0s\": must be greater than 0"])]
#[case::v016_a_fraction(spec(json!({"creationTimeout": "1.5h"})), &[])]
#[case::v017_a_long_time(spec(json!({"creationTimeout": "300000h"})), &[])]
#[case::v017b_an_overflow(spec(json!({"creationTimeout": "3000000h"})), &["spec.creationTimeout: Invalid value: \"3000000h\": <duration>"])]
#[case::v018_no_day_unit(spec(json!({"machinePreserveTimeout": "1d"})), &["spec.machinePreserveTimeout: Invalid value: \"1d\": <duration>"])]
#[case::v019_a_number(spec(json!({"drainTimeout": 300})), &["spec.drainTimeout: Invalid value: 300: must be a string"])]
#[case::v020_no_retries(spec(json!({"maxEvictRetries": 0})), &[])]
#[case::v021_negative_retries(spec(json!({"maxEvictRetries": -1})), &["spec.maxEvictRetries: Invalid value: -1: must be greater than or equal to 0"])]
#[case::v022_no_conditions(spec(json!({"nodeConditions": ""})), &[])]
#[case::v023_two_conditions(spec(json!({"nodeConditions": "KernelDeadlock,DiskPressure"})), &[])]
#[case::v024_a_blank(spec(json!({"nodeConditions": "KernelDeadlock, DiskPressure"})), &["spec.nodeConditions: Invalid value: \"KernelDeadlock, DiskPressure\": entry \" DiskPressure\" must not contain whitespace"])]
#[case::v025_an_empty_entry(spec(json!({"nodeConditions": "A,,B"})), &["spec.nodeConditions: Invalid value: \"A,,B\": entry \"\" must not be empty"])]
#[case::v026_a_trailing_comma(spec(json!({"nodeConditions": "A,B,"})), &["spec.nodeConditions: Invalid value: \"A,B,\": entry \"\" must not be empty"])]
#[case::v027_twice(spec(json!({"nodeConditions": "A,A"})), &["spec.nodeConditions: Duplicate value: \"A\""])]
#[case::v030_a_bad_label_key(node_template(json!({"metadata": {"labels": {"bad key!": "x"}}})), &["spec.nodeTemplate.metadata.labels: Invalid value: \"bad key!\": name part must consist of alphanumeric characters, '-', '_' or '.', …"])]
#[case::v031_a_bad_label_value(node_template(json!({"metadata": {"labels": {"a": "x y"}}})), &["spec.nodeTemplate.metadata.labels: Invalid value: \"x y\": a valid label must be an empty string or consist of alphanumeric characters, …"])]
#[case::v032_a_number_as_label(node_template(json!({"metadata": {"labels": {"a": 1}}})), &["spec.nodeTemplate.metadata.labels[a]: Invalid value: 1: must be a string"])]
#[case::v033_a_long_label_value(node_template(json!({"metadata": {"labels": {"a": "x".repeat(64)}}})), &["spec.nodeTemplate.metadata.labels: Invalid value: \"<64 x>\": must be no more than 63 bytes"])]
#[case::v034_a_taint(taints(json!([{"key": "k", "effect": "NoSchedule"}])), &[])]
#[case::v035_an_unknown_effect(taints(json!([{"key": "k", "effect": "NoRun"}])), &["spec.nodeTemplate.spec.taints[0].effect: Unsupported value: \"NoRun\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""])]
#[case::v036_no_effect(taints(json!([{"key": "k"}])), &["spec.nodeTemplate.spec.taints[0].effect: Required value"])]
#[case::v037_an_empty_effect(taints(json!([{"key": "k", "effect": ""}])), &["spec.nodeTemplate.spec.taints[0].effect: Required value"])]
#[case::v038_an_empty_key(taints(json!([{"key": "", "effect": "NoSchedule"}])), &["spec.nodeTemplate.spec.taints[0].key: Required value"])]
#[case::v039_twice(taints(json!([{"key": "k", "value": "1", "effect": "NoSchedule"}, {"key": "k", "value": "2", "effect": "NoSchedule"}])), &["spec.nodeTemplate.spec.taints[1]: Duplicate value: \"k:NoSchedule\": taints must be unique by key and effect pair"])]
#[case::v040_two_effects(taints(json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}])), &[])]
#[case::a_bad_taint_value(taints(json!([{"key": "k", "value": "x y", "effect": "NoSchedule"}])), &["spec.nodeTemplate.spec.taints[0].value: Invalid value: \"x y\": a valid label…"])]
#[case::a_bad_annotation_key(node_template(json!({"metadata": {"annotations": {"A/b": "x", "a b": "y"}}})), &["spec.nodeTemplate.metadata.annotations: Invalid value: \"a b\": name part must consist…"])]
#[case::annotations_too_large(node_template(json!({"metadata": {"annotations": {"a": "x".repeat(262_144)}}})), &["spec.nodeTemplate.metadata.annotations: Too long: may not be more than 262144 bytes"])]
#[case::v042_a_restored_machine(spec(json!({"providerID": "aws:///r/i-1"})), &[])]
#[case::v056_a_priority(annotated(annotation::MACHINE_PRIORITY, "-2"), &[])]
#[case::v056_a_signed_priority(annotated(annotation::MACHINE_PRIORITY, "+3"), &[])]
#[case::v057_a_word(annotated(annotation::MACHINE_PRIORITY, "high"), &["metadata.annotations[machinepriority.machine.sapcloud.io]: Invalid value: \"high\": must be an integer"])]
#[case::v058_a_fraction(annotated(annotation::MACHINE_PRIORITY, "1.0"), &["metadata.annotations[machinepriority.machine.sapcloud.io]: Invalid value: \"1.0\": must be an integer"])]
#[case::v058_a_blank(annotated(annotation::MACHINE_PRIORITY, " 1"), &["metadata.annotations[machinepriority.machine.sapcloud.io]: Invalid value: \" 1\": must be an integer"])]
#[case::v058_too_large(annotated(annotation::MACHINE_PRIORITY, "99999999999999999999"), &["metadata.annotations[machinepriority.machine.sapcloud.io]: Invalid value: \"99999999999999999999\": must be an integer"])]
#[case::v061_preserve_is_case_sensitive(annotated(annotation::PRESERVE, "Now"), &["metadata.annotations[node.machine.sapcloud.io/preserve]: Unsupported value: \"Now\": supported values: \"auto-preserved\", \"false\", \"now\", \"when-failed\""])]
#[case::v138_an_unknown_rule(annotated(annotation::ADMISSION_SKIP, "NOPE-1"), &["metadata.annotations[admission.machine.sapcloud.io/skip]: Invalid value: \"NOPE-1\": unknown rule \"NOPE-1\""])]
#[case::v139_a_rule_that_stays(json!({"metadata": {"annotations": {annotation::ADMISSION_SKIP: "MCH-7"}}, "spec": {"drainTimeout": "x"}}),
    &["spec.drainTimeout: Invalid value: \"x\": <duration>", "metadata.annotations[admission.machine.sapcloud.io/skip]: Invalid value: \"MCH-7\": rule MCH-7 cannot be skipped; those that can are META-8, MCH-19, MCH-20, SEL-7, CLS-16"])]
#[case::an_unknown_admission_annotation(annotated("admission.machine.sapcloud.io/slip", "x"), &["metadata.annotations[admission.machine.sapcloud.io/slip]: Invalid value: \"x\": unknown annotation"])]
#[case::poison_everywhere_is_told_at_once(json!({"spec": {"class": 5, "drainTimeout": true, "nodeTemplate": {"spec": {"taints": "x"}}, "maxEvictRetries": -1}}),
    &["spec.class: Invalid value: 5: must be an object", "spec.nodeTemplate.spec.taints: Invalid value: \"x\": must be a list", "spec.drainTimeout: Invalid value: true: must be a string", "spec.maxEvictRetries: Invalid value: -1: must be greater than or equal to 0"])]
#[case::v140_a_generated_name(json!({"metadata": {"name": null, "generateName": "d1-"}, "spec": {"class": {"name": ""}}}), &["spec.class.name: Required value: Name is required"])]
fn a_new_machine(#[case] patch: Value, #[case] denials: &[&str]) {
    create(Machine, patch).gives(denials, &[]);
}

#[rstest]
#[case::v041_a_pod_cidr(node_template(json!({"spec": {"podCIDR": "10.0.0.0/24"}})), &["spec.nodeTemplate.spec.podCIDR: is ignored: only taints are applied to nodes"])]
#[case::a_name_of_a_node(node_template(json!({"metadata": {"name": "n"}})), &["spec.nodeTemplate.metadata.name: is ignored: only labels and annotations are applied to nodes"])]
#[case::a_reserved_label(node_template(json!({"metadata": {"labels": {"kubernetes.io/hostname": "x"}}})), &["spec.nodeTemplate.metadata.labels[kubernetes.io/hostname]: is reserved and will be ignored"])]
#[case::v063_reserved_for_the_controller(annotated(annotation::PRESERVE, "auto-preserved"), &["metadata.annotations[node.machine.sapcloud.io/preserve]: is reserved for the MachineSet controller; it counts against autoPreserveFailedMachineMax"])]
#[case::v065_an_empty_preserve(annotated(annotation::PRESERVE, ""), &["metadata.annotations[node.machine.sapcloud.io/preserve]: empty value has no effect; remove the annotation"])]
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

fn with_node(node: Value) -> Value {
    json!({"metadata": {"labels": {"node": node, "x": "y"}}})
}

#[rstest]
#[case::v028_an_old_problem_is_kept(update(Machine, spec(json!({"nodeConditions": "A, B"})), json!({"metadata": {"labels": {"x": "y"}}, "spec": {"nodeConditions": "A, B"}})),
    &[], &["existing problem: spec.nodeConditions: Invalid value: \"A, B\": entry \" B\" must not contain whitespace"])]
#[case::v029_an_old_problem_is_made_anew(update(Machine, spec(json!({"nodeConditions": "A, B"})), spec(json!({"nodeConditions": "A, C"}))),
    &["spec.nodeConditions: Invalid value: \"A, C\": entry \" C\" must not contain whitespace"], &[])]
#[case::v045_the_provider_id_is_set(update(Machine, json!({}), with_provider_id("x")), &[], &[])]
#[case::v046_the_provider_id_is_changed(update(Machine, with_provider_id("x"), with_provider_id("y")), &["spec.providerID: Invalid value: \"y\": field is immutable once set"], &[])]
#[case::v047_the_provider_id_is_removed(update(Machine, with_provider_id("x"), json!({})), &["spec.providerID: Invalid value: \"\": field is immutable once set"], &[])]
#[case::v048_by_a_controller(update(Machine, with_provider_id("x"), with_provider_id("y")).by(CONTROLLER), &[], &[])]
#[case::v049_while_terminating(update(Machine, terminating(with_provider_id("x")), terminating(with_provider_id("y"))), &["spec.providerID: Invalid value: \"y\": field is immutable once set"], &[])]
#[case::v050_the_rule_is_skipped(update(Machine, with_provider_id("x"), json!({"metadata": {"annotations": {annotation::ADMISSION_SKIP: "MCH-19"}}, "spec": {"providerID": "y"}})), &[], &["rule MCH-19 skipped"])]
#[case::v051_another_class_for_a_made_machine(update(Machine, with_provider_id("x"), spec(json!({"providerID": "x", "class": {"name": "c2"}}))),
    &["spec.class.name: Forbidden: may not be changed once spec.providerID is set; the machine was created from MachineClass \"c1\""], &[])]
#[case::v052_another_class_before(update(Machine, json!({}), spec(json!({"class": {"name": "c2"}}))), &[], &[])]
#[case::v053_the_kind_is_put_right(update(Machine, spec(json!({"providerID": "x", "class": {"kind": "AWSMachineClass"}})), with_provider_id("x")), &[], &[])]
#[case::v054_another_node(update(Machine, with_node(json!("n1")), with_node(json!("n2"))), &["metadata.labels[node]: Invalid value: \"n2\": field is immutable once set"], &[])]
#[case::v055_no_node(update(Machine, with_node(json!("n1")), with_node(Value::Null)), &[], &["metadata.labels[node]: the machine loses its node"])]
#[case::v059_an_old_annotation(update(Machine, annotated(annotation::MACHINE_PRIORITY, "high"), json!({"metadata": {"labels": {"x": "y"}, "annotations": {annotation::MACHINE_PRIORITY: "high"}}})), &[], &[])]
#[case::v060_preserve(update(Machine, json!({}), annotated(annotation::PRESERVE, "now")), &[], &[])]
#[case::v062_preserve_true(update(Machine, json!({}), annotated(annotation::PRESERVE, "true")), &["metadata.annotations[node.machine.sapcloud.io/preserve]: Unsupported value: \"true\"…"], &[])]
#[case::v064_preserved_by_a_controller(update(Machine, json!({}), annotated(annotation::PRESERVE, "auto-preserved")).by(CONTROLLER), &[], &[])]
#[case::v137_only_finalizers(update(Machine, spec(json!({"drainTimeout": "x"})), json!({"metadata": {"finalizers": ["z/z", finalizer::MACHINE]}, "spec": {"drainTimeout": "x"}})), &[], &[])]
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

fn selecting(expressions: Value) -> Value {
    spec(json!({"selector": {"matchLabels": null, "matchExpressions": expressions}}))
}

fn template_labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn owned_by_d1(replicas: i64) -> Value {
    let owner = json!({"kind": "MachineDeployment", "name": "d1", "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}, "spec": {"replicas": replicas}})
}

const MISMATCH: &str =
    "spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`";

#[rstest]
#[case::v069_no_selector(create(MachineSet, spec(json!({"selector": null}))), &["spec.selector: Required value"], &[])]
#[case::v070_an_empty_selector(create(MachineSet, spec(json!({"selector": {"matchLabels": null}}))), &["spec.selector: Invalid value: {}: empty selector is invalid for machine set"], &[])]
#[case::v071_empty_labels(create(MachineDeployment, spec(json!({"selector": {"matchLabels": {"a": null}}}))), &["spec.selector: Invalid value: {}: empty selector is invalid for machine deployment"], &[])]
#[case::v072_other_labels(create(MachineSet, spec(json!({"template": template_labels(json!({"a": "c"}))}))), &[MISMATCH], &[])]
#[case::v073_in(create(MachineSet, selecting(json!([{"key": "a", "operator": "In", "values": ["b", "c"]}]))), &[], &[])]
#[case::v074_not_in(create(MachineSet, selecting(json!([{"key": "a", "operator": "NotIn", "values": ["b"]}]))),
    &["spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"], &[])]
#[case::v075_an_unknown_operator(create(MachineSet, selecting(json!([{"key": "a", "operator": "Equals"}]))), &["spec.selector.matchExpressions[0].operator: Invalid value: \"Equals\": not a valid selector operator"], &[])]
#[case::v076_in_nothing(create(MachineSet, selecting(json!([{"key": "a", "operator": "In"}]))), &["spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"], &[])]
#[case::v077_exists_with_values(create(MachineSet, selecting(json!([{"key": "a", "operator": "Exists", "values": ["x"]}]))), &["spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"], &[])]
#[case::v078_negative_replicas(create(MachineSet, spec(json!({"replicas": -1}))), &["spec.replicas: Invalid value: -1: must be greater than or equal to 0"], &[])]
#[case::v079_the_selector_is_changed(update(MachineSet, json!({}), spec(json!({"selector": {"matchLabels": {"a": "c"}}, "template": template_labels(json!({"a": "c"}))}))),
    &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"c\"}}: field is immutable"], &[])]
#[case::v080_a_hash_is_added(update(MachineSet, json!({}), spec(json!({"selector": {"matchLabels": {"machine-template-hash": "1"}}, "template": template_labels(json!({"machine-template-hash": "1"}))}))).by(CONTROLLER), &[], &[])]
#[case::a_hash_is_added_by_anyone(update(MachineSet, json!({}), spec(json!({"selector": {"matchLabels": {"machine-template-hash": "1"}}, "template": template_labels(json!({"machine-template-hash": "1"}))}))), &[], &[])]
#[case::v081_an_old_mismatch(update(MachineSet, spec(json!({"replicas": 3, "template": template_labels(json!({"a": "c"}))})), spec(json!({"replicas": 2, "template": template_labels(json!({"a": "c"}))}))),
    &[], &["existing problem: spec.template.metadata.labels: Invalid value: {\"a\":\"c\"}: `selector` does not match template `labels`"])]
#[case::v082_an_old_set_without_selector(update(MachineSet, spec(json!({"selector": null})), json!({"metadata": {"labels": {"x": "y"}}, "spec": {"selector": null}})), &[], &["existing problem: spec.selector: Required value"])]
#[case::a_missing_selector_is_put_right(update(MachineSet, spec(json!({"selector": null})), json!({})), &[], &[])]
#[case::v083_a_controlled_set(update(MachineSet, owned_by_d1(2), owned_by_d1(5)), &[], &["spec.replicas: is controlled by MachineDeployment \"d1\"; the change will be overwritten or start a rollout"])]
#[case::v083_by_a_controller(update(MachineSet, owned_by_d1(2), owned_by_d1(5)).by(CONTROLLER), &[], &[])]
#[case::v084_a_dead_field(create(MachineSet, spec(json!({"machineClass": {"name": "x"}}))), &[], &["spec.machineClass: is ignored; spec.template.spec.class decides"])]
#[case::an_empty_dead_field(create(MachineSet, spec(json!({"machineClass": {}}))), &[], &[])]
#[case::v085_a_provider_id(create(MachineSet, spec(json!({"template": {"spec": {"providerID": "x"}}}))), &["spec.template.spec.providerID: Forbidden: may not be set in a template"], &[])]
#[case::v086_a_bad_duration(create(MachineSet, spec(json!({"template": {"spec": {"drainTimeout": "x"}}}))), &["spec.template.spec.drainTimeout: Invalid value: \"x\": <duration>"], &[])]
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
#[case::v087_no_strategy(spec(json!({"strategy": null})), &[], &[])]
#[case::v088_an_unknown_type(spec(json!({"strategy": {"type": "Canary", "rollingUpdate": null}})), &["spec.strategy.type: Unsupported value: \"Canary\": supported values: \"InPlaceUpdate\", \"Recreate\", \"RollingUpdate\""], &[])]
#[case::v089_recreate(spec(json!({"strategy": {"type": "Recreate", "rollingUpdate": null}})), &[], &[])]
#[case::v090_settings_of_another_type(spec(json!({"strategy": {"type": "Recreate"}})), &[], &["spec.strategy.rollingUpdate: may not be specified when strategy `type` is 'Recreate'"])]
#[case::v091_a_bare_string(rolling(json!({"maxSurge": "10"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"10\": <percent>"], &[])]
#[case::v092_percentages(rolling(json!({"maxSurge": "10%", "maxUnavailable": "0%"})), &[], &[])]
#[case::v093_a_fraction(rolling(json!({"maxSurge": "1.5%"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"1.5%\": <percent>"], &[])]
#[case::v093_negative(rolling(json!({"maxSurge": "-5%"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"-5%\": <percent>"], &[])]
#[case::v093_only_a_sign(rolling(json!({"maxSurge": "%"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"%\": <percent>"], &[])]
#[case::v093_a_leading_blank(rolling(json!({"maxSurge": " 5%"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \" 5%\": <percent>"], &[])]
#[case::v093_an_inner_blank(rolling(json!({"maxSurge": "5 %"})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"5 %\": <percent>"], &[])]
#[case::v094_a_negative_number(rolling(json!({"maxSurge": -1})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0"], &[])]
#[case::v095_more_than_all(rolling(json!({"maxUnavailable": "101%"})), &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"], &[])]
#[case::v096_a_large_surge(rolling(json!({"maxSurge": "200%"})), &[], &[])]
#[case::v097_both_zero(rolling(json!({"maxSurge": 0, "maxUnavailable": 0})), &[], &["spec.strategy.rollingUpdate.maxUnavailable: may not be 0 when `maxSurge` is 0; it is treated as 1"])]
#[case::v098_both_zero_in_percent(rolling(json!({"maxSurge": "0%", "maxUnavailable": 0})), &[], &["spec.strategy.rollingUpdate.maxUnavailable: may not be 0 when `maxSurge` is 0; it is treated as 1"])]
#[case::v099_one_percent_rounds_up(rolling(json!({"maxSurge": "1%", "maxUnavailable": "0%"})), &[], &[])]
#[case::v100_too_wide(rolling(json!({"maxSurge": 2_147_483_648_i64})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: 2147483648: must fit a 32-bit integer"], &[])]
#[case::v101_too_many_machines(spec(json!({"replicas": 2_147_483_647})), &["spec.replicas: Invalid value: 2147483647: replicas plus maxSurge must not exceed 2147483647"], &[])]
#[case::v102_in_place_without_choice(spec(json!({"strategy": {"type": "InPlaceUpdate", "rollingUpdate": null}})), &["spec.strategy.inPlaceUpdate.orchestrationType: Required value: must be one of \"Auto\", \"Manual\""], &[])]
#[case::v103_an_unknown_choice(spec(json!({"strategy": {"type": "InPlaceUpdate", "rollingUpdate": null, "inPlaceUpdate": {"orchestrationType": "auto"}}})), &["spec.strategy.inPlaceUpdate.orchestrationType: Unsupported value: \"auto\": supported values: \"Auto\", \"Manual\""], &[])]
#[case::v104_in_place_without_type(spec(json!({"strategy": {"type": null, "rollingUpdate": null, "inPlaceUpdate": {"orchestrationType": "Auto", "maxSurge": 0, "maxUnavailable": 1}}})), &["spec.strategy.type: Required value: must be set when inPlaceUpdate is specified"], &[])]
#[case::v105_a_short_deadline(spec(json!({"progressDeadlineSeconds": 500, "minReadySeconds": 500})), &["spec.progressDeadlineSeconds: Invalid value: 500: must be greater than minReadySeconds"], &[])]
#[case::v106_a_negative_limit(spec(json!({"revisionHistoryLimit": -1})), &["spec.revisionHistoryLimit: Invalid value: -1: must be greater than or equal to 0"], &[])]
#[case::v114_two_at_once(spec(json!({"replicas": -1, "strategy": {"rollingUpdate": {"maxSurge": "x"}}})), &["spec.replicas: Invalid value: -1: must be greater than or equal to 0", "spec.strategy.rollingUpdate.maxSurge: Invalid value: \"x\": <percent>"], &[])]
#[case::no_health_and_no_in_place_update(spec(json!({"template": {"spec": {"disableHealthTimeout": true}}})), &[], &["spec.template.spec.disableHealthTimeout: failed machines will never be replaced"])]
fn a_new_deployment(#[case] patch: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    create(MachineDeployment, patch).gives(denials, warnings);
}

#[rstest]
#[case::v090(spec(json!({"strategy": {"type": "Recreate"}})), "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'")]
#[case::v097(rolling(json!({"maxSurge": 0, "maxUnavailable": 0})), "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0")]
fn what_compat_warns_about_is_refused_by_strict(#[case] patch: Value, #[case] denial: &str) {
    create(MachineDeployment, patch).strict().gives(&[denial], &[]);
}

fn frozen(value: &str, replicas: i64) -> Value {
    json!({"metadata": {"labels": {"freeze": value}}, "spec": {"replicas": replicas}})
}

fn canary(fields: Value) -> Value {
    let mut patch = spec(json!({"strategy": {"type": "Canary"}}));
    json_patch::merge(&mut patch, &spec(fields));
    patch
}

const CANARY: &str = "existing problem: spec.strategy.type: Unsupported value: \"Canary\": supported values: \"InPlaceUpdate\", \"Recreate\", \"RollingUpdate\"";

#[rstest]
#[case::v066_a_timeout(annotated(annotation::EFFECTIVE_CREATION_TIMEOUT, "20m"), &[], &[])]
#[case::v066_no_unit(annotated(annotation::EFFECTIVE_CREATION_TIMEOUT, "20"), &["metadata.annotations[node.machine.sapcloud.io/effective-creation-timeout]: Invalid value: \"20\": <duration>"], &[])]
#[case::v066_zero(annotated(annotation::EFFECTIVE_CREATION_TIMEOUT, "0s"), &["metadata.annotations[node.machine.sapcloud.io/effective-creation-timeout]: Invalid value: \"0s\": must be greater than 0"], &[])]
#[case::v067_a_legacy_entry(annotated(annotation::TRIGGER_DELETION, "m1~2025-01-01T00:00:00Z,m2"), &[], &["metadata.annotations[node.machine.sapcloud.io/trigger-deletion-by-mcm]: entry \"m2\" has no time; the time of the replica change is used"])]
#[case::v068_an_unreadable_entry(json!({"metadata": {"annotations": {annotation::TRIGGER_DELETION: "m1~yesterday"}}, "spec": {"replicas": 2}}), &[], &["metadata.annotations[node.machine.sapcloud.io/trigger-deletion-by-mcm]: entry \"m1~yesterday\" will be ignored: want <machine>~<RFC 3339 time>"])]
#[case::v107_rollback(spec(json!({"rollbackTo": {"revision": 0}})), &[], &["spec.rollbackTo: is deprecated; apply the earlier template again, or use mcm rollback"])]
#[case::v108_a_negative_revision(spec(json!({"rollbackTo": {"revision": -1}})), &["spec.rollbackTo.revision: Invalid value: -1: must be greater than or equal to 0"], &["spec.rollbackTo: is deprecated; apply the earlier template again, or use mcm rollback"])]
#[case::v112_a_freeze_that_is_none(frozen("true", 3), &[], &["metadata.labels[freeze]: only the value \"True\" freezes the object"])]
#[case::v113_a_frozen_deployment_grows(frozen("True", 5), &[], &["spec.replicas: the object is frozen; no machine will be created until it is unfrozen"])]
fn an_update_of_a_deployment(#[case] new: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    update(MachineDeployment, json!({}), new).by(ALICE).gives(denials, warnings);
}

#[rstest]
#[case::v109_an_old_type_is_scaled(canary(json!({"replicas": 4})), &[], &[CANARY])]
#[case::v110_and_broken_further(canary(json!({"strategy": {"rollingUpdate": {"maxSurge": "x"}}})), &["spec.strategy.rollingUpdate.maxSurge: Invalid value: \"x\": <percent>"], &[CANARY])]
fn an_update_of_a_deployment_stored_broken(#[case] new: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    update(MachineDeployment, canary(json!({})), new).gives(denials, warnings);
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

/// Controllers go on acting on what the original acted on.
#[rstest]
#[case::blanks_in_conditions_never_stopped_it(Machine, spec(json!({"nodeConditions": "A, B"})), &[])]
#[case::a_missing_class_did(Machine, spec(json!({"class": {"name": ""}})), &["spec.class.name"])]
#[case::nor_did_zero_margins(MachineDeployment, rolling(json!({"maxSurge": 0})), &[])]
#[case::an_unknown_strategy_did(MachineDeployment, spec(json!({"strategy": {"type": "Canary"}})), &["spec.strategy.type"])]
#[case::a_missing_selector_did(MachineSet, spec(json!({"selector": null})), &["spec.selector"])]
#[case::an_unreadable_duration_must(Machine, spec(json!({"drainTimeout": "x"})), &["spec.drainTimeout"])]
fn what_stops_a_controller(#[case] kind: super::Kind, #[case] patch: Value, #[case] paths: &[&str]) {
    let found: Findings = super::reconcile_findings(kind, &super::fixtures::object(kind, &patch));
    assert_eq!(found.errors().map(|error| error.path.as_str().to_owned()).collect::<Vec<_>>(), paths);
}

#[test]
fn the_same_questions_in_v1beta1_are_answered_in_its_words() {
    let object = json!({"metadata": {"name": "m1"}, "spec": {"classRef": {"kind": "MachineClass"},
        "lifecycle": {"drainTimeout": "x", "unhealthyNodeConditions": ["A", "A"]}}});
    let policy = super::Policy::default();
    let found = super::validate(&super::ValidationRequest {
        kind: Machine,
        version: super::ApiVersion::V1beta1,
        change: super::Change::Create { new: &object },
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
