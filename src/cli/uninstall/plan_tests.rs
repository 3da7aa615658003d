use kube::api::DynamicObject;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::cli::{
    cluster_objects::{DEFINITIONS, MUTATING, Resource, SECRETS},
    webhook_scope::WebhookScope,
};

fn place(namespace: &str) -> Place {
    Place { namespace: namespace.to_owned(), service_namespace: namespace.to_owned(), scope: WebhookScope::Cluster }
}

fn found(resource: Resource, object: Value) -> Found {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    Found { resource, object }
}

fn webhooks(client: &Value) -> Found {
    found(MUTATING, json!({"metadata": {"name": "c"}, "webhooks": [{"clientConfig": client}]}))
}

fn service(namespace: &str) -> Value {
    json!({"service": {"namespace": namespace, "name": "machine-controller-manager"}})
}

fn machine(name: &str, node: &str) -> Found {
    let metadata =
        json!({"name": name, "namespace": "mcm", "labels": {"node": node}, "finalizers": [finalizer::MACHINE]});
    found(Resource::of_kind(Kind::Machine), json!({"metadata": metadata, "spec": {"providerID": "id"}}))
}

fn node(name: &str) -> Found {
    found(NODES, json!({"metadata": {"name": name, "finalizers": [finalizer::NODE]}}))
}

fn certificate(bundle: &str) -> Found {
    let metadata = json!({"name": "certs", "namespace": "mcm"});
    found(SECRETS, json!({"metadata": metadata, "data": {"ca.crt": bundle}}))
}

fn texts(actions: &[Action]) -> Vec<String> {
    actions.iter().map(Action::text).collect()
}

/// Whether the manager of namespace `mcm` would delete the webhook configuration.
#[rstest]
#[case::its_service_is_here(service("mcm"), Inventory::default(), true)]
#[case::its_service_is_elsewhere(service("other"), Inventory::default(), false)]
#[case::elsewhere_although_a_manager_is_installed_here(
    service("other"), Inventory { is_installed: true, ..Inventory::default() }, false)]
#[case::an_address_with_our_certificate(
    json!({"url": "https://x", "caBundle": "Q0E="}),
    Inventory { certificate: Some(certificate("Q0E=")), neighbours: ["other".to_owned()].into(), ..Inventory::default() },
    true)]
#[case::an_address_with_another_certificate(
    json!({"url": "https://x", "caBundle": "Q0E="}),
    Inventory { certificate: Some(certificate("QQ==")), neighbours: ["other".to_owned()].into(), ..Inventory::default() },
    false)]
#[case::an_address_and_no_other_manager(
    json!({"url": "https://x"}), Inventory { is_installed: true, ..Inventory::default() }, true)]
#[case::an_address_and_no_manager_here(json!({"url": "https://x"}), Inventory::default(), false)]
fn only_registrations_of_this_manager_go(#[case] client: Value, #[case] inventory: Inventory, #[case] goes: bool) {
    let inventory = Inventory { registrations: vec![webhooks(&client)], ..inventory };
    match plan(&inventory, &place("mcm"), NodesIn::Control) {
        Ok(plan) => assert_eq!(plan.registrations.len(), usize::from(goes), "{:?}", plan.remaining),
        Err(obstacle) => assert!(!goes && matches!(obstacle, Obstacle::WrongNamespace { .. }), "{obstacle}"),
    }
}

/// Two managers with one namespace for their pods: the objects that the second one needs stay.
#[rstest]
#[case::webhooks_of_all_namespaces(WebhookScope::Cluster, &[])]
#[case::webhooks_of_one(WebhookScope::Namespace, &["delete MutatingWebhookConfiguration c"])]
fn objects_of_another_manager_of_the_service_namespace_stay(#[case] scope: WebhookScope, #[case] goes: &[&str]) {
    let inventory = Inventory {
        registrations: vec![webhooks(&service("pods"))],
        definitions: vec![definition(&["v1alpha1"], "pods")],
        guard: vec![found(POLICIES, json!({"metadata": {"name": "storage"}}))],
        objects: vec![machine("m", "")],
        certificate: Some(certificate("Q0E=")),
        neighbours: ["other".to_owned()].into(),
        sharing: ["other".to_owned()].into(),
        ..Inventory::default()
    };
    let place = Place { service_namespace: "pods".to_owned(), scope, ..place("mcm") };
    let shared = plan(&inventory, &place, NodesIn::Nowhere).unwrap();
    assert_eq!(texts(&shared.registrations), goes);
    assert_eq!(texts(&shared.after_stop), ["remove the finalizer from Machine m"]);
    for left in
        ["conversion webhook of machines", "ValidatingAdmissionPolicy storage: ", "Secret certs: managers of other"]
    {
        assert!(shared.remaining.iter().any(|line| line.starts_with(left)), "{left} missing in {:?}", shared.remaining);
    }
    let alone = Inventory { neighbours: BTreeSet::new(), sharing: BTreeSet::new(), ..inventory };
    let alone = plan(&alone, &place, NodesIn::Nowhere).unwrap();
    assert_eq!((alone.registrations.len(), alone.after_stop.len(), alone.remaining.len()), (3, 2, 0));
}

