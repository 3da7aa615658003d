//! Rules for classes, references and deletions, in addition to the cases of spec/api-and-admission §12.1. Those are in
//! `tests/fixtures/admission-cases.yaml` and run in `cli/validate`.

#![allow(clippy::needless_pass_by_value, reason = "table rows build the values they pass")]

use rstest::rstest;
use serde_json::{Value, json};

use super::{
    ClassFact, Coverage, Holder, HolderFact,
    Kind::{Machine, MachineClass, MachineDeployment, MachineSet},
    Node, Providers, References, SecretFact, SelectingFact,
    fixtures::{Question, create, delete, update},
};
use kube_values::{
    field::{FieldPath, Findings},
    json::Json,
};

/// Two drivers. The driver of AWS requires an `ami`.
struct TwoDrivers(Coverage);

impl Providers for TwoDrivers {
    fn names(&self) -> Vec<&str> {
        vec!["AWS", "virtual"]
    }

    fn coverage(&self) -> Coverage {
        self.0
    }

    fn check(&self, provider: &str, class: &Json<'_>, found: &mut Findings) {
        if provider == "AWS" && class.get("providerSpec").and_then(|spec| spec.get("ami")).is_none() {
            found.required(super::CLS_6.id, FieldPath::new("providerSpec.ami"), "AMI is required");
        }
    }
}

fn capacity(fields: Value) -> Value {
    json!({"nodeTemplate": {"capacity": fields}})
}

#[rstest]
#[case::the_base_is_fine(json!({}), &[], &[])]
#[case::no_capacity(json!({"nodeTemplate": {"capacity": null}}), &["nodeTemplate.capacity[cpu]: <incomplete>", "nodeTemplate.capacity[gpu]: <incomplete>", "nodeTemplate.capacity[memory]: <incomplete>"], &[])]
#[case::a_list_as_amount(capacity(json!({"cpu": []})), &["nodeTemplate.capacity[cpu]: Invalid value: []: quantities must match…"], &[])]
#[case::a_secret_elsewhere(json!({"secretRef": {"name": "s", "namespace": "x"}}), &[], &["secretRef.namespace: secrets outside the watched namespace \"default\" are not seen"])]
#[case::an_unknown_architecture(json!({"nodeTemplate": {"architecture": "riscv"}}), &[], &["nodeTemplate.architecture: unknown architecture \"riscv\""])]
#[case::malformed(json!({"providerSpec": "x", "nodeTemplate": {"capacity": [], "zone": 5}}), &["providerSpec: Invalid value: \"x\": must be an object", "nodeTemplate.capacity: Invalid value: []: must be an object", "nodeTemplate.zone: Invalid value: 5: must be a string"], &[])]
fn a_new_class(#[case] patch: Value, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    create(MachineClass, patch).providers(TwoDrivers(Coverage::All)).gives(denials, warnings);
}

#[rstest]
#[case::the_wrong_case(Coverage::Some, "aws", &["provider: Invalid value: \"aws\": did you mean \"AWS\"? Names of drivers are case-sensitive"], &[])]
#[case::gone(Coverage::Some, "Packet", &["provider: Invalid value: \"Packet\": this cloud exists no more"], &[])]
#[case::unknown(Coverage::Some, "OpenStack", &[], &["provider: no driver for provider \"OpenStack\" is registered here"])]
#[case::unknown_where_there_are_no_others(Coverage::All, "OpenStack",
    &["provider: Unsupported value: \"OpenStack\": supported values: \"AWS\", \"virtual\""], &[])]
fn a_provider_that_is_not_served(
    #[case] coverage: Coverage,
    #[case] provider: &str,
    #[case] denials: &[&str],
    #[case] warnings: &[&str],
) {
    create(MachineClass, json!({"provider": provider})).providers(TwoDrivers(coverage)).gives(denials, warnings);
}

/// Providers of which an external driver claims one whose cloud has ended its service.
struct WithPacket;

impl Providers for WithPacket {
    fn names(&self) -> Vec<&str> {
        vec!["AWS", "Packet"]
    }

    fn coverage(&self) -> Coverage {
        Coverage::Some
    }

