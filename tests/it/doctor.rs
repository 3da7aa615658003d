//! `mcm doctor` on a real API server: each check finds what a test breaks, the printed command mends it, and nothing is written.

use std::{process::Stdio, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager, cluster_object::text, manager::mcm, wait::expect, wait_until,
    },
};

/// The namespace of the manifests.
const HOME: &str = "machine-controller-manager";
const PROGRAM: &str = env!("CARGO_BIN_EXE_mcm");
const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Enough for an API server to act on a changed registration.
const SOON: Duration = Duration::from_secs(60);

/// A line of a shell in which `mcm` and `kubectl` use the administrator's kubeconfig.
async fn shell(rig: &Rig, line: &str) -> (bool, String) {
    let folder = std::path::Path::new(PROGRAM).parent().expect("a folder");
    let path = format!("{}:{}:/usr/bin:/bin", folder.display(), rig.assets.display());
    let run = tokio::process::Command::new("/bin/sh")
        .args(["-c", line])
        .current_dir(ROOT)
        .env("PATH", path)
        .env("HOME", &rig.folder)
        .env("KUBECONFIG", rig.admin_kubeconfig())
        .env("KUBE_EDITOR", "sed -i 's/: high/: \"3\"/'")
        .stdin(Stdio::null())
        .output()
        .await
        .expect("a shell starts");
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    (run.status.success(), said)
}

async fn done(rig: &Rig, line: &str) -> String {
    let (succeeded, said) = shell(rig, line).await;
    assert!(succeeded, "{line}:\n{said}");
    said
}

/// The findings of the doctor for a user.
async fn findings_as(rig: &Rig, kubeconfig: &str, namespace: &str) -> Vec<Value> {
    let line = format!("mcm doctor --kubeconfig {kubeconfig} --namespace {namespace} -o json");
    let (_, said) = shell(rig, &line).await;
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    answer["findings"].as_array().expect("a list").clone()
}

async fn findings(rig: &Rig) -> Vec<Value> {
    findings_as(rig, &rig.admin_kubeconfig().display().to_string(), HOME).await
}

fn bad(findings: &[Value]) -> Vec<&Value> {
    findings.iter().filter(|finding| finding["health"] == "Bad").collect()
}

/// The finding about a subject that begins so.
fn about<'a>(findings: &'a [Value], subject: &str) -> &'a Value {
    let found = findings.iter().find(|finding| text(finding, "/subject").starts_with(subject));
    found.unwrap_or_else(|| panic!("nothing about {subject}: {findings:#?}"))
}

/// Waits until the doctor finds all of these, and nothing else, to be BAD. Then it runs their commands, with `further` for each, and waits
/// until nothing is BAD.
async fn found_and_mended(rig: &Rig, subjects: &[&str], further: impl Fn(&str, &str) -> String) {
    let found = wait_until("the doctor to find everything", SOON, || async {
        let found = findings(rig).await;
        let missed = subjects
            .iter()
            .find(|subject| !bad(&found).iter().any(|finding| text(finding, "/subject").starts_with(*subject)));
        expect(missed.is_none(), || format!("{missed:?} in {found:#?}")).map(|()| found)
    })
    .await;
    for finding in bad(&found) {
        let subject = text(finding, "/subject");
        assert!(subjects.iter().any(|wanted| subject.starts_with(wanted)), "{finding:#}");
        let command = finding["command"].as_str().unwrap_or_else(|| panic!("no command: {finding:#}"));
        done(rig, &further(subject, command)).await;
    }
    nothing_is_bad(rig).await;
}

async fn nothing_is_bad(rig: &Rig) {
    wait_until("everything to be mended", SOON, || async {
        let found = findings(rig).await;
        expect(bad(&found).is_empty(), || format!("{:#?}", bad(&found)))
    })
    .await;
}

fn as_printed(_subject: &str, command: &str) -> String {
    command.to_owned()
}