/// An earlier run removed the conversion only.
#[rstest]
#[case::nothing_is_stored_in_it(&[], &service("mcm"), true)]
#[case::something_may_be(&["machines.machine.sapcloud.io"], &service("mcm"), false)]
#[case::of_another_manager(&[], &service("other"), false)]
fn the_guard_of_an_interrupted_run_is_deleted_or_listed(
    #[case] hollow: &[&str],
    #[case] client: &Value,
    #[case] goes: bool,
) {
    let inventory = Inventory {
        registrations: vec![webhooks(client)],
        guard: vec![found(POLICIES, json!({"metadata": {"name": "storage"}}))],
        hollow: hollow.iter().map(|&name| name.to_owned()).collect(),
        objects: vec![machine("m", "")],
        ..Inventory::default()
    };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Nowhere).unwrap();
    let deleted = texts(&plan.registrations).contains(&"delete ValidatingAdmissionPolicy storage".to_owned());
    let named = plan.remaining.iter().any(|line| line.starts_with("ValidatingAdmissionPolicy storage: "));
    assert_eq!((deleted, named), (goes, !goes), "{:?}", plan.remaining);
}

#[test]
fn a_mistyped_namespace_is_refused_with_the_right_one() {
    let inventory = Inventory {
        registrations: vec![webhooks(&service("mcm"))],
        nodes: Some(vec![node("n")]),
        ..Inventory::default()
    };
    let refused = plan(&inventory, &place("wrong"), NodesIn::Control).unwrap_err().to_string();
    for words in ["namespace wrong", "a Service of namespace mcm", "Correct --namespace"] {
        assert!(refused.contains(words), "{words:?} missing in {refused}");
    }
}

#[test]
fn objects_of_another_manager_stay_and_are_listed() {
    let inventory = Inventory {
        registrations: vec![webhooks(&service("other"))],
        objects: vec![machine("m", "")],
        nodes: Some(vec![node("theirs")]),
        ..Inventory::default()
    };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Control).unwrap();
    assert!(plan.registrations.is_empty());
    assert_eq!(texts(&plan.after_stop), ["remove the finalizer from Machine m"]);
    assert!(
        plan.remaining[0].contains("MutatingWebhookConfiguration c: it calls a Service of namespace other"),
        "{:?}",
        plan.remaining
    );
    assert!(plan.remaining[1].ends_with("no machine of namespace mcm names: theirs"), "{:?}", plan.remaining);
}

/// Machines of the namespace name the Nodes `n1` and `n2`, but not `theirs`.
#[rstest]
#[case::in_this_cluster(NodesIn::Control, Some(vec!["n1", "theirs"]), Ok(vec!["n1"]))]
#[case::not_in_this_cluster(NodesIn::Control, Some(vec!["theirs"]), Err("n1, n2"))]
#[case::in_a_named_cluster(NodesIn::Another, Some(vec!["n2", "theirs"]), Ok(vec!["n2"]))]
#[case::gone_from_a_named_cluster(NodesIn::Another, Some(vec!["theirs"]), Ok(vec![]))]
#[case::no_node_may_be_changed(NodesIn::Nowhere, None, Ok(vec![]))]
fn only_nodes_that_machines_of_the_namespace_name_lose_the_finalizer(
    #[case] nodes_in: NodesIn,
    #[case] nodes: Option<Vec<&str>>,
    #[case] expected: Result<Vec<&str>, &str>,
) {
    let inventory = Inventory {
        objects: vec![machine("m1", "n1"), machine("m2", "n2")],
        nodes: nodes.map(|names| names.iter().map(|name| node(name)).collect()),
        ..Inventory::default()
    };
    match (plan(&inventory, &place("mcm"), nodes_in), expected) {
        (Ok(plan), Ok(expected)) => {
            let released = plan.after_stop.iter().filter(|action| is_in_target(action));
            assert_eq!(released.map(|action| action.found().name()).collect::<Vec<_>>(), expected);
            assert_eq!(plan.remaining.len(), 1, "{:?}", plan.remaining);
        }
        (Err(obstacle), Err(named)) => {
            let text = obstacle.to_string();
            assert!(text.contains(named) && text.contains("--target-kubeconfig FILE"), "{text}");
        }
        (found, _) => panic!("{found:?}"),
    }
}

