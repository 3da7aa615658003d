//! The leader is killed in every stage of a machine's life that can be blocked, and another leader continues.
//!
//! The cloud (a latency or a call that never ends), a budget, a volume, or a policy of the API server that refuses a write blocks the machine. The
//! test recognises the stage by the machine's condition, or by the cloud's calls where the condition would need a minute.

use serde_json::{Value, json};

use super::{FLEET, TIMEOUT, Weather, drain::a_pod_with_an_attached_volume_on, explanation, names, node_of, sky};
use crate::{
    fleet::{describe, none_left, phase},
    guard,
    support::{
        Backend, Namespace,
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
};

/// A cloud in which every VM must be initialised, and in which these calls, or the start of a VM or of its kubelet, never end.
fn cloud_with_blocked_operations(held: &[&str]) -> String {
    let latency = ["boot", "ready"]
        .map(|key| format!("  {key}: {{constant: {}}}\n", if held.contains(&key) { "1h" } else { "0s" }));
    let calls = held.iter().filter(|held| !["boot", "ready"].contains(held));
    let hangs = calls.map(|call| format!("  - {{op: {call}, effect: hang, for: 1h}}\n")).collect::<Vec<_>>().concat();
    let failures = if hangs.is_empty() { String::new() } else { format!("failures:\n{hangs}") };
    let swift = "  create: {constant: 0s}\n  delete: {constant: 0s}\n";
    format!("seed: 5\nlatency:\n{swift}{}outcomes: [{{effect: uninitialized}}]\n{failures}", latency.concat())
}

impl Weather {
    /// Starts a manager whose cloud stores its VMs across restarts and blocks the given operations.
    async fn with_blocked_operations(test: &str, held: &[&str]) -> Option<Self> {
        let rig = sky(test).await?;
        let file = format!("{}.vms", test.replace("::", "-"));
        let state = format!("--simulation-state=file:{}", rig.folder.join(file).display());
        let mut weather = Self::over(rig, &[&state]).await;
        weather.fail_over(held).await;
        Some(weather)
    }

    /// Kills the manager and starts the next one, whose cloud blocks other operations.
    async fn fail_over(&mut self, held: &[&str]) {
        self.manager.kill();
        self.start_next_manager(held).await;
    }

    /// Starts the next manager.
    async fn start_next_manager(&mut self, held: &[&str]) {
        self.manager.simulate(&cloud_with_blocked_operations(held));
        self.manager.restart();
        self.manager.wait_until_ready().await;
        wait_until("the cloud to live", TIMEOUT, || self.cloud.lives()).await;
    }

    /// Waits until a call of this operation hangs in the cloud.
    async fn wait_for_hanging_call(&self, operation: &str) {
        wait_until(&format!("a call of {operation} to hang"), TIMEOUT, || async {
            let found = self.cloud.events_of("callHangs").await;
            expect(found.iter().any(|event| text(event, "/operation") == operation), || format!("{found:?}"))
        })
        .await;
    }

    /// Waits until the condition of the only machine has one of these reasons.
    async fn wait_for_reason_of_machine(&self, what: &str, reasons: &[&str]) {
        wait_until(&format!("the machine to wait for {what}"), TIMEOUT, || async {
            let machines = self.namespace.list("machines").await;
            let held = machines.iter().all(|machine| reasons.contains(&reason(machine)));
            let seen =
                |machine: &Value| format!("{}\n{}: {}\n", describe(machine), reason(machine), explanation(machine));
            expect(held && machines.len() == 1, || machines.iter().map(seen).collect())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_in_any_stage_of_a_creation_is_succeeded() {
    let test = "weather::stages::mc_284_a_leader_that_dies_in_any_stage_of_a_creation";
    // No kubelet starts before its stage.
    let Some(mut weather) = Weather::with_blocked_operations(test, &["status", "boot"]).await else { return };
    weather.want(1).await;
    weather.wait_for_hanging_call("status").await;
    weather.fail_over(&["create", "boot"]).await;
    weather.wait_for_hanging_call("create").await;
    weather.fail_over(&["initialize", "boot"]).await;
    weather.wait_for_hanging_call("initialize").await;
    weather.fail_over(&["boot"]).await;
    weather.wait_for_reason_of_machine("the VM's start", &["WaitingForNode", "WaitingForNodeOfAdoptedVM"]).await;
    weather.fail_over(&["ready"]).await;
    wait_until("the Node to register", TIMEOUT, || async {
        // Other tests have Nodes on this control plane, too; our Node has the name of its machine.
        let machines = names(&weather.namespace.list("machines").await);
        let nodes = names(&weather.namespace.list("nodes").await);
        expect(nodes.intersection(&machines).count() == 1, || format!("{machines:?}, {nodes:?}"))
    })
    .await;
    weather
        .wait_for_reason_of_machine(
            "the Node's readiness",
            &["WaitingForNode", "WaitingForNodeOfAdoptedVM", "WaitingForNodeReady"],
        )
        .await;
    weather.fail_over(&[]).await;
    let running = weather.wait_until_healthy(1).await;
    assert!(running[0]["metadata"]["finalizers"].to_string().contains("machine-controller"), "{}", running[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_in_any_stage_of_a_deletion_is_succeeded() {
    let test = "weather::stages::mc_284_a_leader_that_dies_in_any_stage_of_a_deletion";
    let Some(mut weather) = Weather::with_blocked_operations(test, &[]).await else { return };
    weather.want(1).await;
    let running = weather.wait_until_healthy(1).await;
    let (machine, node) = (name(&running[0]).to_owned(), node_of(&running[0]).to_owned());
    // The development server has no admission policies, so the last two stages are skipped there.
    let kept = match weather.rig.backend() {
        Backend::Real => Some(refusals(&weather.namespace, &machine, &node).await),
        Backend::Dev => None,
    };
    // From now on the provider detaches no volume.
    weather.fail_over(&["detach"]).await;
    guard::a_pod_on(&weather.namespace, &node).await;
    a_pod_with_an_attached_volume_on(&weather, &node, "stages").await;
    weather.namespace.kubectl(&["delete", "machinedeployment", "weather", "--wait=false"]).await.succeed();
    weather.wait_for_reason_of_machine("the drain", &["DrainBlocked", "WaitingForVolumeDetachment"]).await;

    weather.manager.kill();
    weather.namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    weather.start_next_manager(&["detach"]).await;
    wait_until("the pods to go", TIMEOUT, || async {
        let pods = weather.namespace.list("pods").await;
        expect(pods.is_empty(), || format!("{pods:?}"))
    })
    .await;
    // In a real cluster, the attach-detach controller does this when the pod is gone.
    weather.namespace.kubectl(&["delete", "volumeattachment", "va-stages", "--wait=false"]).await.succeed();
    weather.wait_for_hanging_call("detach").await;
    // A leader that did not see the pods finds their volumes by the attachments.
    weather.wait_for_reason_of_machine("the volume", &["DrainFailed", "WaitingForVolumeDetachment"]).await;

    weather.fail_over(&["delete"]).await;
    weather.wait_for_reason_of_machine("the end of the VM", &["DeletingVM", "AwaitingDriver"]).await;
    assert_eq!(weather.cloud.vms().await.len(), 1, "the VM is being deleted");

    weather.fail_over(&[]).await;
    if let Some((keeps_node, keeps_machine)) = kept {
        weather.wait_for_reason_of_machine("the end of its Node", &["DeletingNode"]).await;
        weather.fail_over(&[]).await;
        assert!(names(&weather.namespace.list("nodes").await).contains(&node), "the API server keeps the Node");
        keeps_node.lift(&weather.namespace).await;
        weather.wait_for_reason_of_machine("its finalizer to be taken off", &["LettingGo"]).await;
        assert!(!names(&weather.namespace.list("nodes").await).contains(&node), "the Node is gone first");

        weather.fail_over(&[]).await;
        assert!(
            names(&weather.namespace.list("machines").await).contains(&machine),
            "the API server keeps the machine"
        );
        keeps_machine.lift(&weather.namespace).await;
    }
    none_left(&weather.namespace, "machinedeployments", TIMEOUT).await;
    assert!(weather.cloud.vms().await.is_empty(), "no VM is left");
}

/// A creation was lost, so its VM is found by name: a deletion first asks the driver for the VM.
#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_while_a_deletion_asks_for_the_vm_is_succeeded() {
    let test = "weather::stages::mc_284_a_leader_that_dies_while_a_deletion_asks";
    let Some(mut weather) = Weather::with_blocked_operations(test, &["boot"]).await else { return };
    weather.want(0).await;
    let lost = json!([{"op": "create", "effect": "created-but-error", "code": "DeadlineExceeded"}]);
    weather.cloud.fails(lost).await;
    let alone = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "unheard"},
        "spec": {"class": {"kind": "MachineClass", "name": FLEET}},
    });
    weather.namespace.apply(&alone.to_string()).await.succeed();
    let lost_creation =
        weather.wait_for_machine("a creation with a lost reply", |machine| phase(machine) == "CrashLoopBackOff");
    assert_eq!(text(&lost_creation.await, "/spec/providerID"), "");
    weather.manager.kill();
    weather.namespace.kubectl(&["delete", "machine", "unheard", "--wait=false"]).await.succeed();

    weather.start_next_manager(&["boot", "status"]).await;
    weather.wait_for_hanging_call("status").await;
    let asks = weather.namespace.get("machine", "unheard").await;
    let stage = text(&asks, "/status/lastOperation/description");
    assert!(stage.contains("getting VM Status"), "the deletion asks for the VM: {stage}");
    weather.fail_over(&[]).await;
    none_left(&weather.namespace, "machines", TIMEOUT).await;
    assert!(weather.cloud.vms().await.is_empty(), "the VM of the lost creation is deleted, too");
}

/// A request that a policy of the API server refuses.
struct Refusal(String);

impl Refusal {
    /// Refuses an operation on a resource unless this expression holds, and waits until `probe` is refused.
    async fn begin(namespace: &Namespace, what: [&str; 3], operation: &str, holds: &str, probe: &[&str]) -> Self {
        let [group, version, resource] = what;
        let policy = format!("{}-keeps-{resource}", namespace.name);
        let rule = json!({
            "apiGroups": [group], "apiVersions": [version], "operations": [operation], "resources": [resource],
        });
        let manifest = json!({ "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": policy},
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {"resourceRules": [rule]},
                    "validations": [{"expression": holds, "message": "kept by the test"}],
                },
            },
            {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": ["Deny"]},
            },
        ]});
        namespace.apply(&manifest.to_string()).await.succeed();
        wait_until(&format!("deletions or changes of {resource} to be refused"), TIMEOUT, || async {
            let answer = namespace.kubectl(probe).await;
            expect(answer.stderr.contains("kept by the test"), || answer.stderr + &answer.stdout)
        })
        .await;
        Self(policy)
    }

    /// Removes the policy.
    async fn lift(self, namespace: &Namespace) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            namespace.kubectl(&["delete", kind, &self.0]).await.succeed();
        }
    }
}

