//! The kustomize base of `deploy/`: it renders, applies to a real API server, and contains what the code generates.

use std::time::Duration;

use machine_controller_manager::cli::documents::parse_documents;
use serde_json::Value;

use crate::support::{Rig, cluster_object::text, manager::mcm, wait::expect, wait_until};

const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/base");
const TRIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/trial");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/examples");

#[test]
fn the_committed_rbac_is_what_the_code_generates() {
    let committed = std::fs::read_to_string(format!("{BASE}/rbac.yaml")).expect("readable");
    let generated = mcm(&["manifests", "rbac"]);
    assert_eq!(committed, generated, "run: cargo run -- manifests rbac > deploy/base/rbac.yaml");
}

#[test]
fn the_component_simulation_is_what_the_code_generates_on_top() {
    let base = std::fs::read_to_string(format!("{BASE}/rbac.yaml")).expect("readable");
    let component = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/simulation/rbac.yaml");
    let component = std::fs::read_to_string(component).expect("readable");
    let generated = mcm(&["manifests", "rbac", "--simulation"]);
    assert_eq!(format!("{base}---\n{component}"), generated, "the part after the base belongs to the component");
}

#[test]
fn the_component_bootstrap_tokens_is_what_the_code_generates_on_top() {
    let base = std::fs::read_to_string(format!("{BASE}/rbac.yaml")).expect("readable");
    let component = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/bootstrap-tokens/rbac.yaml");
    let component = std::fs::read_to_string(component).expect("readable");
    let generated = mcm(&["manifests", "rbac", "--bootstrap-tokens"]);
    assert_eq!(format!("{base}---\n{component}"), generated, "the part after the base belongs to the component");
}

#[test]
fn the_component_local_machines_is_what_the_code_generates_on_top() {
    let base = std::fs::read_to_string(format!("{BASE}/rbac.yaml")).expect("readable");
    let component = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/local-machines/rbac.yaml");
    let component = std::fs::read_to_string(component).expect("readable");
    let generated = mcm(&["manifests", "rbac", "--local-machines"]);
    assert_eq!(format!("{base}---\n{component}"), generated, "the part after the base belongs to the component");
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
    let Some(rig) = Rig::own_real(
        "deploy::the_base_applies_to_a_real_api_server",
        "the base holds flow schemas, and the development server has no flow control",
    )
    .await
    else {
        return;
    };
    let rendered = rig.kubectl(&["kustomize", BASE]).await.succeed();
    // Definitions first: an object of an unknown kind is refused.
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

/// The steps of README.md: the base with the rights of the virtual cloud, then the examples, in the namespace that the manager watches. The security
/// standard of the namespace admits the pod.
#[tokio::test]
async fn the_trial_applies_with_its_examples_and_its_pod_is_admitted() {
    let Some(rig) = Rig::own_real("deploy::the_trial_applies", "as the base does, it holds flow schemas").await else {
        return;
    };
    rig.install_crds().await;
    rig.kubectl(&["apply", "--validate=strict", "-k", TRIAL]).await.succeed();

    let rendered = rig.kubectl(&["kustomize", TRIAL]).await.succeed();
    let documents = parse_documents("deploy/trial", &rendered).expect("YAML");
    let deployment = documents.iter().map(|document| &document.value).find(|object| object["kind"] == "Deployment");
    let deployment = deployment.expect("a deployment");
    let mut pod = deployment["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "probe".into();
    pod["metadata"]["namespace"] = deployment["metadata"]["namespace"].clone();
    let file = rig.folder.join("pod.json");
    let create = ["create", "--dry-run=server", "-f", file.to_str().expect("UTF-8")];
    std::fs::write(&file, pod.to_string()).expect("writable");
    rig.kubectl(&create).await.succeed();
    pod["spec"]["hostNetwork"] = true.into();
    std::fs::write(&file, pod.to_string()).expect("writable");
    assert!(rig.kubectl(&create).await.stderr.contains("violates PodSecurity"), "the security standard is enforced");

    // No webhook server runs here.
    let kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations";
    rig.kubectl(&["delete", kinds, "machine-controller-manager"]).await.succeed();
    rig.kubectl(&["apply", "--validate=strict", "-k", EXAMPLES]).await.succeed();
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--namespace=$(POD_NAMESPACE)"), "{args}");
    let made = rig.kubectl(&["get", "machinedeployments", "-A", "-o", "jsonpath={.items[*].metadata.namespace}"]).await;
    assert_eq!(made.succeed(), text(deployment, "/metadata/namespace"), "the manager watches this namespace");
}

/// The base with components, rendered by kubectl from a temporary overlay.
async fn rendered_with(rig: &Rig, components: &[&str]) -> Vec<Value> {
    let overlay = tempfile::tempdir_in(&rig.folder).expect("the rig's folder is writable");
    let folder = overlay.path().canonicalize().expect("it exists");
    // Kustomize accepts relative paths only.
    let up = "../".repeat(folder.components().count() - 1);
    let deploy = format!("{up}{}", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy").trim_start_matches('/'));
    let components: Vec<String> = components.iter().map(|name| format!("{deploy}/components/{name}")).collect();
    let kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("{deploy}/base")], "components": components,
    });
    std::fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).expect("writable");
    let text = rig.kubectl(&["kustomize", &folder.display().to_string()]).await.succeed();
    parse_documents("overlay", &text).expect("YAML").into_iter().map(|document| document.value).collect()
}

