//! Both versions as users see them: `mcm serve` with v1beta1 enabled, and kubectl as the client.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, TryStreamExt};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, WatchEvent, WatchParams},
    core::GroupVersionKind,
};
use machine_api::kind::{ApiVersion, Kind};

use crate::support::{
    Namespace, Rig,
    cluster_object::text,
    manager::{ManagerOptions, TestManager, mcm},
    wait::expect,
    wait_until,
};

/// Applies the definitions with v1beta1 served and this manager as the converter. Waits until kubectl can read both versions.
pub async fn serve_v1beta1(rig: &Arc<Rig>, namespace: &Namespace, manager: &TestManager) {
    let url = format!("--webhook-url=https://127.0.0.1:{}", manager.secure_port);
    let definitions = mcm(&["manifests", "crds", "--serve", "v1beta1", &url]);
    rig.apply(&definitions).await.succeed();
    for kind in Kind::ALL {
        for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
            let resource = qualified(kind, version);
            wait_until(&format!("{resource} to be readable"), Duration::from_secs(60), || async {
                let answer = namespace.kubectl(&["get", &resource]).await;
                expect(answer.succeeded(), || answer.stderr.clone())
            })
            .await;
        }
    }
}

/// The resource name with a version, as kubectl accepts it.
pub fn qualified(kind: Kind, version: ApiVersion) -> String {
    format!("{}.{}.machine.sapcloud.io", kind.plural(), version.as_str())
}

/// A class `c` and a deployment of two machines, in v1beta1.
pub const POOL: &str = "
apiVersion: machine.sapcloud.io/v1beta1
kind: MachineClass
metadata: {name: c}
spec:
  provider: virtual
  providerSpec: {}
  nodeTemplate:
    capacity: {cpu: 4, gpu: 0, memory: 8Gi}
    instanceType: t
    region: r
    zone: z
