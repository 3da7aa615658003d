use rstest::rstest;

use super::*;
use crate::cli::plugin::views::{Named, Orphan};

/// The drivers of a program for one provider.
struct OneProvider;

impl Providers for OneProvider {
    fn names(&self) -> Vec<&str> {
        vec!["virtual"]
    }

    fn coverage(&self) -> machine_api::validation::Coverage {
        machine_api::validation::Coverage::Some
    }

    fn serves(&self, provider: &str) -> bool {
        provider == "virtual"
    }

    fn check(&self, _provider: &str, _class: &kube_values::json::Json<'_>, _found: &mut kube_values::field::Findings) {}
}

fn object(kind: Kind, name: &str, further: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": kind.as_str(), "metadata": {"name": name, "namespace": "ns"},
    });
    json_patch::merge(&mut object, further);
    object
}

fn class(provider: &str, secret: &str) -> Value {
    object(
        Kind::MachineClass,
        "c",
        &json!({"provider": provider, "providerSpec": {}, "secretRef": {"name": secret, "namespace": "ns"}}),
    )
}

fn machine(name: &str, phase: &str, node: &str) -> Value {
    object(
        Kind::Machine,
        name,
        &json!({
            "metadata": {"labels": {"node": node}},
            "spec": {"class": {"kind": "MachineClass", "name": "c"}},
            "status": {"currentStatus": {"phase": phase}},
        }),
    )
}

fn named(name: &str, finalizers: &[&str]) -> Value {
    json!({"metadata": {"name": name, "finalizers": finalizers}})
}

/// A fleet in which everything belongs together.
fn whole() -> Fleet {
    Fleet {
        namespace: "ns".to_owned(),
        classes: List::All(vec![class("virtual", "s")]),
        machines: List::All(vec![machine("m", "Running", "n")]),
        sets: List::All(vec![]),
        deployments: List::All(vec![]),
        secrets: List::All(vec![named("s", &[finalizer::SECRET]), named("other", &[])]),
        nodes: Some(List::All(vec![named("n", &[finalizer::NODE]), named("of-another", &[])])),
        vms: Some(Ok(vec![vm("Owned", None)])),
    }
}

fn vm(state: &str, orphan: Option<Orphan>) -> Vm {
    Vm {
        metadata: Named { name: "v".to_owned(), ..Named::default() },
        provider_id: "virtual:///1".to_owned(),
        state: state.to_owned(),
        machine_ref: Some(Named { name: "m".to_owned(), ..Named::default() }),
        orphan,
    }
}

fn orphan(goes: bool) -> Orphan {
    let at = jiff::Timestamp::UNIX_EPOCH;
    Orphan { since: at, will_be_deleted_after: goes.then_some(at), reason: String::new() }
}

#[test]
fn pk_105_a_fleet_in_which_everything_belongs_together_is_fine() {
    let found = whole().findings(&OneProvider);
    assert_eq!(found.len(), 7, "one line for each check: {found:#?}");
    assert!(found.iter().all(|finding| finding.health == Health::Fine && finding.command.is_none()), "{found:#?}");
}

#[rstest]
#[case::a_misspelt_provider(
    Fleet { classes: List::All(vec![class("vritual", "s")]), machines: List::All(vec![]), nodes: None, ..whole() },
    "MachineClass ns/c", "did you mean \"virtual\"?", "patch machineclass c --type=merge -p '{\"provider\":\"virtual\"}'")]
#[case::a_provider_without_driver(
    Fleet { classes: List::All(vec![class("metal", "s")]), machines: List::All(vec![]), nodes: None, ..whole() },
    "MachineClass ns/c", "no driver for its provider \"metal\"", "edit machineclass c")]
#[case::a_missing_secret(
    Fleet { secrets: List::All(vec![]), ..whole() },
    "MachineClass ns/c", "its Secret s (secretRef) does not exist", "create secret generic s --from-file=userData=FILE")]
#[case::an_object_that_is_refused(
    Fleet {
        machines: List::All(vec![object(Kind::Machine, "m", &json!({"spec": {"class": {"kind": "MachineClass", "name": "c"},
            "creationTimeout": "-1s"}}))]),
        nodes: None,
        ..whole()
    },
    "Machine ns/m", "today's rules would refuse it: spec.creationTimeout", "kubectl -n ns edit machine m")]
