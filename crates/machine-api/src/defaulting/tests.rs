//! The cases of spec/api-and-admission §12.2 by their numbers, and the properties of §7.1 over arbitrary JSON.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const FINALIZER: &str = finalizer::MACHINE;

fn on_create(kind: Kind, object: &Value) -> Value {
    let object = Json::from(object);
    let change = Change::Create { new: &object };
    let request = DefaultingRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change,
        namespace: "x",
        finalizers: FinalizerDefault::Add,
    };
    serde_json::to_value(default_patch(&request)).unwrap()
}

fn on_update(kind: Kind, old: &Value, new: &Value) -> Value {
    let (old, new) = (Json::from(old), Json::from(new));
    let change = Change::Update { old: &old, new: &new };
    let request = DefaultingRequest {
        kind,
        version: ApiVersion::V1alpha1,
        change,
        namespace: "x",
        finalizers: FinalizerDefault::Add,
    };
    serde_json::to_value(default_patch(&request)).unwrap()
}

/// Metadata that has all defaults.
fn settled() -> Value {
    json!({"name": "o", "finalizers": [FINALIZER], "annotations": {annotation::MACHINE_PRIORITY: "1"}})
}

#[rstest]
#[case::m01_machine_without_annotations_and_finalizers(json!({"name": "m"}), json!([
    {"op": "add", "path": "/metadata/annotations", "value": {annotation::MACHINE_PRIORITY: "3"}},
    {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]))]
#[case::m02_other_annotations(json!({"annotations": {"x": "y"}, "finalizers": [FINALIZER]}), json!([
    {"op": "add", "path": "/metadata/annotations/machinepriority.machine.sapcloud.io", "value": "3"}]))]
#[case::m03_other_finalizers(json!({"annotations": {annotation::MACHINE_PRIORITY: "3"}, "finalizers": ["z/z"]}), json!([
    {"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}]))]
#[case::m04_finalizers_null(json!({"annotations": {annotation::MACHINE_PRIORITY: "3"}, "finalizers": null}), json!([
    {"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]))]
#[case::m05_an_empty_priority(json!({"annotations": {annotation::MACHINE_PRIORITY: ""}, "finalizers": [FINALIZER]}), json!([
    {"op": "replace", "path": "/metadata/annotations/machinepriority.machine.sapcloud.io", "value": "3"}]))]
#[case::m06_nothing_to_do(settled(), json!([]))]
#[case::a_terminating_object_is_left_alone(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!([]))]
#[case::mistyped_parts_are_left_alone(json!({"annotations": 5, "finalizers": "x"}), json!([]))]
fn metadata_of_a_new_machine(#[case] metadata: Value, #[case] expected: Value) {
    assert_eq!(on_create(Kind::Machine, &json!({"metadata": metadata, "spec": {}})), expected);
}

#[test]
fn m01_without_metadata_it_is_added_whole() {
    let expected = json!([{"op": "add", "path": "/metadata", "value":
        {"annotations": {annotation::MACHINE_PRIORITY: "3"}, "finalizers": [FINALIZER]}}]);
    assert_eq!(on_create(Kind::Machine, &json!({})), expected);
}

#[rstest]
#[case::m07_terminating(Kind::Machine, json!({}), json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!([]))]
#[case::m08_an_explicit_removal_is_respected(Kind::Machine, json!({"finalizers": [FINALIZER]}), json!({"finalizers": []}), json!([]))]
#[case::m09_neither_has_it(Kind::Machine, json!({}), json!({}), json!([{"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]}]))]
#[case::m10_a_class_neither_has_it(Kind::MachineClass, json!({}), json!({}), json!([]))]
fn finalizers_on_update(#[case] kind: Kind, #[case] old: Value, #[case] new: Value, #[case] expected: Value) {
    let (old, new) = (json!({"metadata": old}), json!({"metadata": new}));
    assert_eq!(on_update(kind, &old, &new), expected);
}

#[rstest]
#[case::m11_empty(json!({}), json!([{"op": "replace", "path": "/spec/strategy", "value":
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}]))]
#[case::m11_absent(Value::Null, json!([{"op": "add", "path": "/spec/strategy", "value":
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}]))]
#[case::m12_no_surge(json!({"rollingUpdate": {"maxSurge": 0}}), json!([
    {"op": "add", "path": "/spec/strategy/type", "value": "RollingUpdate"},
    {"op": "add", "path": "/spec/strategy/rollingUpdate/maxUnavailable", "value": 1}]))]
#[case::m13_nothing_unavailable(json!({"rollingUpdate": {"maxUnavailable": "0%"}}), json!([
    {"op": "add", "path": "/spec/strategy/type", "value": "RollingUpdate"},
    {"op": "add", "path": "/spec/strategy/rollingUpdate/maxSurge", "value": 1}]))]
#[case::m14_a_surge(json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%"}}), json!([
    {"op": "add", "path": "/spec/strategy/rollingUpdate/maxUnavailable", "value": 0}]))]
#[case::m15_no_object(json!("foo"), json!([]))]
#[case::m16_an_empty_type(json!({"type": "", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}), json!([
    {"op": "add", "path": "/spec/strategy/type", "value": "RollingUpdate"}]))]
#[case::v089_recreate(json!({"type": "Recreate"}), json!([]))]
#[case::v102_in_place(json!({"type": "InPlaceUpdate"}), json!([
    {"op": "add", "path": "/spec/strategy/inPlaceUpdate", "value": {"maxSurge": 0, "maxUnavailable": 1}}]))]
