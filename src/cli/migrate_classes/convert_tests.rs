//! Every field of every old kind is carried, and unknown ones too.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::cli::documents::parse_documents;

/// A class of each kind with every field, `tests/fixtures/old-classes.yaml`.
fn samples() -> Vec<(OldKind, Value)> {
    let text = include_str!("../../../tests/fixtures/old-classes.yaml");
    let documents = parse_documents("old-classes.yaml", text).unwrap();
    documents
        .into_iter()
        .map(|it| (OldKind::from_name(it.value["kind"].as_str().unwrap()).unwrap(), it.value))
        .collect()
}

fn sample(wanted: OldKind) -> Value {
    samples().into_iter().find(|(kind, _)| *kind == wanted).unwrap().1
}

/// Whether a class has a field, in some element of each list on the way.
fn has(value: &Value, path: &str) -> bool {
    let Some((step, rest)) = path.split_once('.').or((!path.is_empty()).then_some((path, ""))) else { return true };
    if step == "*" {
        return value.as_object().is_some_and(|fields| !fields.is_empty());
    }
    let Some(below) = value.get(step.trim_end_matches("[]")) else { return false };
    if step.ends_with("[]") {
        below.as_array().is_some_and(|elements| elements.iter().any(|element| has(element, rest)))
    } else {
        has(below, rest)
    }
}

/// The spec of an old class without its references to Secrets.
fn without_secrets(old: &Value) -> Value {
    let mut spec = old["spec"].clone();
    for field in SECRET_FIELDS {
        spec.as_object_mut().unwrap().remove(field);
    }
    spec
}

#[test]
fn every_field_of_every_old_kind_is_carried() {
    assert_eq!(samples().iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), OldKind::ALL);
    // They exclude the field that the sample has, or hold a password.
    let alternatives = ["iam.arn", "capacityReservation.capacityReservationResourceGroupArn"];
    let azure = ["availabilitySet.id", "machineSet.id", "machineSet.kind", "osProfile.adminPassword"];
    for (kind, old) in samples() {
        for field in kind.table().fields {
            let is_left_out = alternatives.contains(&field.path)
                || azure.iter().any(|path| field.path == format!("properties.{path}"))
                || field.path == "properties.storageProfile.imageReference.id"
                || field.path.starts_with("networks[]");
            assert!(is_left_out || has(&old["spec"], field.path), "{kind:?}: the sample lacks {}", field.path);
        }
        let Converted { class, notes } = convert(kind, &old);
        assert_eq!(notes, [], "{kind:?}");
        let mut carried = without_secrets(&old);
        if kind == OldKind::OpenStack {
            carried = json!({ "spec": carried });
        }
        for (name, value) in kind.table().constants {
            carried[*name] = json!(value);
        }
        assert_eq!(class["providerSpec"], carried, "{kind:?}");
        for field in SECRET_FIELDS {
            assert_eq!(class[field], old["spec"][field], "{kind:?}");
        }
        assert_eq!((&class["kind"], &class["provider"]), (&json!("MachineClass"), &json!(kind.table().provider)));
    }
}

#[test]
fn the_metadata_of_users_is_taken_over_and_that_of_the_server_is_not() {
    let class = convert(OldKind::Aws, &sample(OldKind::Aws)).class;
    assert_eq!(
        class["metadata"],
        json!({
            "name": "test-aws", "namespace": "default", "labels": {"purpose": "example"},
            "annotations": {"example.com/owner": "somebody"},
            "finalizers": ["machine.sapcloud.io/machine-controller-manager"],
        })
    );
}

#[rstest]
#[case::at_the_top(OldKind::Aws, json!({"ami": "a", "cpuOptions": {"coreCount": 1}}), "spec.cpuOptions", "providerSpec.cpuOptions")]
#[case::in_an_object(OldKind::Azure, json!({"properties": {"diagnosticsProfile": {"enabled": true}}}),
    "spec.properties.diagnosticsProfile", "providerSpec.properties.diagnosticsProfile")]
#[case::in_a_list(OldKind::Gcp, json!({"disks": [{"boot": true}, {"provisionedIops": 1}]}),
    "spec.disks[1].provisionedIops", "providerSpec.disks[1].provisionedIops")]
#[case::below_the_spec_of_openstack(OldKind::OpenStack, json!({"rootDiskType": "ssd"}),
    "spec.rootDiskType", "providerSpec.spec.rootDiskType")]
#[case::a_second_spelling(OldKind::Aws, json!({"ami": "a", "AMI": "b"}), "spec.AMI", "providerSpec.AMI")]
#[case::in_a_reference(OldKind::Packet, json!({"secretRef": {"name": "s", "key": "k"}}), "spec.secretRef.key", "secretRef.key")]
fn an_unknown_field_is_carried_and_reported(
    #[case] kind: OldKind,
    #[case] spec: Value,
    #[case] old: &str,
    #[case] new: &str,
) {
    let Converted { class, notes } = convert(kind, &json!({ "metadata": {"name": "c"}, "spec": spec }));
    assert_eq!(notes, [Note::Unknown { old: old.to_owned(), new: new.to_owned() }]);
    let at = |object: &Value, path: &str| {
        object.pointer(&format!("/{}", path.replace(['.', '['], "/").replace(']', ""))).cloned()
    };
    let carried = at(&json!({ "spec": spec }), old);
    assert!(carried.is_some() && at(&class, new) == carried, "{class}");
}