    fn check(&self, _: &str, _: &Json<'_>, _: &mut Findings) {}
}

#[test]
fn a_provider_whose_cloud_exists_no_more_is_served_by_a_driver_that_claims_it() {
    let class = |provider: &str| create(MachineClass, json!({"provider": provider}));
    class("Packet").providers(WithPacket).gives(&[], &[]);
    let refusal = "provider: Invalid value: \"EquinixMetal\": this cloud exists no more";
    class("EquinixMetal").providers(WithPacket).gives(&[refusal], &[]);
}

/// A stored class keeps working, even if its provider would be refused now.
#[test]
fn a_stored_class_of_a_misspelt_provider_can_be_changed() {
    let old = json!({"provider": "aws"});
    update(MachineClass, old.clone(), json!({"provider": "aws", "metadata": {"labels": {"a": "b"}}}))
        .providers(TwoDrivers(Coverage::Some))
        .gives(&[], &["existing problem: provider: Invalid value: \"aws\": did you mean \"AWS\"? Names of drivers are case-sensitive"]);
}

#[test]
fn v135_a_terminating_class_can_be_removed() {
    let metadata = |finalizers: Value| json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers});
    let old =
        json!({"metadata": metadata(json!(["machine.sapcloud.io/machine-controller-manager"])), "provider": null});
    update(MachineClass, old, json!({"metadata": metadata(json!([])), "providerSpec": null})).gives(&[], &[]);
}

#[test]
fn an_update_of_a_class_is_ratcheted_for_the_drivers_rules_too() {
    let aws = |region: &str| json!({"provider": "AWS", "nodeTemplate": {"region": region}});
    update(MachineClass, aws("r"), aws("s"))
        .providers(TwoDrivers(Coverage::All))
        .gives(&[], &["existing problem: providerSpec.ami: Required value: AMI is required"]);
}

/// Two machines use class `c1`, class `gone` does not exist, and machine `m0` has the provider id `aws:///r/i-1`.
struct Known;

impl References for Known {
    fn machine_class(&self, _namespace: &str, name: &str) -> Option<ClassFact> {
        Some(match name {
            "c1" => ClassFact::Present,
            "leaving" => ClassFact::Terminating,
            _ => ClassFact::Missing,
        })
    }

    fn holder_of_provider_id(&self, _namespace: &str, provider_id: &str, except: &str) -> Option<Option<HolderFact>> {
        let holder = Holder { name: "m0".to_owned(), provider_id: "aws:///r/i-1".to_owned() };
        let fact = match provider_id {
            "aws:///r/i-1" | "aws:///ra/i-1" => Some(HolderFact::Holds(holder)),
            "x:///i-1" => Some(HolderFact::MayHold(holder)),
            _ => None,
        };
        Some(fact.filter(|_| except != "m0"))
    }

    fn machines_of_class(&self, _namespace: &str, class: &str) -> Option<Vec<String>> {
        Some(if class == "c1" { vec!["m0".to_owned(), "m1".to_owned()] } else { Vec::new() })
    }

    fn machines_of(&self, _kind: super::Kind, _namespace: &str, _name: &str) -> Option<Vec<String>> {
        Some(vec!["m0".to_owned(), "m1".to_owned()])
    }

    fn selecting(&self, _namespace: &str, labels: Node<'_>) -> Option<Vec<SelectingFact>> {
        let fact = |kind, name: &str, is_controlled| SelectingFact { kind, name: name.to_owned(), is_controlled };
        let facts =
            vec![fact(MachineDeployment, "d0", false), fact(MachineSet, "s0", false), fact(MachineSet, "d0-1", true)];
        Some(if labels.get("shared").is_present() { facts } else { Vec::new() })
    }

    fn templates_of_class(&self, _namespace: &str, class: &str) -> Option<Vec<(super::Kind, String)>> {
        Some(if class == "named" { vec![(MachineDeployment, "d0".to_owned())] } else { Vec::new() })
    }

    fn secret(&self, _namespace: &str, name: &str) -> Option<SecretFact> {
        let holding = |keys: &[&str]| SecretFact::Holding(keys.iter().map(|key| (*key).to_owned()).collect());
        Some(match name {
            "s" => holding(&["userData"]),
            "bare" => holding(&["accessKeyID"]),
            _ => SecretFact::Missing,
        })
    }
}

fn class_named(name: &str) -> Value {
    json!({"spec": {"class": {"name": name}}})
}

/// A template with a label that other objects select too.
fn selecting_shared() -> Value {
    json!({"spec": {"template": {"metadata": {"labels": {"shared": "x"}}}}})
}