/// An installation as the manifests make it, with a manager outside the cluster and a running machine.
async fn installation(rig: &Arc<Rig>) -> (Namespace, TestManager) {
    rig.install_crds().await;
    let namespace = rig.namespace_named(HOME).await;
    rig.apply(&mcm(&["manifests", "rbac"])).await.succeed();
    done(rig, "kubectl apply -f deploy/base/flowcontrol.yaml").await;
    let flags = vec!["--leader-elect=true".to_owned(), "--leader-elect-retry-period=1s".to_owned()];
    let manager = TestManager::start(rig, &namespace, &ManagerOptions { flags, ..ManagerOptions::default() }).await;
    manager.register_webhooks(rig, &namespace).await;
    namespace.apply(&fleet::manifests(&namespace.name, "pool", 1, "c")).await.succeed();
    fleet::running_machines(&namespace, 1, SOON).await;
    // A stand-in: nothing runs pods here.
    let pod = json!({"containers": [{"name": "manager", "image": "example.com/mcm:1"}]});
    let labels = json!({"app.kubernetes.io/name": HOME});
    namespace
        .apply(
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": HOME},
                "spec": {"replicas": 0, "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod}}})
            .to_string(),
        )
        .await
        .succeed();
    (namespace, manager)
}

/// A pod of the manager that runs an image.
async fn pod(namespace: &Namespace, name: &str, image: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app.kubernetes.io/name": HOME}},
        "spec": {"containers": [{"name": "manager", "image": image}]}});
    namespace.apply(&pod.to_string()).await.succeed();
    let running = r#"{"status": {"phase": "Running"}}"#;
    namespace.kubectl(&["patch", "pod", name, "--subresource=status", "--type=merge", "-p", running]).await.succeed();
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_105_each_finding_is_mended_by_its_command() {
    let why = "the development server has no flow control";
    let Some(rig) = Rig::own_real("doctor::pk_105", why).await else { return };
    let (namespace, mut manager) = installation(&rig).await;
    nothing_is_bad(&rig).await;
    let found = findings(&rig).await;
    for (subject, words) in [
        ("API server of the control cluster", "version 1."),
        ("CustomResourceDefinition machines.machine.sapcloud.io", "stored as v1alpha1"),
        ("Admission in namespace ", "refused by rule META-11"),
        ("Secret machine-controller-manager/", "caBundle fields"),
        ("FlowSchema machine-controller-manager-leases", "in force"),
        ("Rights of system:serviceaccount:", "that the manager needs"),
        ("Lease machine-controller-manager/machine-controller", "held by"),
        ("Clock of ", "agrees with the clock of the API server"),
        ("Providers of classes", "a driver serves each of 1"),
        ("Secrets of classes", "all Secrets of 1 classes exist"),
        ("Admission of stored objects", "the rules of this program allow all 4"),
        ("Finalizers on Secrets", "classes name all 1"),
        ("Finalizers on Nodes", "machines name all 1"),
        ("Nodes of machines", "each of 1 running machines has one"),
    ] {
        let finding = about(&found, subject);
        assert!(finding["health"] == "Fine" && text(finding, "/message").contains(words), "{finding:#}");
        assert!(finding["command"].is_null(), "{finding:#}");
    }

    while_the_manager_runs(&rig, &namespace).await;
    the_webhooks_are_broken(&rig).await;
    while_no_manager_runs(&rig, &namespace, &mut manager).await;
}