#[rstest]
#[case::at_the_top(json!({"AMI": "a"}), "ami", json!({"ami": "a"}))]
#[case::beside_null(json!({"ami": null, "AMI": "a"}), "ami", json!({"ami": "a"}))]
#[case::in_a_list(json!({"blockDevices": [{"Ebs": {"volumeSize": 5}}]}), "blockDevices[0].ebs", json!({"blockDevices": [{"ebs": {"volumeSize": 5}}]}))]
fn a_field_in_other_letters_gets_its_right_name(#[case] spec: Value, #[case] place: &str, #[case] expected: Value) {
    let Converted { class, notes } = convert(OldKind::Aws, &json!({ "spec": spec }));
    let mut expected = expected;
    expected["apiVersion"] = json!("mcm.gardener.cloud/v1alpha1");
    assert_eq!(class["providerSpec"], expected);
    assert!(
        matches!(notes.as_slice(), [Note::Spelling { new, .. }] if *new == format!("providerSpec.{place}")),
        "{notes:?}"
    );
}

#[rstest]
#[case::null_means_absent(json!({"spec": {"ami": null}}), json!({"apiVersion": "mcm.gardener.cloud/v1alpha1"}))]
#[case::there_is_no_spec(json!({}), json!({"apiVersion": "mcm.gardener.cloud/v1alpha1"}))]
#[case::another_form_than_the_table_says(
    json!({"spec": {"blockDevices": "none", "tags": 5}}),
    json!({"apiVersion": "mcm.gardener.cloud/v1alpha1", "blockDevices": "none", "tags": 5}))]
fn odd_values(#[case] old: Value, #[case] expected: Value) {
    let Converted { class, notes } = convert(OldKind::Aws, &old);
    assert_eq!((class["providerSpec"].clone(), notes), (expected, Vec::new()));
}

#[test]
fn a_field_outside_spec_would_be_lost_and_is_an_obstacle() {
    let notes = convert(OldKind::Gcp, &json!({ "spec": {}, "status": {}, "nodeTemplate": {"zone": "z"} })).notes;
    assert_eq!(notes, [Note::NoPlace { old: "nodeTemplate".to_owned() }]);
    assert!(notes[0].is_obstacle());
}

#[rstest]
#[case::at_the_top(json!({"AMI": "one", "Ami": "two"}), "spec.Ami", "providerSpec.ami")]
#[case::in_a_list(json!({"blockDevices": [{"EBS": {"iops": 1}, "Ebs": {"iops": 2}}]}), "spec.blockDevices[0].Ebs", "providerSpec.blockDevices[0].ebs")]
#[case::a_secret(json!({"SECRETREF": {"name": "a"}, "SecretRef": {"name": "b"}}), "spec.SecretRef", "secretRef")]
#[case::a_secret_beside_its_right_name(json!({"secretRef": {"name": "a"}, "SecretRef": {"name": "b"}}), "spec.SecretRef", "secretRef")]
fn two_spellings_of_a_field_are_an_obstacle(#[case] spec: Value, #[case] old: &str, #[case] new: &str) {
    let notes = convert(OldKind::Aws, &json!({ "spec": spec })).notes;
    let obstacles: Vec<&Note> = notes.iter().filter(|note| note.is_obstacle()).collect();
    assert_eq!(obstacles, [&Note::Twice { old: old.to_owned(), new: new.to_owned() }]);
}

#[rstest]
#[case::ours_and_another(json!(["example.com/other", finalizer::MACHINE]), json!([finalizer::MACHINE]), &["example.com/other"])]
#[case::only_others(json!(["example.com/other"]), Value::Null, &["example.com/other"])]
#[case::only_ours(json!([finalizer::MACHINE]), json!([finalizer::MACHINE]), &[])]
fn only_our_finalizer_is_copied(#[case] old: Value, #[case] expected: Value, #[case] noted: &[&str]) {
    let Converted { class, notes } = convert(OldKind::Aws, &json!({"metadata": {"name": "c", "finalizers": old}}));
    assert_eq!(class["metadata"]["finalizers"], expected);
    let expected: Vec<Note> = noted.iter().map(|name| Note::Finalizer { name: (*name).to_owned() }).collect();
    assert_eq!(notes, expected);
}

#[test]
fn the_prefix_of_a_generated_name_is_kept() {
    let class = convert(OldKind::Aws, &json!({"metadata": {"generateName": "pool-"}, "spec": {}})).class;
    assert_eq!(class["metadata"], json!({"generateName": "pool-"}));
}
