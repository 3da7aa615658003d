//! The leader is killed in every stage of a machine's life that can be delayed, and another one continues.
//!
//! The delay comes from the cloud (a latency or a call that never ends), a budget, a volume, or a policy of the API server that refuses the write.
//! The stage of a machine is visible in its condition, or, where that would take a minute, in the calls of the cloud.

use serde_json::{Value, json};

use super::{FLEET, PATIENCE, Weather, drain::a_pod_with_an_attached_volume_on, explanation, names, node_of, sky};
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

/// Every VM has to be initialised, and these calls, or the start of a VM or of its kubelet, never end.
fn cloud_that_holds(held: &[&str]) -> String {
    let latency = ["boot", "ready"]
        .map(|key| format!("  {key}: {{constant: {}}}\n", if held.contains(&key) { "1h" } else { "0s" }));
    let calls = held.iter().filter(|held| !["boot", "ready"].contains(held));
    let hangs = calls.map(|call| format!("  - {{op: {call}, effect: hang, for: 1h}}\n")).collect::<Vec<_>>().concat();
    let failures = if hangs.is_empty() { String::new() } else { format!("failures:\n{hangs}") };
    let swift = "  create: {constant: 0s}\n  delete: {constant: 0s}\n";
    format!("seed: 5\nlatency:\n{swift}{}outcomes: [{{effect: uninitialized}}]\n{failures}", latency.concat())
}

impl Weather {
    /// A manager whose cloud keeps its state over restarts and delays these steps.
    async fn that_holds(test: &str, held: &[&str]) -> Option<Self> {
        let rig = sky(test).await?;
        let file = format!("{}.vms", test.replace("::", "-"));
        let state = format!("--simulation-state=file:{}", rig.folder.join(file).display());
        let mut weather = Self::over(rig, &[&state]).await;
        weather.succeeded(held).await;
        Some(weather)
    }

    /// Kills the manager. The cloud of the next one delays other steps.
    async fn succeeded(&mut self, held: &[&str]) {
        self.manager.kill();
        self.goes_on(held).await;
    }

    /// Starts the next manager.
    async fn goes_on(&mut self, held: &[&str]) {
        self.manager.simulate(&cloud_that_holds(held));
        self.manager.restart();
        self.manager.wait_until_ready().await;
        wait_until("the cloud to live", PATIENCE, || self.cloud.lives()).await;
    }

    /// Waits until a call of this operation hangs in the cloud.
    async fn cloud_is_asked(&self, operation: &str) {
        wait_until(&format!("a call of {operation} to hang"), PATIENCE, || async {
            let found = self.cloud.events_of("callHangs").await;
            expect(found.iter().any(|event| text(event, "/operation") == operation), || format!("{found:?}"))
        })
        .await;
    }

