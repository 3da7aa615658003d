//! Machines that are pods: a rollout from the control cluster into another cluster, a scale-in and a deletion, with a real API server and its garbage
//! collector. The test plays scheduler and kubelets.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use machine_api::{names::label, v1alpha1::Machine};
use serde_json::{Value, json};

use crate::{
    fleet::{none_left, rolled_out, running_machines},
    support::{
        ManagerOptions, Namespace, Rig, Rights, TestManager,
        clouds::NO_SIMULATION,
        cluster_object::{name, text},
        wait::expect,
        wait_until,
    },
};

/// The namespace of the machine objects.
const CONTROL: &str = "machines";
/// The name of the cluster, which marks pods in another cluster.
const CLUSTER: &str = "a-b";
const DEPLOYMENT: &str = "workers";
const TIMEOUT: Duration = Duration::from_secs(120);
/// A part of the user data that no log may contain.
const PASSWORD: &str = "the-password-of-a-machine";

#[tokio::test(flavor = "multi_thread")]
async fn machines_become_pods_move_to_another_cluster_shrink_and_go_again() {
    let test = "local_machines::machines_become_pods_move_to_another_cluster_shrink_and_go_again";
    let why = "the tests of the driver run on it, and it has no bindings of pods to hosts";
    let Some(rig) = Rig::own_real(test, why).await else { return };
    rig.with_controller_manager().await;
    rig.install_crds().await;
    let control = rig.namespace_named(CONTROL).await;
    // The kubeconfig makes it another cluster for the driver.
    let elsewhere = rig.namespace_named("shoot--a--b").await;
    let played = tokio::spawn(play(rig.client().await));
    let options = ManagerOptions {
        simulation: NO_SIMULATION.to_owned(),
        // The highest verbosity, to check that no secret is logged.
        flags: vec!["-v=10".to_owned(), format!("--cluster-name={CLUSTER}")],
        rights: Rights::WithLocalMachines,
    };
    let mut manager = TestManager::start(&rig, &control, &options).await;
    let kubeconfig = std::fs::read_to_string(rig.admin_kubeconfig()).expect("a kubeconfig");
    for object in objects(&kubeconfig, &elsewhere.name) {
        control.apply(&object.to_string()).await.succeed();
    }
    let machines = running_machines(&control, 2, TIMEOUT).await;
    each_machine_is_a_pod(&control, &machines, "node:1").await;

    change(&control, &json!({"spec": {"template": {"spec": {"class": {"name": "elsewhere"}}}}})).await;
    wait_until("the rollout", TIMEOUT, || async { rolled_out(&control.get("machinedeployment", DEPLOYMENT).await, 2) })
        .await;
    let machines = running_machines(&control, 2, TIMEOUT).await;
    each_machine_is_a_pod(&elsewhere, &machines, "node:2").await;
    nothing_is_left(&control).await;

    change(&control, &json!({"spec": {"replicas": 1}})).await;
    let machines = running_machines(&control, 1, TIMEOUT).await;
    each_machine_is_a_pod(&elsewhere, &machines, "node:2").await;

    control.kubectl(&["delete", "machinedeployment", DEPLOYMENT, "--wait=false"]).await.succeed();
    none_left(&control, "machines", TIMEOUT).await;
    nothing_is_left(&elsewhere).await;
    none_left(&control, "nodes", TIMEOUT).await;
    for secret in [PASSWORD, Rig::TOKENS[0]] {
        let log = manager.log();
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "the log contains a secret: {line:?}");
    }
    assert_eq!(manager.terminate(), 0, "{}", manager.log());
    played.abort();
}

/// The Secrets, a class for the control cluster and one for another, and a deployment of the first.
fn objects(kubeconfig: &str, elsewhere: &str) -> Vec<Value> {
    let secret = |name: &str, data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
    let reference = |name: &str| json!({"name": name, "namespace": CONTROL});
    let class = |name: &str, spec: Value| {
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass", "metadata": {"name": name},
            "provider": "local", "providerSpec": spec, "secretRef": reference("user-data"),
        })
    };
    let mut other = class("elsewhere", json!({"namespace": elsewhere, "image": "node:2", "ipPoolNameV4": "machines"}));
    other["credentialsSecretRef"] = reference("cluster");
    let label = json!({"pool": DEPLOYMENT});
    vec![
        secret("user-data", json!({"userData": format!("#!/bin/sh\n# {PASSWORD}\njoin --name <<MACHINE_NAME>>\n")})),
        secret("cluster", json!({"kubeconfig": kubeconfig})),
        class("here", json!({"apiVersion": "mcm.gardener.cloud/v1alpha1", "image": "node:1"})),
        other,
        json!({
            "apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineDeployment", "metadata": {"name": DEPLOYMENT},
            "spec": {
                "replicas": 2, "selector": {"matchLabels": label},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}},
                "template": {"metadata": {"labels": label}, "spec": {"class": {"kind": "MachineClass", "name": "here"}}},
            },
        }),
    ]
}