#[tokio::test]
async fn the_component_v1beta1_is_what_the_code_generates() {
    let Some(rig) = Rig::shared("deploy::the_component_v1beta1").await else { return };
    let is_definition = |object: &Value| text(object, "/kind") == "CustomResourceDefinition";
    let mut rendered = rendered_with(&rig, &["v1beta1"]).await;
    rendered.retain(is_definition);
    let generated = mcm(&["manifests", "crds", "--serve", "v1beta1"]);
    let generated: Vec<Value> =
        parse_documents("crds", &generated).expect("YAML").into_iter().map(|d| d.value).collect();
    assert_eq!(generated.len(), 4);
    for definition in generated {
        assert!(rendered.contains(&definition), "{} differs", text(&definition, "/metadata/name"));
    }
}

#[tokio::test]
async fn with_cert_manager_the_process_reads_files_and_cert_manager_injects_every_bundle() {
    let Some(rig) = Rig::shared("deploy::with_cert_manager").await else { return };
    let rendered = rendered_with(&rig, &["v1beta1", "cert-manager"]).await;
    let certificate = rendered.iter().find(|object| object.pointer("/spec/dnsNames").is_some()).expect("a certificate");
    let (name, secret) = (text(certificate, "/metadata/name"), text(certificate, "/spec/secretName"));
    let wanted = format!("{}/{name}", text(certificate, "/metadata/namespace"));
    let mut annotated = 0;
    for object in &rendered {
        let kind = text(object, "/kind");
        if kind == "CustomResourceDefinition" || kind.ends_with("WebhookConfiguration") {
            assert_eq!(object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"], wanted.as_str(), "{kind}");
            annotated += 1;
        }
        if kind == "Deployment" {
            let pod = &object["spec"]["template"]["spec"];
            assert_eq!(text(pod, "/volumes/0/secret/secretName"), secret);
            let folder = text(pod, "/containers/0/volumeMounts/0/mountPath");
            let args = pod["containers"][0]["args"].as_array().expect("arguments");
            for flag in [
                "--cert-mode=files".to_owned(),
                format!("--tls-cert-file={folder}/tls.crt"),
                format!("--tls-private-key-file={folder}/tls.key"),
            ] {
                assert!(args.contains(&Value::from(flag.as_str())), "{flag}");
            }
        }
    }
    assert_eq!(annotated, 6);
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
        ("create", "secrets", &namespace.name, "no"),
        ("create", "secrets", "kube-system", "no"),
        ("list", "secrets", "kube-system", "no"),
        ("list", "secrets", "any", "no"),
        ("create", "nodes", "any", "no"),
        ("patch", "machines.machine.sapcloud.io", &namespace.name, "yes"),
        ("update", "machines.machine.sapcloud.io", &namespace.name, "no"),
        ("delete", "machinesets.machine.sapcloud.io", &namespace.name, "yes"),
        ("delete", "machinedeployments.machine.sapcloud.io", &namespace.name, "no"),
        ("patch", "machines.machine.sapcloud.io", "default", "no"),
        ("patch", "nodes/status", "any", "yes"),
        ("patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", "any", "no"),
        (
            "patch",
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

#[tokio::test]
async fn the_rights_for_bootstrap_tokens_allow_no_other_secret_to_be_written() {
    let why = "the development server has no ValidatingAdmissionPolicies";
    let Some(rig) = Rig::own_real("deploy::the_rights_for_bootstrap_tokens", why).await else { return };
    let namespace = rig.namespace("tokens").await;
    rig.apply(&mcm(&["manifests", "rbac", "--bootstrap-tokens", "--namespace", &namespace.name])).await.succeed();
    let user = format!("--as=system:serviceaccount:{}:machine-controller-manager", namespace.name);
    let secret = |name: &str, kind: &str| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"name": name, "namespace": "kube-system"},
            "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef"},
        })
    };
    let file = rig.folder.join("secret.json");
    let create = ["create", "-f", file.to_str().expect("UTF-8"), user.as_str()];
    std::fs::write(&file, secret("other", "Opaque").to_string()).expect("writable");
    let dry = [create.as_slice(), &["--dry-run=server"]].concat();
    wait_until("the policy to be in force", Duration::from_secs(30), || async {
        let answer = rig.kubectl(&dry).await;
        expect(answer.stderr.contains("may write bootstrap tokens only"), || answer.stderr.clone() + &answer.stdout)
    })
    .await;
    std::fs::write(&file, secret("bootstrap-token-abcdef", "bootstrap.kubernetes.io/token").to_string())
        .expect("writable");
    rig.kubectl(&create).await.succeed();
    rig.kubectl(&["delete", "secret", "bootstrap-token-abcdef", "-n", "kube-system", "--wait=false", &user])
        .await
        .succeed();
    let others = ["create", "secret", "generic", "other", "-n", "kube-system"];
    rig.kubectl(&others).await.succeed();
    let refused = rig.kubectl(&["delete", "secret", "other", "-n", "kube-system", "--wait=false", &user]).await.fail();
    assert!(refused.contains("may write bootstrap tokens only"), "{refused}");
}