#[case::v104_a_type_is_not_guessed(json!({"inPlaceUpdate": {"orchestrationType": "Auto"}}), json!([]))]
#[case::an_unknown_type(json!({"type": "Canary"}), json!([]))]
#[case::a_type_of_the_wrong_type(json!({"type": 5}), json!([]))]
fn strategies(#[case] strategy: Value, #[case] expected: Value) {
    let mut spec = json!({"replicas": 1, "strategy": strategy});
    if spec["strategy"].is_null() {
        spec.as_object_mut().unwrap().remove("strategy");
    }
    assert_eq!(on_create(Kind::MachineDeployment, &json!({"metadata": settled(), "spec": spec})), expected);
}

#[rstest]
#[case::m17_the_class_of_a_template(Kind::MachineSet, json!({"replicas": 0, "template": {"spec": {"class": {"name": "c"}}}}), json!([
    {"op": "add", "path": "/spec/template/spec/class/kind", "value": "MachineClass"}]))]
#[case::v004_the_class_of_a_machine(Kind::Machine, json!({"class": {"name": "c"}}), json!([
    {"op": "add", "path": "/spec/class/kind", "value": "MachineClass"}]))]
#[case::v002_no_kind_without_a_name(Kind::Machine, json!({"class": {}}), json!([]))]
#[case::m18_replicas(Kind::MachineSet, json!({}), json!([{"op": "add", "path": "/spec/replicas", "value": 0}]))]
#[case::m24_a_timeout_is_not_defaulted(Kind::Machine, json!({"class": {"kind": "MachineClass", "name": "c"}}), json!([]))]
#[case::m23_a_spec_that_is_a_number(Kind::MachineDeployment, json!(5), json!([]))]
fn specs(#[case] kind: Kind, #[case] spec: Value, #[case] expected: Value) {
    assert_eq!(on_create(kind, &json!({"metadata": settled(), "spec": spec})), expected);
}

#[test]
fn m19_the_namespace_of_a_secret_is_the_namespace_of_the_class() {
    let class = json!({"metadata": settled(), "secretRef": {"name": "s"}, "credentialsSecretRef": {"name": "t", "namespace": "y"}});
    let expected = json!([{"op": "add", "path": "/secretRef/namespace", "value": "x"}]);
    assert_eq!(on_create(Kind::MachineClass, &class), expected);
}

#[rstest]
#[case(json!([]))]
#[case(json!(null))]
#[case(json!("x"))]
fn m23_a_value_that_is_no_object_is_not_changed(#[case] object: Value) {
    for kind in Kind::ALL {
        assert_eq!(on_create(kind, &object), json!([]));
    }
}

#[test]
fn m21_fields_of_other_versions_of_the_program_are_not_touched() {
    let object = json!({"metadata": {}, "spec": {"class": {"name": "c"}, "future": 1}, "status": {"later": 2}});
    let patch = on_create(Kind::Machine, &object);
    let paths: Vec<_> = patch.as_array().unwrap().iter().map(|edit| edit["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/metadata/annotations", "/metadata/finalizers", "/spec/class/kind"]);
    let mut defaulted = object;
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    json_patch::patch(&mut defaulted, &patch).unwrap();
    assert_eq!((&defaulted["spec"]["future"], &defaulted["status"]), (&json!(1), &json!({"later": 2})));
}

#[test]
fn m22_a_key_with_a_slash_is_escaped() {
    let mut edits = Edits::default();
    edits.add(&["metadata", "annotations", "a/b~c"], json!("x"));
    assert_eq!(serde_json::to_value(edits.patch).unwrap()[0]["path"], "/metadata/annotations/a~1b~0c");
}

#[test]
fn the_finalizer_is_left_to_the_controllers_on_request() {
    let object = json!({"metadata": {}});
    let request = DefaultingRequest {
        kind: Kind::MachineSet,
        version: ApiVersion::V1alpha1,
        change: Change::Create { new: &Json::from(&object) },
        namespace: "",
        finalizers: FinalizerDefault::Leave,
    };
    assert_eq!(default_patch(&request), Patch::default());
}

/// JSON with the field names of our kinds, so that the functions find fields.
fn arbitrary_object() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..3).prop_map(Value::from),
        prop::sample::select(vec!["", "0%", "10%", "RollingUpdate", "InPlaceUpdate", "Recreate", "c1", FINALIZER])
            .prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "metadata",
        "spec",
        "annotations",
        "finalizers",
        "strategy",
        "type",
        "rollingUpdate",
        "inPlaceUpdate",
        "maxSurge",
        "maxUnavailable",
        "template",
        "class",
        "name",
        "kind",
        "namespace",
        "replicas",
        "secretRef",
        "future",
        annotation::MACHINE_PRIORITY,
    ]);
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map(key.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Whether `after` contains everything of `before`, apart from values that count as empty.
fn only_adds(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            before.iter().all(|(key, value)| after.get(key).is_some_and(|new| only_adds(value, new)))
        }
        (Value::Array(before), Value::Array(after)) => {
            after.len() >= before.len() && before.iter().zip(after).all(|(before, after)| only_adds(before, after))
        }
        (Value::Null, _) => true,
        (Value::String(text), Value::String(_)) if text.is_empty() => true,
        (before, after) => before == after,
    }
}

proptest! {
    #[test]
    fn defaulting_is_idempotent_and_only_adds(object in arbitrary_object(), kind in prop::sample::select(Kind::ALL.to_vec())) {
        let mut once = object.clone();
        apply_defaults(kind, &mut once);
        prop_assert!(only_adds(&object, &once), "{object} became {once}");
        let mut twice = once.clone();
        apply_defaults(kind, &mut twice);
        prop_assert_eq!(once, twice);
    }
}