#[rstest]
#[case::a_class_that_leaves(create(Machine, class_named("leaving")), &[], &["spec.class.name: MachineClass \"leaving\" is being deleted"])]
#[case::mch_21_another_spelling(create(Machine, json!({"spec": {"providerID": "aws:///ra/i-1"}})), &["spec.providerID: Duplicate value: \"aws:///ra/i-1\": it is the instance of Machine \"m0\", spelled \"aws:///r/i-1\" there"], &[])]
#[case::mch_21_possibly_the_same_instance(create(Machine, json!({"spec": {"providerID": "x:///i-1"}})), &[], &["spec.providerID: may be the instance of Machine \"m0\""])]
#[case::mch_21_its_own(create(Machine, json!({"metadata": {"name": "m0"}, "spec": {"providerID": "aws:///ra/i-1"}})), &[], &[])]
#[case::a_class_that_was_unknown_before(update(Machine, class_named("nope"), json!({"metadata": {"labels": {"x": "y"}}, "spec": {"class": {"name": "nope"}}})), &[], &[])]
#[case::no_user_data(create(MachineClass, json!({"secretRef": {"name": "bare"}})), &[], &["secretRef: no userData found in the referenced secrets"])]
#[case::user_data_in_one_of_two(create(MachineClass, json!({"secretRef": {"name": "bare"}, "credentialsSecretRef": {"name": "s"}})), &[], &[])]
#[case::a_used_class_without_finalizer(delete(MachineClass, json!({"metadata": {"finalizers": null}})), &[], &["MachineClass is used by 2 machines (m0, m1) and has no finalizer: machines using it cannot be deleted afterwards"])]
#[case::a_deployment_is_deleted(delete(MachineDeployment, json!({})), &[], &["deletes 2 machines"])]
#[case::a_controlled_set_is_deleted(delete(MachineSet, json!({"metadata": {"ownerReferences": [{"kind": "MachineDeployment", "name": "d1", "controller": true}]}})), &[], &["deletes 2 machines", "will be created again by MachineDeployment \"d1\""])]
#[case::a_controlled_machine_is_deleted(delete(Machine, json!({"metadata": {"ownerReferences": [{"kind": "MachineSet", "name": "s1", "controller": true}]}})), &[], &["will be replaced by MachineSet \"s1\""])]
#[case::mch_26_a_set_adopts_it(create(Machine, json!({"metadata": {"labels": {"shared": "x"}}})), &[], &["metadata.labels: will be adopted by MachineSet \"s0\" and may be deleted to match its replicas"])]
#[case::mch_26_a_controlled_machine_is_not_adopted(create(Machine, json!({"metadata": {"labels": {"shared": "x"}, "ownerReferences": [{"kind": "MachineSet", "name": "s9", "controller": true}]}})), &[], &[])]
#[case::mch_26_it_was_so_before(update(Machine, json!({"metadata": {"labels": {"shared": "x"}}}), json!({"metadata": {"labels": {"shared": "x"}}, "spec": {"drainTimeout": "1m"}})), &[], &[])]
#[case::sel_8_two_deployments(create(MachineDeployment, selecting_shared()), &[], &["spec.selector: also selects machines of MachineDeployment \"d0\"", "spec.selector: also selects machines of MachineSet \"s0\""])]
#[case::sel_8_its_own_deployment(create(MachineSet, json!({"metadata": {"name": "s0", "ownerReferences": [{"kind": "MachineDeployment", "name": "d0", "controller": true}]}, "spec": selecting_shared()["spec"]})), &[], &[])]
#[case::sel_8_it_was_so_before(update(MachineDeployment, selecting_shared(), json!({"spec": {"replicas": 9, "template": selecting_shared()["spec"]["template"]}})), &[], &[])]
#[case::a_class_that_templates_name(delete(MachineClass, json!({"metadata": {"name": "named"}})), &[], &["MachineDeployment \"d0\" still refers to this class"])]
#[case::dependents_stay(delete(MachineSet, json!({})).orphaning(), &[], &["orphaned objects keep their finalizers and their virtual machines"])]
fn facts_about_other_objects(#[case] question: Question, #[case] denials: &[&str], #[case] warnings: &[&str]) {
    question.knowing(Known).gives(denials, warnings);
}

#[test]
fn a_driver_gets_a_v1beta1_class_in_the_shape_of_v1alpha1() {
    let class = json!({"metadata": {"name": "c1"}, "spec": {"provider": "AWS", "providerSpec": {}}});
    let policy = super::Policy::default();
    let found = super::validate(&super::ValidationRequest {
        kind: MachineClass,
        version: super::ApiVersion::V1beta1,
        change: super::Change::Create { new: &Json::from(&class) },
        namespace: "default",
        user: super::User::default(),
        policy: &policy,
        providers: &TwoDrivers(Coverage::All),
        references: &super::NoReferences,
    });
    let texts: Vec<_> = found.errors().map(ToString::to_string).collect();
    assert_eq!(texts, ["spec.providerSpec.ami: Required value: AMI is required"]);
}
