//! The conversion of manifests, and the rules of admission.

use clap::Parser;
use rstest::rstest;

use super::*;
use crate::cli::{Cli, documents::parse_documents};

const SAMPLES: &str = include_str!("../../../tests/fixtures/old-classes.yaml");

fn converted(text: &str, external: &[&str]) -> Result<(Vec<Value>, Vec<String>), Failure> {
    let external: Vec<String> = external.iter().map(|&name| name.to_owned()).collect();
    let admission = Admission::new(&DriverSet::built_in(), &external)?;
    manifests(&parse_documents("file", text).expect("YAML"), &admission)
}

#[test]
fn the_converted_class_of_each_kind_passes_admission() {
    let (classes, notes) = converted(SAMPLES, &["EquinixMetal"]).expect("they convert");
    let kinds: Vec<&str> = classes.iter().filter_map(|class| class["kind"].as_str()).collect();
    assert_eq!(kinds, ["MachineClass"; OldKind::ALL.len()]);
    assert!(notes.iter().all(|note| !note.contains("no known field")), "{notes:#?}");
}

#[test]
fn a_class_of_a_cloud_that_exists_no_more_is_refused_unless_a_driver_claims_it() {
    let refused = converted(SAMPLES, &[]).expect_err("the service has ended").to_string();
    let expected = "PacketMachineClass default/test-packet: its MachineClass would be refused: provider: Invalid value: \
                    \"EquinixMetal\": this cloud exists no more";
    assert_eq!(refused, expected);
}

#[test]
fn a_class_that_admission_refuses_is_named_with_every_reason() {
    let class = "{apiVersion: machine.sapcloud.io/v1alpha1, kind: AWSMachineClass, metadata: {name: c}, spec: {region: r, extra: 1}}";
    let refused = converted(class, &[]).expect_err("it lacks fields").to_string();
    assert!(refused.contains("AMI is required") && refused.contains("MachineType is required"), "{refused}");
}

#[test]
fn references_change_and_other_objects_do_not() {
    let text = "\
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineDeployment
metadata: {name: d}
spec: {template: {spec: {class: {kind: AWSMachineClass, name: c}}}}
---
apiVersion: example.com/v1
kind: Machine
metadata: {name: other}
spec: {class: {kind: AWSMachineClass, name: c}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {name: m}, spec: {class: {kind: GCPMachineClass, name: c}}}
- {apiVersion: v1, kind: Secret, metadata: {name: s}}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: AlicloudMachineClassList
items: []
";
    let (objects, _) = converted(text, &[]).expect("they convert");
    assert_eq!(objects[0]["spec"]["template"]["spec"]["class"], json!({"kind": "MachineClass", "name": "c"}));
    assert_eq!(objects[1]["spec"]["class"]["kind"], "AWSMachineClass", "another group");
    assert_eq!(objects[2]["items"][0]["spec"]["class"]["kind"], "MachineClass");
    assert_eq!(objects[2]["items"][1]["kind"], "Secret");
    assert_eq!((&objects[3]["apiVersion"], &objects[3]["kind"]), (&json!("v1"), &json!("List")));
}

#[rstest]
#[case::files_need_no_cluster(&["-f", "x", "--yes"], false)]
#[case::a_dry_run_asks_nothing(&["--dry-run", "--yes"], false)]
#[case::files(&["-f", "x", "-f", "y", "-o", "json"], true)]
#[case::a_cluster(&["--namespace", "ns", "--yes", "--external-providers", "EquinixMetal"], true)]
fn flags_that_exclude_each_other(#[case] flags: &[&str], #[case] is_right: bool) {
    let line = ["mcm", "migrate-classes"].iter().chain(flags);
    assert_eq!(Cli::try_parse_from(line).is_ok(), is_right);
}

#[test]
fn references_of_every_version_change() {
    let text = "\
apiVersion: machine.sapcloud.io/v1beta1
kind: MachineDeployment
metadata: {name: d}
spec: {template: {spec: {classRef: {kind: AWSMachineClass, name: c}}}}
---
apiVersion: machine.sapcloud.io/v1beta1
kind: Machine
metadata: {name: m}
spec: {classRef: {kind: AWSMachineClass, name: c}}
";
    let (objects, _) = converted(text, &[]).expect("they convert");
    assert_eq!(objects[0]["spec"]["template"]["spec"]["classRef"], json!({"kind": "MachineClass", "name": "c"}));
    assert_eq!(objects[1]["spec"]["classRef"], json!({"kind": "MachineClass", "name": "c"}));
}

#[test]
fn items_without_kind_are_of_the_kind_of_their_list() {
    let (mut classes, _) = converted(SAMPLES, &["EquinixMetal"]).expect("they convert");
    let expected = classes.remove(1);
    let mut item = parse_documents("file", SAMPLES).expect("YAML").remove(1).value;
    let fields = item.as_object_mut().expect("a class");
    let (version, kind) = (fields.remove("apiVersion"), fields.remove("kind").expect("a kind"));
    let kind = format!("{}List", kind.as_str().expect("a text"));
    let list = json!({"apiVersion": version, "kind": kind, "items": [item]});
    let machines = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineList",
        "items": [{"metadata": {"name": "m"}, "spec": {"class": {"kind": "AWSMachineClass", "name": "c"}}}]});
    let (lists, _) = converted(&list.to_string(), &[]).expect("it converts");
    assert_eq!((&lists[0]["kind"], &lists[0]["items"]), (&json!("List"), &json!([expected])));
    let (lists, _) = converted(&machines.to_string(), &[]).expect("it converts");
    assert_eq!(lists[0]["items"][0]["spec"]["class"]["kind"], "MachineClass");
}

#[test]
fn classes_with_generated_names_are_not_the_same_class() {
    let mut class = parse_documents("file", SAMPLES).expect("YAML").remove(1).value;
    class["metadata"] = json!({"generateName": "pool-", "namespace": "default"});
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [class, class]});
    let (lists, _) = converted(&list.to_string(), &[]).expect("they convert");
    assert_eq!(lists[0]["items"][1]["metadata"]["generateName"], "pool-");
}
