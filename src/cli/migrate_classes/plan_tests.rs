//! The plan for each state of a migration.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;

use super::*;

const NAMESPACE: &str = "ns";

fn object(kind: &str, name: &str, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"), "resourceVersion": "1"},
    });
    json_patch::merge(&mut object, rest);
    object
}

fn old(name: &str, rest: &Value) -> (OldKind, Value) {
    let mut class = object(
        "AWSMachineClass",
        name,
        &json!({
            "metadata": {"finalizers": ["example.com/other", finalizer::MACHINE]},
            "spec": {"ami": "ami-1", "secretRef": {"name": "s"}},
        }),
    );
    json_patch::merge(&mut class, rest);
    (OldKind::Aws, class)
}

/// The class that the migration makes of [`old`], as it is stored.
fn new(name: &str, rest: &Value) -> Value {
    let mut class = convert(OldKind::Aws, &old(name, &json!({})).1).class;
    class["secretRef"]["namespace"] = json!(NAMESPACE);
    class["nodeTemplate"] = json!({"zone": "z"});
    json_patch::merge(&mut class, rest);
    class
}

fn user(kind: Kind, name: &str, class_kind: &str, class: &str) -> (Kind, Value) {
    let mut user = object(kind.as_str(), name, &json!({}));
    let named = json!({"kind": class_kind, "name": class});
    match kind {
        Kind::Machine => user["spec"]["class"] = named,
        _ => user["spec"]["template"]["spec"]["class"] = named,
    }
    (kind, user)
}

fn migrated() -> Value {
    json!({"metadata": {
        "annotations": {annotation::MIGRATED: "machine-controller-AWSMachineClass"}, "finalizers": ["example.com/other"],
    }})
}

fn admits(_: &Value) -> Judgement {
    Judgement::default()
}

fn texts(plan: &Plan) -> Vec<String> {
    plan.steps().map(ToString::to_string).collect()
}

#[test]
fn the_first_plan_has_every_write_in_its_order() {
    let users = vec![
        user(Kind::Machine, "m1", "AWSMachineClass", "c"),
        user(Kind::Machine, "m2", "MachineClass", "c"),
        user(Kind::MachineSet, "s", "AWSMachineClass", "c"),
        user(Kind::MachineDeployment, "d", "AWSMachineClass", "c"),
    ];
    let plan = plan(&Observed { old: vec![old("c", &json!({}))], classes: Vec::new(), users }, &admits);
    assert_eq!(
        texts(&plan),
        [
            "create MachineClass ns/c (provider AWS) of AWSMachineClass ns/c",
            "let MachineDeployment ns/d name MachineClass c instead of AWSMachineClass",
            "let MachineSet ns/s name MachineClass c instead of AWSMachineClass",
            "let Machine ns/m1 name MachineClass c instead of AWSMachineClass",
            "remove the finalizer from AWSMachineClass ns/c",
        ]
    );
    assert!(matches!(plan.next_stage(), Some(Stage::AnyTime([Step::Create { .. }]))), "{plan:?}");
}

#[rstest]
#[case::nothing(Vec::new(), Vec::new(), Vec::new(), &[])]
#[case::an_unused_class(vec![old("c", &json!({}))], Vec::new(), Vec::new(), &["create", "remove"])]
#[case::the_class_is_written(vec![old("c", &json!({}))], vec![new("c", &json!({}))], Vec::new(), &["remove"])]
#[case::done(vec![old("c", &migrated())], vec![new("c", &json!({}))], Vec::new(), &[])]
#[case::the_new_class_was_changed_later(vec![old("c", &migrated())], vec![new("c", &json!({"providerSpec": {"ami": "b"}}))], Vec::new(), &[])]
#[case::the_new_class_was_deleted_later(vec![old("c", &migrated())], Vec::new(), Vec::new(), &[])]
#[case::it_is_named_again_and_the_new_class_is_gone(vec![old("c", &migrated())], Vec::new(),
    vec![user(Kind::Machine, "m", "AWSMachineClass", "c")], &["create", "let Machine ns/m"])]
#[case::it_is_named_again(vec![old("c", &migrated())], vec![new("c", &json!({"providerSpec": {"ami": "b"}}))],
    vec![user(Kind::Machine, "m", "AWSMachineClass", "c")], &["let Machine ns/m"])]
