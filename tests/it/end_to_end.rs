//! From `kubectl apply` to a ready node and back to an empty cluster, with the manifests of the design notes.
//!
//! One scenario on its own control plane: wrong manifests are refused; a set and then a deployment create machines and Nodes; the deployment grows,
//! rolls to a new class, shrinks while a disruption budget blocks a drain, and is deleted. After each step the objects look as the Go original leaves
//! them.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    fleet::{describe, none_left, phase, rolled_out, running_machines},
    guard,
    refusals::{self, Seed},
    support::{
        Backend, ManagerOptions, Namespace, Rig, Rights, TestManager,
        cluster_object::{condition, has_finalizer, name, number, text},
        wait::expect,
        wait_until,
    },
};

const NAMESPACE: &str = "shoot--i034796--tre";
const DEPLOYMENT: &str = "shoot--i034796--tre-worker-q3rb4-z1";
const CLASS: &str = "shoot--i034796--tre-worker-q3rb4-z1-30c4a";
const NEW_CLASS: &str = "shoot--i034796--tre-worker-q3rb4-z1-77777";
const MACHINE_FINALIZER: &str = "machine.sapcloud.io/machine-controller-manager";
const SECRET_FINALIZER: &str = "machine.sapcloud.io/machine-controller";
const NODE_FINALIZER: &str = "node.machine.sapcloud.io/machine-controller";
/// Long enough for a busy machine with two cores. A passing test does not wait that long.
const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn the_manifests_of_the_design_notes_become_nodes_and_are_deleted_again() {
    let Some(rig) = Rig::own("end_to_end::the_manifests_of_the_design_notes").await else { return };
    from_manifests_to_nodes_and_back(rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_manifests_on_the_development_server() {
    let test = "end_to_end::the_same_manifests_on_the_development_server";
    let Some(rig) = Rig::own_on(Backend::Dev, test).await else { return };
    from_manifests_to_nodes_and_back(rig).await;
}

async fn from_manifests_to_nodes_and_back(rig: Arc<Rig>) {
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let namespace = rig.namespace_named(NAMESPACE).await;
    // With the generated rights of deploy/: a request without rights fails here and not at the first operator.
    let options = ManagerOptions { rights: Rights::Generated, ..ManagerOptions::default() };
    let manager = TestManager::start(&rig, &namespace, &options).await;
    manager.register_webhooks(&rig, &namespace).await;

    refusals::check_all_refusals(&namespace).await;

    namespace.apply(include_str!("../manifests/secrets.yaml")).await.succeed();
    namespace.apply(Seed::Class.yaml()).await.succeed();
    a_set_becomes_a_machine_and_goes(&rig, &namespace).await;
    a_deployment_becomes_three_nodes(&rig, &namespace).await;
    scale_out(&rig, &namespace).await;
    roll_to_a_new_class(&namespace).await;
    scale_in_under_a_budget(&rig, &namespace).await;
    delete_everything(&rig, &namespace).await;
    assert!(manager.http_get("/metrics").await.contains("mcm_"), "the metrics keep their prefix");
    assert!(!manager.log().contains("not-a-secret"), "a credential is in the log");
}

async fn a_set_becomes_a_machine_and_goes(rig: &Arc<Rig>, namespace: &Namespace) {
    namespace.apply(Seed::Set.yaml()).await.succeed();
    let machines = running_machines(namespace, 1, TIMEOUT).await;
    machine_is_as_go_leaves_it(&machines[0], CLASS);
    assert_eq!(text(&machines[0], "/metadata/ownerReferences/0/kind"), "MachineSet");
    namespace.kubectl(&["delete", "machineset", "--all", "--wait=false"]).await.succeed();
    none_left(namespace, "machinesets", TIMEOUT).await;
    none_left(namespace, "machines", TIMEOUT).await;
    no_nodes_left(rig).await;
}

async fn a_deployment_becomes_three_nodes(rig: &Arc<Rig>, namespace: &Namespace) {
    let mut deployment = Seed::Deployment.object();
    deployment["spec"]["replicas"] = json!(3);
    namespace.apply(&deployment.to_string()).await.succeed();
    let machines = running_machines(namespace, 3, TIMEOUT).await;
    for machine in &machines {
        machine_is_as_go_leaves_it(machine, CLASS);
    }
    for node in ready_nodes(rig, 3).await {
        node_is_as_go_leaves_it(&node, &machines);
    }
    let sets = namespace.list("machinesets").await;
    assert_eq!(sets.len(), 1);
    set_is_as_go_leaves_it(&sets[0], 3);
    let class = namespace.get("machineclass", CLASS).await;
    assert!(has_finalizer(&class, MACHINE_FINALIZER));
    for secret in [CLASS, "cloudprovider"] {
        let secret = namespace.get("secret", secret).await;
        assert!(has_finalizer(&secret, SECRET_FINALIZER), "{}", secret["metadata"]);
    }
    // The manifest sets minReadySeconds to 500. The original never uses this value for the counts, and its users see these counts.
    wait_until("the deployment's status", TIMEOUT, || async {
        let deployment = namespace.get("machinedeployment", DEPLOYMENT).await;
        rolled_out(&deployment, 3).and_then(|()| {
            expect(number(&deployment, "/status/availableReplicas") == 3, || deployment["status"].to_string())
        })
    })
    .await;
    no_bootstrap_tokens_left(rig).await;
}

async fn scale_out(rig: &Arc<Rig>, namespace: &Namespace) {
    let before = names_of(&namespace.list("machines").await);
    namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=5"]).await.succeed();
    let after = names_of(&running_machines(namespace, 5, TIMEOUT).await);
    assert!(before.iter().all(|machine| after.contains(machine)), "{before:?} are not all among {after:?}");
    ready_nodes(rig, 5).await;
    assert_eq!(namespace.list("machinesets").await.len(), 1, "a change of replicas starts no rollout");
}

async fn roll_to_a_new_class(namespace: &Namespace) {
    let mut class = Seed::Class.object();
    class["metadata"]["name"] = json!(NEW_CLASS);
    namespace.apply(&class.to_string()).await.succeed();
    let class = json!({ "kind": "MachineClass", "name": NEW_CLASS });
    let change = json!({ "spec": { "template": { "spec": { "class": class } } } }).to_string();
    namespace.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &change]).await.succeed();
    wait_until("the rollout", 2 * TIMEOUT, || async {
        let machines = namespace.list("machines").await;
        // maxSurge is 1 and maxUnavailable is 0: never more than one machine above the desired number, never fewer.
        let deleting = machines.iter().filter(|machine| is_deleting(machine)).count();
        assert!(machines.len() - deleting <= 6, "{:#?}", machines.iter().map(describe).collect::<Vec<_>>());
        rolled_out(&namespace.get("machinedeployment", DEPLOYMENT).await, 5)?;
        expect(machines.len() == 5, || format!("{} machines", machines.len()))
    })
    .await;
    for machine in running_machines(namespace, 5, TIMEOUT).await {
        machine_is_as_go_leaves_it(&machine, NEW_CLASS);
    }
    let sets = namespace.list("machinesets").await;
    assert_eq!(sets.len(), 2, "the old set is kept for a rollback");
    let of_class = |class: &str| {
        let found = sets.iter().find(|set| text(set, "/spec/template/spec/class/name") == class);
        found.unwrap_or_else(|| panic!("no set of class {class}"))
    };
    set_is_as_go_leaves_it(of_class(NEW_CLASS), 5);
    assert_eq!(number(of_class(CLASS), "/spec/replicas"), 0);
    let revision = |class| text(of_class(class), "/metadata/annotations/deployment.kubernetes.io~1revision").to_owned();
    assert_eq!((revision(CLASS).as_str(), revision(NEW_CLASS).as_str()), ("1", "2"));
}

