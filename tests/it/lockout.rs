//! The system cannot lock itself out: operations that still work while no webhook answers, and while a webhook answers too late.
//!
//! Source: spec/api-and-admission §10: a creation fails without an answer. Everything else passes, or is never sent to the webhook.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    fleet,
    support::{
        ManagerOptions, Namespace, Rig, TestManager,
        cluster_object::{has_finalizer, text},
        kubectl::Answer,
        manager::mcm,
        wait::expect,
        wait_until,
    },
};

const POOL: &str = "
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {name: c}
provider: virtual
providerSpec: {}
nodeTemplate:
  capacity: {cpu: 4, gpu: 0, memory: 8Gi}
  instanceType: t
  region: r
  zone: z
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineDeployment
metadata: {name: pool}
spec:
  replicas: 2
  selector: {matchLabels: {pool: a}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {pool: a}}
    spec: {class: {kind: MachineClass, name: c}}
";

const FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";
/// The error of the API server when it cannot call a webhook.
const CANNOT_ASK: &str = "failed calling webhook";

/// A machine without owner and without an existing class. Only its finalizer keeps it.
fn standalone(name: &str) -> String {
    format!(
        "{{apiVersion: machine.sapcloud.io/v1alpha1, kind: Machine, metadata: {{name: {name}}}, spec: {{class: {{kind: \
         MachineClass, name: absent}}}}}}"
    )
}

async fn patch(namespace: &Namespace, arguments: &[&str], patch: &str) -> Answer {
    namespace.kubectl(&[&["patch", "--type=merge", "-p", patch], arguments].concat()).await
}

