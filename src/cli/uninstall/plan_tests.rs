use kube::api::DynamicObject;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    super::inventory::{DEFINITIONS, MUTATING, Resource},
    *,
};
use crate::cli::webhook_scope::WebhookScope;

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
    found(super::super::inventory::SECRETS, json!({"metadata": metadata, "data": {"ca.crt": bundle}}))
}

fn texts(actions: &[Action]) -> Vec<String> {
    actions.iter().map(Action::text).collect()
}

/// Whether the webhook configuration would go, as seen from namespace `mcm`.
#[rstest]
#[case::its_service_is_here(service("mcm"), Inventory::default(), true)]
#[case::its_service_is_elsewhere(service("other"), Inventory::default(), false)]
#[case::elsewhere_although_a_manager_is_at_home_here(
    service("other"), Inventory { has_a_home: true, ..Inventory::default() }, false)]
#[case::an_address_with_our_certificate(
    json!({"url": "https://x", "caBundle": "Q0E="}),
    Inventory { certificate: Some(certificate("Q0E=")), neighbours: ["other".to_owned()].into(), ..Inventory::default() },
    true)]
#[case::an_address_with_another_certificate(
    json!({"url": "https://x", "caBundle": "Q0E="}),
    Inventory { certificate: Some(certificate("QQ==")), neighbours: ["other".to_owned()].into(), ..Inventory::default() },
    false)]
#[case::an_address_and_nobody_else(
    json!({"url": "https://x"}), Inventory { has_a_home: true, ..Inventory::default() }, true)]
#[case::an_address_and_nobody_here(json!({"url": "https://x"}), Inventory::default(), false)]
fn only_registrations_of_this_manager_go(#[case] client: Value, #[case] inventory: Inventory, #[case] goes: bool) {
    let inventory = Inventory { registrations: vec![webhooks(&client)], ..inventory };
    match plan(&inventory, &place("mcm"), NodesIn::Control) {
        Ok(plan) => assert_eq!(plan.registrations.len(), usize::from(goes), "{:?}", plan.left),
        Err(obstacle) => assert!(!goes && matches!(obstacle, Obstacle::WrongNamespace { .. }), "{obstacle}"),
    }
}

/// Two managers, one namespace for their pods: what one of them leaves the other needs.
#[rstest]
#[case::webhooks_of_all_namespaces(WebhookScope::Cluster, &[])]
#[case::webhooks_of_one(WebhookScope::Namespace, &["delete MutatingWebhookConfiguration c"])]
fn what_another_manager_of_the_service_namespace_needs_stays(#[case] scope: WebhookScope, #[case] goes: &[&str]) {
    let inventory = Inventory {
        registrations: vec![webhooks(&service("pods"))],
        definitions: vec![definition(&["v1alpha1"], "pods")],
        guard: vec![found(POLICIES, json!({"metadata": {"name": "storage"}}))],
        objects: vec![machine("m", "")],
        certificate: Some(certificate("Q0E=")),
        neighbours: ["other".to_owned()].into(),
        guests: ["other".to_owned()].into(),
        ..Inventory::default()
    };
    let place = Place { service_namespace: "pods".to_owned(), scope, ..place("mcm") };
    let shared = plan(&inventory, &place, NodesIn::Nowhere).unwrap();
    assert_eq!(texts(&shared.registrations), goes);
    assert_eq!(texts(&shared.remains), ["take the finalizer off Machine m"]);
    for left in
        ["conversion webhook of machines", "ValidatingAdmissionPolicy storage: ", "Secret certs: managers of other"]
    {
        assert!(shared.left.iter().any(|line| line.starts_with(left)), "{left} missing in {:?}", shared.left);
    }
    let alone = Inventory { neighbours: BTreeSet::new(), guests: BTreeSet::new(), ..inventory };
    let alone = plan(&alone, &place, NodesIn::Nowhere).unwrap();
    assert_eq!((alone.registrations.len(), alone.remains.len(), alone.left.len()), (3, 2, 0));
}

/// The run before took the conversion off and no more.
#[rstest]
#[case::nothing_is_stored_in_it(&[], &service("mcm"), true)]
#[case::something_may_be(&["machines.machine.sapcloud.io"], &service("mcm"), false)]
#[case::of_another_manager(&[], &service("other"), false)]
fn the_guard_that_an_interrupted_run_left_goes_or_is_named(
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
    let named = plan.left.iter().any(|line| line.starts_with("ValidatingAdmissionPolicy storage: "));
    assert_eq!((deleted, named), (goes, !goes), "{:?}", plan.left);
}

#[test]
fn a_mistyped_namespace_is_refused_and_names_the_right_one() {
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
fn what_is_of_another_manager_is_left_and_named_while_the_rest_goes() {
    let inventory = Inventory {
        registrations: vec![webhooks(&service("other"))],
        objects: vec![machine("m", "")],
        nodes: Some(vec![node("theirs")]),
        ..Inventory::default()
    };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Control).unwrap();
    assert!(plan.registrations.is_empty());
    assert_eq!(texts(&plan.remains), ["take the finalizer off Machine m"]);
    assert!(
        plan.left[0].contains("MutatingWebhookConfiguration c: it calls a Service of namespace other"),
        "{:?}",
        plan.left
    );
    assert!(plan.left[1].ends_with("no machine of namespace mcm names: theirs"), "{:?}", plan.left);
}

/// Nodes `n1` and `n2` are named by machines of the namespace, `theirs` is not.
#[rstest]
#[case::in_this_cluster(NodesIn::Control, Some(vec!["n1", "theirs"]), Ok(vec!["n1"]))]
#[case::not_in_this_cluster(NodesIn::Control, Some(vec!["theirs"]), Err("n1, n2"))]
#[case::in_a_named_cluster(NodesIn::Another, Some(vec!["n2", "theirs"]), Ok(vec!["n2"]))]
#[case::gone_from_a_named_cluster(NodesIn::Another, Some(vec!["theirs"]), Ok(vec![]))]
#[case::not_to_be_touched(NodesIn::Nowhere, None, Ok(vec![]))]
fn only_nodes_that_machines_of_the_namespace_name_are_let_go(
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
            let released = plan.remains.iter().filter(|action| is_in_target(action));
            assert_eq!(released.map(|action| action.found().name()).collect::<Vec<_>>(), expected);
            assert_eq!(plan.left.len(), 1, "{:?}", plan.left);
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
    assert_eq!(plan.left.len(), 2 - expected.len());
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
fn v1beta1_is_unserved_only_when_nothing_is_stored_in_it_and_the_converter_is_ours() {
    let with = |definition| Inventory {
        definitions: vec![definition],
        guard: vec![found(POLICIES, json!({"metadata": {"name": "storage"}}))],
        has_a_home: true,
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
fn what_stays_is_named_and_each_right_is_asked_for_once() {
    let inventory = Inventory {
        objects: vec![machine("m1", ""), machine("m2", "")],
        certificate: Some(certificate("Q0E=")),
        stays: vec![("Lease", vec!["mcm/machine-controller".to_owned()])],
        ..Inventory::default()
    };
    let plan = plan(&inventory, &place("mcm"), NodesIn::Control).unwrap();
    assert_eq!(plan.left, ["Lease mcm/machine-controller"]);
    assert_eq!(plan.virtual_machines, ["m1", "m2"]);
    let asked: Vec<_> = rights(&plan).iter().map(|action| (action.verb(), action.found().resource.plural)).collect();
    assert_eq!(asked, [("patch", "machines"), ("delete", "secrets")]);
}