#[case::marked_but_with_a_finalizer(
    vec![old("c", &json!({"metadata": {"annotations": {annotation::MIGRATED: "x"}}}))], vec![new("c", &json!({}))], Vec::new(), &["remove"])]
#[case::an_unused_class_is_deleted(vec![old("c", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))],
    Vec::new(), Vec::new(), &["remove"])]
#[case::a_used_class_is_deleted(vec![old("c", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))],
    Vec::new(), vec![user(Kind::Machine, "m", "AWSMachineClass", "c")], &["create", "let Machine ns/m", "remove"])]
#[case::the_old_class_is_gone(Vec::new(), vec![new("c", &json!({}))],
    vec![user(Kind::Machine, "m", "AWSMachineClass", "c")], &["let Machine ns/m"])]
#[case::a_class_of_another_provider_is_another_class(Vec::new(), vec![new("c", &json!({"provider": "GCP"}))],
    vec![user(Kind::Machine, "m", "AWSMachineClass", "c")], &[])]
#[case::a_class_of_another_name(vec![old("c", &migrated())], vec![new("c", &json!({}))],
    vec![user(Kind::Machine, "m", "AWSMachineClass", "d")], &[])]
#[case::a_kind_that_never_was(Vec::new(), Vec::new(), vec![user(Kind::Machine, "m", "YandexMachineClass", "c")], &[])]
fn every_other_state_has_the_rest(
    #[case] old: Vec<(OldKind, Value)>,
    #[case] classes: Vec<Value>,
    #[case] users: Vec<(Kind, Value)>,
    #[case] expected: &[&str],
) {
    let plan = plan(&Observed { old, classes, users }, &admits);
    assert_eq!(plan.obstacles, [] as [String; 0]);
    let found = texts(&plan);
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(|(found, start)| found.starts_with(start)),
        "{found:?}"
    );
}

#[test]
fn a_reference_to_a_class_that_is_nowhere_stays_and_is_told() {
    let users = vec![user(Kind::Machine, "m", "AWSMachineClass", "c")];
    let plan = plan(&Observed { users, ..Observed::default() }, &admits);
    assert_eq!(plan.next_stage(), None);
    assert_eq!(
        plan.dangling,
        ["Machine ns/m names AWSMachineClass c, and there is neither this class nor its MachineClass"]
    );
}

#[rstest]
#[case::it_exists_with_other_content(vec![old("c", &json!({}))], vec![new("c", &json!({"provider": "GCP", "secretRef": {"name": "t"}}))],
    "MachineClass ns/c exists and differs from AWSMachineClass ns/c in provider, secretRef; correct or delete it")]
#[case::two_of_one_name(vec![old("c", &json!({})), (OldKind::Gcp, old("c", &json!({})).1)], Vec::new(),
    "GCPMachineClass ns/c: another old class has the same name; rename one of them")]
#[case::a_field_without_place(vec![old("c", &json!({"extra": 1}))], Vec::new(),
    "AWSMachineClass ns/c: extra has no place in a MachineClass: move it into spec, or remove it")]
#[case::admission_refuses_it(vec![old("c", &json!({"spec": {"ami": null}}))], Vec::new(),
    "AWSMachineClass ns/c: its MachineClass would be refused: no ami")]
fn nothing_is_written_if_there_is_an_obstacle(
    #[case] old: Vec<(OldKind, Value)>,
    #[case] classes: Vec<Value>,
    #[case] expected: &str,
) {
    let judge = |class: &Value| Judgement {
        denials: if class["providerSpec"].get("ami").is_none() { vec!["no ami".to_owned()] } else { Vec::new() },
        warnings: vec!["odd".to_owned()],
    };
    let plan = plan(&Observed { old, classes, users: Vec::new() }, &judge);
    assert_eq!(plan.obstacles, [expected]);
}