    /// Waits until the condition of the only machine has one of these reasons.
    async fn machine_says(&self, what: &str, reasons: &[&str]) {
        wait_until(&format!("the machine to wait for {what}"), PATIENCE, || async {
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
    let Some(mut weather) = Weather::that_holds(test, &["status", "boot"]).await else { return };
    weather.want(1).await;
    weather.cloud_is_asked("status").await;
    weather.succeeded(&["create", "boot"]).await;
    weather.cloud_is_asked("create").await;
    weather.succeeded(&["initialize", "boot"]).await;
    weather.cloud_is_asked("initialize").await;
    weather.succeeded(&["boot"]).await;
    weather.machine_says("the VM's start", &["WaitingForNode", "WaitingForNodeOfAdoptedVM"]).await;
    weather.succeeded(&["ready"]).await;
    wait_until("the Node to register", PATIENCE, || async {
        // Other tests have Nodes on this control plane too. The name of ours is the name of its machine.
        let machines = names(&weather.namespace.list("machines").await);
        let nodes = names(&weather.namespace.list("nodes").await);
        expect(nodes.intersection(&machines).count() == 1, || format!("{machines:?}, {nodes:?}"))
    })
    .await;
    weather
        .machine_says("the Node's readiness", &["WaitingForNode", "WaitingForNodeOfAdoptedVM", "WaitingForNodeReady"])
        .await;
    weather.succeeded(&[]).await;
    let running = weather.clears_up(1).await;
    assert!(running[0]["metadata"]["finalizers"].to_string().contains("machine-controller"), "{}", running[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_in_any_stage_of_a_deletion_is_succeeded() {
    let test = "weather::stages::mc_284_a_leader_that_dies_in_any_stage_of_a_deletion";
    let Some(mut weather) = Weather::that_holds(test, &[]).await else { return };
    weather.want(1).await;
    let running = weather.clears_up(1).await;
    let (machine, node) = (name(&running[0]).to_owned(), node_of(&running[0]).to_owned());
    // The development server has no such policies, so the last two stages are skipped there.
    let kept = match weather.rig.backend() {
        Backend::Real => Some(refusals(&weather.namespace, &machine, &node).await),
        Backend::Dev => None,
    };
    // From here on the provider detaches no volume.
    weather.succeeded(&["detach"]).await;
    guard::a_pod_on(&weather.namespace, &node).await;
    a_pod_with_an_attached_volume_on(&weather, &node, "stages").await;
    weather.namespace.kubectl(&["delete", "machinedeployment", "weather", "--wait=false"]).await.succeed();
    weather.machine_says("the drain", &["DrainBlocked", "WaitingForVolumeDetachment"]).await;

    weather.manager.kill();
    weather.namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    weather.goes_on(&["detach"]).await;
    wait_until("the pods to go", PATIENCE, || async {
        let pods = weather.namespace.list("pods").await;
        expect(pods.is_empty(), || format!("{pods:?}"))
    })
    .await;
    // The attach-detach controller does this when the pod is gone.
    weather.namespace.kubectl(&["delete", "volumeattachment", "va-stages", "--wait=false"]).await.succeed();
    weather.cloud_is_asked("detach").await;
    // A leader that did not see the pods end knows from the attachment what they left behind.
    weather.machine_says("the volume", &["DrainFailed", "WaitingForVolumeDetachment"]).await;

    weather.succeeded(&["delete"]).await;
    weather.machine_says("the end of the VM", &["DeletingVM", "AwaitingDriver"]).await;
    assert_eq!(weather.cloud.vms().await.len(), 1, "the VM is being deleted");

    weather.succeeded(&[]).await;
    if let Some((keeps_node, keeps_machine)) = kept {
        weather.machine_says("the end of its Node", &["DeletingNode"]).await;
        weather.succeeded(&[]).await;
        assert!(names(&weather.namespace.list("nodes").await).contains(&node), "the API server keeps the Node");
        keeps_node.lift(&weather.namespace).await;
        weather.machine_says("its finalizer to be taken off", &["LettingGo"]).await;
        assert!(!names(&weather.namespace.list("nodes").await).contains(&node), "the Node is gone first");

        weather.succeeded(&[]).await;
        assert!(
            names(&weather.namespace.list("machines").await).contains(&machine),
            "the API server keeps the machine"
        );
        keeps_machine.lift(&weather.namespace).await;
    }
    none_left(&weather.namespace, "machinedeployments", PATIENCE).await;
    assert!(weather.cloud.vms().await.is_empty(), "no VM is left");
}

/// A VM whose creation was not answered is found by its name, so that a deletion calls the driver for it first.
#[tokio::test(flavor = "multi_thread")]
async fn mc_284_a_leader_that_dies_while_a_deletion_asks_for_the_vm_is_succeeded() {
    let test = "weather::stages::mc_284_a_leader_that_dies_while_a_deletion_asks";
    let Some(mut weather) = Weather::that_holds(test, &["boot"]).await else { return };
    weather.want(0).await;
    let lost = json!([{"op": "create", "effect": "created-but-error", "code": "DeadlineExceeded"}]);
    weather.cloud.fails(lost).await;
    let alone = json!({
        "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "Machine", "metadata": {"name": "unheard"},
        "spec": {"class": {"kind": "MachineClass", "name": FLEET}},
    });
    weather.namespace.apply(&alone.to_string()).await.succeed();
    let unheard =
        weather.some_machine("a creation that nobody heard of", |machine| phase(machine) == "CrashLoopBackOff");
    assert_eq!(text(&unheard.await, "/spec/providerID"), "");
    weather.manager.kill();
    weather.namespace.kubectl(&["delete", "machine", "unheard", "--wait=false"]).await.succeed();

    weather.goes_on(&["boot", "status"]).await;
    weather.cloud_is_asked("status").await;
    let asks = weather.namespace.get("machine", "unheard").await;
    let stage = text(&asks, "/status/lastOperation/description");
    assert!(stage.contains("getting VM Status"), "the deletion asks for the VM: {stage}");
    weather.succeeded(&[]).await;
    none_left(&weather.namespace, "machines", PATIENCE).await;
    assert!(weather.cloud.vms().await.is_empty(), "the VM that nobody heard of is gone, too");
}

/// A refusal of the API server, by a policy.
struct Refusal(String);

impl Refusal {
    /// Refuses an operation on a resource from now on, unless this expression is true. `probe` is refused too.
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
        wait_until(&format!("{resource} to be kept"), PATIENCE, || async {
            let answer = namespace.kubectl(probe).await;
            expect(answer.stderr.contains("kept by the test"), || answer.stderr + &answer.stdout)
        })
        .await;
        Self(policy)
    }

    /// Ends the refusal.
    async fn lift(self, namespace: &Namespace) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            namespace.kubectl(&["delete", kind, &self.0]).await.succeed();
        }
    }
}

/// The API server refuses the deletion of this Node and the removal of the finalizers of this machine.
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

/// The reason of the condition for a machine's wait. Empty without it.
fn reason(machine: &Value) -> &str {
    let conditions = machine.pointer("/status/machineConditions").and_then(Value::as_array);
    let progress = conditions.into_iter().flatten().find(|condition| text(condition, "/type") == "Progressing");
    progress.map_or("", |condition| text(condition, "/reason"))
}
