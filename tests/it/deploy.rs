//! The kustomize base of `deploy/`: it renders, applies to a real API server, and holds what the code generates.

use machine_controller_manager::cli::documents::parse_documents;
use serde_json::Value;

use crate::support::{Rig, cluster_object::text, manager::mcm};

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base");

#[test]
fn the_committed_rbac_is_what_the_code_generates() {
    let committed = std::fs::read_to_string(format!("{BASE}/rbac.yaml")).expect("readable");
    let generated = mcm(&["manifests", "rbac"]);
    assert_eq!(committed, generated, "run: cargo run -- manifests rbac > deploy/base/rbac.yaml");
}

#[test]
fn the_certificate_of_cert_manager_carries_the_name_that_api_servers_verify() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/certs/cert-manager.yaml");
    let yaml = std::fs::read_to_string(path).expect("readable");
    let service_yaml = std::fs::read_to_string(format!("{BASE}/service.yaml")).expect("readable");
    let service = parse_documents("service", &service_yaml).expect("YAML").remove(0).value;
    let wanted = format!("{}.{}.svc", text(&service, "/metadata/name"), text(&service, "/metadata/namespace"));
    let documents = parse_documents("certs", &yaml).expect("YAML");
    let serving = documents.iter().find(|document| document.value.pointer("/spec/dnsNames").is_some());
    let names = serving.expect("a certificate with names").value["spec"]["dnsNames"].clone();
    assert!(names.as_array().expect("a list").iter().any(|name| name == wanted.as_str()), "{names}");
}

#[tokio::test]
async fn the_base_applies_to_a_real_api_server() {
    let Some(rig) = Rig::own("deploy::the_base_applies_to_a_real_api_server").await else { return };
    let rendered = rig.kubectl(&["kustomize", BASE]).await.succeed();
    // Types first: what uses them is refused until they are served.
    rig.install_crds().await;
    rig.apply(&rendered).await.succeed();

    let objects: Vec<Value> =
        parse_documents("deploy/base", &rendered).expect("YAML").into_iter().map(|document| document.value).collect();
    let count = |kind: &str| objects.iter().filter(|object| text(object, "/kind") == kind).count();
    for kind in ["Namespace", "Deployment", "Service", "PodDisruptionBudget", "ServiceAccount"] {
        assert_eq!(count(kind), 1, "{kind}");
    }
    assert_eq!(count("CustomResourceDefinition"), 4);
    assert_eq!(count("ValidatingWebhookConfiguration") + count("MutatingWebhookConfiguration"), 2);
    assert!(count("FlowSchema") > 0 && count("PriorityLevelConfiguration") > 0);
}

#[tokio::test]
async fn the_service_account_may_do_its_work_and_no_more() {
    let Some(rig) = Rig::shared("deploy::the_service_account_may_do_its_work").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("rbac").await;
    let rbac = mcm(&["manifests", "rbac", "--namespace", &namespace.name]);
    rig.apply(&rbac).await.succeed();
    let user = format!("system:serviceaccount:{}:machine-controller-manager", namespace.name);
    for (verb, resource, place, wanted) in [
        ("patch", "machines.machine.sapcloud.io/status", namespace.name.as_str(), "yes"),
        ("create", "leases.coordination.k8s.io", &namespace.name, "yes"),
        ("create", "pods/eviction", "any", "yes"),
        ("create", "secrets", "kube-system", "yes"),
        ("list", "secrets", "kube-system", "no"),
        ("list", "secrets", "any", "no"),
        ("create", "nodes", "any", "no"),
        ("update", "validatingwebhookconfigurations.admissionregistration.k8s.io", "any", "no"),
        (
            "update",
            "validatingwebhookconfigurations.admissionregistration.k8s.io/machine-controller-manager",
            "any",
            "yes",
        ),
    ] {
        let resource = match resource.split_once('/') {
            Some((resource, "machine-controller-manager")) => format!("{resource}/machine-controller-manager"),
            Some((resource, subresource)) => format!("{resource} --subresource={subresource}"),
            None => resource.to_owned(),
        };
        let mut arguments = vec!["auth", "can-i", verb];
        arguments.extend(resource.split(' '));
        arguments.extend(["--as", user.as_str(), "--namespace", place]);
        let answer = rig.kubectl(&arguments).await;
        assert_eq!(answer.stdout.trim(), wanted, "{verb} {resource} in {place}: {}", answer.stderr);
    }
}