/// Operations that must work without the manager, whatever the failure policy for updates is. The machine is deleted.
async fn objects_can_be_released(namespace: &Namespace, machine: &str) {
    patch(namespace, &["machine", machine, "--subresource=status"], r#"{"status":{"lastKnownState":"seen"}}"#)
        .await
        .succeed();
    assert_eq!(text(&namespace.get("machine", machine).await, "/status/lastKnownState"), "seen", "status");
    namespace.kubectl(&["delete", "machine", machine, "--wait=false"]).await.succeed();
    let deleted = namespace.get("machine", machine).await;
    assert!(deleted["metadata"]["deletionTimestamp"].is_string() && has_finalizer(&deleted, FINALIZER), "deletion");
    patch(namespace, &["machine", machine], r#"{"metadata":{"finalizers":null}}"#).await.succeed();
    let gone = namespace.kubectl(&["get", "machine", machine, "--ignore-not-found"]).await.succeed();
    assert_eq!(gone, "", "finalizer removal");
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=2"]).await.succeed();
}

async fn creation_is_refused(namespace: &Namespace) {
    let refused = namespace.apply(&standalone("while-down")).await.fail();
    assert!(refused.contains(CANNOT_ASK) && refused.contains("create.validate.machine.sapcloud.io"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_webhook_server_only_creation_is_refused() {
    let Some(rig) = Rig::own("lockout::without_a_webhook_server").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("lockout").await;
    let mut manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    manager.register_webhooks(&rig, &namespace).await;
    namespace.apply(POOL).await.succeed();
    fleet::running_machines(&namespace, 2, Duration::from_secs(60)).await;
    for name in ["ignored", "failing", "hung"] {
        namespace.apply(&standalone(name)).await.succeed();
    }

    // In the middle of work: a scale-up, an update and a deletion are accepted but not carried out yet.
    let started = namespace.list("machines").await;
    let victim = started.iter().find(|machine| text(machine, "/metadata/labels/pool") == "a").expect("a machine");
    let victim = text(victim, "/metadata/name");
    namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=4"]).await.succeed();
    namespace.kubectl(&["delete", "machine", victim, "--wait=false"]).await.succeed();
    manager.kill();

    creation_is_refused(&namespace).await;
    // Updates are accepted without the webhook, but the definitions still check them.
    patch(&namespace, &["machinedeployment", "pool"], r#"{"metadata":{"labels":{"l":"v"}}}"#).await.succeed();
    let spec = r#"{"spec":{"template":{"spec":{"drainTimeout":"6m"}}}}"#;
    patch(&namespace, &["machinedeployment", "pool"], spec).await.succeed();
    let bad = patch(&namespace, &["machinedeployment", "pool"], r#"{"spec":{"replicas":-1}}"#).await.fail();
    assert!(bad.contains("spec.replicas"), "{bad}");
    objects_can_be_released(&namespace, "ignored").await;
    // A dry run of a scale request is accepted.
    let tried = namespace.kubectl(&["scale", "machinedeployment", "pool", "--replicas=3", "--dry-run=server"]).await;
    tried.succeed();

    // With the stricter policy, updates are refused too. Operations that release an object are not refused.
    strict_updates(&rig, &manager, &namespace).await;
    for change in [r#"{"metadata":{"labels":{"l":"w"}}}"#, r#"{"spec":{"minReadySeconds":1}}"#] {
        let refused = patch(&namespace, &["machinedeployment", "pool"], change).await.fail();
        assert!(refused.contains(CANNOT_ASK) && refused.contains("update.validate.machine.sapcloud.io"), "{refused}");
    }
    objects_can_be_released(&namespace, "failing").await;

    // A broken registration can always be deleted. Afterwards the API server calls no webhook.
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        rig.kubectl(&["delete", kind, "machine-controller-manager"]).await.succeed();
    }
    wait_until("creation without webhooks", Duration::from_secs(30), || async {
        let answer = namespace.apply(&standalone("unjudged")).await;
        expect(answer.succeeded(), || answer.stderr.clone())
    })
    .await;

    // After the restart the manager finds its work unchanged: two replicas, the deleted machine is gone, and the template is rolled out.
    manager.restart();
    manager.wait_until_ready().await;
    manager.register_webhooks(&rig, &namespace).await;
    wait_until("the rollout to be finished", Duration::from_secs(120), || async {
        let machines = namespace.list("machines").await;
        let of_pool: Vec<_> = machines.iter().filter(|machine| text(machine, "/metadata/labels/pool") == "a").collect();
        let done = of_pool.len() == 2
            && of_pool.iter().all(|machine| {
                text(machine, "/spec/drainTimeout") == "6m0s"
                    && text(machine, "/status/currentStatus/phase") == "Running"
            });
        expect(done, || format!("{of_pool:?}"))
    })
    .await;
    let refused = namespace.apply(&standalone("no-name").replace("name: absent", "name: \"\"")).await.fail();
    assert!(refused.contains("spec.class.name"), "the webhooks judge again: {refused}");

    a_server_that_hangs(&manager, &namespace).await;
}

async fn strict_updates(rig: &Arc<Rig>, manager: &TestManager, namespace: &Namespace) {
    let url = format!("--webhook-url=https://127.0.0.1:{}", manager.secure_port);
    let strict = mcm(&["manifests", "webhooks", "--update-failure-policy=fail", "--namespace", &namespace.name, &url]);
    rig.apply(&strict).await.succeed();
    wait_until("the API server to know the stricter policy", Duration::from_secs(30), || async {
        let change = r#"{"metadata":{"labels":{"l":"probe"}}}"#;
        let answer = namespace
            .kubectl(&["patch", "machinedeployment", "pool", "--type=merge", "-p", change, "--dry-run=server"])
            .await;
        expect(answer.stderr.contains(CANNOT_ASK), || answer.stderr.clone() + &answer.stdout)
    })
    .await;
}

/// The kernel accepts connections, but the process never answers. Calls end with their timeouts, and operations without a webhook are not delayed.
async fn a_server_that_hangs(manager: &TestManager, namespace: &Namespace) {
    manager.suspend();
    let began = Instant::now();
    objects_can_be_released_quickly(namespace).await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    creation_is_refused(namespace).await;
    let began = Instant::now();
    patch(namespace, &["machinedeployment", "pool"], r#"{"metadata":{"labels":{"l":"x"}}}"#).await.succeed();
    assert!(began.elapsed() < Duration::from_secs(25), "two webhooks, five seconds each: {:?}", began.elapsed());
    manager.resume();
    wait_until("creation to be judged again", Duration::from_secs(30), || async {
        let answer = namespace.apply(&standalone("after-all")).await;
        expect(answer.succeeded(), || answer.stderr.clone())
    })
    .await;
}

async fn objects_can_be_released_quickly(namespace: &Namespace) {
    let status = r#"{"status":{"lastKnownState":"hung"}}"#;
    patch(namespace, &["machine", "hung", "--subresource=status"], status).await.succeed();
    patch(namespace, &["machine", "hung"], r#"{"metadata":{"finalizers":null}}"#).await.succeed();
    // The API server sends the deletion to the webhook, whose timeout is two seconds.
    namespace.kubectl(&["delete", "machine", "hung", "--wait=false"]).await.succeed();
    let gone = namespace.kubectl(&["get", "machine", "hung", "--ignore-not-found"]).await.succeed();
    assert_eq!(gone, "");
}