---
apiVersion: machine.sapcloud.io/v1beta1
kind: MachineDeployment
metadata: {name: pool}
spec:
  replicas: 2
  selector: {matchLabels: {pool: a}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  template:
    metadata: {labels: {pool: a}}
    spec:
      classRef: {kind: MachineClass, name: c}
      lifecycle: {drainTimeout: 5m, unhealthyNodeConditions: [KernelDeadlock]}
";

#[tokio::test(flavor = "multi_thread")]
async fn people_can_work_in_both_versions() {
    let Some(rig) = Rig::own("versions::people_can_work_in_both_versions").await else { return };
    rig.install_crds().await;
    let namespace = rig.namespace("versions").await;
    let manager = TestManager::start(&rig, &namespace, &ManagerOptions::default()).await;
    manager.register_webhooks(&rig, &namespace).await;
    serve_v1beta1(&rig, &namespace, &manager).await;

    // A deployment in v1beta1 creates machines, and both versions show the machines.
    namespace.apply(POOL).await.succeed();
    let (alpha, beta) = (qualified(Kind::Machine, ApiVersion::V1alpha1), qualified(Kind::Machine, ApiVersion::V1beta1));
    let machines = wait_until("two machines to run", Duration::from_secs(60), || async {
        let machines = namespace.list(&beta).await;
        let running = machines.iter().filter(|machine| text(machine, "/status/phase") == "Running").count();
        if running == 2 { Ok(machines) } else { Err(format!("{machines:?}")) }
    })
    .await;
    for machine in &machines {
        // The controllers write durations in the format of the original.
        assert_eq!(text(machine, "/spec/lifecycle/drainTimeout"), "5m0s");
        let name = text(machine, "/metadata/name");
        let old = namespace.get(&alpha, name).await;
        assert_eq!((text(&old, "/spec/drainTimeout"), text(&old, "/spec/nodeConditions")), ("5m0s", "KernelDeadlock"));
        assert_eq!(text(&old, "/metadata/labels/node"), text(machine, "/status/nodeRef/name"));
    }
    // The table of kubectl has the version that discovery prefers now.
    let table = namespace.kubectl(&["get", "machines"]).await.succeed();
    assert!(table.contains("Running"), "{table}");

    both_versions_can_be_watched(&rig, &namespace, text(&machines[0], "/metadata/name")).await;
    // Each change of the template starts a rollout.
    editing_and_patching(&namespace).await;
    refusals_use_the_version_of_the_user(&namespace).await;

    let metrics = manager.http_get("/metrics").await;
    for line in [
        "mcm_conversion_requests_total{from=\"v1alpha1\",result=\"success\",to=\"v1beta1\"} ",
        "mcm_conversion_requests_total{from=\"v1beta1\",result=\"success\",to=\"v1alpha1\"} ",
        "mcm_conversion_residue_dropped_total 0",
    ] {
        assert!(metrics.contains(line), "{line} missing in:\n{metrics}");
    }
    assert!(!metrics.contains("\nmcm_conversion_objects_total 0"), "objects are counted");
}

async fn editing_and_patching(namespace: &Namespace) {
    let (alpha, beta) = (
        qualified(Kind::MachineDeployment, ApiVersion::V1alpha1),
        qualified(Kind::MachineDeployment, ApiVersion::V1beta1),
    );
    let stored = async || namespace.get(&alpha, "pool").await;
    namespace.edit(&format!("{beta}/pool"), "sed -i s/drainTimeout:.5m/drainTimeout:\\ 6m/").await.succeed();
    assert_eq!(text(&stored().await, "/spec/template/spec/drainTimeout"), "6m");
    namespace.edit(&format!("{alpha}/pool"), "sed -i s/drainTimeout:.6m/drainTimeout:\\ 7m/").await.succeed();
    let shown = namespace.get(&beta, "pool").await;
    assert_eq!(text(&shown, "/spec/template/spec/lifecycle/drainTimeout"), "7m");
    let patch = r#"{"spec":{"template":{"spec":{"lifecycle":{"healthTimeout":"8m"}}}}}"#;
    namespace.kubectl(&["patch", &beta, "pool", "--type=merge", "-p", patch]).await.succeed();
    assert_eq!(text(&stored().await, "/spec/template/spec/healthTimeout"), "8m");
    let patch = r#"[{"op":"remove","path":"/spec/template/spec/healthTimeout"}]"#;
    namespace.kubectl(&["patch", &alpha, "pool", "--type=json", "-p", patch]).await.succeed();
    assert_eq!(text(&namespace.get(&beta, "pool").await, "/spec/template/spec/lifecycle/healthTimeout"), "");
    // The first manifest is applied again: its values replace the edits, and other fields stay.
    namespace.apply(POOL).await.succeed();
    assert_eq!(text(&stored().await, "/spec/template/spec/drainTimeout"), "5m");
    namespace.kubectl(&["scale", &beta, "pool", "--replicas=3"]).await.succeed();
    assert_eq!(stored().await["spec"]["replicas"], 3);
}

async fn refusals_use_the_version_of_the_user(namespace: &Namespace) {
    let beta = qualified(Kind::MachineDeployment, ApiVersion::V1beta1);
    let patch = r#"{"spec":{"template":{"spec":{"lifecycle":{"unhealthyNodeConditions":["A B"]}}}}}"#;
    let refused = namespace.kubectl(&["patch", &beta, "pool", "--type=merge", "-p", patch]).await.fail();
    assert!(refused.contains("spec.template.spec.lifecycle.unhealthyNodeConditions"), "{refused}");
}

async fn both_versions_can_be_watched(rig: &Rig, namespace: &Namespace, machine: &str) {
    let client = rig.client().await;
    let api = |version: ApiVersion| {
        let gvk = GroupVersionKind::gvk("machine.sapcloud.io", version.as_str(), "Machine");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "machines");
        Api::<DynamicObject>::namespaced_with(client.clone(), &namespace.name, &resource)
    };
    let mut events = Vec::new();
    for version in [ApiVersion::V1alpha1, ApiVersion::V1beta1] {
        let from = api(version).get(machine).await.expect("it exists").metadata.resource_version.expect("a version");
        let params = WatchParams::default().fields(&format!("metadata.name={machine}"));
        let stream = api(version).watch(&params, &from).await.expect("a watch").map_ok(move |event| (version, event));
        events.push(stream.boxed());
    }
    let resource = qualified(Kind::Machine, ApiVersion::V1beta1);
    namespace.kubectl(&["label", &resource, machine, "seen=both"]).await.succeed();
    for mut stream in events {
        let seen = async {
            while let Some((version, event)) = stream.try_next().await.expect("the watch goes on") {
                if let WatchEvent::Modified(object) = event
                    && object.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("seen"))
                {
                    let types = object.types.expect("an apiVersion");
                    assert_eq!(types.api_version, format!("machine.sapcloud.io/{}", version.as_str()));
                    let phase =
                        ["/status/currentStatus/phase", "/status/phase"][usize::from(version == ApiVersion::V1beta1)];
                    assert_eq!(object.data.pointer(phase).and_then(|phase| phase.as_str()), Some("Running"));
                    return;
                }
            }
            panic!("the watch ended");
        };
        tokio::time::timeout(Duration::from_secs(30), seen).await.expect("the label is seen in both versions");
    }
}