#[case::a_machine_of_an_old_kind(
    Fleet {
        machines: List::All(vec![object(Kind::Machine, "m", &json!({"spec": {"class": {"kind": "AWSMachineClass", "name": "c"}}}))]),
        nodes: None,
        ..whole()
    },
    "Machine ns/m", "spec.class.kind: Unsupported value", "mcm migrate-classes --namespace ns")]
#[case::a_finalizer_on_a_secret(
    Fleet { secrets: List::All(vec![named("s", &[]), named("old", &["a", finalizer::SECRET])]), ..whole() },
    "Secret ns/old", "no class names it", "/metadata/finalizers/1")]
#[case::a_finalizer_on_a_node(
    Fleet { nodes: Some(List::All(vec![named("n", &[]), named("old", &[finalizer::NODE])])), ..whole() },
    "Node old", "no machine of namespace ns names it", "kubectl patch node old --type=json")]
#[case::a_machine_without_node(
    Fleet { nodes: Some(List::All(vec![])), ..whole() },
    "Machine ns/m", "is Running, and its Node n does not exist", "mcm replace machine/m --namespace ns")]
#[case::a_vm_that_is_not_listed(
    Fleet { vms: Some(Ok(vec![vm("Missing", None)])), ..whole() },
    "VM virtual:///1", "the provider does not list the VM of machine m", "mcm replace machine/m --namespace ns")]
#[case::a_vm_without_machine(
    Fleet { vms: Some(Ok(vec![vm("Orphan", Some(orphan(false)))])), ..whole() },
    "VM virtual:///1", "will not be deleted", "kubectl -n ns get providermachines v -o yaml")]
fn pk_105_what_does_not_belong_together_is_found(
    #[case] fleet: Fleet,
    #[case] subject: &str,
    #[case] words: &str,
    #[case] command: &str,
) {
    let all = fleet.findings(&OneProvider);
    let bad: Vec<&Finding> = all.iter().filter(|finding| finding.health != Health::Fine).collect();
    let [found] = bad.as_slice() else { panic!("{bad:#?}") };
    assert!(found.health == Health::Bad && found.subject == subject && found.message.contains(words), "{found:?}");
    assert!(found.command.as_deref().unwrap_or_default().contains(command), "{found:?}");
}

#[rstest]
#[case::another_program_serves_the_class(Fleet { classes: List::All(vec![class("metal", "s")]), ..whole() })]
#[case::a_secret_of_another_namespace(Fleet {
    classes: List::All(vec![object(Kind::MachineClass, "c", &json!({"provider": "virtual", "providerSpec": {},
        "secretRef": {"name": "far", "namespace": "away"}}))]),
    secrets: List::All(vec![]),
    ..whole()
})]
#[case::a_machine_that_has_not_joined(Fleet { machines: List::All(vec![machine("m", "Pending", "n")]), nodes: Some(List::All(vec![])), ..whole() })]
#[case::an_orphan_that_will_be_deleted(Fleet { vms: Some(Ok(vec![vm("Orphan", Some(orphan(true)))])), ..whole() })]
fn what_the_manager_does_itself_is_fine(#[case] fleet: Fleet) {
    let found = fleet.findings(&OneProvider);
    assert!(found.iter().all(|finding| finding.health == Health::Fine), "{found:#?}");
}

#[test]
fn pk_106_what_can_not_be_listed_is_unknown() {
    let no = || List::Refused("lacks the right to list it".to_owned());
    let fleet = Fleet {
        namespace: "ns".to_owned(),
        classes: no(),
        machines: no(),
        sets: no(),
        deployments: no(),
        secrets: no(),
        nodes: Some(no()),
        vms: Some(Err("lacks the right to list it".to_owned())),
    };
    for found in fleet.findings(&OneProvider) {
        assert_eq!((found.health, found.message.as_str()), (Health::Unknown, "lacks the right to list it"));
    }
}

#[test]
fn only_the_first_of_many_objects_are_reported() {
    let machines = (0..9).map(|number| machine(&format!("m{number}"), "Running", &format!("n{number}"))).collect();
    let fleet = Fleet { machines: List::All(machines), nodes: Some(List::All(vec![])), ..whole() };
    let found = fleet.machines_have_nodes();
    assert_eq!(found.len(), REPORTED + 1);
    assert_eq!(found.last().unwrap().message, "4 more have the same problem");
}