async fn while_the_manager_runs(rig: &Rig, namespace: &Namespace) {
    let older = json!([{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/lastKnownState"}]);
    done(rig, &format!("kubectl patch crd machines.machine.sapcloud.io --type=json -p '{older}'")).await;
    let views = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha1.views.machine.sapcloud.io"},
        "spec": {"group": "views.machine.sapcloud.io", "version": "v1alpha1", "groupPriorityMinimum": 100,
            "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": {"namespace": HOME, "name": "nobody", "port": 443}}});
    rig.apply(&views.to_string()).await.succeed();
    done(rig, &format!("kubectl delete prioritylevelconfiguration {HOME}")).await;
    done(rig, &format!("kubectl -n {HOME} delete rolebinding {HOME}")).await;
    pod(namespace, "one", "example.com/mcm:1").await;
    pod(namespace, "two", "example.com/mcm:2").await;
    let subjects = [
        "CustomResourceDefinition machines.machine.sapcloud.io",
        "APIService v1alpha1.views.machine.sapcloud.io",
        "FlowSchema machine-controller-manager",
        "Rights of system:serviceaccount:machine-controller-manager:machine-controller-manager",
        "Replicas in namespace",
    ];
    found_and_mended(rig, &subjects, |subject, command| {
        // Nothing rolls out here: the older pod ends as it would.
        let rollout = format!("; kubectl -n {HOME} delete pod one --grace-period=0 --force");
        format!("{command}{}", if subject.starts_with("Replicas") { rollout.as_str() } else { "" })
    })
    .await;
    let (_, said) = shell(rig, "mcm doctor --namespace absent").await;
    let command = said.lines().skip_while(|line| !line.starts_with("BAD     Namespace absent: is not there")).nth(1);
    let command = command.and_then(|line| line.trim().strip_prefix("run: ")).unwrap_or_else(|| panic!("{said}"));
    done(rig, command).await;
    let (_, said) = shell(rig, "mcm doctor --namespace absent").await;
    assert!(!said.contains("Namespace absent"), "{said}");
}

async fn the_webhooks_are_broken(rig: &Rig) {
    // No creation is sent to them any more.
    let operations = r#"kubectl get validatingwebhookconfiguration machine-controller-manager -o json | sed 's/"CREATE"/"DELETE"/' | kubectl replace -f -"#;
    done(rig, operations).await;
    found_and_mended(rig, &["Admission in namespace"], as_printed).await;

    // Another tool has written the field, and the manager may not correct it.
    let authority = BASE64_STANDARD.encode(another_authority());
    let forbid = "kubectl annotate validatingwebhookconfiguration machine-controller-manager \
                  admission.machine.sapcloud.io/inject-ca=false";
    done(rig, forbid).await;
    let bundle = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": authority}]);
    let patch =
        format!("kubectl patch validatingwebhookconfiguration machine-controller-manager --type=json -p '{bundle}'");
    done(rig, &patch).await;
    mended_by_the_annotation(rig, "Secret machine-controller-manager/").await;
    done(rig, forbid).await;
    let bundle = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let patch =
        format!("kubectl patch validatingwebhookconfiguration machine-controller-manager --type=json -p '{bundle}'");
    done(rig, &patch).await;
    mended_by_the_annotation(rig, "ValidatingWebhookConfiguration machine-controller-manager").await;
}

/// The finding about the subject has the command that allows the manager to write the field. Other findings follow from the same mistake.
async fn mended_by_the_annotation(rig: &Rig, subject: &str) {
    let command = wait_until("the doctor to find it", SOON, || async {
        let found = findings(rig).await;
        let finding = about(&found, subject).clone();
        expect(finding["health"] == "Bad", || format!("{finding:#}")).map(|()| text(&finding, "/command").to_owned())
    })
    .await;
    assert!(command.ends_with("admission.machine.sapcloud.io/inject-ca-"), "{command}");
    done(rig, &command).await;
    nothing_is_bad(rig).await;
}

/// The certificate of an authority that signed nothing here.
fn another_authority() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.self_signed(&key).expect("a certificate").pem()
}