async fn scale_in_under_a_budget(rig: &Arc<Rig>, namespace: &Namespace) {
    let machines = running_machines(namespace, 5, TIMEOUT).await;
    let (machine, node) = (name(&machines[0]).to_owned(), text(&machines[0], "/metadata/labels/node").to_owned());
    let prefer = "machinepriority.machine.sapcloud.io=1";
    namespace.kubectl(&["annotate", "machine", &machine, prefer, "--overwrite"]).await.succeed();
    guard::a_pod_on(namespace, &node).await;

    namespace.kubectl(&["scale", "machinedeployment", DEPLOYMENT, "--replicas=4"]).await.succeed();
    wait_until("the drain to begin", TIMEOUT, || async {
        let cordoned = rig.get("node", &node).await["spec"]["unschedulable"] == true;
        let seen = namespace.get("machine", &machine).await;
        expect(cordoned && phase(&seen) == "Terminating", || describe(&seen))
    })
    .await;
    // The budget refuses the eviction, so nothing changes for a while.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(is_deleting(&namespace.get("machine", &machine).await));
    assert!(!is_deleting(&namespace.get("pod", guard::NAME).await), "a guarded pod is evicted");

    namespace.kubectl(&["delete", "poddisruptionbudget", guard::NAME]).await.succeed();
    wait_until("the drained machine to go", TIMEOUT, || async {
        let left = namespace.list("machines").await;
        expect(left.iter().all(|left| name(left) != machine), || left.iter().map(describe).collect::<String>())
    })
    .await;
    assert!(namespace.list("pods").await.is_empty(), "the pod remains without its node");
    running_machines(namespace, 4, TIMEOUT).await;
    ready_nodes(rig, 4).await;
}

async fn delete_everything(rig: &Arc<Rig>, namespace: &Namespace) {
    namespace.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
    for resource in ["machines", "machinesets", "machinedeployments"] {
        none_left(namespace, resource, TIMEOUT).await;
    }
    no_nodes_left(rig).await;
    namespace.kubectl(&["delete", "machineclass", "--all", "--wait=false"]).await.succeed();
    none_left(namespace, "machineclasses", TIMEOUT).await;
    namespace.kubectl(&["delete", "secret", CLASS, "cloudprovider", "--wait=false"]).await.succeed();
    wait_until("the secrets to go", TIMEOUT, || async {
        let answer = namespace.kubectl(&["get", "secret", CLASS, "cloudprovider", "--ignore-not-found"]).await;
        expect(answer.stdout.is_empty(), || answer.stdout.clone())
    })
    .await;
    no_bootstrap_tokens_left(rig).await;
}