fn policy(account_of: &str) -> Vec<Found> {
    let expression =
        format!("!(request.userInfo.username in ['system:serviceaccount:{account_of}:machine-controller-manager'])");
    let conditions = json!([{"name": "not-our-controllers", "expression": expression}]);
    vec![
        found(BINDINGS, json!({"metadata": {"name": "p"}, "spec": {"policyName": "p"}})),
        found(POLICIES, json!({"metadata": {"name": "p"}, "spec": {"matchConditions": conditions}})),
    ]
}

#[rstest]
#[case::ours("mcm", &["delete ValidatingAdmissionPolicyBinding p", "delete ValidatingAdmissionPolicy p"])]
#[case::of_another_manager("other", &[])]
fn policies_go_with_their_manager(#[case] account_of: &str, #[case] expected: &[&str]) {
    let inventory =
        Inventory { registrations: policy(account_of), objects: vec![machine("m", "")], ..Inventory::default() };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Nowhere).unwrap();
    assert_eq!(texts(&plan.registrations), expected);
    assert_eq!(plan.remaining.len(), 2 - expected.len());
}

fn definition(stored: &[&str], namespace: &str) -> Found {
    let version = |name: &str| json!({"name": name, "served": true});
    found(
        DEFINITIONS,
        json!({
            "metadata": {"name": "machines.machine.sapcloud.io"},
            "spec": {
                "versions": [version("v1alpha1"), version("v1beta1")],
                "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": service(namespace)}},
            },
            "status": {"storedVersions": stored},
        }),
    )
}

#[test]
fn v1beta1_stays_served_while_objects_are_stored_in_it_or_another_manager_converts() {
    let with = |definition| Inventory {
        definitions: vec![definition],
        guard: vec![found(POLICIES, json!({"metadata": {"name": "storage"}}))],
        is_installed: true,
        ..Inventory::default()
    };
    let plan_of = |inventory| plan(&inventory, &place("mcm"), NodesIn::Control);
    let goes = texts(&plan_of(with(definition(&["v1alpha1"], "mcm"))).unwrap().registrations);
    assert_eq!(goes.len(), 2, "{goes:?}");
    assert_eq!(goes[1], "delete ValidatingAdmissionPolicy storage");
    let stored = plan_of(with(definition(&["v1alpha1", "v1beta1"], "mcm"))).unwrap_err();
    assert!(stored.to_string().contains("migrate-storage --to v1alpha1"), "{stored}");
    let elsewhere = plan_of(with(definition(&["v1beta1"], "other"))).unwrap_err();
    assert!(elsewhere.to_string().contains("conversion webhook of machines.machine.sapcloud.io"), "{elsewhere}");
}

#[test]
fn remaining_objects_are_listed_and_each_right_is_checked_once() {
    let inventory = Inventory {
        objects: vec![machine("m1", ""), machine("m2", "")],
        certificate: Some(certificate("Q0E=")),
        remaining: vec![("Lease", vec!["mcm/machine-controller".to_owned()])],
        ..Inventory::default()
    };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Control).unwrap();
    assert_eq!(plan.remaining, ["Lease mcm/machine-controller"]);
    assert_eq!(plan.virtual_machines, ["m1", "m2"]);
    let checked: Vec<_> = rights(&plan).iter().map(|action| (action.verb(), action.found().resource.plural)).collect();
    assert_eq!(checked, [("patch", "machines"), ("delete", "secrets")]);
}