/// Policies that refuse the deletion of this Node and the removal of this machine's finalizers.
async fn refusals(namespace: &Namespace, machine: &str, node: &str) -> (Refusal, Refusal) {
    let stays = format!("oldObject.metadata.name != '{node}'");
    let probe = ["delete", "node", node, "--dry-run=server"];
    let keeps_node = Refusal::begin(namespace, ["", "v1", "nodes"], "DELETE", &stays, &probe).await;
    let has_finalizers = format!(
        "object.metadata.name != '{machine}' || request.namespace != '{}' || !has(oldObject.metadata.finalizers) || \
         has(object.metadata.finalizers)",
        namespace.name
    );
    let bare = r#"{"metadata": {"finalizers": null}}"#;
    let probe = ["patch", "machine", machine, "--type=merge", "--dry-run=server", "-p", bare];
    let what = ["machine.sapcloud.io", "v1alpha1", "machines"];
    let keeps_machine = Refusal::begin(namespace, what, "UPDATE", &has_finalizers, &probe).await;
    (keeps_node, keeps_machine)
}

/// The reason of the condition that explains a machine's wait; empty without the condition.
fn reason(machine: &Value) -> &str {
    let conditions = machine.pointer("/status/machineConditions").and_then(Value::as_array);
    let progress = conditions.into_iter().flatten().find(|condition| text(condition, "/type") == "Progressing");
    progress.map_or("", |condition| text(condition, "/reason"))
}