/// The class of a machine was migrated, and a class of another provider has taken its name.
#[test]
fn a_machine_is_not_moved_to_a_class_of_another_provider() {
    let users =
        vec![user(Kind::Machine, "m", "AWSMachineClass", "c"), user(Kind::Machine, "n", "AWSMachineClass", "c")];
    let classes = vec![new("c", &json!({"provider": "GCP"}))];
    let observed = Observed { old: vec![old("c", &migrated())], classes, users };
    assert_eq!(
        plan(&observed, &admits).obstacles,
        [
            "MachineClass ns/c has provider GCP, but objects name AWSMachineClass ns/c, which is of provider AWS; correct or delete the \
          MachineClass, or let the objects name another class"
        ]
    );
    assert_eq!(plan(&observed, &admits).notes, [] as [String; 0]);
    let unused = Observed { users: Vec::new(), ..observed };
    assert_eq!(plan(&unused, &admits), Plan::default());
}

#[rstest]
#[case::the_letters_of_the_go_original("openstack", 2, &[],
    &["MachineClass ns/o has provider openstack; change it to OpenStack, which drivers read"])]
#[case::the_right_letters("OpenStack", 2, &[], &[])]
#[case::another_provider("GCP", 0, &[
    "Machine ns/m names OpenStackMachineClass o, and this class is gone; MachineClass o has provider GCP, not OpenStack",
    "Machine ns/n names OpenStackMachineClass o, and this class is gone; MachineClass o has provider GCP, not OpenStack"], &[])]
fn the_provider_decides_which_class_is_the_new_one(
    #[case] provider: &str,
    #[case] references: usize,
    #[case] dangling: &[&str],
    #[case] notes: &[&str],
) {
    let users = ["m", "n"].map(|name| user(Kind::Machine, name, "OpenStackMachineClass", "o")).to_vec();
    let classes = vec![new("o", &json!({ "provider": provider }))];
    let plan = plan(&Observed { old: Vec::new(), classes, users }, &admits);
    assert_eq!(
        (plan.references.len(), plan.dangling.as_slice(), plan.notes.as_slice()),
        (
            references,
            dangling.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice(),
            notes.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice()
        )
    );
    assert_eq!(plan.obstacles, [] as [String; 0]);
}

#[test]
fn a_set_of_an_early_release_names_its_class_twice() {
    let (kind, mut set) = user(Kind::MachineSet, "s", "AWSMachineClass", "c");
    set["spec"]["machineClass"] = json!({"kind": "AWSMachineClass", "name": "c"});
    let plan = plan(
        &Observed { old: vec![old("c", &json!({}))], classes: Vec::new(), users: vec![(kind, set.clone())] },
        &admits,
    );
    let [step @ Step::Refer { places, .. }] = plan.references.as_slice() else { panic!("{plan:?}") };
    assert_eq!(places.as_slice(), super::places(Kind::MachineSet));
    let Some(Patch::Json(operations)) = step.patch() else { panic!("{step:?}") };
    let patch: json_patch::Patch = serde_json::from_value(json!(operations)).unwrap();
    json_patch::patch(&mut set, &patch).unwrap();
    assert_eq!(old_classes_of(kind, &set).len(), 0, "{set}");
    assert!(json_patch::patch(&mut set, &patch).is_err(), "it is not applied twice");
}

#[test]
fn a_patch_is_for_one_object_and_for_the_reference_that_was_read() {
    let users = vec![user(Kind::Machine, "m", "AWSMachineClass", "c")];
    let plan = plan(&Observed { old: vec![old("c", &json!({}))], classes: Vec::new(), users: users.clone() }, &admits);
    let Some(Patch::Json(operations)) = plan.references[0].patch() else { panic!("{plan:?}") };
    let patch: json_patch::Patch = serde_json::from_value(json!(operations)).unwrap();
    let other_uid = json!({"metadata": {"uid": "other"}});
    let other_class = json!({"spec": {"class": {"name": "d"}}});
    for change in [other_uid, other_class] {
        let mut machine = users[0].1.clone();
        json_patch::merge(&mut machine, &change);
        assert!(json_patch::patch(&mut machine, &patch).is_err(), "{change}");
    }
}

#[test]
fn a_release_keeps_the_finalizers_of_others() {
    let plan = plan(&Observed { old: vec![old("c", &json!({}))], ..Observed::default() }, &admits);
    let Some(Patch::Merge(patch)) = plan.releases[0].patch() else { panic!("{plan:?}") };
    assert_eq!(
        patch["metadata"],
        json!({
            "annotations": {"machine.sapcloud.io/migrated": "machine-controller-AWSMachineClass"},
            "finalizers": ["example.com/other"], "resourceVersion": "1", "uid": "uid-c",
        })
    );
}