async fn change(namespace: &Namespace, patch: &Value) {
    let patch = patch.to_string();
    namespace.kubectl(&["patch", "machinedeployment", DEPLOYMENT, "--type=merge", "-p", &patch]).await.succeed();
}

/// Checks that there is one pod for each machine, with its Secret and its Service.
async fn each_machine_is_a_pod(namespace: &Namespace, machines: &[Value], image: &str) {
    let wanted: BTreeSet<String> = machines.iter().map(|machine| format!("machine-{}", name(machine))).collect();
    let pods = wait_until("the pods of the machines only", TIMEOUT, || async {
        let pods = namespace.list("pods").await;
        let found: BTreeSet<String> = pods.iter().map(|pod| name(pod).to_owned()).collect();
        expect(found == wanted, || format!("pods {found:?}, machines {wanted:?}")).map(|()| pods)
    })
    .await;
    for machine in machines {
        let pod = format!("machine-{}", name(machine));
        assert_eq!(text(machine, "/spec/providerID"), pod);
        assert_eq!(machine["metadata"]["labels"]["node"], pod.as_str());
        let found = pods.iter().find(|one| name(one) == pod).expect("its pod");
        assert_eq!(text(found, "/spec/containers/0/image"), image);
        let mut labels = json!({"app": "machine", "machine-provider": "local", "machine": name(machine)});
        if namespace.name != CONTROL {
            labels["machine-class-cluster"] = json!(CLUSTER);
        }
        assert_eq!(found["metadata"]["labels"], labels);
        let secret = namespace.get("secret", &format!("{pod}-userdata")).await;
        let user_data = BASE64_STANDARD.decode(text(&secret, "/data/userdata")).expect("base 64");
        assert!(String::from_utf8_lossy(&user_data).ends_with(&format!("join --name {}\n", name(machine))));
        let service = namespace.get("service", &pod).await;
        assert_eq!(text(&service, "/spec/clusterIP"), "None");
        for owned in [&secret, &service] {
            assert_eq!(owned["metadata"]["ownerReferences"][0]["uid"], found["metadata"]["uid"]);
        }
    }
}

/// Waits until a namespace has no pod, and no Secret and Service of a pod.
async fn nothing_is_left(namespace: &Namespace) {
    wait_until("the last pod, Secret and Service to go", TIMEOUT, || async {
        let mut left = Vec::new();
        for kind in ["pods", "services", "secrets"] {
            let found = namespace.list(kind).await;
            let of_machines = found.iter().map(name).filter(|name| name.starts_with("machine-workers-"));
            left.extend(of_machines.map(str::to_owned));
        }
        expect(left.is_empty(), || format!("{left:?}"))
    })
    .await;
}

/// Plays scheduler and kubelets: pods of machines are bound to a host and run, their Nodes are ready, and pods that are deleted go some time later.
async fn play(client: kube::Client) {
    let (all, nodes) = (Api::<Pod>::all(client.clone()), Api::<Node>::all(client.clone()));
    let machines = Api::<Machine>::namespaced(client.clone(), CONTROL);
    let of_machines = ListParams::default().labels("machine-provider=local");
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The API server ends with the test.
        let Ok(pods) = all.list(&of_machines).await else { continue };
        for pod in pods {
            let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace().expect("pods have one"));
            if let Err(error) = play_pod(&api, &pod).await {
                // The pod has just changed.
                eprintln!("playing {}: {error}", pod.name_any());
            }
        }
        if let Err(error) = join(&machines, &nodes).await {
            eprintln!("playing a Node: {error}");
        }
    }
}

async fn play_pod(pods: &Api<Pod>, pod: &Pod) -> kube::Result<()> {
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        pods.delete(&name, &DeleteParams::default().grace_period(0)).await.map(drop)
    } else if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "host"},
        });
        pods.create_subresource::<Value, Value>("binding", &name, &PostParams::default(), &binding).await.map(drop)
    } else if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
        Ok(())
    } else {
        let running = json!({"status": {"phase": "Running", "podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(running)).await.map(drop)
    }
}

/// Registers the Nodes of the machines whose creation is answered. A kubelet needs longer to join than the driver to see its pod run.
async fn join(machines: &Api<Machine>, nodes: &Api<Node>) -> kube::Result<()> {
    for machine in machines.list(&ListParams::default()).await? {
        let Some(node_name) = machine.labels().get(label::NODE) else { continue };
        if machine.metadata.deletion_timestamp.is_some() || nodes.get_opt(node_name).await?.is_some() {
            continue;
        }
        let ready = json!({"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]});
        let node: Node = serde_json::from_value(json!({"metadata": {"name": node_name}})).expect("a Node");
        nodes.create(&PostParams::default(), &node).await?;
        nodes.patch_status(node_name, &PatchParams::default(), &Patch::Merge(json!({ "status": ready }))).await?;
    }
    Ok(())
}