async fn while_no_manager_runs(rig: &Rig, namespace: &Namespace, manager: &mut TestManager) {
    let machines = namespace.list("machines").await;
    let (name, node) = (text(&machines[0], "/metadata/name"), text(&machines[0], "/metadata/labels/node"));
    manager.terminate();
    done(rig, "kubectl delete validatingwebhookconfiguration,mutatingwebhookconfiguration machine-controller-manager")
        .await;
    let priority = json!({"machinepriority.machine.sapcloud.io": "high"});
    let wrong = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "wrong", "annotations": priority},
        "spec": {"class": {"kind": "MachineClass", "name": "c"}}});
    namespace.apply(&wrong.to_string()).await.succeed();
    let class = json!({"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": "misspelt"},
        "provider": "vitual", "providerSpec": {}, "secretRef": {"name": "later", "namespace": HOME}});
    namespace.apply(&class.to_string()).await.succeed();
    let data = rig.folder.join("user-data");
    std::fs::write(&data, "#!/bin/sh\n").expect("the rig's folder is writable");
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "unused", "finalizers": ["machine.sapcloud.io/machine-controller"]}});
    namespace.apply(&secret.to_string()).await.succeed();
    let unused = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "unused", "finalizers": ["node.machine.sapcloud.io/machine-controller"]}});
    rig.apply(&unused.to_string()).await.succeed();
    done(rig, &format!("kubectl patch node {node} --type=merge -p '{{\"metadata\": {{\"finalizers\": null}}}}'")).await;
    done(rig, &format!("kubectl delete node {node}")).await;
    let found = wait_until("the doctor to find everything", SOON, || async {
        let found = findings(rig).await;
        expect(bad(&found).len() >= 9, || format!("{:#?}", bad(&found))).map(|()| found)
    })
    .await;
    let mut leases = 0;
    for finding in bad(&found) {
        let (subject, command) = (text(finding, "/subject"), text(finding, "/command"));
        match subject.split(' ').next() {
            Some("Lease" | "Halves") => {
                assert_eq!(command, format!("kubectl -n {HOME} scale deployment/{HOME} --replicas=2"), "{finding:#}");
                leases += 1;
                continue;
            }
            Some("Machine") if subject.ends_with(name) => done(rig, &format!("{command} --yes")).await,
            Some("Machine" | "Secret" | "Node") => done(rig, command).await,
            Some("MachineClass") => done(rig, &command.replace("FILE", &data.display().to_string())).await,
            _ => panic!("{finding:#}"),
        };
    }
    assert_eq!(leases, 3, "both Leases and the halves: {found:#?}");
    done(rig, &format!("kubectl -n {HOME} scale deployment/{HOME} --replicas=2")).await;
    // A stand-in for the kubelets that start the pods of the Deployment.
    manager.restart();
    manager.wait_until_ready().await;
    nothing_is_bad(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pk_106_with_rights_to_read_the_missing_rights_are_named_and_nothing_is_written() {
    let why = "the development server has no audit log";
    let Some(rig) = Rig::audited("doctor::pk_106", why).await else { return };
    let (_namespace, _manager) = installation(&rig).await;
    let reader = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, \
                  rules: [{apiGroups: ['*'], resources: ['*'], verbs: [get, list]}]}";
    rig.apply(reader).await.succeed();
    rig.kubectl(&["create", "clusterrolebinding", "reader", "--clusterrole=reader", "--user=alice"]).await.succeed();
    let alice = rig.folder.join("alice.kubeconfig").display().to_string();
    let found = findings_as(&rig, &alice, HOME).await;
    for (subject, right) in [
        ("Admission in namespace", "create machines.machine.sapcloud.io in namespace machine-controller-manager"),
        ("Rights of system:serviceaccount", "create subjectaccessreviews.authorization.k8s.io"),
    ] {
        let finding = about(&found, subject);
        let message = text(finding, "/message");
        assert!(
            finding["health"] == "Unknown" && message.contains(&format!("lacks the right to {right}")),
            "{finding:#}"
        );
    }
    assert!(bad(&found).is_empty(), "{found:#?}");
    let all = ["create", "clusterrolebinding", "all", "--clusterrole=cluster-admin", "--user=alice"];
    rig.kubectl(&all).await.succeed();
    let found = findings_as(&rig, &alice, HOME).await;
    assert_eq!(about(&found, "Admission in namespace")["health"], "Fine", "{found:#?}");

    let requests = rig.audit_of("alice");
    assert!(requests.len() > 50, "{requests:#?}");
    for request in &requests {
        let (verb, uri) = (text(request, "/verb"), text(request, "/requestURI"));
        let stores_nothing = match verb {
            "get" | "list" => true,
            "create" => uri.contains("dryRun=All") || uri.ends_with("/subjectaccessreviews"),
            _ => false,
        };
        assert!(stores_nothing, "{verb} {uri}");
    }
    assert!(requests.iter().any(|request| text(request, "/requestURI").contains("dryRun=All")));
}