fn machine_is_as_go_leaves_it(machine: &Value, class: &str) {
    let about = describe(machine);
    assert!(has_finalizer(machine, MACHINE_FINALIZER), "{about}");
    assert_eq!(text(machine, "/spec/class/name"), class);
    assert_eq!(text(machine, "/spec/class/kind"), "MachineClass");
    assert_eq!(text(machine, "/metadata/annotations/machinepriority.machine.sapcloud.io"), "3", "{about}");
    assert!(!text(machine, "/metadata/labels/node").is_empty(), "{about}");
    let provider_id = text(machine, "/spec/providerID");
    assert!(provider_id.starts_with("aws:///eu-west-1/i-"), "{about}: {provider_id}");
    assert_eq!(text(machine, "/status/lastOperation/type"), "Create", "{about}");
    assert_eq!(text(machine, "/status/lastOperation/state"), "Successful", "{about}");
    let wanted = format!("Machine {} successfully joined the cluster", name(machine));
    assert!(text(machine, "/status/lastOperation/description").starts_with(&wanted), "{about}");
    assert_eq!(condition(machine, "Ready"), "True", "{about}");
}

fn node_is_as_go_leaves_it(node: &Value, machines: &[Value]) {
    let machine = machines.iter().find(|machine| text(machine, "/metadata/labels/node") == name(node));
    let machine = machine.unwrap_or_else(|| panic!("no machine names node {}", name(node)));
    assert!(has_finalizer(node, NODE_FINALIZER), "{}", node["metadata"]);
    assert_eq!(text(node, "/metadata/labels/node.gardener.cloud~1machine-name"), name(machine));
    assert_eq!(text(node, "/metadata/labels/worker.gardener.cloud~1pool"), "worker-q3rb4");
    let (ours, theirs) = (text(machine, "/spec/providerID"), text(node, "/spec/providerID"));
    assert_eq!(ours.rsplit('/').next(), theirs.rsplit('/').next(), "both name one instance");
    assert_ne!(ours, theirs, "in two formats, as at every real cloud");
    let memory = "/metadata/annotations/node.machine.sapcloud.io~1last-applied-anno-labels-taints";
    assert!(text(node, memory).contains("worker-q3rb4"), "{}", node["metadata"]);
}

fn set_is_as_go_leaves_it(set: &Value, replicas: i64) {
    let annotation = |key: &str| text(set, &format!("/metadata/annotations/deployment.kubernetes.io~1{key}"));
    assert_eq!(annotation("desired-replicas"), replicas.to_string());
    assert_eq!(annotation("max-replicas"), (replicas + 1).to_string());
    assert!(has_finalizer(set, MACHINE_FINALIZER));
    assert!(name(set).starts_with(&format!("{DEPLOYMENT}-")));
    let hash = text(set, "/metadata/labels/machine-template-hash");
    assert!(!hash.is_empty());
    for place in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
        assert_eq!(text(set, &format!("{place}/machine-template-hash")), hash);
    }
    assert_eq!(text(set, "/metadata/ownerReferences/0/name"), DEPLOYMENT);
    assert_eq!(number(set, "/status/replicas"), replicas);
    assert_eq!(number(set, "/status/readyReplicas"), replicas);
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

fn names_of(objects: &[Value]) -> Vec<String> {
    objects.iter().map(|object| name(object).to_owned()).collect()
}

async fn nodes(rig: &Rig) -> Vec<Value> {
    rig.list("nodes").await
}

async fn ready_nodes(rig: &Rig, count: usize) -> Vec<Value> {
    wait_until(&format!("{count} Ready nodes"), TIMEOUT, || async {
        let nodes = nodes(rig).await;
        // The finalizer may come after the machine's phase.
        let is_ready = |node: &&Value| condition(node, "Ready") == "True" && has_finalizer(node, NODE_FINALIZER);
        let ready = nodes.iter().filter(is_ready).count();
        expect(ready == count && nodes.len() == count, || format!("{ready} ready of {:?}", names_of(&nodes)))
            .map(|()| nodes.clone())
    })
    .await
}

async fn no_nodes_left(rig: &Rig) {
    wait_until("the last node to go", TIMEOUT, || async {
        let nodes = nodes(rig).await;
        expect(nodes.is_empty(), || format!("{:?}", names_of(&nodes)))
    })
    .await;
}

async fn no_bootstrap_tokens_left(rig: &Rig) {
    wait_until("the last bootstrap token to go", TIMEOUT, || async {
        let secrets = rig.kubectl(&["get", "secrets", "--namespace=kube-system", "-o", "name"]).await.succeed();
        expect(!secrets.contains("bootstrap-token-"), || secrets.clone())
    })
    .await;
}
